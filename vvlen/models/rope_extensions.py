"""Extensions of rotary positions to inputs longer than the L₀ tokens of training.

Rates of plane i without an extension are ω_i = b^{−2i/d}, i = 0..d/2 − 1. With a factor
s ≥ 1, by which inputs are longer, and n tokens of the input:

  Linear    ω_i / s (position interpolation, PI, arXiv 2306.15595)
  Ntk       base b s^{d/(d−2)}: ω_0 is kept, the slowest rate is divided by s
  Dynamic   base b (s n / L₀ − (s − 1))^{d/(d−2)} for inputs of n > L₀ tokens (dynamic
            NTK)
  Yarn      ω_i (1 − r_i) + ω_i / s · r_i, r_i = clip((i − low)/(high − low), 0, 1);
            low and high are d ln(L₀ / 2πβ) / (2 ln b) for β = β_fast and β_slow; cosine
            and sine are multiplied by 0.1 ln s + 1 at all lengths (arXiv 2309.00071)
  Llama3    ω_i if the wavelength λ_i = 2π / ω_i < L₀ / h, ω_i / s if λ_i > L₀ / l,
            and between them t ω_i + (1 − t) ω_i / s, t = (L₀ / λ_i − l) / (h − l)
  LongRope  ω_i / f_i, with one list of f for n ≤ L₀ and one for n > L₀; cosine and sine
            are multiplied by (1 + ln s / ln L₀)^½ at all lengths (arXiv 2402.13753)
  Eabf      base 500,000, and the query at position m is multiplied by
            max(1, ln(m + 1) / ln L₀), except in the first two layers (entropy-aware
            ABF, arXiv 2401.07004)

CLEX, whose rates are learned, is in `vvlen.models.clex`.

Axes: d width of a head; leading axes are those of the length.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Rates [d/2], or [..., d/2] if they depend on lengths [...], and the factor of cosine
# and sine.
Rates = tuple[np.ndarray | jax.Array, float]


class Linear(NamedTuple):
  """Position interpolation."""

  factor: float  # s


class Ntk(NamedTuple):
  """NTK-aware interpolation: a larger base, the same for all lengths."""

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
  beta_slow: float = 1.0  # planes with at most this many have their rate divided by s
  truncate: bool = True  # whether low is rounded down and high rounded up
  scale: float | None = None  # of cosine and sine; None: 0.1 ln s + 1


class Llama3(NamedTuple):
  """As in Llama 3.1: the rates of slow planes are reduced, those of fast ones kept."""

  factor: float  # s
  original_length: int  # L₀
  low_frequency_factor: float = 1.0  # l
  high_frequency_factor: float = 4.0  # h


class LongRope(NamedTuple):
  """LongRoPE: every plane has a divisor of its own, found by search."""

  short_factor: tuple[float, ...]  # f_i up to L₀ tokens, d/2 of them
  long_factor: tuple[float, ...]  # f_i beyond L₀ tokens
  original_length: int  # L₀
  factor: float  # s
  scale: float | None = None  # of cosine and sine; None: (1 + ln s / ln L₀)^½


class Eabf(NamedTuple):
  """Entropy-aware ABF: another base, and longer queries at later positions."""

  original_length: int  # L₀
  new_base: float = 500_000.0  # in place of the base of the model
  exempt_layers: int = 2  # the first layers, whose queries are not scaled


def plain(base: float, width: int) -> np.ndarray:
  """Returns the rates b^{−2i/d}, [d/2] float64."""
  return base ** -(np.arange(0, width, 2) / width)


def linear(base: float, width: int, extension: Linear) -> Rates:
  """Returns the rates of position interpolation."""
  return plain(base, width) / extension.factor, 1.0


def ntk_base(base: float, width: int, factor: float) -> float:
  """Returns the base b s^{d/(d−2)} of NTK-aware interpolation."""
  return base * factor ** (width / (width - 2))


def ntk(base: float, width: int, extension: Ntk) -> Rates:
  """Returns the rates of NTK-aware interpolation."""
  return plain(ntk_base(base, width, extension.factor), width), 1.0


def dynamic(
    base: float, width: int, extension: Dynamic, length: int | jax.Array
) -> Rates:
  """Returns the rates of dynamic NTK for inputs of `length` tokens."""
  factor, original = extension
  if isinstance(length, int):
    growth = factor * max(length, original) / original - (factor - 1)
    return plain(ntk_base(base, width, growth), width), 1.0
  # b^{−2i/d} g^{−2i/(d−2)}
  wide = jnp.promote_types(jnp.result_type(float), jnp.float32)
  beyond = jnp.maximum(jnp.asarray(length), original).astype(wide)[..., None]
  growths = factor * beyond / original - (factor - 1)
  power = -2 * np.arange(width // 2) / (width - 2)
  lift = lambda x: jnp.expand_dims(jnp.asarray(x, wide), range(growths.ndim - 1))
  return lift(plain(base, width)) * growths ** lift(power), 1.0


def yarn(base: float, width: int, extension: Yarn) -> Rates:
  """Returns the rates of YaRN."""
  factor, scale = extension.factor, extension.scale
  low, high = yarn_borders(base, width, extension)
  slowed = np.clip((np.arange(width // 2) - low) / (high - low), 0, 1)
  if scale is None:
    scale = 0.1 * math.log(factor) + 1
  rates = plain(base, width)
  return rates * (1 - slowed) + rates / factor * slowed, scale


def yarn_borders(base: float, width: int, extension: Yarn) -> tuple[float, float]:
  """Returns low and high: rates are kept up to plane low, divided by s from high on.

  For Llama 2, with heads of 128 features and L₀ = 4096, they are 20 and 46.
  """

  def plane_of(turns):
    """Returns the plane, as a real number, that makes this many turns in L₀ tokens."""
    ratio = extension.original_length / (2 * math.pi * turns)
    return width * math.log(ratio) / (2 * math.log(base))

  low, high = plane_of(extension.beta_fast), plane_of(extension.beta_slow)
  if extension.truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, width - 1)
  return low, high + 0.001 * (low == high)


def llama3(base: float, width: int, extension: Llama3) -> Rates:
  """Returns the rates of Llama 3.1."""
  factor, original, low, high = extension
  rates = plain(base, width)
  turns = original * rates / (2 * math.pi)  # L₀ / λ
  kept = np.clip((turns - low) / (high - low), 0, 1)
  return rates * kept + rates / factor * (1 - kept), 1.0


def longrope(
    base: float, width: int, extension: LongRope, length: int | jax.Array
) -> Rates:
  """Returns the rates of LongRoPE for inputs of `length` tokens.

  Raises:
    ValueError: if there is not one factor for each plane.
  """
  rates, original = plain(base, width), extension.original_length
  lists = (extension.short_factor, extension.long_factor)
  if {len(factors) for factors in lists} != {width // 2}:
    raise ValueError(f'short_factor and long_factor need {width // 2} numbers, for '
                     f'heads of {width}: {len(lists[0])}, {len(lists[1])}')
  scale = extension.scale
  if scale is None:
    scale = math.sqrt(1 + math.log(extension.factor) / math.log(original))
  short, long = (rates / np.asarray(factors) for factors in lists)
  if isinstance(length, int):
    return long if length > original else short, scale
  wide = jnp.promote_types(jnp.result_type(float), jnp.float32)
  beyond = jnp.asarray(length)[..., None] > original
  lift = lambda x: jnp.expand_dims(jnp.asarray(x, wide), range(beyond.ndim - 1))
  return jnp.where(beyond, lift(long), lift(short)), scale


def eabf(width: int, extension: Eabf) -> Rates:
  """Returns the rates of EABF, whose base replaces that of the model."""
  return plain(extension.new_base, width), 1.0


def eabf_scale(extension: Eabf, positions: jax.Array) -> jax.Array:
  """Returns the factor of queries at positions m: max(1, ln(m + 1) / ln L₀)."""
  positions = jnp.asarray(positions)
  wide = jnp.promote_types(jnp.result_type(positions, float), jnp.float32)
  logarithm = jnp.log(positions.astype(wide) + 1)
  return jnp.maximum(logarithm / math.log(extension.original_length), 1.0)
