"""Trains a block of seeds and shows its progress."""

from collections.abc import Sequence

from etils import epath
import jax
import numpy as np

from experiments.harness.progress import console, Progress
from vvlen.reporting.curves import Curves
from vvlen.training import ensemble
from vvlen.training.step import TrainState


def train_block(
    trainers: Sequence[ensemble.Trainer],
    keys: jax.Array,
    num_steps: int,
    *,
    name: str,
    arm: str,
    first: int,
    folders: Sequence[epath.Path],
    curves: Sequence[Curves],
    progress: Progress,
    save_every_seconds: float,
    since: int = 0,
) -> list[TrainState]:
  """Trains a block of seeds under each of several trainers, as one ensemble.

  It resumes from the checkpoints in the folders (`ensemble.train_together`). Learning
  curves are written before each checkpoint, so that none are lost when it is resumed.

  Args:
    trainers: R trainers.
    keys: [S] keys of the seeds.
    num_steps: total number of updates.
    name: of the training, for messages.
    arm: for the lines of the learning curves.
    first: the first seed, for these lines.
    folders: R folders of checkpoints.
    curves: R learning curves.
    progress: counts seed-steps.
    save_every_seconds: the least time between two checkpoints.
    since: the step at which `progress` stands before this call.

  Returns:
    R states after num_steps updates.
  """
  width, reached = len(keys) * len(trainers), None

  def on_progress(step, metrics):
    nonlocal reached
    if reached is None:
      reached = step - trainers[0].steps_per_call
      progress.skip((reached - since) * width)
      if reached > since:
        console.print(f'{name}: resumed at step {reached:,}', highlight=False)
    for each, part in zip(curves, metrics, strict=True):
      each.add(arm, step, first, part)
    losses = np.concatenate([part['loss'] for part in metrics])
    finite = losses[np.isfinite(losses)]
    loss = finite.mean() if finite.size else np.nan
    progress.show(f'{name}, loss {loss:.3g}', (step - reached) * width)
    reached = step

  def before_save():
    for each in curves:
      each.flush()

  states = ensemble.train_together(
      trainers, keys, num_steps, folders=folders, on_progress=on_progress,
      before_save=before_save, save_every_seconds=save_every_seconds,
  )
  if reached is None:
    progress.skip((num_steps - since) * width)
  return states
