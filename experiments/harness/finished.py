"""Decides which parts of a run are finished: those that have all their rows.

A part is the rows that belong together, such as those of one seed of one arm. The file
rows.json in the run's folder lists how many rows each part has, so that rows which are
lost from results.csv are noticed and computed again. In a folder without rows.json, as
earlier versions wrote them, a part is due the rows that the other seeds of its kind
have: such as those of any seed of the same arm.
"""

import collections
from collections.abc import Callable, Iterable, Mapping
import json
from typing import Any

from etils import epath

from vvlen.reporting import results

Part = tuple[Any, ...]  # of str, int and None
PartOf = Callable[[results.Row], Part]


def finished(folder: epath.PathLike, part_of: PartOf) -> set[Part]:
  """Returns the parts that have all their rows in a folder's results.csv.

  Args:
    folder: with results.csv and, unless it is of an earlier version, rows.json.
    part_of: row -> the part to which it belongs.

  Raises:
    ValueError: if one of the two files is damaged.
  """
  rows = _read(folder)
  due, found = _due(folder, rows, part_of), _count(rows, part_of)
  return {part for part, count in found.items() if count >= due.get(part, 1)}


def lost(folder: epath.PathLike, part_of: PartOf) -> list[Part]:
  """Returns the parts that lack rows which were computed once; raises as `finished`."""
  rows = _read(folder)
  due, found = _due(folder, rows, part_of), _count(rows, part_of)
  return [part for part, count in due.items() if found[part] < count]


def write_rows(
    folder: epath.PathLike, rows: Iterable[results.Row], new: Iterable[results.Row],
    part_of: PartOf,
) -> None:
  """Writes rows.json and results.csv.

  If a run is killed between the two writes, some parts have too few rows and count as
  not finished.

  Args:
    folder: for both files.
    rows: all rows.
    new: the rows computed now; they include all rows of their parts.
    part_of: row -> the part to which it belongs.
  """
  rows, due = list(rows), listed(folder)
  if due is None:
    due = _due_by_kind(_read(folder), part_of)
  # Parts without new rows keep their counts, because some of their rows may be lost.
  due = _count(rows, part_of) | due | _count(new, part_of)
  write_listed(folder, due)
  results.write_rows(epath.Path(folder) / 'results.csv', rows)


def write_listed(folder: epath.PathLike, due: Mapping[Part, int]) -> None:
  """Writes rows.json: {part: its number of rows}."""
  lines = ',\n'.join(json.dumps([*part, count]) for part, count in due.items())
  results.write_text(_path(folder), f'[\n{lines}\n]\n')


def _count(rows: Iterable[results.Row], part_of: PartOf) -> collections.Counter[Part]:
  return collections.Counter(map(part_of, rows))


def _read(folder: epath.PathLike) -> list[results.Row]:
  return results.read_rows(epath.Path(folder) / 'results.csv')


def _path(folder: epath.PathLike) -> epath.Path:
  return epath.Path(folder) / 'rows.json'


def _due(
    folder: epath.PathLike, rows: list[results.Row], part_of: PartOf
) -> dict[Part, int]:
  """Returns {part: its number of rows}, from rows.json if there is one."""
  due = listed(folder)
  return _due_by_kind(rows, part_of) if due is None else due


def listed(folder: epath.PathLike) -> dict[Part, int] | None:
  """Returns {part: its number of rows} from rows.json, None if there is none.

  Raises:
    ValueError: if it is damaged.
  """
  path = _path(folder)
  if not path.exists():
    return None
  try:
    due = {tuple(part): int(count) for *part, count in json.loads(path.read_text())}
    hash(tuple(due))
  except (ValueError, TypeError, RecursionError) as error:
    raise ValueError(f'{path} is damaged. Delete it to count every part as finished '
                     'that has the rows of other seeds in results.csv') from error
  return due


def _due_by_kind(rows: list[results.Row], part_of: PartOf) -> dict[Part, int]:
  """Returns for each part the number of rows that any seed of its kind has."""
  kinds = collections.defaultdict(set)
  for row in rows:
    of_any = row._replace(seed=0)
    kinds[part_of(of_any)].add(of_any.key)
  return {part_of(row): len(kinds[part_of(row._replace(seed=0))]) for row in rows}
