"""Principal axes of outputs: to whiten them, and to give them another covariance.

  o − μ = Σ_i s_i w_i v_i,   w_i = v_i · (o − μ) / s_i

with orthonormal axes v_i and deviations s_1 ≥ s_2 ≥ …, so that the w_i are uncorrelated
and of variance 1: the covariance is Σ = V diag(s²) Vᵀ. The axes come from a singular
value decomposition of the outputs themselves; their covariance matrix in float32 would
lose those weaker than 3e-4 of the strongest.

Axes: S sequences, d width of the output, k = min(S, d) principal axes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# In float32, an output of about ten deviations has a rounding error of 1e-6 deviations.
WEAKEST = 1e-5


class PrincipalAxes(NamedTuple):
  """Mean, principal directions and deviations of outputs."""

  mean: jax.Array  # [d], μ
  directions: jax.Array  # [d, k], V
  deviation: jax.Array  # [k], s, the largest first; 0 where an axis is left out


def principal_axes(output: jax.Array, weakest: float = WEAKEST) -> PrincipalAxes:
  """Returns the principal axes of outputs.

  Args:
    output: [S, d].
    weakest: axes whose deviation is less than this share of the largest are left out.

  Returns:
    `PrincipalAxes`.
  """
  mean = output.mean(axis=0)
  _, s, directions = jnp.linalg.svd(output - mean[None], full_matrices=False)
  deviation = jnp.where(s > weakest * s[0], s / len(output) ** 0.5, 0.0)
  return PrincipalAxes(mean, directions.T, deviation)


def whiten(output: jax.Array, axes: PrincipalAxes) -> jax.Array:
  """Returns w [..., k] of outputs [..., d]; 0 along axes that are left out."""
  kept = axes.deviation > 0
  scale = jnp.where(kept, 1 / jnp.where(kept, axes.deviation, 1), 0)
  centred = output - jnp.expand_dims(axes.mean, range(output.ndim - 1))
  return _product(centred, axes.directions) * jnp.expand_dims(
      scale, range(output.ndim - 1)
  )


def match_covariance(
    output: jax.Array, now: PrincipalAxes, then: PrincipalAxes
) -> jax.Array:
  """Returns μ_then + Σ_then^½ Σ_now^−½ (o − μ_now), [..., d].

  Both roots are symmetric. Components of o along axes that are left out are dropped.
  """
  white = _product(whiten(output, now), now.directions.T)
  coloured = _product(white, then.directions) * jnp.expand_dims(
      then.deviation, range(output.ndim - 1)
  )
  mean = jnp.expand_dims(then.mean, range(output.ndim - 1))
  return mean + _product(coloured, then.directions.T)


def _product(x: jax.Array, matrix: jax.Array) -> jax.Array:
  return jnp.matmul(x, matrix, precision=jax.lax.Precision.HIGHEST)
