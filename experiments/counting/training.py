"""Trains and measures a block of seeds of one cell of `experiments.counting`."""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.counting.cells import Cell
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
_ALL_STRINGS = 10  # bits, up to which all strings are tested
_STRINGS_AT_ONCE = 50  # when measuring


def reparameterization(cell: Cell) -> Reparameterization:
  """Returns what a cell is trained on."""
  function = REPARAMETERIZATIONS[cell.reparameterization]
  return outrep.shifted(function, 1.0) if cell.shifted else function


def make_model(config: Any, cell: Cell) -> SequenceRegressor:
  """Returns the model of a cell; learned positions have a row for each test length."""
  longest = max(cell.train_length, config.evaluate.max_length)
  return SequenceRegressor(Decoder(
      counting.VOCAB_SIZE, positions=cell.positions, max_positions=longest + 2,
      **config.model.to_dict(),
  ))


def problem(config: Any, cell: Cell) -> Problem:
  """Returns what is trained: mean squared error of f(y), by AdamW, cosine."""
  model, function = make_model(config, cell), reparameterization(cell)
  train = config.train
  # In pairs that fill a row: an update then takes three quarters of the time.
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
  """What a seed answers for all prefixes of strings of bits."""

  bits: np.ndarray  # [B, N] int32
  answer: np.ndarray  # [B, N] of the prefixes of 1..N bits, decoded


def answer_prefixes(
    model: SequenceRegressor, function: Reparameterization, params: Any, bits: jax.Array
) -> jax.Array:
  """Returns the decoded answers for all prefixes, [B, N] -> [B, N] float32."""

  def one(bits):
    asked = all_prefixes(bits[None], counting.BOS, counting.EOS)
    return function.decode(model.apply(
        {'params': params}, asked.tokens, asked.read_at, asked.positions, asked.mask
    ))[0]

  return jax.lax.map(one, bits, batch_size=min(_STRINGS_AT_ONCE, len(bits)))


def make_measure(
    config: Any, cell: Cell, mesh: jax.sharding.Mesh
) -> Callable[[Any, jax.Array], dict[tuple[str, int], np.ndarray]]:
  """Builds the function that measures a block of seeds.

  Returns:
    A function of (parameters, test keys), with a leading axis of seeds, to {(metric,
    length): [S]}: mean and median over strings of the squared error of the target, and
    the share of answers that round to it, but for means.
    Up to 10 bits over all strings, by their probability; for more over as many as
    config.evaluate.num_sequences says, of which those of all lengths are prefixes.
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
  """Returns the targets of strings [..., l], [...] float64."""
  ones, length = bits.sum(axis=-1), bits.shape[-1]
  return {'mean': ones / length, 'length': np.full(ones.shape, float(length)),
          'sum': ones.astype(float)}[task]


def _median(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
  """Returns the least value that half of the weight does not exceed: [S, B] -> [S]."""
  order = np.argsort(values, axis=1)
  values, weight = (np.take_along_axis(x, order, axis=1) for x in (values, weight))
  share = weight.cumsum(axis=1) / weight.sum(axis=1, keepdims=True)
  middle = (share >= 0.5 - 1e-9).argmax(axis=1)[:, None]
  median = np.take_along_axis(values, middle, axis=1)[:, 0]
  return np.where(np.isnan(values).any(axis=1), np.nan, median)


def run_cell(
    config: Any,
    cell: Cell,
    firsts: list[int],
    mesh: jax.sharding.Mesh,
    folder: epath.Path,
    curves: Curves,
    progress: Progress,
) -> list[results.Row]:
  """Trains and measures blocks of seeds of a cell, from their checkpoints on.

  Args:
    config: as of configs/counting.py.
    cell: what is trained.
    firsts: the first seed of each block.
    mesh: the devices, with the axis 'seed'.
    folder: of the run.
    curves: of the run.
    progress: counts seed-steps.

  Returns:
    Rows of all lengths, and `training_loss`, of f(y).
  """
  train, name = config.train, f'{cell.experiment}/{cell.arm}'
  trainer = ensemble.make_trainer(
      problem(config, cell), steps_per_call=train.steps_per_call,
      group_size=train.group_size, mesh=mesh,
  )
  measure = make_measure(config, cell, mesh)
  rows = []
  for first in firsts:
    keys = ensemble.seed_keys(config.seed, first, train.seeds_at_once)
    [state] = train_block(
        [trainer], keys, train.num_steps, name=f'{name}, seeds from {first}', arm=name,
        first=first, folders=[seed_blocks.checkpoints(folder, config, name, first)],
        curves=[curves], progress=progress,
        save_every_seconds=train.save_every_seconds,
    )
    test_keys, _ = seed_blocks.measuring_keys(keys, mesh)
    measured: dict[Any, np.ndarray] = measure(state.params, test_keys)
    measured['training_loss', None] = curves.late_mean(name, first, 'loss')
    rows += [
        results.Row(
            cell.experiment, cell.arm, seed, length, metric, values[seed - first]
        )
        for (metric, length), values in measured.items()
        for seed in seed_blocks.seeds_of(config, first)
    ]
  return rows
