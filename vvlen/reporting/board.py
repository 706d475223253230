"""Learning curves in TensorBoard, where it is installed."""

from collections.abc import Mapping
import os
from typing import Any

from etils import epath
import numpy as np


class Board:
  """Adds points to the curves that `tensorboard --logdir=FOLDER` shows.

  Each arm and block of seeds is a run of TensorBoard. Points of steps that a resumed
  run repeats are there twice, with the same values. Nothing is written if the package
  tensorboard is not installed, or the folder is not local.
  """

  def __init__(self, folder: epath.PathLike):
    """Writes below `folder`, which is created with the first point."""
    self._folder = epath.Path(folder)
    self._run = ''  # the run that is written now
    self._writer: Any = None
    self._library: Any = None
    if '://' not in os.fspath(self._folder):
      try:
        import tensorboard.summary
      except ImportError:
        return
      self._library = tensorboard.summary

  def add(
      self, run: str, step: int, kind: str, metrics: Mapping[str, np.ndarray]
  ) -> None:
    """Adds `kind/metric` at a step: the mean over the finite values of those [S]."""
    if self._library is None:
      return
    if run != self._run:
      if self._writer:
        self._writer.close()
      output = self._library.DirectoryOutput(os.fspath(self._folder / run))
      self._run, self._writer = run, self._library.Writer(output)
    for name, values in metrics.items():
      values = np.asarray(values, np.float64)
      if (finite := values[np.isfinite(values)]).size:
        self._writer.add_scalar(f'{kind}/{name}', finite.mean(), step)
    self._writer.flush()  # a run may end at any time
