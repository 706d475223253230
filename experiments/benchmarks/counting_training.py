r"""How fast are many seeds trained to count, against one seed in plain PyTorch?

Compares, in rounds that alternate between processes, updates of the mean of bits at the
CPU size of configs/counting.py, per second, summed over seeds:

  experiment  as the experiment trains: 8 seeds, one device per core, one at a time on
              each; on a GPU 100 seeds by vmap
  torch       `torch_counting`, one seed with all cores; on a GPU also there
  processes   the same, a process and a seed for each core; on a CPU
  sampler     as `experiment`, but drawing batches only
  products    as `experiment`, but the matrix products of its dense layers only
  peak        one product of 2048 x 2048 float32 matrices at a time, all cores

  python -m experiments.benchmarks.counting_training

Two strings share a row, so nothing is padded, and the last layer is computed for EOS
alone but for its keys and values; PyTorch's script, like a researcher's, pads strings
and computes all tokens. What bounds it is told by the shares of
a step that `sampler` and `products` would take alone, and by that of `peak`.
"""

import argparse
import importlib.util
import itertools
import os
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs import counting
from experiments.benchmarks import _rounds
from experiments.benchmarks.retrieval_training import drawing, matrix_peak
from experiments.counting import training
from experiments.counting.cells import Cell
from experiments.harness import machine
from vvlen import sharding
from vvlen.training import ensemble

MODULE = 'experiments.benchmarks.counting_training'
CELL = Cell('mean', 'fair', 10, 'none', 'identity')
_STEPS = 50  # in one call


def matrix_operations(config: Any) -> int:
  """Counts floating-point operations in the matrix products of a seed's update.

  Of B/2 rows of n = N + 5 tokens, width d and MLP factor f: a layer has (4 + 2f) d²
  multiplications a token forward, of the last layer 2 d² where only the two EOS are
  read, whose own are the other (2 + 2f) d², and attention 2 n d a query. The head has
  d² + d a string. Backward there are two products for each.
  """
  model, rows = config.model, config.train.batch_size // 2
  n, d, f = CELL.train_length + 5, model.width, model.mlp_factor
  whole = (model.num_layers - 1) * n * ((4 + 2 * f) * d * d + 2 * n * d)
  last = n * 2 * d * d + 2 * ((2 + 2 * f) * d * d + 2 * n * d)
  return 3 * 2 * rows * (whole + last + 2 * (d * d + d))


def main() -> None:
  """Runs all workers, prints a table and, last, JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--seconds', type=float, default=4.0, help='of one measurement')
  parser.add_argument('--output', help='also write the JSON to this file')
  parser.add_argument('--worker', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.worker is not None:
    _serve(args)
    return
  print('Compiling.', flush=True)

  def start(name, **options):
    arguments = [f'--worker={name}', f'--seconds={args.seconds}']
    return _rounds.Worker(MODULE, arguments, **options)

  workers = {name: start(name) for name in (
      'experiment', 'sampler', 'products', 'peak')}
  if importlib.util.find_spec('torch'):
    workers['torch'] = start('torch')
    if workers['torch'].about['device'] == 'cpu' and (os.cpu_count() or 1) > 1:
      workers['processes'] = start('torch', processes=os.cpu_count())
  else:
    print('PyTorch is not installed: no ratio.')
  print('Measuring; peak in operations, the others in (seed-)steps per second.',
        flush=True)
  rounds = _rounds.alternate(workers, args.rounds)
  rate = {name: worker.median() for name, worker in workers.items()}
  about, torch = workers['experiment'].about, rate.get('torch')
  each = rate.get('processes')
  operations = matrix_operations(_config())
  result = {
      'seed_steps_per_second': round(rate['experiment'], 1),
      'torch_steps_per_second': round(torch, 1) if torch else None,
      'ratio': round(rate['experiment'] / torch, 2) if torch else None,
      'torch_processes_steps_per_second': round(each, 1) if each else None,
      'ratio_to_processes': round(rate['experiment'] / each, 2) if each else None,
      'share_of_matrix_peak': round(rate['experiment'] * operations / rate['peak'], 3),
      'drawing_share': round(rate['experiment'] / rate['sampler'], 3),
      'products_share': round(rate['experiment'] / rate['products'], 3),
      'matrix_operations_per_seed_step': operations,
      'device': about['device'], 'num_seeds': about['num_seeds'],
      'processor': machine.processor(),
      'versions': {'jax': jax.__version__} | (
          {'torch': workers['torch'].about['version']} if torch else {}),
  } | rounds
  for name, rates in result['rounds'].items():
    print(f'{name:12}{statistics.median(rates):16,.1f}{min(rates):16,.1f}'
          f'{max(rates):16,.1f}')
  _rounds.report(result, args.output)


def _config() -> Any:
  return counting.get_config('cpu')


def _serve(args: argparse.Namespace) -> None:
  """Runs one worker, until its standard input ends."""
  advance, unit, about = {
      'experiment': _trainer, 'peak': matrix_peak, 'torch': _torch,
      'sampler': lambda: _part(_draw), 'products': lambda: _part(_products),
  }[args.worker]()

  def rate():
    start = time.perf_counter()
    for calls in itertools.count(1):
      advance()
      seconds = time.perf_counter() - start
      if seconds >= args.seconds:
        return calls * unit / seconds

  advance()
  _rounds.serve(rate, about)


def _sizes(config: Any) -> tuple[int, int]:
  """Returns how many seeds are trained, and how many of them by vmap."""
  machine.use_devices(config.train.seeds_at_once)
  if jax.default_backend() == 'cpu':
    return config.train.seeds_at_once, 1
  return 2 * (counting.get_config().train.seeds_at_once,)


def _trainer():
  """Returns a function that trains on, the seed-steps it makes, and its facts."""
  config = _config()
  seeds, group = _sizes(config)
  mesh = sharding.seed_mesh()
  trainer = ensemble.make_trainer(
      training.problem(config, CELL), steps_per_call=_STEPS, group_size=group,
      mesh=mesh,
  )
  keys = sharding.put(ensemble.seed_keys(config.seed, 0, seeds), mesh)
  state = trainer.start(keys)

  def advance():
    nonlocal state
    state, metrics = trainer.advance(state, keys)
    sharding.fetch(metrics)  # as `ensemble.train` does

  device = f'{jax.device_count()} x {jax.devices()[0].device_kind}'
  return advance, seeds * trainer.steps_per_call, {
      'device': device, 'num_seeds': seeds}


def _part(make):
  """Returns what `_trainer` does, of a part of an update."""
  config = _config()
  seeds, group = _sizes(config)
  mesh = sharding.seed_mesh()
  run = sharding.over_seeds(make(config), mesh, group)
  keys = sharding.put(ensemble.seed_keys(config.seed, 0, seeds), mesh)
  return lambda: sharding.fetch(run(keys)), seeds * _STEPS, {}


def _draw(config):
  """Returns a function that draws batches."""
  return drawing(training.problem(config, CELL), _STEPS)


def _products(config):
  """Returns a function that makes the products of dense layers, but of the head.

  x W, and two of the same size for each: with a gradient g W, and of both xᵀ g. All W
  keep lengths, so that numbers stay ordinary however often they are multiplied.
  """
  model = config.model
  rows = config.train.batch_size // 2 * (CELL.train_length + 5)
  square = np.linalg.qr(np.random.default_rng(0).normal(size=2 * (model.width,)))[0]
  square = jnp.asarray(square, jnp.float32)
  up = jnp.concatenate(model.mlp_factor * [square], axis=1) / model.mlp_factor**0.5
  layer = [*4 * [square], up, up.T]
  weights = [*(model.num_layers - 1) * layer, *2 * [square]]  # of the last, K and V

  def run(key):
    x, g = jax.random.normal(key, (2, rows, model.width))

    def body(carry, _):
      x, g, *totals = carry
      for i, w in enumerate(weights):
        x, y, g = x @ w, x, g @ w
        totals[i] += y.T @ g
      return (x, g, *totals), None

    return jax.lax.scan(body, (x, g, *map(jnp.zeros_like, weights)), length=_STEPS)[0]

  return run


def _torch():
  """Returns a function that trains on in PyTorch, its steps, and its facts."""
  import torch

  from experiments.benchmarks import torch_counting

  config = _config()
  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  sizes = {name: config.model[name]
           for name in ('num_layers', 'width', 'num_heads', 'mlp_factor')}
  run = torch_counting.Run(device, sizes, config.train.batch_size, CELL.train_length,
                           config.train.num_steps)
  run.advance(50)  # the first steps are slower
  return lambda: run.advance(20), 20, {'device': device, 'version': torch.__version__}


if __name__ == '__main__':
  main()
