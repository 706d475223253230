"""Output reparameterization: train on f(y), report f⁻¹ of the output (OutRep).

arXiv 2506.11769, section 3: where y grows without bound with the length of the input,
√y and log y grow more slowly and 1/√y stays bounded, and so does the output that the
model has to reach for longer inputs. Another bijection takes three lines:

  CUBE_ROOT = Reparameterization(
      encode=lambda y: y ** (1 / 3), decode=lambda z: z**3
  )
"""

from collections.abc import Callable
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Reparameterization(NamedTuple):
  """A bijection f and its inverse, each of arrays, elementwise."""

  encode: Callable[[jax.Array], jax.Array]  # y -> f(y), what is trained on
  decode: Callable[[jax.Array], jax.Array]  # output -> f⁻¹(output), what is reported


IDENTITY = Reparameterization(lambda y: y, lambda z: z)
# Outputs below 0 count as 0.
SQRT = Reparameterization(jnp.sqrt, lambda z: jnp.square(jnp.maximum(z, 0.0)))
# An output above 88 overflows float32.
LOG = Reparameterization(jnp.log, jnp.exp)


def inverse_sqrt(floor: float = 1e-3) -> Reparameterization:
  """Returns f(y) = 1/√y, with the inverse 1 / max(z, floor)².

  Args:
    floor: positive; outputs z below it, such as negative ones, count as floor, so that
      no reported value exceeds floor⁻².

  Raises:
    ValueError: if the floor is not positive.
  """
  if not floor > 0:
    raise ValueError(f'floor must be positive: {floor}')
  return Reparameterization(jax.lax.rsqrt, lambda z: jnp.maximum(z, floor) ** -2.0)


INVERSE_SQRT = inverse_sqrt()


def shifted(function: Reparameterization, by: float) -> Reparameterization:
  """Returns f(y + by): for log or 1/√ of a target that may be 0, such as a sum."""
  return Reparameterization(
      lambda y: function.encode(y + by), lambda z: function.decode(z) - by
  )


def check_target(function: Reparameterization, lowest: float) -> None:
  """Raises ValueError unless f and f⁻¹ are finite at the lowest target."""
  there = function.encode(jnp.float32(lowest))
  back = function.decode(there)
  if not (math.isfinite(there) and math.isfinite(back)):
    raise ValueError(
        f'a target of {lowest:g} is reparameterized to {float(there)}: shift it'
    )
