"""What does Adam cost for an embedding table if a batch uses an eighth of its rows?

Updates a table [16384, 64], the keys of dictionary lookup, with gradients of 2,176 rows
(128 sequences of 16 items and a query). Three ways are measured in turns:

  dense   Optax's Adam; the gradient is a whole table, mostly zeros
  sparse  the same update: all moments decay, but the gradient is a list of rows
  lazy    another algorithm (PyTorch's SparseAdam): rows without a gradient, and their
          moments, do not change

  python -m experiments.benchmarks.embedding_updates

vvlen uses the dense way.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import optax

from experiments.benchmarks import _rounds
from experiments.harness import machine
from vvlen.sharding import over_seeds, put, seed_mesh

NUM_KEYS, WIDTH, ROWS = 16384, 64, 128 * 17
BETA1, BETA2, EPSILON, RATE = 0.9, 0.999, 1e-8, 1e-3
STEPS = 200


def dense(table: jax.Array, indices: jax.Array, rows: jax.Array) -> jax.Array:
  """Returns the table after one update for each row of `indices` [STEPS, ROWS]."""
  optimizer = optax.adam(RATE, BETA1, BETA2, EPSILON)

  def body(carry, index):
    table, state = carry
    gradient = jnp.zeros_like(table).at[index].add(rows)
    updates, state = optimizer.update(gradient, state, table)
    return (optax.apply_updates(table, updates), state), None

  return jax.lax.scan(body, (table, optimizer.init(table)), indices)[0][0]


def _by_rows(table, indices, rows, lazy):
  """Returns the table after the updates of `sparse`, or of `lazy`."""

  def body(carry, inputs):
    table, mean, square, total = carry
    index, step = inputs
    # The gradients of a key that occurs several times are added up.
    total = total.at[index].add(rows)
    gradient = total[index]
    total = total.at[index].set(0.0)
    if not lazy:
      mean, square = BETA1 * mean, BETA2 * square
    decay1, decay2 = (BETA1, BETA2) if lazy else (1.0, 1.0)
    mean_rows = decay1 * mean[index] + (1 - BETA1) * gradient
    square_rows = decay2 * square[index] + (1 - BETA2) * gradient**2
    mean = mean.at[index].set(mean_rows)
    square = square.at[index].set(square_rows)
    root = jnp.sqrt(1 - BETA2**step)
    change = lambda mean, square: (
        -RATE * root / (1 - BETA1**step) * mean / (jnp.sqrt(square) + EPSILON * root)
    )
    if lazy:
      table = table.at[index].set(table[index] + change(mean_rows, square_rows))
    else:
      table = table + change(mean, square)
    return (table, mean, square, total), None

  zeros = jnp.zeros_like(table)
  steps = 1.0 + jnp.arange(STEPS)
  carry = (table, zeros, zeros, zeros)
  return jax.lax.scan(body, carry, (indices, steps))[0][0]


def sparse(table: jax.Array, indices: jax.Array, rows: jax.Array) -> jax.Array:
  """Returns the same as `dense`, with the gradient as a list of rows."""
  return _by_rows(table, indices, rows, lazy=False)


def lazy(table: jax.Array, indices: jax.Array, rows: jax.Array) -> jax.Array:
  """Updates only the rows of `indices`, and only their moments."""
  return _by_rows(table, indices, rows, lazy=True)


def main() -> None:
  """Measures the three ways, one seed per core, and prints JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument('--output', help='also write the JSON to this file')
  args = parser.parse_args()
  machine.use_devices(64)
  mesh = seed_mesh()

  def start(key):
    return (
        jax.random.normal(key, (NUM_KEYS, WIDTH)),
        jax.random.randint(key, (STEPS, ROWS), 0, NUM_KEYS),
        jax.random.normal(jax.random.fold_in(key, 1), (ROWS, WIDTH)),
    )

  keys = put(jax.random.split(jax.random.key(0), mesh.size), mesh)
  arguments = over_seeds(start, mesh)(keys)
  functions = {f.__name__: over_seeds(f, mesh, 1) for f in (dense, sparse, lazy)}
  tables = {name: f(*arguments) for name, f in functions.items()}
  change = lambda name: float(jnp.abs(tables[name] - tables['dense']).max())
  milliseconds: dict[str, list[float]] = {name: [] for name in functions}
  for _ in range(args.rounds):
    for name, function in functions.items():
      begin = time.perf_counter()
      jax.block_until_ready(function(*arguments))
      milliseconds[name].append((time.perf_counter() - begin) / STEPS * 1e3)
  _rounds.report({
      'milliseconds_per_update': {
          name: round(statistics.median(x), 3) for name, x in milliseconds.items()
      },
      'largest_difference_from_dense': {
          name: float(f'{change(name):.2g}') for name in ('sparse', 'lazy')
      },
      'device': machine.device(),
      'rounds': {k: [round(x, 3) for x in v] for k, v in milliseconds.items()},
  }, args.output)


if __name__ == '__main__':
  main()
