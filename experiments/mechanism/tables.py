"""Tables of interventions: what each restores beyond training. Runs without JAX."""

from collections.abc import Sequence
import functools
import math
from typing import Any

import numpy as np

from experiments.mechanism.figures import arms_of, INTERVENTIONS
from vvlen.reporting import plots
from vvlen.reporting.endpoints import (
  change,
  change_at_equal,
  compare,
  Comparison,
  CONTROL,
  LEARNED,
)
from vvlen.reporting.numbers import number, p_value
from vvlen.reporting.plots import ARMS
from vvlen.reporting.results import Index
from vvlen.reporting.tables import (
  blank_without,
  CellText,
  difference,
  difference_cell,
  left_out,
  p_of,
  Table,
)
from vvlen.statistics import by_holm, detectable_together, PairedTest


def table(index: Index, trained_up_to: int) -> Table:
  """Returns the table of what each intervention changes beyond training.

  Args:
    index: from `vvlen.reporting.results.index`.
    trained_up_to: the longest training length.

  Returns:
    A table with a row per arm and intervention: mean accuracy beyond the training
    lengths, and the percentage restored of the accuracy lost since the first length.
  """
  compared = {arm: _interventions(index, arm, trained_up_to) for arm in arms_of(index)}
  records = []
  for comparisons in compared.values():
    tests = [c.primary for c in comparisons.values()]
    records += [
        _restored(index, *each, test, detectable)
        for each, test, detectable in zip(
            comparisons.items(), by_holm(tests), detectable_together(tests),
            strict=True)
    ]
  columns = {
      'arm': lambda r: r['arm'],
      'attention output': lambda r: r['intervention'],
      'difference [95 %]': difference_cell('.2f'),
      'restored %': lambda r: number(r['restored_percent'], '.1f'),
      'unchanged': lambda r: number(r['control'], '.1f'),
      'changed': lambda r: number(r['treated'], '.1f'),
      'variance': lambda r: ' → '.join(
          number(r[f'variance_{which}'], '.2f') for which in ('control', 'treated')
      ),
      'p Holm': lambda r: p_value(r['p_holm']),
      'pairs': lambda r: str(r['pairs']),
      'smallest detectable': lambda r: number(r['smallest_detectable'], '.2f'),
  }
  every = [c for comparisons in compared.values() for c in comparisons.values()]
  note = (
      'Accuracy in %, mean over the lengths beyond training, of frozen models, paired '
      'over seeds. Restored: in % of what is lost from the shortest length on. '
      'Intervals and p: by Holm over the interventions of an arm.'
      f'{left_out(every)}{_not_learned(every)}'
  )
  more = (
      'Variance: of the output, the sum over its components, before and after the '
      'change, relative to that at the shortest length, geometric mean. p: paired '
      'two-sided t-test. Smallest detectable: with a '
      'power of 80 %, at 5 % divided by the number of interventions. undefined: all '
      'differences are equal, as where a norm undoes a rescaling.'
  )
  short = 'arm', 'difference [95 %]', 'restored %', 'attention output'
  return Table('mechanism', 'Accuracy restored by changes of the attention output',
               columns, records, note, short, more)


def _restored(
    index: Index, label: str, c: Comparison, test: PairedTest | None, detectable: float
) -> dict[str, Any]:
  """Returns the row of an arm with an intervention, compared with it as it is.

  Args:
    index: from `vvlen.reporting.results.index`.
    label: of the intervention.
    c: the comparison.
    test: of its primary endpoint, corrected.
    detectable: the smallest detectable difference.
  """
  treated, control = c.primary_means
  lost = float(c.control_mean[0]) - control
  return {
      'arm': ARMS[c.control][0], 'intervention': label, 'control': control,
      'treated': treated,
      **difference(test),
      'restored_percent': 100 * (treated - control) / lost if lost > 0 else math.nan,
      'variance_control': _variance(index, c.control, c.control),
      'variance_treated': _variance(index, c.control, c.treated),
      'p_holm': p_of(test), 'pairs': _pairs(c.primary),
      'smallest_detectable': detectable,
  }


def _not_learned(compared: Sequence[Comparison]) -> str:
  odd = {ARMS[c.control][0] for c in compared if c.control_mean[0] < 100 * LEARNED}
  if not odd:
    return ''
  return (' Not learned at the shortest length, so that nothing there is about length: '
          f'{", ".join(sorted(odd))}.')


def gain_table(index: Index, trained_up_to: int) -> Table:
  """Returns the table of each arm's gain if both arms have the same intervention.

  Args:
    index: from `vvlen.reporting.results.index`, with rows of the Baseline.
    trained_up_to: the longest training length.

  Returns:
    A table with a row per arm and intervention: the difference from the Baseline under
    that intervention, and how much it differs from that without intervention.
  """
  gains = {arm: _gains(index, arm, trained_up_to)
           for arm in arms_of(index) if arm != CONTROL}
  records = []
  for (before, *after) in gains.values():
    changes = [change(c, before) for c in after]
    records.append(_gain('unchanged', before, before, None, None))
    records += [
        _gain(label, c, before, *tests) for label, c, *tests in zip(
            _measured(index).values(), after, changes, by_holm(changes), strict=True)
    ]
  changed = functools.partial(blank_without, 'change_difference')
  at_equal = functools.partial(blank_without, 'equal_difference')
  columns: dict[str, CellText] = {
      'arm': lambda r: r['arm'],
      'attention output of both': lambda r: r['intervention'],
      'Baseline': lambda r: number(r['control'], '.1f'),
      'treated': lambda r: number(r['treated'], '.1f'),
      'difference [95 %]': difference_cell('.2f'),
      'p': lambda r: p_value(r['p']),
      'its change [95 %]': changed(difference_cell('.2f', 'change_')),
      'p Holm': changed(lambda r: p_value(r['change_p_holm'])),
      'at equal accuracy [95 %]': at_equal(difference_cell('.2f', 'equal_')),
      'its p': at_equal(lambda r: p_value(r['equal_p'])),
      'pairs': lambda r: str(r['pairs']),
  }
  note = (
      'Accuracy in %, mean over the lengths beyond training; treated minus Baseline, '
      'and that minus what it is without intervention, with its interval and p by '
      'Holm over the interventions of an arm; all else uncorrected. Paired over seeds.'
      f'{left_out(c for own in gains.values() for c in own)}'
  )
  more = (
      'An intervention may make all differences between models smaller. At equal '
      'accuracy: the difference that is left where, without intervention, there would '
      'be none, by least squares over the seeds; 0 if the intervention does the same '
      'to both arms.'
  )
  return Table('mechanism_gain', 'What is left of the gain under interventions',
               columns, records, note, more=more)


def _gains(index: Index, arm: str, trained_up_to: int) -> list[Comparison]:
  """Compares an arm with the Baseline: as they are, and under each intervention."""
  return [
      compare(index, arm + suffix, CONTROL + suffix, trained_up_to=trained_up_to)
      for suffix in ('', *(f'+{name}' for name in _measured(index)))
  ]


def _gain(
    label: str, c: Comparison, before: Comparison, test: PairedTest | None,
    corrected_test: PairedTest | None,
) -> dict[str, Any]:
  """Returns the row of a gain.

  Args:
    label: of the intervention.
    c: the gain under it.
    before: the gain without it.
    test: of the change; None for that without intervention.
    corrected_test: the same, corrected.
  """
  equal = test and change_at_equal(c, before)
  treated, control = c.primary_means
  return {
      'arm': ARMS[before.treated][0], 'intervention': label, 'control': control,
      'treated': treated, **difference(c.primary),
      'p': p_of(c.primary),
      **difference(corrected_test, 'change_'),
      'change_p_holm': p_of(corrected_test),
      **difference(equal, 'equal_'), 'equal_p': p_of(equal),
      'pairs': _pairs(c.primary),
  }


def length_table(index: Index, trained_up_to: int) -> Table:
  """Returns the table of what each intervention changes, by length."""
  compared = [
      (label, c) for arm in arms_of(index)
      for label, c in _interventions(index, arm, trained_up_to).items()
  ]
  records = [
      {
          'arm': ARMS[c.control][0], 'intervention': label, 'length': length,
          'control': float(control), 'treated': float(treated), **difference(test),
          'p_holm': p_of(test), 'pairs': _pairs(test),
      }
      for label, c in compared
      for length, control, treated, test in zip(
          c.lengths, c.control_mean, c.treated_mean, by_holm(c.by_length), strict=True)
  ]
  columns = {
      'arm': lambda r: r['arm'],
      'attention output': lambda r: r['intervention'],
      'N': lambda r: str(r['length']),
      'unchanged': lambda r: number(r['control'], '.1f'),
      'changed': lambda r: number(r['treated'], '.1f'),
      'difference [95 %]': difference_cell('.1f'),
      'p Holm': lambda r: p_value(r['p_holm']),
      'pairs': lambda r: str(r['pairs']),
  }
  note = (
      'Accuracy in %, paired over seeds. Intervals and p: by Holm over the lengths of '
      'an arm and an intervention; p undefined where all differences are equal.'
      f'{left_out(c for _, c in compared)}'
  )
  return Table('mechanism_by_length', 'Accuracy restored at each length', columns,
               records, note)


def _interventions(
    index: Index, arm: str, trained_up_to: int
) -> dict[str, Comparison]:
  """Returns {label: arm with an intervention, compared with it as it is}."""
  return {
      label: compare(index, f'{arm}+{name}', arm, trained_up_to=trained_up_to)
      for name, label in _measured(index).items()
  }


def _pairs(test: PairedTest | None) -> int:
  return test.num_pairs if test else 0


def _variance(index: Index, arm: str, changed: str) -> float:
  """Returns the geometric mean of an output's relative variance at longer lengths.

  Args:
    index: from `vvlen.reporting.results.index`.
    arm: the variance is relative to that of this arm at the shortest length.
    changed: the arm whose variance is returned: `arm`, or it with an intervention.
  """
  lengths, own = plots.values(index, arm, 'total_variance')
  if len(lengths) < 2:
    return math.nan
  _, values = plots.values(index, changed, 'total_variance')
  with np.errstate(divide='ignore', invalid='ignore'):
    return float(np.exp(np.nanmean(np.log(values[:, 1:] / own[:, :1]))))


def _measured(index: Index) -> dict[str, str]:
  """Returns {name: label} of the interventions that were measured."""
  suffixes = {arm.partition('+')[2] for arm, _, _ in index}
  return {name: label for name, (label, _, _) in INTERVENTIONS.items()
          if name in suffixes}
