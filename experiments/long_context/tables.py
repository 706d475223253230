"""The tables of a suite with lengths in tokens. Runs without JAX."""

from collections.abc import Sequence
import math
from typing import Any, NamedTuple

import numpy as np

from experiments.long_context import scores
from experiments.long_context.scores import Cells
from vvlen.reporting.numbers import number
from vvlen.reporting.results import Row
from vvlen.reporting.tables import (
  blank_without,
  CellText,
  interval_cell,
  interval_fields,
  number_cell,
  Record,
  Table,
)

KEPT = 0.85  # of the score at the base length, up to the effective length
# How far the interval at the base length must lie above chance, for 85 % of the score
# to say more than a few answers do.
MARGIN = 0.1
NAMES = {
    'passkey': 'pass key', 'niah_single': 'single needle',
    'niah_multikey': 'several keys', 'niah_multivalue': 'several values',
    'niah_multiquery': 'several queries', 'variable_tracking': 'variable tracking',
    'common_words': 'common words',
}


class Run(NamedTuple):
  """The results of a run, and what its tables say of it."""

  suite: str
  rows: Sequence[Row]
  dialect: str  # whose scores are shown
  num_resamples: int  # bootstrap samples
  seed: int  # of the bootstrap
  window: int
  source: str  # a sentence with the hashes of weights and template
  not_run: Sequence[str] = ()  # what was left out because prompts do not fit
  length_of: str = 'prompt'  # or 'context': what lengths count the tokens of


class Effect(NamedTuple):
  """How the score of a task depends on the length."""

  task: str
  lengths: list[int]
  means: np.ndarray  # [lengths]
  low: float  # end of the interval at the base length
  high: float
  chance: float  # at the base length
  effective: int | None  # the effective length; None if the task cannot be done

  @property
  def able(self) -> bool:
    """Whether the score at the base length is well above chance."""
    return self.low > self.chance + MARGIN


def make(run: Run) -> list[Table]:
  """Returns the tables of a run in one dialect, the scores first."""
  made = [by_length(run), effective_lengths(run)]
  if run.suite in ('passkey', 'babilong') and depths_of(run):
    made.append(by_depth(run))
  return made


def left_out(run: Run) -> str:
  """Returns a sentence on what was not run, '' if that is nothing."""
  words = f'Not run, as prompts do not fit: {", ".join(run.not_run)}.'
  return words if run.not_run else ''


def joined(*sentences: str) -> str:
  """Returns sentences as one text, without the empty ones."""
  return ' '.join(filter(None, sentences))


def name_of(task: str) -> str:
  """Returns the name of a task in tables and figures."""
  return NAMES.get(task, task)


def lengths_of(found: Cells) -> list[int]:
  """Returns the lengths of cells, in ascending order."""
  return sorted({place for _, place in found if isinstance(place, int)})


def percent(values: tuple[float, float, float], name: str) -> dict[str, float]:
  """Returns a mean and its interval in percent, as the fields of a record."""
  return interval_fields(name, [100 * x for x in values])


def cell(name: str) -> CellText:
  """Returns the cell of a score and its interval, '' where it is not there."""
  return blank_without(name, interval_cell(name, '.1f'))


def by_length(run: Run) -> Table:
  """Makes the table of scores by task and length."""
  found = scores.cells(run.rows, f'score_{run.dialect}')
  tasks, lengths = scores.tasks_of(run.rows), lengths_of(found)
  records: list[dict[str, Any]] = []
  for task in tasks:
    own = {n: found.get((task, n), np.array([])) for n in lengths}
    record = {'task': task, 'samples': max(map(len, own.values()))}
    for n, values in own.items():
      record |= percent(
          scores.interval(values, run.num_resamples, run.seed), f'score_{n}')
    records.append(record)
  if len(tasks) > 1:
    record = {'task': 'mean', 'samples': sum(r['samples'] for r in records)}
    for n in lengths:
      groups = [found[task, n] for task in tasks if (task, n) in found]
      whole = groups if len(groups) == len(tasks) else []
      record |= percent(
          scores.mean_interval(whole, run.num_resamples, run.seed), f'score_{n}')
    records.append(record)
  columns = {
      'task': lambda r: name_of(r['task']), 'samples': lambda r: f'{r["samples"]}',
      **{f'{n:,} tokens': cell(f'score_{n}') for n in lengths}}
  note = (f'Mean score in % of the samples of each length [95 %: bootstrap over '
          f'samples]. {dialect_words(run)} {run.source}')
  most = ' of common words at most that,' * ('common_words' in tasks)
  of = (f'that of a {run.length_of},{most} without BOS. Answers are greedy.'
        if run.window else 'that in the name of a file or folder.')
  more = (f'A length is {of} The mean is '
          'that over tasks, whose samples are drawn again task by task. Percentile '
          'intervals of few samples are too narrow, and have no width where all '
          'samples have one score.')
  return Table('scores', 'Score by task and length', columns, records, note,
               more=joined(left_out(run), more))


def dialect_words(run: Run) -> str:
  """Returns a sentence that names the dialect of scores."""
  return f'Dialect: {run.dialect}.'


def effects(run: Run) -> list[Effect]:
  """Returns how each task depends on the length; the base length is its shortest."""
  cells = _score_and_chance(run)
  return [_effect(run, cells, task, [task], sorted(
      n for own, n in cells[0] if own == task and isinstance(n, int)))
          for task in scores.tasks_of(run.rows)]


def _score_and_chance(run: Run) -> tuple[Cells, Cells]:
  return (scores.cells(run.rows, f'score_{run.dialect}'),
          scores.cells(run.rows, 'chance'))


def _effect(
    run: Run, cells: tuple[Cells, Cells], name: str, tasks: Sequence[str],
    lengths: list[int],
) -> Effect:
  """Returns how the mean over tasks depends on the length."""
  found, chance = cells
  means = np.array([
      np.mean([found[task, n].mean() for task in tasks]) for n in lengths])
  _, low, high = scores.mean_interval(
      [found[task, lengths[0]] for task in tasks], run.num_resamples, run.seed)
  guess = float(np.mean([chance[task, lengths[0]].mean() for task in tasks]))
  effect = Effect(name, lengths, means, low, high, guess, None)
  if effect.able:
    kept = np.logical_and.accumulate(means >= KEPT * means[0])
    effect = effect._replace(effective=lengths[int(kept.sum()) - 1])
  return effect


def effective_lengths(run: Run) -> Table:
  """Makes the table of effective lengths and changes from the base length."""
  found = effects(run)
  lengths = sorted({n for effect in found for n in effect.lengths})
  whole = [n for n in lengths if all(n in effect.lengths for effect in found)]
  if len(found) > 1 and whole and whole[0] == lengths[0]:
    found.append(_effect(run, _score_and_chance(run), 'mean',
                         [effect.task for effect in found], whole))
  records = []
  for effect in found:
    change = effect.means / effect.means[0] - 1 if effect.able else (
        np.full(len(effect.lengths), np.nan))
    of_length = dict(zip(effect.lengths, 100 * change, strict=True))
    records.append({
        'task': effect.task, 'base_length': effect.lengths[0],
        **percent((effect.means[0], effect.low, effect.high), 'base_score'),
        'chance': 100 * effect.chance, 'well_above_chance': effect.able,
        'effective_length': effect.effective,
        **{f'change_{n}': float(of_length.get(n, math.nan)) for n in lengths}})
  columns = {
      'task': lambda r: name_of(r['task']),
      'base': lambda r: f'{r["base_length"]:,}',
      'score at the base [95 %]': cell('base_score'),
      'chance': lambda r: number(r['chance'], '.1f'),
      'effective length': lambda r: (
          f'{r["effective_length"]:,}' if r['well_above_chance'] else
          'not well above chance'),
      **{f'change at {n:,}': number_cell(f'change_{n}', '+.0f')
         for n in lengths[1:]}}
  note = (f'Up to the effective length, means stay at {100 * KEPT:.0f} % of the base, '
          'the shortest length; none if that is near chance. Change: (S_L − S_base) / '
          f'S_base, in %. {dialect_words(run)} {run.source}')
  more = ('Chance: the mean score in % of a guess of the right kind that ignores the '
          'context, 0 where it is not known, as in predictions of RULER made '
          f'elsewhere. A task whose interval at the base length does not lie '
          f'{100 * MARGIN:.0f} points above it has no effective length and no changes. '
          'Means at other lengths are compared without their intervals. The mean is '
          'that over tasks, at the lengths that all of them have.')
  return Table('effective_length', 'Effective length and relative change', columns,
               records, note, more=joined(left_out(run), more))


def depths_of(run: Run) -> list[int]:
  """Returns the depths of samples, in percent."""
  return sorted({row.depth for row in run.rows if row.depth is not None})


def by_depth(run: Run) -> Table:
  """Makes the table of scores by depth and length, of each task."""
  records = []
  metric = f'score_{run.dialect}'
  lengths = lengths_of(scores.cells(run.rows, metric))
  of_depths = {x: scores.cells(run.rows, metric, x) for x in depths_of(run)}
  for task in scores.tasks_of(run.rows):
    for depth, found in of_depths.items():
      record: dict[str, Any] = {'task': task, 'depth': depth}
      for n in lengths:
        values = found.get((task, n), np.array([]))
        record |= percent(
            scores.interval(values, run.num_resamples, run.seed), f'score_{n}')
        record[f'samples_{n}'] = len(values)
      if any(record[f'samples_{n}'] for n in lengths):
        records.append(record)
  columns = {
      'task': lambda r: name_of(r['task']), 'depth': lambda r: depth_words(run, r),
      **{f'{n:,} tokens': cell(f'score_{n}') for n in lengths}}
  where = ('the share of the text before the key.' if run.suite == 'passkey' else
           'the quarter of the context where the first fact that is needed stands.')
  note = (f'Mean score in % by depth [95 %: bootstrap over samples]. Depth: {where} '
          f'{dialect_words(run)} {run.source}')
  return Table('depth', 'Score by depth and length', columns, records, note)


def depth_words(run: Run, record: Record) -> str:
  """Returns the depth of a record, such as '25 %', or '25–50 %' of BABILong."""
  depth = record['depth']
  return f'{depth} %' if run.suite == 'passkey' else f'{depth}–{depth + 25} %'
