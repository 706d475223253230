"""The table that compares the dialects of scores. Runs without JAX."""

from collections.abc import Sequence
from typing import Any

from experiments.long_context import scores
from experiments.long_context.scores import Cells
from experiments.long_context.tables import cell, lengths_of, name_of, percent, Run
from vvlen.evaluation.longbench import DIALECTS
from vvlen.reporting.tables import CellText, Record, Table


def by_length(run: Run) -> Table:
  """Makes the table of scores in all dialects, with the rank of each task.

  Ranks are of the tasks of one checkpoint: a run has no other to compare it with.
  """
  found = {name: scores.cells(run.rows, f'score_{name}') for name in DIALECTS}
  places = lengths_of(found['official'])
  records = []
  for place in places:
    tasks = [x for x in scores.tasks_of(run.rows) if (x, place) in found['official']]
    records += records_of(found, [(x, place) for x in tasks], run)
  columns = {'length': lambda r: f'{r["place"]:,}', **columns_of()}
  return table_of(run, columns, records, ' among those of one length')


def records_of(
    found: dict[str, Cells], own: Sequence[tuple[str, int | str]], run: Run
) -> list[dict[str, Any]]:
  """Returns records of cells that are ranked with each other.

  Args:
    found: the cells of each dialect.
    own: the cells that are ranked with each other, (task, length).
    run: the run.
  """
  means = {name: [float(found[name][x].mean()) for x in own] for name in DIALECTS}
  records = []
  for at, (task, place) in enumerate(own):
    record: dict[str, Any] = {'place': place, 'task': task}
    for name in DIALECTS:
      record |= percent(scores.interval(
          found[name][task, place], run.num_resamples, run.seed), name)
      # Tasks with the same score share a rank; round-off of means does not count.
      record[f'rank_{name}'] = 1 + sum(
          x > means[name][at] + 1e-9 for x in means[name])
    ranks = {record[f'rank_{name}'] for name in DIALECTS}
    records.append(record | {'order_changes': len(ranks) > 1})
  return records


def columns_of() -> dict[str, CellText]:
  """Returns the columns of a table of dialects but the first one."""
  return {
      'task': lambda r: name_of(r['task']),
      **{name: cell(name) for name in DIALECTS},
      'ranks': lambda r: ', '.join(str(r[f'rank_{name}']) for name in DIALECTS),
      'order changes': lambda r: 'yes' if r['order_changes'] else ''}


def table_of(
    run: Run, columns: dict[str, CellText], records: Sequence[Record], of: str = ''
) -> Table:
  """Makes a table of dialects.

  Args:
    run: of the table.
    columns: its columns.
    records: its records.
    of: which tasks are ranked with each other, such as ' among those of one length'.
  """
  note = ('Mean score in % of the same predictions in three dialects [95 %: bootstrap '
          f'over samples], and the rank of each task{of}; models are not ranked. '
          f'{run.source}')
  more = ('Ranks are in the order of the dialects, and tasks of one score share a '
          'rank. They say which tasks this checkpoint does best. '
          'experiments.long_context.ranking compares checkpoints.')
  return Table('dialects', 'Score by dialect, with ranks of tasks', columns, records,
               note, more=more)
