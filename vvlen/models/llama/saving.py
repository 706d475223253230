"""Saves checkpoints of the Llama family in the layout of model hubs.

`save_checkpoint` can be imported from `vvlen.models.llama`, like `load_checkpoint`.
"""

from collections.abc import Iterator
import itertools
import json
import math
import re
from typing import Any, NamedTuple

from etils import epath
import jax
import numpy as np

from vvlen.models.llama import safetensors as safetensors_file
from vvlen.models.llama.config import config_of, OWN, OWN_FIELDS
from vvlen.models.llama.model import Llama
from vvlen.models.llama.names import (
    hub_name,
    is_stacked,
    is_transposed,
    layer_paths,
    named,
)
from vvlen.models.llama.safetensors import check_link, INDEX, ONE_FILE, read_json

_FILE_BYTES = 2**31  # limit per file, except for a single larger tensor
# Files that are copied from another checkpoint.
COPIED = (
    'tokenizer.json', 'tokenizer_config.json', 'tokenizer.model', 'added_tokens.json',
    'special_tokens_map.json', 'vocab.json', 'merges.txt', 'chat_template.jinja',
    'generation_config.json',
)
_WEIGHTS = re.compile(r'model(-\d{5,}-of-\d{5,})?\.safetensors')


def save_checkpoint(
    folder: epath.PathLike,
    model: Llama,
    variables: dict[str, Any],
    *,
    like: epath.PathLike | None = None,
) -> None:
  """Saves a model in hub layout.

  If there are several processes, all must call it; the first writes, and all return
  when it is done. A file has at most 2 GiB, unless a single tensor is larger. On the
  host, the first process needs memory for one file and its serialized form, the others
  for one tensor.

  New files are first written beside the old ones, so the disk must have room for both,
  and then replace them. If the process is killed before it is done, the folder has the
  old checkpoint, or no config.json and thus no checkpoint; never parts of both.

  Args:
    folder: created if it is missing; a checkpoint in it is replaced. Other files in it
      are left alone.
    model: with one of `vvlen.models.norm.KINDS` as norm. Other libraries load a model
      with rotary positions and without a norm after attention; they refuse those that
      they lack.
    variables: {'params': …}, as initialized or loaded.
    like: a checkpoint whose tokenizer and generation_config.json are copied, and whose
      config.json provides fields that the model does not define, such as the ids of
      special tokens.

  Raises:
    ValueError: as `vvlen.models.llama.config.config_of`, if parameters differ in dtype,
      or if a file of `like` is a link to a place outside it.
  """
  folder = epath.Path(folder)
  params = _by_layer(named(variables['params']), model.num_layers)
  dtypes = {str(x.dtype) for x in params.values()}
  if len(dtypes) > 1 or not dtypes <= set(map(str, safetensors_file.DTYPES.values())):
    raise ValueError(f'parameters must have the same float dtype: {sorted(dtypes)}')
  config = config_of(model, dtypes.pop())
  others: list[epath.Path] = []
  if like is not None:
    source = epath.Path(like)
    known = read_json(source / 'config.json')
    # In a file that has these newer fields, the older ones, written here, are ignored.
    # Biases that are not written here have the values of the family. Fields of vvlen's
    # own belong to a model that has them, and auto_map names code for the architecture
    # of `like`.
    stale = ('rope_parameters', 'dtype', 'attention_bias', 'mlp_bias', *OWN_FIELDS)
    for name in (*stale, 'auto_map') if config['model_type'] == OWN else stale:
      known.pop(name, None)
    config = {**known, **config}
    others = [path for name in COPIED if (path := source / name).is_file()]
    for path in others:
      check_link(path)
  files = _files(params)
  arrays = ((file, hub_name(path), gather(params[path].array(), is_transposed(path)))
            for file, paths in files.items() for path in paths)
  if jax.process_index() == 0:
    texts = {'config.json': config}
    if len(files) > 1:
      total = sum(math.prod(x.shape) * x.dtype.itemsize for x in params.values())
      where = {hub_name(path): file for file, paths in files.items() for path in paths}
      texts[INDEX] = {'metadata': {'total_size': total}, 'weight_map': where}
    _write(folder, arrays, texts, others)
  else:
    for _ in arrays:  # all processes must take part in gathering
      pass
  if jax.process_count() > 1:
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices('save_checkpoint')


class _Param(NamedTuple):
  """An array, or one layer of an array [layers, ...]."""

  whole: jax.Array
  layer: int | None = None

  @property
  def shape(self) -> tuple[int, ...]:
    return self.whole.shape[self.layer is not None:]

  @property
  def dtype(self) -> Any:
    return self.whole.dtype

  def array(self) -> jax.Array:
    return self.whole if self.layer is None else self.whole[self.layer]


def _by_layer(params: dict[str, jax.Array], num_layers: int) -> dict[str, _Param]:
  """Returns the parameters with a path for each layer, as in files."""
  found = {}
  for path, x in params.items():
    if not is_stacked(path):
      found[path] = _Param(x)
      continue
    for layer, own in enumerate(layer_paths(path, num_layers)):
      found[own] = _Param(x, layer)
  return found


def _write(
    folder: epath.Path,
    arrays: Iterator[tuple[str, str, np.ndarray]],
    texts: dict[str, Any],
    others: list[epath.Path],
) -> None:
  """Writes files beside a checkpoint, then replaces it by them.

  Args:
    folder: of the checkpoint.
    arrays: (file, name, array), ordered by file.
    texts: contents of JSON files, by file.
    others: files to copy.
  """
  # Imported only when needed.
  from safetensors.numpy import save

  folder.mkdir(parents=True, exist_ok=True)
  own = {INDEX, 'config.json', *COPIED}
  for left in folder.glob(_part(folder, '*').name):
    name = left.name.removeprefix('.').removesuffix('.part')
    if name in own or _WEIGHTS.fullmatch(name):
      left.unlink()
  names: list[str] = []

  def write(name: str, content: bytes) -> None:
    names.append(name)
    _part(folder, name).write_bytes(content)

  for file, held in itertools.groupby(arrays, key=lambda x: x[0]):
    write(file, save({name: x for _, name, x in held}, metadata={'format': 'pt'}))
  for path in others:
    write(path.name, path.read_bytes())
  for name, content in texts.items():
    write(name, json.dumps(content, indent=2).encode() + b'\n')
  # Without its config.json a folder is no checkpoint, whatever else is in it.
  (folder / 'config.json').unlink(missing_ok=True)
  for path in (folder / INDEX, *folder.glob('model*.safetensors')):
    if path.name == INDEX or _WEIGHTS.fullmatch(path.name):
      path.unlink(missing_ok=True)
  for name in sorted(names, key=lambda x: x == 'config.json'):
    _part(folder, name).replace(folder / name)


def _part(folder: epath.Path, name: str) -> epath.Path:
  """Returns the path at which a file is written before it is moved to its place."""
  return folder / f'.{name}.part'


def gather(x: jax.Array, transposed: bool) -> np.ndarray:
  """Gathers an array from all processes; returns it, or its transpose, in NumPy."""
  if not x.is_fully_addressable:
    from jax.experimental import multihost_utils

    x = multihost_utils.process_allgather(x, tiled=True)
  array = np.asarray(x)
  return np.ascontiguousarray(array.T if transposed else array)


def _files(params: dict[str, _Param]) -> dict[str, list[str]]:
  """Returns {file: paths of the parameters that are saved in it}."""
  groups: list[list[str]] = [[]]
  size = 0
  for path, x in params.items():
    bytes_ = math.prod(x.shape) * x.dtype.itemsize
    if groups[-1] and size + bytes_ > _FILE_BYTES:
      groups.append([])
      size = 0
    groups[-1].append(path)
    size += bytes_
  if len(groups) == 1:
    return {ONE_FILE: groups[0]}
  return {f'model-{i:05}-of-{len(groups):05}.safetensors': paths
          for i, paths in enumerate(groups, 1)}
