"""Tables in the form of the paper: a row per model, a column per length.

Runs without JAX.
"""

from collections.abc import Callable, Iterable, Sequence
import functools
import math
from typing import Any, NamedTuple

from experiments.length_generalization.comparisons import (
  chance_note,
  name_of,
  paired_seeds,
  temperature_note,
  temperature_notes,
)
from vvlen.reporting.endpoints import Comparison
from vvlen.reporting.numbers import number, p_value
from vvlen.reporting.tables import CellText, Table


class Line(NamedTuple):
  """A row of such a table."""

  model: str  # or the name of a test
  values: Iterable[float]  # one for each length
  text: Callable[[float], str]  # how a value is written


def accuracy_by_model(
    name: str, title: str, comparisons: Sequence[Comparison], chance: float | None
) -> Table:
  """Makes the table of accuracy: for each comparison two models and their p-values.

  Args:
    name: of the table.
    title: of the table.
    comparisons: of LN with the Baseline, at one or more temperatures.
    chance: as for `make_tables`.
  """
  percent = functools.partial(number, form='.1f')
  lines = []
  for c in comparisons:
    adaptation = c.treated.partition('+')[2]
    words = f', {adaptation}' if adaptation else ''
    lines += [Line(f'Baseline{words}', c.control_mean, percent),
              Line(f'LN{words}', c.treated_mean, percent),
              Line(f'p{words}', _p_by_length(c), p_value)]
  records, columns = _wide(lines, comparisons[0].lengths, 'accuracy')
  more = ('Differences with intervals and corrected p are in the table of accuracy by '
          f'length.{temperature_notes(comparisons)}')
  return Table(name, title, columns, records,
               f'{_note(comparisons)}{chance_note(chance)}'
               f'{temperature_note(comparisons)}', more=more)


def gain_by_model(
    name: str, title: str, comparisons: Sequence[Comparison]
) -> Table:
  """Makes the table of gains: for each comparison a difference and its p-values."""
  points = functools.partial(number, form='+.1f')
  lines = []
  for c in comparisons:
    gain = [a - b for a, b in zip(c.treated_mean, c.control_mean, strict=True)]
    lines += [Line(name_of(c), gain, points), Line('p', _p_by_length(c), p_value)]
  records, columns = _wide(lines, comparisons[0].lengths, 'gain')
  more = 'Intervals and corrected p are in the table of gains by length.'
  return Table(name, title, columns, records, _note(comparisons), more=more)


def _wide(
    lines: Sequence[Line], lengths: Sequence[int], name: str
) -> tuple[list[dict[str, Any]], dict[str, CellText]]:
  """Returns the records and columns of a table with a column per length.

  Args:
    lines: one for each row.
    lengths: of the columns.
    name: what lines of models hold, such as 'accuracy'.
  """
  fields = {n: f'{name}_or_p_{n}' for n in lengths}
  texts = {line.model: line.text for line in lines}

  def cell(field: str) -> CellText:
    return lambda r: texts[r['model']](r[field])

  records = [
      {'model': line.model} | {field: float(x) for field, x in zip(
          fields.values(), line.values, strict=True)}
      for line in lines
  ]
  columns = {str(n): cell(field) for n, field in fields.items()}
  return records, {'N': lambda r: r['model']} | columns


def _note(comparisons: Sequence[Comparison]) -> str:
  return (f'Mean over {paired_seeds(comparisons)}; p: paired two-sided t-test, '
          'uncorrected.')


def _p_by_length(comparison: Comparison) -> list[float]:
  return [math.nan if test is None else test.p for test in comparison.by_length]
