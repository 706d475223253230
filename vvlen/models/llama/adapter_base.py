"""Identifies the model that adapters were trained with: positions, norm and weights.

A folder of adapters (`vvlen.models.llama.adapters`) has a file base.json, which PEFT
ignores:

  {"positions": {"rope_theta": 10000.0, "rope_scaling": null}, "norm": "none",
   "checksums": {"model.layers.0.self_attn.q_proj.weight": "…", …}}

Positions are written as in a config.json. The norm is the one right after attention,
null for a module or a function; without this field it is "none". Checksums are of
parameters before they were quantized, by their names in hub layout. They are of some
rows, as little of a large model should be gathered on the host, and of bfloat16, so
that a model loaded as float32 or bfloat16 is the same model.
"""

from collections.abc import Mapping
import hashlib
import json
from typing import Any

from etils import epath
from flax.traverse_util import flatten_dict
import jax
import ml_dtypes

from vvlen.models.llama.config import positions_of
from vvlen.models.llama.lora import is_quantized
from vvlen.models.llama.model import Llama
from vvlen.models.llama.names import hub_name, is_stacked, layer_paths
from vvlen.models.llama.safetensors import read_json
from vvlen.models.llama.saving import gather

_ROWS = 16  # at most so many of a matrix, evenly spread, enter its checksum


def describe(model: Llama, params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what base.json says of a model.

  Args:
    model: with the positions of training.
    params: of the model without adapters, all or some. Those that are quantized have
      no checksum.
  """
  return {'positions': positions_of(model), 'norm': _norm_of(model),
          'checksums': _checksums(model, params)}


def check(path: epath.Path, model: Llama, params: Mapping[str, Any]) -> None:
  """Raises ValueError unless base.json is of a model.

  Args:
    path: of base.json.
    model: onto which adapters are loaded.
    params: of the model, none of them quantized.
  """
  known = read_json(path)
  checksums, positions = known.get('checksums'), known.get('positions')
  if not isinstance(checksums, dict) or not isinstance(positions, dict):
    raise ValueError(f'{path} lacks the positions or the checksums of the model, as '
                     'older ones do; without this file adapters are loaded unchecked')
  found = _checksums(model, params)
  for name, checksum in checksums.items():
    if found.get(name) != checksum:
      raise ValueError(f'{path.parent} has adapters of another model: its weights '
                       f'differ, first {name}')
  own = json.loads(json.dumps(positions_of(model)))
  for name in sorted(own.keys() | positions.keys()):
    if own.get(name) != positions.get(name):
      raise ValueError(
          f'{path.parent} has adapters that were trained with other positions: {name} '
          f'{positions.get(name)}, and the model has {own.get(name)}')
  if (norm := known.get('norm', 'none')) != _norm_of(model):
    raise ValueError(
        f'{path.parent} has adapters that were trained with another norm after '
        f'attention: {norm}, and the model has {_norm_of(model)}')


def _norm_of(model):
  """Returns the name of the norm after attention, None if it is not from vvlen."""
  return model.norm if isinstance(model.norm, str) else None


def _checksums(model, params):
  """Returns the checksums of parameters, by name, in the order of names."""
  found = {}
  for path, x in flatten_dict(params, sep='/').items():
    if is_quantized(x):
      continue
    axis = int(is_stacked(path))
    step = 1 if x.ndim == axis + 1 else -(-x.shape[axis] // _ROWS)
    rows = gather(jax.lax.slice_in_dim(x, 0, None, step, axis), False)
    rows = rows.astype(ml_dtypes.bfloat16)
    for layer, own in enumerate(layer_paths(path, model.num_layers)):
      part = rows[layer] if is_stacked(path) else rows
      found[hub_name(own)] = hashlib.sha256(part.tobytes()).hexdigest()
  return dict(sorted(found.items()))
