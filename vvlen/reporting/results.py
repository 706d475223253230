"""The numbers that a run writes into its folder: tidy rows, and samples.

Every file is written to a temporary file first and then renamed, so it is either
complete or not there. Folders may be local or gs:// (etils.epath).
"""

from collections.abc import Collection, Iterable
import csv
import io
import lzma
import os
import re
from typing import Any, NamedTuple

from etils import epath
import numpy as np

ENDS = ('', '_low', '_high')  # suffixes of a mean, and of the ends of its interval
_COMPRESSED = '.xz'  # follows the name of a file of rows that is compressed


class Row(NamedTuple):
  """One measured number. Fields that do not apply to it are None."""

  experiment: str
  arm: str
  seed: int
  length: int | None
  metric: str
  value: float
  # A file has these columns only if a row has a value in them.
  step: int | None = None
  layer: int | None = None
  head: int | None = None
  offset: int | None = None
  component: int | None = None
  piece: int | None = None  # of a text
  distance: int | None = None  # between two tokens
  depth: int | None = None  # in a context, in percent
  learning_rate: float | None = None  # with which the model was trained

  @property
  def key(self) -> tuple[Any, ...]:
    """All fields except the value: they identify the row."""
    return (*self[:_VALUE], *self[_VALUE + 1:])


_VALUE = Row._fields.index('value')
_ALWAYS, _OPTIONAL = Row._fields[: _VALUE + 1], Row._fields[_VALUE + 1:]


def present_name(metric: str) -> str:
  """Returns the present name of a metric, given its name in any version."""
  return re.sub('^excess(?=_|$)', 'symmetric_kl', metric)


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
  """Writes rows as CSV, from which `read_rows` reads the same numbers.

  Afterwards it deletes the compressed file of earlier rows, if there is one.
  """
  rows = list(rows)
  columns = [*_ALWAYS, *(name for name in _OPTIONAL
                         if any(getattr(row, name) is not None for row in rows))]
  buffer = io.StringIO()
  writer = csv.DictWriter(buffer, columns, extrasaction='ignore', lineterminator='\n')
  writer.writeheader()
  for row in rows:
    # csv writes None as nothing and a float with as many digits as it has.
    writer.writerow(row._replace(value=float(row.value))._asdict())
  write_text(path, buffer.getvalue())
  _compressed(path).unlink(missing_ok=True)


def compress(path: epath.PathLike) -> tuple[int, int]:
  """Replaces a file of rows by a compressed one, NAME.xz, which `read_rows` reads.

  Returns:
    The sizes of the two files in bytes.
  """
  path = epath.Path(path)
  content = path.read_bytes()
  small = lzma.compress(content)
  write_bytes(_compressed(path), small)
  path.unlink()
  return len(content), len(small)


def which_of_two(path: epath.PathLike) -> list[str]:
  """Returns a line that says which file is used, if rows are plain and compressed.

  A run that is killed between writing one and deleting the other leaves both. The plain
  file is then the newer one.
  """
  path, other = epath.Path(path), _compressed(path)
  if not (path.exists() and other.exists()):
    return []
  return [f'{path} is used, not {other.name} beside it.']


def is_there(path: epath.PathLike) -> bool:
  """Whether a file of rows is there, plain or compressed."""
  return epath.Path(path).exists() or _compressed(path).exists()


def _compressed(path: epath.PathLike) -> epath.Path:
  return epath.Path(os.fspath(path) + _COMPRESSED)


def read_rows(path: epath.PathLike) -> list[Row]:
  """Reads what `write_rows` wrote; returns no rows if there is no file.

  If there is no file of this name but one that `compress` wrote, it reads that.

  Raises:
    ValueError: if a line is not a row, or has the key of an earlier row, or if the
      compressed file is damaged.
  """
  path = epath.Path(path)
  if not path.exists():
    path = _compressed(path)
    if not path.exists():
      return []
  content = path.read_bytes()
  try:
    if path.suffix == _COMPRESSED:
      content = lzma.decompress(content)
    text = content.decode()
  except UnicodeDecodeError as error:
    raise ValueError(f'{path} is not text') from error
  except (lzma.LZMAError, EOFError) as error:
    raise ValueError(f'{path} is damaged') from error
  if not text.endswith('\n'):
    raise ValueError(f'{path} is cut short. Delete its last line, which is not whole, '
                     'or the file: the command of the run computes lost rows again')
  try:
    columns, *lines = [*csv.reader(io.StringIO(text))] or [[]]
  except csv.Error as error:
    raise ValueError(f'{path} is damaged: {error}') from error
  # Optional columns in their order, each once.
  if columns != [*_ALWAYS, *(name for name in _OPTIONAL if name in columns)]:
    raise ValueError(f'{path} does not begin with {",".join(_ALWAYS)}, then any of '
                     f'{", ".join(_OPTIONAL)} in this order')
  rows: dict[tuple[Any, ...], Row] = {}
  for number, fields in enumerate(lines, 2):
    try:
      experiment, arm, seed, length, metric, value, *others = fields
      own = {name: _number(name, text) for name, text in
             zip(columns[len(_ALWAYS):], others, strict=True)}
      row = Row(experiment, arm, int(seed), _whole(length),
                present_name(metric), float(value), **own)
    except ValueError as error:
      raise ValueError(f'{path} line {number} is not a row: {fields}') from error
    if rows.setdefault(row.key, row) is not row:
      raise ValueError(f'{path} line {number} is there twice: {fields}')
  return list(rows.values())


def _whole(text: str) -> int | None:
  return int(text) if text else None


def _number(name: str, text: str) -> Any:
  """Returns the value in a column of `_OPTIONAL`, None if it is empty."""
  return float(text) if text and name == 'learning_rate' else _whole(text)


# (arm, metric, length) -> {seed: value}
Index = dict[tuple[str, str, int | None], dict[int, float]]


def read_run(
    folder: epath.PathLike, experiment: str, arms: Collection[str]
) -> list[Row]:
  """Returns the rows of a run's folder.

  Args:
    folder: with results.csv.
    experiment: a regular expression that the experiment of every row must match.
    arms: the arms that rows may have, each also with a suffix such as '+adaptive'.

  Raises:
    ValueError: if there are no rows, or one has another experiment or arm.
  """
  path = epath.Path(folder) / 'results.csv'
  rows = read_rows(path)
  if not rows:
    raise ValueError(f'{folder} has no results.csv with results')
  for row in rows:
    if (not re.fullmatch(experiment, row.experiment)
        or row.arm.partition('+')[0] not in arms):
      raise ValueError(f'{path} has a row of another kind of run: {row.key}')
  return rows


def index(rows: Iterable[Row]) -> Index:
  """Groups rows: {(arm, metric, length): {seed: value}}."""
  grouped: Index = {}
  for row in rows:
    key = (row.arm, row.metric, row.length)
    grouped.setdefault(key, {})[row.seed] = row.value
  return grouped


def index_cells(rows: Iterable[Row]) -> dict[tuple[str, int], Index]:
  """Groups rows of several cells, the column experiment: {(cell, step): index}.

  Raises:
    ValueError: if a row has no step.
  """
  grouped: dict[tuple[str, int], list[Row]] = {}
  for row in rows:
    if row.step is None:
      raise ValueError(f'a row of a cell has no step: {row.key}')
    grouped.setdefault((row.experiment, row.step), []).append(row)
  return {key: index(own) for key, own in grouped.items()}


def by_seed(
    index: Index, arm: str, metric: str, lengths: Iterable[int]
) -> dict[int, np.ndarray]:
  """Returns {seed: values [lengths]} of an arm; nan where a length lacks a seed."""
  columns = [index[arm, metric, n] for n in lengths]
  seeds = sorted(set().union(*columns))
  return {s: np.array([c.get(s, np.nan) for c in columns]) for s in seeds}


def read_samples(folder: epath.PathLike) -> dict[str, dict[str, np.ndarray]]:
  """Reads `samples/*.npz`: {arm: {name: array}}, empty if there is no folder."""
  folder = epath.Path(folder)
  if not folder.exists():
    return {}
  samples = {}
  for path in sorted(folder.glob('*.npz')):
    samples[path.stem] = read_arrays(path)
    for kind in ('components', 'weights'):
      found = [array for name, array in samples[path.stem].items()
               if re.fullmatch(kind + r'_\d+', name)]
      if not found or any(array.ndim != 2 for array in found):
        raise ValueError(f'{path} is not a file of arrays of samples: no {kind} of two '
                         'axes')
  return samples


def read_arrays(path: epath.PathLike) -> dict[str, np.ndarray]:
  """Reads an .npz: {name: array}.

  Raises:
    ValueError: if it is damaged.
    OSError: if it cannot be read.
  """
  content = epath.Path(path).read_bytes()
  try:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
      return dict(arrays)
  except Exception as error:  # zipfile, zlib and numpy raise many kinds.
    raise ValueError(f'{path} is not a file of arrays') from error
