"""Time and memory of causal attention over long inputs, with its gradient.

Measures attention and its gradients with respect to queries, keys and values, for one
sequence of 2048, 8192 and 16,384 tokens and 4 heads of width 64. Compares, in rounds
that alternate between processes:

  chunked   vvlen.models.kernels.causal, in blocks
  plain     the same with all logits at once, if they fit into --gib
  torch     PyTorch's scaled_dot_product_attention, if PyTorch is installed
  cudnn     NVIDIA's kernel in bfloat16, on a GPU

  python -m experiments.benchmarks.long_attention [--tokens=2048,8192]

Rates are tokens per second. Memory is that of the compiled program without inputs and
outputs (XLA's memory analysis). PyTorch reports its peak memory on a GPU, and none on a
CPU.
"""

import argparse
import importlib.util
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import _rounds
from vvlen.models.kernels.causal import causal_attention

MODULE = 'experiments.benchmarks.long_attention'
TOKENS, HEADS, WIDTH = (2048, 8192, 16384), 4, 64
IMPLEMENTATIONS = ('chunked', 'plain', 'torch', 'cudnn')


def floors(length: int) -> dict[str, int]:
  """Returns lower bounds of the work for the output and the gradients.

  The output needs two products with half a matrix, the gradients five, since the
  attention weights are computed again. Bytes: the output reads q, k and v and writes
  itself and the log-sum-exp; the gradients read these five and the output's gradient,
  and three gradients are written.
  """
  one_product = length**2 * WIDTH * HEADS  # half of 2 n² d
  entries = HEADS * length
  return {
      'operations': 2 * one_product + 5 * one_product,
      'exponentials': 2 * entries * length // 2,
      'bytes': 4 * entries * (12 * WIDTH + 2),
  }


def plain_bytes(length: int) -> int:
  """Returns the memory of plain attention: three float32 matrices of weights."""
  return 3 * 4 * HEADS * length**2


def main() -> None:
  """Runs all workers, and prints a table and, as the last line, JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--tokens', default=','.join(map(str, TOKENS)))
  parser.add_argument('--gib', type=float, default=8, help='memory limit of plain')
  parser.add_argument('--output', help='also write the JSON to this file')
  parser.add_argument('--worker', choices=IMPLEMENTATIONS, help=argparse.SUPPRESS)
  args = parser.parse_args()
  lengths = [int(x) for x in args.tokens.split(',')]
  if args.worker is not None:
    length, = lengths
    attend, about = (_torch if args.worker == 'torch' else _jax)(args.worker, length)
    _rounds.serve_calls(attend, length, about)
    return

  result = {}
  for length in lengths:
    print(f'{length} tokens: compiling.', flush=True)
    start = lambda name, length=length: _rounds.Worker(
        MODULE, [f'--worker={name}', f'--tokens={length}']
    )
    workers = {'chunked': start('chunked')}
    names = []
    if plain_bytes(length) <= args.gib * 2**30:
      names.append('plain')
    if importlib.util.find_spec('torch') is not None:
      names.append('torch')
    # Asked of the worker: JAX in this process would take GPU memory from the workers.
    if workers['chunked'].about['platform'] == 'gpu':
      names.append('cudnn')
    workers |= {name: start(name) for name in names}
    rounds = _rounds.alternate(workers, args.rounds)
    result[str(length)] = _result(workers, length) | rounds
    _print_table(result[str(length)])
  _rounds.report({
      'tokens': result,
      'settings': {'sequences': 1, 'heads': HEADS, 'width': WIDTH},
  }, args.output)


def _result(workers: dict[str, _rounds.Worker], length: int) -> dict[str, Any]:
  rate = {name: worker.median() for name, worker in workers.items()}
  seconds = {name: length / x for name, x in rate.items()}
  needed = floors(length)
  return {
      'ratio': {
          name: round(rate['chunked'] / x, 2)
          for name, x in rate.items() if name != 'chunked'
      },
      'seconds': {name: float(f'{x:.4g}') for name, x in seconds.items()},
      'temporary_mib': {
          name: worker.about['temporary_mib'] for name, worker in workers.items()
      },
      'floors': needed,
      'operations_per_second': {
          name: float(f'{needed["operations"] / x:.3g}') for name, x in seconds.items()
      },
      'about': {name: worker.about for name, worker in workers.items()},
  }


def _print_table(result: dict[str, Any]) -> None:
  print(f'{"":10}{"seconds":>10}{"temporary MiB":>16}{"Gop / s":>10}')
  for name, seconds in result['seconds'].items():
    memory = result['temporary_mib'][name]
    speed = result['operations_per_second'][name] / 1e9
    print(f'{name:10}{seconds:10.4f}{"-" if memory is None else memory:>16}'
          f'{speed:10.1f}')


def _inputs(length: int) -> list[np.ndarray]:
  rng = np.random.default_rng(0)
  shape = (1, length, HEADS, WIDTH)
  return [rng.standard_normal(shape, np.float32) for _ in range(3)]


def _jax(implementation: str, length: int):
  """Returns a function that attends once, and facts about its compiled program."""
  jax.config.update('jax_enable_compilation_cache', False)
  dtype = jnp.bfloat16 if implementation == 'cudnn' else jnp.float32
  inputs = [jnp.asarray(x, dtype) for x in _inputs(length)]

  def loss(*inputs):
    output = causal_attention(*inputs, implementation=implementation)
    return output.astype(jnp.float32).sum()

  start = time.perf_counter()
  compiled = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).lower(*inputs).compile()
  memory = compiled.memory_analysis()
  about = {
      'compile_seconds': round(time.perf_counter() - start, 2),
      'temporary_mib': round(memory.temp_size_in_bytes / 2**20, 1),
      'dtype': jnp.dtype(dtype).name,
      'platform': jax.default_backend(),
      'device': jax.devices()[0].device_kind,
  }
  return lambda: jax.block_until_ready(compiled(*inputs)), about


def _torch(_: str, length: int):
  import torch

  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  # PyTorch expects heads before tokens.
  inputs = [
      torch.tensor(x, device=device).transpose(1, 2).contiguous().requires_grad_()
      for x in _inputs(length)
  ]

  def attend():
    output = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
    torch.autograd.grad(output.sum(), inputs)
    if device == 'cuda':
      torch.cuda.synchronize()

  memory = None
  if device == 'cuda':
    before = torch.cuda.memory_allocated()
    attend()
    memory = round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)
  about = {
      'temporary_mib': memory, 'dtype': 'float32', 'device': device,
      'threads': torch.get_num_threads(), 'version': torch.__version__,
  }
  return attend, about


if __name__ == '__main__':
  main()
