"""What a run leaves in its folder: tidy rows, metrics and the configuration.

Everything is written whole to a temporary file and then renamed, so a file is
either complete or not there. Folders may be local or gs:// (etils.epath).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
import contextlib
import csv
import io
import json
import math
import re
from typing import Any, NamedTuple
import zipfile

from etils import epath
import numpy as np


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


def claim(
    workdir: epath.PathLike,
    config: Mapping[str, Any],
    session: Mapping[str, Any],
    may_grow: Sequence[str] = (),
    may_differ: Sequence[str] = (),
) -> dict[str, Any] | None:
  """Makes a folder the folder of this run, or raises if it is another's.

  Writes config.json: the configuration, and one entry of `session` (versions,
  commit, machine) for each time that the run was started.

  Args:
    workdir: the folder; made where it is missing.
    config: nested dictionaries of plain values.
    session: plain values that describe this start.
    may_grow: names of fields of `config`, such as 'train.num_steps', that may be
      larger than at the last start.
    may_differ: names of fields that change nothing of the results.

  Returns:
    The configuration of the last start, None at the first.

  Raises:
    ValueError: if the folder holds a run with another configuration, naming the
      fields that differ, or holds files but no run.
  """
  before, stored = claimed(workdir, config, session, may_grow, may_differ)
  write_text(epath.Path(workdir) / 'config.json', json.dumps(stored, indent=2) + '\n')
  return before


def claimed(
    workdir: epath.PathLike,
    config: Mapping[str, Any],
    session: Mapping[str, Any],
    may_grow: Sequence[str] = (),
    may_differ: Sequence[str] = (),
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
  """Returns what `claim` would return and write, or raises; writes nothing."""
  workdir = epath.Path(workdir)
  path = workdir / 'config.json'
  config = json.loads(json.dumps(config))
  before, sessions = None, []
  if path.exists():
    with reading(path) as stored:
      before, sessions = stored['config'], [dict(s) for s in stored['sessions']]
    old, new = flatten(before), flatten(config)
    differing = [
        f'{name}: {old.get(name)} there, {new.get(name)} here'
        f'{" (may only grow)" if name in may_grow else ""}'
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and name not in may_differ
        and not (name in may_grow and new.get(name, 0) > old.get(name, 0))
    ]
    if differing:
      raise ValueError(
          f'{workdir} holds another run ({"; ".join(differing)}). '
          'Choose another --workdir.'
      )
  elif _used(workdir):
    raise ValueError(
        f'{workdir} is not empty and holds no run. Choose another --workdir.'
    )
  return before, {'config': config, 'sessions': [*sessions, dict(session)]}


@contextlib.contextmanager
def reading(path: epath.Path, of: str = 'a run') -> Iterator[dict[str, Any]]:
  """Gives what a config.json holds to the block that picks fields out of it.

  Raises:
    ValueError: if the file is damaged or lacks a field that the block reads.
  """
  try:
    yield json.loads(path.read_text())
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(f'{path} is not the config.json of {of}') from error


def _used(workdir: epath.Path) -> bool:
  """Whether a folder holds more than a `claim` that was cut off."""
  return workdir.exists() and any(
      path.name != '.config.json.tmp' for path in workdir.iterdir()
  )


def finish(workdir: epath.PathLike, **facts: Any) -> None:
  """Adds facts, such as the time, to the last session of a folder's config.json."""
  path = epath.Path(workdir) / 'config.json'
  stored = json.loads(path.read_text())
  stored['sessions'][-1].update(facts)
  write_text(path, json.dumps(stored, indent=2) + '\n')


def flatten(tree: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Flattens nested dictionaries: {'a': {'b': 1}} -> {'a.b': 1}."""
  flat = {}
  for name, value in tree.items():
    if isinstance(value, Mapping):
      flat.update(flatten(value, f'{prefix}{name}.'))
    else:
      flat[prefix + name] = value
  return flat


_LINE = ('arm', 'step', 'first_seed')


class Curves:
  """The learning curves of a run, kept in metrics.jsonl.

  A line holds one arm, one step and one block of seeds:
    {"arm": …, "step": …, "first_seed": …, "loss": [S numbers], …}
  """

  def __init__(self, path: epath.PathLike):
    self._path = epath.Path(path)
    self._lines: list[dict[str, Any]] = read_curves(path)

  def add(
      self, arm: str, step: int, first_seed: int, metrics: Mapping[str, np.ndarray]
  ) -> None:
    """Adds a line; lines that a resumed run makes again are replaced."""
    self._lines = [
        line for line in self._lines
        if (line['arm'], line['first_seed']) != (arm, first_seed)
        or line['step'] < step
    ]
    plain = {
        name: [float(x) if math.isfinite(x) else None for x in values]
        for name, values in metrics.items()
    }
    self._lines.append(
        {'arm': arm, 'step': step, 'first_seed': first_seed, **plain}
    )
    text = ''.join(json.dumps(line) + '\n' for line in self._lines)
    write_text(self._path, text)

  def late_mean(self, arm: str, first_seed: int, metric: str) -> np.ndarray:
    """Returns the mean of a metric over the last tenth of the steps, [S]."""
    lines = [
        line for line in self._lines
        if (line['arm'], line['first_seed']) == (arm, first_seed)
    ]
    if not lines:
      raise ValueError(
          f'{self._path} has no lines of {arm}, seeds from {first_seed}, though they '
          'are trained: delete their checkpoints to train them again'
      )
    late = [line[metric] for line in lines if line['step'] > 0.9 * lines[-1]['step']]
    return np.array(late, np.float64).mean(axis=0)


def read_curves(path: epath.PathLike) -> list[dict[str, Any]]:
  """Reads the lines that `Curves` wrote; no file, no lines.

  Raises:
    ValueError: if a line is none of these.
  """
  path = epath.Path(path)
  if not path.exists():
    return []
  lines: list[dict[str, Any]] = []
  sizes: dict[tuple[Any, ...], tuple[int, ...]] = {}
  try:
    for text in path.read_text().splitlines():
      line = json.loads(text)
      block = line['arm'], int(line['first_seed'])
      values = [line[name] for name in sorted(line.keys() - {*_LINE})]
      shape = np.array(values, np.float64).shape  # [metrics, S]
      if len(shape) != 2 or sizes.setdefault(block, shape) != shape:
        raise ValueError('other metrics or seeds than in the line before')
      lines.append(line | {'step': int(line['step'])})
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(
        f'{path} line {len(lines) + 1} is not a line of learning curves'
    ) from error
  return lines


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
