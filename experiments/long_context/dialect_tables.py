"""The table that compares the dialects of scores. Runs without JAX."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.long_context import scores
from experiments.long_context.scores import Cells
from experiments.long_context.tables import (
    cell,
    lengths_of,
    more_of,
    name_of,
    percent,
    Run,
)
from vvlen.evaluation.longbench import DIALECTS
from vvlen.reporting.tables import CellText, interval_cell, Record, Table

_OTHERS = DIALECTS[1:]  # than the official one, the first


def by_length(run: Run) -> Table:
  """Makes the table of scores by length and task in all dialects."""
  found = cells_of(run)
  own = [(task, place) for place in lengths_of(found['official'])
         for task in scores.tasks_of(run.rows) if (task, place) in found['official']]
  columns = {'length': lambda r: f'{r["place"]:,}', **columns_of()}
  return table_of(run, columns, records_of(found, own, run))


def cells_of(run: Run) -> dict[str, Cells]:
  """Returns the scores in each dialect, and the differences from the official one."""
  return {
      **{name: scores.cells(run.rows, f'score_{name}') for name in DIALECTS},
      **{f'difference_{name}': scores.differences(
          run.rows, f'score_{name}', 'score_official') for name in _OTHERS}}


def records_of(
    found: dict[str, Cells], own: Iterable[tuple[str, int | str]], run: Run
) -> list[dict[str, Any]]:
  """Returns a record for each cell.

  Args:
    found: as from `cells_of`.
    own: the cells of the table, (task, length).
    run: the run.
  """
  records = []
  for task, place in own:
    record: dict[str, Any] = {'place': place, 'task': task}
    for name, cells in found.items():
      record |= percent(scores.interval(
          cells.get((task, place), ()), run.num_resamples, run.seed), name)
    records.append(record)
  return records


def columns_of() -> dict[str, CellText]:
  """Returns the columns of a table of dialects but the first one."""
  return {
      'task': lambda r: name_of(r['task']),
      **{name: cell(name) for name in DIALECTS},
      **{f'{name} − official': interval_cell(f'difference_{name}', '+.1f')
         for name in _OTHERS}}


def table_of(
    run: Run, columns: dict[str, CellText], records: Sequence[Record]
) -> Table:
  """Makes a table of dialects.

  Args:
    run: of the table.
    columns: its columns.
    records: its records.
  """
  note = ('Mean score in % of the same predictions in three dialects, and differences '
          f'in points [95 %: bootstrap over samples]. {run.source}')
  more = ('Whether a dialect changes which of several checkpoints is better is what '
          'experiments.long_context.ranking finds.')
  return Table(
      'dialects', 'Score by dialect', columns, records, note,
      more=more_of(run, strict_words(run.suite, run.made_elsewhere), more))


def strict_words(suite: str, made_elsewhere: bool) -> str:
  """Returns a sentence where `strict` is weaker than elsewhere, else ''."""
  return ('Files of RULER do not list wrong answers, so here strict does not check '
          'that they are absent.' if suite == 'ruler' and made_elsewhere else '')
