"""Changes of the attention output, an equation each, for `intervention.py` beside this.

Axes: d width of the attention output.
"""

import jax
import jax.numpy as jnp

from vvlen.evaluation.retriever.moments import Moments


def rescale(output: jax.Array, norm: jax.Array) -> jax.Array:
  """Returns o · norm / ‖o‖, [..., d]; a row of zeros stays as it is."""
  length = jnp.linalg.norm(output, axis=-1, keepdims=True)
  return output * jnp.where(length > 0, norm / jnp.where(length > 0, length, 1), 1.0)


def recentre(output: jax.Array, now: Moments, then: Moments) -> jax.Array:
  """Returns o − μ_now + μ_then, [..., d]."""
  return output + _row(then.mean - now.mean, output)


def match(output: jax.Array, now: Moments, then: Moments) -> jax.Array:
  """Returns (o − μ_now) / σ_now · σ_then + μ_then, [..., d].

  A component that does not vary now keeps its deviation from the mean.
  """
  constant = now.deviation <= 0
  scale = jnp.where(
      constant, 1.0, then.deviation / jnp.where(constant, 1.0, now.deviation)
  )
  # Written as a change of o, which is exactly 0 if the moments are equal.
  centred = output - _row(now.mean, output)
  return recentre(output, now, then) + centred * _row(scale - 1.0, output)


def reweight(
    output: jax.Array, weight: jax.Array, value: jax.Array, shift: jax.Array
) -> jax.Array:
  """Returns (o + (e^shift − 1) a v) / (1 + (e^shift − 1) a): another weight on an item.

  Args:
    output: o [..., d], the mean of all values, by the attention weights.
    weight: a [...], the attention weight of the item, between 0 and 1.
    value: v [..., d], the value of the item.
    shift: [], what is added to its logit.

  Returns:
    The output if the item has the weight b, ln b / (1 − b) = ln a / (1 − a) + shift,
    and the other items share 1 − b in the proportions in which they share 1 − a.
  """
  # With a e^shift in place of a, the weights sum to 1 + (e^shift − 1) a.
  more = (jnp.expm1(shift) * weight)[..., None]
  return (output + more * value) / (1 + more)


def log_odds(weight: jax.Array) -> jax.Array:
  """Returns ln a / (1 − a) of weights a between 0 and 1, finite at both ends."""
  info = jnp.finfo(weight.dtype)
  weight = weight.clip(info.tiny, 1 - info.eps)
  return jnp.log(weight) - jnp.log1p(-weight)


def _row(vector: jax.Array, like: jax.Array) -> jax.Array:
  return jnp.expand_dims(vector, range(like.ndim - 1))
