"""The tables of LongBench-E. Runs without JAX."""

import math
from typing import Any

import numpy as np

from experiments.long_context import dialect_tables, scores
from experiments.long_context.scores import Cells
from experiments.long_context.tables import (
    cell,
    dialect_words,
    MARGIN,
    more_of,
    percent,
    Run,
)
from vvlen.evaluation.longbench import BUCKETS, CATEGORIES, DIALECTS
from vvlen.reporting.numbers import number
from vvlen.reporting.tables import number_cell, Table
from vvlen.statistics import resampled_means

MEANS = {'over_tasks': 'over tasks', 'over_cells': 'over task × bucket cells',
         'over_categories': 'over categories'}


def make(run: Run) -> list[Table]:
  """Returns the tables of a run, the three means first."""
  return [means(run), by_bucket(run), dialects(run)]


def three_means(
    found: Cells, num_resamples: int, seed: int
) -> dict[str, tuple[float, float, float]]:
  """Returns the three means of `vvlen.evaluation.longbench.summarize` with intervals.

  Samples are drawn again within each cell, a task and a bucket. If a cell has fewer
  than two samples, the ends are nan.

  Args:
    found: scores by task and bucket.
    num_resamples: bootstrap samples.
    seed: of the first cell.

  Returns:
    {name of a mean: (mean, low, high)}.
  """
  drawn = {own: resampled_means(values, np.ones(len(values)), num_resamples, seed + i)
           for i, (own, values) in enumerate(sorted(found.items()))}
  tasks: dict[str, np.ndarray] = {}
  for task in sorted({task for task, _ in found}):
    own = [x for x in found if x[0] == task]
    counts = [len(found[x]) for x in own]
    tasks[task] = np.average([drawn[x] for x in own], axis=0, weights=counts)
  categories = [
      np.mean([tasks[task] for task in members if task in tasks], axis=0)
      for members in CATEGORIES.values() if tasks.keys() & members.keys()]
  drawn_means = {'over_tasks': np.mean([*tasks.values()], axis=0),
                 'over_cells': np.mean([*drawn.values()], axis=0),
                 'over_categories': np.mean(categories, axis=0)}
  if min(map(len, found.values())) < 2:
    return {name: (float(x[0]), np.nan, np.nan) for name, x in drawn_means.items()}
  return {name: scores.mean_and_interval(x) for name, x in drawn_means.items()}


def means(run: Run) -> Table:
  """Makes the table of the three means in all dialects."""
  of_dialects = {
      name: three_means(scores.cells(run.rows, f'score_{name}'), run.num_resamples,
                        run.seed) for name in DIALECTS}
  found = scores.cells(run.rows, 'score_official')
  tasks = {task for task, _ in found}
  categories = [name for name, own in CATEGORIES.items() if tasks & own.keys()]
  counts = {'over_tasks': len(tasks), 'over_cells': len(found),
            'over_categories': len(categories)}
  records = []
  for name in MEANS:
    record: dict[str, Any] = {'mean': name, 'count': counts[name]}
    for dialect in DIALECTS:
      record |= percent(of_dialects[dialect][name], dialect)
    records.append(record)
  columns = {'mean': lambda r: MEANS[r['mean']], 'of': lambda r: str(r['count']),
             **{name: cell(name) for name in DIALECTS}}
  note = ('Mean score in % in three dialects [95 %: bootstrap over the samples of each '
          'cell]. LongBench-E has no official single score: name the mean. '
          f'{run.source}')
  more = ('Tasks, cells and categories without samples count for nothing, not as 0: a '
          'mean over some tasks is not that over all 13. There is no interval if a '
          'cell has a single sample.')
  return Table('means', 'Three means over LongBench-E', columns, records, note,
               more=more_of(run, more))


def by_bucket(run: Run) -> Table:
  """Makes the table of scores by task and bucket of lengths in words."""
  found = scores.cells(run.rows, f'score_{run.dialect}')
  chance = scores.cells(run.rows, 'chance')
  records = []
  for task in scores.tasks_of(run.rows):
    record: dict[str, Any] = {'task': task}
    for place in (*BUCKETS, 'all'):
      own = [found[x] for x in sorted(found)
             if x[0] == task and place in (x[1], 'all')]
      values = np.concatenate(own) if own else np.array([])
      record |= percent(scores.interval(values, run.num_resamples, run.seed), place)
      record[f'samples_{place}'] = len(values)
    record['chance'] = 100 * float(np.mean(np.concatenate(
        [values for (own, _), values in chance.items() if own == task])))
    base = record[BUCKETS[0]]
    able = record[f'{BUCKETS[0]}_low'] > record['chance'] + 100 * MARGIN
    record |= {
        f'change_{place}': 100 * (record[place] / base - 1)
        if able else math.nan for place in BUCKETS[1:]}
    records.append(record)
  columns = {
      'task': lambda r: r['task'],
      **{f'{place} words': cell(place) for place in BUCKETS}, 'all': cell('all'),
      'samples': lambda r: ', '.join(str(r[f'samples_{x}']) for x in BUCKETS),
      'chance': lambda r: number(r['chance'], '.1f'),
      **{f'change at {place}': number_cell(f'change_{place}', '+.0f')
         for place in BUCKETS[1:]}}
  note = ('Mean score in % by length of the text [95 %: bootstrap over samples]; an '
          f'empty bucket is empty, not 0. {dialect_words(run)} {run.source}')
  more = ('Chance: of a guess of a class or paragraph, else 0. Prompts longer than the '
          'window allows lose their middle, so buckets are of texts, not of what the '
          'model read: the metric num_tokens in results.csv is that. Change: '
          f'(S_L − S_base) / S_base in %, with the bucket {BUCKETS[0]} as the base, if '
          f'its interval lies {100 * MARGIN:.0f} points above chance.')
  return Table('scores', 'Score by task and bucket', columns, records, note,
               more=more_of(run, more))


def dialects(run: Run) -> Table:
  """Makes the table of scores of all samples of a task in all dialects."""
  whole: dict[str, Cells] = {}
  for name, found in dialect_tables.cells_of(run).items():
    for task in scores.tasks_of(run.rows):
      own = [found[x] for x in sorted(found) if x[0] == task]
      whole.setdefault(name, {})[task, 'all'] = np.concatenate(own)
  records = dialect_tables.records_of(whole, [*whole['official']], run)
  return dialect_tables.table_of(run, dialect_tables.columns_of(), records)
