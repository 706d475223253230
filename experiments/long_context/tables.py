"""The tables of a suite with lengths in tokens. Runs without JAX."""

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple

import numpy as np

from experiments.long_context import scores
from experiments.long_context.scores import Cells
from vvlen.reporting.numbers import from_to, number
from vvlen.reporting.results import Row
from vvlen.reporting.tables import (
  blank_without,
  cell_if,
  CellText,
  interval_cell,
  interval_fields,
  number_cell,
  Record,
  Table,
)

KEPT = 0.85  # of the score at the base length, up to the effective length
# How far the interval at the base length must lie above chance and a shortcut, for 85 %
# of the score to say more than a few answers do.
MARGIN = 0.1
_EQUAL = 1e-9  # means that are closer are equal up to round-off
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
  source: str  # a sentence with the hash of weights, and how they were run
  not_run: Sequence[str] = ()  # what was left out because prompts could not be made
  length_of: str = 'prompt'  # or 'context': what lengths count the tokens of
  answer_tokens: int = 0  # the most of an answer
  prompts: str = ''  # a sentence with the hash of their template

  @property
  def made_elsewhere(self) -> bool:
    """Whether the predictions were made elsewhere, with a window that is not known."""
    return not self.window


class Effect(NamedTuple):
  """How the score of a task depends on the length."""

  task: str
  lengths: list[int]
  means: np.ndarray  # [lengths]
  low: float  # end of the interval at the base length
  high: float
  chance: float  # at the base length
  shortcut: float  # the same of an answer that does not depend on the question, or nan
  effective: int  # the effective length, if `able`
  effective_low: float  # end of its interval, nan if a length has a single sample
  effective_high: float

  @property
  def able(self) -> bool:
    """Whether the score at the base length is well above chance and a shortcut."""
    return self.low > np.fmax(self.chance, self.shortcut) + MARGIN


def make(run: Run) -> list[Table]:
  """Returns the tables of a run in one dialect, the scores first."""
  made = [by_length(run), effective_lengths(run)]
  if run.suite in ('passkey', 'babilong') and depths_of(run):
    made.append(by_depth(run))
  return made


def more_of(run: Run, *sentences: str) -> str:
  """Returns what is folded below a table, and what was left out before it."""
  return joined(left_out(run), *sentences, run.prompts)


def left_out(run: Run) -> str:
  """Returns a sentence on what was not run, '' if that is nothing."""
  words = f'Not run, as not all prompts could be made: {", ".join(run.not_run)}.'
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


def beyond_window(run: Run) -> list[int]:
  """Returns the lengths whose prompts, with BOS and answers, exceed the window."""
  if run.made_elsewhere or run.suite == 'longbench':
    return []
  read: dict[int, float] = {}
  for row in run.rows:
    if row.length is not None:
      own = row.value if row.metric == 'num_tokens' else row.length
      read[row.length] = max(read.get(row.length, 0), own)
  return sorted(n for n, most in read.items() if most + run.answer_tokens > run.window)


def beyond_words(run: Run) -> str:
  """Returns a sentence on the lengths beyond the window, '' if there are none."""
  beyond = beyond_window(run)
  return (f'From {beyond[0]:,} tokens on, prompts with BOS and answers of up to '
          f'{run.answer_tokens} tokens exceed the window, {run.window:,} tokens.'
          if beyond else '')


def of_lengths(
    run: Run, lengths: Sequence[int], header: str, cell_of: Callable[[int], CellText]
) -> dict[str, CellText]:
  """Returns a column for each length, with a star beyond the window.

  Args:
    run: of the table.
    lengths: in tokens.
    header: such as 'change at {}'.
    cell_of: length -> its cell.
  """
  beyond = beyond_window(run)
  return {header.format(f'{n:,}') + ' *' * (n in beyond): cell_of(n) for n in lengths}


def _star(run: Run) -> str:
  """Returns the sentence that explains a star, '' if there is none."""
  words = beyond_words(run)
  return f'* {words}' if words else ''


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
    record: dict[str, Any] = {'task': task}
    for n, values in own.items():
      record |= percent(
          scores.interval(values, run.num_resamples, run.seed), f'score_{n}')
      record[f'samples_{n}'] = len(values)
    records.append(record)
  if len(tasks) > 1:
    record = {'task': 'mean'}
    for n in lengths:
      groups = [found[task, n] for task in tasks if (task, n) in found]
      whole = groups if len(groups) == len(tasks) else []
      record |= percent(
          scores.mean_interval(whole, run.num_resamples, run.seed), f'score_{n}')
      record[f'samples_{n}'] = sum(map(len, whole))
    records.append(record)
  columns = {
      'task': lambda r: name_of(r['task']),
      'samples': lambda r: from_to(
          [r[f'samples_{n}'] for n in lengths if r[f'samples_{n}']] or [0], '.0f'),
      **of_lengths(run, lengths, '{} tokens', lambda n: cell(f'score_{n}'))}
  note = (f'Mean score in % of the samples of each length [95 %: bootstrap over '
          f'samples]. {dialect_words(run)} {run.source}')
  most = ' of common words at most that,' * ('common_words' in tasks)
  of = ('that in the name of a file or folder.' if run.made_elsewhere else
        f'that of a {run.length_of},{most} without BOS. Answers are greedy.')
  more = (f'A length is {of} Samples: of each length, from the fewest to the most. The '
          'mean is that over tasks, whose samples are drawn again task by task. '
          'Percentile intervals of few samples are too narrow, and have no width where '
          'all samples have one score.')
  return Table('scores', 'Score by task and length', columns, records, note,
               more=more_of(run, _star(run), more))


def dialect_words(run: Run) -> str:
  """Returns a sentence that names the dialect of scores."""
  return f'Dialect: {run.dialect}.'


class _Values(NamedTuple):
  """Values by task and length."""

  score: Cells
  chance: Cells
  shortcut: Cells  # without the tasks and lengths of which it is not known


def effects(run: Run) -> list[Effect]:
  """Returns how each task depends on the length; the base length is its shortest."""
  values = _values(run)
  return [_effect(run, values, task, [task], sorted(
      n for own, n in values.score if own == task and isinstance(n, int)))
          for task in scores.tasks_of(run.rows)]


def _values(run: Run) -> _Values:
  found, chance, shortcut = (
      scores.cells(run.rows, metric)
      for metric in (f'score_{run.dialect}', 'chance', 'shortcut'))
  # A prompt has no number but its pass key.
  return _Values(found, chance, chance if run.suite == 'passkey' else shortcut)


def _effect(
    run: Run, values: _Values, name: str, tasks: Sequence[str], lengths: list[int]
) -> Effect:
  """Returns how the mean over tasks depends on the length.

  Samples of one number are drawn together at all lengths that have as many, as BABILong
  asks the same questions at all of them.
  """
  groups = [[values.score[task, n] for task in tasks] for n in lengths]
  drawn = np.array([  # [lengths, 1 + R]
      scores.drawn_means(own, run.num_resamples, run.seed) for own in groups])
  _, low, high = scores.mean_interval(groups[0], run.num_resamples, run.seed)
  kept = np.logical_and.accumulate(drawn >= KEPT * drawn[0] - _EQUAL)
  effective = np.array(lengths)[kept.sum(axis=0) - 1]
  ends = (math.nan, math.nan) if min(len(x) for own in groups for x in own) < 2 else (
      np.quantile(effective[1:], (0.025, 0.975), method='inverted_cdf'))
  at_base = lambda cells: float(np.mean([
      np.mean(cells.get((task, lengths[0]), math.nan)) for task in tasks]))
  return Effect(name, lengths, drawn[:, 0], low, high, at_base(values.chance),
                at_base(values.shortcut), int(effective[0]), *map(float, ends))


def effective_lengths(run: Run) -> Table:
  """Makes the table of effective lengths and changes from the base length."""
  found = effects(run)
  lengths = sorted({n for effect in found for n in effect.lengths})
  whole = [n for n in lengths if all(n in effect.lengths for effect in found)]
  if len(found) > 1 and whole and whole[0] == lengths[0]:
    found.append(_effect(run, _values(run), 'mean', [x.task for x in found], whole))
  records = [_effective_record(effect, lengths) for effect in found]
  columns = {
      'task': lambda r: name_of(r['task']),
      'base': lambda r: f'{r["base_length"]:,}',
      'score at the base [95 %]': cell('base_score'),
      'chance, shortcut': lambda r: (
          f'{number(r["chance"], ".1f")}, '
          + ('unknown' if math.isnan(r['shortcut']) else number(r['shortcut'], '.1f'))),
      'effective length [95 %]': cell_if(
          lambda r: r['well_above_guess'], interval_cell('effective_length', ',.0f'),
          'not well above a guess'),
      **of_lengths(run, lengths[1:], 'change at {}',
                   lambda n: number_cell(f'change_{n}', '+.0f'))}
  note = (f'Up to the effective length, means are at least {100 * KEPT:.0f} % of the '
          'base, the shortest length [95 %: bootstrap over samples]. '
          f'{dialect_words(run)} {run.source}')
  more = (
      'Change: (S_L − S_base) / S_base, in %. Chance: the mean score in % of a guess '
      'of the right kind that ignores the context, 0 where it is not known, as in '
      'predictions of RULER made elsewhere. Shortcut: that of an answer that takes a '
      'fitting word of the context whatever is asked: of four needles any one, of a '
      'story the label that it names last; chance if there is one word alone. A task '
      f'whose interval at the base length does not lie {100 * MARGIN:.0f} points above '
      'both has no effective length and no changes. For the interval of the effective '
      'length, the samples of all lengths are drawn again. The mean is that over '
      'tasks, at the lengths that all of them have.')
  unknown = (
      'Where the score of a shortcut is unknown, it may be above chance, and the '
      'effective length that of the shortcut: the room that is named last answers half '
      'of the stories of qa1, and more of those of up to four facts.')
  return Table(
      'effective_length', 'Effective length and relative change', columns, records,
      note, more=more_of(
          run, _star(run), more,
          unknown * any(math.isnan(r['shortcut']) for r in records)))


def _effective_record(effect: Effect, lengths: Sequence[int]) -> dict[str, Any]:
  """Returns the record of a task; lengths that it does not have are nan."""
  change = 100 * (effect.means / effect.means[0] - 1) if effect.able else (
      np.full(len(effect.lengths), math.nan))
  of_length = dict(zip(effect.lengths, change, strict=True))
  effective = (effect.effective, effect.effective_low, effect.effective_high)
  return {
      'task': effect.task, 'base_length': effect.lengths[0],
      **percent((effect.means[0], effect.low, effect.high), 'base_score'),
      'chance': 100 * effect.chance, 'shortcut': 100 * effect.shortcut,
      'well_above_guess': bool(effect.able),
      **interval_fields(
          'effective_length', effective if effect.able else 3 * [math.nan]),
      **{f'change_{n}': float(of_length.get(n, math.nan)) for n in lengths}}


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
      **of_lengths(run, lengths, '{} tokens', lambda n: cell(f'score_{n}'))}
  where = ('the share of the text before the key.' if run.suite == 'passkey' else
           'the quarter of the context where the first fact that is needed stands.')
  note = ('Mean score in % by depth [95 %: bootstrap over samples]. '
          f'{dialect_words(run)} {run.source}')
  return Table('depth', 'Score by depth and length', columns, records, note,
               more=more_of(run, _star(run), f'Depth: {where}'))


def depth_words(run: Run, record: Record) -> str:
  """Returns the depth of a record, such as '25 %', or '25–50 %' of BABILong."""
  depth = record['depth']
  return f'{depth} %' if run.suite == 'passkey' else f'{depth}–{depth + 25} %'
