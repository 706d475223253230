"""Rotary positions of the Llama family, and their extensions to longer inputs.

Queries and keys are rotated by p ω_i in the plane of features i and i + d/2, paired as
in Llama (RoPE, arXiv 2104.09864), with rates ω_i = b^{−2i/d}, i = 0..d/2 − 1. For
inputs longer than the L₀ tokens of training, the rates are changed. With a factor s:

  Linear   ω_i / s (position interpolation, arXiv 2306.15595)
  Dynamic  base b (s n / L₀ − (s − 1))^{d/(d−2)} for inputs of n > L₀ tokens (dynamic
           NTK)
  Yarn     ω_i (1 − r_i) + ω_i / s · r_i, r_i = clip((i − low)/(high − low), 0, 1);
           low and high are d ln(L₀ / 2πβ) / (2 ln b) for β = β_fast and β_slow; cosine
           and sine are multiplied by 0.1 ln s + 1 at all lengths (arXiv 2309.00071)
  Llama3   ω_i if the wavelength λ_i = 2π / ω_i < L₀ / h, ω_i / s if λ_i > L₀ / l,
           and between them t ω_i + (1 − t) ω_i / s, t = (L₀ / λ_i − l) / (h − l)

Axes: B sequences, n tokens, h heads, d width of a head.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike


class Linear(NamedTuple):
  """Position interpolation."""

  factor: float  # s


class Dynamic(NamedTuple):
  """Dynamic NTK: rates change only for inputs of more than L₀ tokens."""

  factor: float  # s
  original_length: int  # L₀


class Yarn(NamedTuple):
  """YaRN: reduces the rates of slow planes, and scales all logits up."""

  factor: float  # s
  original_length: int  # L₀
  beta_fast: float = 32.0  # planes with at least this many turns in L₀ keep their rate
  beta_slow: float = 1.0  # rates of planes with at most so many turns are divided by s
  truncate: bool = True  # whether low is rounded down and high rounded up
  scale: float | None = None  # of cosine and sine; None: 0.1 ln s + 1


class Llama3(NamedTuple):
  """As in Llama 3.1: the rates of slow planes are reduced, those of fast ones kept."""

  factor: float  # s
  original_length: int  # L₀
  low_frequency_factor: float = 1.0  # l
  high_frequency_factor: float = 4.0  # h


class Rope(NamedTuple):
  """Rotary positions."""

  base: float = 10_000.0  # b
  stretched: Linear | Dynamic | Yarn | Llama3 | None = None


def rates(
    rope: Rope, width: int, length: int | jax.Array
) -> tuple[np.ndarray | jax.Array, float]:
  """Returns the angle by which each plane is rotated from one position to the next.

  Args:
    rope: the base and the extension.
    width: d, even, and more than 2 for Dynamic.
    length: n, tokens of the input, used by Dynamic alone: a number, or an array [...],
      traced or not.

  Returns:
    The rates ω [d/2] in radians, float64, and the factor of cosine and sine. For
    Dynamic with an array of lengths, ω is [..., d/2] and float32 or wider.

  Raises:
    ValueError: if the width is odd, or too small for Dynamic, or as `check`.
  """
  if width < 2 or width % 2:
    raise ValueError(f'rotary positions need an even width of heads: {width}')
  check(rope)
  exponents = np.arange(0, width, 2) / width
  plain = rope.base ** -exponents
  stretched = rope.stretched
  if stretched is None:
    return plain, 1.0
  if isinstance(stretched, Linear):
    return plain / stretched.factor, 1.0
  if isinstance(stretched, Dynamic):
    if width == 2:
      raise ValueError('dynamic rotary positions need heads wider than 2')
    return _dynamic(rope.base, stretched, width, length), 1.0
  if isinstance(stretched, Yarn):
    scale = stretched.scale
    if scale is None:
      scale = 0.1 * math.log(stretched.factor) + 1 if stretched.factor > 1 else 1.0
    return _yarn(plain, rope.base, stretched), scale
  return _llama3(plain, stretched), 1.0


def check(rope: Rope) -> None:
  """Raises ValueError unless all numbers define rotary positions.

  They must be positive and finite, the base of Yarn more than 1, and the
  low_frequency_factor of Llama3 less than its high_frequency_factor.
  """
  numbers = {'base': rope.base}
  if rope.stretched is not None:
    known = rope.stretched._asdict()
    numbers |= {n: x for n, x in known.items() if n != 'truncate' and x is not None}
  for name, value in numbers.items():
    if not 0 < value < math.inf:
      raise ValueError(
          f'{name} of rotary positions must be positive and finite: {value!r}')
  if isinstance(rope.stretched, Yarn) and rope.base <= 1:
    raise ValueError(f'base of yarn positions must be more than 1: {rope.base!r}')
  if isinstance(rope.stretched, Llama3):
    low, high = rope.stretched[2:]
    if low >= high:
      raise ValueError('low_frequency_factor of rotary positions must be less than '
                       f'high_frequency_factor: {low}, {high}')


def angles(
    positions: jax.Array, rates: ArrayLike, dtype: Any = jnp.float32
) -> jax.Array:
  """Returns the angles p ω.

  Args:
    positions: p [n] or [B, n].
    rates: ω [d/2] or [B, d/2].
    dtype: float32 or float64.

  Returns:
    [n, d/2], or [B, n, d/2] if positions or rates have the axis B.
  """
  positions = jnp.asarray(positions).astype(dtype)[..., None]
  rates = jnp.asarray(rates, dtype)[..., None, :]
  rank = max(positions.ndim, rates.ndim)
  lift = lambda x: jnp.expand_dims(x, range(rank - x.ndim))
  return lift(positions) * lift(rates)


def turn(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
  """Rotates queries or keys.

  Args:
    x: [..., n, h, d], d even.
    cos: cosine of the angles, [n, d/2], or [..., n, d/2] with the batch axes of x.
    sin: sine of the angles, of the same shape.

  Returns:
    An array of the shape and dtype of x, computed in float32 or wider.
  """
  wide = jnp.promote_types(x.dtype, jnp.float32)
  lift = lambda a: jnp.expand_dims(a[..., None, :], range(x.ndim - a.ndim - 1))
  cos, sin = lift(cos), lift(sin)
  left, right = jnp.split(x.astype(wide), 2, axis=-1)
  turned = [left * cos - right * sin, right * cos + left * sin]
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def _dynamic(base, dynamic, width, length):
  factor, original = dynamic
  if isinstance(length, int):
    growth = factor * max(length, original) / original - (factor - 1)
    return (base * growth ** (width / (width - 2))) ** -(np.arange(0, width, 2) / width)
  # b^{−2i/d} g^{−2i/(d−2)}
  wide = jnp.promote_types(jnp.result_type(float), jnp.float32)
  length = jnp.maximum(jnp.asarray(length), original).astype(wide)[..., None]
  growth = factor * length / original - (factor - 1)
  plane = np.arange(width // 2)
  plain, power = base ** (-2 * plane / width), -2 * plane / (width - 2)
  lift = lambda x: jnp.expand_dims(jnp.asarray(x, wide), range(growth.ndim - 1))
  return lift(plain) * growth ** lift(power)


def _yarn(plain, base, yarn):
  width = 2 * plain.size

  def plane_of(turns):
    """Returns the plane, as a real number, that makes this many turns in L₀ tokens."""
    ratio = yarn.original_length / (2 * math.pi * turns)
    return width * math.log(ratio) / (2 * math.log(base))

  low, high = plane_of(yarn.beta_fast), plane_of(yarn.beta_slow)
  if yarn.truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, width - 1)
  high += 0.001 * (low == high)
  slowed = np.clip((np.arange(plain.size) - low) / (high - low), 0, 1)
  return plain * (1 - slowed) + plain / yarn.factor * slowed


def _llama3(plain, llama3):
  factor, original, low, high = llama3
  turns = original * plain / (2 * math.pi)  # L₀ / λ
  kept = np.clip((turns - low) / (high - low), 0, 1)
  return plain * kept + plain / factor * (1 - kept)
