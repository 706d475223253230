"""Sigmoid attention: each key has a weight of its own.

  a_i = σ(z_i + b − ln n)

Ramapuram et al. (2024), arXiv 2409.04431, with b = 0 fixed; b is learned here. Without
−ln n the weights would sum to about n/2. Equal logits of 0 have weights that sum to
n / (1 + n).
"""

import jax
import jax.numpy as jnp

from vvlen.models.fixes.keys import num_keys, wide, zero_at_masked


def sigmoid(
    logits: jax.Array, mask: jax.Array | None = None, b: float = 0.0
) -> jax.Array:
  """Returns σ(z + b − ln n) [..., n], where n counts the keys. Cost: as softmax.

  Args:
    logits: [..., n]; float32 at least is used. A number added to all of a row changes
      the weights.
    mask: bool, broadcastable to [..., n], True where there is a key; None for all.
    b: added to every logit, learned, from 0.

  Returns:
    Weights [..., n], float32 or wider, 0 in a row without keys.
  """
  logits = wide(logits)
  shifted = logits + (b - jnp.log(num_keys(logits, mask)))
  return zero_at_masked(jax.nn.sigmoid(shifted), mask)
