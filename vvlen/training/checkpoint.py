"""Saves and restores the state of a run, with Orbax.

One folder holds the checkpoints of one run, named by step; only the last is kept.
A save that was cut off leaves the checkpoint before it as the last one. Where there
are several processes, all of them call each function, on one folder that all see.
"""

from collections.abc import Iterator
import contextlib
from typing import Any

from etils import epath
import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np
import orbax.checkpoint as ocp

# Errors that say nothing of the files.
_NOT_DAMAGE = (PermissionError, MemoryError, jax.errors.JaxRuntimeError)


def save(
    folder: epath.PathLike, step: int, state: Any, meta: dict[str, Any] | None = None
) -> None:
  """Saves `state` as the checkpoint of `step`; drops earlier and cut-off ones.

  Args:
    folder: of the run; made where it is missing.
    step: of the checkpoint, larger than those before.
    state: a pytree of jax.Array, each process having a part of it.
    meta: what JSON can hold, kept beside the state; that of the first process.

  Raises:
    OSError: if it could not be written; earlier checkpoints are as they were.
  """
  items = {'default': ocp.args.StandardSave(state)}
  if meta is not None:
    items['meta'] = ocp.args.JsonSave(meta)
  try:
    _clear(folder)
    with _manager(folder) as manager:
      manager.save(step, args=ocp.args.Composite(**items), force=True)
  except Exception as error:  # Orbax and TensorStore raise several kinds.
    cause = str(error).splitlines()[0] if str(error) else repr(error)
    raise OSError(f'Could not save the checkpoint {folder}/{step}: {cause}') from error


def last_step(folder: epath.PathLike) -> int:
  """Returns the step of the last checkpoint, 0 where there is none.

  All processes get what the first one sees.
  """
  step = 0
  if jax.process_index() == 0 and epath.Path(folder).exists():
    step = max(ocp.utils.checkpoint_steps(folder), default=0)
  return int(multihost_utils.broadcast_one_to_all(np.int32(step)))


def read_meta(folder: epath.PathLike) -> dict[str, Any] | None:
  """Returns what was saved beside the state of the last checkpoint; None if nothing.

  Raises:
    ValueError: if it is damaged.
  """
  step = last_step(folder)
  if not step:
    return None
  with _manager(folder) as manager, _naming_damage(folder, step):
    if 'meta' not in manager.item_metadata(step):
      return None
    items = ocp.args.Composite(meta=ocp.args.JsonRestore())
    return manager.restore(step, args=items)['meta']


def restore(
    folder: epath.PathLike, like: Any, mesh: Mesh | None = None
) -> tuple[int, Any | None]:
  """Restores the state of the last checkpoint, and clears what cut-off saves left.

  Args:
    folder: as given to `save`.
    like: a pytree of jax.ShapeDtypeStruct, the state that is expected. Each says by
      its sharding where it goes, unless there is a mesh.
    mesh: the devices to place all of it on, shared out along a leading axis of seeds.
      As with shardings, they may differ from those that it was saved from.

  Returns:
    The step and the state, or (0, None) where there is no checkpoint.

  Raises:
    ValueError: if files of the checkpoint are missing or cut short, or it is of
      another state. Bits flipped within an array go unnoticed: Orbax keeps no
      checksum of them.
  """
  _clear(folder)
  step = last_step(folder)  # which waits for the first process
  if not step:
    return 0, None
  if mesh is not None:
    placement = NamedSharding(mesh, PartitionSpec('seed'))
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placement), like
    )
  with _manager(folder) as manager:
    with _naming_damage(folder, step):
      found = manager.item_metadata(step)['default']
      if not jax.tree.leaves(found):
        raise ValueError('it holds no arrays')
    _check(found, like, f'{folder}/{step}')
    with _naming_damage(folder, step):
      items = ocp.args.Composite(default=ocp.args.StandardRestore(like))
      return step, manager.restore(step, args=items)['default']


def _clear(folder: epath.PathLike) -> None:
  """Removes what saves that were cut off have left."""
  if jax.process_index() == 0 and epath.Path(folder).exists():
    for path in epath.Path(folder).glob('*orbax-checkpoint-tmp*'):
      path.rmtree()


def _manager(folder: epath.PathLike) -> ocp.CheckpointManager:
  options = ocp.CheckpointManagerOptions(
      max_to_keep=1, enable_async_checkpointing=False
  )
  manager = ocp.CheckpointManager(
      epath.Path(folder).resolve(),
      options=options,
      item_handlers={
          'default': ocp.StandardCheckpointHandler(),
          'meta': ocp.JsonCheckpointHandler(),
      },
  )
  # It would tell jax.distributed of its step, for the sake of a log; a SIGTERM that
  # came during the save would then wait for a step counted as checkpoints are.
  manager.reached_preemption = lambda step: False  # type: ignore[method-assign]
  return manager


@contextlib.contextmanager
def _naming_damage(folder: epath.PathLike, step: int) -> Iterator[None]:
  """Turns what goes wrong in reading a checkpoint into one clear ValueError."""
  try:
    yield
  except _NOT_DAMAGE:
    raise
  except Exception as error:
    raise ValueError(
        f'Damaged checkpoint {folder}/{step}. Delete the folder to train again.'
    ) from error


def _check(found: Any, like: Any, name: str) -> None:
  """Raises unless both trees hold arrays of the same shapes and dtypes.

  Orbax would cast a wrong dtype silently.
  """
  describe = lambda tree: sorted(
      (jax.tree_util.keystr(path, simple=True, separator='/'), x.shape, str(x.dtype))
      for path, x in jax.tree_util.tree_leaves_with_path(tree)
  )
  found, like = describe(found), describe(like)
  if found != like:
    odd = sorted(set(found) ^ set(like))[0]
    raise ValueError(
        f'The checkpoint {name} is not of this run: it differs in {odd}. '
        'Choose another folder.'
    )
