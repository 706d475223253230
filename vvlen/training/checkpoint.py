"""Saves and restores the state of a run, with Orbax.

One folder holds the checkpoints of one run, named by step; the last two are kept. Each
has checksums of its arrays, so that damage is noticed and the checkpoint before it is
used. If a save is cut off, the checkpoint before it remains the last one. Several
processes must all call each function, on one folder that all can access.
"""

from collections.abc import Callable, Iterator
import contextlib
import json
import re
import sys
from typing import Any
import zlib

from etils import epath
import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np
import orbax.checkpoint as ocp

from vvlen.training import checksums

_KEPT = 2  # checkpoints
# Errors that do not mean damaged files.
_NOT_DAMAGE = (
    PermissionError, ConnectionError, TimeoutError, MemoryError,
    jax.errors.JaxRuntimeError,
)
# Words of errors that a network caused, and of those of another process of the run.
_OF_NETWORK = re.compile('UNAVAILABLE|DEADLINE_EXCEEDED|[Cc]onnect|[Tt]imed? ?out'
                         '|retry attempts failed')
_OF_PEER = re.compile('Gloo|NCCL')


def save(
    folder: epath.PathLike, step: int, state: Any, meta: dict[str, Any] | None = None
) -> None:
  """Saves `state` as the checkpoint of `step`.

  Deletes incomplete checkpoints, and all but the last two.

  Args:
    folder: of the run; created if it is missing.
    step: the step of the checkpoint, larger than that of earlier ones.
    state: a pytree of jax.Array, of which each process holds a part.
    meta: values that JSON can hold, saved beside the state by the first process.

  Raises:
    OSError: if it could not be written; earlier checkpoints are unchanged. It is a
      ConnectionError if the network failed.
  """
  items = {'default': ocp.args.StandardSave(state)}
  if meta is not None:
    items['meta'] = ocp.args.JsonSave(meta)
  sums = {'step': step, 'meta': _sum_of(meta), 'arrays': checksums.of_arrays(state)}
  items['checksums'] = ocp.args.JsonSave(sums)
  try:
    _clear(folder)
    with _manager(folder) as manager:
      manager.save(step, args=ocp.args.Composite(**items), force=True)
  except Exception as error:  # Orbax and TensorStore raise several kinds.
    raise _os_error(
        f'Could not save the checkpoint {folder}/{step}', error) from error


def last_step(folder: epath.PathLike) -> int:
  """Returns the step of the last checkpoint, 0 if there is none.

  All processes return what the first one finds.
  """
  return max(_steps(folder), default=0)


def read_meta(folder: epath.PathLike) -> dict[str, Any] | None:
  """Returns what was saved beside the state of the last checkpoint; None if nothing.

  Like `restore`, it falls back on the checkpoint before a damaged one.

  Raises:
    ValueError: if all checkpoints are damaged.
  """

  def read(manager, step):
    with _naming_damage(folder, step):
      meta = None
      if 'meta' in manager.item_metadata(step):
        items = ocp.args.Composite(meta=ocp.args.JsonRestore())
        meta = manager.restore(step, args=items)['meta']
      sums = _read_sums(manager, step)
      if sums and sums['meta'] != _sum_of(meta):
        raise _Damaged('what is beside its arrays differs from what was saved')
      return meta

  return _of_last_sound(folder, read)[1]


def restore(
    folder: epath.PathLike, like: Any, mesh: Mesh | None = None
) -> tuple[int, Any | None]:
  """Restores the state of the last checkpoint, and removes what cut-off saves left.

  If it is damaged and the one before it is not, it is renamed to <step>.damaged, the
  other becomes the last, and a line on standard error says so.

  Args:
    folder: as given to `save`.
    like: a pytree of jax.ShapeDtypeStruct, the expected state. Without `mesh`, their
      shardings are those of the restored arrays.
    mesh: with the axis 'seed', over which the first axis of every array is sharded.
      Here, and in `like`, devices may differ from those that saved the state.

  Returns:
    The step and the state, or (0, None) where there is no checkpoint.

  Raises:
    ValueError: if files of all checkpoints are missing, cut short or changed, or if a
      checkpoint is of another state or has been renamed to another step. Checkpoints of
      earlier versions have no checksums: bits flipped within their arrays, and other
      steps, go unnoticed.
  """
  _clear(folder)
  if mesh is not None:
    placement = NamedSharding(mesh, PartitionSpec('seed'))
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placement), like
    )

  def read(manager, step):
    with _naming_damage(folder, step):
      found = manager.item_metadata(step)['default']
      if not jax.tree.leaves(found):
        raise ValueError('it holds no arrays')
    _check(found, like, f'{folder}/{step}')
    with _naming_damage(folder, step):
      state = _read_arrays(manager, step, like)
      sums = _read_sums(manager, step)
      if sums and sums['arrays'] != checksums.of_arrays(state):
        raise _Damaged('its arrays differ from those that were saved')
      return state

  return _of_last_sound(folder, read)


class _Damaged(ValueError):
  """A checkpoint whose files are not as they were saved."""


def _of_last_sound(
    folder: epath.PathLike, read: Callable[[ocp.CheckpointManager, int], Any]
) -> tuple[int, Any | None]:
  """Returns step and content of the last checkpoint that is not damaged.

  Renames damaged ones after it. If all are damaged, raises the error of the last.
  """
  first, damaged = None, []
  for step in sorted(_steps(folder), reverse=True):
    try:
      with _manager(folder) as manager:
        content = read(manager, step)
    except _Damaged as error:
      first = first or error
      damaged.append(step)
      continue
    _set_aside(epath.Path(folder), damaged, step)
    return step, content
  if first is not None:
    raise first
  return 0, None


def _set_aside(folder: epath.Path, damaged: list[int], used: int) -> None:
  """Renames damaged checkpoints, so that they no longer count, and says so."""
  for step in damaged if jax.process_index() == 0 else ():
    aside = folder / f'{step}.damaged'
    if aside.exists():
      aside.rmtree()
    (folder / str(step)).rename(aside)
    print(f'Damaged checkpoint {folder}/{step}: renamed to {aside.name}. The one of '
          f'step {used} is used.', file=sys.stderr, flush=True)
  if damaged and jax.process_count() > 1:
    multihost_utils.sync_global_devices('set_aside')


def _steps(folder: epath.PathLike) -> list[int]:
  """Returns the steps of the checkpoints; all processes return what the first finds."""
  found = np.zeros(_KEPT, np.int32)
  if jax.process_index() == 0 and epath.Path(folder).exists():
    steps = sorted(ocp.utils.checkpoint_steps(folder))[-_KEPT:]
    found[:len(steps)] = steps
  found = multihost_utils.broadcast_one_to_all(found)
  return [int(step) for step in found if step]


def _read_arrays(manager: ocp.CheckpointManager, step: int, like: Any) -> Any:
  """Returns the arrays of a checkpoint.

  If one process finds its part damaged, this raises in all of them, so that they all go
  on to the checkpoint before it.
  """
  items = ocp.args.Composite(default=ocp.args.StandardRestore(like))
  found = manager.restore(step, args=items)['default']
  error = found if isinstance(found, Exception) else None
  damaged = np.array(error is not None and _is_damage(error))
  if jax.process_count() > 1:
    damaged = multihost_utils.process_allgather(damaged)
  if error is not None:
    raise error
  if damaged.any():
    raise _Damaged('another process cannot read its part')
  return found


def _read_sums(manager: ocp.CheckpointManager, step: int) -> dict[str, Any] | None:
  """Returns the checksums of a checkpoint; None for one of an earlier version."""
  if 'checksums' not in manager.item_metadata(step):
    return None
  items = ocp.args.Composite(checksums=ocp.args.JsonRestore())
  sums = manager.restore(step, args=items)['checksums']
  if sums['step'] != step:
    raise _Damaged(f'it is of step {sums["step"]}')
  return sums


def _sum_of(meta: dict[str, Any] | None) -> int:
  return zlib.crc32(json.dumps(meta, sort_keys=True).encode())


def _clear(folder: epath.PathLike) -> None:
  """Removes the files of saves that were cut off."""
  if jax.process_index() == 0 and epath.Path(folder).exists():
    for path in epath.Path(folder).glob('*orbax-checkpoint-tmp*'):
      path.rmtree()


def _manager(folder: epath.PathLike) -> ocp.CheckpointManager:
  options = ocp.CheckpointManagerOptions(
      max_to_keep=_KEPT, enable_async_checkpointing=False
  )
  arrays = ocp.StandardCheckpointHandler()
  # After it, processes wait for each other: one that failed must not be missing.
  arrays.restore = _returning_errors(arrays.restore)  # type: ignore[method-assign]
  manager = ocp.CheckpointManager(
      epath.Path(folder).resolve(),
      options=options,
      item_handlers={
          'default': arrays,
          'meta': ocp.JsonCheckpointHandler(),
          'checksums': ocp.JsonCheckpointHandler(),
      },
  )
  # Only to log it, the manager would report its step to jax.distributed. But preemption
  # counts calls, not steps (`watching_for_preemption`), so a SIGTERM during the save
  # would take effect only at the call with that number.
  manager.reached_preemption = lambda step: False  # type: ignore[method-assign]
  return manager


def _returning_errors(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a function that returns the error which the given one raises."""

  def guarded(*args, **kwargs):
    try:
      return function(*args, **kwargs)
    except Exception as error:
      return error

  return guarded


def _os_error(what: str, error: Exception) -> OSError:
  """Returns an error that says what failed, and why; see `save`."""
  words = str(error) or repr(error)
  of_peer = isinstance(error, jax.errors.JaxRuntimeError) or _OF_PEER.search(words)
  of_network = _OF_NETWORK.search(words) and not of_peer
  kind = ConnectionError if of_network else OSError
  return kind(f'{what}: {words.splitlines()[0]}')


def _is_damage(error: Exception) -> bool:
  """Whether an error from reading means damaged files."""
  return isinstance(error, _Damaged) or not (
      isinstance(error, _NOT_DAMAGE) or _OF_NETWORK.search(str(error)))


@contextlib.contextmanager
def _naming_damage(folder: epath.PathLike, step: int) -> Iterator[None]:
  """Turns errors from reading a checkpoint into one clear ValueError."""
  try:
    yield
  except _NOT_DAMAGE:
    raise
  except Exception as error:
    if not _is_damage(error):
      raise _os_error(
          f'Could not read the checkpoint {folder}/{step}', error) from error
    why = f': {error}' if isinstance(error, _Damaged) else ''
    raise _Damaged(
        f'Damaged checkpoint {folder}/{step}{why}. Delete the folder to train again.'
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
