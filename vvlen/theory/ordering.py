"""How often a more recent token has the larger attention score.

Recency bias (arXiv 2509.21042, Definition 1) means S_ij > S_ik for all i ≥ j > k. Two
shares measure how far given scores obey this:

  recency probability   of the triples k < j < i: those with S_ij > S_ik
  violation rate        of the triples k < j ≤ i: those with S_ik ≥ S_ij

For scores in random order the recency probability is one half. The diagonal, a token's
score with itself, enters the violation rate only.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Up to _WRITTEN_OUT keys, all comparisons are unrolled; beyond, they are a loop over
# keys, _AT_ONCE keys at a time.
_WRITTEN_OUT = 16
_AT_ONCE = 8


class Order(NamedTuple):
  """Shares of triples; nan if there are no triples."""

  recency_probability: jax.Array
  violation_rate: jax.Array


def order(scores: jax.Array, seen: jax.Array | None = None) -> Order:
  """Returns how the scores of each query are ordered.

  Compares all pairs of keys: n³/6 comparisons, or m n² with a mask or many keys.

  Args:
    scores: [m, n, ...], row i being the i-th query. With m < n the queries are the
      last m of n positions.
    seen: [m, n, ...] bool, True where the query attends to the key; None for all.
      Keys after the query never count.

  Returns:
    Two arrays [...], float32: shares over all queries, for each index of the last axes.

  Raises:
    ValueError: if there are more queries than keys.
  """
  num_queries, num_keys = scores.shape[:2]
  if num_queries > num_keys:
    raise ValueError(f'more queries than keys: {scores.shape}')
  if seen is None and num_queries == num_keys <= _WRITTEN_OUT:
    own, earlier = _all_in_order(scores)
    own_pairs, pairs = (math.comb(num_keys, k) for k in (2, 3))
  else:
    seen = jnp.ones_like(scores, bool) if seen is None else seen
    own, own_pairs, earlier, pairs = _seen_in_order(scores, seen)
  return Order(earlier / pairs, 1 - (own + earlier) / (own_pairs + pairs))


def _all_in_order(scores):
  """Counts the pairs of keys k < j with S_ij > S_ik: those of j = i, and of j < i."""
  num_keys, *_ = scores.shape
  none = jnp.zeros(scores.shape[2:], jnp.float32)
  rises = lambda i, j: sum(
      ((scores[i, j] > scores[i, k]).astype(jnp.float32) for k in range(j)), none
  )
  # Sums of vectors along the batch, which a CPU computes in one loop.
  own = sum((rises(i, i) for i in range(num_keys)), none)
  earlier = sum((rises(i, j) for i in range(num_keys) for j in range(i)), none)
  return own, earlier


def _seen_in_order(scores, seen):
  """As `_all_in_order`, each count followed by the number of all such pairs."""
  num_queries, num_keys = scores.shape[:2]
  behind = (*range(2, scores.ndim),)
  keys = jnp.arange(num_keys)[None]
  positions = jnp.arange(num_keys - num_queries, num_keys)[:, None]
  before = seen & jnp.expand_dims(keys < positions, behind)
  at_own = lambda x: jnp.take_along_axis(x, jnp.expand_dims(positions, behind), axis=1)
  # A comparison with nan is False.
  others = jnp.where(before, scores, jnp.nan)
  own = ((at_own(scores) > others) & at_own(seen)).astype(jnp.float32)
  there = before.astype(jnp.float32).sum(1)

  padding = [(0, 0), (0, -num_keys % _AT_ONCE), *((0, 0) for _ in behind)]
  padded = jnp.pad(others, padding, constant_values=jnp.nan)
  keys = jnp.expand_dims(keys, behind)

  def count(block, rises):
    first = _AT_ONCE * block
    later = jax.lax.dynamic_slice_in_dim(padded, first, _AT_ONCE, axis=1)
    for j in range(_AT_ONCE):
      rise = (later[:, j : j + 1] > others) & (keys < first + j)
      rises += rise.astype(jnp.float32)
    return rises

  # The loop starts from the sums of block 0, so that they are sharded as the scores.
  rises = jax.lax.fori_loop(1, padded.shape[1] // _AT_ONCE, count, count(0, 0.0))
  return (
      own.sum((0, 1)), (there * at_own(seen)[:, 0]).sum(0),
      rises.sum((0, 1)), (there * (there - 1) / 2).sum(0),
  )
