"""Tables, means and the figure of LongBench, from made-up rows."""

import numpy as np
import pytest

from experiments.long_context import answer, figures, longbench_tables
from tests.conftest import shown
from tests.long_context_cases import field_of, longbench_run, made_rows
from vvlen.evaluation import longbench
from vvlen.reporting import plots


def test_three_means_are_those_of_the_library():
  made = longbench_run()
  expected = longbench.summarize([
      longbench.Scored(row.arm, row.length, row.value) for row in made.rows
      if row.metric == 'score_official'])
  table = longbench_tables.means(made)
  found = {r['mean']: r['official'] for r in table.records}
  assert found == pytest.approx({
      'over_tasks': 100 * expected.over_tasks, 'over_cells': 100 * expected.over_cells,
      'over_categories': 100 * expected.over_categories})
  assert found == pytest.approx({  # qasper: 0.3 of 5 samples, of cells 0.75 and 0
      'over_tasks': 100 * (0.3 + 0.3 + 0.5 + 0.1) / 4,
      'over_cells': 100 * (0.75 + 0 + 0.3 + 0.5 + 0.1) / 5,
      'over_categories': 100 * (0.3 + 0.3 + 0.5 + 0.1) / 4})
  assert [r['count'] for r in table.records] == [4, 5, 4]
  assert [r['lm_eval'] for r in table.records] == pytest.approx(
      [100 * (0.2 + 0.4 + 1 + 0.3) / 4, 100 * (0.5 + 0 + 0.4 + 1 + 0.3) / 5,
       100 * (0.2 + 0.4 + 1 + 0.3) / 4])
  assert table.records[0]['strict'] == pytest.approx(100 * 0.2 / 4)
  for r in table.records:
    assert r['official_low'] < r['official'] < r['official_high']
  assert shown(table, 'over tasks')['of'] == '4'
  # Each cell is drawn again by itself, in alphabetical order.
  drawn = []
  for seed, own in enumerate(([0.2, 0.4], [0.1] * 3, [0.5, 1], [0] * 3, [1, 0])):
    n = len(own)
    drawn.append(np.random.default_rng(seed).multinomial(n, [1 / n] * n, 200) @ own / n)
  ends = [table.records[1][f'official_{end}'] for end in ('low', 'high')]
  np.testing.assert_allclose(
      ends, 100 * np.quantile(np.mean(drawn, axis=0), (0.025, 0.975)))
  # Two tasks of one category are one.
  more = longbench_tables.means(made._replace(rows=[*made.rows, *made_rows(
      'longbench', {('multifieldqa_en', 10, None): [(0.9, 0, 0, 0)]})]))
  by_name = {r['mean']: (r['official'], r['count']) for r in more.records}
  mean, count = by_name['over_categories']
  assert mean == pytest.approx(100 * (0.6 + 0.3 + 0.5 + 0.1) / 4) and count == 4
  # A cell of one sample has no variance that is known, nor has any of the means.
  for r in more.records:
    assert np.isnan([r['official_low'], r['official_high']]).all()
  assert shown(more, 'over tasks')['official'] == '42.0'
  assert by_name['over_tasks'][1] == 5
  [said] = answer.longbench_answer(table.records, 'official', 512)
  assert said == ('Mean score of LongBench-E with a window of 512 tokens: 30 % over '
                  'tasks (4), 33 % over task × bucket cells (5), 30 % over categories '
                  '(4).')
  [said] = answer.longbench_answer(table.records, 'lm_eval', 0)
  assert said == (
      'Mean score of LongBench-E: 47.5 % over tasks (4), 44 % over task × bucket cells '
      '(5), 47.5 % over categories (4).')
  assert [table.columns['mean'](r) for r in table.records] == [
      'over tasks', 'over task × bucket cells', 'over categories']
  assert table.more == (
      'Tasks, cells and categories without samples count for nothing, not as 0: a mean '
      'over some tasks is not that over all 13. There is no interval if a cell has a '
      'single sample.')


def test_sums_over_tasks_are_in_alphabetical_order():
  # Small numbers are lost if they are added to a large one, and not if they come first.
  small = 2.0**-54
  found = {(task, '0-4k'): np.full(2, 1.0 if task == 'samsum' else small)
           for task in longbench.METRICS}
  total = 0.0
  for task in sorted(longbench.METRICS):
    total += found[task, '0-4k'][0]
  assert total not in (1.0, sum(sorted(x[0] for x in found.values())))
  means = longbench_tables.three_means(found, 10, 0)
  assert means['over_tasks'][0] == means['over_cells'][0] == total / 13


def test_longbench_scores_by_bucket():
  made = longbench_run()
  table = longbench_tables.by_bucket(made)
  by_task = {r['task']: r for r in table.records}
  assert [*by_task] == ['qasper', 'hotpotqa', 'trec', 'lcc']
  qasper = by_task['qasper']
  assert (qasper['0-4k'], qasper['8k+'], qasper['all']) == pytest.approx((75, 0, 30))
  assert np.isnan(qasper['4-8k']) and qasper['chance'] == 0
  # From 75 to 0; without a base there is no change, nor from one that is chance.
  assert qasper['change_8k+'] == -100 and np.isnan(qasper['change_4-8k'])
  assert np.isnan(by_task['lcc']['change_8k+'])
  assert shown(table, 'qasper')['change at 8k+'] == '−100'
  assert shown(table, 'hotpotqa')['change at 4-8k'] == ''
  # A base whose interval is not 10 points above chance gives no change.
  def changes(base, chance):
    values = {('qasper', 9, None): [(base, 0, 0, chance)] * 2,
              ('qasper', 9000, None): [(0.1, 0, 0, chance)] * 2}
    rows = [row._replace(seed=row.seed + (row.length == 9000) * 2)
            for row in made_rows('longbench', values)]
    [record] = longbench_tables.by_bucket(made._replace(rows=rows)).records
    return record['change_8k+']

  assert changes(0.5, 0.3) == pytest.approx(-80)
  assert np.isnan([changes(0.5, 0.45), changes(0.09, 0)]).all()
  assert [qasper[f'samples_{x}'] for x in (*longbench.BUCKETS, 'all')] == [2, 0, 3, 5]
  assert by_task['hotpotqa']['4-8k'] == pytest.approx(30)
  assert by_task['trec']['0-4k'] == 50 and by_task['trec']['chance'] == 25
  cells = shown(table, 'hotpotqa')
  assert cells['0-4k words'] == '' and cells['samples'] == '0, 2, 0'
  assert cells['4-8k words'].startswith('30.0 [') and cells['all'].startswith('30.0 [')
  assert shown(table, 'trec')['chance'] == '25.0'
  found = {r['task']: (r['official'], r['lm_eval'], r['difference_lm_eval'])
           for r in longbench_tables.dialects(made).records}
  assert found['trec'] == (50, 100, 50)
  assert found['hotpotqa'] == pytest.approx((30, 40, 10))
  assert shown(table, 'qasper')['samples'] == '2, 0, 3'
  # Of a dialect, its scores.
  lm_eval = longbench_tables.by_bucket(made._replace(dialect='lm_eval'))
  assert field_of(lm_eval, 0, '0-4k') == 50 and 'Dialect: lm_eval.' in lm_eval.note
  assert table.more.startswith('Chance: of a guess of a class or paragraph, else 0.')
  # All samples of a task are in the table of dialects.
  records = longbench_tables.dialects(made).records
  assert records[0]['official'] == pytest.approx(30)


def test_the_figure_of_longbench_has_a_marker_for_each_task_and_bucket():
  # Two samples more, so that an interval is not alike on both sides.
  made = longbench_run()
  made = made._replace(rows=[*made.rows, *(
      row._replace(seed=row.seed + 2) for row in made_rows('longbench', {
          ('hotpotqa', 4000, None): [(1, 0, 0, 0), (0.2, 0, 0, 0)]}))])
  figure = figures.by_bucket(made)
  axes, = figure.axes
  labels = [x.get_text() for x in axes.get_yticklabels()]
  assert labels == ['qasper', 'hotpotqa', 'trec', 'lcc']
  assert [*axes.get_yticks()] == [0, 1, 2, 3]
  low, high = axes.get_ylim()
  assert low > high and axes.get_xlabel() == 'score, %'  # the first task is on top
  records = {r['task']: r for r in longbench_tables.by_bucket(made).records}
  assert [x.get_label() for x in axes.containers] == [
      '0-4k words', '4-8k words', '8k+ words']
  for place, (bucket, tasks) in enumerate((
      ('0-4k', ('qasper', 'trec')), ('4-8k', ('hotpotqa',)),
      ('8k+', ('qasper', 'lcc')))):
    dots, _, (bars,) = axes.containers[place].lines
    assert dots.get_color() == plots.LOOKS[place][0]
    np.testing.assert_allclose(dots.get_ydata(), [
        labels.index(task) + 0.2 * (place - 1) for task in tasks])
    np.testing.assert_allclose(
        dots.get_xdata(), [records[task][bucket] for task in tasks], atol=1e-9)
    np.testing.assert_allclose(
        [bar[:, 0] for bar in bars.get_segments()],
        [[records[task][f'{bucket}_{end}'] for end in ('low', 'high')]
         for task in tasks], atol=1e-9)
  assert figure.get_label() == (
      'Mean score in %, a line for each task, a marker for each bucket of lengths of '
      'texts in words; bars: 95 % intervals by bootstrap over samples; 0 is the score '
      'of an empty answer. Weights w.')
