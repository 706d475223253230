"""Trains one model over a mesh, on one process or many, from an iterator of batches.

The caller compiles the step; the loop feeds it, tells what came of it, and keeps a
checkpoint from which the same run goes on, on as many devices and processes as there
are then. All processes run the loop alike.
"""

from collections.abc import Callable, Iterator, Sequence
import json
from typing import Any
import zlib

from etils import epath
import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from vvlen.training import checkpoint
from vvlen.training.preemption import Preempted, watching_for_preemption
from vvlen.training.step import Batch, Metrics

State = Any  # a pytree of jax.Array; state.step is [] int32, the updates made


def place_rows(
    mesh: Mesh, axes: str | Sequence[str]
) -> Callable[[Batch], Batch]:
  """Returns what makes one global batch of the rows that each process has read.

  Args:
    mesh: of the training.
    axes: the names of the axes that the rows are shared out over. Between them they
      must tell the processes apart.

  Returns:
    A function from a pytree of numpy arrays [B / processes, ...] to one of jax.Array
    [B, ...]. It raises ValueError for rows that cannot be shared out equally.
  """
  axes = (axes,) if isinstance(axes, str) else tuple(axes)
  sharding = NamedSharding(mesh, PartitionSpec(axes))
  ways = int(np.prod([mesh.shape[axis] for axis in axes]))
  ways_here = int(np.prod([mesh.local_mesh.shape[axis] for axis in axes]))
  if ways != ways_here * jax.process_count():
    raise ValueError(
        f'The axes {axes} share out rows over {ways} groups of devices, {ways_here} '
        f'of them on each of {jax.process_count()} processes: their rows overlap'
    )

  def one(rows):
    if len(rows) % ways_here:
      raise ValueError(
          f'{len(rows)} rows of a process do not divide over {ways_here} groups of '
          f'devices, the axes {axes}; change the batch size or the mesh'
      )
    shape = (len(rows) * jax.process_count(), *rows.shape[1:])
    return jax.make_array_from_process_local_data(sharding, rows, shape)

  return lambda batch: jax.tree.map(one, batch)


def train(
    step: Callable[[State, Batch], tuple[State, Metrics]],
    state: State,
    batches: Iterator[Batch],
    num_steps: int,
    *,
    place: Callable[[Batch], Batch],
    folder: epath.PathLike | None = None,
    meta: dict[str, Any] | None = None,
    save_every_steps: int = 1000,
    metrics_every_steps: int = 100,
    evaluate_every_steps: int | None = None,
    on_metrics: Callable[[int, dict[str, float]], None] | None = None,
    evaluate: Callable[[int, State], None] | None = None,
) -> State:
  """Trains up to `num_steps` updates, going on from the checkpoint where there is one.

  The devices are kept busy: metrics are fetched when the next step is on its way, and
  the next batch is made while they compute.

  A run that was killed and goes on from its checkpoint tells the same metrics and
  evaluations again as far as it repeats steps, and ends in the same state, bit for
  bit on the same devices.

  Args:
    step: (state, batch) -> (next state, metrics {name: []}), compiled by the caller.
      It may take the memory of the state, and should return one placed alike.
    state: before the first step, on the devices of its mesh. Its memory is taken, also
      for a state that is restored in its place and with its shardings.
    batches: gives this process's rows of each batch as numpy. With a folder it must
      have get_state and set_state, as a grain.DatasetIterator has, whose state is
      the same on all processes: the one state that is saved restores any number of
      them. {'next_index': batches read}, which Grain gives for a MapDataset, is such.
    num_steps: updates in all, those made before counted.
    place: from what `batches` gives to global arrays; see `place_rows`.
    folder: where checkpoints go and are looked for, seen by all processes; None for
      none.
    meta: what JSON can hold, and the run be known by: a checkpoint with another is
      refused. The place in the batches means something only for the same text, seed
      and batch size.
    save_every_steps: between two checkpoints. The last state is always saved.
    metrics_every_steps: between two calls of `on_metrics`.
    evaluate_every_steps: between two calls of `evaluate`; None for the last only.
    on_metrics: called with (updates made, {name: mean over the steps since the last
      call}), also before the state is evaluated and at the end.
    evaluate: called with (updates made, state), before the state is saved and once
      more when a run goes on from, or ended at, such a step. Its state's memory is
      taken when it returns.

  Returns:
    The state after num_steps updates.

  Raises:
    ValueError: for impossible numbers, batches that end too early, or a checkpoint
      that is damaged, of another run or beyond num_steps.
    OSError: if a checkpoint could not be saved.
    Preempted: after SIGTERM to any of the processes, once the step under way is made
      and its state saved, on all of them.
  """
  for name, every in (('save', save_every_steps), ('metrics', metrics_every_steps),
                      ('evaluate', evaluate_every_steps)):
    if every is not None and every < 1:
      raise ValueError(f'{name}_every_steps must be positive: {every}')
  made = int(state.step)
  waiting: list[Metrics] = []  # of steps that were not told of
  if folder is not None:
    meta = _as_json(meta or {})
    _position(batches)
    made, state, waiting = _resume(folder, made, state, batches, meta)
  if made > num_steps:
    raise ValueError(f'The run is at step {made} already, beyond {num_steps}')

  def due(every):
    return made == num_steps or (every and made and made % every == 0)

  def tell():
    nonlocal waiting
    fetched, waiting = jax.device_get(waiting), []
    if fetched and on_metrics is not None:
      on_metrics(made, {
          name: float(np.mean([np.float64(m[name]) for m in fetched]))
          for name in fetched[0]
      })

  if evaluate is not None and due(evaluate_every_steps):
    evaluate(made, state)
  with watching_for_preemption() as preempted:
    while made < num_steps:
      batch = place(_next(batches, made, num_steps))
      state, metrics = step(state, batch)
      if made % metrics_every_steps == 0:
        tell()  # Not before this step was sent off, for the devices would wait.
      waiting.append(metrics)
      made += 1
      stop = preempted(made)
      if evaluate is not None and due(evaluate_every_steps) and not stop:
        tell()
        evaluate(made, state)
      if folder is not None and (due(save_every_steps) or stop):
        if made % metrics_every_steps == 0:
          tell()
        # The others wait in the checkpoint: what is told does not depend on saving.
        waiting = [_floats(m) for m in jax.device_get(waiting)]
        beside = {'batches': _position(batches), 'meta': meta, 'metrics': waiting}
        checkpoint.save(folder, made, state, beside)
      if stop:
        where = 'not saved' if folder is None else f'saved in {folder}'
        raise Preempted(f'Told to stop after step {made} of {num_steps}, {where}')
    tell()
  return state


def _next(batches: Iterator[Batch], made: int, num_steps: int) -> Batch:
  try:
    return next(batches)
  except StopIteration:
    raise ValueError(f'The batches end after {made} of {num_steps} steps') from None


def _resume(
    folder: epath.PathLike, made: int, state: State, batches: Any, meta: dict[str, Any]
) -> tuple[int, State, list[Metrics]]:
  """Returns step and state of the last checkpoint and moves `batches` there.

  Where there is none, those given are returned. And the metrics that were not told of.
  """
  step = checkpoint.last_step(folder)
  if not step:
    return made, state, []
  beside = checkpoint.read_meta(folder) or {}
  if not beside.keys() >= {'batches', 'meta'}:
    raise ValueError(
        f'The checkpoint {folder}/{step} does not say which batches it has seen. '
        'Choose another folder.'
    )
  found = beside['meta']
  for name in sorted(found.keys() | meta.keys()):
    if name not in found or name not in meta or found[name] != meta[name]:
      raise ValueError(
          f'The checkpoint {folder}/{step} is of another run: its {name} is '
          f'{found.get(name)!r}, not {meta.get(name)!r}. Choose another folder.'
      )
  like = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
  )
  jax.tree.map(lambda x: x.delete(), state)  # There may be no room for two.
  _, state = checkpoint.restore(folder, like)
  batches.set_state(beside['batches'])
  return step, state, beside.get('metrics', [])


def _floats(metrics: Metrics) -> Metrics:
  return {name: float(x) for name, x in metrics.items()}  # type: ignore[misc]


def _position(batches: Any) -> Any:
  """Returns the state of the iterator, as JSON, after a look whether it will do."""
  if not hasattr(batches, 'get_state') or not hasattr(batches, 'set_state'):
    raise ValueError(
        f'Batches that can be gone on with have get_state and set_state: {batches}'
    )
  position = _as_json(batches.get_state())
  if jax.process_count() > 1:
    digest = zlib.crc32(json.dumps(position, sort_keys=True).encode())
    digests = multihost_utils.process_allgather(np.uint32(digest))
    if len(set(digests.tolist())) > 1:
      raise ValueError(
          'The iterators of the processes differ in their states, of which one alone '
          f'is saved; here it is {position}'
      )
  return position


def _as_json(value: Any) -> Any:
  try:
    return json.loads(json.dumps(value))
  except TypeError as error:
    raise ValueError(f'A checkpoint cannot hold {value!r}: {error}') from error
