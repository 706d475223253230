"""Rotary positions of the Llama family, and their extensions to longer inputs.

Queries and keys are rotated by p ω_i in the plane of features i and i + d/2, paired as
in Llama (RoPE, arXiv 2104.09864), with rates ω_i = b^{−2i/d}, i = 0..d/2 − 1. For
inputs longer than the L₀ tokens of training, the rates are changed: by position
interpolation (PI), NTK, dynamic NTK, YaRN, as in Llama 3.1, LongRoPE or EABF
(`vvlen.models.rope_extensions`), or as CLEX learns (`vvlen.models.clex`). Some also
multiply cosine and sine, or queries, by a factor.

The extension is one field of a model, chosen anew at evaluation: if `model` is a
`vvlen.models.llama.Llama` with the same weights,

  model.clone(rope=extended(model.rope, 'yarn', factor=4, original_length=4096))

Axes: B sequences, n tokens, h heads, d width of a head.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from vvlen.models import clex as learned_rates
from vvlen.models import rope_extensions
from vvlen.models.clex import Clex
from vvlen.models.rope_extensions import (
    Dynamic,
    Eabf,
    Linear,
    Llama3,
    LongRope,
    Ntk,
    Yarn,
)

Extension = Linear | Ntk | Dynamic | Yarn | Llama3 | LongRope | Eabf | Clex

# The kinds that `extended` accepts; 'none' changes nothing.
KINDS = ('none', 'linear', 'ntk', 'dynamic', 'yarn', 'llama3', 'eabf', 'clex')


class Rope(NamedTuple):
  """Rotary positions."""

  base: float = 10_000.0  # b
  stretched: Extension | None = None
  # RandomPos: every forward pass is given positions drawn from 0..highest − 1, by
  # `vvlen.models.positions.random_positions`; None: by default they are 0, 1, 2, ….
  highest: int | None = None


def extended(rope: Rope, kind: str, factor: float, original_length: int) -> Rope:
  """Returns rotary positions for inputs that are `factor` times as long.

  Args:
    rope: of the model; it must not be extended yet.
    kind: one of `KINDS`.
    factor: s, at least 1; EABF does not use it, and the largest t of CLEX is 16, or s
      if that is more.
    original_length: L₀, the longest input of training so far.

  Raises:
    ValueError: if the kind is unknown, the factor is below 1, the positions are
      extended already, or as `check`.
  """
  if kind not in KINDS:
    raise ValueError(f'rope must be extended by one of {", ".join(KINDS)}: {kind!r}')
  if not 1 <= factor < math.inf:
    raise ValueError('factor of extended positions must be finite and at least 1: '
                     f'{factor!r}')
  if rope.stretched is not None:
    raise ValueError(f'these rotary positions are extended already: {rope.stretched}')
  stretched: Extension | None = None
  if kind == 'linear':
    stretched = Linear(factor)
  elif kind == 'ntk':
    stretched = Ntk(factor)
  elif kind == 'dynamic':
    stretched = Dynamic(factor, original_length)
  elif kind == 'yarn':
    stretched = Yarn(factor, original_length)
  elif kind == 'llama3':
    stretched = Llama3(factor, original_length)
  elif kind == 'eabf':
    stretched = Eabf(original_length)
  elif kind == 'clex':
    stretched = Clex(original_length, largest=max(16, math.ceil(factor)))
  found = rope._replace(stretched=stretched)
  check(found)
  return found


def rates(
    rope: Rope,
    width: int,
    length: int | jax.Array,
    learned: jax.Array | None = None,
) -> rope_extensions.Rates:
  """Returns the angle by which each plane is rotated from one position to the next.

  Args:
    rope: the base and the extension.
    width: d, even, and more than 2 for Ntk, Dynamic and Clex.
    length: n, tokens of the input, used by Dynamic, LongRope and Clex alone: a number,
      or an array [...], traced or not.
    learned: log rates of Clex, from `vvlen.models.clex.log_rates_up_to`.

  Returns:
    The rates ω [d/2] in radians, float64, and the factor of cosine and sine. For
    Dynamic and LongRope with an array of lengths, and always for Clex, ω is [..., d/2]
    and float32 or wider.

  Raises:
    ValueError: if the width is odd or too small, the numbers of LongRope do not fit it,
      Clex has no `learned`, or as `check`.
  """
  if width < 2 or width % 2:
    raise ValueError(f'rotary positions need an even width of heads: {width}')
  check(rope)
  base, stretched = rope.base, rope.stretched
  if isinstance(stretched, (Ntk, Dynamic, Clex)) and width == 2:
    raise ValueError(f'rotary positions of {type(stretched).__name__} need heads wider '
                     'than 2')
  if isinstance(stretched, Clex):
    if learned is None:
      raise ValueError('rates of CLEX are learned: they need the argument `learned`')
    return learned_rates.rates(stretched, learned, length), 1.0
  if isinstance(stretched, Linear):
    return rope_extensions.linear(base, width, stretched)
  if isinstance(stretched, Ntk):
    return rope_extensions.ntk(base, width, stretched)
  if isinstance(stretched, Dynamic):
    return rope_extensions.dynamic(base, width, stretched, length)
  if isinstance(stretched, Yarn):
    return rope_extensions.yarn(base, width, stretched)
  if isinstance(stretched, Llama3):
    return rope_extensions.llama3(base, width, stretched)
  if isinstance(stretched, LongRope):
    return rope_extensions.longrope(base, width, stretched, length)
  if isinstance(stretched, Eabf):
    return rope_extensions.eabf(width, stretched)
  return rope_extensions.plain(base, width), 1.0


def query_scale(
    rope: Rope, positions: jax.Array, num_keys: int | jax.Array
) -> jax.Array | None:
  """Returns the factor by which queries are multiplied, None for 1.

  Args:
    rope: the base and the extension.
    positions: [n] or [B, n], of the queries.
    num_keys: how many tokens there are: a number, or [B].

  Returns:
    For Eabf, an array of the shape of the positions; for Clex with log_scale, [1], or
    [B, 1] for num_keys [B]; else None.
  """
  if isinstance(rope.stretched, Eabf):
    return rope_extensions.eabf_scale(rope.stretched, positions)
  if isinstance(rope.stretched, Clex) and rope.stretched.log_scale:
    return learned_rates.scale(rope.stretched, num_keys)[..., None]
  return None


def scaled_layers(rope: Rope | None, num_layers: int) -> np.ndarray:
  """Returns in which layers `query_scale` applies, [num_layers] bool."""
  stretched = rope and rope.stretched
  exempt = stretched.exempt_layers if isinstance(stretched, Eabf) else 0
  return np.arange(num_layers) >= exempt


def depends_on_length(rope: Rope | None) -> bool:
  """Whether rates depend on how many tokens the input has."""
  return rope is not None and isinstance(rope.stretched, (Dynamic, LongRope, Clex))


def changes_at(rope: Rope | None) -> int | None:
  """Returns the length beyond which one more token changes the states of earlier ones.

  Up to it, states of tokens do not depend on how many tokens follow. None for no limit.
  """
  if rope is None or not depends_on_length(rope):
    return None
  stretched: Any = rope.stretched
  every = isinstance(stretched, Clex) and stretched.log_scale
  return 0 if every else stretched.original_length


def check(rope: Rope) -> None:
  """Raises ValueError unless all numbers define rotary positions.

  They must be positive and finite, and a factor s at least 1. The base of Yarn, and
  original_length where its logarithm is used, must be more than 1. The
  low_frequency_factor of Llama3 must be less than its high_frequency_factor.
  """
  stretched, numbers = rope.stretched, {'base': rope.base}
  if rope.highest is not None:
    numbers['highest'] = rope.highest
  known = {} if stretched is None else stretched._asdict()
  for name, value in known.items():
    if name == 'exempt_layers':
      if value < 0:
        raise ValueError(f'exempt_layers must not be negative: {value!r}')
    elif isinstance(value, tuple):
      numbers |= {f'{name} {i}': x for i, x in enumerate(value)}
    elif value is not None and not isinstance(value, bool):
      numbers[name] = value
  for name, value in numbers.items():
    if not 0 < value < math.inf:
      raise ValueError(
          f'{name} of rotary positions must be positive and finite: {value!r}')
  if numbers.get('factor', 1) < 1:
    raise ValueError('factor of rotary positions must be at least 1: '
                     f'{numbers["factor"]!r}')
  if isinstance(stretched, Yarn) and rope.base <= 1:
    raise ValueError(f'base of yarn positions must be more than 1: {rope.base!r}')
  if isinstance(stretched, (LongRope, Eabf, Clex)) and stretched.original_length < 2:
    raise ValueError('original_length of these rotary positions must be more than 1: '
                     f'{stretched.original_length}')
  if isinstance(stretched, Llama3):
    low, high = stretched[2:]
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


def rotate_by(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
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
  rotated = [left * cos - right * sin, right * cos + left * sin]
  return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
