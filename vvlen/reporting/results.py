"""The numbers that a run leaves in its folder: tidy rows, and samples.

Everything is written whole to a temporary file and then renamed, so a file is
either complete or not there. Folders may be local or gs:// (etils.epath).
"""

from collections.abc import Collection, Iterable
import csv
import io
import re
from typing import Any, NamedTuple
import zipfile

from etils import epath
import numpy as np

ENDS = ('', '_low', '_high')  # of the metrics of a mean, and of its interval


class Row(NamedTuple):
  """One measured number."""

  experiment: str
  arm: str
  seed: int
  length: int | None  # None where the number is not of one length
  metric: str
  value: float


def write_text(path: epath.PathLike, text: str) -> None:
  """Replaces the file by `text`, or leaves it as it was."""
  write_bytes(path, text.encode())


def write_bytes(path: epath.PathLike, content: bytes) -> None:
  """Replaces the file by `content`, or leaves it as it was."""
  path = epath.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.parent / f'.{path.name}.tmp'
  try:
    temporary.write_bytes(content)
    temporary.replace(path)
  except OSError:
    temporary.unlink(missing_ok=True)
    raise


def write_rows(path: epath.PathLike, rows: Iterable[Row]) -> None:
  """Writes rows as CSV, from which `read_rows` reads the same numbers."""
  buffer = io.StringIO()
  writer = csv.writer(buffer, lineterminator='\n')
  writer.writerow(Row._fields)
  for row in rows:
    # csv writes None as nothing and a float with as many digits as it has.
    writer.writerow(row._replace(value=float(row.value)))
  write_text(path, buffer.getvalue())


def read_rows(path: epath.PathLike) -> list[Row]:
  """Reads what `write_rows` wrote; no file, no rows.

  Raises:
    ValueError: if a line is not a row, or one of a number that an earlier line has.
  """
  path = epath.Path(path)
  if not path.exists():
    return []
  try:
    text = path.read_text()
  except UnicodeDecodeError as error:
    raise ValueError(f'{path} is not text') from error
  if not text.endswith('\n'):
    raise ValueError(f'{path} is cut short')
  reader = csv.reader(io.StringIO(text))
  if next(reader, None) != list(Row._fields):
    raise ValueError(f'{path} does not begin with {",".join(Row._fields)}')
  rows: dict[tuple[Any, ...], Row] = {}
  for number, fields in enumerate(reader, 2):
    try:
      experiment, arm, seed, length, metric, value = fields
      row = Row(experiment, arm, int(seed), int(length) if length else None, metric,
                float(value))
    except ValueError as error:
      raise ValueError(f'{path} line {number} is not a row: {fields}') from error
    if rows.setdefault(row[:-1], row) is not row:
      raise ValueError(f'{path} line {number} is there twice: {fields}')
  return list(rows.values())


# (arm, metric, length) -> {seed: value}
Index = dict[tuple[str, str, int | None], dict[int, float]]


def read_run(
    folder: epath.PathLike, experiment: str, arms: Collection[str]
) -> list[Row]:
  """Returns the rows of a run's folder.

  Args:
    folder: with results.csv.
    experiment: a regular expression that all their experiments match.
    arms: of which all their arms are, but for a suffix such as '+adaptive'.

  Raises:
    ValueError: if there are none, or one of another run.
  """
  path = epath.Path(folder) / 'results.csv'
  rows = read_rows(path)
  if not rows:
    raise ValueError(f'{folder} has no results.csv with results')
  for row in rows:
    if (not re.fullmatch(experiment, row.experiment)
        or row.arm.partition('+')[0] not in arms):
      raise ValueError(f'{path} has a row of another kind of run: {row[:-1]}')
  return rows


def index(rows: Iterable[Row]) -> Index:
  """Groups rows: {(arm, metric, length): {seed: value}}."""
  grouped: Index = {}
  for row in rows:
    key = (row.arm, row.metric, row.length)
    grouped.setdefault(key, {})[row.seed] = row.value
  return grouped


def by_seed(
    index: Index, arm: str, metric: str, lengths: Iterable[int]
) -> dict[int, np.ndarray]:
  """Returns {seed: values [lengths]} of an arm; nan where a length lacks a seed."""
  columns = [index[arm, metric, n] for n in lengths]
  seeds = sorted(set().union(*columns))
  return {s: np.array([c.get(s, np.nan) for c in columns]) for s in seeds}


def read_samples(folder: epath.PathLike) -> dict[str, dict[str, np.ndarray]]:
  """Reads samples/*.npz: {arm: {name: array}}; no folder, nothing."""
  folder = epath.Path(folder)
  if not folder.exists():
    return {}
  samples = {}
  for path in sorted(folder.glob('*.npz')):
    try:
      with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
        samples[path.stem] = dict(arrays)
      for kind in ('components', 'weights'):
        if not any(re.fullmatch(kind + r'_\d+', name) for name in samples[path.stem]):
          raise ValueError(f'no {kind}')
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
      raise ValueError(f'{path} is not a file of arrays') from error
  return samples
