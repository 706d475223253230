"""How fast is the simulation of the causal stack, compared with plain numpy?

Compares, in rounds that alternate between processes, simulations per second of
`vvlen.simulation.simulate_recency` with `numpy_recency`, for 10 tokens of cosine 0.5
and width 64 in 4 layers (Figures 1 and 3 of arXiv 2509.21042):

  reduced            vvlen's reduced sampler, one device per core
  direct             vvlen's direct sampler, one device per core
  numpy_reduced      the reduced sampler in numpy, one process with all BLAS threads
  numpy_direct       the direct sampler in numpy, likewise
  *_processes        numpy with one process per core, their rates added
  drawing_reduced    like `reduced`, but only drawing random numbers
  drawing_direct     like `direct`, but only drawing random numbers

  python -m experiments.benchmarks.recency_simulation [--long]

numpy uses the chunk size and dtype that are fastest on this machine, found at start.
--long also measures one million and ten million simulations of the reduced sampler:
seconds, peak memory, and bytes per second, also as a share of --bandwidth if given.
With --tiny, all counts are a hundredth, and numpy has one setting, to see that it runs.
"""

import argparse
from collections.abc import Callable
import functools
import math
import os
import resource
import sys
import time
from typing import Any

import jax
import numpy as np

from experiments.benchmarks import _rounds, numpy_recency
from experiments.harness import machine
from vvlen import sharding
from vvlen.simulation import simulate_recency, tokens

MODULE = 'experiments.benchmarks.recency_simulation'
NUM_TOKENS, WIDTH, NUM_LAYERS, ANISOTROPY = 10, 64, 4, 0.5
SETTINGS = dict(
    num_tokens=NUM_TOKENS, width=WIDTH, num_layers=NUM_LAYERS, anisotropy=ANISOTROPY
)
SAMPLERS = ('reduced', 'direct')
# Per measurement.
SIMULATIONS = {'reduced': 100_000, 'direct': 20_000}
LONG, SHORT = 10_000_000, 1_000_000
# How many are drawn at once when only drawing is measured; as vvlen.simulation does.
DRAWN = {'reduced': 1000, 'direct': 200}
DRAWN_TOGETHER_ON_ACCELERATOR = 64


def floors(sampler: str) -> dict[str, int]:
  """Returns lower bounds of the work for one simulation.

  `multiply_adds` counts only the lower triangle of products: scores are symmetric,
  weights are triangular, and in the reduced sampler the rows are triangular in every
  layer. `dense_multiply_adds` counts products of whole matrices. `bytes` are those of
  whole float32 arrays without any cache: each layer reads and writes the stream, and
  writes scores and weights, which the statistics then read.
  """
  n, layers = NUM_TOKENS, NUM_LAYERS
  if sampler == 'reduced':
    length = n
    triangle = math.comb(n + 2, 3)
    products, dense = (2 * layers + 1) * triangle, (2 * layers + 1) * n**3
    normals, chi = math.comb(n, 2), n
  else:
    length = WIDTH
    products = layers * n * (n + 1) * length + n * length
    dense = layers * 2 * n * n * length + n * length
    normals, chi = (n + 1) * length, 0
  return {
      'multiply_adds': products,
      'dense_multiply_adds': dense,
      'normals': normals,
      'chi': chi,
      'exponentials': layers * n * (n + 1) // 2,
      'comparisons': layers * (math.comb(n, 2) + math.comb(n, 3)),
      'bytes': 4 * (n * length * (1 + 2 * layers) + n * n * 4 * layers),
  }


def main() -> None:
  """Runs all workers, and prints a table and, as the last line, JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--long', action='store_true', help='also ten million')
  parser.add_argument('--bandwidth', type=float, help="the device's peak, in GB/s")
  parser.add_argument('--output', help='also write the JSON to this file')
  parser.add_argument('--worker', help=argparse.SUPPRESS)
  parser.add_argument('--sampler', choices=SAMPLERS, help=argparse.SUPPRESS)
  parser.add_argument('--simulations', type=int, help=argparse.SUPPRESS)
  parser.add_argument('--chunk', type=int, help=argparse.SUPPRESS)
  parser.add_argument('--dtype', choices=numpy_recency.DTYPES, help=argparse.SUPPRESS)
  parser.add_argument('--tiny', action='store_true', help='a hundredth of all counts')
  args = parser.parse_args()
  if args.worker is not None:
    _serve(args)
    return

  shrink = 100 if args.tiny else 1
  start = lambda worker, sampler='reduced', *rest, processes=1: _rounds.Worker(
      MODULE, [f'--worker={worker}', f'--sampler={sampler}',
               f'--simulations={SIMULATIONS[sampler] // shrink}', *rest], processes
  )
  setting = ['--chunk=100', '--dtype=float32'] if args.tiny else []
  long = {}
  if args.long:
    for count in (SHORT // shrink, LONG // shrink):
      print(f'Simulating {count:,}.', flush=True)
      worker = start('long', 'reduced', f'--simulations={count}')
      worker.close()
      long[count] = worker.about
  print('Compiling, and trying chunks in numpy.', flush=True)
  workers = {}
  for sampler in SAMPLERS:
    workers[sampler] = start('vvlen', sampler)
    numpy = workers[f'numpy_{sampler}'] = start('numpy', sampler, *setting)
    workers[f'numpy_{sampler}_processes'] = start(
        'numpy', sampler, f'--chunk={numpy.about["chunk"]}',
        f'--dtype={numpy.about["dtype"]}', processes=len(os.sched_getaffinity(0)),
    )
    workers[f'drawing_{sampler}'] = start('drawing', sampler)
  print('Measuring, in simulations per second.', flush=True)
  rounds = _rounds.alternate(workers, args.rounds)
  result = _result(workers, long, args.bandwidth) | rounds
  _print_table(result)
  _rounds.report(result, args.output)


def _result(
    workers: dict[str, _rounds.Worker], long: dict[int, Any], bandwidth: float | None
) -> dict[str, Any]:
  rate = {name: worker.median() for name, worker in workers.items()}
  of_each = lambda f: {sampler: f(sampler) for sampler in SAMPLERS}
  ratio = lambda suffix: of_each(
      lambda s: round(rate[s] / rate[f'numpy_{s}{suffix}'], 2))
  about = of_each(lambda s: workers[s].about)
  return {
      'ratio': ratio(''),
      'ratio_to_processes': ratio('_processes'),
      'simulations_per_second': {name: round(x) for name, x in rate.items()},
      'seconds_per_100_000': {
          name: float(f'{1e5 / x:.3g}') for name, x in rate.items()
      },
      'share_of_time_in_drawing': of_each(
          lambda s: round(rate[s] / rate[f'drawing_{s}'], 3)),
      'first_call_seconds': of_each(lambda s: about[s]['first_call_seconds']),
      'numpy_settings': of_each(lambda s: workers[f'numpy_{s}'].about),
      'floors': of_each(floors),
      'multiply_adds_per_second': of_each(
          lambda s: float(f'{rate[s] * floors(s)["multiply_adds"]:.3g}')),
      'long': {str(count): _of_long(x, bandwidth) for count, x in long.items()},
      'device': about['reduced']['device'],
      'settings': SETTINGS,
  }


def _of_long(about: dict[str, Any], bandwidth: float | None) -> dict[str, Any]:
  """Returns what a long run reports, with the bytes per second that it moves."""
  moved = about['simulations'] * floors('reduced')['bytes'] / 1e9 / about['seconds']
  share = round(moved / bandwidth, 4) if bandwidth else None
  return about | {'gb_per_second': round(moved, 2), 'share_of_bandwidth': share}


def _print_table(result: dict[str, Any]) -> None:
  print(f'{"":26}{"simulations / s":>16}{"s / 100,000":>13}')
  for name, rate in result['simulations_per_second'].items():
    print(f'{name:26}{rate:16,}{result["seconds_per_100_000"][name]:13.3g}')
  for count, long in result['long'].items():
    print(
        f'{int(count):,}: {long["seconds"]} s, peak {long["peak_rss_gib"]} GiB, '
        f'{long["gb_per_second"]} GB/s'
    )


def _serve(args: argparse.Namespace) -> None:
  """Runs one worker until its standard input ends."""
  if args.worker == 'long':
    _rounds.serve(lambda: math.nan, _long(args.simulations))
    return
  count = args.simulations
  if args.worker == 'numpy':
    simulate, about = _numpy(args)
  elif args.worker == 'vvlen':
    simulate, about = _vvlen(args.sampler)
  else:
    simulate, count = _drawing(args.sampler, count)
    about = {}

  _rounds.serve_calls(lambda: simulate(count), count, about)


def _vvlen(sampler: str) -> tuple[Callable[[int], Any], dict[str, Any]]:
  """Returns a function of a count that simulates, and facts."""
  machine.use_devices(64)
  jax.config.update('jax_enable_compilation_cache', False)
  key = jax.random.key(0)
  simulate = lambda count: simulate_recency(
      key, sampler=sampler, num_simulations=count, **SETTINGS
  )
  start = time.perf_counter()
  simulate(1)
  about = {
      'first_call_seconds': round(time.perf_counter() - start, 2),
      'device': machine.device(),
  }
  return simulate, about


def _long(count: int) -> dict[str, Any]:
  """Returns time and memory of a long run; the memory includes compiling."""
  simulate, about = _vvlen('reduced')
  watch, own, start = _rounds.Watch(), time.process_time(), time.perf_counter()
  result = simulate(count)
  seconds = time.perf_counter() - start
  others = watch.others(time.process_time() - own)
  unit = 1 if sys.platform == 'darwin' else 1024
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
  device = (jax.devices()[0].memory_stats() or {}).get('peak_bytes_in_use')
  return about | {
      'simulations': count,
      'seconds': round(seconds, 2),
      'seconds_per_100_000': float(f'{seconds * 1e5 / count:.3g}'),
      'peak_rss_gib': round(peak / 2**30, 3),
      'peak_device_gib': None if device is None else round(device / 2**30, 3),
      'taken_by_others': round(others, 3),
      'largest_standard_error': float(f'{result.standard_error.max():.2g}'),
  }


def _drawing(sampler: str, count: int) -> tuple[Callable[[int], Any], int]:
  """Returns a function that only draws, for at least `count`, and for how many."""
  machine.use_devices(64)
  key, chunk = jax.random.key(0), DRAWN[sampler]
  law = tuple(
      np.asarray(x, np.float32)
      for x in tokens.factor_law(NUM_TOKENS, WIDTH, ANISOTROPY, True)
  )

  def one(number):
    own = jax.random.fold_in(key, number)
    if sampler == 'reduced':
      drawn = tokens.draw_factor(own, chunk, *map(jax.numpy.asarray, law))
    else:
      anisotropy = jax.numpy.float32(ANISOTROPY)
      drawn = tokens.draw_tokens(own, chunk, NUM_TOKENS, WIDTH, anisotropy)
    # The barrier keeps XLA from skipping draws that are not returned.
    return jax.lax.optimization_barrier(drawn)[(0,) * drawn.ndim]

  mesh = sharding.seed_mesh()
  group = 1 if jax.default_backend() == 'cpu' else DRAWN_TOGETHER_ON_ACCELERATOR
  block = mesh.size * group
  calls = math.ceil(count / chunk / block) * block
  program = sharding.over_seeds(one, mesh, group)
  numbers = sharding.put(np.arange(calls, dtype=np.int32), mesh)
  return lambda _: program(numbers).block_until_ready(), calls * chunk


def _numpy(
    args: argparse.Namespace,
) -> tuple[Callable[[int], Any], dict[str, Any]]:
  """Returns a function of a count that simulates in numpy, and its settings."""
  simulate = functools.partial(
      numpy_recency.simulate, np.random.default_rng(0), sampler=args.sampler, **SETTINGS
  )
  about = {'chunk': args.chunk, 'dtype': args.dtype}
  if args.chunk is None:
    about = numpy_recency.fastest(simulate)
  run = lambda count: simulate(
      num_simulations=count, chunk=about['chunk'], dtype=about['dtype']
  )
  return run, about


if __name__ == '__main__':
  main()
