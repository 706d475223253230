"""What a checkpoint holds beside the state of a run, so that it can be resumed.

{'batches': the position of the iterator, 'meta': values that identify the run,
'metrics': those of steps that are not reported yet}
"""

import json
from typing import Any
import zlib

from etils import epath
import jax
from jax.experimental import multihost_utils
import numpy as np

from vvlen.training import checkpoint
from vvlen.training.step import Metrics

State = Any  # a pytree of jax.Array; state.step is [] int32, the updates made


def save(
    folder: epath.PathLike, made: int, state: State, batches: Any,
    meta: dict[str, Any] | None, unreported: list[Metrics],
) -> None:
  """Saves a run after `made` steps.

  Args:
    folder: of the run.
    made: the step of `state`.
    state: of the training.
    batches: an iterator with get_state and set_state.
    meta: values that identify the run, as JSON.
    unreported: the metrics [] of steps that are not reported yet.
  """
  metrics = [{name: float(x) for name, x in m.items()} for m in unreported]
  beside = {'batches': position(batches), 'meta': meta, 'metrics': metrics}
  checkpoint.save(folder, made, state, beside)


def restore(
    folder: epath.PathLike, made: int, state: State, batches: Any, meta: dict[str, Any]
) -> tuple[int, State, list[Metrics]]:
  """Returns the step, state and unreported metrics of the last checkpoint.

  Moves `batches` to that step. Without a checkpoint, returns the given step and state.

  Args:
    folder: of the run.
    made: the step of `state`.
    state: gives shapes and shardings. Its memory is freed.
    batches: as for `save`.
    meta: as for `save`.

  Raises:
    ValueError: if the checkpoint is damaged or of another run.
  """
  if not checkpoint.last_step(folder):
    return made, state, []
  _read_beside(folder, meta)  # before the memory of the state is gone
  like = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
  )
  jax.tree.map(lambda x: x.delete(), state)  # There may be no room for two.
  step, state = checkpoint.restore(folder, like)
  beside = _read_beside(folder, meta)  # again: the last one may have been damaged
  batches.set_state(beside['batches'])
  return step, state, beside.get('metrics', [])


def _read_beside(folder: epath.PathLike, meta: dict[str, Any]) -> dict[str, Any]:
  """Returns what was saved beside the last state, after checking that it is this run's.

  Raises:
    ValueError: if its meta is not `meta`, or it has no position in the batches.
  """
  beside = checkpoint.read_meta(folder) or {}
  name_of = f'{folder}/{checkpoint.last_step(folder)}'
  if not beside.keys() >= {'batches', 'meta'}:
    raise ValueError(
        f'The checkpoint {name_of} does not say which batches it has seen. '
        'Choose another folder.'
    )
  found = beside['meta']
  for name in sorted(found.keys() | meta.keys()):
    if name not in found or name not in meta or found[name] != meta[name]:
      raise ValueError(
          f'The checkpoint {name_of} is of another run: its {name} is '
          f'{found.get(name)!r}, not {meta.get(name)!r}. Choose another folder.'
      )
  return beside


def position(batches: Any) -> Any:
  """Returns the state of the iterator as JSON, after checking that it can be saved."""
  if not hasattr(batches, 'get_state') or not hasattr(batches, 'set_state'):
    raise ValueError(
        f'Batches that can be resumed have get_state and set_state: {batches}'
    )
  position = as_json(batches.get_state())
  if jax.process_count() > 1:
    digest = zlib.crc32(json.dumps(position, sort_keys=True).encode())
    digests = multihost_utils.process_allgather(np.uint32(digest))
    if len(set(digests.tolist())) > 1:
      raise ValueError(
          'The iterators of the processes differ in their states, but only one state '
          f'is saved; here it is {position}'
      )
  return position


def as_json(value: Any) -> Any:
  """Returns a value as JSON gives it back; raises ValueError if JSON cannot hold it."""
  try:
    return json.loads(json.dumps(value))
  except TypeError as error:
    raise ValueError(f'A checkpoint cannot hold {value!r}: {error}') from error
