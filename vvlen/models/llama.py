"""Loads and saves checkpoints of the Llama family in the layout of model hubs.

A folder has config.json and either model.safetensors, or several such files and
model.safetensors.index.json, which says which tensor is in which. Anything trained here
can be saved so that others load it. Nothing is executed from files, nothing unpickled.
"""

import json
import math
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from vvlen.models import loading, safetensors_file
from vvlen.models.llama_config import config_of, model_of
from vvlen.models.llama_model import Llama
from vvlen.models.llama_names import hub_name, named, nested, REST
from vvlen.models.safetensors_file import INDEX, ONE_FILE, read_json, Tensor

# A pytree of shardings like the parameters, one for all of them, or a function from the
# parameters, as jax.ShapeDtypeStructs, to the pytree.
Shardings = Any
_SAVED_FILE_BYTES = 2**31  # at most, but for larger tensors

def load_checkpoint(
    folder: epath.PathLike, shardings: Shardings = None, *, dtype: Any = None
) -> tuple[Llama, dict[str, Any]]:
  """Loads a checkpoint, tensor by tensor straight to its devices.

  Each process reads the rows that its devices hold, each once, some tensors at a time.
  Besides the model, that takes the memory of the largest tensor on the host at most;
  with a cast, of that and its cast.
  Where the output embedding is tied and in the files nevertheless, both are read before
  and compared.

  Args:
    folder: in hub layout, local or gs://; it needs no tokenizer.
    shardings: a pytree of jax.sharding.Sharding like the parameters, or one for all of
      them, or a function that maps the parameters, as jax.ShapeDtypeStructs, to such a
      pytree, as functools.partial(vvlen.partition.shardings, mesh=mesh) does. None: the
      default device.
    dtype: of the parameters; None: as they are in the files, all of one dtype.

  Returns:
    The model and its variables: model.apply(variables, tokens [B, T]) are logits [B, T,
    V], float32 or wider.

  Raises:
    FileNotFoundError: if a file is missing.
    ValueError: if it is no such checkpoint, of another architecture, damaged, or its
      tensors are not those of its config.json.
  """
  folder = epath.Path(folder)
  model = read_model(folder)
  tensors = safetensors_file.read_headers(folder)
  if model.num_layers > len(tensors):
    raise ValueError(f'{folder} has {len(tensors)} tensors, too few for the '
                     f'{model.num_layers} layers that its config.json asks for')
  expected = abstract_params(model)
  parameters = named(expected)
  _check_tensors(folder, model, parameters, tensors, dtype)
  if dtype is None:
    dtype = safetensors_file.dtype_of(tensors['model.embed_tokens.weight'])
  expected = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), expected)
  if callable(shardings):
    shardings = shardings(expected)
  if shardings is None:
    shardings = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  if isinstance(shardings, jax.sharding.Sharding):
    one = shardings
    shardings = jax.tree.map(lambda _: one, expected)
  elif set(shardings) == {'params'}:
    shardings = shardings['params']
  placed = named(shardings)
  if placed.keys() != parameters.keys():
    odd = sorted(placed.keys() ^ parameters.keys())[0]
    raise ValueError(f'shardings are not those of the parameters: {odd}')
  loaded = loading.read_to_devices(
      {path: tensors[hub_name(path)] for path in parameters}, placed, np.dtype(dtype))
  return model, {'params': nested(loaded)}


def read_model(folder: epath.PathLike) -> Llama:
  """Returns the model of a checkpoint, from its config.json alone.

  Raises:
    FileNotFoundError: if there is no config.json.
    ValueError: as `load_checkpoint`, naming the file.
  """
  path = epath.Path(folder) / 'config.json'
  if not path.exists():
    raise FileNotFoundError(f'{folder} is not a checkpoint: it has no config.json')
  config = read_json(path)
  try:
    return model_of(config)
  except RecursionError as error:
    raise ValueError(f'{path} is nested too deeply') from error
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error


def save_checkpoint(
    folder: epath.PathLike,
    model: Llama,
    variables: dict[str, Any],
    *,
    like: epath.PathLike | None = None,
) -> None:
  """Saves a model in hub layout.

  Where there are several processes all call it, the first writes, and all return when
  it has. Files are of at most 2 GiB, or of one tensor that is larger. The first process
  has the memory of one on the host, and of it serialized; the others that of a tensor.

  New files are written beside the old, which takes the room of both, and then put in
  their place. Who is killed in between leaves the old checkpoint, or a folder without
  config.json, which is none; never parts of both.

  Args:
    folder: made where it is missing; a checkpoint there is replaced.
    model: of the published family: with rotary positions, without a norm after
      attention.
    variables: {'params': …}, as it is initialized or loaded.
    like: a checkpoint whose other fields of config.json, such as the numbers of special
      tokens, and whose tokenizer come along.

  Raises:
    ValueError: if the model is none of the family, or parameters differ in dtype.
  """
  folder = epath.Path(folder)
  params = named(variables['params'])
  dtypes = {str(x.dtype) for x in params.values()}
  if len(dtypes) > 1 or not dtypes <= set(map(str, safetensors_file.DTYPES.values())):
    raise ValueError(f'parameters must be of one float dtype: {sorted(dtypes)}')
  config = config_of(model, dtypes.pop())
  others: list[epath.Path] = []
  if like is not None:
    source = epath.Path(like)
    known = read_json(source / 'config.json')
    # Of the new style, beside which the older one would not count.
    for name in ('rope_parameters', 'dtype'):
      known.pop(name, None)
    config = {**known, **config}
    others = [path for path in source.iterdir()
              if path.is_file() and not path.name.startswith('.')
              and ('token' in path.name or path.name == 'generation_config.json')]
  first = jax.process_index() == 0
  names: list[str] = []

  def write(name: str, content: bytes) -> None:
    names.append(name)
    _part(folder, name).write_bytes(content)

  if first:
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(_part(folder, '*').name):
      left.unlink()
  groups = _groups(params)
  where: dict[str, str] = {}
  for number, paths in enumerate(groups, 1):
    name = ONE_FILE
    if len(groups) > 1:
      name = f'model-{number:05}-of-{len(groups):05}.safetensors'
    arrays = {}
    for path in paths:
      array = _gather(params[path])
      if first:
        arrays[hub_name(path)] = array
    where |= dict.fromkeys(arrays, name)
    if first:
      # Imported here, where it is needed.
      from safetensors.numpy import save

      write(name, save(arrays, metadata={'format': 'pt'}))
  if first:
    if len(groups) > 1:
      total = sum(x.size * x.dtype.itemsize for x in params.values())
      index = {'metadata': {'total_size': total}, 'weight_map': where}
      write(INDEX, json.dumps(index, indent=2).encode() + b'\n')
    for other in others:
      write(other.name, other.read_bytes())
    write('config.json', json.dumps(config, indent=2).encode() + b'\n')
    _replace(folder, names)
  if jax.process_count() > 1:
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices('save_checkpoint')


def abstract_params(model: Llama) -> Any:
  """Returns the parameters of a model as jax.ShapeDtypeStructs."""
  tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  key = jax.eval_shape(jax.random.key, 0)
  # One layer is traced; all have the same parameters.
  params = jax.eval_shape(model.clone(num_layers=1).init, key, tokens)['params']
  layers = {f'layer_{i}': params['layer_0'] for i in range(model.num_layers)}
  return {**params, **layers}


def _check_tensors(
    folder: epath.Path,
    model: Llama,
    parameters: dict[str, Any],
    tensors: dict[str, Tensor],
    dtype: Any,
) -> None:
  """Raises ValueError unless the tensors are those of the model."""
  wanted = {hub_name(path): x.shape for path, x in parameters.items()}
  for name, shape in wanted.items():
    if name not in tensors:
      raise ValueError(f'{folder} has no {name}, which its config.json asks for')
    if tensors[name].shape != shape:
      raise ValueError(f'{tensors[name].path}: {name} is {tensors[name].shape}, but '
                       f'config.json makes it {shape}')
    safetensors_file.dtype_of(tensors[name])
  spare = {name for name in tensors if name not in wanted
           and not name.endswith('rotary_emb.inv_freq')
           and not (model.tied and name == REST['output_embedding'])}
  if spare:
    raise ValueError(f'{folder} has {sorted(spare)[0]}, which is not of the model that '
                     'its config.json describes')
  table, output = (tensors.get(REST[x]) for x in ('embedding', 'output_embedding'))
  if model.tied and table and output and not safetensors_file.same(table, output):
    raise ValueError(f'{output.path}: {output.name} differs from {table.name}, but '
                     'config.json ties the two')
  kinds: dict[str, str] = {}
  for name in wanted:
    kinds.setdefault(tensors[name].dtype, name)
  if len(kinds) > 1 and dtype is None:
    (one, first), (other, second) = list(kinds.items())[:2]
    raise ValueError(f'{folder}: {first} is {one}, {second} is {other}; say of which '
                     'dtype all are to be: load_checkpoint(…, dtype=…)')


def _part(folder: epath.Path, name: str) -> epath.Path:
  """Returns where a file is written before it is put in its place."""
  return folder / f'.{name}.part'


def _replace(folder: epath.Path, names: list[str]) -> None:
  """Puts files that are written in the place of a checkpoint; config.json is last.

  Without its config.json a folder is no checkpoint, whatever else is in it.
  """
  (folder / 'config.json').unlink(missing_ok=True)
  for path in (folder / INDEX, *folder.glob('model*.safetensors')):
    path.unlink(missing_ok=True)
  for name in names:
    _part(folder, name).replace(folder / name)


def _gather(x: jax.Array) -> np.ndarray:
  """Returns an array as numpy, from all processes."""
  if not x.is_fully_addressable:
    from jax.experimental import multihost_utils

    x = multihost_utils.process_allgather(x, tiled=True)
  return np.ascontiguousarray(x)


def _groups(params: dict[str, jax.Array]) -> list[list[str]]:
  """Returns the paths of parameters, file by file."""
  groups: list[list[str]] = [[]]
  size = 0
  for path, x in params.items():
    bytes_ = math.prod(x.shape) * x.dtype.itemsize
    if groups[-1] and size + bytes_ > _SAVED_FILE_BYTES:
      groups.append([])
      size = 0
    groups[-1].append(path)
    size += bytes_
  return groups
