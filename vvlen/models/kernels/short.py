"""Causal attention for many short inputs at once, vectorized over the inputs.

XLA computes products of many small matrices one by one. On a CPU it is several times
faster to write each product as sums of products of entries, where each entry is a
vector over all inputs, and nothing above the diagonal is computed.

Axes: n tokens, d width; the axis of inputs is last.
"""

from collections.abc import Callable, Sequence
import functools
import math

import jax
import jax.numpy as jnp

from vvlen.models.kernels.stages import stage
from vvlen.sharding import platform

# Used from this many inputs on, if they have at most this many tokens. A sum over d is
# computed this many terms at a time.
_INPUTS, TOKENS, _TERMS = 16, 16, 16


def suits(shape: Sequence[int]) -> bool:
  """Returns whether arrays [n, d, ...] of this shape hold many short inputs.

  On other devices than a CPU, d must be small too, so that a score is a single sum.
  """
  num_tokens, width, *batch = shape
  short = num_tokens <= TOKENS and math.prod(batch) >= _INPUTS
  return short and (width <= _TERMS or platform.target() == 'cpu')


def products(x: jax.Array, y: jax.Array) -> jax.Array:
  """Returns x_i · y_j for j ≤ i, and 0 for j > i.

  Args:
    x: [n, d, ...].
    y: [n, d, ...].

  Returns:
    [n, n, ...].
  """
  width = x.shape[1]
  terms = min(width, _TERMS)
  padding = [(0, 0), (0, -width % terms), *((0, 0) for _ in x.shape[2:])]
  x, y = (jnp.pad(a, padding) for a in (x, y))

  def block(number):
    part = lambda a: jax.lax.dynamic_slice_in_dim(a, terms * number, terms, axis=1)
    return _short_products(part(x), part(y))

  add = lambda number, total: total + block(number)
  return jax.lax.fori_loop(1, x.shape[1] // terms, add, block(0))


@stage
def _short_products(x, y):
  terms = lambda i: (x[i, k, None] * y[: i + 1, k] for k in range(x.shape[1]))
  return _lower_rows([sum(terms(i)) for i in range(len(x))])


def _lower_rows(rows: Sequence[jax.Array]) -> jax.Array:
  """Stacks rows [1, ...], [2, ...], ..., padded with zeros at the end: [n, n, ...]."""
  fill = lambda row: [(0, len(rows) - len(row)), *((0, 0) for _ in row.shape[1:])]
  return jnp.stack([jnp.pad(row, fill(row)) for row in rows])


def softmax(scores: jax.Array) -> jax.Array:
  """Returns the softmax of each row of [n, n, ...] up to the diagonal, 0 after it."""
  seen = jnp.expand_dims(jnp.tri(len(scores), dtype=bool), range(2, scores.ndim))
  masked = lambda x: jnp.where(seen, x, -jnp.inf)
  largest = stage(lambda x: _over_keys(jnp.maximum, masked(x)))(scores)
  powers = stage(lambda x, y: jnp.exp(masked(x - y)))(scores, largest[:, None])
  inverse = stage(lambda x: 1 / _over_keys(jnp.add, x))(powers)
  return stage(jnp.multiply)(powers, inverse[:, None])


def _over_keys(function: Callable[..., jax.Array], x: jax.Array) -> jax.Array:
  return functools.reduce(function, (x[:, k] for k in range(x.shape[1])))


@stage
def averages(weights: jax.Array, values: jax.Array) -> jax.Array:
  """Returns Σ_{j ≤ i} A_ij v_j.

  Args:
    weights: A [n, n, ...].
    values: [n, d, ...].

  Returns:
    [n, d, ...].
  """
  terms = lambda i: (weights[i, j, None] * values[j] for j in range(i + 1))
  return jnp.stack([sum(terms(i)) for i in range(len(weights))])
