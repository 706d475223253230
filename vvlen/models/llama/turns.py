"""What the layers of a Llama know of the positions of tokens.

Axes: B sequences, n tokens, w width of a head.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vvlen.models import clex
from vvlen.models import rope as rotary
from vvlen.models.rope import Rope


class Turns(NamedTuple):
  """Rotations, and what else depends on positions."""

  cos: jax.Array | None = None  # of angles, [n, w/2] or [B, n, w/2]; None: no rotation
  sin: jax.Array | None = None  # of the same shape
  query_scale: jax.Array | None = None  # factor of queries, [n], [B, n] or with 1 for n
  positions: jax.Array | None = None  # [n] or [B, n], for ALiBi; None: 0..n − 1

  def of_layer(self, scaled: jax.Array) -> 'Turns':
    """Returns the same for a layer whose queries are scaled, or not."""
    if self.query_scale is None:
      return self
    return self._replace(query_scale=jnp.where(scaled, self.query_scale, 1.0))

  def keys(self, x: jax.Array) -> jax.Array:
    """Rotates keys [B, n, k, w]."""
    if self.cos is None or self.sin is None:
      return x
    return rotary.turn(x, self.cos, self.sin)

  def queries(self, x: jax.Array) -> jax.Array:
    """Rotates and scales queries [B, n, h, w]."""
    if self.cos is None or self.sin is None or self.query_scale is None:
      return self.keys(x)
    scale = self.query_scale[..., None]
    return rotary.turn(x, self.cos * scale, self.sin * scale)


def turns_of(
    rope: Rope | None,
    width: int,
    positions: jax.Array,
    length: int | jax.Array,
    num_keys: int | jax.Array,
    learned: jax.Array | None,
    dtype: Any,
) -> Turns:
  """Returns the Turns of tokens.

  Args:
    rope: rotary positions, or None.
    width: w.
    positions: [n] or [B, n].
    length: the number of tokens whose rates are used, or [B].
    num_keys: how many tokens attend to each other, or [B].
    learned: from `learned_of`.
    dtype: float32 or float64.
  """
  if rope is None:
    return Turns(positions=positions)
  rates, scale = rotary.rates(rope, width, length, learned)
  angles = rotary.angles(positions, rates, dtype)
  factor = rotary.query_scale(rope, positions, num_keys)
  if factor is not None:
    factor = jnp.expand_dims(factor, range(angles.ndim - 1 - factor.ndim))
    factor = factor.astype(dtype)
  return Turns(jnp.cos(angles) * scale, jnp.sin(angles) * scale, factor, positions)


def learned_of(model: Any, length: int | jax.Array) -> jax.Array | None:
  """Returns the log rates of CLEX for inputs of at most `length` tokens, or None.

  Args:
    model: a bound `vvlen.models.llama.Llama`.
    length: a number, or [B].
  """
  rope = model.rope
  if rope is None or not isinstance(rope.stretched, clex.Clex):
    return None
  return clex.log_rates_up_to(
      rope.stretched, rope.base, model.clex_up, model.clex_down, length)
