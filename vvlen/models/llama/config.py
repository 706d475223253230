"""Converts between config.json of the Llama family and the attributes of `Llama`.

Both styles are read: older files with `rope_theta`, `rope_scaling` and `torch_dtype`,
and those of transformers 5 with `rope_parameters` and `dtype`.

What the published family lacks, a norm right after attention, no positions and some
combinations of biases, is written with a `model_type` and a `hidden_act` of vvlen's
own, and with the fields `OWN_FIELDS`. Other libraries refuse the first, or, where they
are told to load a Llama all the same, the second.
"""

from collections.abc import Mapping
import functools
from typing import Any

from vvlen.models.llama.config_fields import flag, number
from vvlen.models.llama.config_rope import ALL_ROTATED, rope_of, scaling_of
from vvlen.models.llama.model import Llama
from vvlen.models.llama.sizes import check_model
from vvlen.models.norm import KINDS
from vvlen.models.rope import Dynamic, LongRope, Ntk, rates
from vvlen.models.rope_extensions import ntk_base

OWN = 'vvlen_llama'  # the model_type of models that the published family lacks
_OWN_SILU = 'vvlen_silu'  # their name of silu
# Those that it has besides the fields of llama: `norm` and `output_bias` of `Llama`.
OWN_FIELDS = ('post_attention_norm', 'attention_output_bias')
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
_FAMILIES[OWN] = _FAMILIES['llama']
_ARCHITECTURES = {'llama': 'LlamaForCausalLM', 'qwen2': 'Qwen2ForCausalLM',
                  OWN: 'VvlenLlamaForCausalLM'}
# Fields that can change the architecture, and the only values that are supported.
_PLAIN: dict[str, tuple[Any, ...]] = {
    'hidden_act': ('silu', 'swish', _OWN_SILU),  # names of the same function
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
  output_bias = attention_bias and family == 'llama'
  if family == OWN:
    output_bias = flag(config, 'attention_output_bias', False)
  rope, alibi = rope_of(config, max_length)
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
      alibi=alibi,
      epsilon=number(config, 'rms_norm_eps', float, 1e-6),
      attention_bias=attention_bias,
      output_bias=output_bias,
      mlp_bias=flag(config, 'mlp_bias', False),
      tied=flag(config, 'tie_word_embeddings', False),
      norm=config['post_attention_norm'] if family == OWN else 'none',
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
  norm = config.get('post_attention_norm')
  if family == OWN and norm not in KINDS:
    raise ValueError(
        f'post_attention_norm must be one of {", ".join(KINDS)}: {norm!r}')
  if family != OWN and norm is not None:
    raise ValueError(f'post_attention_norm {norm!r} is not supported with model_type '
                     f'{family!r}, only with {OWN!r}')
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
      str(x).lower().startswith(family.replace('_', '')) for x in named):
    raise ValueError(f'architecture {named[0]!r} is not supported, or is not one of '
                     f'model_type {family!r}')
  return family


def config_of(model: Llama, dtype: str) -> dict[str, Any]:
  """Returns a model's config.json, in the older style, which all libraries read.

  Ntk equals plain rotary positions of another base, and is written as that base.
  EABF, CLEX, ALiBi and random positions have a `rope_type` of their own, which
  other libraries refuse; that of CLEX is the one in its published checkpoints.

  Args:
    model: with one of `vvlen.models.norm.KINDS` as norm.
    dtype: of its parameters, such as 'bfloat16'.

  Raises:
    ValueError: if the norm is a module or a function, or dynamic positions are of
      another length than the model.
  """
  if model.norm not in KINDS:
    found = model.norm if isinstance(model.norm, str) else type(model.norm).__name__
    raise ValueError('to be saved in hub layout, norm must be one of '
                     f'{", ".join(KINDS)}: {found}')
  stretched = model.rope and model.rope.stretched
  if isinstance(stretched, Dynamic) and stretched.original_length != model.max_length:
    raise ValueError('in the Llama family, original_length of dynamic positions equals '
                     f'max_length: {stretched.original_length}, {model.max_length}')
  family = _family_of(model)
  biases = {'attention_bias': model.attention_bias, 'mlp_bias': model.mlp_bias}
  own = {'post_attention_norm': model.norm, 'attention_output_bias': model.output_bias}
  return {
      'architectures': [_ARCHITECTURES[family]],
      'model_type': family,
      'vocab_size': model.vocab_size,
      'hidden_size': model.width,
      'intermediate_size': model.mlp_width,
      'num_hidden_layers': model.num_layers,
      'num_attention_heads': model.num_heads,
      'num_key_value_heads': model.num_key_heads,
      'head_dim': _head_width(model),
      'hidden_act': _OWN_SILU if family == OWN else 'silu',
      'max_position_embeddings': model.max_length,
      'rms_norm_eps': model.epsilon,
      'tie_word_embeddings': model.tied,
      **positions_of(model),
      'torch_dtype': dtype,
      **(biases if family != 'qwen2' else {}),
      **(own if family == OWN else {}),
  }


def _family_of(model: Llama) -> str:
  """Returns the model_type of a model: its own where no published one has it all."""
  if model.norm != 'none' or (model.rope is None and not model.alibi):
    return OWN
  if model.output_bias == model.attention_bias:
    return 'llama'
  return 'qwen2' if model.attention_bias and not model.mlp_bias else OWN


def positions_of(model: Llama) -> dict[str, Any]:
  """Returns the fields of config.json that say what a model's positions are."""
  if model.rope is None:
    return {'rope_scaling': scaling_of(None, model.alibi)}
  stretched, base = model.rope.stretched, model.rope.base
  if isinstance(stretched, Ntk):
    base = ntk_base(base, _head_width(model), stretched.factor)
  found = {'rope_theta': base, 'rope_scaling': scaling_of(model.rope)}
  if isinstance(stretched, Dynamic):
    found['max_position_embeddings'] = stretched.original_length
  return found


def _head_width(model: Llama) -> int:
  return model.head_width or model.width // model.num_heads
