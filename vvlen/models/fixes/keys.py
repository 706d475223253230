"""How many keys a row has, and logits without those that are masked."""

import jax
import jax.numpy as jnp

from vvlen.models.masked_softmax import broadcast_mask


def wide(logits: jax.Array) -> jax.Array:
  """Returns logits as float32, or wider if they are."""
  logits = jnp.asarray(logits)
  return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))


def num_keys(logits: jax.Array, mask: jax.Array | None = None) -> jax.Array:
  """Returns n [..., 1], the number of keys that are not masked, in each row.

  Args:
    logits: [..., keys]; only their shape and dtype matter.
    mask: bool, broadcastable to the logits, True where there is a key; None for all.

  Returns:
    [..., 1], of the dtype of the logits or float32 if that is wider; at least 1, so
    that its logarithm is finite in a row without keys.
  """
  logits = wide(logits)
  if mask is None:
    return jnp.full((*logits.shape[:-1], 1), max(logits.shape[-1], 1), logits.dtype)
  count = broadcast_mask(mask, logits.shape).sum(-1, keepdims=True)
  return jnp.maximum(count, 1).astype(logits.dtype)


def without_masked(logits: jax.Array, mask: jax.Array | None) -> jax.Array:
  """Returns logits with masked keys at a number so low that its exponential is 0.

  The number is finite, even when it is doubled: −inf would give NaN in a row without
  keys. In such rows the caller must set the weights to 0 (`zero_at_masked`).
  """
  if mask is None:
    return logits
  mask = broadcast_mask(mask, logits.shape)
  return jnp.where(mask, logits, jnp.finfo(logits.dtype).min / 4)


def zero_at_masked(weights: jax.Array, mask: jax.Array | None) -> jax.Array:
  """Returns weights that are exactly 0 at masked keys."""
  if mask is None:
    return weights
  return jnp.where(broadcast_mask(mask, weights.shape), weights, 0.0)
