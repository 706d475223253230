"""How much memory do chunked losses save, and how much time do they cost?

Compares `vvlen.objectives.chunked.chunked_two_window_loss` with the same loss from the
logits of all rows at once. Both compute the loss and its gradients with respect to
hidden states and embedding:

  memory   temporary memory of the compiled programs (without outputs, so without
           gradients) at V = 128,256, D = 2,048 and 2 x 4,096 rows, compiled but not run
  time     at a size that fits, measured in turns: V = 32,000, D = 256, 2 x 1,024 rows

  python -m experiments.benchmarks.chunked_loss [--dtype=bfloat16]

To measure time at the full size, on an accelerator with room for the plain loss
(26 GB), add --vocabulary=128256 --width=2048 --length=4096.
"""

import argparse
import functools
import statistics
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmarks import _rounds
from experiments.harness import machine
from vvlen.objectives.chunked import CHUNK_SIZE, chunked_two_window_loss
from vvlen.objectives.misalignment import two_window_loss

FULL = dict(vocabulary=128_256, width=2048, length=4096)
WEIGHT = 0.1


def plain(first, second, embedding, *rest):
  """Computes `chunked_two_window_loss` from the logits of all rows at once."""
  product = functools.partial(
      jnp.einsum, 'bld,vd->blv', preferred_element_type=jnp.float32
  )
  return two_window_loss(product(first, embedding), product(second, embedding), *rest)


def inputs(vocabulary: int, width: int, length: int, dtype: str) -> tuple[Any, ...]:
  """Returns two hidden states [1, L, D], embedding [V, D], two [1, L] tokens, e, α."""
  keys = jax.random.split(jax.random.key(0), 5)
  normal = lambda key, rows: jax.random.normal(key, (*rows, width), dtype)
  tokens = (jax.random.randint(key, (1, length), 0, vocabulary) for key in keys[3:])
  # So that logits have variance 1.
  embedding = normal(keys[2], (vocabulary,)) * width**-0.5
  hidden = (normal(key, (1, length)) for key in keys[:2])
  return *hidden, embedding, *tokens, jnp.int32(length // 8), jnp.float32(WEIGHT)


def main() -> None:
  """Compiles, measures, and prints a table and, as the last line, JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--vocabulary', type=int, default=32_000, help='when timed')
  parser.add_argument('--width', type=int, default=256, help='when timed')
  parser.add_argument('--length', type=int, default=1024, help='when timed')
  parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32')
  parser.add_argument('--chunk_size', type=int, default=CHUNK_SIZE)
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument('--output', help='also write the JSON to this file')
  args = parser.parse_args()
  losses = {
      'plain': plain,
      'chunked': functools.partial(chunked_two_window_loss, chunk_size=args.chunk_size),
  }
  steps = {
      name: jax.jit(jax.value_and_grad(f, (0, 1, 2), has_aux=True))
      for name, f in losses.items()
  }

  memory = {}
  for name, step in steps.items():
    shapes = jax.eval_shape(functools.partial(inputs, **FULL, dtype=args.dtype))
    analysis = step.lower(*shapes).compile().memory_analysis()
    memory[name] = analysis.temp_size_in_bytes
    print(f'{name:8} {memory[name] / 1e9:7.3f} GB at {FULL}', flush=True)

  size = dict(vocabulary=args.vocabulary, width=args.width, length=args.length)
  arrays = inputs(**size, dtype=args.dtype)
  results = {name: step(*arrays) for name, step in steps.items()}
  difference = lambda x, y: float(jnp.abs(x - y).max() / jnp.abs(y).max())
  differences = jax.tree.leaves(
      jax.tree.map(difference, results['chunked'], results['plain'])
  )
  del results
  run = lambda step: lambda _: jax.block_until_ready(step(*arrays))
  seconds, about = _rounds.in_turns(
      {name: run(step) for name, step in steps.items()}, args.rounds
  )
  median = {name: statistics.median(x) for name, x in seconds.items()}
  # Three products: logits, and the gradients in hidden states and embedding.
  operations = 3 * 2 * 2 * args.length * args.vocabulary * args.width
  for name, x in median.items():
    print(f'{name:8} {x:7.3f} s, {operations / x / 1e9:,.0f} GFLOP/s at {size}')
  _rounds.report({
      'memory_ratio': round(memory['chunked'] / memory['plain'], 4),
      'time_ratio': round(median['chunked'] / median['plain'], 3),
      'temporary_bytes': memory,
      'seconds': {name: float(f'{x:.4g}') for name, x in median.items()},
      'gflop_per_second': {
          name: round(operations / x / 1e9, 1) for name, x in median.items()
      },
      'largest_relative_difference': float(f'{max(differences):.2g}'),
      'memory_at': FULL,
      'time_at': size,
      'dtype': args.dtype,
      'chunk_size': args.chunk_size,
      'rounds': {k: [float(f'{x:.4g}') for x in v] for k, v in seconds.items()},
      'device': machine.device(),
  } | about, args.output)


if __name__ == '__main__':
  main()
