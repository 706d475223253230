"""Converts between the rotary positions of a config.json and `Rope`.

Older files have `rope_theta` and `rope_scaling`, those of transformers 5 the object
`rope_parameters`.
"""

from collections.abc import Callable, Mapping
import functools
import math
from typing import Any

from vvlen.models.clex import Clex
from vvlen.models.llama.config_fields import flag, number, numbers, whole
from vvlen.models.rope import (
    check,
    Dynamic,
    Eabf,
    Extension,
    Linear,
    Llama3,
    LongRope,
    Ntk,
    Rope,
    Yarn,
)

ALL_ROTATED: tuple[Any, ...] = (None, 1, 1.0)  # values of partial_rotary_factor
ALIBI = 'alibi'  # the rope_type of a model with ALiBi in place of rotary positions
NO_POSITIONS = 'none'  # that of a model without positions
_RANDOM = 'random'  # that of a model with random positions (RandomPos)
_ORIGINAL = 'original_max_position_embeddings'


def rope_of(config: Mapping[str, Any], max_length: int) -> tuple[Rope | None, bool]:
  """Returns `rope` and `alibi` of `Llama`, from a config.json of either style.

  Raises:
    ValueError: if they are not supported, or a field is missing or of a wrong type.
  """
  found = config.get('rope_parameters') or config.get('rope_scaling') or {}
  if not isinstance(found, Mapping):
    raise ValueError(
        f'rope_parameters or rope_scaling must be an object: {found!r}')
  # rope_theta may be inside or outside this object, in either style.
  found = {'rope_theta': config.get('rope_theta'), **found}
  base = number(found, 'rope_theta', float, 10_000.0)
  # Some older files have this field outside the object.
  original = number(found, _ORIGINAL, int, number(config, _ORIGINAL, int, max_length))
  if found.get('partial_rotary_factor') not in ALL_ROTATED:
    raise ValueError('partial_rotary_factor is not supported')
  kind = found.get('rope_type', found.get('type', 'default'))
  if kind in (ALIBI, NO_POSITIONS):
    return None, kind == ALIBI
  if kind == _RANDOM:
    plain, _ = rope_of({**config, 'rope_theta': base, 'rope_parameters': None,
                        'rope_scaling': found.get('rope_scaling')}, max_length)
    if plain is None or plain.highest is not None:
      raise ValueError('random positions must be of rotary positions')
    return plain._replace(highest=number(found, 'highest', int)), False
  if not isinstance(kind, str) or kind not in _READ:
    known = ', '.join((*_READ, ALIBI, NO_POSITIONS, _RANDOM))
    raise ValueError(f'rope type {kind!r} is not supported: must be one of {known}')
  rope = Rope(base, _READ[kind](found, original, max_length))
  check(rope)
  return rope, False


def scaling_of(rope: Rope | None, alibi: bool = False) -> dict[str, Any] | None:
  """Returns the field `rope_scaling` of the older style, of a model's positions."""
  if rope is None:
    return {'rope_type': ALIBI if alibi else NO_POSITIONS}
  if rope.highest is not None:
    return {'rope_type': _RANDOM, 'highest': rope.highest,
            'rope_scaling': scaling_of(rope._replace(highest=None))}
  match rope.stretched:
    case None | Ntk():
      return None
    case Linear() as x:
      return {'rope_type': 'linear', 'factor': x.factor}
    case Dynamic() as x:
      return {'rope_type': 'dynamic', 'factor': x.factor}
    case Yarn() as x:
      return {'rope_type': 'yarn', 'factor': x.factor, _ORIGINAL: x.original_length,
              **_scale(x), 'beta_fast': x.beta_fast, 'beta_slow': x.beta_slow,
              'truncate': x.truncate}
    case Llama3() as x:
      return {'rope_type': 'llama3', 'factor': x.factor, _ORIGINAL: x.original_length,
              'low_freq_factor': x.low_frequency_factor,
              'high_freq_factor': x.high_frequency_factor}
    case LongRope() as x:
      return {'rope_type': 'longrope', 'factor': x.factor, _ORIGINAL: x.original_length,
              **_scale(x), 'short_factor': [*x.short_factor],
              'long_factor': [*x.long_factor]}
    case Eabf() as x:
      return {'rope_type': 'eabf', _ORIGINAL: x.original_length, 'new_base': x.new_base,
              'exempt_layers': x.exempt_layers}
    case Clex() as x:
      return {'rope_type': 'clex', _ORIGINAL: x.original_length,
              'max_factor': x.largest, 'param_factor': x.width_factor,
              'time_dt': 1 / x.steps, 'log_scale': x.log_scale}


def _scale(x: Yarn | LongRope) -> dict[str, float]:
  return {} if x.scale is None else {'attention_factor': x.scale}


def _yarn(found: Mapping[str, Any], original: int, max_length: int) -> Yarn:
  real = functools.partial(number, found, kind=float)
  factor = real('factor', default=max_length / original)
  scale = real('attention_factor', default=None)
  if scale is None and found.get('mscale') and found.get('mscale_all_dim'):
    one, other = (1 + 0.1 * real(name) * math.log(max(factor, 1.0))
                  for name in ('mscale', 'mscale_all_dim'))
    scale = one / other
  return Yarn(factor, original, real('beta_fast', default=32.0),
              real('beta_slow', default=1.0), flag(found, 'truncate', True), scale)


def _llama3(found: Mapping[str, Any], original: int, _: int) -> Llama3:
  return Llama3(number(found, 'factor', float), original,
                number(found, 'low_freq_factor', float),
                number(found, 'high_freq_factor', float))


def _longrope(found: Mapping[str, Any], original: int, max_length: int) -> LongRope:
  short, long = (numbers(found, name) for name in ('short_factor', 'long_factor'))
  return LongRope(short, long, original,
                  number(found, 'factor', float, max_length / original),
                  number(found, 'attention_factor', float, None))


def _eabf(found: Mapping[str, Any], original: int, _: int) -> Eabf:
  return Eabf(original, number(found, 'new_base', float), whole(found, 'exempt_layers'))


def _clex(found: Mapping[str, Any], original: int, _: int) -> Clex:
  return Clex(original, number(found, 'max_factor', int),
              number(found, 'param_factor', int),
              round(1 / number(found, 'time_dt', float, 0.01)),
              flag(found, 'log_scale', True))


# rope_type -> (fields, L₀, max_position_embeddings) -> the extension
_READ: dict[str, Callable[[Mapping[str, Any], int, int], Extension | None]] = {
    'default': lambda found, original, max_length: None,
    'linear': lambda found, original, max_length: Linear(
        number(found, 'factor', float)),
    'dynamic': lambda found, original, max_length: Dynamic(
        number(found, 'factor', float), max_length),
    'yarn': _yarn, 'llama3': _llama3, 'longrope': _longrope, 'eabf': _eabf,
    'clex': _clex,
}
