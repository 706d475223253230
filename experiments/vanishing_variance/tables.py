"""The tables of a family of runs. Runs without JAX."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

import numpy as np

from experiments.vanishing_variance import effects
from experiments.vanishing_variance.answer import NOT_RUN
from experiments.vanishing_variance.effects import Claim, Contrast, Effect, FamilyCell
from vvlen.reporting.numbers import number
from vvlen.reporting.tables import (
    blank_without,
    cell_if,
    CellText,
    difference,
    difference_cell,
    interval_cell,
    left_out,
    number_cell,
    p_cell,
    pair_cell,
    Table,
)
from vvlen.statistics import at_level, PairedTest, Ratio, spread

# (cell, suffix of the arms) -> the effect after each step
Effects = Mapping[tuple[str, str], Sequence[Effect]]
# Suffix of the arms -> name of their columns.
SUFFIXES = {
    '': 'plain', '+averaged': 'averaged', '+adaptive': 'adaptive',
    '+averaged+adaptive': 'averaged_adaptive',
}
_NAN = float('nan')


def setting(cell: FamilyCell) -> str:
  """Describes the setting of a cell in words."""
  decay = 'no weight decay'
  if cell.l2:
    on = 'all parameters' if cell.l2_on == 'all' else 'kernels'
    decay = f'L2 {cell.l2:g} on {on}'
  rate = f'{cell.learning_rate:g}' + (' to 0' if cell.decays else '')
  more = ', output projection' if cell.output_projection else ''
  lengths = f', lengths growing to {cell.trained_up_to}' if cell.grows else ''
  return f'{cell.task}{lengths}, {decay}, rate {rate}{more}'


def last_effect(found: Effects, cell: FamilyCell) -> Effect | None:
  """Returns the effect in a cell after its last step, None if it is not measured."""
  measured = found.get((cell.name, ''), ())
  return measured[-1] if measured and measured[-1].step == cell.steps[-1] else None


def verdict_words(effect: Effect | None, claim: Claim) -> str:
  """Describes the verdict on a cell in words."""
  if effect is None:
    return NOT_RUN
  points = f'{claim.equivalence:g} point{"s" if claim.equivalence != 1 else ""}'
  words = {
      effects.AHEAD: 'LN ahead', effects.BEHIND: 'LN behind',
      effects.AHEAD_LITTLE: f'LN ahead, by less than {points}',
      effects.BEHIND_LITTLE: f'LN behind, by less than {points}',
      effects.EQUAL: f'equal within {points}', effects.OPEN: 'no difference found',
      'not finished': f'{len(effect.comparison.primary_differences)} of '
                      f'{effect.cell.num_seeds} seeds'
                      + ('' if effect.learned else ', not learned'),
  }
  return words.get(effect.verdict, effect.verdict)


def main_table(cells: Mapping[str, FamilyCell], found: Effects, claim: Claim) -> Table:
  """Returns the table of primary endpoints after the last step, a row per cell."""
  records, comparisons = [], []
  for cell in cells.values():
    last = last_effect(found, cell)
    record: dict[str, Any] = {
        'cell': cell.name, 'setting': setting(cell), 'steps': cell.steps[-1],
        'verdict': verdict_words(last, claim), 'l2': cell.l2,
    }
    records.append(record | _numbers(last))
    if last is not None:
      comparisons.append(last.comparison)
  columns = {
      'cell': lambda r: r['cell'],
      'steps': lambda r: f'{r["steps"]:,}',
      'Baseline': number_cell('control', '.1f'),
      'LN − Baseline [95 %]': blank_without('difference', difference_cell('.2f')),
      'verdict': lambda r: r['verdict'],
      'p': p_cell('p'),
      'seeds': lambda r: str(r['seeds'] or ''),
      'spread': number_cell('spread', '.1f'),
      'power': blank_without('power', lambda r: number(100 * r['power'], '.0f')),
      'setting': lambda r: r['setting'],
  }
  longest = max((n for e in comparisons for n in e.lengths), default=None)
  lengths = 'the test lengths beyond the training lengths' + (
      f', up to {longest:,}' if longest else '')
  note = (
      f'Mean accuracy in % over {lengths}; LN minus Baseline in points, paired over '
      f'seeds. Intervals and p are corrected over the {claim.num_tests} cells '
      f'(Bonferroni).{left_out(comparisons)}'
  )
  more = (
      'Family, seeds and endpoint were fixed before the first run. Spread: standard '
      'deviation of the difference over seeds. Power: how often, in %, a difference of '
      f'{claim.equivalence:g} point would be found.'
  )
  short = 'LN − Baseline [95 %]', 'verdict', 'setting'
  return Table('verdicts', 'Does LayerNorm after attention help at longer inputs?',
               columns, records, note, short, more)


def _numbers(effect: Effect | None) -> dict[str, Any]:
  """Returns the numbers of an effect, nan where undefined."""
  # Accuracies of models that have not learned say nothing about LN.
  learned = effect if effect and effect.learned else None
  test = learned.corrected if learned else None
  treated, control = effect.comparison.primary_means if effect else (_NAN, _NAN)
  return {
      'control': control, 'treated': treated,
      # No p while seeds are missing: it must not decide whether they are run.
      **difference(test), 'p': test.p if effect and effect.complete and test else _NAN,
      'p_uncorrected':
          learned.test.p if learned and learned.complete and learned.test else _NAN,
      'seeds': effect.test.num_pairs if effect and effect.test else 0,
      'spread': spread(learned.test) if learned and learned.test else _NAN,
      'power': learned.power if learned else _NAN,
      'smallest_detectable': learned.detectable if learned else _NAN,
      'training_accuracy_control':
          100 * effect.training_accuracy[0] if effect else _NAN,
      'training_accuracy_treated':
          100 * effect.training_accuracy[1] if effect else _NAN,
  }


def along_table(cells: Mapping[str, FamilyCell], found: Effects) -> Table:
  """Returns the table of effects by step: plain, averaged, adaptive temperature."""
  records = []
  for cell in cells.values():
    for plain in found.get((cell.name, ''), ()):
      record: dict[str, Any] = {'cell': cell.name, 'step': plain.step}
      for suffix, name in SUFFIXES.items():
        other = next((e for e in found.get((cell.name, suffix), ())
                      if e.step == plain.step), None)
        control = other.comparison.primary_means[1] if other else _NAN
        record |= {f'control_{name}': control,
                   **difference(other.test if other else None, f'{name}_')}
      record |= {
          'seeds': plain.test.num_pairs if plain.test else 0,
          'training_accuracy_control': 100 * plain.training_accuracy[0],
          'training_accuracy_treated': 100 * plain.training_accuracy[1],
      }
      records.append(record)
  columns: dict[str, Any] = {
      'cell': lambda r: r['cell'], 'steps': lambda r: f'{r["step"]:,}',
  }
  for name, title in (('plain', 'as they are'), ('averaged', 'averaged'),
                      ('adaptive', 'adaptive temperature')):
    columns[f'Baseline, {title}'] = number_cell(f'control_{name}', '.1f')
    columns[f'LN − Baseline, {title}'] = blank_without(
        f'{name}_difference', difference_cell('.2f', f'{name}_'))
  columns['seeds'] = lambda r: str(r['seeds'])
  columns['in training'] = lambda r: (
      f'{r["training_accuracy_control"]:.1f}, {r["training_accuracy_treated"]:.1f}'
  )
  note = (
      'Mean accuracy in % beyond the training lengths; differences in points with 95 % '
      'intervals, uncorrected.'
  )
  more = (
      'Averaged: the mean of the weights over the last tenth of the steps. In '
      'training: median accuracy at the training lengths over the last tenth of the '
      'steps, Baseline and LN.'
  )
  return Table('along_training', 'The effect of LN along training', columns, records,
               note, more=more)


def contrast_table(
    tests: Mapping[str, Sequence[tuple[Contrast, PairedTest | None]]], level: float
) -> Table:
  """Returns the table of what changes the effect of LN, a row per contrast.

  Args:
    tests: {suffix of the arms: (contrast, its test) pairs}, the same contrasts for all.
    level: of a single test, corrected over the contrasts.
  """
  records, count = [], len(next(iter(tests.values())))
  for row in zip(*tests.values(), strict=True):
    contrast = row[0][0]
    record: dict[str, Any] = {'contrast': contrast.name, 'unit': contrast.unit}
    for suffix, (_, test) in zip(tests, row, strict=True):
      name = SUFFIXES[suffix]
      wide = at_level(test, level) if test and np.isfinite(test.t) else None
      record |= {
          **difference(wide, f'{name}_'),
          f'{name}_p': min(1.0, test.p * count) if wide and test else _NAN,
          f'{name}_seeds': test.num_pairs if test else 0,
      }
    records.append(record)
  columns: dict[str, Any] = {
      'what changes the effect of LN': lambda r: r['contrast'],
      'unit': lambda r: r['unit'],
  }
  for suffix in tests:
    name, title = SUFFIXES[suffix], 'averaged' if suffix else 'as they are'
    columns[f'{title} [95 %]'] = _contrast_cell(name)
    columns[f'p, {title}'] = p_cell(f'{name}_p')
  columns['seeds'] = lambda r: str(r['plain_seeds'] or '')
  note = (
      'Changes of LN − Baseline, in points of mean accuracy beyond the training '
      'lengths, for weights as they are and averaged over the last tenth of the steps. '
      f'Intervals and p are corrected over the {len(records)} rows (Bonferroni).'
  )
  more = (
      'Changes are linear combinations of the differences of one seed, means over the '
      'seeds that all cells share, with intervals of Student\'s t. Twice the steps: '
      'the slope of a least-squares line in the logarithm of the steps. Lookup, and '
      'growing lengths, are trained for 20,000 steps, retrieval with a decaying rate '
      'for 100,000.'
  )
  return Table('what_changes_it', 'What changes the effect of LN', columns, records,
               note, more=more)


def _contrast_cell(name: str) -> CellText:
  """Returns the cell of a contrast that may have no test."""
  return cell_if(lambda r: not math.isnan(r[f'{name}_difference']),
                 difference_cell('.2f', f'{name}_'), 'no verdict')


def averaging_table(found: Effects) -> Table:
  """Returns the table of what averaging the weights changes, a row per cell."""
  records = []
  for (name, suffix), plain in found.items():
    averaged = found.get((name, '+averaged'), ())
    if suffix or not plain or not averaged or plain[-1].step != averaged[-1].step:
      continue
    one, other = averaged[-1], plain[-1]
    ratio: Ratio = effects.spread_ratio(one, other)
    records.append({
        'cell': name, 'step': other.step,
        'control': other.comparison.primary_means[1],
        'control_averaged': one.comparison.primary_means[1],
        'treated': other.comparison.primary_means[0],
        'treated_averaged': one.comparison.primary_means[0],
        **difference(effects.change(one, other), 'change_'),
        'ratio': ratio.ratio, 'ratio_low': ratio.ci_low, 'ratio_high': ratio.ci_high,
    })
  columns = {
      'cell': lambda r: r['cell'], 'steps': lambda r: f'{r["step"]:,}',
      'Baseline': pair_cell('control', 'control_averaged', '.1f'),
      'LN': pair_cell('treated', 'treated_averaged', '.1f'),
      'change of LN − Baseline [95 %]': blank_without(
          'change_difference', difference_cell('.2f', 'change_')),
      'spread, as a share [95 %]': blank_without(
          'ratio', interval_cell('ratio', '.2f')),
  }
  note = (
      'Mean accuracy in % beyond the training lengths, of the weights as they are → '
      'averaged over the last tenth of the steps. Intervals are uncorrected.'
  )
  more = (
      'Spread: standard deviation over seeds of LN − Baseline with averaged weights, '
      'as a share of that with weights as they are, with Pitman\'s interval.'
  )
  return Table('averaged_weights', 'What averaging the weights changes', columns,
               records, note, more=more)
