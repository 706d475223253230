"""Saves and loads adapters (`vvlen.models.llama.lora`) in the file format of PEFT.

A folder has adapter_config.json and adapter_model.safetensors, which PEFT
(github.com/huggingface/peft) reads and writes. Its tensors are, for each layer and
projection,

  base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight   [rank, inputs]
  base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight   [outputs, rank]

and parameters that are trained besides the adapters, under their names in hub layout
after `base_model.model.`. A third file, base.json, identifies the model that the
adapters were trained with (`vvlen.models.llama.adapter_base`). Nothing is unpickled.
"""

from collections.abc import Mapping
import json
from typing import Any

from etils import epath
from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import numpy as np

from vvlen.models.llama import adapter_base
from vvlen.models.llama import safetensors as safetensors_file
from vvlen.models.llama.lora import (
    add_adapters,
    is_adapter,
    LINEAR,
    Lora,
    split,
)
from vvlen.models.llama.model import Llama
from vvlen.models.llama.names import (
    hub_name,
    is_stacked,
    is_transposed,
    layer_paths,
)
from vvlen.models.llama.saving import gather

_CONFIG, _TENSORS = 'adapter_config.json', 'adapter_model.safetensors'
_BASE = 'base.json'
_PREFIX = 'base_model.model.'
# {name in hub layout: name of the projection}
_MODULES = {
    hub_name(f'layer_0/{name}/kernel').split('.')[-2]: name for name in LINEAR}
# What can be saved besides adapters.
ALSO = ('embedding', 'output_embedding', 'attention_norm', 'mlp_norm', 'final_norm')
# Fields of adapter_config.json that are read here, or do not change the computation.
# All others must be empty: newer versions of PEFT have fields that do change it.
_KNOWN = {
    'peft_type', 'r', 'lora_alpha', 'lora_dropout', 'target_modules', 'modules_to_save',
    'task_type', 'auto_mapping', 'peft_version', 'base_model_name_or_path', 'revision',
    'inference_mode', 'layers_pattern', 'megatron_config', 'megatron_core',
    'loftq_config', 'eva_config', 'corda_config', 'lora_ga_config', 'velora_config',
    'qalora_group_size', 'runtime_config', 'ensure_weight_tying',
}
# Of these two some values are as good as none. Other ways to initialize adapters, such
# as PiSSA, also change the weights of the base when PEFT loads them.
_PLAIN = {'bias': ('none',),
          'init_lora_weights': (True, 'gaussian', 'orthogonal', 'eva')}


def save_adapters(
    folder: epath.PathLike,
    model: Llama,
    lora: Lora,
    params: Mapping[str, Any],
    base: str | None = None,
    identity: Mapping[str, Any] | None = None,
) -> None:
  """Saves adapters, and the parameters that were trained besides them.

  If there are several processes, all must call it; the first writes, and all return
  when it is done. If it is killed before, the folder has no adapter_config.json.

  Args:
    folder: created if it is missing; adapters in it are replaced.
    model: without adapters, or with; base.json has its positions and norm.
    lora: the adapters.
    params: of `add_adapters`, or trained from these.
    base: the name or folder of the model without adapters, for PEFT.
    identity: what `adapter_base.describe` says of the model without adapters, for
      base.json. None: of the frozen parameters; those that are quantized are then
      missing, so it should be given for a quantized model.

  Raises:
    ValueError: if trained parameters have no place in PEFT's format.
  """
  folder = epath.Path(folder)
  if odd := set(lora.also) - set(ALSO):
    raise ValueError(f'{min(odd)} cannot be saved with adapters, only '
                     f'{", ".join(ALSO)}')
  trained, frozen = split(lora, params)
  tensors = {}
  also: set[str] = set()
  for path, x in flatten_dict(trained, sep='/').items():
    layers = layer_paths(path, model.num_layers)
    for layer, own in enumerate(layers):
      name = _name(own)
      part = x[layer] if is_stacked(path) else x
      tensors[name] = gather(part, is_adapter(path) or is_transposed(path))
      if not is_adapter(path):
        also.add(name.split('.')[-2])
  if model.tied and 'embed_tokens' in also:
    # PEFT trains a copy of the embedding, to which the output is not tied.
    also.add('lm_head')
    tensors[_name('output_embedding')] = tensors[_name('embedding')]
  config = {
      'peft_type': 'LORA', 'task_type': 'CAUSAL_LM', 'base_model_name_or_path': base,
      'r': lora.rank, 'lora_alpha': lora.alpha, 'lora_dropout': lora.dropout,
      'target_modules': [own for own, name in _MODULES.items() if name in lora.targets],
      'modules_to_save': sorted(also) or None, 'bias': 'none', 'fan_in_fan_out': False,
      'inference_mode': True, 'init_lora_weights': True,
  }
  described = identity or adapter_base.describe(model, frozen)
  if jax.process_index() == 0:
    from safetensors.numpy import save  # imported only when needed

    folder.mkdir(parents=True, exist_ok=True)
    (folder / _CONFIG).unlink(missing_ok=True)
    contents = {_TENSORS: save(tensors, metadata={'format': 'pt'})}
    for name, value in ((_BASE, described), (_CONFIG, config)):
      contents[name] = json.dumps(value, indent=2).encode() + b'\n'
    for name, content in contents.items():
      part = folder / f'.{name}.part'
      part.write_bytes(content)
      part.replace(folder / name)
  if jax.process_count() > 1:
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices('save_adapters')


def load_adapters(
    folder: epath.PathLike,
    model: Llama,
    params: Mapping[str, Any],
    *,
    quantized: str | None = None,
    shardings: Any = None,
) -> tuple[Lora, dict[str, Any]]:
  """Loads adapters onto a model.

  Args:
    folder: as `save_adapters` or PEFT writes it.
    model: without adapters, with the positions that they were trained with.
    params: of the model.
    quantized: as in `Lora`; files do not state it.
    shardings: as in `add_adapters`.

  Returns:
    The adapters and the parameters of `with_adapters`.

  Raises:
    FileNotFoundError: if a file is missing.
    ValueError: if the adapters are of another model, other positions or another norm,
      which is seen where the folder has base.json, or of a kind that is not supported;
      if a file is damaged; or as `add_adapters`.
  """
  folder = epath.Path(folder)
  for name in (_CONFIG, _TENSORS):
    if not (folder / name).exists():
      raise FileNotFoundError(f'{folder} has no adapters: it has no {name}')
  tensors = safetensors_file.read_header(folder / _TENSORS)
  lora = _lora_of(folder, model, tensors, quantized)
  adapted = add_adapters(model, lora, params, jax.random.key(0), shardings)
  trained, frozen = split(lora, adapted)
  flat = flatten_dict(trained, sep='/')
  paths = {path: layer_paths(path, model.num_layers) for path in flat}
  names = {_name(own) for layers in paths.values() for own in layers}
  embedding, output = _name('embedding'), _name('output_embedding')
  spare = {output} & tensors.keys() if model.tied and embedding in tensors else set()
  if spare and not safetensors_file.same(tensors[embedding], tensors[output]):
    raise ValueError(f'{folder}: {output} differs from {embedding}, but the model says '
                     'that the two are tied')
  if odd := sorted(names ^ tensors.keys() - spare):
    has = 'has' if odd[0] in tensors else 'has no'
    raise ValueError(f'{folder} has adapters of another model: it {has} {odd[0]}')
  found = {}
  for path, like in flat.items():
    layers = []
    for own in paths[path]:
      x = safetensors_file.read_rows(tensors[_name(own)])
      layers.append(x.T if is_adapter(path) or is_transposed(path) else x)
    array = np.stack(layers) if is_stacked(path) else layers[0]
    if array.shape != like.shape:
      raise ValueError(f'{folder} has adapters of another model: {path} is '
                       f'{array.shape}, not {like.shape}')
    found[path] = jax.make_array_from_callback(
        array.shape, like.sharding, array.astype(like.dtype).__getitem__)
  if (folder / _BASE).exists():
    adapter_base.check(folder / _BASE, model, params)
  return lora, unflatten_dict({**flatten_dict(frozen, sep='/'), **found}, sep='/')


def _lora_of(folder, model, tensors, quantized):
  """Returns the adapters that a folder describes."""
  path = folder / _CONFIG
  config = safetensors_file.read_json(path)
  if config.get('peft_type') != 'LORA':
    raise ValueError(f'{path}: peft_type {config.get("peft_type")!r} is not supported')
  for name, value in config.items():
    # 0 is not empty: it is the number of a layer.
    empty = value is None or value is False or value in ('', [], {})
    if not (empty or name in _KNOWN or value in _PLAIN.get(name, ())):
      raise ValueError(f'{path}: {name} {value!r} is not supported')
  targets = config.get('target_modules')
  if not isinstance(targets, list) or not targets or set(targets) - _MODULES.keys():
    raise ValueError(f'{path}: target_modules must be a list of {", ".join(_MODULES)}: '
                     f'{targets!r}')
  for name, kind in (('r', int), ('lora_alpha', (int, float)),
                     ('lora_dropout', (int, float))):
    if not isinstance(config.get(name, 0), kind) or isinstance(config.get(name), bool):
      raise ValueError(f'{path}: {name} is not a number: {config[name]!r}')
  first = {'attention_norm': 'layer_0/attention_norm/scale',
           'mlp_norm': 'layer_0/mlp_norm/scale', 'final_norm': 'final_norm/scale'}
  also = tuple(name for name in ALSO if _name(first.get(name, name)) in tensors
               and not (model.tied and name == 'output_embedding'))
  return Lora(
      rank=config.get('r', 0), alpha=config.get('lora_alpha', 0),
      dropout=config.get('lora_dropout', 0.0), also=also, quantized=quantized,
      targets=tuple(name for own, name in _MODULES.items() if own in targets))


def _name(path):
  """Returns the name of a parameter in a file."""
  for suffix, letter in (('_lora_a', 'A'), ('_lora_b', 'B')):
    if path.endswith(suffix):
      name = hub_name(path.removesuffix(suffix)).removesuffix('.weight')
      return f'{_PREFIX}{name}.lora_{letter}.weight'
  return _PREFIX + hub_name(path)
