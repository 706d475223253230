"""The table of the primary endpoint: mean accuracy beyond the training lengths.

Runs without JAX.
"""

from collections.abc import Mapping, Sequence
import functools
import itertools
import math
from typing import Any

from experiments.length_generalization.answer import NOT_LEARNED
from experiments.length_generalization.comparisons import (
  chance_note,
  name_of,
  paired_seeds,
  temperature_notes,
  values_of_test,
)
from vvlen.reporting.endpoints import Comparison, LEARNED
from vvlen.reporting.numbers import number, p_value
from vvlen.reporting.tables import (
  cell_if,
  CellText,
  difference_cell,
  left_out,
  Record,
  Table,
)

FEW_PAIRS = 20


def primary_endpoint(
    comparisons: Sequence[Comparison], trained_up_to: int,
    learned: Mapping[str, float], chance: float | None,
) -> Table:
  """Makes the table of the primary endpoint.

  Args:
    comparisons: of the rows.
    trained_up_to: the longest training length.
    learned: {arm: median accuracy at the training lengths}.
    chance: as for `make_tables`.
  """
  records = [_record(c, learned) for c in comparisons]
  beyond = [n for n in comparisons[0].lengths if n > trained_up_to]
  note = (
      f'Mean accuracy over N = {_span(beyond)}, in %, paired over '
      f'{paired_seeds(comparisons)}. LN − Baseline is primary, all else secondary and '
      f'uncorrected.{chance_note(chance)}{_few_note(records)}'
      f'{_not_learned_note(records)}{left_out(comparisons)}'
  )
  more = (
      'The primary endpoint is the same for every run. p: paired two-sided t-test. '
      'Smallest detectable: the difference, in points, that this number of pairs with '
      'this spread finds with a power of 80 % at the 5 % level. Effect: mean over '
      'standard deviation of the paired differences. Treated ahead: the pairs in which '
      f'the treated arm is ahead.{temperature_notes(comparisons)}'
  )
  title = 'Primary endpoint. Mean accuracy beyond the training lengths'
  short = 'comparison', 'difference [95 %]', 'p', 'at 5 %'
  return Table('primary_endpoint', title, _columns(), records, note, short, more)


def _record(c: Comparison, learned: Mapping[str, float]) -> dict[str, Any]:
  """Returns the row of a comparison, with a verdict if both arms have learned."""
  treated, control = c.primary_means
  values = values_of_test(treated, control, c.primary)
  arms = (name.partition('+')[0] for name in (c.treated, c.control))
  both = all(learned.get(arm, 1.0) >= LEARNED for arm in arms)
  return {
      'comparison': name_of(c), **values,
      'treated_ahead': sum(d > 0 for d in c.primary_differences.values()),
      'seeds': len(c.primary_differences),
      'at_5_percent': _verdict(values['p'], values['difference']) if both
                      else NOT_LEARNED,
  }


def _columns() -> dict[str, CellText]:
  """Returns the columns; a record of arms that have not learned shows no test."""
  if_learned = functools.partial(cell_if, _has_learned)
  return {
      'comparison': lambda r: r['comparison'],
      'control': lambda r: number(r['control'], '.2f'),
      'treated': lambda r: number(r['treated'], '.2f'),
      'difference [95 %]': difference_cell('.2f', interval_if=_has_learned),
      'p': if_learned(lambda r: p_value(r['p'])),
      'at 5 %': lambda r: r['at_5_percent'],
      'smallest detectable': if_learned(
          lambda r: number(r['smallest_detectable'], '.2f')),
      'effect': if_learned(lambda r: number(r['effect_size'], '+.2f')),
      't': if_learned(lambda r: number(r['t'], '+.2f')),
      'treated ahead': lambda r: f'{r["treated_ahead"]} of {r["seeds"]}',
  }


def _has_learned(record: Record) -> bool:
  return record['at_5_percent'] != NOT_LEARNED


def _verdict(p: float, difference: float) -> str:
  """Returns what a test at the 5 % level has found."""
  if math.isnan(p):
    return 'undefined'
  if p >= 0.05:
    return 'no difference found'
  return 'ahead' if difference > 0 else 'behind'


def _few_note(records: Sequence[Record]) -> str:
  fewest = min(r['pairs'] for r in records)
  if fewest >= FEW_PAIRS:
    return ''
  return (f' {fewest} pairs are few: differences much below the smallest detectable '
          'one would go unseen.')


def _not_learned_note(records: Sequence[Record]) -> str:
  if all(map(_has_learned, records)):
    return ''
  return (' Not learned: the median accuracy of an arm at the training lengths is '
          f'below {100 * LEARNED:.0f} %, so nothing there is about length, and no '
          'test is shown.')


def _span(lengths: Sequence[int]) -> str:
  """Returns '32 to 128' where lengths double, and '16, 64, 256' where they do not."""
  if all(b == 2 * a for a, b in itertools.pairwise(lengths)):
    return f'{lengths[0]} to {lengths[-1]}'
  return ', '.join(map(str, lengths))
