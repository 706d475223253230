"""Tests, tables and figures from rows made by hand."""

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from vvlen import comparison, figures, report, results
from vvlen.results import Row

_LENGTHS = (16, 32, 64)
_ARMS = ('none', 'standardize', 'layer_norm')


def _rows(num_seeds=6):
  """Returns rows of three arms whose accuracies are random around known means."""
  rng = np.random.default_rng(0)
  rows = []
  for level, arm in enumerate(_ARMS):
    for suffix in ('', '+adaptive', '+fitted'):
      for seed in range(num_seeds):
        for length in _LENGTHS:
          value = {16: 0.9, 32: 0.6, 64: 0.3}[length] + 0.05 * level
          value += rng.normal(0, 0.02)
          add = lambda metric, v, length=length, arm=arm + suffix, seed=seed: (
              rows.append(Row('retrieval', arm, seed, length, metric, v)))
          add('accuracy', value)
          add('attention_entropy', math.log(length))
          add('target_weight', 1 / length)
          add('output_mean', 0.1)
          add('output_variance', 1.0 / length)
          if not suffix:
            add('component_variance', (1 + 0.1 * rng.random()) / length)
    for seed in range(num_seeds):
      for metric, value in (('training_accuracy', 0.98), ('training_loss', 0.05),
                            ('logit_range', 3.0), ('value_variance', 1.0)):
        rows.append(Row('retrieval', arm, seed, None, metric, value))
  return rows


def _column(rows, arm, length):
  return np.array([r.value for r in rows
                   if (r.arm, r.length, r.metric) == (arm, length, 'accuracy')])


def _compare(rows, treated='layer_norm', control='none'):
  return comparison.compare(results.index(rows), treated, control, trained_up_to=16)


def test_primary_endpoint_is_the_mean_beyond_training():
  rows = _rows()
  treated = (_column(rows, 'layer_norm', 32) + _column(rows, 'layer_norm', 64)) / 2
  control = (_column(rows, 'none', 32) + _column(rows, 'none', 64)) / 2
  expected = stats.ttest_rel(treated, control)
  actual = _compare(rows)
  assert actual.primary.p == pytest.approx(expected.pvalue, rel=1e-9)
  assert actual.primary.mean_difference == pytest.approx(
      100 * (treated - control).mean())
  assert actual.primary_means == pytest.approx(
      (100 * treated.mean(), 100 * control.mean()))


def test_pairing_is_by_seed_and_not_by_order():
  rows = _rows()
  shuffled = [rows[i] for i in np.random.default_rng(1).permutation(len(rows))]
  assert _compare(shuffled).primary == pytest.approx(_compare(rows).primary)


def test_lengths_are_corrected_together():
  actual = _compare(_rows())
  p = np.array([t.p for t in actual.by_length])
  assert actual.lengths == _LENGTHS
  # Holm: the smallest p times the number of lengths.
  assert actual.holm_p[p.argmin()] == pytest.approx(min(1, 3 * p.min()))


def test_a_seed_that_is_not_finite_is_left_out_of_every_test_and_named():
  rows = [
      r._replace(value=float('nan'))
      if (r.arm, r.seed, r.length, r.metric) == ('layer_norm', 2, 64, 'accuracy')
      else r for r in _rows()
  ]
  without = [r for r in rows if r.seed != 2]
  actual, expected = _compare(rows), _compare(without)
  assert actual.left_out == (2,)
  assert actual.primary == pytest.approx(expected.primary)
  assert [t.num_pairs for t in actual.by_length] == [5, 5, 5]
  table = next(t for t in report.make_tables(results.index(rows))
               if t.name == 'primary_endpoint')
  assert 'Left out, not finite in one of the arms: 2.' in table.note


def test_one_pair_makes_a_gap_and_not_a_number():
  tables = report.make_tables(results.index(_rows(num_seeds=1)))
  table = next(t for t in tables if t.name == 'table_1')
  assert table.rows[0][-5:] == ('undefined',) * 5


def test_equal_differences_make_a_gap():
  rows = [r._replace(value=1.0) if r.metric == 'accuracy' else r for r in _rows()]
  tables = {t.name: t for t in report.make_tables(results.index(rows))}
  assert tables['table_1'].rows[0][4:] == ('+0.0',) + ('undefined',) * 4
  assert tables['primary_endpoint'].rows[0][-4:] == (
      'undefined', '6', 'undefined', 'undefined')


def test_table_3_is_gain_in_points_and_in_percent():
  rows = _rows()
  table = next(t for t in report.make_tables(results.index(rows))
               if t.name == 'table_3')
  base, std = _column(rows, 'none', 64).mean(), _column(rows, 'standardize', 64).mean()
  assert table.rows[2][0] == '64'
  assert table.rows[2][2] == f'{100 * (std - base):+.1f}'
  assert table.rows[2][3] == f'{100 * (std / base - 1):+.1f}'


def test_a_seed_that_did_not_converge_is_named():
  rows = [r._replace(value=0.4) if (r.metric, r.seed, r.arm) ==
          ('training_accuracy', 3, 'none') else r for r in _rows()]
  table = next(t for t in report.make_tables(results.index(rows))
               if t.name == 'training')
  assert table.rows[0][5:] == ('3', 'none')
  assert table.rows[1][5:] == ('none', 'none')


def test_a_mean_difference_of_zero_is_a_difference_of_zero():
  rows = [
      r._replace(value=0.5 + (0.0625 if r.seed else -0.0625) * (r.arm == 'none'))
      if r.metric == 'accuracy' else r for r in _rows(num_seeds=2)
  ]
  actual = _compare(rows)
  assert (actual.primary.mean_difference, actual.primary.p) == (0.0, 1.0)
  assert actual.detectable > 0


def test_a_seed_that_one_arm_has_not_run_is_no_pair_and_not_called_broken():
  rows = [r for r in _rows() if r.arm != 'layer_norm' or r.seed < 4]
  actual = _compare(rows)
  assert (actual.primary.num_pairs, actual.left_out) == (4, ())


def test_an_arm_of_which_no_seed_is_finite_makes_gaps():
  rows = [r._replace(value=float('nan')) if r.arm == 'layer_norm' else r
          for r in _rows()]
  tables = {t.name: t for t in report.make_tables(results.index(rows))}
  assert tables['training'].rows[2][2:5] == ('undefined',) * 3
  assert tables['training'].rows[2][6] == '0, 1, 2, 3, 4, 5'
  assert tables['primary_endpoint'].rows[0][-1] == 'undefined'


def test_missing_arms_and_lengths_are_named():
  rows = [r for r in _rows() if (r.arm, r.length) != ('none', 32)]
  with pytest.raises(ValueError, match=r'no accuracy of none at lengths \[32\]'):
    _compare(rows)
  with pytest.raises(ValueError, match='no test length is above 64'):
    comparison.compare(results.index(_rows()), 'layer_norm', 'none', trained_up_to=64)


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A folder as a run leaves it, made without any run."""
  folder = tmp_path_factory.mktemp('run')
  results.write_rows(folder / 'results.csv', _rows())
  curves = results.Curves(folder / 'metrics.jsonl')
  rng = np.random.default_rng(0)
  (folder / 'samples').mkdir()
  for arm in _ARMS:
    for step in (10, 20):
      curves.add(arm, step, 0, {'loss': rng.random(6), 'accuracy': rng.random(6)})
    arrays = {f'components_{n}': rng.normal(size=(64, 4)) for n in (16, 64)}
    arrays |= {f'weights_{n}': rng.random((32, 16)) for n in _LENGTHS}
    np.savez(folder / 'samples' / f'{arm}.npz', **arrays)
  return folder


def test_report_runs_without_jax(workdir):
  code = (
      'import sys; sys.modules["jax"] = None\n'
      'from experiments import report\n'
      f'sys.argv = ["report", "--workdir={workdir}"]\n'
      'report.main()'
  )
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                        check=False)
  assert done.returncode == 0, done.stderr
  assert '| LN − Baseline ' in done.stdout
  for name in ('accuracy', 'figure_2', 'figure_3', 'figure_4', 'proposition_1',
               'learning_curves'):
    assert (workdir / f'figures/{name}.png').stat().st_size > 10_000
    assert (workdir / f'figures/{name}.pdf').read_bytes().startswith(b'%PDF')
  for name in ('table_1', 'table_3', 'primary_endpoint', 'training'):
    assert (workdir / f'tables/{name}.md').exists()
    assert (workdir / f'tables/{name}.csv').exists()


def test_the_same_rows_draw_the_same_files(workdir, tmp_path):
  index = results.index(_rows())
  draw = lambda name: [p.read_bytes() for p in figures.write(
      tmp_path / name, index, trained_up_to=16)]
  once, again = draw('a'), draw('b')
  assert once == again


def test_report_of_an_empty_folder_is_one_line(tmp_path):
  done = subprocess.run(
      [sys.executable, '-m', 'experiments.report', f'--workdir={tmp_path}'],
      capture_output=True, text=True, check=False,
  )
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr == f'Error: {tmp_path} has no results.csv with results\n'
