"""The table, figure and sentences of the temperature that softmax needs.

From the rows that `law` measures. Runs without JAX.
"""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from experiments.league.effects import Family, has_learned
from experiments.league.names import CONTROL, LAWS
from vvlen.reporting import plots
from vvlen.reporting.endpoints import compare, median_accuracy
from vvlen.reporting.numbers import interval_words, number
from vvlen.reporting.results import Index
from vvlen.reporting.tables import (
  blank_without,
  difference,
  difference_cell,
  interval_cell,
  interval_fields,
  number_cell,
  Record,
  Table,
)
from vvlen.statistics import mean_interval

_POWERS = ('power', 'power_of_log', 'power_in_training')


def measured(indices: Mapping[str, Index], family: Family) -> dict[str, Index]:
  """Returns the rows of the tasks whose softmax models all have been measured."""
  found = {}
  for task in family.tasks:
    index = indices.get(task, {})
    if len(index.get((CONTROL, 'needed_power', None), {})) >= family.num_seeds:
      found[task] = index
  return found


def needs_table(some: Mapping[str, Index], family: Family) -> Table:
  """Returns the table of the laws that softmax needs: a row per task.

  Args:
    some: from `measured`.
    family: from `effects.read_family`.
  """
  records = [_record(task, index, family.tasks[task]) for task, index in some.items()]
  columns = {
      'task': lambda r: r['task'],
      'power of n [95 %]': interval_cell('power', '.2f'),
      'power of log n [95 %]': interval_cell('power_of_log', '.2f'),
      'power of n in training [95 %]': interval_cell('power_in_training', '.2f'),
      'found': number_cell('found', '.1f'),
      **{f'gain, {label} [95 %]': blank_without(
          f'{law}_difference', difference_cell('.1f', f'{law}_'))
         for law, label in LAWS.items()},
      'seeds': lambda r: str(r['seeds']),
  }
  note = (
      'Power: p and q if the least factor of the logits that gives the item asked for '
      'half of the weight grows as n^p or (log n)^q; means over seeds. Gain: of '
      'softmax with this factor at inference, points of mean accuracy beyond training.'
  )
  more = (
      'Powers are fitted to each model: slopes of log median factor against log n and '
      'log log n, over the test lengths at which it is neither 0 nor infinite, on '
      'sequences other than those tested, with their answers known. In training: at '
      'three training lengths. Found: percentage of items asked for that have the '
      'largest logit, at the longest test length, so that some factor suffices. '
      'Factors are relative to the longest training length. Intervals are uncorrected.'
  )
  return Table('needs', 'The temperature that softmax needs', columns, records, note,
               more=more)


def _record(task: str, index: Index, trained_up_to: int) -> Record:
  """Returns the row of a task."""
  longest = max(n for arm, metric, n in index
                if (arm, metric) == (CONTROL, 'found') and n is not None)
  record: dict[str, Any] = {'task': task, 'longest': longest}
  for name in _POWERS:
    values = [x for x in index[CONTROL, f'needed_{name}', None].values()
              if math.isfinite(x)]
    record |= interval_fields(name, mean_interval(values) if values else [math.nan] * 3)
    record[f'{name}_seeds'] = len(values)
  found = index[CONTROL, 'found', longest].values()
  record['found'] = 100 * float(np.mean([*found]))
  for law in LAWS:
    changed = compare(index, f'{CONTROL}+{law}', CONTROL, trained_up_to=trained_up_to)
    record |= difference(changed.primary, f'{law}_')
  training = index[CONTROL, 'training_accuracy', None]
  return record | {'training_accuracy': 100 * median_accuracy(training),
                   'learned': has_learned(training),
                   'seeds': len(index[CONTROL, 'needed_power', None])}


def needs_answer(records: Sequence[Record]) -> list[str]:
  """Says how the temperature grows that softmax needs, and what it gains.

  Args:
    records: of the table `needs`. Tasks are left out whose power is not known, or
      whose training lengths were not learned.
  """
  said = []
  for r in records:
    if math.isnan(r['power']) or not r['learned']:
      continue
    interval = lambda name, form, r=r: interval_words(
        r[f'{name}_low'], r[f'{name}_high'], form)
    said.append(
        f'On {r["task"].replace("_", " ")}, the temperature that softmax needs grows '
        f'as n to the power {number(r["power"], ".2f")} {interval("power", ".2f")}; '
        f'applied at inference, it gains {number(r["power_difference"], "+.1f")} '
        f'points {interval("power_ci", "+.1f")}.')
  return said


def needs_figure(some: Mapping[str, Index], family: Family) -> Figure:
  """Draws the factor needed, and accuracy under the laws, by length; a row per task.

  Args:
    some: from `measured`, not empty.
    family: from `effects.read_family`.
  """
  drawn = plots.new(
      0.9 + 1.9 * len(some),
      'The temperature that softmax needs, and what it gains',
      'Left: least factor of the logits of softmax that gives the item asked for half '
      'of the weight, by number of items N, median over sequences, geometric mean over '
      'seeds where all have one. Right: accuracy of the same models with the factor '
      'of a law at inference, fitted to other sequences; '
      f'{plots.over_seeds(family.num_seeds)}; training lengths are shaded.',
      plots.with_bands(family.words, family.num_seeds))
  panels = drawn.subplots(len(some), 2, squeeze=False)
  for (needed, gained), (task, index) in zip(panels, some.items(), strict=True):
    _needed(needed, index, family.tasks[task])
    _gained(gained, index)
    title = task.replace('_', ' ')
    needed.set(title=title, ylabel='factor of the logits')
    gained.set(title=title, ylabel='accuracy (%)')
    for axes in (needed, gained):
      plots.length_axis(axes, family.tasks[task])
  plots.legend(drawn, panels.flat, 4)
  return drawn


def _needed(axes: Axes, index: Index, trained_up_to: int) -> None:
  """Draws the factor that is needed by length, and two laws for comparison."""
  plots.log_axis(axes)
  lengths, table = plots.values(index, CONTROL, 'needed_temperature')
  shown = (np.isfinite(table) & (table > 0)).all(axis=0)
  at, table = np.array(lengths)[shown], table[:, shown]
  if not len(at):
    return
  plots.draw(axes, at, table, *plots.LOOKS[0], 'softmax as it is')
  # From the longest training length on, or the first one shown.
  first = int(np.searchsorted(at, trained_up_to)) % len(at)
  start = np.exp(np.log(table[:, first]).mean())
  laws = (('∝ n', at / at[first], (0, (4, 2))),
          ('∝ log n', np.log(at) / np.log(at[first]), (0, (1, 1.5))))
  for label, law, dashes in laws:
    axes.plot(at[first:], start * law[first:], color='black', linestyle=dashes,
              linewidth=1.0, label=label)


def _gained(axes: Axes, index: Index) -> None:
  """Draws accuracy by length without and with each law."""
  names = {CONTROL: 'softmax as it is'} | {
      f'{CONTROL}+{law}': f'with {label}' for law, label in LAWS.items()}
  for (arm, label), look in zip(names.items(), plots.LOOKS, strict=False):
    lengths, table = plots.values(index, arm, 'accuracy')
    if np.isfinite(table).all():
      plots.draw(axes, lengths, 100 * table, *look, label)
