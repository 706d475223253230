"""Loads checkpoints of the Llama family in the layout of model hubs, and saves them.

A folder has config.json and either model.safetensors, or several .safetensors files and
model.safetensors.index.json, which lists the file of each tensor. Models trained here
can be saved so that other libraries load them. No code in files is executed, and
nothing is unpickled.
"""

from collections.abc import Mapping
import functools
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from vvlen.models.llama import loading
from vvlen.models.llama import safetensors as safetensors_file
from vvlen.models.llama.config import model_of
from vvlen.models.llama.hub import local_folder
from vvlen.models.llama.layers import STACK
from vvlen.models.llama.model import Llama
from vvlen.models.llama.names import (
    hub_name,
    is_stacked,
    is_transposed,
    layer_paths,
    named,
    nested,
    REST,
)
from vvlen.models.llama.safetensors import read_json, Tensor
from vvlen.models.llama.saving import save_checkpoint as save_checkpoint

# A pytree of shardings with the structure of the parameters, one sharding for all, or a
# function that maps the parameters, as jax.ShapeDtypeStructs, to such a pytree.
Shardings = Any


def load_checkpoint(
    folder: epath.PathLike, shardings: Shardings = None, *, dtype: Any = None,
    scan_layers: bool = False,
) -> tuple[Llama, dict[str, Any]]:
  """Loads a checkpoint, reading its tensors directly to their devices.

  Each process reads the rows that its devices hold, each row once, several tensors at a
  time. Besides the model, this needs host memory for at most the largest tensor and, if
  tensors are cast, its cast copy. If the embeddings are tied but the files contain the
  output embedding too, both are first read and compared.

  Args:
    folder: in hub layout, local or gs://; it needs no tokenizer. Or ORG/NAME, a model
      of the Hugging Face Hub, which is downloaded (`vvlen.models.llama.hub`).
    shardings: a pytree of jax.sharding.Sharding with the structure of the parameters,
      or one sharding for all, or a function that maps the parameters, as
      jax.ShapeDtypeStructs, to such a pytree, for example
      functools.partial(vvlen.sharding.mesh.shardings, mesh=mesh). None: the default
      device.
    dtype: of the parameters; None: that of the files, which must then be one for all.
    scan_layers: whether the model is one with stacked layers (`Llama.scan_layers`).
      While a parameter is stacked, devices hold its layers twice.

  Returns:
    The model and its variables: model.apply(variables, tokens [B, n]) returns logits
    [B, n, V], float32 or wider.

  Raises:
    FileNotFoundError: if a file is missing.
    ValueError: if the folder is not such a checkpoint, its architecture is not
      supported, it is damaged, its tensors do not match its config.json, shardings do
      not match the parameters, or parameters are float64 without jax_enable_x64; or if
      it cannot be downloaded.
  """
  model, tensors, parameters = _whole(epath.Path(folder), dtype)
  dtype = next(iter(parameters.values())).dtype
  paths: dict[str, list[str]] = {path: [path] for path in parameters}
  if scan_layers:
    model = model.clone(scan_layers=True)
    paths = {path: layer_paths(path, model.num_layers)
             for path in named(abstract_params(model))}
  shape_of = lambda path, of: jax.ShapeDtypeStruct(
      (*(len(of),) * is_stacked(path), *parameters[of[0]].shape), dtype)
  expected = nested({path: shape_of(path, of) for path, of in paths.items()})
  if callable(shardings):
    shardings = shardings(expected)
  if shardings is None:
    shardings = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  if isinstance(shardings, jax.sharding.Sharding):
    one = shardings
    shardings = jax.tree.map(lambda _: one, expected)
  elif not isinstance(shardings, Mapping):
    raise ValueError('shardings must have the structure of the parameters: '
                     f'{type(shardings)}')
  elif set(shardings) == {'params'}:
    shardings = shardings['params']
  placed = named(shardings)
  if placed.keys() != paths.keys():
    odd = sorted(placed.keys() ^ paths.keys())[0]
    raise ValueError(f'shardings do not match the parameters: {odd}')
  read = functools.partial(
      loading.read_to_devices, dtype=dtype,
      transposed=set(filter(is_transposed, parameters)))
  alone = [path for path in paths if not is_stacked(path)]
  loaded = read({path: tensors[hub_name(path)] for path in alone},
                {path: placed[path] for path in alone})
  for path in filter(is_stacked, paths):  # in the same order in all processes
    layers = read({of: tensors[hub_name(of)] for of in paths[path]},
                  dict.fromkeys(paths[path], loading.of_one_layer(placed[path])))
    loaded[path] = loading.stack(layers.values(), placed[path])
  return model, {'params': nested({path: loaded[path] for path in paths})}


def read_model(folder: epath.PathLike) -> Llama:
  """Returns the model of a checkpoint, from its config.json alone.

  Raises:
    FileNotFoundError: if there is no config.json.
    ValueError: as `load_checkpoint`, naming the file.
  """
  path = local_folder(folder) / 'config.json'
  if not path.exists():
    why = 'it has no config.json' if path.parent.exists() else 'it does not exist'
    raise FileNotFoundError(f'{folder} is not a checkpoint: {why}')
  config = read_json(path)
  try:
    return model_of(config)
  except RecursionError as error:
    raise ValueError(f'{path} is nested too deeply') from error
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error


def check_checkpoint(folder: epath.PathLike, *, dtype: Any = None) -> None:
  """Raises the errors of `load_checkpoint`, without reading the contents of tensors.

  Only tied embeddings that are both in the files are read, to be compared.
  """
  _whole(epath.Path(folder), dtype)


def _whole(
    folder: epath.Path, dtype: Any
) -> tuple[Llama, dict[str, Tensor], dict[str, jax.ShapeDtypeStruct]]:
  """Returns a checkpoint's model, the tensors in its files, and the model's parameters.

  The parameters are shapes by path, with the dtype in which they will be loaded.

  Raises:
    FileNotFoundError: as `load_checkpoint`.
    ValueError: as `load_checkpoint`.
  """
  folder = local_folder(folder)
  model = read_model(folder)
  tensors = safetensors_file.read_headers(folder)
  if model.num_layers > len(tensors):
    raise ValueError(f'{folder} has {len(tensors)} tensors, too few for the '
                     f'{model.num_layers} layers in its config.json')
  parameters = named(abstract_params(model))
  _check_tensors(folder, model, parameters, tensors, dtype)
  if dtype is None:
    dtype = safetensors_file.dtype_of(tensors['model.embed_tokens.weight'])
  dtype = _float_dtype(dtype)
  return model, tensors, {
      path: jax.ShapeDtypeStruct(x.shape, dtype) for path, x in parameters.items()}


def ends_of(folder: epath.PathLike) -> tuple[int, ...]:
  """Returns the tokens that end a text, as files of a checkpoint name them.

  Args:
    folder: in hub layout, local or gs://.

  Returns:
    `eos_token_id` of generation_config.json, or else of config.json; () if neither has
    it.

  Raises:
    ValueError: if a file is not a JSON object, or the field is not whole numbers.
  """
  for name in ('generation_config.json', 'config.json'):
    path = epath.Path(folder) / name
    if path.exists() and (found := read_json(path).get('eos_token_id')) is not None:
      ends = found if isinstance(found, list) else [found]
      if not all(isinstance(x, int) and not isinstance(x, bool) for x in ends):
        raise ValueError(f'{path}: eos_token_id must be whole numbers: {found!r}')
      return tuple(ends)
  return ()


def abstract_params(model: Llama) -> Any:
  """Returns the parameters of a model as jax.ShapeDtypeStructs."""
  tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  key = jax.eval_shape(jax.random.key, 0)
  # Only one layer is traced, since all have the same parameters.
  params = jax.eval_shape(model.clone(num_layers=1).init, key, tokens)['params']
  if model.scan_layers:
    deep = lambda x: jax.ShapeDtypeStruct((model.num_layers, *x.shape[1:]), x.dtype)
    return {**params, STACK: jax.tree.map(deep, params[STACK])}
  layers = {f'layer_{i}': params['layer_0'] for i in range(model.num_layers)}
  return {**params, **layers}


def _check_tensors(
    folder: epath.Path,
    model: Llama,
    parameters: dict[str, Any],
    tensors: dict[str, Tensor],
    dtype: Any,
) -> None:
  """Raises ValueError unless the tensors match the model's parameters."""
  wanted = {hub_name(path): x.shape[::-1] if is_transposed(path) else x.shape
            for path, x in parameters.items()}
  for name, shape in wanted.items():
    if name not in tensors:
      raise ValueError(f'{folder} has no {name}, which its config.json requires')
    if tensors[name].shape != shape:
      raise ValueError(f'{tensors[name].path}: {name} is {tensors[name].shape}, but '
                       f'config.json requires {shape}')
    safetensors_file.dtype_of(tensors[name])  # raises if it is not supported
  spare = {name for name in tensors if name not in wanted
           and not name.endswith('rotary_emb.inv_freq')
           and not (model.tied and name == REST['output_embedding'])}
  if spare:
    raise ValueError(f'{folder} has {sorted(spare)[0]}, which is not part of the model '
                     'that its config.json describes')
  table, output = (tensors.get(REST[x]) for x in ('embedding', 'output_embedding'))
  if model.tied and table and output and not safetensors_file.same(table, output):
    raise ValueError(f'{output.path}: {output.name} differs from {table.name}, but '
                     'config.json says that the two are tied')
  kinds: dict[str, str] = {}
  for name in wanted:
    kinds.setdefault(tensors[name].dtype, name)
  if len(kinds) > 1 and dtype is None:
    (one, first), (other, second) = list(kinds.items())[:2]
    raise ValueError(f'{folder}: {first} is {one}, {second} is {other}; choose one '
                     'dtype for all: load_checkpoint(…, dtype=…)')


def _float_dtype(dtype: Any) -> np.dtype:
  """Returns a dtype of parameters, or raises ValueError if it cannot be one."""
  try:
    found = np.dtype(dtype)
  except TypeError as error:
    raise ValueError(f'unknown dtype: {dtype!r}') from error
  if not jnp.issubdtype(found, jnp.floating):
    raise ValueError(f'dtype must be a floating-point dtype: {found}')
  if jax.dtypes.canonicalize_dtype(found) != found:
    raise ValueError(f'{found} needs jax_enable_x64, or load_checkpoint(…, dtype=…)')
  return found
