"""Converts between config.json of the Llama family and the attributes of `Llama`.

Both styles are read: older files with `rope_theta`, `rope_scaling` and `torch_dtype`,
and those of transformers 5 with `rope_parameters` and `dtype`.
"""

from collections.abc import Mapping
import math
import sys
from typing import Any

from vvlen.models.clex import Clex
from vvlen.models.llama.model import Llama
from vvlen.models.llama.sizes import check_model
from vvlen.models.rope import (
    check,
    Dynamic,
    Eabf,
    Extension,
    Linear,
    Llama3,
    LongRope,
    Ntk,
    rates,
    Rope,
    Yarn,
)
from vvlen.models.rope_extensions import ntk_base

# Defaults of the transformers library for each family, used if a file lacks the field.
# num_key_value_heads None: as many key heads as query heads.
_FAMILIES: dict[str, dict[str, Any]] = {
    'llama': {'max_position_embeddings': 2048, 'num_key_value_heads': None,
              'attention_bias': False},
    'mistral': {'max_position_embeddings': 131_072, 'num_key_value_heads': 8,
                'attention_bias': False, 'sliding_window': 4096},
    # Queries, keys and values have a bias, the output has none.
    'qwen2': {'max_position_embeddings': 32_768, 'num_key_value_heads': 32,
              'attention_bias': True},
}
# Fields that can change the architecture, and the only values that are supported.
_PLAIN: dict[str, tuple[Any, ...]] = {
    'hidden_act': ('silu', 'swish'),  # two names of the same function
    'quantization_config': (None,),
    'partial_rotary_factor': (None, 1, 1.0),
    'use_sliding_window': (None, False),
}
_LARGEST = 2**31 - 1  # the largest allowed integer


def model_of(config: Mapping[str, Any]) -> Llama:
  """Returns the model that a config.json describes.

  Raises:
    ValueError: if the architecture is not supported, naming it, if a field is missing
      or of a wrong type, or if the sizes do not define a model.
  """
  family = config.get('model_type')
  if not isinstance(family, str) or family not in _FAMILIES:
    named = config.get('architectures')
    named = named[0] if isinstance(named, list) and named else named
    raise ValueError(
        f'model_type {family!r} (architecture {named!r}) is not supported: must be '
        f'one of {", ".join(_FAMILIES)}'
    )
  for name, plain in _PLAIN.items():
    if name in config and config[name] not in plain:
      raise ValueError(f'{name} {config[name]!r} is not supported')
  layers = config.get('layer_types')
  if layers is not None and not (
      isinstance(layers, list) and all(x == 'full_attention' for x in layers)):
    raise ValueError(f'layer_types {layers!r} is not supported')
  defaults = _FAMILIES[family]
  window = config.get('sliding_window', defaults.get('sliding_window'))
  if family == 'mistral' and window is not None:
    missing = '' if 'sliding_window' in config else ', the default,'
    raise ValueError(
        f'sliding_window {window!r}{missing} is not supported: for full attention, set '
        'it to null in config.json'
    )
  named = config.get('architectures')
  if isinstance(named, list) and named and not any(
      str(x).lower().startswith(family) for x in named):
    raise ValueError(f'architecture {named[0]!r} is not supported, or is not one of '
                     f'model_type {family!r}')
  whole = lambda name, default=...: _number(config, name, int, default)
  heads = whole('num_attention_heads')
  max_length = whole('max_position_embeddings', defaults['max_position_embeddings'])
  # In every family, null means as many key heads as query heads.
  key_heads = config.get('num_key_value_heads', defaults['num_key_value_heads'])
  key_heads = _number({'num_key_value_heads': key_heads}, 'num_key_value_heads', int,
                      heads)
  attention_bias = _flag(config, 'attention_bias', defaults['attention_bias'])
  model = Llama(
      vocab_size=whole('vocab_size'),
      width=whole('hidden_size'),
      mlp_width=whole('intermediate_size'),
      num_layers=whole('num_hidden_layers'),
      num_heads=heads,
      num_key_heads=key_heads,
      head_width=whole('head_dim', None),
      max_length=max_length,
      rope=_rope(config, max_length),
      epsilon=_number(config, 'rms_norm_eps', float, 1e-6),
      attention_bias=attention_bias,
      output_bias=attention_bias and family == 'llama',
      mlp_bias=_flag(config, 'mlp_bias', False),
      tied=_flag(config, 'tie_word_embeddings', False),
  )
  check_model(model)
  if model.rope is not None and isinstance(model.rope.stretched, LongRope):
    # Raises ValueError if there is not one factor for each plane.
    rates(model.rope, model.head_width or model.width // heads, max_length)
  return model


def config_of(model: Llama, dtype: str) -> dict[str, Any]:
  """Returns a model's config.json, in the older style, which all libraries read.

  Ntk equals plain rotary positions of another base, and is written as that base.
  EABF and CLEX have a `rope_type` of their own, which other libraries refuse; that of
  CLEX is the one in its published checkpoints.

  Args:
    model: of the Llama family.
    dtype: of its parameters, such as 'bfloat16'.

  Raises:
    ValueError: if the model has no equivalent in the published family.
  """
  if model.norm != 'none' or model.rope is None:
    raise ValueError('a model with a norm after attention or without rotary positions '
                     f'is not of the Llama family: {model.norm!r}, {model.rope}'
                     f'{", alibi" if model.alibi else ""}')
  stretched = model.rope.stretched
  head_width = model.head_width or model.width // model.num_heads
  if isinstance(stretched, Dynamic) and stretched.original_length != model.max_length:
    raise ValueError('in the Llama family, original_length of dynamic positions equals '
                     f'max_length: {stretched.original_length}, {model.max_length}')
  biases = (model.attention_bias, model.output_bias)
  family = 'qwen2' if biases == (True, False) else 'llama'
  if biases == (False, True) or (family == 'qwen2' and model.mlp_bias):
    raise ValueError('no model of the Llama family has these biases: attention_bias, '
                     f'output_bias {biases}, mlp_bias {model.mlp_bias}')
  own = {'attention_bias': model.attention_bias, 'mlp_bias': model.mlp_bias}
  return {
      'architectures': [{'llama': 'LlamaForCausalLM', 'qwen2': 'Qwen2ForCausalLM'}[
          family]],
      'model_type': family,
      'vocab_size': model.vocab_size,
      'hidden_size': model.width,
      'intermediate_size': model.mlp_width,
      'num_hidden_layers': model.num_layers,
      'num_attention_heads': model.num_heads,
      'num_key_value_heads': model.num_key_heads,
      'head_dim': head_width,
      'hidden_act': 'silu',
      'max_position_embeddings': model.max_length,
      'rms_norm_eps': model.epsilon,
      'tie_word_embeddings': model.tied,
      'rope_theta': (ntk_base(model.rope.base, head_width, stretched.factor)
                     if isinstance(stretched, Ntk) else model.rope.base),
      'rope_scaling': _scaling(model.rope),
      'torch_dtype': dtype,
      **(own if family == 'llama' else {}),
  }


def _rope(config: Mapping[str, Any], max_length: int) -> Rope:
  """Returns the rotary positions of a config.json of either style."""
  found = config.get('rope_parameters') or config.get('rope_scaling') or {}
  if not isinstance(found, Mapping):
    raise ValueError(
        f'rope_parameters or rope_scaling must be an object: {found!r}')
  # rope_theta may be inside or outside this object, in either style.
  found = {'rope_theta': config.get('rope_theta'), **found}
  base = found['rope_theta']
  base = 10_000.0 if base is None else _number(found, 'rope_theta', float)
  kind = found.get('rope_type', found.get('type', 'default'))
  real = lambda name, default=...: _number(found, name, float, default)
  # Some older files have this field outside the object.
  name = 'original_max_position_embeddings'
  original = _number(config, name, int, max_length)
  original = _number(found, name, int, original)
  if found.get('partial_rotary_factor') not in _PLAIN['partial_rotary_factor']:
    raise ValueError('partial_rotary_factor is not supported')
  stretched: Extension | None
  if kind == 'default':
    stretched = None
  elif kind == 'linear':
    stretched = Linear(real('factor'))
  elif kind == 'dynamic':
    stretched = Dynamic(real('factor'), max_length)
  elif kind == 'yarn':
    factor = real('factor', max_length / original)
    scale = real('attention_factor', None)
    if scale is None and found.get('mscale') and found.get('mscale_all_dim'):
      one, other = (1 + 0.1 * real(name) * math.log(max(factor, 1.0))
                    for name in ('mscale', 'mscale_all_dim'))
      scale = one / other
    stretched = Yarn(
        factor, original, real('beta_fast', 32.0), real('beta_slow', 1.0),
        _flag(found, 'truncate', True), scale,
    )
  elif kind == 'llama3':
    stretched = Llama3(real('factor'), original, real('low_freq_factor'),
                       real('high_freq_factor'))
  elif kind == 'longrope':
    short, long = (_numbers(found, name) for name in ('short_factor', 'long_factor'))
    stretched = LongRope(short, long, original, real('factor', max_length / original),
                         real('attention_factor', None))
  elif kind == 'eabf':
    stretched = Eabf(original, real('new_base'), _whole(found, 'exempt_layers'))
  elif kind == 'clex':
    count = lambda name: _number(found, name, int)
    stretched = Clex(original, count('max_factor'), count('param_factor'),
                     round(1 / real('time_dt', 0.01)), _flag(found, 'log_scale', True))
  else:
    raise ValueError(f'rope type {kind!r} is not supported: must be one of default, '
                     'linear, dynamic, yarn, llama3, longrope, eabf, clex')
  rope = Rope(base, stretched)
  check(rope)
  return rope


def _scaling(rope: Rope) -> dict[str, Any] | None:
  """Returns the field `rope_scaling` of the older style."""
  stretched = rope.stretched
  if stretched is None or isinstance(stretched, Ntk):
    return None
  if isinstance(stretched, (Eabf, Clex)):
    own = {'original_max_position_embeddings': stretched.original_length}
    if isinstance(stretched, Eabf):
      return {'rope_type': 'eabf', **own, 'new_base': stretched.new_base,
              'exempt_layers': stretched.exempt_layers}
    return {'rope_type': 'clex', **own, 'max_factor': stretched.largest,
            'param_factor': stretched.width_factor, 'time_dt': 1 / stretched.steps,
            'log_scale': stretched.log_scale}
  scaling: dict[str, Any] = {'factor': stretched.factor}
  if isinstance(stretched, Linear):
    return {'rope_type': 'linear', **scaling}
  if isinstance(stretched, Dynamic):
    return {'rope_type': 'dynamic', **scaling}
  scaling['original_max_position_embeddings'] = stretched.original_length
  if isinstance(stretched, Llama3):
    return {'rope_type': 'llama3', **scaling,
            'low_freq_factor': stretched.low_frequency_factor,
            'high_freq_factor': stretched.high_frequency_factor}
  if stretched.scale is not None:
    scaling['attention_factor'] = stretched.scale
  if isinstance(stretched, LongRope):
    return {'rope_type': 'longrope', **scaling,
            'short_factor': [*stretched.short_factor],
            'long_factor': [*stretched.long_factor]}
  return {'rope_type': 'yarn', **scaling, 'beta_fast': stretched.beta_fast,
          'beta_slow': stretched.beta_slow, 'truncate': stretched.truncate}


def _number(
    fields: Mapping[str, Any], name: str, kind: type, default: Any = ...
) -> Any:
  """Returns a number; if it is missing or null, `default`, or an error without one.

  All numbers that are read from a config.json must be positive; ints at most 2³¹ − 1,
  floats finite.
  """
  value = fields.get(name)
  if value is None:
    if default is ...:
      raise ValueError(f'{name} is missing')
    return default
  kinds = (int, float) if kind is float else (int,)
  if isinstance(value, bool) or not isinstance(value, kinds):
    raise ValueError(f'{name} must be a number of type {kind.__name__}: {value!r}')
  if not 0 < value <= (sys.float_info.max if kind is float else _LARGEST):
    limit = 'finite' if kind is float else f'at most {_LARGEST}'
    raise ValueError(f'{name} must be positive and {limit}: {value!r}')
  return kind(value)


def _numbers(fields: Mapping[str, Any], name: str) -> tuple[float, ...]:
  """Returns a list of numbers, each as `_number` reads it."""
  found = fields.get(name)
  if not isinstance(found, list):
    raise ValueError(f'{name} must be a list of numbers: {found!r}')
  return tuple(_number({name: x}, name, float) for x in found)


def _whole(fields: Mapping[str, Any], name: str) -> int:
  """Returns a whole number from 0 on."""
  return 0 if fields.get(name) == 0 else _number(fields, name, int)


def _flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
  value = fields.get(name)
  if value is not None and not isinstance(value, bool):
    raise ValueError(f'{name} must be true or false: {value!r}')
  return default if value is None else value
