"""Does a model favour recent tokens? Measured on the attention logits of any model.

The statistics of `vvlen.simulation` on given logits: how the mean score falls with
distance, and how often the more recent of two keys has the larger score (arXiv
2509.21042, Definition 1). If positions have a bias of their own, as rotary ones do, it
is included: to separate it, compare with the scores of the same tokens in random order.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from vvlen.theory.ordering import order


class RecencyOfLogits(NamedTuple):
  """Statistics of logits [..., m, n]. Leading axes, such as of heads, are kept.

  Shares are float32; scores are float32, or float64 where the logits are.
  """

  mean_score: jax.Array  # [..., n], by distance 0..n−1; nan if it does not occur
  recency_probability: jax.Array  # [...], one half without any order
  violation_rate: jax.Array  # [...]


def recency_of_logits(
    logits: jax.Array, mask: jax.Array | None = None
) -> RecencyOfLogits:
  """Measures the recency bias of attention logits.

  Compares every key with every other for each query: m n² comparisons for each leading
  index. Call it under jit, and for long sequences pass the last m queries only. If a
  model returns only its attention weights, pass their logarithm: it differs by a
  constant for each query, which changes the mean scores but neither share.

  Args:
    logits: [..., m, n], before the softmax, of the last m of n positions, preferably
      float32: bfloat16 has ties, which count against recency. Entries after a query's
      own position, or where the mask is False, are ignored.
    mask: [..., m, n] or [m, n] bool, True where the query attends; None: it attends to
      all keys up to its own position.

  Returns:
    The statistics, over all queries together.

  Raises:
    ValueError: on logits that are complex or have more queries than keys, a mask that
      is not bool or has another shape, or a logit that counts and is not finite
      (checked only outside jit).
  """
  logits = jnp.asarray(logits)
  if (logits.ndim < 2 or not 0 < logits.shape[-2] <= logits.shape[-1]
      or jnp.issubdtype(logits.dtype, jnp.complexfloating)):
    raise ValueError(
        'logits must be real, [..., queries, keys], no more queries than keys: '
        f'{logits.dtype}{logits.shape}'
    )
  num_queries, num_keys = logits.shape[-2:]
  causal = jnp.tri(num_queries, num_keys, num_keys - num_queries, dtype=bool)
  seen = jnp.broadcast_to(causal, logits.shape)
  if mask is not None:
    mask = jnp.asarray(mask)
    if mask.dtype != bool or mask.shape not in (logits.shape, logits.shape[-2:]):
      raise ValueError(
          f'mask must be bool, {logits.shape} or {logits.shape[-2:]}: '
          f'{mask.dtype}{mask.shape}'
      )
    seen &= jnp.broadcast_to(mask, logits.shape)
  wide = jnp.promote_types(logits.dtype, jnp.float32)
  logits = jnp.where(seen, logits.astype(wide), 0.0)
  if not isinstance(logits, jax.core.Tracer) and not jnp.isfinite(logits).all():
    raise ValueError('logits has entries that are not finite')

  positions = jnp.arange(num_keys - num_queries, num_keys)[:, None]
  distance = jnp.arange(num_keys)[None]
  key_at = jnp.broadcast_to(positions - distance, logits.shape)
  at_distance = lambda x: jnp.take_along_axis(x, jnp.maximum(key_at, 0), axis=-1)
  there = at_distance(seen) & (key_at >= 0)
  total = jnp.where(there, at_distance(logits), 0.0).sum(-2)
  last = lambda x: jnp.moveaxis(x, (-2, -1), (0, 1))
  return RecencyOfLogits(total / there.sum(-2), *order(last(logits), last(seen)))
