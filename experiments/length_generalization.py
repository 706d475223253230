r"""Does LayerNorm right after attention help at lengths not seen in training?

Trains every arm on the same seeds, measures each model at every length, and tests
the differences, paired by seed. arXiv 2504.02827, Figures 2-4, Proposition 1 and
Tables 1 and 3; with configs/lookup.py Tables 2 and 6; with a variant whose name ends
in growing, which trains on lengths that grow to 256, Tables 4 and 5.

  python -m experiments.length_generalization --config=configs/retrieval.py:quick \
      --workdir=runs/quick
"""

import math
from typing import Any

from etils import epath

from experiments import _run, _tasks, _training, report
from vvlen import results, sharding
from vvlen.models.norm import KINDS
from vvlen.models.retriever import ITEM_ENCODERS


def main(config: Any, workdir: str) -> None:
  """Runs the experiment, or what is left of it, and writes tables and figures."""
  check(config)
  train = config.train
  _run.use_devices(train.seeds_at_once // train.group_size)
  mesh = sharding.seed_mesh()
  sharding.check_divisible(train.seeds_at_once, mesh, train.group_size)
  _run.lock(workdir)
  before = results.claim(
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
      for first in _training.blocks(config)
      for arm in config.arms
      if any((arm, seed) not in done for seed in _training.seeds_of(config, first))
  ]
  if not todo:
    print('All seeds were trained and measured before. Making tables and figures.')
  else:
    print(f'{len(todo)} blocks of {train.seeds_at_once} seeds to train and measure, '
          f'{train.num_steps:,} steps each. Compiling first.', flush=True)
  if before and before['num_seeds'] < config.num_seeds:
    print(_training.SEEDS_ADDED)
  run_block = {arm: _training.block_runner([config], arm, mesh) for arm in config.arms}
  growing = '_growing' if train.get('first_max_length') else ''
  place = _training.Place(config.task.name + growing, folder, curves)
  total = len(todo) * train.seeds_at_once * train.num_steps
  with _run.Progress(total, 'seed-steps') as progress:
    for first, arm in todo:
      new = run_block[arm]([place], first, train.num_steps, progress)
      rows = _training.merge(config.arms, rows, new)
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
  first = train.get('first_max_length', train.min_length)
  if not train.min_length <= first <= train.max_length:
    raise ValueError(
        'config.train.first_max_length must lie in min_length..max_length: '
        f'{train.min_length}, {first}, {train.max_length}'
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
    optional = name == 'fit_lengths'  # without them nothing is fitted
    if not (values or optional) or any(
        not isinstance(n, int) or n < 1 for n in values
    ):
      raise ValueError(f'config.evaluate.{name} must be positive integers: {values}')
  if max(evaluate.lengths) <= train.max_length:
    raise ValueError(
        'config.evaluate.lengths must go beyond config.train.max_length: '
        f'{evaluate.lengths}, {train.max_length}'
    )
  arms = config.arms
  if not arms or set(arms) - set(KINDS) or len(set(arms)) < len(arms):
    raise ValueError(f'config.arms must be distinct, of {", ".join(KINDS)}: {arms}')
  if config.task.name not in _tasks.NAMES:
    raise ValueError(
        f'config.task.name must be of {", ".join(_tasks.NAMES)}: {config.task.name!r}'
    )
  longest = max(train.max_length, *evaluate.lengths, *evaluate.fit_lengths,
                *evaluate.histogram_lengths)
  num_keys = config.task.get('num_keys')
  if (config.task.name == 'lookup') != (num_keys is not None):
    raise ValueError(
        f'config.task.num_keys is for lookup, which needs it: {num_keys}, task '
        f'{config.task.name}'
    )
  if num_keys is not None and longest > num_keys:
    raise ValueError(
        'config.task.num_keys must not be less than any length: '
        f'{num_keys} < {longest}'
    )
  if config.task.name == 'lookup' and config.task.get('informative_query'):
    raise ValueError('config.task.informative_query is for retrieval: True')
  initializer = config.model.get('kernel_init', 'lecun_normal')
  if initializer not in _tasks.INITIALIZERS:
    raise ValueError(
        f'config.model.kernel_init must be of {", ".join(_tasks.INITIALIZERS)}: '
        f'{initializer!r}'
    )
  if not 0 < config.model.get('epsilon', 1e-5) < math.inf:
    raise ValueError(f'config.model.epsilon must be positive: {config.model.epsilon}')
  if config.model.item_encoder not in ITEM_ENCODERS:
    raise ValueError(
        f'config.model.item_encoder must be of {", ".join(ITEM_ENCODERS)}: '
        f'{config.model.item_encoder!r}'
    )


if __name__ == '__main__':
  _run.run(main, needs=('task', 'model', 'train', 'optimizer', 'evaluate', 'arms'))
