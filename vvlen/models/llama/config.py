"""Converts between config.json of the Llama family and the attributes of `Llama`.

Both styles are read: older files with `rope_theta`, `rope_scaling` and `torch_dtype`,
and those of transformers 5 with `rope_parameters` and `dtype`.
"""

from collections.abc import Mapping
import functools
from typing import Any

from vvlen.models.llama.config_fields import flag, number
from vvlen.models.llama.config_rope import ALL_ROTATED, rope_of, scaling_of
from vvlen.models.llama.model import Llama
from vvlen.models.llama.sizes import check_model
from vvlen.models.rope import Dynamic, LongRope, Ntk, rates
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
    'partial_rotary_factor': ALL_ROTATED,
    'use_sliding_window': (None, False),
}


def model_of(config: Mapping[str, Any]) -> Llama:
  """Returns the model that a config.json describes.

  Raises:
    ValueError: if the architecture is not supported, naming it, if a field is missing
      or of a wrong type, or if the sizes do not define a model.
  """
  family = _family(config)
  defaults = _FAMILIES[family]
  whole = functools.partial(number, config, kind=int)
  heads = whole('num_attention_heads')
  max_length = whole(
      'max_position_embeddings', default=defaults['max_position_embeddings'])
  # In every family, null means as many key heads as query heads.
  key_heads = config.get('num_key_value_heads', defaults['num_key_value_heads'])
  key_heads = number({'num_key_value_heads': key_heads}, 'num_key_value_heads', int,
                     heads)
  attention_bias = flag(config, 'attention_bias', defaults['attention_bias'])
  rope = rope_of(config, max_length)
  model = Llama(
      vocab_size=whole('vocab_size'),
      width=whole('hidden_size'),
      mlp_width=whole('intermediate_size'),
      num_layers=whole('num_hidden_layers'),
      num_heads=heads,
      num_key_heads=key_heads,
      head_width=whole('head_dim', default=None),
      max_length=max_length,
      rope=rope,
      alibi=rope is None,
      epsilon=number(config, 'rms_norm_eps', float, 1e-6),
      attention_bias=attention_bias,
      output_bias=attention_bias and family == 'llama',
      mlp_bias=flag(config, 'mlp_bias', False),
      tied=flag(config, 'tie_word_embeddings', False),
  )
  check_model(model)
  if model.rope is not None and isinstance(model.rope.stretched, LongRope):
    # Raises ValueError if there is not one factor for each plane.
    rates(model.rope, model.head_width or model.width // heads, max_length)
  return model


def _family(config: Mapping[str, Any]) -> str:
  """Returns the family of a config.json, after checking that all of it is supported.

  Raises:
    ValueError: naming what is not.
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
  window = config.get('sliding_window', _FAMILIES[family].get('sliding_window'))
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
  return family


def is_of_family(model: Llama) -> bool:
  """Returns whether hub layout knows such models.

  It has no norm after attention, and no models without positions.
  """
  return model.norm == 'none' and (model.rope is not None or model.alibi)


def config_of(model: Llama, dtype: str) -> dict[str, Any]:
  """Returns a model's config.json, in the older style, which all libraries read.

  Ntk equals plain rotary positions of another base, and is written as that base.
  EABF, CLEX, ALiBi and random positions have a `rope_type` of their own, which
  other libraries refuse; that of CLEX is the one in its published checkpoints.

  Args:
    model: of the Llama family.
    dtype: of its parameters, such as 'bfloat16'.

  Raises:
    ValueError: if the model has no equivalent in the published family.
  """
  if not is_of_family(model):
    raise ValueError('a model with a norm after attention or without positions is not '
                     f'of the Llama family: {model.norm!r}, {model.rope}')
  stretched = model.rope and model.rope.stretched
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
      'head_dim': _head_width(model),
      'hidden_act': 'silu',
      'max_position_embeddings': model.max_length,
      'rms_norm_eps': model.epsilon,
      'tie_word_embeddings': model.tied,
      **positions_of(model),
      'torch_dtype': dtype,
      **(own if family == 'llama' else {}),
  }


def positions_of(model: Llama) -> dict[str, Any]:
  """Returns the fields of config.json that say what a model's positions are.

  They are empty for a model without positions.
  """
  if model.rope is None:
    return {'rope_scaling': scaling_of(None)} if model.alibi else {}
  stretched, base = model.rope.stretched, model.rope.base
  if isinstance(stretched, Ntk):
    base = ntk_base(base, _head_width(model), stretched.factor)
  found = {'rope_theta': base, 'rope_scaling': scaling_of(model.rope)}
  if isinstance(stretched, Dynamic):
    found['max_position_embeddings'] = stretched.original_length
  return found


def _head_width(model: Llama) -> int:
  return model.head_width or model.width // model.num_heads
