"""Learning curves: metrics.jsonl, written while a run trains."""

from collections.abc import Iterable, Mapping
import json
import math
import os
from typing import Any

from etils import epath
import numpy as np

from vvlen.reporting.board import Board
from vvlen.reporting.results import present_name, write_text

_LINE = ('arm', 'step', 'first_seed')


class Curves:
  """The learning curves of a run, kept in metrics.jsonl.

  A line holds one arm, one step and one block of seeds:
    {"arm": …, "step": …, "first_seed": …, "loss": [S numbers], …}

  In a local file, a line is appended when it is added. In a bucket, where nothing can
  be appended, `flush` writes the whole file again.
  """

  def __init__(
      self, path: epath.PathLike, writes: bool = True, board: Board | None = None
  ):
    """Reads the lines that are there; of several processes, only one should write.

    Args:
      path: of the file.
      writes: whether this process writes.
      board: also gets the curves, as means over seeds, under the name of the file.
    """
    self._path, self._writes = epath.Path(path), writes
    self._board = board
    self._appends = '://' not in os.fspath(self._path)
    self._lines: list[dict[str, Any]] = read_curves(path)
    # Whether the file differs from the lines: here, if its last line was cut off.
    self._stale = self._path.exists() and not self._path.read_text().endswith('\n')

  def add(
      self, arm: str, step: int, first_seed: int, metrics: Mapping[str, np.ndarray]
  ) -> None:
    """Adds a line; lines of steps that a resumed run repeats are replaced."""
    kept = [
        line for line in self._lines
        if (line['arm'], line['first_seed']) != (arm, first_seed)
        or line['step'] < step
    ]
    self._stale |= len(kept) < len(self._lines)
    self._lines = kept
    plain = {
        name: [float(x) if math.isfinite(x) else None for x in values]
        for name, values in metrics.items()
    }
    self._lines.append(
        {'arm': arm, 'step': step, 'first_seed': first_seed, **plain}
    )
    if self._writes and self._appends and not self._stale:
      self._path.parent.mkdir(parents=True, exist_ok=True)
      with self._path.open('a') as file:
        file.write(json.dumps(self._lines[-1]) + '\n')
    else:
      self._stale = True
      if self._appends:
        self.flush()
    if self._writes and self._board:
      self._board.add(f'{arm}/seed_{first_seed}', step, self._path.stem, metrics)

  def flush(self) -> None:
    """Writes the file if it differs from the lines; call it before a checkpoint."""
    if self._writes and self._stale:
      write_text(self._path, ''.join(json.dumps(x) + '\n' for x in self._lines))
      self._stale = False

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


def at_step(
    lines: Iterable[Mapping[str, Any]], step: int, metric: str
) -> dict[str, dict[int, float]]:
  """Returns {arm: {seed: metric}} at a step, means since the line before."""
  found: dict[str, dict[int, float]] = {}
  for line in lines:
    if line['step'] == step:
      values = np.array(line[metric], np.float64).tolist()  # nan for None
      found.setdefault(line['arm'], {}).update(enumerate(values, line['first_seed']))
  return found


def read_curves(path: epath.PathLike) -> list[dict[str, Any]]:
  """Reads the lines that `Curves` wrote; returns no lines if there is no file.

  An incomplete last line, as a killed run may leave it, is left out. Metrics have their
  present names.

  Raises:
    ValueError: if another line is not one that `Curves` writes.
  """
  path = epath.Path(path)
  if not path.exists():
    return []
  lines: list[dict[str, Any]] = []
  sizes: dict[tuple[Any, ...], tuple[int, ...]] = {}
  try:
    *whole, _ = path.read_text().split('\n')
    for text in whole:
      line = json.loads(text)
      block = line['arm'], int(line['first_seed'])
      values = [line[name] for name in sorted(line.keys() - {*_LINE})]
      shape = np.array(values, np.float64).shape  # [metrics, S]
      if len(shape) != 2 or sizes.setdefault(block, shape) != shape:
        raise ValueError('other metrics or seeds than in the line before')
      lines.append({present_name(name): value for name, value in line.items()}
                   | {'step': int(line['step'])})
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError,
          OverflowError) as error:
    raise ValueError(
        f'{path} line {len(lines) + 1} is not a line of learning curves'
    ) from error
  return lines
