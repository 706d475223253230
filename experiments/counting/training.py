"""Trains and measures a block of seeds of one cell of `experiments.counting`."""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.counting.cells import Setup
from experiments.counting.heads import make_heads, Measured
from experiments.counting.tempered import make_tempered
from experiments.harness import seed_blocks
from experiments.harness.progress import Progress
from experiments.harness.train import train_block
from vvlen import sharding
from vvlen.evaluation.prefixes import all_prefixes
from vvlen.models.decoder import Decoder, SequenceRegressor
from vvlen.objectives import output_reparameterization as outrep
from vvlen.objectives.output_reparameterization import Reparameterization
from vvlen.reporting import results
from vvlen.reporting.curves import Curves
from vvlen.tasks import counting
from vvlen.training import ensemble
from vvlen.training.step import Problem

REPARAMETERIZATIONS = {
    'identity': outrep.IDENTITY, 'sqrt': outrep.SQRT, 'log': outrep.LOG,
    'inverse_sqrt': outrep.INVERSE_SQRT,
}
_ALL_STRINGS = 10  # bits; up to this length, all strings are tested
_STRINGS_AT_ONCE = 50  # in one batch when measuring


def reparameterization(cell: Setup) -> Reparameterization:
  """Returns the function f whose value f(y) is the training target of a cell."""
  function = REPARAMETERIZATIONS[cell.reparameterization]
  return outrep.shifted(function, 1.0) if cell.shifted else function


def make_model(config: Any, cell: Setup) -> SequenceRegressor:
  """Returns the model of a cell; learned positions reach to the longest test length."""
  longest = max(cell.train_length, config.evaluate.max_length)
  return SequenceRegressor(Decoder(
      counting.VOCAB_SIZE, positions=cell.positions, max_positions=longest + 2,
      **config.model.to_dict(),
  ))


def problem(config: Any, cell: Setup) -> Problem:
  """Returns the problem to train: squared error of f(y), AdamW with cosine decay."""
  model, function = make_model(config, cell), reparameterization(cell)
  train = config.train
  # Two strings fill a row without padding, so an update takes a quarter less time.
  sample = functools.partial(
      counting.sample_packed, num_rows=train.batch_size // 2, min_length=1,
      max_length=cell.train_length, task=cell.task, counts=cell.counts,
  )

  def answer(function, batch):
    return function(batch.tokens, batch.read_at, batch.positions, batch.mask)

  def init(key):
    return answer(functools.partial(model.init, key), sample(key))['params']

  def loss(params, batch):
    output = answer(functools.partial(model.apply, {'params': params}), batch)
    return jnp.square(output - function.encode(batch.target)).mean(), {}

  rate = optax.cosine_decay_schedule(config.optimizer.learning_rate, train.num_steps)
  is_kernel = lambda path, _: path[-1].key == 'kernel'
  optimizer = optax.adamw(
      rate, weight_decay=config.optimizer.weight_decay,
      mask=lambda params: jax.tree_util.tree_map_with_path(is_kernel, params),
  )
  return Problem(init, lambda key, step: sample(key), loss, optimizer)


class Answers(NamedTuple):
  """The answers of a seed to all prefixes of strings of bits."""

  bits: np.ndarray  # [B, N] int32
  answer: np.ndarray  # [B, N], decoded, to the prefixes of 1..N bits


def answer_prefixes(
    model: SequenceRegressor, function: Reparameterization, params: Any, bits: jax.Array
) -> jax.Array:
  """Returns the decoded answers to all prefixes, [B, N] -> [B, N] float32."""

  def one(bits):
    asked = all_prefixes(bits[None], counting.BOS, counting.EOS)
    return function.decode(model.apply(
        {'params': params}, asked.tokens, asked.read_at, asked.positions, asked.mask
    ))[0]

  return jax.lax.map(one, bits, batch_size=min(_STRINGS_AT_ONCE, len(bits)))


def make_measure(
    config: Any, cell: Setup, mesh: jax.sharding.Mesh
) -> Callable[[Any, jax.Array], dict[tuple[str, int], np.ndarray]]:
  """Builds the function that measures a block of seeds.

  Returns:
    A function (parameters, test keys) -> {(metric, length): [S]}; both arguments have a
    leading axis of S seeds. The metrics are mean and median over strings of the squared
    error and, except for the task 'mean', the share of answers that round to the
    target. Up to 10 bits they are over all strings, weighted by their probability;
    beyond, over prefixes of config.evaluate.num_sequences random strings.
  """
  model, function = make_model(config, cell), reparameterization(cell)
  longest = config.evaluate.max_length
  few = counting.all_strings(min(_ALL_STRINGS, longest))

  def answers(params, key):
    drawn = counting.sample(
        key, batch_size=config.evaluate.num_sequences, min_length=longest,
        max_length=longest, task=cell.task, counts=cell.counts,
    ).tokens[:, 1:-1]
    answer = functools.partial(answer_prefixes, model, function, params)
    return Answers(drawn, answer(drawn)), answer(jnp.asarray(few))

  run = sharding.over_seeds(answers, mesh, config.train.group_size)

  def measure(params, test_keys):
    drawn, answer_few = sharding.fetch(run(params, test_keys))
    measured = {}
    for length in range(1, longest + 1):
      exact = length <= few.shape[1]
      all_few = np.broadcast_to(few, (len(answer_few), *few.shape))
      bits = all_few if exact else drawn.bits
      answer = (answer_few if exact else drawn.answer)[:, :, length - 1].astype(float)
      bits = bits[:, :, :length]
      weight = counting.string_probability(bits, cell.counts) if exact else np.ones(
          bits.shape[:2])
      target = _target(bits, cell.task)
      squared = np.where(np.isfinite(answer), (answer - target) ** 2, np.nan)
      measured['squared_error', length] = np.average(squared, axis=1, weights=weight)
      measured['median_squared_error', length] = _median(squared, weight)
      if cell.task != 'mean':
        right = np.where(np.isnan(squared), np.nan, squared < 0.25)
        measured['accuracy', length] = np.average(right, axis=1, weights=weight)
    return measured

  return measure


def _target(bits: np.ndarray, task: str) -> np.ndarray:
  """Returns the targets of strings, [..., l] -> [...] float64."""
  ones, length = bits.sum(axis=-1), bits.shape[-1]
  return {'mean': ones / length, 'length': np.full(ones.shape, float(length)),
          'sum': ones.astype(float)}[task]


def _median(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
  """Returns the weighted median of each row, [S, B] -> [S]; nan if a value is nan."""
  order = np.argsort(values, axis=1)
  values, weight = (np.take_along_axis(x, order, axis=1) for x in (values, weight))
  share = weight.cumsum(axis=1) / weight.sum(axis=1, keepdims=True)
  middle = (share >= 0.5 - 1e-9).argmax(axis=1)[:, None]
  median = np.take_along_axis(values, middle, axis=1)[:, 0]
  return np.where(np.isnan(values).any(axis=1), np.nan, median)


class Programs(NamedTuple):
  """What the blocks of seeds of a cell share, each compiled when first called."""

  trainer: ensemble.Trainer
  measure: Callable[[Any, jax.Array], dict[tuple[str, int], np.ndarray]]
  # Both return {} if no lengths are given.
  heads: Callable[[Any, jax.Array], Measured]
  tempered: Callable[[Any, jax.Array, Measured], Measured]


def make_programs(config: Any, cell: Setup, mesh: jax.sharding.Mesh) -> Programs:
  """Builds the functions that train and measure blocks of seeds of a cell."""
  train = config.train
  trainer = ensemble.make_trainer(
      problem(config, cell), steps_per_call=train.steps_per_call,
      group_size=train.group_size, mesh=mesh,
  )
  at = config.evaluate.get('temperature_lengths') or ()
  model = make_model(config, cell)
  return Programs(
      trainer, make_measure(config, cell, mesh),
      make_heads(model, at, cell.counts, mesh, train.group_size),
      make_tempered(model, reparameterization(cell), cell, at, mesh, train.group_size))


def run_block(
    config: Any,
    cell: Setup,
    programs: Programs,
    first: int,
    folder: epath.Path,
    curves: Curves,
    progress: Progress,
) -> list[results.Row]:
  """Trains and measures a block of seeds of a cell, resuming from its checkpoint.

  Args:
    config: as in configs/counting.py.
    cell: what to train.
    programs: of the cell.
    first: the first seed of the block.
    folder: of the run.
    curves: the learning curves of the run.
    progress: counts seed-steps.

  Returns:
    Rows of the metrics at all lengths, of `training_loss`, that of f(y), of heads,
    and of laws of their temperature.
  """
  train, name = config.train, f'{cell.experiment}/{cell.arm}'
  keys = ensemble.seed_keys(config.seed, first, train.seeds_at_once)
  [state] = train_block(
      [programs.trainer], keys, train.num_steps, name=f'{name}, seeds from {first}',
      arm=name, first=first,
      folders=[seed_blocks.checkpoints(folder, config, name, first)],
      curves=[curves], progress=progress, save_every_seconds=train.save_every_seconds,
  )
  test_keys, _ = seed_blocks.measuring_keys(
      keys, programs.trainer.mesh, train.group_size)
  with progress.measuring(name):
    measured: dict[Any, np.ndarray] = programs.measure(state.params, test_keys)
    of_heads = programs.heads(state.params, test_keys)
    more = of_heads | programs.tempered(state.params, test_keys, of_heads)
  measured['training_loss', None] = curves.late_mean(name, first, 'loss')
  seeds = seed_blocks.seeds_of(config, first)
  rows = [
      results.Row(
          cell.experiment, cell.arm, seed, length, metric, values[seed - first])
      for (metric, length), values in measured.items() for seed in seeds
  ]
  return rows + [
      results.Row(cell.experiment, cell.arm, seed, length, metric, values[seed - first],
                  layer=layer, head=head)
      for (metric, layer, head, length), values in more.items() for seed in seeds
  ]
