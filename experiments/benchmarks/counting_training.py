r"""How fast is training many seeds to count, compared with one seed in plain PyTorch?

Compares, in rounds that alternate between processes, updates per second, summed over
seeds, of the mean of bits at the sizes of configs/counting.py:cpu:

  experiment  as the experiment trains: 8 seeds, one device per core, one seed at a time
              on each; on a GPU, 100 seeds by vmap
  torch       `torch_counting`, one seed with all cores, or on the GPU
  processes   `torch_counting` with one process and one seed per core; only on a CPU
  sampler     like `experiment`, but only drawing batches
  products    like `experiment`, but only the matrix products of its dense layers
  peak        one product of 2048 x 2048 float32 matrices at a time, all cores

  python -m experiments.benchmarks.counting_training

In vvlen two strings share a row, so nothing is padded, and the last layer is computed
for EOS alone, except for its keys and values; the PyTorch script, like that of most
researchers, pads strings and computes all tokens. The result reports what limits the
speed: the shares of a step that `sampler` and `products` take alone, and the share of
the speed of `peak`.
"""

import argparse
import importlib.util
import os
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs import counting
from experiments.benchmarks import _rounds
from experiments.benchmarks.retrieval_training import drawing, matrix_peak
from experiments.counting import training
from experiments.counting.cells import Setup
from experiments.harness import machine
from vvlen import sharding
from vvlen.training import ensemble

MODULE = 'experiments.benchmarks.counting_training'
CELL = Setup('mean', 'fair', 10, 'none', 'identity')
_STEPS = 50  # per call


def matrix_operations(config: Any) -> int:
  """Counts floating-point operations in the matrix products of a seed's update.

  There are B/2 rows of n = N + 5 tokens; the width is d, the MLP factor f. Forward, a
  layer has (4 + 2f) d² multiplications per token, and attention 2 n d per query. The
  last layer has 2 d² per token, for keys and values, and the remaining (2 + 2f) d² and
  attention only for the two EOS. The head has d² + d per string. The backward pass has
  two products for each of the forward pass.
  """
  model, rows = config.model, config.train.batch_size // 2
  n, d, f = CELL.train_length + 5, model.width, model.mlp_factor
  whole = (model.num_layers - 1) * n * ((4 + 2 * f) * d * d + 2 * n * d)
  last = n * 2 * d * d + 2 * ((2 + 2 * f) * d * d + 2 * n * d)
  return 3 * 2 * rows * (whole + last + 2 * (d * d + d))


def main() -> None:
  """Runs all workers, and prints a table and, as the last line, JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--seconds', type=float, default=4.0, help='per measurement')
  parser.add_argument('--tiny', action='store_true',
                      help='batches of 4 strings, to see that it runs')
  parser.add_argument('--output', help='also write the JSON to this file')
  parser.add_argument('--worker', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.worker is not None:
    _serve(args)
    return
  print('Compiling.', flush=True)

  def start(name, **options):
    arguments = [f'--worker={name}', f'--seconds={args.seconds}',
                 *['--tiny'] * args.tiny]
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
  operations = matrix_operations(_config(args.tiny))
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
      'versions': {'torch': workers['torch'].about['version']} if torch else {},
  } | rounds
  for name, rates in result['rounds'].items():
    print(f'{name:12}{statistics.median(rates):16,.1f}{min(rates):16,.1f}'
          f'{max(rates):16,.1f}')
  _rounds.report(result, args.output)


def _config(tiny: bool = False) -> Any:
  config = counting.get_config('cpu')
  if tiny:
    config.train.batch_size = 4
  return config


def _serve(args: argparse.Namespace) -> None:
  """Runs one worker until its standard input ends."""
  config = _config(args.tiny)
  advance, unit, about = {
      'experiment': lambda: _trainer(config), 'peak': matrix_peak,
      'torch': lambda: _torch(config), 'sampler': lambda: _part(config, _draw),
      'products': lambda: _part(config, _products),
  }[args.worker]()

  _rounds.serve_calls(advance, unit, about, args.seconds)


def _sizes(config: Any) -> tuple[int, int]:
  """Returns how many seeds are trained, and how many of them in one vmap."""
  machine.use_devices(config.train.seeds_at_once)
  if jax.default_backend() == 'cpu':
    return config.train.seeds_at_once, 1
  return 2 * (counting.get_config().train.seeds_at_once,)


def _trainer(config):
  """Returns a function that continues training, its seed-steps per call, and facts."""
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

  device = machine.device()
  return advance, seeds * trainer.steps_per_call, {
      'device': device, 'num_seeds': seeds}


def _part(config, make):
  """Returns the same as `_trainer`, for a part of an update."""
  seeds, group = _sizes(config)
  mesh = sharding.seed_mesh()
  run = sharding.over_seeds(make(config), mesh, group)
  keys = sharding.put(ensemble.seed_keys(config.seed, 0, seeds), mesh)
  return lambda: sharding.fetch(run(keys)), seeds * _STEPS, {}


def _draw(config):
  """Returns a function that draws the batches of _STEPS updates."""
  return drawing(training.problem(config, CELL), _STEPS)


def _products(config):
  """Returns a function that computes the products of all dense layers but the head.

  For each weight matrix W these are x W and, of the same size, g W and xᵀ g with a
  gradient g. All W preserve norms, so that numbers do not overflow or vanish.
  """
  model = config.model
  rows = config.train.batch_size // 2 * (CELL.train_length + 5)
  square = np.linalg.qr(np.random.default_rng(0).normal(size=2 * (model.width,)))[0]
  square = jnp.asarray(square, jnp.float32)
  up = jnp.concatenate(model.mlp_factor * [square], axis=1) / model.mlp_factor**0.5
  layer = [*4 * [square], up, up.T]
  weights = [*(model.num_layers - 1) * layer, *2 * [square]]  # last: K and V

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


def _torch(config):
  """Returns a function that continues training in PyTorch, its steps, and facts."""
  import torch

  from experiments.benchmarks import torch_counting

  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  sizes = {name: config.model[name]
           for name in ('num_layers', 'width', 'num_heads', 'mlp_factor')}
  run = torch_counting.Run(device, sizes, config.train.batch_size, CELL.train_length,
                           config.train.num_steps)
  run.advance(50)  # the first steps are slower
  return lambda: run.advance(20), 20, {'device': device, 'version': torch.__version__}


if __name__ == '__main__':
  main()
