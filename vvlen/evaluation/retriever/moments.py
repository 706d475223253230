"""Mean and spread of the attention output over sequences, and how far they move.

Axes: S sequences, d width.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Moments(NamedTuple):
  """Moments of the attention output of one model at one length."""

  mean: jax.Array  # [d], over sequences
  deviation: jax.Array  # [d]
  norm: jax.Array  # [], mean of |o|


def moments(output: jax.Array) -> Moments:
  """Returns the moments of outputs [S, d]."""
  return Moments(
      output.mean(axis=0), output.std(axis=0),
      jnp.linalg.norm(output, axis=-1).mean(),
  )


def distance(now: Moments, then: Moments) -> jax.Array:
  """Returns how far one distribution has moved from another.

    F = Σ_j [(μ_j − μ'_j)² + (σ_j − σ'_j)²] / Σ_j σ'_j²

  The squared Fréchet distance between two Gaussians of independent components, in units
  of the total variance of `then`. 0 if nothing moves; 1 if all variance vanishes, or if
  the mean shifts by one standard deviation.

  Args:
    now: μ, σ.
    then: μ', σ'.

  Returns:
    [], not negative; nan or infinite if `then` has no variance.
  """
  moved = (now.mean - then.mean) ** 2 + (now.deviation - then.deviation) ** 2
  return moved.sum() / (then.deviation**2).sum()
