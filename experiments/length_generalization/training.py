"""Trains and measures a block of seeds of one arm, according to a configuration."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
import io
import json
from typing import Any, NamedTuple

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.harness import seed_blocks
from experiments.harness.progress import Progress
from experiments.harness.train import train_block
from experiments.length_generalization import tasks
from experiments.length_generalization.setting import GROWTH
from vvlen import sharding
from vvlen.evaluation.retriever import distribution, lengths
from vvlen.evaluation.retriever.ensemble import make_measure
from vvlen.objectives.targets import score
from vvlen.reporting import results, run_folder
from vvlen.tasks.lengths import growing_length
from vvlen.training import ensemble
from vvlen.training.averaging import averaged
from vvlen.training.step import Problem


def problem(config: Any, arm: str, task: tasks.Task | None = None) -> Problem:
  """Returns initialization, data, loss and optimizer of one arm.

  Args:
    config: with the fields task, model, train and optimizer.
    arm: a kind of norm, or another argument of `task.model`.
    task: None for the task of the configuration.
  """
  train, task = config.train, task or tasks.make_task(config)
  model = task.model(arm)

  def sample(key, step):
    longest = None
    if first := train.get('first_max_length'):
      longest = growing_length(
          step, first=first, last=train.max_length,
          num_steps=int(GROWTH * train.num_steps),
      )
    return task.sample(
        key, batch_size=train.batch_size, min_length=train.min_length,
        max_length=train.max_length, longest=longest,
    )

  def init(key):
    batch = sample(key, 0)
    return model.init(key, batch.query, batch.items, batch.mask)['params']

  def loss(params, batch):
    logits = model.apply({'params': params}, batch.query, batch.items, batch.mask)
    losses, right = score(logits, batch.target)
    return losses.mean(), {
        'accuracy': jnp.where(jnp.isfinite(losses), right, jnp.nan).mean()}

  optimizer = _optimizer(config.optimizer)
  if ends := train.get('averaged_at', ()):
    optimizer = averaged(optimizer, ends)
  return Problem(init, sample, loss, optimizer)


def _optimizer(config: Any) -> optax.GradientTransformation:
  """Returns Adam with weight decay on kernels, but not on embeddings.

  If `config.l2_on` is 'all', the decay is on all parameters, as in PyTorch's
  `Adam(weight_decay=…)`: embeddings, biases, and scale and shift of LayerNorm too.
  It is added to the gradient (L2), or to Adam's step if `config.decoupled`. Learning
  rate and decay are part of the optimizer's state, so runs that differ only in these
  numbers share one compiled program (`ensemble.train_together`). Runs that differ in
  `decay_steps`, over which the rate decays, do not.
  """
  every = config.get('l2_on', 'kernels') == 'all'
  decays = lambda path, _: every or path[-1].key.endswith('kernel')
  mask = lambda params: jax.tree_util.tree_map_with_path(decays, params)

  def adam(learning_rate, l2, decoupled):
    if decay_steps := config.get('decay_steps', 0):
      learning_rate = optax.linear_schedule(learning_rate, 0.0, decay_steps)
    return optax.chain(
        optax.add_decayed_weights(l2, mask),
        optax.scale_by_adam(),
        optax.add_decayed_weights(decoupled, mask),
        optax.scale_by_learning_rate(learning_rate),
    )

  decay = (0.0, config.l2) if config.get('decoupled', False) else (config.l2, 0.0)
  return optax.inject_hyperparams(adam)(config.learning_rate, *decay)


def program(config: Any) -> str:
  """Returns a string that is equal for configurations that can be trained together.

  These may differ in learning rate and weight decay, in the initial weights, in their
  arms and in the number of steps.
  """
  fields = run_folder.flatten(config.to_dict())
  for name in ('arms', 'train.num_steps', 'model.kernel_init', 'optimizer.l2',
               'optimizer.decoupled', 'optimizer.learning_rate'):
    fields.pop(name, None)
  return json.dumps(fields, sort_keys=True)


class Arm(NamedTuple):
  """One arm of a configuration, or of several with the same `program`, compiled."""

  config: Any  # the first one
  arm: str  # a kind of norm
  mesh: jax.sharding.Mesh
  task: tasks.Task
  trainers: Sequence[ensemble.Trainer]  # one per configuration
  apply: lengths.Apply
  # (parameters, keys of test data, keys of validation data, done) -> Measured; `done`
  # is called with the share that is measured
  measure: Callable[..., Any]
  samples: bool  # whether to write the data of Figures 2 and 4, from seed 0


def make_arm(
    configs: Sequence[Any], arm: str, mesh: jax.sharding.Mesh, samples: bool = True
) -> Arm:
  """Prepares training and measuring of one arm; compiles when first used.

  Args:
    configs: with the fields task, model, train, optimizer and evaluate. Several must
      have the same `program`, and are trained as one ensemble.
    arm: a kind of norm.
    mesh: the devices, with the axis 'seed'.
    samples: whether to write the data of Figures 2 and 4, from seed 0.
  """
  config = configs[0]
  train, evaluate = config.train, config.evaluate
  task = tasks.make_task(config)
  trainers = [
      ensemble.make_trainer(
          problem(c, arm), steps_per_call=train.steps_per_call,
          group_size=train.group_size, mesh=mesh,
      )
      for c in configs
  ]
  apply = lengths.make_apply(task.model(arm))
  prepare = sharding.over_seeds(task.prepare, mesh, train.group_size)
  measure = make_measure(
      apply, task.sample_at, lengths=evaluate.lengths,
      num_sequences=evaluate.num_sequences, fit_lengths=evaluate.fit_lengths,
      fit_sequences=evaluate.fit_sequences, trained_up_to=train.max_length,
      fixed_query=task.fixed_query, vocabulary=task.vocabulary(), mesh=mesh,
      group_size=train.group_size,
  )

  return Arm(
      config, arm, mesh, task, trainers, apply,
      lambda params, *others: measure(prepare(params), *others), samples,
  )


def run_block(
    arm: Arm, places: Sequence[seed_blocks.Place], first: int, num_steps: int,
    progress: Progress, since: int = 0,
) -> list[results.Row]:
  """Trains a block of seeds of one arm, resuming from checkpoints, and measures it.

  Args:
    arm: from `make_arm`.
    places: one per configuration of `arm`.
    first: the first seed of the block.
    num_steps: total number of updates.
    progress: counts seed-steps.
    since: the step at which `progress` stands before this call.

  Returns:
    Rows of those seeds of the block that are below `config.num_seeds`.
  """
  config, train = arm.config, arm.config.train
  keys = ensemble.seed_keys(config.seed, first, train.seeds_at_once)
  names = ', '.join(place.experiment for place in places)
  name = f'{names}, {arm.arm}, seeds {first} to {first + train.seeds_at_once - 1}'
  states = train_block(
      arm.trainers, keys, num_steps, name=name, arm=arm.arm, first=first,
      folders=[seed_blocks.checkpoints(place.folder, config, arm.arm, first)
               for place in places],
      curves=[place.curves for place in places], progress=progress,
      save_every_seconds=train.save_every_seconds, since=since,
  )
  test_keys, validation_keys = seed_blocks.measuring_keys(
      keys, arm.mesh, train.group_size)
  rows = []
  for place, state in zip(places, states, strict=True):
    with progress.measuring(name) as done:
      measured = arm.measure(state.params, test_keys, validation_keys, done)
    if num_steps in train.get('averaged_at', ()):
      with progress.measuring(name) as done:
        mean = arm.measure(state.opt_state.mean, test_keys, validation_keys, done)
      measured |= {('+averaged' + suffix, metric, length): values
                   for (suffix, metric, length), values in mean.items()}
    for metric in ('loss', 'accuracy'):
      late = place.curves.late_mean(arm.arm, first, metric)
      measured['', f'training_{metric}', None] = late
    if arm.samples and first == 0:
      variables = {
          'params': jax.tree.map(lambda x: x[0], sharding.fetch(state.params))}
      key = ensemble.purpose_key(keys[0], ensemble.TEST)
      if jax.process_index() == 0:
        with progress.measuring(f'{name}, examples'):
          _save_samples(arm, variables, key, place.folder / f'samples/{arm.arm}.npz')
    rows += [
        results.Row(
            place.experiment, arm.arm + suffix, seed, length, metric,
            values[seed - first], place.step,
        )
        for (suffix, metric, length), values in measured.items()
        for seed in seed_blocks.seeds_of(config, first)
    ]
  return rows


def _save_samples(
    arm: Arm, variables: Any, key: jax.Array, path: epath.Path
) -> None:
  """Writes the data of Figures 2 and 4, from seed 0: components and top weights."""
  evaluate, task = arm.config.evaluate, arm.task

  def at(function, length, **options):
    return jax.jit(lambda variables, key: function(
        arm.apply, task.sample_at, variables, key, length=length, **options
    ))

  functions = {
      f'components_{length}': at(
          distribution.components, length, num_components=4,
          num_sequences=evaluate.histogram_sequences,
      )
      for length in evaluate.histogram_lengths
  } | {
      f'weights_{length}': at(
          distribution.top_weights, length, num_items=min(16, length),
          order=task.order, num_sequences=evaluate.weight_sequences,
      )
      for length in evaluate.lengths
  }
  sharding.compile_together(functions.values(), variables, key)
  # Fetched here: errors of the computation would abort the process inside numpy.
  arrays = {name: jax.device_get(function(variables, key))
            for name, function in functions.items()}
  buffer = io.BytesIO()
  np.savez_compressed(buffer, shown_items=np.array(task.shown_items), **arrays)
  results.write_bytes(path, buffer.getvalue())


def keep(
    metrics: Collection[str], rows: Iterable[results.Row]
) -> Iterator[results.Row]:
  """Yields rows of accuracy, and of some metrics those of the plain arms."""
  for row in rows:
    if row.metric == 'accuracy' or ('+' not in row.arm and row.metric in metrics):
      yield row
