"""Learning curves: metrics.jsonl, written while a run trains."""

from collections.abc import Iterable, Mapping
import json
import math
from typing import Any

from etils import epath
import numpy as np

from vvlen.reporting.board import Board
from vvlen.reporting.results import write_text

_LINE = ('arm', 'step', 'first_seed')


class Curves:
  """The learning curves of a run, kept in metrics.jsonl.

  A line holds one arm, one step and one block of seeds:
    {"arm": …, "step": …, "first_seed": …, "loss": [S numbers], …}
  """

  def __init__(
      self, path: epath.PathLike, writes: bool = True, board: Board | None = None
  ):
    """Reads what is there; of several processes that keep the same, one writes.

    Args:
      path: of the file.
      writes: whether this process writes.
      board: also shows the curves, each the mean over seeds, by the name of the file.
    """
    self._path, self._writes = epath.Path(path), writes
    self._board = board
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
    if self._writes:
      write_text(self._path, ''.join(json.dumps(x) + '\n' for x in self._lines))
      if self._board:
        self._board.add(f'{arm}/seed_{first_seed}', step, self._path.stem, metrics)

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
  """Returns {arm: {seed: metric}}, means over the steps that end at this one."""
  found: dict[str, dict[int, float]] = {}
  for line in lines:
    if line['step'] == step:
      values = np.array(line[metric], np.float64).tolist()  # nan for None
      found.setdefault(line['arm'], {}).update(enumerate(values, line['first_seed']))
  return found


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
