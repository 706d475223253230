"""The folders of one run that was divided among machines become one."""

import json
import math
import pathlib
import subprocess
import sys

from etils import epath
import pytest

from experiments import join as command
from experiments.harness import finished, seed_blocks
from tests.conftest import ROOT
from vvlen.reporting import results
from vvlen.reporting.curves import Curves, read_curves

CONFIG = {'digest': 'abc', 'base': {'seed': 1}}


def _row(cell, seed, value, metric='accuracy'):
  return results.Row(cell, 'none', seed, 16, metric, value, step=10)


def _part(folder, rows, started, config=CONFIG, study='vanishing_variance'):
  """Writes what a machine leaves: rows of cells, their curves, and interventions."""
  start = {'started': started, 'device': f'that of {started}'}
  results.write_text(folder / 'config.json', json.dumps(
      {'study': study, 'config': config, 'sessions': [start]}))
  finished.write_rows(folder, rows, rows, seed_blocks.part_of_cell)
  for cell in {row.experiment: None for row in rows}:
    curves = Curves(folder / f'cells/{cell}/metrics.jsonl')
    curves.add('none', 10, 0, {'loss': [float(len(cell)), math.nan]})
    own = [row._replace(step=None) for row in rows if row.experiment == cell]
    home = folder / f'mechanism/{cell}'
    finished.write_rows(home, own, own, seed_blocks.part_of)
    results.write_text(home / 'config.json', json.dumps(
        {'study': 'mechanism', 'config': {'cell': cell}, 'sessions': [start]}))
  results.write_text(folder / 'checkpoints/1/metrics.jsonl', 'not read')
  results.write_text(folder / 'tables/config.json', 'not read')


@pytest.fixture
def parts(tmp_path):
  """Two parts of a run: cells long and wide of one machine, short of another."""
  rows = {
      'first': [_row('long', 0, 0.1), _row('long', 1, math.nan), _row('wide', 0, 0.3)],
      'second': [_row('short', 0, 0.4)],
  }
  folder = epath.Path(tmp_path)
  _part(folder / 'first', rows['first'], '2026-01-02')
  _part(folder / 'second', rows['second'], '2026-01-01')
  return folder, rows


def _content(folder):
  return {str(path.relative_to(folder)): path.read_bytes()
          for path in pathlib.Path(folder).rglob('*') if path.is_file()}


def test_all_parts_are_in_the_joined_folder(parts):
  folder, rows = parts
  before = _content(folder)
  command.join(folder / 'all', [folder / 'first', folder / 'second'])
  found = results.read_rows(folder / 'all/results.csv')
  assert repr(found) == repr([*rows['first'], *rows['second']])
  stored = json.loads((folder / 'all/config.json').read_text())
  assert stored['study'] == 'vanishing_variance' and stored['config'] == CONFIG
  assert [x['started'] for x in stored['sessions']] == ['2026-01-01', '2026-01-02']
  assert finished.finished(folder / 'all', seed_blocks.part_of_cell) == {
      ('long', 10, 'none', 0), ('long', 10, 'none', 1), ('wide', 10, 'none', 0),
      ('short', 10, 'none', 0)}
  for part, cell in ('first', 'long'), ('first', 'wide'), ('second', 'short'):
    for name in (f'cells/{cell}/metrics.jsonl', f'mechanism/{cell}/results.csv',
                 f'mechanism/{cell}/rows.json'):
      assert (folder / 'all' / name).read_text() == (folder / part / name).read_text()
    assert json.loads((folder / f'all/mechanism/{cell}/config.json').read_text()) == (
        json.loads((folder / f'{part}/mechanism/{cell}/config.json').read_text()))
  joined = {name: content for name, content in _content(folder).items()
            if name.startswith('all/')}
  assert not [name for name in joined if 'checkpoints' in name or 'tables' in name]
  assert _content(folder) == before | joined  # the parts are only read


def test_a_part_is_added_to_what_is_there_once(parts):
  folder, rows = parts
  results.compress(folder / 'first/results.csv')
  for _ in range(2):
    command.join(folder / 'first', [folder / 'second'])
    found = results.read_rows(folder / 'first/results.csv')
    assert repr(found) == repr([*rows['first'], *rows['second']])
    stored = json.loads((folder / 'first/config.json').read_text())
    assert [x['started'] for x in stored['sessions']] == ['2026-01-01', '2026-01-02']
    assert len(read_curves(folder / 'first/cells/short/metrics.jsonl')) == 1
  assert not (folder / 'first/results.csv.xz').exists()


def test_curves_of_seeds_that_are_not_measured_stay_where_their_checkpoint_is(parts):
  folder, _ = parts
  loss = {'loss': [1.0, 2.0]}
  for part in 'first', 'second':
    cell = folder / part / 'cells' / ('long' if part == 'first' else 'short')
    curves = Curves(cell / 'metrics.jsonl')
    curves.add('none', 20, 0, loss)  # beyond the last measured step, which is 10
    curves.add('none', 10, 8, loss)
    curves.add('layer_norm', 10, 0, loss)
  command.join(folder / 'all', [folder / 'first', folder / 'second'])
  for cell in 'long', 'short':
    lines = read_curves(folder / f'all/cells/{cell}/metrics.jsonl')
    assert [(x['arm'], x['step'], x['first_seed']) for x in lines] == [('none', 10, 0)]
  # A run that is added to resumes from its own checkpoints.
  command.join(folder / 'first', [folder / 'second'])
  assert len(read_curves(folder / 'first/cells/long/metrics.jsonl')) == 4
  assert len(read_curves(folder / 'first/cells/short/metrics.jsonl')) == 1


def test_curves_of_a_tuning_are_those_of_its_own_rows(tmp_path):
  folder = epath.Path(tmp_path)
  _part(folder / 'a', [_row('retrieval', 0, 1)], '2026-01-01', study='league')
  tuned = [_row('retrieval', 0, 1)._replace(step=None, learning_rate=1e-3)]
  results.write_rows(folder / 'a/tuning/results.csv', tuned)
  for task in 'retrieval', 'lookup':
    at = folder / 'a/tuning' / task / 'none/rate_0.001/metrics.jsonl'
    Curves(at).add('none', 500, 0, {'loss': [1.0]})
  command.join(folder / 'all', [folder / 'a'])
  at = folder / 'all/tuning'
  assert len(read_curves(at / 'retrieval/none/rate_0.001/metrics.jsonl')) == 1
  assert not (at / 'lookup/none/rate_0.001').exists()  # nothing of it is measured


def _arms(folder, arm, num_seeds, path, evaluated=0.5, predicted='yes'):
  """Writes what a machine leaves of an arm of a study to which seeds may be added."""
  row = results.Row('adapt', arm, num_seeds - 1, 16, 'nll', 0.25)
  finished.write_rows(folder, [row], [row], seed_blocks.part_of)
  pairs = 3.25 + num_seeds * 2**-51  # differs in its last digit
  config = {'num_seeds': num_seeds, 'text': {'path': path}, 'seed': 0,
            'inputs': {'pair_nats': pairs}}
  results.write_text(folder / 'config.json', json.dumps(
      {'study': 'adapt', 'config': config, 'sessions': [{'started': arm}]}))
  lines = Curves(folder / 'evaluations.jsonl')
  lines.add(arm, 0, num_seeds - 1, {'nll': [evaluated]})
  lines.add(arm, 0, num_seeds, {'nll': [9.0]})  # of a seed that was not finished
  for seed in (num_seeds - 1, num_seeds + 5):  # the second is not finished
    results.write_text(folder / f'predictions/{arm}_seed_{seed}.jsonl', predicted)
  results.write_text(folder / 'models/yarn/config.json', 'not read')


def test_parts_may_differ_in_seeds_and_in_where_the_text_lies(tmp_path):
  folder = epath.Path(tmp_path)
  _arms(folder / 'a', 'pi', 2, 'here/text')
  _arms(folder / 'b', 'yarn', 3, 'there/text')
  command.join(folder / 'all', [folder / 'a', folder / 'b'])
  stored = json.loads((folder / 'all/config.json').read_text())
  assert stored == {
      'study': 'adapt', 'sessions': [{'started': 'pi'}, {'started': 'yarn'}],
      'config': {'num_seeds': 3, 'text': {'path': 'here/text'}, 'seed': 0,
                 'inputs': {'pair_nats': 3.25 + 2**-50}}}
  lines = read_curves(folder / 'all/evaluations.jsonl')
  assert [(x['arm'], x['first_seed']) for x in lines] == [('pi', 1), ('yarn', 2)]
  names = [path.name for path in (folder / 'all/predictions').iterdir()]
  # Those of a seed without rows are not there.
  assert sorted(names) == ['pi_seed_1.jsonl', 'yarn_seed_2.jsonl']
  assert not (folder / 'all/models').exists()
  # In any order, and with more seeds in the folder that is added to.
  command.join(folder / 'back', [folder / 'b', folder / 'a'])
  command.join(folder / 'b', [folder / 'a'])
  for name in ('back', 'b'):
    stored = json.loads((folder / name / 'config.json').read_text())['config']
    assert (stored['num_seeds'], stored['text']['path']) == (3, 'there/text')


def test_a_block_that_was_stopped_here_and_finished_there_is_that_of_there(tmp_path):
  folder = epath.Path(tmp_path)
  _arms(folder / 'a', 'pi', 2, 'text')  # seed 2 was stopped, with a loss of its own
  _arms(folder / 'b', 'pi', 3, 'text', evaluated=0.75, predicted='no')
  results.write_text(folder / 'a/predictions/pi_seed_2.jsonl', 'yes')
  command.join(folder / 'a', [folder / 'b'])
  lines = {x['first_seed']: x['nll']
           for x in read_curves(folder / 'a/evaluations.jsonl')}
  assert lines == {1: [0.5], 2: [0.75]}
  assert (folder / 'a/predictions/pi_seed_2.jsonl').read_text() == 'no'
  assert (folder / 'a/predictions/pi_seed_1.jsonl').read_text() == 'yes'


@pytest.mark.parametrize('changes, words', [
    (dict(evaluated=0.6), 'evaluations.jsonl have different values of pi seeds from 1'),
    (dict(predicted='no'), 'pi_seed_1.jsonl have different values of predictions'),
])
def test_what_two_parts_have_must_be_the_same(tmp_path, changes, words):
  folder = epath.Path(tmp_path)
  _arms(folder / 'a', 'pi', 2, 'here/text')
  _arms(folder / 'b', 'pi', 2, 'here/text', **changes)
  with pytest.raises(ValueError, match=words):
    command.join(folder / 'all', [folder / 'a', folder / 'b'])
  assert not (folder / 'all').exists()


def test_rows_that_a_part_has_lost_are_still_due(parts):
  folder, rows = parts
  results.write_rows(folder / 'first/results.csv', rows['first'][1:])
  command.join(folder / 'all', [folder / 'first', folder / 'second'])
  assert finished.lost(folder / 'all', seed_blocks.part_of_cell) == [
      ('long', 10, 'none', 0)]


@pytest.mark.parametrize('damage, words', [
    (lambda path: _part(path, [_row('wide', 0, 0.31)], '2026-01-01'),
     'results.csv have different values of wide none 0 16 accuracy'),
    (lambda path: _part(path, [_row('wide', 0, 0.3), _row('wide', 0, 1, 'loss')],
                        '2026-01-01'), 'rows.json have different values of none 0'),
    (lambda path: [
        _part(path, [_row('wide', 0, 0.3)], '2026-01-01'),
        Curves(path / 'cells/wide/metrics.jsonl').add('none', 10, 0, {'loss': [9.0]}),
     ], 'different values of none seeds from 0'),
    (lambda path: _part(path, [_row('short', 0, 0.4)], '2026-01-01',
                        {'digest': 'abc', 'base': {'seed': 2}}),
     'not of one run: base.seed is 2 and 1'),
    (lambda path: _part(path, [_row('short', 0, 0.4)], '2026-01-01',
                        study='language_model'), 'a run of language_model'),
    (lambda path: (path / 'config.json').unlink(), 'holds no results'),
    (lambda path: (path / 'results.csv').unlink(), 'holds no results'),
])
def test_what_does_not_fit_is_named_and_nothing_is_written(parts, damage, words):
  folder, _ = parts
  damage(folder / 'second')
  before = _content(folder)
  for target in 'all', 'first':
    with pytest.raises(ValueError, match=words):
      command.join(folder / target, [folder / 'first', folder / 'second'])
    assert _content(folder) == before


def test_a_folder_that_holds_something_else_is_refused(parts):
  folder, _ = parts
  results.write_text(folder / 'all/notes.txt', 'mine')
  with pytest.raises(ValueError, match='not empty and holds no run'):
    command.join(folder / 'all', [folder / 'first'])


@pytest.mark.slow
def test_the_committed_family_is_the_same_after_it_was_divided(tmp_path):
  """By the command; and wrong input is one line."""
  whole = epath.Path(ROOT / 'experiments/results/vanishing_variance')
  rows = results.read_rows(whole / 'results.csv')
  cells = {row.experiment for row in rows}
  parts = [epath.Path(tmp_path) / name for name in 'ab']
  for part, own in zip(parts, (cells - {'base', 'l2'}, {'base', 'l2'}), strict=True):
    results.write_rows(part / 'results.csv', [x for x in rows if x.experiment in own])
    (part / 'config.json').write_text((whole / 'config.json').read_text())
    for kind in 'cells', 'mechanism':
      for cell in own:
        for path in (whole / kind / cell).glob('*.*'):
          results.write_bytes(part / kind / cell / path.name, path.read_bytes())

  def run(*words):
    return subprocess.run(
        [sys.executable, '-m', 'experiments.join', *map(str, words)], cwd=ROOT,
        capture_output=True, text=True, check=False)

  done = run(f'--workdir={tmp_path}/all', *parts)
  assert (done.returncode, done.stderr) == (0, '')
  joined = epath.Path(tmp_path) / 'all'
  assert {repr(row) for row in results.read_rows(joined / 'results.csv')} == (
      {repr(row) for row in rows})
  for name in 'tables/verdicts.md', 'tables/parts.md', 'tables/outputs.md':
    assert (joined / name).read_text() == (whole / name).read_text()
  refused = run(f'--workdir={tmp_path}/new', f'{tmp_path}/nowhere')
  assert (refused.returncode, refused.stdout) == (2, '')
  assert refused.stderr.count('\n') == 1
  assert 'nowhere holds no results' in refused.stderr
  assert not (epath.Path(tmp_path) / 'new').exists()
