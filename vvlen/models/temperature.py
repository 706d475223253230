"""Adaptive temperature: sharpens attention that is too spread out.

  H = −Σ p ln(p + 1e-9),   p = softmax(logits)
  β = max(polynomial(H), 1) where H > 0.5, else 1
  a = softmax(β · logits)

"softmax is not enough (for sharp out-of-distribution)", arXiv 2410.01104.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from vvlen.models.masked_softmax import masked_softmax

# Coefficients of degree 4 to 0. The polynomial exceeds 1 only for 0.849 < H < 5.945
# nats: with more than about 382 equally attended items, β is 1.
PUBLISHED = (-0.037, 0.481, -2.3, 4.917, -1.791)
_LEAST_ENTROPY = 0.5  # nats


def constant(beta: float | jax.Array) -> Callable[..., jax.Array]:
  """Returns the temperature that is β everywhere: (logits, mask) -> β [..., 1]."""
  return lambda logits, mask: jnp.full((*logits.shape[:-1], 1), beta)


def attention_entropy(weights: jax.Array) -> jax.Array:
  """Returns −Σ p ln(p + 1e-9) over the last axis, in nats: [..., n] -> [...]."""
  return -jnp.sum(weights * jnp.log(weights + 1e-9), axis=-1)


def adaptive_temperature(
    logits: jax.Array,
    mask: jax.Array | None = None,
    coefficients: ArrayLike = PUBLISHED,
) -> jax.Array:
  """Returns the inverse temperature β that multiplies the logits of each row.

  For inference only: the published polynomial was fitted to a trained model.

  Args:
    logits: [..., n], scaled by 1/√d.
    mask: [..., n] bool, True where there is an item; others do not count in H.
    coefficients: of the polynomial in H, highest degree first, as `fit` returns them.

  Returns:
    β [..., 1], at least 1.
  """
  logits = jnp.asarray(logits)
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  entropy = attention_entropy(masked_softmax(logits, mask))[..., None]
  beta = jnp.polyval(jnp.asarray(coefficients, entropy.dtype), entropy)
  return jnp.where(entropy > _LEAST_ENTROPY, jnp.maximum(beta, 1.0), 1.0)


def fit(entropy: ArrayLike, beta: ArrayLike, degree: int = 4) -> np.ndarray:
  """Fits a polynomial by least squares that maps entropies to the best β.

  Args:
    entropy: [R] nats, one per row of attention.
    beta: [R], the inverse temperature that maximizes the target's probability.
    degree: of the polynomial.

  Returns:
    Coefficients [degree + 1], highest degree first, float64. Rows with an entropy of at
    most 0.5, where β is 1 anyway, and rows whose β is not finite are left out. If the
    rest do not determine the coefficients, the polynomial is the constant 1.
  """
  entropy, beta = np.asarray(entropy, np.float64), np.asarray(beta, np.float64)
  rows = (entropy > _LEAST_ENTROPY) & np.isfinite(beta)
  powers = np.vander(entropy[rows], degree + 1)
  solution, _, rank, _ = np.linalg.lstsq(powers, beta[rows], rcond=None)
  if rank < degree + 1:
    return np.eye(degree + 1)[-1]
  return solution
