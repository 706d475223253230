"""Learning curves in TensorBoard, where it is installed."""

from collections.abc import Mapping
import os
from typing import Any

from etils import epath
import numpy as np


class Board:
  """Adds points to the curves that `tensorboard --logdir=FOLDER` shows.

  Each arm and block of seeds is a run of TensorBoard. What a resumed run does again is
  there twice, with the same values. Without the package tensorboard, and in a folder
  that is not local, nothing is written.
  """

  def __init__(self, folder: epath.PathLike):
    """Writes under a folder, which is made with the first point."""
    self._folder = epath.Path(folder)
    self._run = ''  # that is written now
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
    """Adds `kind/metric` at a step, each the mean over the finite of its values [S]."""
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
