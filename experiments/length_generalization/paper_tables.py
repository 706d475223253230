"""Tables in the form of the paper: a row per model, a column per length.

Runs without JAX.
"""

from collections.abc import Callable, Iterable, Sequence
import functools
import math
from typing import Any

from experiments.length_generalization.comparisons import (
  chance_note,
  name_of,
  paired_seeds,
  temperature_notes,
)
from vvlen.reporting.endpoints import Comparison
from vvlen.reporting.numbers import number, p_value
from vvlen.reporting.tables import CellText, Table

# A row of a table with a column per length: its label, its values, and their text.
ModelRow = tuple[str, Iterable[float], Callable[[float], str]]


def accuracy_by_model(
    name: str, title: str, comparisons: Sequence[Comparison], chance: float | None
) -> Table:
  """Makes the table in the form of the paper: a row per model, a column per length.

  Args:
    name: of the table.
    title: of the table.
    comparisons: of LN with the Baseline, at one or more temperatures.
    chance: as for `make_tables`.
  """
  percent = functools.partial(number, form='.1f')
  rows: list[ModelRow] = []
  for c in comparisons:
    adaptation = c.treated.partition('+')[2]
    words = f', {adaptation}' if adaptation else ''
    rows += [(f'Baseline{words}', c.control_mean, percent),
             (f'LN{words}', c.treated_mean, percent),
             (f'p{words}', _p_by_length(c), p_value)]
  records, columns = _wide(rows, comparisons[0].lengths, 'accuracy')
  note = (f'Mean over {paired_seeds(comparisons)}; p: paired two-sided t-test, uncorrected.'
          f'{chance_note(chance)}')
  more = ('Differences with intervals and corrected p are in the table of accuracy by '
          'length.'
          f'{temperature_notes(comparisons)}')
  return Table(name, title, columns, records, note, more=more)


def gain_by_model(
    name: str, title: str, comparisons: Sequence[Comparison]
) -> Table:
  """Makes the table of gains in the form of the paper, as `_by_model`."""
  points = functools.partial(number, form='+.1f')
  rows: list[ModelRow] = []
  for c in comparisons:
    gain = [a - b for a, b in zip(c.treated_mean, c.control_mean, strict=True)]
    rows += [(name_of(c), gain, points), ('p', _p_by_length(c), p_value)]
  records, columns = _wide(rows, comparisons[0].lengths, 'gain')
  note = f'Mean over {paired_seeds(comparisons)}; p: paired two-sided t-test, uncorrected.'
  more = 'Intervals and corrected p are in the table of gains by length.'
  return Table(name, title, columns, records, note, more=more)


def _wide(
    rows: Sequence[ModelRow], lengths: Sequence[int], name: str
) -> tuple[list[dict[str, Any]], dict[str, CellText]]:
  """Returns the records and columns of a table with a column per length.

  Args:
    rows: of models and of p-values.
    lengths: of the columns.
    name: what rows of models hold, such as 'accuracy'.
  """
  texts = {label: text for label, _, text in rows}
  records = [
      {'model': label} | {f'{name}_or_p_{n}': float(x)
                          for n, x in zip(lengths, values, strict=True)}
      for label, values, _ in rows
  ]

  def cell(field: str) -> CellText:
    return lambda r: texts[r['model']](r[field])

  return records, {'N': lambda r: r['model']} | {
      str(n): cell(f'{name}_or_p_{n}') for n in lengths}


def _p_by_length(comparison: Comparison) -> list[float]:
  return [math.nan if test is None else test.p for test in comparison.by_length]
