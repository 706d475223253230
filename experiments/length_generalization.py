r"""Does LayerNorm right after attention help at lengths not seen in training?

Trains every arm on the same seeds, measures each model at every length, and tests
the differences, paired by seed. arXiv 2504.02827, Tables 1 and 3, Figures 2-4 and
Proposition 1.

  python -m experiments.length_generalization --config=configs/retrieval.py:quick \
      --workdir=runs/quick
"""

import functools
import io
import math
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import _run, report
from vvlen import results, sharding
from vvlen.evaluation import distribution, lengths
from vvlen.evaluation.measure import make_measure
from vvlen.models.norm import KINDS
from vvlen.models.retriever import ITEM_ENCODERS, Retriever
from vvlen.tasks import retrieval
from vvlen.training import ensemble
from vvlen.training.step import Problem

_FIXED_QUERY = np.array([0.5], np.float32)  # the middle of the queries' range


def main(config: Any, workdir: str) -> None:
  """Runs the experiment, or what is left of it, and writes tables and figures."""
  check(config)
  train = config.train
  _run.use_devices(train.seeds_at_once // train.group_size)
  mesh = sharding.seed_mesh()
  sharding.check_divisible(train.seeds_at_once, mesh, train.group_size)
  _run.lock(workdir)
  results.claim(
      workdir, config.to_dict(), _run.session(), may_grow=['num_seeds'],
      may_differ=['train.save_every_seconds'],
  )
  if extra := -config.num_seeds % train.seeds_at_once:
    print(f'Seeds are trained {train.seeds_at_once} at once, {extra} more than asked.')

  folder = epath.Path(workdir)
  rows = results.read_rows(folder / 'results.csv')
  curves = results.Curves(folder / 'metrics.jsonl')
  done = {(row.arm, row.seed) for row in rows}
  todo = [
      (first, arm)
      for first in range(0, config.num_seeds, train.seeds_at_once)
      for arm in config.arms
      if any((arm, seed) not in done for seed in _block(config, first))
  ]
  if not todo:
    print('All seeds were trained and measured before. Making tables and figures.')
  else:
    print(f'{len(todo)} blocks of {train.seeds_at_once} seeds to train and measure, '
          f'{train.num_steps:,} steps each. Compiling first.', flush=True)
  if todo and done and all((arm, 0) in done for arm in config.arms):
    print('Seeds are added to results: p-values hold only if that was planned before '
          'they were seen.')
  run_block = {arm: _block_runner(config, arm, mesh) for arm in config.arms}
  total = len(todo) * train.seeds_at_once * train.num_steps
  with _run.Progress(total, 'seed-steps') as progress:
    for first, arm in todo:
      rows = _merge(config, rows, run_block[arm](first, folder, curves, progress))
      results.write_rows(folder / 'results.csv', rows)
  report.show(workdir)
  results.finish(workdir, finished=_run.now())


def check(config: Any) -> None:
  """Raises ValueError on a configuration that cannot run."""
  train, evaluate = config.train, config.evaluate
  if config.num_seeds < 2:
    raise ValueError(
        f'config.num_seeds must be at least 2, to test a difference: {config.num_seeds}'
    )
  positive = {
      'train': ('batch_size', 'min_length', 'num_steps', 'steps_per_call',
                'seeds_at_once', 'group_size'),
      'task': ('num_classes',),
      'model': ('width',),
      'optimizer': ('learning_rate',),
      'evaluate': ('num_sequences', 'fit_sequences', 'histogram_sequences',
                   'weight_sequences'),
  }
  for group, names in positive.items():
    for name in names:
      if not config[group][name] > 0:
        raise ValueError(
            f'config.{group}.{name} must be positive: {config[group][name]}'
        )
  for name, value in config.optimizer.items():
    if not 0 <= value < math.inf:
      raise ValueError(f'config.optimizer.{name} must be finite, not negative: {value}')
  if not train.save_every_seconds >= 0:
    raise ValueError(
        'config.train.save_every_seconds must not be negative: '
        f'{train.save_every_seconds}'
    )
  if not 0 <= config.seed < 2**32:
    raise ValueError(f'config.seed must lie in 0..2**32-1: {config.seed}')
  if train.min_length > train.max_length:
    raise ValueError(
        'config.train.min_length must not exceed max_length: '
        f'{train.min_length} > {train.max_length}'
    )
  if train.num_steps % train.steps_per_call:
    raise ValueError(
        f'config.train.num_steps {train.num_steps} must be a multiple of '
        f'steps_per_call {train.steps_per_call}'
    )
  if train.seeds_at_once % train.group_size:
    raise ValueError(
        f'config.train.seeds_at_once {train.seeds_at_once} must be a multiple of '
        f'group_size {train.group_size}'
    )
  for name in ('lengths', 'fit_lengths', 'histogram_lengths'):
    values = evaluate[name]
    if not values or any(not isinstance(n, int) or n < 1 for n in values):
      raise ValueError(f'config.evaluate.{name} must be positive integers: {values}')
  if max(evaluate.lengths) <= train.max_length:
    raise ValueError(
        'config.evaluate.lengths must go beyond config.train.max_length: '
        f'{evaluate.lengths}, {train.max_length}'
    )
  arms = config.arms
  if not arms or set(arms) - set(KINDS) or len(set(arms)) < len(arms):
    raise ValueError(f'config.arms must be distinct, of {", ".join(KINDS)}: {arms}')
  if config.model.item_encoder not in ITEM_ENCODERS:
    raise ValueError(
        f'config.model.item_encoder must be of {", ".join(ITEM_ENCODERS)}: '
        f'{config.model.item_encoder!r}'
    )


def _block(config: Any, first: int) -> range:
  """Returns the seeds of a block that are asked for; a block is trained whole."""
  return range(first, min(first + config.train.seeds_at_once, config.num_seeds))


def _merge(
    config: Any, rows: list[results.Row], new: list[results.Row]
) -> list[results.Row]:
  """Adds rows, in an order that does not depend on the order of computing."""
  merged = {row[:-1]: row for row in (*rows, *new)}.values()
  arms = list(config.arms)
  return sorted(merged, key=lambda row: (
      arms.index(row.arm.split('+')[0]), row.arm, row.seed, row.length or 0, row.metric
  ))


def problem(config: Any, model: Retriever) -> Problem:
  """Returns what is trained."""
  train = config.train
  sample = functools.partial(
      retrieval.sample, batch_size=train.batch_size, min_length=train.min_length,
      max_length=train.max_length, num_classes=config.task.num_classes,
  )

  def init(key):
    batch = sample(key)
    return model.init(key, batch.query, batch.items, batch.mask)['params']

  def loss(params, batch):
    logits = model.apply({'params': params}, batch.query, batch.items, batch.mask)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.target)
    hits = jnp.where(jnp.isfinite(losses), logits.argmax(-1) == batch.target, jnp.nan)
    return losses.mean(), {'accuracy': hits.mean()}

  kernels = lambda params: jax.tree.map(lambda p: p.ndim == 2, params)
  optimizer = optax.chain(
      optax.add_decayed_weights(config.optimizer.l2, kernels),
      optax.adam(config.optimizer.learning_rate),
  )
  return Problem(init, sample, loss, optimizer)


def _block_runner(config: Any, arm: str, mesh: jax.sharding.Mesh):
  """Returns the function that trains and measures a block of seeds of one arm."""
  train, evaluate = config.train, config.evaluate
  model = Retriever(num_classes=config.task.num_classes, norm=arm, **config.model)
  trainer = ensemble.make_trainer(
      problem(config, model), steps_per_call=train.steps_per_call,
      group_size=train.group_size, mesh=mesh,
  )
  apply = lengths.make_apply(model)

  def sample(key, num_sequences, length):
    return retrieval.sample(
        key, batch_size=num_sequences, min_length=length, max_length=length,
        num_classes=config.task.num_classes,
    )

  measure = make_measure(
      apply, sample, lengths=evaluate.lengths, num_sequences=evaluate.num_sequences,
      fit_lengths=evaluate.fit_lengths, fit_sequences=evaluate.fit_sequences,
      fixed_query=_FIXED_QUERY, mesh=mesh, group_size=train.group_size,
      vocabulary=retrieval.vocabulary(config.task.num_classes),
  )

  def run(first, folder, curves, progress):
    keys = ensemble.seed_keys(config.seed, first, train.seeds_at_once)
    last = first + train.seeds_at_once - 1
    reached = None

    def on_progress(step, metrics):
      nonlocal reached
      if reached is None:
        reached = step - train.steps_per_call
        progress.skip(reached * train.seeds_at_once)
        if reached:
          _run.console.print(f'{arm}, seeds {first} to {last}: resumed at step '
                             f'{reached:,}', highlight=False)
      curves.add(arm, step, first, metrics)
      loss = metrics['loss'].mean()
      progress.show(
          f'{arm}, seeds {first} to {last}, loss {loss:.3f}',
          (step - reached) * train.seeds_at_once,
      )
      reached = step

    state = ensemble.train(
        trainer, keys, train.num_steps, on_progress=on_progress,
        save_every_seconds=train.save_every_seconds,
        folder=folder / 'checkpoints' / arm / f'seeds_{first}_{last}',
    )
    if reached is None:
      progress.skip(train.num_steps * train.seeds_at_once)
    progress.show(f'{arm}, seeds {first} to {last}, measuring')
    test_keys, validation_keys = (
        jax.vmap(ensemble.purpose_key, (0, None))(keys, purpose)
        for purpose in (ensemble.TEST, ensemble.VALIDATION)
    )
    measured = measure(
        state.params, sharding.put(test_keys, mesh),
        sharding.put(validation_keys, mesh),
    )
    for metric in ('loss', 'accuracy'):
      measured['', f'training_{metric}', None] = curves.late_mean(arm, first, metric)
    if first == 0:
      params = jax.tree.map(lambda x: x[0], sharding.fetch(state.params))
      path = folder / 'samples' / f'{arm}.npz'
      _save_samples(config, apply, sample, params, test_keys[0], path)
    return [
        results.Row(
            'retrieval', arm + suffix, seed, length, metric, values[seed - first]
        )
        for (suffix, metric, length), values in measured.items()
        for seed in _block(config, first)
    ]

  return run


def _save_samples(config, apply, sample, params, key, path) -> None:
  """Writes what Figures 2 and 4 show of seed 0: components and top weights."""
  evaluate = config.evaluate
  arrays = {}
  for length in evaluate.histogram_lengths:
    arrays[f'components_{length}'] = jax.jit(lambda params, key, length=length: (
        distribution.components(
            apply, sample, params, key, length=length, num_components=4,
            num_sequences=evaluate.histogram_sequences)))(params, key)
  for length in evaluate.lengths:
    arrays[f'weights_{length}'] = jax.jit(lambda params, key, length=length: (
        distribution.top_weights(
            apply, sample, params, key, length=length,
            num_items=min(16, length),
            num_sequences=evaluate.weight_sequences)))(params, key)
  buffer = io.BytesIO()
  np.savez_compressed(buffer, **arrays)
  results.write_bytes(path, buffer.getvalue())


if __name__ == '__main__':
  _run.run(main)
