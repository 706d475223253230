"""A cache of the keys and values of earlier tokens, so that a new token is one query.

Rows may hold different numbers of tokens: only the first `length` places of a row are
read. Heads come before places, unlike in the attention of whole inputs: one query reads
the places of a head as one contiguous block (16,384 places on a CPU: a tenth of the
time of the other order).

Axes: B sequences, T places, h query heads, k key heads, d width of a head.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from vvlen.models.masked_softmax import masked_softmax


class Cache(NamedTuple):
  """The keys and values of all tokens that a model has read."""

  keys: tuple[jax.Array, ...]  # one [B, k, T, d] per layer
  values: tuple[jax.Array, ...]  # one [B, k, T, d] per layer
  length: jax.Array  # [B] int32, number of tokens in the cache
  learned: jax.Array | None = None  # log rates of CLEX for each length, [t, d/2]


def store(tokens: jax.Array, capacity: int) -> jax.Array:
  """Returns keys or values [B, n, k, d] padded to T = capacity places: [B, k, T, d]."""
  tokens = tokens.swapaxes(1, 2)
  return jnp.pad(tokens, ((0, 0), (0, 0), (0, capacity - tokens.shape[2]), (0, 0)))


def append(held: jax.Array, token: jax.Array, length: jax.Array) -> jax.Array:
  """Returns `held` [B, k, T, d] with `token` [B, k, d] at place `length` [B] of a row.

  A row without room has its last place overwritten.
  """
  # Python's 0 would be int64 under jax_enable_x64; all indices must be of one dtype.
  zero = jnp.zeros((), length.dtype)
  put = lambda row, x, place: jax.lax.dynamic_update_slice(
      row, x[:, None].astype(row.dtype), (zero, place, zero)
  )
  return jax.vmap(put)(held, token, length)


def attend_cached(
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    length: jax.Array,
    slopes: ArrayLike | None = None,
) -> jax.Array:
  """Attends from one token per row to the tokens that the cache holds for this row.

  Args:
    query: [B, h, d].
    keys: [B, k, T, d]; each key head serves h / k consecutive query heads.
    values: [B, k, T, d].
    length: [B] int32, number of places that are read, the last by the token itself.
    slopes: [h], of ALiBi, as in `vvlen.models.kernels.causal`; None for no bias.

  Returns:
    [B, h, d], of the dtype of the values; logits and weights are float32 or wider.
  """
  batch, heads, width = query.shape
  wide = jnp.promote_types(jnp.result_type(query, keys, values), jnp.float32)
  query = query.reshape(batch, keys.shape[1], -1, width)
  logits = jnp.einsum('bkgd,bktd->bkgt', query, keys, preferred_element_type=wide,
                      precision=jax.lax.Precision.HIGHEST) / width**0.5
  places = jnp.arange(keys.shape[2])[None]
  mask = places < length[:, None]
  if slopes is not None:
    by_head = jnp.asarray(slopes, wide).reshape(1, keys.shape[1], -1, 1)
    distance = (length[:, None] - 1 - places).astype(wide)[:, None, None]
    logits = logits - by_head * distance
  weights = masked_softmax(logits, jnp.broadcast_to(mask[:, None, None], logits.shape))
  output = jnp.einsum('bkgt,bktd->bkgd', weights, values, preferred_element_type=wide,
                      precision=jax.lax.Precision.HIGHEST)
  return output.reshape(batch, heads, width).astype(values.dtype)
