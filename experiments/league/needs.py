"""The table, figure and sentences of the temperature that softmax needs.

From the rows that `needed` measures. Runs without JAX.
"""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from experiments.league.effects import Family, has_learned
from experiments.league.figures import draw_chance
from experiments.league.names import AT_INFERENCE, CONTROL, in_words
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

_LEAST_FOUND = 90  # % of items with the largest logit where powers are fitted
# Laws with a power of each model, and where it is.
_POWERS = {'power': 'needed_power', 'power_of_log': 'needed_power_of_log',
           'trained_power': 'needed_power_in_training'}


def measured(indices: Mapping[str, Index], family: Family) -> dict[str, Index]:
  """Returns the rows of the tasks whose softmax models all have been measured."""
  found = {}
  for task in family.tasks:
    index = indices.get(task, {})
    if len(index.get((CONTROL, 'needed_power', None), {})) >= family.num_seeds:
      found[task] = index
  return found


def needs_table(some: Mapping[str, Index], family: Family) -> Table:
  """Returns the table of the powers of the temperature that softmax needs.

  Args:
    some: from `measured`.
    family: from `effects.family_of`.
  """
  records = [_powers_record(task, index, family.tasks[task])
             for task, index in some.items()]
  columns = {
      'task': lambda r: in_words(r['task']),
      'at lengths': blank_without('power', _lengths_words),
      'power of n [95 %]': interval_cell('power', '.2f'),
      'power of log n [95 %]': interval_cell('power_of_log', '.2f'),
      'power of n in training [95 %]': interval_cell('power_in_training', '.2f'),
      'found': number_cell('found', '.1f'),
      'seeds': lambda r: (str(r['seeds']) if r['power_seeds'] == r['seeds'] else
                          f'{r["power_seeds"]} of {r["seeds"]}'),
  }
  note = (
      'Power: p and q if the least factor of the logits that gives the item asked for '
      'half of the weight grows as n^p or (log n)^q; means over seeds. Found: items '
      'asked for with the largest logit, in %, at the longest test length.'
  )
  more = (
      'Powers are slopes, for each model, of log median factor against log n and '
      'log log n, on sequences other than those tested, with their answers known. They '
      'are fitted at the test lengths from the longest training length on at which the '
      'median of every model is neither 0 nor infinite and at least '
      f'{_LEAST_FOUND} % of the items asked for have the largest logit in every model: '
      'items that no factor finds count as infinite, so with more of them the median '
      'says less about the others. In training: at three training lengths. Intervals '
      'are over models, uncorrected, and do not hold the choice of lengths. Seeds: '
      'those with such a median at two test lengths or more.'
  )
  return Table('needs', 'The temperature that softmax needs', columns, records, note,
               more=more)


def gains_table(some: Mapping[str, Index], family: Family) -> Table:
  """Returns the table of what laws of temperature gain at inference.

  Args:
    some: from `measured`.
    family: from `effects.family_of`.
  """
  records = [_gains_record(task, index, family.tasks[task])
             for task, index in some.items()]
  columns = {
      'task': lambda r: in_words(r['task']),
      'p, q, p of training': lambda r: ', '.join(
          number(r[f'applied_{law}'], '.2f') for law in _POWERS),
      **{f'{label} [95 %]': blank_without(
          f'{law}_difference', difference_cell('.1f', f'{law}_'))
         for law, label in AT_INFERENCE.items()},
      'seeds': lambda r: str(r['seeds']),
  }
  note = (
      'Accuracy beyond training in points, with the logits of trained softmax models '
      'times (n / n₀)^p, (log n / log n₀)^q or adaptive temperature, less accuracy '
      'without. p and q: means of the powers of the models.'
  )
  more = (
      'n₀: the longest training length, up to which the laws of n change nothing. The '
      'powers are those of each model, fitted at all test lengths at which its median '
      'factor is neither 0 nor infinite, which differ between models, so their means '
      'may differ from those of the table `needs`. All laws but n^p of training and '
      'adaptive, published use answers at longer inputs, so they are not methods. A '
      'gain is shown if all seeds have it. Intervals are uncorrected.'
  )
  return Table('at_inference', 'What laws of temperature gain at inference', columns,
               records, note, more=more)


def _lengths_words(record: Record) -> str:
  """Returns the range of lengths that the powers are fitted at."""
  return f'{record["power_from"]:,} to {record["power_to"]:,}'


def _powers_record(task: str, index: Index, trained_up_to: int) -> Record:
  """Returns the row of a task in the table of powers."""
  longest = max(n for arm, metric, n in index
                if (arm, metric) == (CONTROL, 'found') and n is not None)
  found = index[CONTROL, 'found', longest].values()
  training = index[CONTROL, 'training_accuracy', None]
  return {'task': task, 'longest': longest, **_powers(index, trained_up_to),
          'found': 100 * float(np.mean([*found])),
          'training_accuracy': 100 * median_accuracy(training),
          'learned': has_learned(training),
          'seeds': len(index[CONTROL, 'needed_power', None])}


def _gains_record(task: str, index: Index, trained_up_to: int) -> Record:
  """Returns the row of a task in the table of gains."""
  seeds = len(index[CONTROL, 'needed_power', None])
  record: dict[str, Any] = {'task': task, 'seeds': seeds}
  for law, metric in _POWERS.items():
    powers = [x for x in index[CONTROL, metric, None].values() if math.isfinite(x)]
    record[f'applied_{law}'] = float(np.mean(powers)) if powers else math.nan
  for law in AT_INFERENCE:
    arm, test = f'{CONTROL}+{law}', None
    if any(key[:2] == (arm, 'accuracy') for key in index):  # else it was not measured
      changed = compare(index, arm, CONTROL, trained_up_to=trained_up_to)
      whole = len(changed.primary_differences) == seeds
      test = changed.primary if whole else None
    record |= difference(test, f'{law}_')
  return record


def _powers(index: Index, trained_up_to: int) -> dict[str, Any]:
  """Returns the powers, means over models, and the lengths at which they are fitted.

  Models with a median factor at fewer than two lengths from the longest training length
  on are left out; all others are fitted at the same lengths.
  """
  lengths, betas = plots.values(index, CONTROL, 'needed_temperature')
  sizes = np.array(lengths)
  far, near = sizes >= trained_up_to, sizes <= trained_up_to
  kept = _has_factor(betas)[:, far].sum(axis=1) >= 2
  betas = betas[kept]
  shared = _has_factor(betas).all(axis=0)
  used = shared & far & np.isin(sizes, _found_at(index, kept))
  log_n = np.log(sizes)
  record: dict[str, Any] = {
      'power_seeds': len(betas), 'power_from': min(sizes[used].tolist(), default=0),
      'power_to': max(sizes[used].tolist(), default=0)}
  for name, x, at in (('power', log_n, used), ('power_of_log', np.log(log_n), used),
                      ('power_in_training', log_n, shared & near)):
    known = len(betas) and at.sum() >= 2
    record |= interval_fields(name, mean_interval(np.polyfit(
        x[at], np.log(betas[:, at]).T, 1)[0]) if known else [math.nan] * 3)
  return record


def _found_at(index: Index, kept: np.ndarray) -> list[int]:
  """Returns the lengths at which each of some models [S] finds most of the items."""
  lengths, shares = plots.values(index, CONTROL, 'found')
  most = (100 * shares[kept] >= _LEAST_FOUND).all(axis=0)
  return [n for n, enough in zip(lengths, most, strict=True) if enough]


def _has_factor(betas: np.ndarray) -> np.ndarray:
  """Returns where a median factor is neither 0 nor infinite, [S, N] bool."""
  return np.isfinite(betas) & (betas > 0)


def needs_answer(records: Sequence[Record], gains: Sequence[Record]) -> list[str]:
  """Says how the temperature grows that softmax needs, and what it gains.

  Args:
    records: of the table `needs`. Tasks are left out whose power is not known, or
      whose training lengths were not learned.
    gains: of the table `at_inference`, of the same tasks.
  """
  said = []
  for r, gained in zip(records, gains, strict=True):
    if math.isnan(r['power']) or not r['learned']:
      continue
    said.append(
        f'On {in_words(r["task"])}, the temperature that softmax needs grows '
        f'from {_lengths_words(r)} items as n to the power '
        f'{number(r["power"], ".2f")} {_interval(r, "power", ".2f")}.'
        f'{_beyond_words(r)}{_gain_words(gained)}')
  return said


def _interval(record: Record, name: str, form: str) -> str:
  return interval_words(record[f'{name}_low'], record[f'{name}_high'], form)


def _beyond_words(record: Record) -> str:
  """Says why longer inputs have no part in the power; '' if all have."""
  if record['power_to'] == record['longest']:
    return ''
  return (f' With more items, fewer than {_LEAST_FOUND} % of those asked for have '
          f'the largest logit in some models; with {record["longest"]:,}, '
          f'{number(record["found"], ".1f")} % have it.')


def _gain_words(record: Record) -> str:
  """Says what n^p gains, fitted at test lengths and in training."""
  gains = [
      f'{number(record[f"{law}_difference"], "+.1f")} points '
      f'{_interval(record, f"{law}_ci", "+.1f")} with powers fitted at {words}, '
      f'{number(record[f"applied_{law}"], ".2f")} on average{more}'
      for law, words, more in (
          ('power', 'test lengths', ', which uses the answers, so it is not a method'),
          ('trained_power', 'training lengths alone', ''))
      if not math.isnan(record[f'{law}_difference'])]
  return (' At inference, n^p, 1 up to the training lengths, gains '
          f'{", and ".join(gains)}.' if gains else '')


def needs_figure(some: Mapping[str, Index], family: Family) -> Figure:
  """Draws the factor needed, and accuracy under the laws, by length; a row per task.

  Args:
    some: from `measured`, not empty.
    family: from `effects.family_of`.
  """
  drawn = plots.new(
      1.1 + 1.9 * len(some),
      'The temperature that softmax needs, and what it gains',
      'Left: least factor of the logits of softmax that gives the item asked for half '
      'of the weight, by number of items N, median over sequences, geometric mean over '
      'seeds where all have one. Right: accuracy of the same models with the factor '
      'of a law at inference, fitted to other sequences (where lines lie on each '
      'other, markers lie in each other), and how often the item asked for has the '
      'largest logit, which no factor changes; '
      f'{plots.over_seeds(family.num_seeds)}; training lengths are shaded.',
      plots.with_bands(family.words, family.num_seeds))
  panels = drawn.subplots(len(some), 2, squeeze=False)
  for (needed, gained), (task, index) in zip(panels, some.items(), strict=True):
    _needed(needed, index, family.tasks[task])
    _gained(gained, index)
    if task in family.chance:
      draw_chance(gained, family.chance[task], index)
    title = in_words(task)
    needed.set(title=title, ylabel='factor of the logits')
    gained.set(title=title, ylabel='accuracy (%)')
    for axes in (needed, gained):
      plots.length_axis(axes, family.tasks[task])
  plots.legend(drawn, panels.flat, 3)
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
  """Draws accuracy by length without and with laws, and what order allows.

  Laws may agree, so the markers of each are smaller than those before.
  """
  names = {CONTROL: 'softmax as it is'} | {
      f'{CONTROL}+{law}': f'with {label}' for law, label in AT_INFERENCE.items()
      if law != 'power_of_log'}  # nearly the same as n^p
  size = 7.6
  for (arm, label), look in zip(names.items(), plots.LOOKS, strict=False):
    lengths, table = plots.values(index, arm, 'accuracy')
    size -= 1.2
    if len(lengths) and np.isfinite(table).all():
      plots.draw(axes, lengths, 100 * table, *look, label)
      axes.lines[-1].set_markersize(size)
  tested, _ = plots.values(index, CONTROL, 'accuracy')
  found = {n: np.mean([*index[CONTROL, 'found', n].values()])
           for n in tested if (CONTROL, 'found', n) in index}
  axes.plot([*found], [100 * x for x in found.values()], color='black', linewidth=1.0,
            linestyle=(0, (4, 1.5, 1, 1.5)), label='largest logit', zorder=3)
