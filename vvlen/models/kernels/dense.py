"""Attention of m queries to n keys under any mask; returns logits and weights too.

  S = Q Kᵀ / √d − s (p_i − p_j),   A = softmax of S where the mask is True,   O = A V

It holds arrays [B, h, m, n]; for long inputs use `vvlen.models.kernels.causal`.

Axes: B sequences, m queries, n keys, h query heads, k key heads, d width of a head.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from vvlen.models.masked_softmax import bool_mask, masked_softmax


class Alibi(NamedTuple):
  """ALiBi, a bias to near keys (arXiv 2108.12409)."""

  slopes: ArrayLike  # s [h], `vvlen.models.positions.alibi_slopes`
  query_positions: jax.Array  # p_i, [m] or [B, m]
  key_positions: jax.Array  # p_j, [n] or [B, n]


class Attended(NamedTuple):
  """The results of `masked_attention`."""

  output: jax.Array  # [B, m, h, d], of the dtype of the values if that is a float
  logits: jax.Array  # [B, h, m, n], 0 where the mask is False, float32 or wider
  weights: jax.Array  # [B, h, m, n], of the same dtype


def masked_attention(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array,
    bias: Alibi | None = None,
) -> Attended:
  """Attends under a mask.

  Args:
    queries: [B, m, h, d].
    keys: [B, n, k, d]; k divides h, and each key head serves h/k consecutive query
      heads.
    values: [B, n, k, d].
    mask: [m, n] or [B, m, n] bool, True to attend. The output and weights of a query
      whose keys are all masked are zero.
    bias: ALiBi's slopes s and positions p; None for no bias.

  Returns:
    An `Attended`. Logits, weights and sums are float32 for narrower inputs.

  Raises:
    ValueError: if shapes do not fit, k does not divide h, the inputs are complex, or
      the mask is not bool.
  """
  queries, keys, values = map(floating, (queries, keys, values))
  _check(queries, keys, values)
  (batch, length, heads, width), groups = queries.shape, keys.shape[2]
  mask = check_mask(mask, batch, length, keys.shape[1])
  wide = jnp.promote_types(jnp.result_type(queries, keys, values), jnp.float32)
  einsum = functools.partial(
      jnp.einsum, preferred_element_type=wide, precision=jax.lax.Precision.HIGHEST
  )
  # With heads before tokens, XLA on a CPU is a fifth faster.
  queries = queries.reshape(batch, length, groups, -1, width).transpose(0, 2, 3, 1, 4)
  keys, values = keys.swapaxes(1, 2), values.swapaxes(1, 2)
  logits = einsum('bkgmd,bknd->bkgmn', queries, keys) / width**0.5
  if bias is not None:
    own, others = map(jnp.atleast_2d, (bias.query_positions, bias.key_positions))
    distance = (own[:, :, None] - others[:, None])[:, None, None]  # [·, 1, 1, m, n]
    slopes = jnp.asarray(bias.slopes, wide).reshape(1, groups, -1, 1, 1)
    logits = logits - jnp.broadcast_to(slopes * distance.astype(wide), logits.shape)
  mask = jnp.expand_dims(mask, (1, 2) if mask.ndim == 3 else (0, 1, 2))
  mask = jnp.broadcast_to(mask, logits.shape)
  weights = masked_softmax(logits, mask)
  output = einsum('bkgmn,bknd->bkgmd', weights, values).transpose(0, 3, 1, 2, 4)
  whole = (batch, heads, length, keys.shape[2])
  return Attended(
      output.reshape(batch, length, heads, width).astype(values.dtype),
      jnp.where(mask, logits, 0.0).reshape(whole), weights.reshape(whole),
  )


def check_mask(
    mask: ArrayLike, batch: int, num_queries: int, num_keys: int
) -> jax.Array:
  """Returns a mask of m queries and n keys, [m, n] or [B, m, n], as an array.

  Raises:
    ValueError: if it has another shape or is not bool.
  """
  mask, one = bool_mask(mask), (num_queries, num_keys)
  if mask.shape not in (one, (batch, *one)):
    raise ValueError(f'mask {mask.shape} must be [{num_queries}, {num_keys}], or that '
                     f'for each of {batch} sequences')
  return mask


def floating(x: jax.Array) -> jax.Array:
  """Returns an array of floats; integers become float32.

  Raises:
    ValueError: if the array is complex.
  """
  x = jnp.asarray(x)
  if jnp.issubdtype(x.dtype, jnp.complexfloating):
    raise ValueError(f'attention needs real numbers: {x.dtype}')
  return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


def _check(queries, keys, values):
  if keys.shape != values.shape or keys.ndim != 4 or queries.ndim != 4:
    raise ValueError('queries, keys and values must be [B, ·, heads, d]: '
                     f'{queries.shape}, {keys.shape}, {values.shape}')
  (batch, _, heads, width), groups = queries.shape, keys.shape[2]
  if (batch, width) != (keys.shape[0], keys.shape[3]):
    raise ValueError(f'queries {queries.shape} do not fit keys {keys.shape}')
  if heads % groups:
    raise ValueError(f'{groups} key heads do not divide {heads} query heads')
