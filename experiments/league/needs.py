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
      'at lengths': blank_without('power', _lengths_words),
      'power of n [95 %]': interval_cell('power', '.2f'),
      'power of log n [95 %]': interval_cell('power_of_log', '.2f'),
      'power of n in training [95 %]': interval_cell('power_in_training', '.2f'),
      'found': number_cell('found', '.1f'),
      **{f'gain, {label} [95 %]': blank_without(
          f'{law}_difference', difference_cell('.1f', f'{law}_'))
         for law, label in LAWS.items()},
      'seeds': lambda r: (str(r['seeds']) if r['power_seeds'] == r['seeds'] else
                          f'{r["power_seeds"]} of {r["seeds"]}'),
  }
  note = (
      'Power: p and q if the least factor of the logits that gives the item asked for '
      'half of the weight grows as n^p or (log n)^q; means over seeds. Gain: of '
      'logits × (n / n₀)^p or (log n / log n₀)^q at inference, points of accuracy.'
  )
  more = (
      'Powers are slopes, for each model, of log median factor against log n and '
      'log log n, at the test lengths at which the median of every model is neither 0 '
      'nor infinite, on sequences other than those tested, with their answers known. '
      'In training: at three training lengths. Found: percentage of items asked for '
      'that have the largest logit, at the longest test length, so that some factor '
      'suffices. Gains are of accuracy beyond training. What is applied grows as the '
      'least factor does, but is 1 at the longest training length n₀, where the least '
      'factor may be smaller: it is not the least factor. Its powers are those of each '
      'model at all lengths at which it has such a median. '
      'All laws but n^p of training use answers at longer inputs, so they are not '
      'methods. Seeds: of the powers, without models that have such a median at fewer '
      'than two test lengths. A gain is shown if all seeds have it. Intervals are '
      'uncorrected.'
  )
  return Table('needs', 'The temperature that softmax needs', columns, records, note,
               more=more)


def _lengths_words(record: Record) -> str:
  """Returns the range of lengths that the powers are fitted at."""
  return f'{record["power_from"]:,} to {record["power_to"]:,}'


def _record(task: str, index: Index, trained_up_to: int) -> Record:
  """Returns the row of a task."""
  longest = max(n for arm, metric, n in index
                if (arm, metric) == (CONTROL, 'found') and n is not None)
  found = index[CONTROL, 'found', longest].values()
  record = {'task': task, 'longest': longest, **_powers(index, trained_up_to),
            'found': 100 * float(np.mean([*found]))}
  seeds = len(index[CONTROL, 'needed_power', None])
  for law in LAWS:
    changed = compare(index, f'{CONTROL}+{law}', CONTROL, trained_up_to=trained_up_to)
    whole = len(changed.primary_differences) == seeds
    record |= difference(changed.primary if whole else None, f'{law}_')
  training = index[CONTROL, 'training_accuracy', None]
  return record | {'training_accuracy': 100 * median_accuracy(training),
                   'learned': has_learned(training), 'seeds': seeds}


def _powers(index: Index, trained_up_to: int) -> dict[str, Any]:
  """Returns the powers, means over models, and the lengths at which they are fitted.

  Models with a median factor at fewer than two lengths from the longest training length
  on are left out; all others are fitted at the same lengths.
  """
  lengths, betas = plots.values(index, CONTROL, 'needed_temperature')
  sizes = np.array(lengths)
  far, near = sizes >= trained_up_to, sizes <= trained_up_to
  betas = betas[_has_factor(betas)[:, far].sum(axis=1) >= 2]
  shared = _has_factor(betas).all(axis=0)
  used, log_n = sizes[shared & far].tolist(), np.log(sizes)
  record: dict[str, Any] = {
      'power_seeds': len(betas), 'power_from': min(used, default=0),
      'power_to': max(used, default=0)}
  for name, x, some in (('power', log_n, shared & far),
                        ('power_of_log', np.log(log_n), shared & far),
                        ('power_in_training', log_n, shared & near)):
    known = some.sum() >= 2
    record |= interval_fields(name, mean_interval(np.polyfit(
        x[some], np.log(betas[:, some]).T, 1)[0]) if known else [math.nan] * 3)
  return record


def _has_factor(betas: np.ndarray) -> np.ndarray:
  """Returns where a median factor is neither 0 nor infinite, [S, N] bool."""
  return np.isfinite(betas) & (betas > 0)


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
    said.append(
        f'On {r["task"].replace("_", " ")}, the temperature that softmax needs grows '
        f'from {_lengths_words(r)} items as n to the power '
        f'{number(r["power"], ".2f")} {_interval(r, "power", ".2f")}.'
        f'{_beyond_words(r)}{_gain_words(r)}')
  return said


def _interval(record: Record, name: str, form: str) -> str:
  return interval_words(record[f'{name}_low'], record[f'{name}_high'], form)


def _beyond_words(record: Record) -> str:
  """Says why longer inputs have no part in the power; '' if all have."""
  if record['power_to'] == record['longest']:
    return ''
  return (' With more items, some models find no more than half of them at any '
          f'temperature; with {record["longest"]:,}, '
          f'{number(record["found"], ".1f")} % are found.')


def _gain_words(record: Record) -> str:
  """Says what the law gains, fitted at test lengths and in training."""
  gains = [
      f'{number(record[f"{law}_difference"], "+.1f")} points '
      f'{_interval(record, f"{law}_ci", "+.1f")} fitted at {words}'
      for law, words in (
          ('power', 'test lengths, which uses the answers, so it is not a method'),
          ('trained_power', 'training lengths alone'))
      if not math.isnan(record[f'{law}_difference'])]
  return (' At inference, such a law, 1 up to the training lengths, gains '
          f'{", and ".join(gains)}.' if gains else '')


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
  shown = _has_factor(table).all(axis=0)
  at, table = np.array(lengths)[shown], table[:, shown]
  if not len(at):
    return
  plots.draw(axes, [*at], table, *plots.LOOKS[0], 'softmax as it is')
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
