"""Checkpoints of a block of seeds: their keys, which identify them, and their states.

States and keys are padded, as in `vvlen.sharding.put`; checkpoints hold only the S
seeds themselves, so they can be restored on another number of devices.
"""

from collections.abc import Sequence
from typing import NamedTuple

from etils import epath
import jax
from jax.sharding import Mesh
import numpy as np

from vvlen import sharding
from vvlen.training import checkpoint
from vvlen.training.step import TrainState


class Saved(NamedTuple):
  """What a checkpoint holds."""

  keys: jax.Array  # [S, 2] uint32, data of the keys
  state: TrainState


def save(
    folders: Sequence[epath.PathLike], step: int, states: Sequence[TrainState],
    keys: jax.Array, num_seeds: int, mesh: Mesh,
) -> None:
  """Saves the states of several trainings of the same seeds, each into its folder.

  Args:
    folders: R folders.
    step: the updates made.
    states: R states, padded.
    keys: of the seeds, padded.
    num_seeds: S.
    mesh: the devices.
  """
  data = jax.random.key_data(keys)
  for folder, state in zip(folders, states, strict=True):
    checkpoint.save(folder, step, sharding.cut(Saved(data, state), num_seeds, mesh))


def restore(
    folders: Sequence[epath.PathLike], shapes: TrainState, keys: jax.Array,
    num_seeds: int, mesh: Mesh, group_size: int,
) -> tuple[int, list[TrainState]]:
  """Returns step and states of the last checkpoints, (0, []) where there are none.

  Args:
    folders: R folders.
    shapes: of a state, padded.
    keys: of the seeds, padded.
    num_seeds: S.
    mesh: the devices.
    group_size: as in `sharding.put`.

  Raises:
    ValueError: if a checkpoint is of other seeds, or if they are of different steps.
  """
  like = Saved(jax.eval_shape(jax.random.key_data, keys), shapes)
  placement = None if len(keys) == num_seeds else sharding.whole(mesh)
  like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(
      (num_seeds, *x.shape[1:]), x.dtype, sharding=placement), like)
  expected = sharding.fetch(jax.random.key_data(keys))[:num_seeds]
  step, steps, states = 0, set[int](), list[TrainState]()
  for folder in folders:
    step, saved = checkpoint.restore(folder, like, None if placement else mesh)
    steps.add(step)
    if saved is None:
      continue
    if not np.array_equal(sharding.fetch(saved.keys), expected):
      raise ValueError(
          f'The checkpoint {folder}/{step} is of other seeds. Choose another folder.'
      )
    states.append(sharding.put(saved.state, mesh, group_size))
  if len(steps) > 1:
    raise ValueError(
        f'The checkpoints in {", ".join(map(str, folders))} are of different steps: '
        f'{sorted(steps)}'
    )
  return step, states
