"""Tables of tests by length: a block per comparison, and in it a row per length.

Runs without JAX.
"""

from collections.abc import Sequence

from experiments.length_generalization.comparisons import (
  name_of,
  paired_seeds,
  temperature_notes,
  values_of_test,
)
from vvlen.reporting.endpoints import Comparison
from vvlen.reporting.numbers import number, p_value
from vvlen.reporting.tables import difference, difference_cell, left_out, Table
from vvlen.statistics import by_holm


def by_length(
    name: str, title: str, comparisons: Sequence[Comparison], trained_up_to: int
) -> Table:
  """Makes a table with a block per comparison, and in it a row per length."""
  records = [
      {
          'comparison': name_of(c), 'length': length,
          **values_of_test(c.treated_mean[i], c.control_mean[i], c.by_length[i]),
          **difference(test), 'p_holm': float(c.holm_p[i]),
      }
      for c in comparisons
      for i, (length, test) in enumerate(
          zip(c.lengths, by_holm(c.by_length), strict=True))
  ]
  columns = {
      'comparison': lambda r: r['comparison'],
      'N': lambda r: str(r['length']),
      'control': lambda r: number(r['control'], '.1f'),
      'treated': lambda r: number(r['treated'], '.1f'),
      'difference [95 %]': difference_cell('.1f'),
      '% of control': lambda r: number(r['percent_of_control'], '+.1f'),
      'effect': lambda r: number(r['effect_size'], '+.2f'),
      'p Holm': lambda r: p_value(r['p_holm']),
      'smallest detectable': lambda r: number(r['smallest_detectable'], '.1f'),
  }
  note = (
      f'Accuracy in %, mean over {paired_seeds(comparisons)}; trained on at most '
      f'{trained_up_to} items. Differences: treated minus control, in points. p: '
      'paired two-sided t-test; it and the intervals are corrected by Holm over the '
      'lengths of a comparison.'
      f'{left_out(comparisons)}'
  )
  more = (
      'Effect: mean over standard deviation of the paired differences. Smallest '
      'detectable: the difference that this test would find with a power of 80 % at '
      'the 5 % level, uncorrected. undefined: all '
      f'differences are equal, or fewer than two pairs.{temperature_notes(comparisons)}'
  )
  return Table(name, title, columns, records, note, more=more)
