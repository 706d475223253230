"""Trains one model over a mesh, on one process or many, from an iterator of batches.

The caller compiles the step; the loop feeds it batches, reports its metrics, and saves
checkpoints from which the run can resume, on any number of devices and processes. All
processes run the same loop.
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

from vvlen.training import checkpoint, finite
from vvlen.training.preemption import Preempted, watching_for_preemption
from vvlen.training.step import Batch, Metrics

State = Any  # a pytree of jax.Array; state.step is [] int32, the updates made


def place_rows(
    mesh: Mesh, axes: str | Sequence[str]
) -> Callable[[Batch], Batch]:
  """Returns a function that joins the rows of all processes into one global batch.

  Args:
    mesh: of the training.
    axes: the names of the axes that rows are sharded over. No two processes may have
      devices for the same rows.

  Returns:
    A function from a pytree of numpy arrays [B / processes, ...] to one of jax.Array
    [B, ...]. It raises ValueError for rows that cannot be divided equally.

  Raises:
    ValueError: if two processes have devices for the same rows.
  """
  axes = (axes,) if isinstance(axes, str) else tuple(axes)
  sharding = NamedSharding(mesh, PartitionSpec(axes))
  ways = int(np.prod([mesh.shape[axis] for axis in axes]))
  ways_here = int(np.prod([mesh.local_mesh.shape[axis] for axis in axes]))
  if ways != ways_here * jax.process_count():
    raise ValueError(
        f'The axes {axes} shard rows over {ways} groups of devices, {ways_here} '
        f'of them on each of {jax.process_count()} processes: their rows overlap'
    )

  def one(rows):
    if len(rows) % ways_here:
      raise ValueError(
          f'{len(rows)} rows of a process cannot be divided among {ways_here} groups '
          f'of devices, the axes {axes}; change the batch size or the mesh'
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
    before_save: Callable[[], None] | None = None,
    must_be_finite: Sequence[str] = ('loss',),
) -> State:
  """Trains up to `num_steps` updates, resuming from the last checkpoint if any.

  The devices are kept busy: metrics are fetched after the next step was dispatched, and
  the next batch is made while the devices compute.

  A run that was killed and resumes from its checkpoint repeats the steps after it, and
  reports their metrics and evaluations again, with the same values. It ends in the same
  state, bit for bit on the same devices.

  Args:
    step: (state, batch) -> (next state, metrics {name: []}), compiled by the caller.
      It may donate the state, and should return one with the same shardings.
    state: the state before the first step, on the devices of its mesh. Its memory is
      reused, also for a restored state, which gets its shardings.
    batches: an iterator over this process's rows of each batch, as numpy. With a folder
      it must have get_state and set_state, as a grain.DatasetIterator has, and its
      state must be the same on all processes: one state is saved, and restores any
      number of processes. The state of a Grain MapDataset, {'next_index': batches
      read}, is an example.
    num_steps: the number of updates, including those made before resuming.
    place: makes global arrays from a batch of `batches`; see `place_rows`.
    folder: where checkpoints are saved and looked for, one that all processes can
      access; None to save none.
    meta: values that JSON can hold and that identify the run: a checkpoint with other
      values is refused. Include the text, the seed and the batch size, as a position in
      the batches has no meaning without them.
    save_every_steps: steps between two checkpoints. The last state is always saved.
    metrics_every_steps: steps between two calls of `on_metrics`.
    evaluate_every_steps: steps between two calls of `evaluate`; None to call it only
      at the end.
    on_metrics: called with (updates made, {name: mean over the steps since the last
      call}), also before the state is evaluated and at the end.
    evaluate: called with (updates made, state), before the state is saved; and again if
      a run resumes at such a step, or is started again after it ended there. The memory
      of the state may be reused when it has returned.
    before_save: called before each checkpoint is saved: to write to disk what
      `on_metrics` and `evaluate` reported, which must not be lost once its training is
      saved.
    must_be_finite: names of metrics. Training ends if one of them is not finite, or if
      parameters are not finite when they are to be saved; these are then not saved.

  Returns:
    The state after num_steps updates.

  Raises:
    ValueError: for impossible numbers, batches that end too early, a checkpoint that is
      damaged, of another run or beyond num_steps, or numbers that are not finite,
      naming the parameters.
    OSError: if a checkpoint could not be saved.
    Preempted: on all processes, after SIGTERM to any of them, when the step under way
      is made and its state is saved.
  """
  for name, every in (('save', save_every_steps), ('metrics', metrics_every_steps),
                      ('evaluate', evaluate_every_steps)):
    if every is not None and not every >= 1:  # nor nan, which would mean never
      raise ValueError(f'{name}_every_steps must be positive: {every}')
  made = int(state.step)
  waiting: list[Metrics] = []  # of steps that are not reported yet
  if folder is not None:
    meta = _as_json(meta or {})
    _position(batches)
    made, state, waiting = _resume(folder, made, state, batches, meta)
  if made > num_steps:
    raise ValueError(f'The run is at step {made} already, beyond {num_steps}')

  def due(every):
    return made == num_steps or (every and made and made % every == 0)

  def check(fetched):
    for step, metrics in enumerate(fetched, made - len(fetched) + 1):
      for name in must_be_finite:
        if name in metrics and not np.isfinite(metrics[name]):
          raise ValueError(f'The {name} of step {step} is not finite. '
                           + _remedy(finite.bad_weights(_params(state)), folder))

  def tell():
    nonlocal waiting
    fetched, waiting = jax.device_get(waiting), []
    check(fetched)
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
        tell()  # Only after this step was dispatched, or the devices would wait.
      waiting.append(metrics)
      made += 1
      stop = preempted(made)
      if evaluate is not None and due(evaluate_every_steps) and not stop:
        tell()
        evaluate(made, state)
      if folder is not None and (due(save_every_steps) or stop):
        if made % metrics_every_steps == 0:
          tell()
        # The others go into the checkpoint, so that saving does not change reports.
        waiting = [_floats(m) for m in jax.device_get(waiting)]
        check(waiting)
        if bad := finite.bad_weights(_params(state)):
          raise ValueError(f'Parameters are not finite after step {made}. '
                           + _remedy(bad, folder))
        if before_save is not None:
          before_save()
        beside = {'batches': _position(batches), 'meta': meta, 'metrics': waiting}
        checkpoint.save(folder, made, state, beside)
      if stop:
        where = 'not saved' if folder is None else f'saved in {folder}'
        raise Preempted(f'Told to stop after step {made} of {num_steps}, {where}')
    tell()
  return state


def _params(state: State) -> Any:
  return getattr(state, 'params', state)


def _remedy(bad: str, folder: epath.PathLike | None) -> str:
  """Says which parameters are not finite by now, and what is left of a run."""
  last = 0 if folder is None else checkpoint.last_step(folder)
  kept = f'The last good checkpoint is {folder}/{last}' if last else 'None was saved'
  return (f'Not finite by now: {bad or "no parameters"}. {kept}. A smaller learning '
          'rate may help, in another folder.')


def _next(batches: Iterator[Batch], made: int, num_steps: int) -> Batch:
  try:
    return next(batches)
  except StopIteration:
    raise ValueError(f'The batches end after {made} of {num_steps} steps') from None


def _resume(
    folder: epath.PathLike, made: int, state: State, batches: Any, meta: dict[str, Any]
) -> tuple[int, State, list[Metrics]]:
  """Returns step, state and unreported metrics of the last checkpoint.

  Moves `batches` to that step. Without a checkpoint, returns the given step and state.
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


def _floats(metrics: Metrics) -> Metrics:
  return {name: float(x) for name, x in metrics.items()}  # type: ignore[misc]


def _position(batches: Any) -> Any:
  """Returns the state of the iterator as JSON, after checking that it can be saved."""
  if not hasattr(batches, 'get_state') or not hasattr(batches, 'set_state'):
    raise ValueError(
        f'Batches that can be resumed have get_state and set_state: {batches}'
    )
  position = _as_json(batches.get_state())
  if jax.process_count() > 1:
    digest = zlib.crc32(json.dumps(position, sort_keys=True).encode())
    digests = multihost_utils.process_allgather(np.uint32(digest))
    if len(set(digests.tolist())) > 1:
      raise ValueError(
          'The iterators of the processes differ in their states, but only one state '
          f'is saved; here it is {position}'
      )
  return position


def _as_json(value: Any) -> Any:
  try:
    return json.loads(json.dumps(value))
  except TypeError as error:
    raise ValueError(f'A checkpoint cannot hold {value!r}: {error}') from error
