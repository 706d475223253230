r"""How fast is training many seeds, compared with one seed in plain PyTorch?

Compares, in rounds that alternate between processes, updates per second, summed over
seeds, of argmax retrieval or dictionary lookup at the sizes of arXiv 2504.02827:

  experiment  as experiments train: 8 seeds, one device per core, one seed at a time
              on each; on a GPU, 100 seeds by vmap
  processes   the same seeds, divided among one process per core, each as `experiment`
  vmap        the same seeds by vmap, on a single device with all cores
  torch       `torch_retrieval`, one seed with all cores, or on the GPU
  redraw      `torch_retrieval` with its faster sampler; only for lookup
  sampler     like `experiment`, but only drawing batches
  peak        one product of 2048 x 2048 float32 matrices at a time, all cores

  python -m experiments.benchmarks.retrieval_training [--task=lookup] \
      [--growing]

With --growing, sequences have 5 to 256 items, as at the end of training on growing
lengths. Ratios are of median rates, relative to torch. Two bounds show how much could
still be gained: the arithmetic of the matrix products, as a share of `peak`, and the
bytes of parameters and Adam's moments, which each update reads and writes.
"""

import argparse
from collections.abc import Callable
import functools
import importlib.util
import os
import statistics
from typing import Any

import jax
import jax.numpy as jnp

from configs import lookup, retrieval
from experiments.benchmarks import _rounds
from experiments.harness import machine
from experiments.length_generalization import training
from vvlen import sharding
from vvlen.models.dictionary import DictionaryRetriever
from vvlen.models.norm import KINDS
from vvlen.training import ensemble
from vvlen.training.step import Problem

MODULE = 'experiments.benchmarks.retrieval_training'
PEAK_SIZE = 2048
CONFIGS = {'retrieval': retrieval, 'lookup': lookup}


def matrix_operations(config: Any) -> int:
  """Counts floating-point operations in the matrix products of a seed's update.

  With B sequences, N items, width d and C classes, there are 21 products of size
  B x d x d, which have 88.1 of 103.8 million operations. The forward pass has seven:
  the second layer of the query's MLP, W_Q, W_Kᵀ, Aᵀ (A is the second layer of the
  items' MLP, folded into the query), A, W_V and the first layer of the head. The
  backward pass has two for each, for the gradients of kernel and input. The rest: the
  items' first layer, forward and the gradient of its kernel; the two sums of attention,
  each with two gradients; the last layer of the head, likewise; and the query's first
  layer. In lookup, the first layers, of keys, values and query, also have gradients of
  their inputs. Lookup's products with one-hot vectors, which read the rows of values
  and add their gradients, are not counted.
  """
  lookup_width = DictionaryRetriever.embedding_width
  b, n = config.train.batch_size, config.train.max_length
  d, c = config.model.width, config.task.num_classes
  if config.task.name == 'lookup':
    first = 3 * (b * n + c + b) * lookup_width * d
  else:
    first = 2 * b * n * (1 + c) * d + 2 * b * d
  return 2 * (21 * b * d * d + first + 6 * b * n * d + 3 * b * d * c)


def main() -> None:
  """Runs all workers, and prints a table and, as the last line, JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--task', choices=CONFIGS, default='retrieval')
  parser.add_argument('--growing', action='store_true', help='lengths up to 256')
  parser.add_argument('--norm', choices=KINDS, default='layer_norm')
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--seconds', type=float, default=2.0, help='per measurement')
  parser.add_argument('--steps', type=int, default=0,
                      help='per call; 0: 100, with --growing 10, of PyTorch 20')
  parser.add_argument('--output', help='also write the JSON to this file')
  parser.add_argument('--worker', help=argparse.SUPPRESS)
  parser.add_argument('--processes', type=int, default=1, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.worker is not None:
    _serve(args)
    return

  arguments = [
      f'--task={args.task}', f'--norm={args.norm}', f'--seconds={args.seconds}',
      f'--steps={args.steps}',
      *(['--growing'] if args.growing else []),
  ]
  start = lambda name, processes=1: _rounds.Worker(
      MODULE, [f'--worker={name}', f'--processes={processes}', *arguments], processes,
      wait=False)
  print('Compiling.', flush=True)
  workers = {'experiment': start('experiment')}
  about = workers['experiment'].about
  names = ['sampler', 'peak']
  if about['backend'] == 'cpu':  # elsewhere the experiment itself uses vmap
    names.insert(0, 'vmap')
    workers['processes'] = start('processes', len(os.sched_getaffinity(0)))
  if importlib.util.find_spec('torch'):
    names += ['torch', *(['redraw'] if args.task == 'lookup' else [])]
  else:
    print('PyTorch is not installed: no ratios.')
  workers |= {name: start(name) for name in names}
  print('Measuring; peak in operations, the others in (seed-)steps per second.',
        flush=True)
  rounds = _rounds.alternate(workers, args.rounds)
  result = _result(args, about, workers) | rounds
  _print_table(result)
  _rounds.report(result, args.output)


def _config(args: argparse.Namespace, variant: str = 'cpu') -> Any:
  """Returns the configuration that is measured."""
  config = CONFIGS[args.task].get_config(variant + args.growing * '_growing')
  if args.growing:
    config.train.first_max_length = config.train.max_length
  return config


def _result(
    args: argparse.Namespace, about: dict[str, Any], workers: dict[str, _rounds.Worker]
) -> dict[str, Any]:
  rate = {name: worker.median() for name, worker in workers.items()}
  rate.setdefault('vmap', rate['experiment'])
  torch = rate.get('torch')
  ratio = lambda name: round(rate[name] / torch, 2) if torch else None
  operations = matrix_operations(_config(args))
  return {
      'seed_steps_per_second': round(rate['experiment'], 1),
      'torch_steps_per_second': round(torch, 1) if torch else None,
      'ratio': ratio('experiment'),
      'processes_ratio': ratio('processes') if 'processes' in rate else None,
      'vmap_ratio': ratio('vmap'),
      'redraw_ratio': (
          round(rate['experiment'] / rate['redraw'], 2) if 'redraw' in rate else None),
      'sampler_share_of_step': round(rate['experiment'] / rate['sampler'], 3),
      'share_of_matrix_peak': round(rate['experiment'] * operations / rate['peak'], 3),
      'matrix_operations_per_seed_step': operations,
      'matrix_gflops_per_second': round(rate['experiment'] * operations / 1e9, 1),
      'peak_gflops_per_second': round(rate['peak'] / 1e9, 1),
      'state_bytes_per_seed_step': about['state_bytes'],
      'state_gb_per_second': round(
          rate['experiment'] * about['state_bytes'] / 1e9, 2),
      'device': about['device'],
      'torch_device': workers['torch'].about['device'] if torch else None,
      'versions': {'torch': workers['torch'].about['version']} if torch else {},
      'task': args.task,
      'norm': args.norm,
      'growing': args.growing,
      'num_seeds': about['num_seeds'],
  }


def _print_table(result: dict[str, Any]) -> None:
  rounds = result['rounds']
  print(f'{"":12}{"median":>10}{"least":>10}{"most":>10}')
  for name, rates in rounds.items():
    if name != 'peak':
      median = statistics.median(rates)
      print(f'{name:12}{median:10.1f}{min(rates):10.1f}{max(rates):10.1f}')
  print(
      f'Matrix products: {result["matrix_operations_per_seed_step"] / 1e6:.1f} '
      f'MFLOP a seed-step, {result["matrix_gflops_per_second"]:.0f} of '
      f'{result["peak_gflops_per_second"]:.0f} GFLOP/s.\n'
      f'Parameters and moments: {result["state_bytes_per_seed_step"] / 1e6:.2f} MB '
      f'read and written a seed-step, {result["state_gb_per_second"]:.1f} GB/s.'
  )


def _serve(args: argparse.Namespace) -> None:
  """Runs one worker until its standard input ends."""
  if args.worker in ('torch', 'redraw'):
    advance, unit, about = _torch(args)
  elif args.worker == 'peak':
    advance, unit, about = matrix_peak()
  else:
    advance, unit, about = _trainer(args)

  _rounds.serve_calls(advance, unit, about, args.seconds)


def _trainer(
    args: argparse.Namespace,
) -> tuple[Callable[[], None], int, dict[str, Any]]:
  """Returns a function that continues training, its seed-steps per call, and facts."""
  # jax.default_backend() initializes JAX, so devices must be set up before it.
  strategy, config = args.worker, _config(args)
  config.train.seeds_at_once //= args.processes
  if strategy != 'vmap':
    machine.use_devices(config.train.seeds_at_once)
  group = config.train.seeds_at_once if strategy == 'vmap' else 1
  if jax.default_backend() != 'cpu':
    config = _config(args, 'paper')
    group = config.train.group_size
  mesh = sharding.seed_mesh()
  problem = training.problem(config, args.norm)
  trainer = ensemble.make_trainer(
      problem, steps_per_call=args.steps or (10 if args.growing else 100),
      group_size=group, mesh=mesh
  )
  seeds = config.train.seeds_at_once
  keys = sharding.put(ensemble.seed_keys(config.seed, 0, seeds), mesh)
  state = trainer.start(keys)
  num_bytes = sum(x.nbytes for x in jax.tree.leaves(state))

  draw = sharding.over_seeds(drawing(problem, trainer.steps_per_call), mesh, group)

  def advance():
    nonlocal state
    if strategy == 'sampler':
      sharding.fetch(draw(keys))
      return
    state, metrics = trainer.advance(state, keys)
    sharding.fetch(metrics)  # as `ensemble.train` does

  about = {
      'backend': jax.default_backend(),
      'device': machine.device(),
      'num_seeds': seeds,
      'state_bytes': 2 * num_bytes // seeds,  # read and written
  }
  return advance, seeds * trainer.steps_per_call, about


def drawing(problem: Problem, steps: int) -> Callable[[jax.Array], jax.Array]:
  """Returns a function of a seed's key that draws the batches of `steps` updates."""

  def draw(key):
    def body(total, step):
      batch = problem.sample(jax.random.fold_in(key, step), step)
      # The sum uses all of the batch; the compiler would skip unused parts.
      return total + sum(jnp.sum(x) for x in jax.tree.leaves(batch)), None

    return jax.lax.scan(body, 0.0, jnp.arange(steps))[0]

  return draw


def matrix_peak() -> tuple[Callable[[], None], int, dict[str, Any]]:
  """Returns a function that multiplies matrices, its operations, and no facts."""
  x = jax.random.normal(jax.random.key(0), (PEAK_SIZE, PEAK_SIZE))
  # Experiments multiply in float32 too, not in TF32.
  product = jax.jit(functools.partial(jnp.dot, precision='float32'))

  def advance():
    for _ in range(4):
      y = product(x, x)
    y.block_until_ready()

  return advance, 4 * 2 * PEAK_SIZE**3, {}


def _torch(
    args: argparse.Namespace,
) -> tuple[Callable[[], None], int, dict[str, Any]]:
  """Returns a function that continues training in PyTorch, its steps, and facts."""
  import torch

  from experiments.benchmarks import torch_retrieval

  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  run = torch_retrieval.Run(
      args.norm, device, args.task, _config(args).train.max_length,
      redraw=args.worker == 'redraw',
  )
  run.advance(args.steps or 50)  # the first steps are slower
  steps = args.steps or 20
  about = {'device': device, 'version': torch.__version__}
  return lambda: run.advance(steps), steps, about


if __name__ == '__main__':
  main()
