"""Time of shifted sparse attention against full attention, with gradients.

Measures attention and its gradients with respect to queries, keys and values, in
float32, for one sequence of 2048, 4096 and 8192 tokens and 4 heads of width 64.
Compares, in rounds that alternate between processes:

  full     vvlen.models.kernels.causal
  shifted  vvlen.models.kernels.shifted, in groups of a quarter of the tokens
  peak     one product of 2048 x 2048 matrices at a time, all cores

  python -m experiments.benchmarks.shifted_attention [--tokens=2048,8192]

Rates are tokens per second, of `peak` operations per second. The floor is the time that
the operations that are needed would take at the speed of `peak`; `times_floor` is how
many times longer a program took.
"""

import argparse
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import _rounds
from experiments.benchmarks.retrieval_training import matrix_peak
from vvlen.models.kernels.causal import causal_attention
from vvlen.models.kernels.shifted import shifted_attention

MODULE = 'experiments.benchmarks.shifted_attention'
TOKENS, HEADS, WIDTH = (2048, 4096, 8192), 4, 64
PARTS = 4  # a group is a quarter of the tokens, as in LongLoRA
PROGRAMS = ('full', 'shifted', 'peak')


def operations(length: int) -> dict[str, int]:
  """Returns lower bounds of the operations for the output and the gradients.

  Of groups with s tokens, s² / 2 pairs of a query and a key are needed, and two
  operations per feature for each pair in seven products: two for the output, and five
  for the gradients, since the attention weights are computed again.
  """
  group = length // PARTS
  parts = {
      'full': [length] * 2,
      'shifted': [group] * PARTS + [group // 2] * 2 + [group] * (PARTS - 1),
  }
  # Each list holds the sizes of all groups of two heads.
  pairs = {name: sum(size**2 for size in sizes) // 2 for name, sizes in parts.items()}
  return {name: 7 * 2 * WIDTH * HEADS // 2 * x for name, x in pairs.items()}


def main() -> None:
  """Runs all workers, and prints a table and, as the last line, JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--seconds', type=float, default=1, help='of each measurement')
  parser.add_argument('--tokens', default=','.join(map(str, TOKENS)))
  parser.add_argument('--output', help='also write the JSON to this file')
  parser.add_argument('--worker', choices=PROGRAMS, help=argparse.SUPPRESS)
  args = parser.parse_args()
  lengths = [int(x) for x in args.tokens.split(',')]
  if args.worker is not None:
    _serve(args.worker, lengths[0], args.seconds)
    return

  result = {}
  for length in lengths:
    print(f'{length} tokens: compiling.', flush=True)
    workers = {
        name: _rounds.Worker(MODULE, [
            f'--worker={name}', f'--tokens={length}', f'--seconds={args.seconds}'])
        for name in PROGRAMS
    }
    rounds = _rounds.alternate(workers, args.rounds)
    result[str(length)] = _result(workers, length) | rounds
    _print_table(result[str(length)])
  _rounds.report({
      'tokens': result,
      'settings': {'sequences': 1, 'heads': HEADS, 'width': WIDTH, 'groups': PARTS,
                   'dtype': 'float32'},
  }, args.output)


def _result(workers: dict[str, _rounds.Worker], length: int) -> dict[str, Any]:
  rate = {name: worker.median() for name, worker in workers.items()}
  peak, needed = rate.pop('peak'), operations(length)
  seconds = {name: length / x for name, x in rate.items()}
  return {
      'ratio': round(rate['shifted'] / rate['full'], 2),
      'ratio_of_operations': round(needed['full'] / needed['shifted'], 2),
      'seconds': {name: float(f'{x:.4g}') for name, x in seconds.items()},
      'operations': needed,
      'floor_seconds': {
          name: float(f'{x / peak:.4g}') for name, x in needed.items()},
      'times_floor': {
          name: round(x * peak / needed[name], 2) for name, x in seconds.items()},
      'about': {name: workers[name].about for name in rate},
  }


def _print_table(result: dict[str, Any]) -> None:
  print(f'{"":10}{"seconds":>10}{"floor":>10}{"times":>8}')
  for name, seconds in result['seconds'].items():
    print(f'{name:10}{seconds:10.4f}{result["floor_seconds"][name]:10.4f}'
          f'{result["times_floor"][name]:8.1f}')
  print(f'Shifted attention is {result["ratio"]} times as fast as full attention; it '
        f'needs {result["ratio_of_operations"]} times fewer operations.', flush=True)


def _serve(name: str, length: int, seconds: float) -> None:
  """Measures one of `PROGRAMS` for at least some seconds, whenever it is asked."""
  advance, work, about = matrix_peak() if name == 'peak' else _attention(name, length)
  _rounds.serve_calls(advance, work, about, seconds)


def _attention(name: str, length: int):
  """Returns a function that attends once, its tokens, and facts about its program."""
  jax.config.update('jax_enable_compilation_cache', False)
  draw = np.random.default_rng(0).standard_normal
  inputs = [jnp.asarray(draw((1, length, HEADS, WIDTH), np.float32)) for _ in range(3)]
  attend = causal_attention
  if name == 'shifted':
    attend = functools.partial(shifted_attention, group=length // PARTS)
  start = time.perf_counter()
  loss = lambda *inputs: attend(*inputs).sum()
  compiled = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).lower(*inputs).compile()
  memory = compiled.memory_analysis()
  about = {
      'compile_seconds': round(time.perf_counter() - start, 2),
      'temporary_mib': round(memory.temp_size_in_bytes / 2**20, 1),
      'platform': jax.default_backend(),
  }
  return lambda: jax.block_until_ready(compiled(*inputs)), length, about


if __name__ == '__main__':
  main()
