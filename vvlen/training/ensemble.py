"""Trains many seeds at once.

A block of seeds is trained together: divided among the devices of a mesh, and run on
each device in equal groups (`vvlen.sharding.over_seeds`). Seed i always has the key
fold_in(key(seed), i), so its weights and data do not depend on which other seeds are
trained, on how many there are, or on the devices. If the devices do not divide the
seeds, the last seed is repeated (`vvlen.sharding.padding`).

Initial weights and data of a seed are always the same bits. With groups of one and
several seeds on each device, so are its trained weights, on any number of devices of
one kind, in all problems that are tested (`over_seeds` says what may break this). With
larger groups, or one seed on each device, they agree to rounding.
"""

from collections.abc import Callable, Sequence
import functools
import operator
import time
from typing import Any, NamedTuple

from etils import epath
import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh
import numpy as np

from vvlen import sharding
from vvlen.training import seed_checkpoints
from vvlen.training.preemption import Preempted, watching_for_preemption
from vvlen.training.step import init_state, Metrics, Problem, train_steps, TrainState

# What a seed's key is used for: purpose_key(key, TEST), and so on.
INIT, TRAIN, TEST, VALIDATION = range(4)

# (steps made, metrics {name: [S] mean since the last call})
OnProgress = Callable[[int, dict[str, np.ndarray]], None]


def seed_keys(seed: int, first: int, count: int) -> jax.Array:
  """Returns the keys of seeds first .. first + count - 1, [count].

  Args:
    seed: of the run, in [0, 2³²): JAX would use only the last 32 bits of other numbers,
      so two different seeds could give the same run.
    first: the first seed, not negative.
    count: the number of seeds; first + count is at most 2³².

  Raises:
    ValueError: for numbers outside these ranges.
  """
  if any(isinstance(x, bool) for x in (seed, first, count)):
    raise ValueError(f'seeds must be whole numbers: {seed}, {first}, {count}')
  seed, first, count = map(operator.index, (seed, first, count))
  if not 0 <= seed < 2**32:
    raise ValueError(f'seed must be in 0..2**32-1: {seed}')
  if first < 0 or count < 0 or first + count > 2**32:
    raise ValueError(f'seeds must be in 0..2**32-1: {first} to {first + count - 1}')
  root = jax.random.key(seed)
  seeds = np.arange(first, first + count, dtype=np.uint32)
  return jax.vmap(jax.random.fold_in, (None, 0))(root, seeds)


def purpose_key(key: jax.Array, purpose: int) -> jax.Array:
  """Returns the key that one seed uses for one purpose."""
  return jax.random.fold_in(key, purpose)


class Trainer(NamedTuple):
  """Compiled functions that train a block of seeds; `make_trainer` builds one."""

  # keys [S] -> TrainState, each leaf with a leading axis of seeds
  start: Callable[[jax.Array], TrainState]
  # (state, keys [S]) -> (state after `steps_per_call` more updates, {metric: [S],
  # the mean over these updates}); the memory of the state passed in is reused
  advance: Callable[[TrainState, jax.Array], tuple[TrainState, Metrics]]
  steps_per_call: int
  group_size: int
  mesh: Mesh


def make_trainer(
    problem: Problem,
    *,
    steps_per_call: int,
    group_size: int = 1,
    mesh: Mesh | None = None,
    data: Any = None,
) -> Trainer:
  """Builds the functions that train a block of seeds; they compile when called.

  Args:
    problem: init, sample, loss and optimizer.
    steps_per_call: updates per call of `advance`, over which metrics are averaged.
    group_size: the most seeds that a device runs together by vmap. 1 runs each seed as
      it would run alone, bit for bit, and is the fastest on a CPU. Larger groups are
      faster on an accelerator; those that do not fit into its memory are halved
      (`vvlen.sharding.memory`).
    mesh: with the axis 'seed'; all devices if None.
    data: a pytree of arrays, such as a text, that all seeds draw their batches from:
      the third argument of `problem.sample`, replicated on all devices. None if
      `problem.sample` has no third argument.

  Returns:
    A `Trainer`.
  """
  mesh = sharding.seed_mesh() if mesh is None else mesh

  def start(key):
    return init_state(problem, purpose_key(key, INIT))

  run = make_advance(
      problem, steps_per_call, group_size, mesh, has_data=data is not None)
  if data is not None:
    run = functools.partial(run, jax.device_put(data, sharding.whole(mesh)))

  return Trainer(
      # In groups of one: under vmap, weights may differ in their last bit.
      sharding.over_seeds(start, mesh),
      run,
      steps_per_call,
      group_size,
      mesh,
  )


def make_advance(
    problem: Problem, steps_per_call: int, group_size: int, mesh: Mesh, *,
    has_data: bool,
) -> Callable[..., Any]:
  """Returns the jit-compiled function `Trainer.advance`.

  Args:
    problem: what is trained.
    steps_per_call: as in `make_trainer`.
    group_size: as in `make_trainer`.
    mesh: with the axis 'seed'.
    has_data: whether its first argument is data that all seeds share.
  """

  def advance(*arguments):
    *shared, state, key = arguments
    train_key = purpose_key(key, TRAIN)
    return train_steps(problem, state, train_key, steps_per_call, *shared)

  count = int(has_data)
  return sharding.over_seeds(advance, mesh, group_size, (count,), shared=count)


def train(
    trainer: Trainer,
    keys: jax.Array,
    num_steps: int,
    *,
    folder: epath.PathLike | None = None,
    save_every_seconds: float = 60.0,
    on_progress: OnProgress | None = None,
    before_save: Callable[[], None] | None = None,
) -> TrainState:
  """Trains a block of seeds, resuming from its last checkpoint.

  A resumed run continues with the whole saved state, including numbers that an
  optimizer keeps there, such as learning rates, even if the trainer now has others.

  Args:
    trainer: from `make_trainer`.
    keys: [S] keys of the seeds, from `seed_keys`.
    num_steps: updates in all, a multiple of trainer.steps_per_call.
    folder: where checkpoints are saved and looked for; None to save none.
    save_every_seconds: the least time between two checkpoints. The state after the
      last update is always saved.
    on_progress: called with (steps made, metrics {name: [S]}) after each call of
      `advance`, before the state is saved.
    before_save: called before each checkpoint is saved: to write to disk what
      `on_progress` reported, which must not be lost once its training is saved.

  Returns:
    The state after num_steps updates. If the devices do not divide the seeds, rows
    after the first S repeat the last one, as in `sharding.put`. Checkpoints hold only
    the S seeds, so a run can be resumed on another number of devices.

  Raises:
    ValueError: if there are no seeds, if steps_per_call does not divide the steps, if
      save_every_seconds is negative or nan, or if the checkpoint is of another run or
      of other seeds.
    Preempted: after SIGTERM, when the call under way is done and its state is saved.
  """
  each = None
  if on_progress is not None:
    each = lambda step, metrics: on_progress(step, metrics[0])
  [state] = train_together(
      [trainer], keys, num_steps, folders=None if folder is None else [folder],
      save_every_seconds=save_every_seconds, on_progress=each, before_save=before_save,
  )
  return state


def train_together(
    trainers: Sequence[Trainer],
    keys: jax.Array,
    num_steps: int,
    *,
    folders: Sequence[epath.PathLike] | None = None,
    save_every_seconds: float = 60.0,
    on_progress: Callable[[int, list[dict[str, np.ndarray]]], None] | None = None,
    before_save: Callable[[], None] | None = None,
) -> list[TrainState]:
  """Trains a block of seeds under each of several trainers, as one ensemble.

  The trainers may start differently: from other weights, or with other numbers in
  the state of the optimizer (optax.inject_hyperparams puts learning rates there).
  Then the `advance` of the first trainer is run for all, so all must be the same
  function of the state: trainers with optax.sgd(0.1) and optax.sgd(0.2), whose rates
  are not in their states, would both be trained at 0.1. With groups of one, each run
  equals that of `train` bit for bit; with larger groups, up to rounding. The S·R rows
  run in groups of at most the same size, so this saves compilations only.

  Args:
    trainers: R trainers that agree in mesh, group_size, steps_per_call and the shapes
      of their states.
    keys: [S] keys of the seeds; each trainer gets them all.
    num_steps: as in `train`.
    folders: R folders, one per trainer; `train` can resume from each.
    save_every_seconds: as in `train`.
    on_progress: called with (steps made, R times metrics {name: [S]}).
    before_save: as in `train`.

  Returns:
    R states after num_steps updates.

  Raises:
    ValueError: as in `train`, if the trainers disagree, or if the checkpoints are
      not all of the same step.
    Preempted: as in `train`.
  """
  trainer, count, num_seeds = trainers[0], len(trainers), len(keys)
  keys = sharding.put(keys, trainer.mesh, trainer.group_size)
  shapes = [jax.eval_shape(t.start, keys) for t in trainers]
  if any(t[2:] != trainer[2:] for t in trainers) or any(s != shapes[0] for s in shapes):
    raise ValueError('trainers must agree in mesh, groups, steps and shapes of states')
  if not save_every_seconds >= 0:  # nan is not, and would mean never
    raise ValueError(f'save_every_seconds must not be negative: {save_every_seconds}')
  if num_steps < 0 or num_steps % trainer.steps_per_call:
    raise ValueError(
        f'{num_steps} steps are not a multiple of {trainer.steps_per_call}'
    )
  saved_in = folders or []
  step, states = seed_checkpoints.restore(
      saved_in, shapes[0], keys, num_seeds, trainer.mesh, trainer.group_size)
  if step > num_steps or (num_steps - step) % trainer.steps_per_call:
    raise ValueError(
        f'The checkpoint in {saved_in[0]} is of step {step}, from which calls of '
        f'{trainer.steps_per_call} steps do not reach {num_steps}'
    )
  states = states or [t.start(keys) for t in trainers]
  state, row_keys = sharding.interleave(states), sharding.interleave([keys] * count)
  del states  # one copy is enough
  last_save = time.monotonic()
  with watching_for_preemption() as preempted:
    while step < num_steps:
      state, metrics = trainer.advance(state, row_keys)
      step += trainer.steps_per_call
      metrics = sharding.fetch(metrics)  # waits for the devices
      if on_progress is not None:
        on_progress(step, _separate_metrics(metrics, count, num_seeds))
      stop = preempted(step)
      if folders is not None and (
          _agreed(time.monotonic() - last_save >= save_every_seconds)
          or stop or step == num_steps):
        if before_save is not None:
          before_save()
        seed_checkpoints.save(folders, step, sharding.separate(state, count), keys,
                              num_seeds, trainer.mesh)
        last_save = time.monotonic()
      if stop:
        where = 'not saved' if folders is None else 'saved'
        raise Preempted(f'Told to stop after step {step} of {num_steps}, {where}')
  return sharding.separate(state, count)


def _separate_metrics(
    metrics: dict[str, np.ndarray], count: int, num_seeds: int
) -> list[dict[str, np.ndarray]]:
  """Returns R = `count` times metrics {name: [S]}, of rows that take turns."""
  return [{name: m[r::count][:num_seeds] for name, m in metrics.items()}
          for r in range(count)]


def _agreed(due: bool) -> bool:
  """Returns what the first process says: the clocks of processes differ."""
  if jax.process_count() == 1:
    return due
  return bool(multihost_utils.broadcast_one_to_all(np.int32(due)))
