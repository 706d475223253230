"""Keys and values of tokens read before, so that a next token costs one query.

Rows may hold different numbers of tokens: what stands at and after its length in a row
is not read.

Axes: B sequences, T places, h query heads, k key heads, d width of a head.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from vvlen.models.attention import masked_softmax


class Cache(NamedTuple):
  """What a model keeps of the tokens that it has read."""

  keys: tuple[jax.Array, ...]  # of each layer, [B, k, T, d]
  values: tuple[jax.Array, ...]
  length: jax.Array  # [B] int32, tokens held


def store(tokens: jax.Array, capacity: int) -> jax.Array:
  """Returns keys or values [B, n, k, d] with room for T: [B, k, T, d]."""
  tokens = tokens.swapaxes(1, 2)
  return jnp.pad(tokens, ((0, 0), (0, 0), (0, capacity - tokens.shape[2]), (0, 0)))


def append(held: jax.Array, token: jax.Array, length: jax.Array) -> jax.Array:
  """Returns [B, k, T, d] with a token [B, k, d] at place `length` [B] of its row."""
  put = lambda row, x, place: jax.lax.dynamic_update_slice(
      row, x[:, None].astype(row.dtype), (0, place, 0)
  )
  return jax.vmap(put)(held, token, length)


def attend_cached(
    query: jax.Array, keys: jax.Array, values: jax.Array, length: jax.Array
) -> jax.Array:
  """Attends from one token of each row to those that the row holds.

  Args:
    query: [B, h, d].
    keys: [B, k, T, d]; h / k query heads in a row share a key head.
    values: [B, k, T, d].
    length: [B] int32, how many are read.

  Returns:
    [B, h, d], of the dtype of the values; logits and weights are float32 or wider.
  """
  batch, heads, width = query.shape
  wide = jnp.promote_types(jnp.result_type(query, keys, values), jnp.float32)
  query = query.reshape(batch, keys.shape[1], -1, width)
  logits = jnp.einsum('bkgd,bktd->bkgt', query, keys, preferred_element_type=wide,
                      precision=jax.lax.Precision.HIGHEST) / width**0.5
  mask = jnp.arange(keys.shape[2])[None] < length[:, None]
  weights = masked_softmax(logits, jnp.broadcast_to(mask[:, None, None], logits.shape))
  output = jnp.einsum('bkgt,bktd->bkgd', weights, values, preferred_element_type=wide,
                      precision=jax.lax.Precision.HIGHEST)
  return output.reshape(batch, heads, width).astype(values.dtype)
