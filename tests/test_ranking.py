"""`experiments.long_context.ranking`: whether dialects change which one is better."""

import json
import subprocess
import sys

import numpy as np
import pytest

from experiments.long_context import ranking
from tests.conftest import ROOT
from vvlen.evaluation import longbench
from vvlen.reporting import results, tables
from vvlen.reporting.results import Row

DIALECTS = 'official', 'lm_eval', 'strict'
_INPUTS = {'checkpoint_sha256': 'a' * 64, 'template_sha256': 'b' * 64, 'window': 128,
           'samples': 4}


def _write(folder, scored, suite='ruler', study='long_context', **fields):
  """Writes a run; scored: {(task, length): scores by sample of each dialect}."""
  folder.mkdir(parents=True)
  config = {'suite': suite, 'seed': 0, 'num_resamples': 2000,
            'checkpoint': folder.name,
            'mesh': {'data': -1}, 'rope': {'kind': 'none'}, 'inputs': _INPUTS, **fields}
  (folder / 'config.json').write_text(json.dumps(
      {'study': study, 'config': config, 'sessions': []}))
  rows = []
  for (task, length), dialects in scored.items():
    for dialect, values in zip(DIALECTS, dialects, strict=True):
      rows += [Row(suite, task, i, length, f'score_{dialect}', float(x))
               for i, x in enumerate(values)]
    rows += [Row(suite, task, i, length, 'chance', 0.1)
             for i in range(len(dialects[0]))]
  results.write_rows(folder / 'results.csv', rows)
  return folder


def _shown(made):
  return tables.cells(made)


def _ones(count, total=100):
  return [1.0] * count + [0.0] * (total - count)


def test_the_order_and_the_pairs_that_turn_by_hand(tmp_path):
  # In strict, a and b change places, by far; c stays the worst. On several keys, a and
  # c are equal in the official dialect, and so turn in none.
  own = {
      'a': (_ones(90), _ones(90), _ones(10)), 'b': (_ones(50), _ones(50), _ones(50)),
      'c': (_ones(5), _ones(6), _ones(5))}
  keys = {
      'a': (_ones(40), _ones(40), _ones(41)), 'b': (_ones(41), _ones(39), _ones(40)),
      'c': (_ones(40), _ones(41), _ones(39))}
  made = ranking.table(ranking.read([_write(tmp_path / name, {
      ('niah_single', 1064): own[name], ('niah_multikey', 1064): keys[name]})
                                     for name in 'abc']))
  assert _shown(made) == [
      ['single needle', '1,064', '100', 'official', '', '', 'a 90.0 > b 50.0 > c 5.0'],
      ['single needle', '1,064', '100', 'lm_eval', '0', '0', 'a 90.0 > b 50.0 > c 6.0'],
      ['single needle', '1,064', '100', 'strict', '1', '1', 'b 50.0 > a 10.0 > c 5.0'],
      ['several keys', '1,064', '100', 'official', '', '', 'b 41.0 > a 40.0 = c 40.0'],
      # b falls below a and c, by one answer or two: noise.
      ['several keys', '1,064', '100', 'lm_eval', '2', '0', 'c 41.0 > a 40.0 > b 39.0'],
      ['several keys', '1,064', '100', 'strict', '1', '0', 'a 41.0 > b 40.0 > c 39.0'],
      ['mean', '1,064', '200', 'official', '', '', 'a 65.0 > b 45.5 > c 22.5'],
      ['mean', '1,064', '200', 'lm_eval', '0', '0', 'a 65.0 > b 44.5 > c 23.5'],
      ['mean', '1,064', '200', 'strict', '1', '1', 'b 45.0 > a 25.5 > c 22.0']]
  assert 'of 3 pairs' in made.note
  assert made.records[2]['score_b'] == pytest.approx(50)
  assert made.records[6]['score_a'] == pytest.approx(65)


def _pair(tmp_path, official, strict):
  """Returns the record of strict, of two checkpoints with right answers so many."""
  folders = [_write(tmp_path / name, {('vt', 64): (x, x, y)})
             for name, x, y in zip('ab', official, strict, strict=True)]
  return ranking.table(ranking.read(folders)).records[2]


def test_samples_are_drawn_together_for_both_checkpoints(tmp_path):
  # b has all answers of a and six more. Were each drawn by itself, the difference
  # would have a standard error of 7 and not of 2 points.
  few, many = _ones(50), _ones(56)
  record = _pair(tmp_path, (few, many), (many, few))
  assert record['turned'] == record['beyond_noise'] == 1


@pytest.mark.parametrize('count, beyond', [(19, 0), (20, 1)])
def test_few_samples_are_noise(count, beyond, tmp_path):
  none, every = _ones(0, count), _ones(count, count)
  record = _pair(tmp_path, (none, every), (every, none))
  assert (record['turned'], record['beyond_noise']) == (1, beyond)


def test_pairs_that_turn():
  assert ranking.turned([1, 2, 3, 3], [2, 1, 5, 4]) == [(0, 1)]
  assert ranking.turned([1, 2], [1, 1]) == []
  assert ranking.turned([0.3, 0.1 + 0.2], [2, 1]) == []  # equal but for round-off
  assert ranking.turned([3, 2, 1], [1, 2, 3]) == [(0, 1), (0, 2), (1, 2)]


def test_samples_are_matched_by_their_number(tmp_path):
  """Rows in another order are of the same samples; fewer samples are not compared."""
  scores = np.random.default_rng(0).integers(0, 2, (3, 30)).astype(float)
  both = {('niah_single', 64): scores, ('niah_single', 1096): scores}
  first, second = (_write(tmp_path / name, both) for name in ('x', 'y'))
  rows = results.read_rows(second / 'results.csv')
  # Of one sample, a row is lost.
  rows.remove(next(row for row in rows if (row.length, row.metric, row.seed) == (
      1096, 'chance', 7)))
  results.write_rows(second / 'results.csv', rows[::-1])
  found = ranking.read([first, second])
  assert [*found.cells] == [('niah_single', 64)]
  for dialect, own in zip(DIALECTS, scores, strict=True):
    np.testing.assert_array_equal(
        found.cells['niah_single', 64][dialect], np.stack([own, own]))
  made = ranking.table(found)
  assert 'the same samples: single needle at 1,096 tokens.' in made.more
  assert _shown(made)[0][-1].count('=') == 1


def test_depths_that_tokenizers_change_are_of_the_same_samples(tmp_path):
  scored = {('qa1', 512): 3 * [_ones(3, 4)]}
  folders = [_write(tmp_path / name, scored, suite='babilong') for name in 'ab']
  for folder, depth in zip(folders, (25, 50), strict=True):
    rows = [row._replace(depth=depth) for row in results.read_rows(
        folder / 'results.csv')]
    results.write_rows(folder / 'results.csv', rows)
  assert [*ranking.read(folders).cells] == [('qa1', 512)]


def _write_longbench(folder, scored, **inputs):
  """Writes a run of LongBench; scored: [(task, length in words, score), …]."""
  _write(folder, {(task, length): 3 * [[x]] for task, length, x in scored},
         suite='longbench', inputs=_INPUTS | inputs)
  number = {(task, length): i for i, (task, length, _) in enumerate(scored)}
  results.write_rows(folder / 'results.csv', [
      row._replace(seed=number[row.arm, row.length])
      for row in results.read_rows(folder / 'results.csv')])
  return folder


def test_longbench_is_compared_by_bucket(tmp_path):
  scored = [('qasper', length, x) for length, x in (
      (100, 0.5), (3000, 0.7), (5000, 0.2))]
  folders = [_write_longbench(tmp_path / name, scored) for name in 'ab']
  made = ranking.table(ranking.read(folders))
  shown = [row for row in _shown(made) if row[3] == 'official']
  assert [(row[1], row[2], row[-1]) for row in shown[:2]] == [
      ('0-4k', '2', 'a 60.0 = b 60.0'), ('4-8k', '1', 'a 20.0 = b 20.0')]


def test_longbench_has_its_three_means(tmp_path):
  # Two tasks of one category, and one of another; a task has two cells of 20 and 60.
  lengths = {'0-4k': range(100, 120), '4-8k': range(5000, 5060)}
  shape = [('hotpotqa', '0-4k'), ('hotpotqa', '4-8k'), ('2wikimqa', '0-4k'),
           ('lcc', '0-4k')]
  scored = {name: [(task, n, value) for (task, place), value in zip(
      shape, values, strict=True) for n in lengths[place]]
            for name, values in (('a', (1, 0.5, 0, 0.4)), ('b', (0.8, 0.9, 0.1, 0)))}
  folders = [_write_longbench(tmp_path / name, own) for name, own in scored.items()]
  found = ranking.read(folders)
  expected = {name: longbench.summarize([longbench.Scored(*x) for x in own])
              for name, own in scored.items()}
  made = ranking.table(found)
  official = {r['task']: r for r in made.records if r['dialect'] == 'official'}
  for mean, field in (('mean over tasks', 'over_tasks'),
                      ('mean over task × bucket cells', 'over_cells'),
                      ('mean over categories', 'over_categories')):
    assert official[mean]['length'] == 'all' and official[mean]['samples'] == 120
    for name in 'ab':
      assert official[mean][f'score_{name}'] == pytest.approx(
          100 * getattr(expected[name], field))
  # By hand: a has 0.625, 0 and 0.4 in its tasks, b 0.875, 0.1 and 0.
  assert official['mean over tasks']['score_a'] == pytest.approx(100 * 1.025 / 3)
  assert official['mean over categories']['score_b'] == pytest.approx(
      100 * (0.4875 + 0) / 2)
  assert official['mean over task × bucket cells']['score_a'] == pytest.approx(
      100 * 1.9 / 4)
  # In strict, b is the better one everywhere, by all samples alike.
  for cell, own in found.cells.items():
    own['strict'] = np.stack([0 * own['strict'][0], 0 * own['strict'][1] + 1])
    own['official'] = own['strict'][::-1]
    assert cell in found.cells
  turned = {r['task']: (r['turned'], r['beyond_noise'])
            for r in ranking.table(found).records if r['dialect'] == 'strict'}
  assert {x for name, x in turned.items() if name.startswith('mean over')} == {(1, 1)}


def _asked(**hashes):
  return {'predictions_sha256': 'p', 'asked_sha256': hashes}


def test_predictions_made_elsewhere_are_compared_where_they_answer_the_same(tmp_path):
  both = {('qa1', n): 3 * [_ones(3, 4)] for n in (4096, 8192)}
  write = lambda name, scored, **hashes: _write(
      tmp_path / name, scored, suite='babilong', inputs=_asked(**hashes))
  first = write('a', both, qa1_4096='x', qa1_8192='y')
  # Without the longer ones; with a bad line of them; and with the same.
  for name, scored, hashes, cells, left_out in (
      ('b', {('qa1', 4096): both['qa1', 4096]}, {'qa1_4096': 'x'}, [4096],
       ['qa1 at 8,192 tokens']),
      ('c', both, {'qa1_4096': 'x', 'qa1_8192': 'z'}, [4096], ['qa1 at 8,192 tokens']),
      ('d', both, {'qa1_4096': 'x', 'qa1_8192': 'y'}, [4096, 8192], [])):
    found = ranking.read([first, write(name, scored, **hashes)])
    assert [*found.cells] == [('qa1', n) for n in cells], name
    assert found.left_out == left_out, name
  with pytest.raises(ValueError, match='no task and length with the same samples'):
    ranking.read([first, write('e', both, qa1_4096='v', qa1_8192='w')])
  # A folder with one hash of all is compared with such ones alone.
  old = _write(tmp_path / 'f', both, suite='babilong',
               inputs={'predictions_sha256': 'p', 'asked_sha256': 'x'})
  with pytest.raises(ValueError, match=r'differ in inputs\.asked_sha256: '):
    ranking.read([first, old])


def test_predictions_of_longbench_are_of_the_same_task(tmp_path):
  scored = [(task, n, 0.5) for task in ('qasper', 'lcc') for n in (100, 5000)]
  asked = lambda lcc: _asked(**{  # as a run names them
      f'{task}_{bucket}': x for task, x in (('qasper', 'x'), ('lcc', lcc))
      for bucket in ('0-4k', '4-8k')})
  folders = [_write_longbench(tmp_path / name, scored, **asked(lcc))
             for name, lcc in (('a', 'y'), ('b', 'z'))]
  found = ranking.read(folders)
  assert [*found.cells] == [('qasper', '0-4k'), ('qasper', '4-8k')]
  assert found.left_out == ['lcc at 0-4k', 'lcc at 4-8k']


def test_what_is_not_run_any_more_is_left_out(tmp_path):
  both = {('vt', n): 3 * [_ones(3, 4)] for n in (64, 96)}
  first = _write(tmp_path / 'a', both)
  second = _write(tmp_path / 'b', both, inputs=_INPUTS | {
      'not_run': ['vt at 96 tokens']})
  found = ranking.read([first, second])
  assert [*found.cells] == [('vt', 64)] and found.left_out == ['vt at 96 tokens']


def test_files_of_ruler_have_a_weaker_strict(tmp_path):
  scored = {('vt', 64): 3 * [_ones(3, 4)]}
  more = lambda names, **fields: ranking.table(ranking.read([
      _write(tmp_path / name, scored, **fields) for name in names])).more
  words = 'strict does not check that they are absent.'
  assert words in more('ab', inputs=_asked(vt_64='x'))
  assert words not in more('cd')
  assert words not in more('ef', suite='babilong', inputs=_asked(vt_64='x'))


def test_folders_of_one_name_are_told_apart(tmp_path):
  scored = {('vt', 64): 3 * [_ones(3, 4)]}
  folders = [_write(tmp_path / name / 'run', scored) for name in ('a', 'b')]
  assert ranking.read(folders).names == [str(folder) for folder in folders]


def test_what_differs_in_checkpoints_alone_may_differ(tmp_path):
  scored = {('vt', 64): 3 * [_ones(3, 4)]}
  first = _write(tmp_path / 'a', scored)
  second = _write(
      tmp_path / 'b', scored, checkpoint='other', mesh={'data': 2}, num_resamples=10,
      inputs=_INPUTS | {'checkpoint_sha256': 'c'})
  found = ranking.read([first, second])
  assert found.names == ['a', 'b']
  assert f'SHA-256: a {12 * "a"}, b c; template of prompts {12 * "b"}.' in (
      ranking.table(found).more)
  # How a checkpoint was run is told beside its hash.
  third = _write(
      tmp_path / 'c', scored, dtype='bfloat16', window=512,
      rope={'kind': 'yarn', 'factor': 4.0, 'original_length': 2048},
      inputs=_INPUTS | {'window': 512})
  assert (f'SHA-256: a {12 * "a"} (window 128 tokens), c {12 * "a"} (yarn by 4 from '
          '2,048 tokens, bfloat16, window 512 tokens); template') in (
              ranking.table(ranking.read([first, third])).more)


def test_the_committed_ranking_is_remade_and_its_text_says_what_it_shows():
  folder = ROOT / 'experiments/results/ranking_qa1'
  runs = sorted(path.parent for path in folder.glob('*/config.json'))
  made = ranking.table(ranking.read(runs))
  assert tables.markdown(made) == (folder / 'tables/ranking.md').read_text()
  assert tables.to_csv(made) == (folder / 'tables/ranking.csv').read_text()
  text = ' '.join((folder / 'README.md').read_text().split())
  shortcut, = {
      sum(row.value for row in results.read_rows(run / 'results.csv')
          if row.metric == 'shortcut' and row.length == n)
      for run in runs for n in (96, 128, 160, 192, 256)}
  assert f'the room that is named last is right in {shortcut:.0f}.' in text
  best = max(r[f'score_{run.name}'] for run in runs for r in made.records
             if r['length'] >= 160)
  assert best < shortcut and f'no model has more than {best:.0f} %' in text
  learned = {run.name for run in runs
             if made.records[0][f'score_{run.name}'] > shortcut + 10}
  assert learned == {'low_base_09', 'low_base_10'}
  for r in made.records:
    for name in learned if r['length'] == 128 and r['dialect'] == 'official' else ():
      assert r[f'score_{name}'] >= 0.85 * made.records[0][f'score_{name}']
  assert not any(r['beyond_noise'] for r in made.records)


def _run(*arguments):
  return subprocess.run(
      [sys.executable, '-m', 'experiments.long_context.ranking', *map(str, arguments)],
      capture_output=True, text=True, cwd=ROOT, check=False)


def test_the_command_prints_and_writes_its_table_without_jax(tmp_path):
  folders = [_write(tmp_path / name, {
      ('vt', 64): (_ones(right, 4), _ones(right, 4), _ones(6 - right, 4)),
      **({('cwe', 64): 3 * [_ones(1, 4)]} if right == 3 else {})})
             for name, right in (('llama_2_7b_yarn', 3), ('llama_2_7b_clex', 4))]
  done = _run(*folders, f'--output={tmp_path}/made')
  assert done.returncode == 0 and not done.stderr
  lines = done.stdout.splitlines()
  assert max(map(len, lines)) <= 80
  table = [[x.strip() for x in line.strip('|').split('|')]
           for line in lines if line.startswith('|')]
  assert table[0] == ['task', 'length', 'dialect', 'pairs turned', 'order']
  in_strict = next(i for i, row in enumerate(table) if row[2] == 'strict')
  assert table[in_strict][3] == '1'
  assert ' '.join(row[4] for row in table[in_strict:]) == (
      'llama_2_7b_yarn 75.0 > llama_2_7b_clex 50.0')
  assert 'Left out, as not all runs have the same samples: cwe at 64 tokens.' in (
      ' '.join(lines))
  assert {x.name for x in (tmp_path / 'made/tables').iterdir()} == {
      'ranking.csv', 'ranking.md', 'ranking.tex'}
  for wrong, said in (
      ([folders[0]], 'there is nothing to compare one run with: name two or more'),
      (['http://x/y', folders[0]],
       "a folder must be local or begin with gs://: 'http://x/y'")):
    refused = _run(*wrong)
    assert (refused.returncode, refused.stderr) == (2, f'Error: {said}\n')
  loaded = subprocess.run(
      [sys.executable, '-c', 'import sys; import experiments.long_context.ranking;'
       ' print("jax" in sys.modules)'], capture_output=True, text=True, cwd=ROOT,
      check=True)
  assert loaded.stdout == 'False\n'


@pytest.mark.parametrize('second, message', [
    ('same', 'a folder is named twice'),
    ('the same', 'a folder is named twice'),
    ({'study': 'adapt'}, 'b holds no run of experiments.long_context'),
    ({'config': {}}, 'is not the config.json of a suite .*KeyError'),
    ({'inputs': _INPUTS | {'template_sha256': 'c'}},
     'differ in inputs.template_sha256: their checkpoints were not asked the same, in'),
    ({'inputs': _INPUTS | {'asked_sha256': 'c'}}, 'differ in inputs.asked_sha256'),
    ({'suite': 'passkey'}, 'differ in suite'),
    ({'tasks': ['vt']}, 'differ in tasks'),
    ({'scored': {('vt', 96): 3 * [[1.0]]}}, 'no task and length with the same samples'),
    ('missing', 'holds no run of experiments.long_context'),
])
def test_runs_that_cannot_be_compared_are_named(second, message, tmp_path):
  scored = {('vt', 64): 3 * [_ones(3, 4)]}
  first = other = _write(tmp_path / 'a', scored)
  if second == {'config': {}}:
    other = _write(tmp_path / 'b', scored)
    (other / 'config.json').write_text('{"study": "long_context", "config": {}}')
  elif second == 'missing':
    other = tmp_path / 'nowhere'
  elif second == 'the same':
    other = tmp_path / '.' / 'c' / '..' / 'a'
    (tmp_path / 'c').mkdir()
  elif second != 'same':
    other = _write(tmp_path / 'b', second.pop('scored', scored), **second)
  with pytest.raises(ValueError, match=message):
    ranking.read([first, other])
