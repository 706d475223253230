"""Does a model favour recent tokens? From the attention logits of any model.

The statistics of `vvlen.simulation` on given logits: how the mean score falls with
distance, and how often the more recent of two keys has the larger score (arXiv
2509.21042, Definition 1). Positions with a bias of their own, such as rotary ones, are
measured together with it: compare with the model's scores in another order of tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from vvlen.theory.ordering import order


class RecencyOfLogits(NamedTuple):
  """What logits [..., m, n] tell. Leading axes, such as of heads, are kept; float32."""

  mean_score: jax.Array  # [..., n], by distance 0..n−1; nan where there is none
  recency_probability: jax.Array  # [...], one half without any order
  violation_rate: jax.Array  # [...]


def recency_of_logits(
    logits: jax.Array, mask: jax.Array | None = None
) -> RecencyOfLogits:
  """Measures the recency bias of attention logits.

  Compares all pairs of keys for each query: m n²/2 comparisons for each leading index,
  one query at a time. Of long sequences pass some of the queries, the last m.

  Args:
    logits: [..., m, n], before the softmax, of the last m of n positions. What stands
      after a query's own position, or where the mask is False, does not matter.
    mask: [..., m, n] or [m, n] bool, True where the query attends; None for all up to
      its own position.

  Returns:
    The statistics, over all queries together.

  Raises:
    ValueError: if there are more queries than keys, or a logit that counts is not
      finite (which traced logits do not tell).
  """
  logits = jnp.asarray(logits)
  if logits.ndim < 2 or logits.shape[-2] > logits.shape[-1]:
    raise ValueError(
        'logits must be [..., queries, keys], no more queries than keys: '
        f'{logits.shape}'
    )
  num_queries, num_keys = logits.shape[-2:]
  causal = jnp.tri(num_queries, num_keys, num_keys - num_queries, dtype=bool)
  seen = jnp.broadcast_to(causal, logits.shape)
  if mask is not None:
    seen &= jnp.broadcast_to(mask, logits.shape)
  logits = jnp.where(seen, logits.astype(jnp.float32), 0.0)
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
