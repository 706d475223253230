"""Tables of a grid of settings. Runs without JAX."""

from collections.abc import Callable, Mapping, Sequence
import math
from typing import Any

from experiments.sensitivity.cells import Cell, CellSetting, in_words, MECHANISM
from experiments.sensitivity.tuned import Tuned
from vvlen.reporting.endpoints import CONTROL, LEARNED, TREATED
from vvlen.reporting.numbers import alike, number, p_value
from vvlen.reporting.plots import ARMS
from vvlen.reporting.tables import (
  blank_without,
  cell_if,
  CellText,
  difference,
  difference_cell,
  left_out,
  p_of,
  Record,
  Table,
)

_DETECTABLE = (
    'Smallest detectable: with a power of 80 %, at the level of 5 % divided by the '
    'number of tests that are corrected together, which are those with a *; 5 % '
    'elsewhere.'
)


def table(cells: Sequence[Cell], settings: Mapping[str, CellSetting]) -> Table:
  """Returns the table of primary endpoints, a row per cell, step and arm.

  Those that are tested together come first, the largest difference at the top.
  """
  columns = _columns(settings, {
      'difference [95 %]': cell_if(
          _learned, _interval(''), lambda r: number(r['difference'], '+.2f')),
      'p': cell_if(_learned, _p(''), 'not learned'),
      'Baseline': lambda r: number(r['control'], '.1f'),
      'treated': lambda r: number(r['treated'], '.1f'),
      'pairs': lambda r: str(r['pairs']),
      'smallest detectable': lambda r: number(r['smallest_detectable'], '.1f'),
  })
  tested = _tested(cells)
  note = (
      'Mean accuracy in % beyond the training lengths, paired over seeds; treated '
      f'minus Baseline. {_corrected(tested)}'
      f'{left_out(cell.comparison for cell in cells)}'
  )
  steps = tested or [cell.step for cell in cells]
  if odd := {in_words(settings, c.name)
             for c in cells if c.step in steps and not c.learned}:
    note += (' Not learned at the training lengths by both arms, so that nothing there '
             f'is about length, and not tested: {"; ".join(sorted(odd))}.')
  more = (f'p: paired two-sided t-test. {_DETECTABLE} The CSV has the columns of the '
          'tables sensitivity_change and sensitivity_measured too.')
  records = sorted(_records(cells), key=lambda r: (
      (0, -r['difference']) if r['p_holm'] >= 0 else (1, 0)))
  short = 'difference [95 %]', 'p', 'steps', 'arm', 'setting'
  return Table('sensitivity', 'Gain over the Baseline in every setting', columns,
               records, note, short, more)


def change_table(cells: Sequence[Cell], settings: Mapping[str, CellSetting]) -> Table:
  """Returns the table of how each gain differs from that of another cell."""
  records = [
      {'against': settings.get(r['cell'], CellSetting()).against, **r}
      for r in _records(cells) if not math.isnan(r['change_difference'])
  ]
  columns = _columns(settings, {
      'compared with': lambda r: in_words(settings, r['against']),
      'its change [95 %]': _interval('change_'),
      'its p': _p('change_'),
      'smallest detectable': lambda r: number(r['change_smallest_detectable'], '.1f'),
  })
  note = (
      'The gain in a setting minus that in the one it is compared with, at the same '
      f'step, in points; paired over seeds. {_corrected(_tested(cells))}'
  )
  more = (f'Gains are of mean accuracy beyond the training lengths in both settings. '
          f'{_DETECTABLE}')
  return Table('sensitivity_change', 'Change of the gain from setting to setting',
               columns, _only(records, 'against', 'change_'), note, more=more)


def measured_table(cells: Sequence[Cell], settings: Mapping[str, CellSetting]) -> Table:
  """Returns the table of what may explain the gain in each setting."""
  both = lambda metric: blank_without(f'{metric}_control', lambda r: (
      ', '.join(alike([r[f'{metric}_control'], r[f'{metric}_treated']], 3))))
  columns = _columns(settings, {
      'in training': both('training_accuracy'),
      'weight of target': both('target_weight'),
      'output norm': both('output_norm'),
      'distance': both('input_distance'),
  })
  note = (
      'Baseline, treated. In training: median accuracy at the training lengths in %. '
      'All else: means over the lengths beyond training, of the attention weight of '
      'the target and of the attention output.'
  )
  more = (
      'Output norm: of the attention output. Distance: of the normalized output, '
      'before any output projection, from that at the longest training length (0 if '
      'nothing moves, 1 if all variance vanishes).'
  )
  records = _only(_records(cells), 'training_accuracy_', *MECHANISM)
  return Table('sensitivity_measured', 'What was measured in every setting', columns,
               records, note, more=more)


def tuned_table(
    tuned: Mapping[str, Tuned], settings: Mapping[str, CellSetting]
) -> Table:
  """Returns the table of gains with each arm at its best learning rate.

  Args:
    tuned: {name of a group of learning rates: result of `tune`}.
    settings: of the cells.
  """
  records = [
      {
          'group': name, 'step': t.step, 'rates': ' '.join(t.rates),
          'control_rate': t.chosen[CONTROL], 'control_sure': t.sure[CONTROL],
          'treated_rate': t.chosen[TREATED], 'treated_sure': t.sure[TREATED],
          'control': t.means[1], 'treated': t.means[0], 'difference': t.mean_difference,
          'ci_low': t.ci_low, 'ci_high': t.ci_high, 'seeds': t.num_seeds,
      }
      for name, t in tuned.items()
  ]
  words = lambda name: in_words(settings, name)
  rate = lambda arm: lambda r: (
      f'{words(r[f"{arm}_rate"])} ({number(100 * r[f"{arm}_sure"], ".0f")} %)'
  )
  columns = {
      'rates of': lambda r: words(r['group']),
      'steps': lambda r: f'{r["step"]:,}',
      'of the Baseline': rate('control'),
      'of LN': rate('treated'),
      'Baseline': lambda r: number(r['control'], '.1f'),
      'LN': lambda r: number(r['treated'], '.1f'),
      'difference [95 %]': difference_cell('.2f'),
      'seeds': lambda r: str(r['seeds']),
  }
  told = ' '.join(f'In row {words(name)}: {"; ".join(map(words, t.rates))}.'
                  for name, t in tuned.items())
  note = (
      'Mean accuracy in % beyond the training lengths, each arm in the setting with '
      'the lowest loss on the last batches of training; in brackets, how often that is '
      'the best one in samples of seeds. Intervals: bootstrap over seeds.'
  )
  more = (
      'The settings of a row differ in their learning rate alone. Bootstrap: 10,000 '
      f'samples of seeds; in each the best setting is chosen again. {told}'
  )
  return Table('tuned_rates', 'Gain where each arm has its best learning rate', columns,
               records, note, more=more)


def _learned(record: Record) -> bool:
  """Whether both arms of a record have learned the training lengths."""
  return all(record[f'training_accuracy_{arm}'] >= 100 * LEARNED
             for arm in ('control', 'treated'))


def _columns(
    settings: Mapping[str, CellSetting], more: Mapping[str, CellText]
) -> dict[str, CellText]:
  """Returns columns: setting, steps and arm, those of `more`, and the cell's name."""
  return {
      'setting': lambda r: in_words(settings, r['cell']),
      'steps': lambda r: f'{r["step"]:,}',
      'arm': lambda r: r['arm'],
      **more,
      'cell': lambda r: r['cell'],
  }


def _tested(cells: Sequence[Cell]) -> list[int]:
  """Returns the steps at which cells are tested together."""
  return sorted({cell.step for cell in cells if cell.in_family})


def _corrected(steps: Sequence[int]) -> str:
  """Returns the sentence that explains the * of corrected tests."""
  return ('*: p, and the interval beside it, are corrected by Holm over the cells, of '
          f'LN after {", ".join(f"{step:,}" for step in steps)} steps; all else is '
          'uncorrected.')


def _in_family(prefix: str) -> Callable[[Record], bool]:
  """Returns the function that tells whether the test of a record is corrected."""
  return lambda r: r[f'{prefix}p_holm'] >= 0  # nan for others


def _interval(prefix: str) -> CellText:
  """Returns the cell of a difference; tests of the family show it corrected."""
  return cell_if(_in_family(prefix), difference_cell('.2f', f'{prefix}holm_'),
                 difference_cell('.2f', prefix))


def _p(prefix: str) -> CellText:
  """Returns the cell of a p-value; tests of the family show it corrected, with a *."""
  return cell_if(_in_family(prefix), lambda r: f'{p_value(r[f"{prefix}p_holm"])} *',
                 lambda r: p_value(r[f'{prefix}p']))


def _only(records: Sequence[Record], *fields: str) -> list[Record]:
  """Returns records with cell, step, arm, and what begins with a name in `fields`."""
  begin = ('cell', 'step', 'arm', *fields)
  return [{name: x for name, x in r.items() if name.startswith(begin)} for r in records]


def _records(cells: Sequence[Cell]) -> list[dict[str, Any]]:
  """Returns all that is known of each cell, step and arm."""
  records = []
  nan = float('nan')
  for cell in cells:
    c, test, changed = cell.comparison, cell.comparison.primary, cell.change
    treated, control = c.primary_means
    records.append({
        'cell': cell.name, 'step': cell.step, 'arm': ARMS[c.treated][0],
        'control': control, 'treated': treated,
        **difference(test), 'p': p_of(test),
        **difference(cell.holm, 'holm_'), 'p_holm': cell.holm.p if cell.holm else nan,
        **difference(changed, 'change_'),
        'change_p': p_of(changed),
        **difference(cell.holm_change, 'change_holm_'),
        'change_p_holm': cell.holm_change.p if cell.holm_change else nan,
        'pairs': test.num_pairs if test else 0,
        'smallest_detectable': cell.detectable,
        'change_smallest_detectable': cell.detectable_change,
        'training_accuracy_control': 100 * cell.training_accuracy[0],
        'training_accuracy_treated': 100 * cell.training_accuracy[1],
    } | {
        f'{metric}_{which}': cell.mechanism[metric, arm]
        for metric in MECHANISM
        for which, arm in (('control', c.control), ('treated', c.treated))
    } | {
        f'{metric}_{field}': value
        for metric in MECHANISM
        for field, value in cell.explained[metric]._asdict().items()
    })
  return records
