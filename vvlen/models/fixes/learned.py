"""The form of functions from logits to attention weights, and what they learn.

  a = weights(z, mask, **scalars)

z: logits [..., n], scaled by 1/√d, float32 or wider. mask: bool, broadcastable to
[..., n], True where there is a key, or None for all. a: weights [..., n], of the dtype
of z, exactly 0 at masked keys; they need not sum to 1. Every value and gradient is
finite, also in a row without keys.

A parameter whose default is a float is a learned scalar, and its default is the value
at which learning starts. Every other default is a constant. So of

  def weights(logits, mask=None, s=1.0, power=2): ...

s is learned and power is not; `functools.partial(weights, s=0.5)` learns s from another
value, and `functools.partial(weights, s=1)`, with an int, does not learn it. The same
holds for temperatures, (z, mask, scalars by name) -> β [..., 1].
"""

from collections.abc import Callable
import inspect
from typing import Any

import jax

# (logits [..., n], mask or None, **learned scalars) -> weights [..., n]
Weights = Callable[..., jax.Array]


def learned(function: Callable[..., Any]) -> dict[str, float]:
  """Returns the scalars that a function learns: {name: initial value}."""
  parameters = inspect.signature(function).parameters.values()
  return {x.name: x.default for x in parameters if isinstance(x.default, float)}
