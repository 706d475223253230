"""Saves and restores the state of a block of seeds, with Orbax.

One folder holds the checkpoints of one run, named by step; only the last is kept.
A save that was cut off leaves the checkpoint before it as the last one.
"""

from typing import Any

from etils import epath
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import orbax.checkpoint as ocp

# Errors that say nothing of the files.
_NOT_DAMAGE = (PermissionError, MemoryError, jax.errors.JaxRuntimeError)


def save(folder: epath.PathLike, step: int, state: Any) -> None:
  """Saves `state` as the checkpoint of `step` and drops earlier ones.

  Raises:
    OSError: if it could not be written; earlier checkpoints are as they were.
  """
  try:
    with _manager(folder) as manager:
      manager.save(step, args=ocp.args.StandardSave(state), force=True)
  except Exception as error:  # Orbax and TensorStore raise several kinds.
    cause = str(error).splitlines()[0] if str(error) else repr(error)
    raise OSError(f'Could not save the checkpoint {folder}/{step}: {cause}') from error


def last_step(folder: epath.PathLike) -> int:
  """Returns the step of the last checkpoint, 0 where there is none."""
  if not epath.Path(folder).exists():
    return 0
  with _manager(folder) as manager:
    return manager.latest_step() or 0


def restore(
    folder: epath.PathLike, like: Any, mesh: Mesh
) -> tuple[int, Any | None]:
  """Restores the last checkpoint.

  Args:
    folder: as given to `save`.
    like: a pytree of jax.ShapeDtypeStruct, the state that is expected.
    mesh: the devices to place it on, shared out along the leading axis of seeds;
      they may differ from those that it was saved from.

  Returns:
    The step and the state, or (0, None) where there is no checkpoint.

  Raises:
    ValueError: if files of the checkpoint are missing or cut short, or it is of
      another state. Bits flipped within an array go unnoticed: Orbax keeps no
      checksum of them.
  """
  folder = epath.Path(folder)
  if not folder.exists():
    return 0, None
  for path in folder.glob('*orbax-checkpoint-tmp*'):
    path.rmtree()
  mend = 'Delete the folder to train these seeds again.'
  with _manager(folder) as manager:
    step = manager.latest_step()
    if step is None:
      return 0, None
    try:
      found = manager.item_metadata(step)
    except _NOT_DAMAGE:
      raise
    except Exception as error:
      raise ValueError(f'Damaged checkpoint {folder}/{step}. {mend}') from error
    if not jax.tree.leaves(found):
      raise ValueError(f'Damaged checkpoint {folder}/{step}. {mend}')
    _check(found, like, f'{folder}/{step}')
    placement = NamedSharding(mesh, PartitionSpec('seed'))
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placement), like
    )
    try:
      state = manager.restore(step, args=ocp.args.StandardRestore(target))
    except _NOT_DAMAGE:
      raise
    except Exception as error:
      raise ValueError(f'Damaged checkpoint {folder}/{step}. {mend}') from error
  return step, state


def _manager(folder: epath.PathLike) -> ocp.CheckpointManager:
  options = ocp.CheckpointManagerOptions(
      max_to_keep=1, enable_async_checkpointing=False
  )
  return ocp.CheckpointManager(
      epath.Path(folder).resolve(),
      options=options,
      item_handlers=ocp.StandardCheckpointHandler(),
  )


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
