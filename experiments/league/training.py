"""Trains one arm on one task: at several learning rates, then at the one chosen."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.harness import seed_blocks
from experiments.harness.progress import Progress
from experiments.harness.train import train_block
from experiments.league import needed
from experiments.league.arms import Fields
from experiments.league.names import CONTROL
from experiments.league.needed import Measured
from experiments.league.tasks import make_task
from experiments.length_generalization import training
from experiments.length_generalization.tasks import Task
from vvlen import sharding
from vvlen.evaluation.retriever import lengths
from vvlen.reporting import results
from vvlen.training import ensemble

_TRAINING = ('loss', 'accuracy')  # metrics of the learning curves


class Player(NamedTuple):
  """One arm on one task, compiled when first used."""

  config: Any  # of the task, from `family.task_configs`
  task: str  # its name in the family
  arm: str
  mesh: jax.sharding.Mesh
  trainers: Mapping[float, ensemble.Trainer]  # by learning rate
  # (parameters, keys of test data, of validation data), each over seeds
  measure: Callable[[Any, jax.Array, jax.Array], Measured]


def make_player(
    config: Any, task: str, arm: str, fields: Fields, rates: Sequence[float],
    mesh: jax.sharding.Mesh,
) -> Player:
  """Prepares an arm on a task.

  Args:
    config: of the task, from `family.task_configs`.
    task: its name in the family.
    arm: name of the arm.
    fields: what the arm changes in the fields of the task's model.
    rates: the learning rates.
    mesh: the devices, with the axis 'seed'.

  Raises:
    ValueError: if the model of the task lacks one of these fields.
  """
  changed = changed_task(make_task(config), fields, task)
  trainers = {}
  for rate in rates:
    at_rate = config.copy_and_resolve_references()
    at_rate.optimizer.learning_rate = rate
    trainers[rate] = ensemble.make_trainer(
        training.problem(at_rate, arm, changed),
        steps_per_call=config.train.steps_per_call,
        group_size=config.train.group_size, mesh=mesh)
  return Player(config, task, arm, mesh, trainers, _measure(config, changed, arm, mesh))


def changed_task(task: Task, fields: Fields, name: str) -> Task:
  """Returns a task whose model has an arm's fields; raises as `make_player`."""
  try:
    model = task.model('none').clone(**fields)
  except TypeError as error:
    raise ValueError(f'task {name}: its model cannot have an arm of this league: '
                     f'{error}') from error
  return task._replace(model=lambda _: model)


def _measure(
    config: Any, task: Task, arm: str, mesh: jax.sharding.Mesh
) -> Callable[[Any, jax.Array, jax.Array], Measured]:
  """Returns the function that measures a block of seeds at each test length."""
  evaluate, group_size = config.evaluate, config.train.group_size
  apply = lengths.make_apply(task.model(arm))
  prepare = sharding.over_seeds(task.prepare, mesh, group_size)

  def at_length(length):
    def metrics(variables, key):
      def rows(batch):
        logits, sown = apply(variables, batch.query, batch.items)
        found = lengths.answers(batch, logits)
        if hasattr(batch, 'target_index'):
          found |= of_targets(sown['attention_weights'], batch.target_index)
        return found

      every = lengths.in_chunks(
          rows, task.sample_at, key, length, evaluate.num_sequences)
      return jax.tree.map(lambda x: x.mean(axis=0), every)

    return sharding.over_seeds(metrics, mesh, group_size)

  functions = {length: at_length(length) for length in evaluate.lengths}
  of_needs = None
  if arm == CONTROL and needed.has_targets(task, config.train.max_length):
    of_needs = needed.make_measure(config, task, mesh)

  def measure(params, test_keys, validation_keys):
    variables = prepare(params)
    sharding.compile_together(functions.values(), variables, test_keys)
    measured = {
        ('', name, length): values for length, function in functions.items()
        for name, values in sharding.fetch(function(variables, test_keys)).items()
    }
    if of_needs is not None:
      measured |= of_needs(variables, test_keys, validation_keys)
    return measured

  return measure


def of_targets(weights: jax.Array, index: jax.Array) -> dict[str, jax.Array]:
  """Returns how the items asked for are attended, means over queries [B].

  Args:
    weights: of attention, [B, ..., N].
    index: of the items asked for, [B, ...].
  """
  own = lengths.pick(weights, index)
  first = (weights >= own[..., None]).sum(-1) == 1  # no other item has as much
  first = jnp.where(jnp.isnan(own), own, first)  # of a model that has diverged
  mean = lambda x: x.reshape(len(x), -1).mean(-1)
  return {'target_weight': mean(own), 'target_first': mean(first)}


def tune(
    player: Player, places: Mapping[float, seed_blocks.Place], seed: int,
    num_seeds: int, progress: Progress,
) -> list[results.Row]:
  """Trains an arm at all learning rates, as one ensemble; never at test lengths.

  Args:
    player: from `make_player`.
    places: where each rate is kept.
    seed: the root of the seeds.
    num_seeds: how many.
    progress: counts seed-steps.

  Returns:
    Loss and accuracy over the last tenth of training, of each rate and seed.
  """
  config, rates = player.config, [*places]
  keys = ensemble.seed_keys(seed, 0, num_seeds)
  train_block(
      [player.trainers[rate] for rate in rates], keys, config.train.num_steps,
      name=f'{player.task}, {player.arm}, {len(rates)} learning rates', arm=player.arm,
      first=0, folders=[place.folder / 'checkpoints' for place in places.values()],
      curves=[place.curves for place in places.values()], progress=progress,
      save_every_seconds=config.train.save_every_seconds)
  return [
      results.Row(player.task, player.arm, seed, None, f'training_{metric}',
                  float(value), learning_rate=rate)
      for rate, place in places.items() for metric in _TRAINING
      for seed, value in enumerate(place.curves.late_mean(player.arm, 0, metric))
  ]


def play(
    player: Player, place: seed_blocks.Place, rate: float, first: int,
    progress: Progress,
) -> list[results.Row]:
  """Trains a block of seeds of an arm at one learning rate, and measures it.

  Args:
    player: from `make_player`.
    place: where it is kept.
    rate: one of its learning rates.
    first: the first seed of the block.
    progress: counts seed-steps.

  Returns:
    Of each seed below `num_seeds`, accuracy, loss, weight of the target and how often
    it is the largest, at each test length, loss and accuracy over the last tenth of
    training, learned scalars, and of softmax what `needed` measures.
  """
  config, train, arm = player.config, player.config.train, player.arm
  keys = ensemble.seed_keys(config.seed, first, train.seeds_at_once)
  name = (f'{player.task}, {arm}, seeds {first} to '
          f'{first + train.seeds_at_once - 1}')
  # The rate is part of the state, so one compiled program serves every rate.
  start = player.trainers[rate].start
  shared = next(iter(player.trainers.values()))
  [state] = train_block(
      [shared._replace(start=start)], keys, train.num_steps, name=name, arm=arm,
      first=first, folders=[place.folder], curves=[place.curves], progress=progress,
      save_every_seconds=train.save_every_seconds)
  measuring = seed_blocks.measuring_keys(keys, player.mesh, train.group_size)
  with progress.measuring(name):
    measured = player.measure(state.params, *measuring)
  for metric in _TRAINING:
    late = place.curves.late_mean(arm, first, metric)
    measured['', f'training_{metric}', None] = late
  measured |= scalars(state.params)
  return [
      results.Row(place.experiment, arm + suffix, seed, length, metric,
                  float(values[seed - first]), learning_rate=rate)
      for (suffix, metric, length), values in measured.items()
      for seed in seed_blocks.seeds_of(config, first)
  ]


def scalars(params: Any) -> Measured:
  """Returns the learned scalars of models, {('', 'learned_NAME', None): [S]}.

  Args:
    params: of models, with a leading axis of seeds; those with no other axis count.
  """
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return {('', f'learned_{path[-1].key}', None): sharding.fetch(leaf)
          for path, leaf in leaves if leaf.ndim == 1}
