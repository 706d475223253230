"""Scores of predictions as rows of results.csv, and means of these. Runs without JAX.

The columns of a row:

  experiment  the suite
  arm         the task
  seed        the index of a sample
  length      the tokens of its prompt, or of BABILong's context with
              config.length_of='context'; of LongBench the words of its text
  depth       where in the context stands what is asked for, in percent
  metric      `score_DIALECT`, `chance`, `shortcut` or `num_tokens`
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from etils import epath
import numpy as np

from experiments.long_context import shortcuts
from vvlen.evaluation import babilong, longbench, ruler, ruler_files
from vvlen.evaluation.longbench import DIALECTS
from vvlen.reporting import results
from vvlen.reporting.results import Row
from vvlen.statistics import percentile_interval, resampled_means

SUITES = ('passkey', 'babilong', 'longbench', 'ruler')
RULER = ('niah_single', 'niah_multikey', 'niah_multivalue', 'niah_multiquery',
         'variable_tracking', 'common_words')
# Those of RULER by the names of its own files come after ours.
TASKS = ('passkey', *babilong.LABELS, *longbench.METRICS,
         *dict.fromkeys((*RULER, *ruler_files.TASKS)))
# (task, length in tokens, or LongBench's bucket) -> values by sample
Cells = dict[tuple[str, int | str], np.ndarray]


def score(suite: str, task: str, record: dict[str, Any], dialect: str) -> float:
  """Returns the score of a prediction, in [0, 1].

  Args:
    suite: one of `SUITES`.
    task: of the suite.
    record: as in `experiments.long_context.predictions`.
    dialect: 'official', 'lm_eval' or 'strict'.

  Raises:
    ValueError: if the answers are not of the task.
  """
  pred, answers = record['pred'], record['answers']
  if suite == 'babilong':
    return float(babilong.is_correct(
        task, pred, answers[0], record['question'], dialect))
  if suite == 'longbench':
    return longbench.score(task, pred, answers, record['all_classes'], dialect)
  return ruler.score(pred, answers, dialect, others=record['others'],
                     one_of=task in ruler_files.ONE_OF)


def rows_of(suite: str, task: str, records: Iterable[dict[str, Any]]) -> list[Row]:
  """Returns the rows of a task's predictions; arguments and errors as in `score`."""
  rows = []
  for record in records:
    values = {f'score_{dialect}': score(suite, task, record, dialect)
              for dialect in DIALECTS}
    values['chance'] = record['chance']
    shortcut = _shortcut(suite, task, record)
    if shortcut is not None:
      values['shortcut'] = shortcut
    if 'num_tokens' in record:  # not of predictions made elsewhere
      values['num_tokens'] = record['num_tokens']
    rows += [Row(suite, task, record['index'], record['length'], metric, value,
                 depth=record['depth']) for metric, value in values.items()]
  return rows


def _shortcut(suite: str, task: str, record: dict[str, Any]) -> float | None:
  """Returns the score of an answer that does not depend on what is asked.

  It is not known of predictions made elsewhere, nor defined for LongBench.
  """
  if suite == 'longbench' or 'settings' not in record:
    return None
  if suite == 'babilong':
    return shortcuts.of_story(task, record['settings']['facts'], record['question'],
                              record['answers'][0])
  return shortcuts.of_needles(
      len(record['answers']), len(record['others']), record['chance'])


def sample_of(row: Row) -> tuple[Any, ...]:
  """Returns the sample to which a row belongs."""
  return row.arm, row.length, row.seed


def read_rows(folder: epath.PathLike, not_run: Collection[str] = ()) -> list[Row]:
  """Returns the rows of a run's results.csv.

  Args:
    folder: of the run.
    not_run: tasks and lengths, as in `place_of`, that are not run any more, as a later
      sample does not fit; their rows are left out.

  Raises:
    ValueError: if there are none, the file is damaged or of another study.
  """
  return [row for row in results.read_run(folder, '|'.join(SUITES), TASKS)
          if place_of(row.arm, row.length or 0) not in not_run]


def place_of(task: str, length: int) -> str:
  """Returns the name of a task at a length for messages."""
  return f'{task} at {length:,} tokens'


def tasks_of(rows: Iterable[Row]) -> list[str]:
  """Returns the tasks that have rows, in the order of `TASKS`."""
  there = {row.arm for row in rows}
  return [task for task in TASKS if task in there]


def bucket_of(row: Row) -> int | str:
  """Returns the length of a row's sample, or LongBench's bucket of it."""
  assert row.length is not None
  return bucket(row.experiment, row.length)


def bucket(suite: str, length: int) -> int | str:
  """Returns the length of a sample of a suite, or LongBench's bucket of it."""
  return longbench.bucket(length) if suite == 'longbench' else length


def cells(rows: Iterable[Row], metric: str, depth: int | None = None) -> Cells:
  """Returns the values of a metric by task and length, in the order of samples.

  Args:
    rows: of one suite.
    metric: such as 'score_official'.
    depth: only of samples with this depth; None: of all.
  """
  return {cell: np.array([own[i] for i in sorted(own)])
          for cell, own in _by_sample(rows, metric, depth).items()}


def differences(rows: Sequence[Row], metric: str, other: str) -> Cells:
  """Returns metric − other by task and length, of the samples that have both."""
  first, second = _by_sample(rows, metric), _by_sample(rows, other)
  return {cell: np.array([first[cell][i] - second[cell][i] for i in sorted(
      first[cell].keys() & second[cell].keys())])
          for cell in first if cell in second}


def _by_sample(
    rows: Iterable[Row], metric: str, depth: int | None = None
) -> dict[tuple[str, int | str], dict[int, float]]:
  """Returns {(task, length or bucket): {sample: value}}; arguments as in `cells`."""
  found: dict[tuple[str, int | str], dict[int, float]] = {}
  for row in rows:
    if row.metric == metric and depth in (None, row.depth):
      found.setdefault((row.arm, bucket_of(row)), {})[row.seed] = row.value
  return found


def interval(
    values: Sequence[float] | np.ndarray, num_resamples: int, seed: int
) -> tuple[float, float, float]:
  """Returns a mean over samples, and both ends of its 95 % bootstrap interval.

  The ends are nan for fewer than two values, the mean too if there is none.
  """
  groups = [np.asarray(values)] if len(values) else []
  return mean_interval(groups, num_resamples, seed)


def mean_and_interval(drawn: np.ndarray) -> tuple[float, float, float]:
  """Returns the first value, and the percentiles 2.5 and 97.5 of the others."""
  low, high = percentile_interval(drawn[1:])
  return float(drawn[0]), float(low), float(high)


def mean_interval(
    groups: Sequence[np.ndarray], num_resamples: int, seed: int
) -> tuple[float, float, float]:
  """Returns the mean of the means of groups, with its 95 % bootstrap interval.

  Each group is resampled by itself. The ends are nan if a group has fewer than two
  values; all are nan if there is no group.
  """
  if not groups or min(map(len, groups)) < 2:
    mean = float(np.mean([x.mean() for x in groups])) if groups else np.nan
    return mean, np.nan, np.nan
  return mean_and_interval(drawn_means(groups, num_resamples, seed))


def drawn_means(
    groups: Sequence[np.ndarray], num_resamples: int, seed: int
) -> np.ndarray:
  """Returns the mean of the means of groups, then those of R bootstrap samples.

  Each group is resampled by itself. Which samples are drawn depends on the seed, on a
  group's place and on its size.

  Returns:
    [1 + R].
  """
  return np.mean([resampled_means(x, np.ones(len(x)), num_resamples, seed + place)
                  for place, x in enumerate(groups)], axis=0)
