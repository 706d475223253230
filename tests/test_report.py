"""Tests, tables and figures from rows made by hand."""

import csv
import fcntl
import io
import math
import shutil
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from experiments import report as command
from experiments.harness import reports
from experiments.length_generalization import figures, report
from experiments.length_generalization import tables as length_tables
from experiments.length_generalization.setting import read_setting, Setting
from vvlen import statistics
from vvlen.reporting import endpoints as comparison
from vvlen.reporting import plots, results, run_folder, tables
from vvlen.reporting.curves import Curves
from vvlen.reporting.results import Row

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


@pytest.mark.parametrize('lengths, told', [
    ((16, 32, 64), 'over N = 32 to 64,'),
    ((16, 64, 256, 1024), 'over N = 64, 256, 1024,'),
])
def test_the_lengths_of_the_endpoint_are_told(lengths, told):
  place = dict(zip(_LENGTHS, lengths, strict=False))
  rows = [row._replace(length=place.get(row.length)) for row in _rows()]
  if len(lengths) > 3:
    rows += [r._replace(length=lengths[3]) for r in rows if r.length == lengths[2]]
  assert told in _tables(rows)['primary_endpoint'].note


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
  table = _tables(rows)['primary_endpoint']
  assert 'Left out, not there or not finite in one of the arms: seed 2.' in table.note


def _tables(rows):
  return {t.name: t for t in length_tables.make_tables(results.index(rows))}


def _cells(table, row):
  return {name: cell(table.records[row]) for name, cell in table.columns.items()}


def test_one_pair_makes_a_gap_and_not_a_number():
  cells = _cells(_tables(_rows(num_seeds=1))['table_1'], 0)
  assert {k for k, v in cells.items() if v == 'undefined'} == {
      'difference [95 %]', 'effect', 'p Holm', 'smallest detectable'}


def test_equal_differences_make_a_gap():
  rows = [r._replace(value=1.0) if r.metric == 'accuracy' else r for r in _rows()]
  tables = _tables(rows)
  assert list(_cells(tables['table_1'], 0).values())[4:] == (
      ['0', '0.0'] + ['undefined'] * 3)
  cells = _cells(tables['primary_endpoint'], 0)
  assert {name for name, cell in cells.items() if cell == 'undefined'} == {
      'p', 'at 5 %', 'smallest detectable', 'effect', 't'}
  assert cells['treated ahead'] == '0 of 6'


def test_an_arm_of_a_new_norm_is_tested_and_drawn_beside_the_others(monkeypatch):
  added = [r._replace(arm=r.arm.replace('layer_norm', 'mine'), value=r.value + 0.01)
           for r in _rows() if r.arm.startswith('layer_norm')]
  monkeypatch.setitem(plots.ARMS, 'mine', ('Mine', '#CC79A7', 'D'))
  monkeypatch.setitem(plots.SPELLED, 'mine', 'Mine')
  monkeypatch.setitem(length_tables.NAMES, 'mine', 'Mine')
  monkeypatch.setattr(length_tables, 'OTHERS', (('mine', 'none'),))
  before, tables = _tables(_rows()), _tables(_rows() + added)
  assert tables.keys() == before.keys()
  assert tables['table_3'].records == before['table_3'].records
  *shared, last = tables['primary_endpoint'].records
  assert shared == before['primary_endpoint'].records
  expected = _compare(_rows() + added, 'mine')
  assert last['comparison'] == 'Mine − Baseline'
  assert last['p'] == expected.primary.p
  axes = figures.accuracy(_index_of_trained(_rows() + added), Setting('retrieval')).axes
  assert all('Mine' in _lines(one) for one in axes)


def test_every_arm_has_a_name_in_legends():
  assert plots.SPELLED.keys() == plots.ARMS.keys()


def test_table_3_tests_each_arm_against_each_other():
  rows = _rows()
  table = _tables(rows)['table_3']
  base, std = _column(rows, 'none', 64), _column(rows, 'standardize', 64)
  expected = stats.ttest_rel(std, base)
  cells = _cells(table, 2)
  # Of no length is a difference found, so all are at 5 % / 3.
  low, high = 100 * np.array(expected.confidence_interval(1 - 0.05 / 3))
  assert (cells['comparison'], cells['N']) == ('std. − Baseline', '64')
  assert cells['control'] == f'{100 * base.mean():.1f}'
  assert cells['treated'] == f'{100 * std.mean():.1f}'
  assert cells['difference [95 %]'] == (
      f'{100 * (std - base).mean():+.1f} [{low:+.1f}, {high:+.1f}]')
  assert cells['% of control'] == f'{100 * (std.mean() / base.mean() - 1):+.1f}'
  assert table.records[2]['p'] == pytest.approx(expected.pvalue)
  np.testing.assert_allclose(  # over the lengths of one comparison
      [r['p_holm'] for r in table.records[:3]],
      statistics.holm([r['p'] for r in table.records[:3]]))
  assert [r['comparison'] for r in table.records[::3]] == [
      'std. − Baseline', 'LN − Baseline', 'LN − std.']


def test_csv_holds_numbers_with_12_significant_digits():
  table = _tables(_rows())['primary_endpoint']
  lines = list(csv.DictReader(io.StringIO(tables.to_csv(table))))
  test = _compare(_rows()).primary
  assert lines[0]['comparison'] == 'LN - Baseline'
  assert [float(lines[0][name]) for name in ('difference', 'ci_low', 'p')] == (
      pytest.approx([test.mean_difference, test.ci_low, test.p], rel=1e-11))


def test_few_pairs_are_called_few():
  assert ' 6 pairs are few' in _tables(_rows())['primary_endpoint'].note
  assert ' are few' not in _tables(_rows(num_seeds=20))['primary_endpoint'].note


def test_a_small_difference_keeps_a_digit_and_its_minus_sign():
  rows = [r for r in _rows() if r.arm == 'none']
  rows += [r._replace(arm='layer_norm', value=r.value - 1e-5 * r.seed) for r in rows]
  cells = _cells(_tables(rows)['table_1'], 0)
  assert cells['difference [95 %]'] == '−0.003 [−0.005, 0.000]'
  assert cells['effect'].startswith('−')


def test_a_seed_that_did_not_converge_is_named():
  rows = [r._replace(value=0.4) if (r.metric, r.seed, r.arm) ==
          ('training_accuracy', 3, 'none') else r for r in _rows()]
  table = _tables(rows)['training']
  named = [(r['not_converged'], r['not_finite']) for r in table.records]
  assert named == [('seed 3', 'none'), ('none', 'none'), ('none', 'none')]


@pytest.mark.parametrize('change, verdict', [
    (0.05, 'ahead'), (-0.05, 'behind'), (0.0, 'no difference found'),
])
def test_the_verdict_is_at_five_percent_and_has_a_side(change, verdict):
  rng = np.random.default_rng(4)
  rows = [r._replace(value=0.5 + change * (r.arm == 'layer_norm') + rng.normal(0, 0.01))
          if r.metric == 'accuracy' else r for r in _rows()]
  record = _tables(rows)['primary_endpoint'].records[0]
  assert record['at_5_percent'] == verdict
  ahead = np.mean([_column(rows, 'layer_norm', n) - _column(rows, 'none', n)
                   for n in (32, 64)], axis=0) > 0
  assert record['treated_ahead'] == ahead.sum() == {0.05: 6, -0.05: 0}.get(
      change, ahead.sum())
  assert change == 0 or record['p'] < 0.05
  assert change or 0.05 < record['p'] < 0.5


def test_a_seed_is_held_against_the_best_arm():
  rows = [r._replace(value=0.3) if (r.metric, r.arm) == ('training_accuracy', 'none')
          else r for r in _rows()]
  records = _tables(rows)['training'].records
  assert [r['not_converged'] for r in records] == [
      'seeds 0, 1, 2, 3, 4, 5', 'none', 'none']


def test_models_that_have_learned_nothing_test_nothing():
  rows = [r._replace(value=0.3) if r.metric == 'training_accuracy' else r
          for r in _rows()]
  table = _tables(rows)['primary_endpoint']
  assert {r['at_5_percent'] for r in table.records} == {'not learned'}
  assert 'Not learned: the median accuracy of an arm' in table.note
  table = _tables(_rows())['primary_endpoint']
  assert 'not learned' not in {r['at_5_percent'] for r in table.records}
  assert 'Not learned' not in table.note


@pytest.mark.slow
def test_a_run_that_is_not_finished_says_so(tmp_path):
  results.write_rows(tmp_path / 'results.csv', _rows())
  config = {'train': {'max_length': 16}, 'arms': _ARMS, 'num_seeds': 6,
            'task': {'name': 'retrieval', 'num_classes': 5}}
  run_folder.claim(tmp_path / 'other', config, {})
  (tmp_path / 'config.json').write_bytes((tmp_path / 'other/config.json').read_bytes())
  made = report.write(tmp_path)
  assert not made.missing
  assert [table.name for table in made.main] == [
      'table_1_by_model', 'primary_endpoint', 'table_1']
  assert made.shown_in_terminal.name == 'primary_endpoint'
  assert ' Chance is 20 %.' in made.shown_in_terminal.note
  assert made.answer[-1] == 'Setting: retrieval, trained on 1 to 16 items.'
  run_folder.claim(tmp_path / 'other', config | {'num_seeds': 8}, {}, ['num_seeds'])
  (tmp_path / 'config.json').write_bytes((tmp_path / 'other/config.json').read_bytes())
  assert report.write(tmp_path).missing.startswith(
      'The run is not finished: none has 6 of 8 seeds, standardize')


@pytest.mark.parametrize('task, chance', [
    ('retrieval', 0.2), ('lookup_growing', 0.2), ('second_largest', None)])
def test_chance_is_known_of_tasks_whose_classes_are_equally_frequent(task, chance):
  config = {'train': {'max_length': 16}, 'task': {'num_classes': 5}}
  assert read_setting(config, task).chance == chance


@pytest.mark.slow
def test_without_its_configuration_training_lengths_are_an_assumption(tmp_path):
  results.write_rows(tmp_path / 'results.csv', _rows())
  assert report.write(tmp_path).missing == (
      'There is no config.json: it is assumed that training lengths end at 16.')


def test_a_mean_difference_of_zero_is_a_difference_of_zero():
  rows = [
      r._replace(value=0.5 + (0.0625 if r.seed else -0.0625) * (r.arm == 'none'))
      if r.metric == 'accuracy' else r for r in _rows(num_seeds=2)
  ]
  actual = _compare(rows)
  assert (actual.primary.mean_difference, actual.primary.p) == (0.0, 1.0)
  assert statistics.detectable(actual.primary) > 0


def test_a_seed_that_one_arm_has_not_run_is_no_pair_and_not_called_broken():
  rows = [r for r in _rows() if r.arm != 'layer_norm' or r.seed < 4]
  actual = _compare(rows)
  assert (actual.primary.num_pairs, actual.left_out) == (4, ())


def test_an_arm_of_which_no_seed_is_finite_makes_gaps():
  rows = [r._replace(value=float('nan')) if r.arm == 'layer_norm' else r
          for r in _rows()]
  tables = _tables(rows)
  training = list(_cells(tables['training'], 2).values())
  assert training[2:5] == ['undefined'] * 3
  assert training[6] == 'seeds 0, 1, 2, 3, 4, 5'
  assert tables['primary_endpoint'].records[0]['at_5_percent'] == 'not learned'


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
  curves = Curves(folder / 'metrics.jsonl')
  rng = np.random.default_rng(0)
  (folder / 'samples').mkdir()
  for arm in _ARMS:
    for step in (10, 20):
      curves.add(arm, step, 0, {'loss': rng.random(6), 'accuracy': rng.random(6)})
    arrays = {f'components_{n}': rng.normal(size=(64, 4)) for n in (16, 64)}
    arrays |= {f'weights_{n}': rng.random((32, 16)) for n in _LENGTHS}
    np.savez(folder / 'samples' / f'{arm}.npz', **arrays)
  return folder


def _files_of_tables(folder):
  return {path.name: path.read_bytes() for path in (folder / 'tables').iterdir()}


@pytest.mark.slow
def test_a_large_file_of_results_is_compressed(workdir, tmp_path, monkeypatch, capsys):
  folder = tmp_path / 'run'
  shutil.copytree(workdir, folder)
  words = ['report', f'--workdir={folder}', '--compress']
  monkeypatch.setattr(sys, 'argv', words)
  monkeypatch.setattr(plots, 'save', lambda *_: {})  # takes long
  command.main()
  assert (folder / 'results.csv').exists()  # as it is small
  before = _files_of_tables(folder)
  monkeypatch.setattr(reports, '_LARGE', 100)
  command.main()
  assert 'now results.csv.xz of 0.0 MB.' in capsys.readouterr().out
  assert not (folder / 'results.csv').exists()
  assert '[results.csv.xz](results.csv.xz)' in (folder / 'index.md').read_text()
  command.main()
  out = capsys.readouterr().out
  assert 'results.csv' not in out
  assert before == _files_of_tables(folder)
  assert not (folder / '.vvlen.lock').exists()
  (folder / 'results.csv').write_bytes((workdir / 'results.csv').read_bytes())
  monkeypatch.setattr(sys, 'argv', words[:2])
  command.main()
  assert capsys.readouterr().out.startswith(
      f'{folder}/results.csv is used, not results.csv.xz beside it.\n')


def test_results_are_not_compressed_while_a_run_is_at_work(workdir, monkeypatch):
  monkeypatch.setattr(reports, '_LARGE', 100)
  with (workdir / '.vvlen.lock').open('w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    with pytest.raises(ValueError, match='another process is at work'):
      reports.compress(workdir)
  assert (workdir / 'results.csv').exists()


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_run_in_a_folder_that_cannot_be_written_to_is_shown(
    workdir, tmp_path, monkeypatch, capsys
):
  before = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}
  monkeypatch.setattr(reports.os, 'access', lambda path, _: str(path) != str(workdir))
  monkeypatch.setattr(reports.tempfile, 'tempdir', str(tmp_path))
  reports.show(str(workdir))
  out = capsys.readouterr().out
  copy, = tmp_path.iterdir()
  assert out.startswith(
      f'{workdir} cannot be written to: tables and figures are in {copy}.\n')
  assert '| LN − Baseline ' in out
  assert (copy / 'tables/table_1.md').exists()
  assert (copy / 'figures/figure_2.png').exists()
  assert {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()} == before


@pytest.mark.slow
def test_the_same_rows_draw_the_same_files(workdir, tmp_path):
  index = results.index(_rows())
  draw = lambda name: [p.read_bytes() for p in plots.save(
      tmp_path / name, figures.make(index, Setting('retrieval')))]
  once, again = draw('a'), draw('b')
  assert once == again


def _lines(axes):
  return {line.get_label(): np.asarray(line.get_ydata()) for line in axes.lines}


def _index_of_trained(rows):
  """Returns the index of the arms as they were trained."""
  return results.index(r for r in rows if '+' not in r.arm)


def test_a_column_for_each_temperature_compares_arms_that_have_it():
  with plots.style():
    axes = figures.accuracy(results.index(_rows()), Setting('retrieval')).axes
  upper, lower = axes[:len(axes) // 2], axes[len(axes) // 2:]
  suffixes = [s for s in plots.ADAPTATIONS if any(r.arm == f'none{s}' for r in _rows())]
  assert len(upper) == len(suffixes) > 1
  for above, below, suffix in zip(upper, lower, suffixes, strict=True):
    arms = {r.arm for r in _rows()}
    names = {name for arm, name in plots.SPELLED.items() if arm + suffix in arms}
    assert set(_lines(above)) & {*plots.SPELLED.values()} == names
    mean = lambda arm, n: 100 * np.mean([
        r.value for r in _rows() if r[:2] == ('retrieval', arm) and r.length == n
        and r.metric == 'accuracy'])
    one, other = 'layer_norm' + suffix, 'none' + suffix
    np.testing.assert_allclose(
        _lines(above)['LayerNorm'], [mean(one, n) for n in _LENGTHS])
    np.testing.assert_allclose(
        _lines(below)['LayerNorm'], [mean(one, n) - mean(other, n) for n in _LENGTHS],
        atol=1e-9)


def test_accuracy_and_gain_are_drawn_in_percent_and_paired_by_seed():
  # LN lacks seeds 0 and 1, and std. has another order.
  rows = [r for r in _rows() if r.arm != 'layer_norm' or r.seed > 1]
  with plots.style():
    left, right = figures.accuracy(
        _index_of_trained(rows[::-1]), Setting('retrieval')).axes
  mean = lambda arm, first: np.array([
      100 * np.mean([r.value for r in rows if (r.arm, r.length, r.metric) == (
          arm, n, 'accuracy') and r.seed >= first]) for n in _LENGTHS])
  np.testing.assert_allclose(_lines(left)['LayerNorm'], mean('layer_norm', 2))
  np.testing.assert_allclose(_lines(left)['Baseline'], mean('none', 0))
  np.testing.assert_allclose(
      _lines(right)['LayerNorm'], mean('layer_norm', 2) - mean('none', 2), atol=1e-9)
  np.testing.assert_allclose(
      _lines(right)['standardized'], mean('standardize', 0) - mean('none', 0),
      atol=1e-9)


@pytest.mark.parametrize('steps', [(10,), (10, 20)])
def test_learning_curves_of_one_point_can_be_seen(steps):
  curves = [{'arm': 'none', 'step': step, 'first_seed': 0, 'loss': [0.5, 0.3],
             'accuracy': [0.5, 0.7]} for step in steps]
  with plots.style():
    drawn = figures.learning_curves(curves, Setting('retrieval')).axes
    for axes, mean in zip(drawn, (0.4, 40), strict=True):
      [line] = [x for x in axes.lines if x.get_label() == 'Baseline']
      np.testing.assert_allclose(line.get_ydata(), mean)
      assert line.get_marker() == 'o' and line.get_markevery() == (0, 1)


@pytest.mark.parametrize('factor', [2, 4])
def test_the_slope_of_proposition_1_is_that_of_the_last_four_doublings(factor):
  rows, lengths = [], 16 * factor ** np.arange(1 + 10 // (factor // 2))
  for length in lengths.tolist():
    for seed, scale in ((0, 1.0), (1, 2.0)):
      value = scale * (1.0 if length < 1024 else (1024 / length) ** 2)
      rows.append(Row('retrieval', 'none', seed, length, 'component_variance', value))
      rows.append(Row('retrieval', 'none', seed, length, 'accuracy', 0.5))
  with plots.style():
    figure = figures.component_variance(results.index(rows), Setting('retrieval'))
  assert 'slopes from N = 1,024 on' in figure.get_label()
  assert 'geometric mean over 2 seeds' in figure.get_label()
  line = _lines(figure.axes[0])['Baseline, slope from N = 1,024: −2.00 [−2.00, −2.00]']
  last = lengths[lengths >= 1024]
  np.testing.assert_allclose(  # through its first length, over those of the slope
      _lines(figure.axes[0])['slope −1, as 1/N'],
      line[lengths >= 1024][0] * last[0] / last)
  np.testing.assert_allclose(line, [r.value * 2**0.5 for r in rows if r.seed == 0
                                    and r.metric == 'component_variance'])


@pytest.mark.slow
def test_report_of_an_empty_folder_is_one_line(tmp_path):
  done = subprocess.run(
      [sys.executable, '-m', 'experiments.report', f'--workdir={tmp_path}'],
      capture_output=True, text=True, check=False,
  )
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr == f'Error: {tmp_path} has no results.csv with results\n'
