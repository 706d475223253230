"""Softmax normalized by the Euclidean norm: Σ a² = 1 instead of Σ a = 1.

  a_i = e^{z_i} / ‖e^z‖₂

For independent values of variance 1, the output Σ a_i v_i has the variance Σ a_i² = 1
at every n, where the softmax of equal logits gives 1/n (arXiv 2504.02827, proposition
1). The weights sum to between 1 and √n.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from vvlen.models.fixes.keys import wide, without_masked, zero_at_masked


def l2_softmax(logits: jax.Array, mask: jax.Array | None = None) -> jax.Array:
  """Returns e^z / ‖e^z‖₂ [..., n]. Cost: as softmax.

  Args:
    logits: [..., n]; float32 at least is used.
    mask: bool, broadcastable to [..., n], True where there is a key; None for all.

  Returns:
    Weights [..., n], float32 or wider, 0 in a row without keys.
  """
  logits = without_masked(wide(logits), mask)
  log_norm = logsumexp(2 * logits, axis=-1, keepdims=True) / 2
  return zero_at_masked(jnp.exp(logits - log_norm), mask)
