"""Positions of tokens in the form in which the layers of a Llama use them.

Axes: B sequences, n tokens, w width of a head.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vvlen.models import clex
from vvlen.models import rope as rotary
from vvlen.models.rope import Rope


class Rotation(NamedTuple):
  """The rotation of queries and keys, and the other values that depend on positions."""

  cos: jax.Array | None = None  # of angles, [n, w/2] or [B, n, w/2]; None: no rotation
  sin: jax.Array | None = None  # of the same shape
  query_scale: jax.Array | None = None  # factor of queries, [n], [B, n], [1] or [B, 1]
  positions: jax.Array | None = None  # [n] or [B, n], for ALiBi; None: 0..n − 1

  def of_layer(self, scaled: jax.Array) -> 'Rotation':
    """Returns the rotation of one layer; `scaled`: whether its queries are scaled."""
    if self.query_scale is None:
      return self
    return self._replace(query_scale=jnp.where(scaled, self.query_scale, 1.0))

  def keys(self, x: jax.Array) -> jax.Array:
    """Rotates keys [B, n, k, w]."""
    if self.cos is None or self.sin is None:
      return x
    return rotary.rotate_by(x, self.cos, self.sin)

  def queries(self, x: jax.Array) -> jax.Array:
    """Rotates and scales queries [B, n, h, w]."""
    if self.cos is None or self.sin is None or self.query_scale is None:
      return self.keys(x)
    scale = self.query_scale[..., None]
    return rotary.rotate_by(x, self.cos * scale, self.sin * scale)


def rotation_of(
    rope: Rope | None,
    width: int,
    positions: jax.Array,
    length: int | jax.Array,
    num_keys: int | jax.Array,
    learned: jax.Array | None,
    dtype: Any,
) -> Rotation:
  """Returns the `Rotation` for tokens at given positions.

  Args:
    rope: rotary positions, or None.
    width: w.
    positions: [n] or [B, n].
    length: the length of input that sets the rates, a number or [B].
    num_keys: the number of keys, a number or [B].
    learned: from `learned_of`.
    dtype: float32 or float64.
  """
  if rope is None:
    return Rotation(positions=positions)
  rates, scale = rotary.rates(rope, width, length, learned)
  angles = rotary.angles(positions, rates, dtype)
  factor = rotary.query_scale(rope, positions, num_keys)
  if factor is not None:
    factor = jnp.expand_dims(factor, range(angles.ndim - 1 - factor.ndim))
    factor = factor.astype(dtype)
  return Rotation(jnp.cos(angles) * scale, jnp.sin(angles) * scale, factor, positions)


def learned_of(model: Any, length: int | jax.Array | None) -> jax.Array | None:
  """Returns the log rates of CLEX for inputs of at most `length` tokens.

  Args:
    model: a bound `vvlen.models.llama.Llama`.
    length: a number, or [B].

  Returns:
    [t, w/2]; None without CLEX or a length.
  """
  rope = model.rope
  if rope is None or length is None or not isinstance(rope.stretched, clex.Clex):
    return None
  return clex.log_rates_up_to(
      rope.stretched, rope.base, model.clex_up, model.clex_down, length)
