"""Does gradient descent find the best linear attention, and is it the paper's?

The command line is in `__main__`.
"""

from collections.abc import Iterator
import functools
import math
from typing import Any, NamedTuple

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.harness import fields, finished, seed_blocks
from experiments.harness.fields import one_of, several, whole
from experiments.harness.progress import Progress
from experiments.harness.run_loop import (
  claim_for_seeds,
  curves_of,
  Job,
  run_jobs,
  seed_devices,
)
from experiments.harness.train import train_block
from vvlen import sharding
from vvlen.models import linear_attention as model_file
from vvlen.reporting import results
from vvlen.reporting.curves import Curves
from vvlen.reporting.numbers import counted
from vvlen.tasks import counting
from vvlen.theory import linear_attention as theory
from vvlen.training import ensemble
from vvlen.training.step import Problem

_FLOOR = 1e-3  # smaller outputs are raised to it before 1/√ is inverted
# Reparameterizations of the target of length: (function, its inverse), in float64.
_OUTREP = {
    'sqrt': (np.sqrt, lambda z: np.maximum(z, 0) ** 2),
    'log': (np.log, np.exp),
    'inverse_sqrt': (lambda y: y**-0.5, lambda z: np.maximum(z, _FLOOR) ** -2.0),
}

_FIELDS = {
    **fields.SEED_BLOCKS,
    'tasks': several(one_of(theory.TASKS), once=True),
    'train_lengths': several(whole(least=1), once=True),
    'model.width': fields.width(),
    'evaluate.max_length': whole(least=2, most=2**16),  # a row for each length
    'evaluate.sampled_lengths': several(whole(least=1), once=True),
    'evaluate.num_sequences': whole(least=2),
}


def main(config: Any, workdir: str) -> None:
  """Runs or resumes the experiment, and writes tables and figures."""
  check(config)
  train, mesh = config.train, seed_devices(config.train)
  folder = claim_for_seeds(config, workdir, 'linear_attention')
  curves = curves_of(folder)
  done = finished.finished(folder, _part_of)
  cells = [(task, n) for task in config.tasks for n in config.train_lengths]
  todo = [
      (task, n, first) for task, n in cells for first in seed_blocks.first_seeds(config)
      if not seed_blocks.is_finished(config, done, first, _name(task, n), 'trained')
  ]
  exact = [(task, n) for task, n in cells if (_name(task, n), 'exact', 0) not in done]
  seeds = counted(train.seeds_at_once, 'seed')
  print(f'{counted(len(todo), "block")} of {seeds} to train, '
        f'{counted(train.num_steps, "step")} each. Compiling first.', flush=True)
  jobs = [
      Job(0, lambda _, task=task, n=n: _exact_rows(config, task, n))
      for task, n in exact
  ] + [
      Job(train.seeds_at_once * train.num_steps, functools.partial(
          _train, config, task, n, first, mesh, folder, curves))
      for task, n, first in todo
  ]
  names = [_name(task, n) for task, n in cells]
  run_jobs(folder, jobs, 'seed-steps', _part_of, lambda row: (
      names.index(row.experiment), row.arm, row.seed, row.length or 0, row.metric),
           measures=False)


def _part_of(row: results.Row) -> finished.Part:
  """Returns the part of a row; all arms that are not trained are computed together."""
  return row.experiment, 'trained' if row.arm == 'trained' else 'exact', row.seed


def _name(task: str, n: int) -> str:
  return f'{task}_{n}'


def _exact_rows(config: Any, task: str, n: int) -> list[results.Row]:
  """Returns rows, with seed 0, of exact tables and of losses over random strings."""
  name, lengths = _name(task, n), range(1, config.evaluate.max_length + 1)
  exact = theory.fit(task, n).table
  single = theory.single_value_table(task, theory.single_value(task, n))
  rows = [row for arm, table in (('exact', exact), ('single', single))
          for row in _table_rows(config, task, n, arm, 0, table)]
  for length, mean, error in _sampled_losses(config, task, exact):
    rows += [results.Row(name, 'exact', 0, length, 'sampled_loss', mean),
             results.Row(name, 'exact', 0, length, 'sampled_loss_error', error)]
  for arm, (encode, decode) in _OUTREP.items() if task == 'length' else ():
    table = theory.fit(task, n, encode=encode).table
    losses = [theory.loss(table, task, k, decode=decode) for k in lengths]
    rows += [results.Row(name, arm, 0, k, 'loss', x)
             for k, x in zip(lengths, losses, strict=True)]
    rows.append(results.Row(name, arm, 0, None, 'training_loss', np.mean(losses[:n])))
  return rows


def _table_rows(
    config: Any, task: str, n: int, arm: str, seed: int, table: np.ndarray
) -> Iterator[results.Row]:
  """Yields rows of a table's entries, its loss by length, and its mean loss on 1..n."""
  name = _name(task, n)
  for (a, b), value in np.ndenumerate(table):
    yield results.Row(name, arm, seed, None, f'table_{a}{b}', value)
  losses = [theory.loss(table, task, k)
            for k in range(1, config.evaluate.max_length + 1)]
  for k, value in enumerate(losses, 1):
    yield results.Row(name, arm, seed, k, 'loss', value)
  yield results.Row(name, arm, seed, None, 'training_loss', np.mean(losses[:n]))


def _sampled_losses(
    config: Any, task: str, table: np.ndarray
) -> Iterator[tuple[int, float, float]]:
  """Yields length, mean and standard error of the loss over random strings.

  The strings are answered by a `LinearAttention` with this table. Shorter strings are
  the first bits of longer ones, and all tables are tested on the same strings.
  """
  evaluate = config.evaluate
  longest = max(evaluate.sampled_lengths)
  bits = counting.sample(
      ensemble.purpose_key(jax.random.key(config.seed), ensemble.TEST),
      batch_size=evaluate.num_sequences, min_length=longest, max_length=longest,
      task=task,
  ).tokens[:, 1:-1]
  params = model_file.from_table(jnp.asarray(table, jnp.float32))
  apply = jax.jit(model_file.LinearAttention().apply)
  for k in evaluate.sampled_lengths:
    length = jnp.full(len(bits), k, jnp.int32)
    answer = np.asarray(apply({'params': params}, bits, length), float)
    squared = (answer - counting.make_batch(bits, length, task).target) ** 2
    yield k, squared.mean(), squared.std(ddof=1) / len(squared) ** 0.5


class Strings(NamedTuple):
  """One string of each kind of 1..n bits, M = n (n + 1) strings, padded with zeros."""

  bits: np.ndarray  # [M, n] int32
  length: np.ndarray  # l [M] int32
  weight: np.ndarray  # [M] float32, probability of the kind: C(l − 1, c) / (n 2^l)


def strings_of(n: int) -> Strings:
  """Returns one string per length l, last bit, and number c of ones before that bit.

  The order of the bits before the last changes neither answer nor target. So the
  weighted loss and its gradient equal those over all 2^(n + 1) − 2 strings of 1..n
  bits, with all lengths equally likely.
  """
  kinds = [(length, last, ones) for length in range(1, n + 1) for last in (0, 1)
           for ones in range(length)]
  bits, weight = np.zeros((len(kinds), n), np.int32), np.zeros(len(kinds))
  for i, (length, last, ones) in enumerate(kinds):
    bits[i, :ones], bits[i, length - 1] = 1, last
    weight[i] = math.comb(length - 1, ones) / (n * 2**length)
  length = np.array([kind[0] for kind in kinds], np.int32)
  return Strings(bits, length, weight.astype(np.float32))


def problem(config: Any, task: str, n: int) -> Problem:
  """Returns the problem to train: expected loss over all strings of 1..n bits, Adam.

  The data are not random: gradients have no noise, and seeds differ only in their
  initial weights.
  """
  model, strings = model_file.LinearAttention(config.model.width), strings_of(n)
  target = counting.make_batch(strings.bits, strings.length, task).target
  batch = jax.tree.map(jnp.asarray, (strings, target))
  rate = optax.cosine_decay_schedule(
      config.optimizer.learning_rate, config.train.num_steps
  )

  def init(key):
    return model.init(key, strings.bits[:1], strings.length[:1])['params']

  def loss(params, batch):
    strings, target = batch
    answer = model.apply({'params': params}, strings.bits, strings.length)
    return (strings.weight * jnp.square(answer - target)).sum(), {}

  return Problem(init, lambda key, step: batch, loss, optax.adam(rate))


def _train(
    config: Any, task: str, n: int, first: int, mesh: jax.sharding.Mesh,
    folder: epath.Path, curves: Curves, progress: Progress,
) -> list[results.Row]:
  """Trains a block of seeds, resuming from its checkpoint, and returns their rows."""
  train, name, trained = config.train, _name(task, n), problem(config, task, n)
  trainer = ensemble.make_trainer(
      trained, steps_per_call=train.steps_per_call, group_size=train.group_size,
      mesh=mesh,
  )
  keys = ensemble.seed_keys(config.seed, first, train.seeds_at_once)
  [state] = train_block(
      [trainer], keys, train.num_steps, name=f'{name}, seeds from {first}', arm=name,
      first=first, folders=[seed_blocks.checkpoints(folder, config, name, first)],
      curves=[curves], progress=progress, save_every_seconds=train.save_every_seconds,
  )
  params = jax.tree.map(lambda x: x[:len(keys)], sharding.fetch(state.params))
  tables = np.asarray(jax.vmap(model_file.table)(params), float)
  # The training loss as the model itself computes it; exact arms use their table. The
  # strings are an argument: if they were a constant, the compiler would fold it into
  # the program, and on several devices the last bit would differ.
  own_loss = sharding.over_seeds(
      lambda strings, params: trained.loss(params, strings)[0], mesh, train.group_size,
      shared=1)
  losses = sharding.fetch(own_loss(trained.sample(None, 0), state.params))
  rows = []
  for seed in seed_blocks.seeds_of(config, first):
    value = losses[seed - first]
    own = results.Row(name, 'trained', seed, None, 'training_loss', value)
    table = _table_rows(config, task, n, 'trained', seed, tables[seed - first])
    rows += [own if row.key == own.key else row for row in table]
  return rows


def check(config: Any) -> None:
  """Raises ValueError if a configuration cannot be run."""
  fields.check(config, _FIELDS)
  fields.check_multiples(config, *fields.MULTIPLES)
  evaluate, longest = config.evaluate, max(config.train_lengths)
  if longest >= evaluate.max_length:
    raise ValueError('config.evaluate.max_length must be beyond the training lengths: '
                     f'{evaluate.max_length}, {longest}')
  if max(evaluate.sampled_lengths) > evaluate.max_length:
    raise ValueError('config.evaluate.sampled_lengths must not exceed max_length: '
                     f'{max(evaluate.sampled_lengths)}, {evaluate.max_length}')
