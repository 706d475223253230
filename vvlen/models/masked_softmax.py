"""Softmax over the entries that a mask keeps, and checks of masks."""

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike


def masked_softmax(logits: jax.Array, mask: jax.Array | None = None) -> jax.Array:
  """Softmax over the last axis; masked entries, and rows masked entirely, are 0.

  Args:
    logits: [..., n], float32 or wider.
    mask: [..., n] bool, True where there is an item; None for all.

  Returns:
    Weights [..., n]. Values and gradients are finite in every row.

  Raises:
    ValueError: as `broadcast_mask`.
  """
  if mask is None:
    return jax.nn.softmax(logits)
  return _masked_softmax(logits, broadcast_mask(mask, logits.shape))


@jax.custom_jvp
def _masked_softmax(logits, mask):
  # The lowest finite number, since −inf would give NaN in a row masked entirely.
  logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
  return jnp.where(mask, jax.nn.softmax(logits), 0.0)


@_masked_softmax.defjvp
def _(primals, tangents):
  # dA = A (dS − Σ A dS). For [32, 4, 15, 15], XLA on a CPU takes 25 µs for this sum,
  # but 600 µs for the derivative of the quotient.
  weights = _masked_softmax(*primals)
  mean = (weights * tangents[0]).sum(axis=-1, keepdims=True)
  return weights, weights * (tangents[0] - mean)


def bool_mask(mask: ArrayLike) -> jax.Array:
  """Returns a mask as an array, True to attend.

  Raises:
    ValueError: if it is not bool. Numbers may be meant to be added to the logits, and
      then 0 would mean True.
  """
  mask = jnp.asarray(mask)
  if mask.dtype != bool:
    raise ValueError(f'mask must be bool, True to attend: {mask.dtype}')
  return mask


def broadcast_mask(mask: ArrayLike, shape: tuple[int, ...]) -> jax.Array:
  """Broadcasts a bool mask to the shape of the logits, [..., n].

  Raises:
    ValueError: if it is not bool or does not broadcast to this shape. A mask with more
      axes than the logits does not.
  """
  mask = bool_mask(mask)
  sizes = zip(reversed(mask.shape), reversed(shape), strict=False)
  if mask.ndim > len(shape) or any(own not in (1, size) for own, size in sizes):
    raise ValueError(f'mask {mask.shape} does not broadcast to logits {shape}')
  return jnp.broadcast_to(mask, shape)
