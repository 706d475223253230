"""Softmax with a sink: a learned logit that takes weight and has no value.

  a_i = e^{z_i} / (e^s + Σ_j e^{z_j})

gpt-oss (arXiv 2508.10925), one s for each head; with s = 0 it is "softmax off by one".
The weights sum to less than 1, so that a head may attend to nothing.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from vvlen.models.fixes.keys import wide, without_masked, zero_at_masked


def sink(
    logits: jax.Array, mask: jax.Array | None = None, s: float = 0.0
) -> jax.Array:
  """Returns e^z / (e^s + Σ e^z) [..., n]. Cost: as softmax.

  Args:
    logits: [..., n]; float32 at least is used. A number added to all of a row changes
      the weights.
    mask: bool, broadcastable to [..., n], True where there is a key; None for all.
    s: the logit of the sink, learned, from 0; a temperature does not multiply it.

  Returns:
    Weights [..., n], float32 or wider, 0 in a row without keys.
  """
  logits = without_masked(wide(logits), mask)
  of_keys = logsumexp(logits, axis=-1, keepdims=True)
  return zero_at_masked(jnp.exp(logits - jnp.logaddexp(of_keys, s)), mask)
