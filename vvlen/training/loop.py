"""Trains one model over a mesh, on one process or many, from an iterator of batches.

The caller compiles the step; the loop feeds it batches, reports its metrics, and saves
checkpoints from which the run can resume, on any number of devices and processes. All
processes run the same loop.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from etils import epath
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from vvlen.training import checkpoint, finite, resuming
from vvlen.training.preemption import Preempted, watching_for_preemption
from vvlen.training.resuming import State
from vvlen.training.step import Batch, Metrics


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
    evaluate_after: Collection[int] = (),
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
      at the end, and after the steps `evaluate_after`.
    evaluate_after: numbers of updates after which `evaluate` is called besides.
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
  _check_intervals(save=save_every_steps, metrics=metrics_every_steps,
                   evaluate=evaluate_every_steps)
  made = int(state.step)
  waiting: list[Metrics] = []  # of steps that an earlier start did not report
  if folder is not None:
    meta = resuming.as_json(meta or {})
    resuming.position(batches)  # raises if it cannot be saved
    made, state, waiting = resuming.restore(folder, made, state, batches, meta)
  if made > num_steps:
    raise ValueError(f'The run is at step {made} already, beyond {num_steps}')
  unreported = _Unreported(waiting, on_metrics, must_be_finite, folder)

  def due(every: int | None) -> bool:
    return made == num_steps or bool(every and made and made % every == 0)

  def measures() -> bool:
    return due(evaluate_every_steps) or made in evaluate_after

  if evaluate is not None and measures():
    evaluate(made, state)
  with watching_for_preemption() as preempted:
    while made < num_steps:
      batch = place(_next(batches, made, num_steps))
      state, metrics = step(state, batch)
      if made % metrics_every_steps == 0:
        # Only after this step was dispatched, or the devices would wait.
        unreported.report(made, state)
      unreported.add(metrics)
      made += 1
      stop = preempted(made)
      if evaluate is not None and measures() and not stop:
        unreported.report(made, state)
        evaluate(made, state)
      if folder is not None and (due(save_every_steps) or stop):
        if made % metrics_every_steps == 0:
          unreported.report(made, state)
        # The others go into the checkpoint, so that saving does not change reports.
        others = unreported.fetch(made, state)
        _check_weights(made, state, folder)
        if before_save is not None:
          before_save()
        resuming.save(folder, made, state, batches, meta, others)
      if stop:
        where = 'not saved' if folder is None else f'saved in {folder}'
        raise Preempted(f'Told to stop after step {made} of {num_steps}, {where}')
    unreported.report(made, state)
  return state


class _Unreported:
  """The metrics of the last steps, on the devices until they are reported."""

  def __init__(
      self, waiting: list[Metrics],
      on_metrics: Callable[[int, dict[str, float]], None] | None,
      must_be_finite: Sequence[str], folder: epath.PathLike | None,
  ):
    """Begins with `waiting`, of a step each; the other arguments are as of `train`."""
    self._waiting, self._on_metrics = waiting, on_metrics
    self._must_be_finite, self._folder = must_be_finite, folder

  def add(self, metrics: Metrics) -> None:
    self._waiting.append(metrics)

  def report(self, made: int, state: State) -> None:
    """Calls on_metrics(made, means over the steps since the last report)."""
    fetched, self._waiting = self.fetch(made, state), []
    if fetched and self._on_metrics is not None:
      self._on_metrics(made, {
          name: float(np.mean([np.float64(m[name]) for m in fetched]))
          for name in fetched[0]
      })

  def fetch(self, made: int, state: State) -> list[Metrics]:
    """Returns the metrics, which remain to be reported.

    Args:
      made: the number of the last of their steps.
      state: after that step or the next, for the message of an error.

    Raises:
      ValueError: if one that must be finite is not.
    """
    self._waiting = jax.device_get(self._waiting)
    for step, metrics in enumerate(self._waiting, made - len(self._waiting) + 1):
      for name in self._must_be_finite:
        if name in metrics and not np.isfinite(metrics[name]):
          raise ValueError(f'The {name} of step {step} is not finite. '
                           + _remedy(_bad_weights(state), self._folder))
    return self._waiting


def _check_intervals(**steps: int | None) -> None:
  for name, every in steps.items():
    if every is not None and not every >= 1:  # nor nan, which would mean never
      raise ValueError(f'{name}_every_steps must be positive: {every}')


def _check_weights(made: int, state: State, folder: epath.PathLike) -> None:
  if bad := _bad_weights(state):
    raise ValueError(
        f'Parameters are not finite after step {made}. ' + _remedy(bad, folder))


def _bad_weights(state: State) -> str:
  return finite.bad_weights(getattr(state, 'params', state))


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
