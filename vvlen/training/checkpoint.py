"""Saves and restores the state of a run, with Orbax.

One folder holds the checkpoints of one run, named by step; only the last is kept.
After a save that was cut off, the checkpoint before it is still the last one. With
several processes, all must call each function, on one folder that all can access.
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

# Errors that do not mean damaged files.
_NOT_DAMAGE = (PermissionError, MemoryError, jax.errors.JaxRuntimeError)


def save(
    folder: epath.PathLike, step: int, state: Any, meta: dict[str, Any] | None = None
) -> None:
  """Saves `state` as the checkpoint of `step`; deletes earlier and cut-off ones.

  Args:
    folder: of the run; created if it is missing.
    step: the step of the checkpoint, larger than that of earlier ones.
    state: a pytree of jax.Array, of which each process holds a part.
    meta: values that JSON can hold, saved beside the state by the first process.

  Raises:
    OSError: if it could not be written; earlier checkpoints are unchanged.
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
  """Returns the step of the last checkpoint, 0 if there is none.

  All processes return what the first one finds.
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
    like: a pytree of jax.ShapeDtypeStruct, the expected state. Without `mesh`, their
      shardings are those of the restored arrays.
    mesh: with the axis 'seed', over which the first axis of every array is sharded.
      Here, and in `like`, devices may differ from those that saved the state.

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
  """Removes the files of saves that were cut off."""
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
  # The manager would report its step to jax.distributed, only to log it. Preemption
  # counts calls, not steps (`watching_for_preemption`), so a SIGTERM that came during
  # the save would then wait for the call whose number is that step.
  manager.reached_preemption = lambda step: False  # type: ignore[method-assign]
  return manager


@contextlib.contextmanager
def _naming_damage(folder: epath.PathLike, step: int) -> Iterator[None]:
  """Turns errors from reading a checkpoint into one clear ValueError."""
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
