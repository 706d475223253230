"""Low-rank adapters (LoRA, arXiv 2106.09685) of `Llama`, over quantized weights or not.

  y = x W + (alpha / rank) · dropout(x) A B

W [inputs, outputs] is frozen; A [inputs, rank] and B [rank, outputs] are trained. B
starts at 0, so that training starts from the plain model. Both are parameters beside W,
named `kernel_lora_a` and `kernel_lora_b`; with `scan_layers` all layers are in one
array, [layers, inputs, rank] and [layers, rank, outputs]. The adapters are those of
qwix: pip install 'vvlen[lora]'.

  lora = LONG_QLORA
  params = add_adapters(model, lora, variables['params'], jax.random.key(0))
  trained, frozen = split(lora, params)
  adapted = with_adapters(model, lora, training=True)

  def loss(trained, frozen, tokens, key):
    params = join(trained, frozen)
    logits = adapted.apply({'params': params}, tokens, rngs={'dropout': key})
    …

Only `trained` has gradients and an optimizer state. After training, predict with
`with_adapters(model, lora)`; `merged` returns parameters of the plain model, and
`vvlen.models.llama.adapters` saves the adapters.

W is quantized to 'nf4', in blocks of 64 inputs with a scale each (QLoRA, arXiv
2305.14314; one scale for each output where 64 does not divide the inputs), or to
'int8', with a scale for each output. Scales have the dtype of W.
QLoRA also quantizes the scales, and pages the optimizer's state to the host; qwix can
do neither, so a weight takes 4 bits and 1/64 of a scale.
"""

from collections.abc import Mapping
import dataclasses
import functools
import importlib
import math
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import jax.numpy as jnp

from vvlen.models.llama.checkpoint import abstract_params
from vvlen.models.llama.model import Llama
from vvlen.models.llama.names import is_stacked

# Projections of a layer that can have adapters: all, and those of attention alone.
LINEAR = ('query', 'key', 'value', 'output', 'gate', 'up', 'down')
ATTENTION = ('query', 'key', 'value', 'output')
# Other parameters that LongLoRA trains.
EMBEDDINGS_AND_NORMS = ('embedding', 'attention_norm', 'mlp_norm', 'final_norm')
QUANTIZED = (None, 'nf4', 'int8')
_BLOCK = 64  # inputs of a kernel that share a scale, with nf4
_A, _B = '_lora_a', '_lora_b'


@dataclasses.dataclass(frozen=True)
class Lora:
  """What is trained, and how.

  Attributes:
    rank: of A and B, smaller than the numbers of inputs and outputs.
    alpha: the product of A and B is multiplied by alpha / rank.
    dropout: the share of inputs of A that are 0 in training.
    targets: names of the projections with adapters, from `LINEAR`.
    quantized: the type of the kernels of all projections: 'nf4', 'int8', or None for no
      quantization. Embeddings and norms stay as they are.
    also: names of parameters that are trained besides the adapters, or of modules all
      of whose parameters are, such as `EMBEDDINGS_AND_NORMS`.
  """

  rank: int
  alpha: float
  dropout: float = 0.0
  targets: tuple[str, ...] = LINEAR
  quantized: str | None = None
  also: tuple[str, ...] = ()


# arXiv 2311.04879 without double quantization, and arXiv 2309.12307.
LONG_QLORA = Lora(64, 16, dropout=0.05, quantized='nf4')
LONG_LORA = Lora(8, 16, targets=ATTENTION, also=EMBEDDINGS_AND_NORMS)


def check(model: Llama, lora: Lora) -> None:
  """Raises ValueError unless the adapters fit the model."""
  if not lora.targets or set(lora.targets) - set(LINEAR):
    raise ValueError(f'targets must name one or more of {", ".join(LINEAR)}: '
                     f'{lora.targets}')
  if lora.quantized not in QUANTIZED:
    raise ValueError(f'quantized must be None, nf4 or int8: {lora.quantized!r}')
  if not 0 < lora.alpha < math.inf:
    raise ValueError(f'alpha must be positive and finite: {lora.alpha}')
  if not 0 <= lora.dropout < 1:
    raise ValueError(f'dropout must be in [0, 1): {lora.dropout}')
  for name in lora.targets:
    # Besides, qwix finds a kernel by its shape, so A and B must have other shapes.
    smallest = min(_sizes(model)[name])
    if not 0 < lora.rank < smallest:
      raise ValueError(f'rank must be positive and less than {smallest}, the smaller '
                       f'of the sizes of {name}: {lora.rank}')


def with_adapters(model: Llama, lora: Lora, *, training: bool = False) -> Llama:
  """Returns a model that applies the adapters.

  It is used as the model is, with the parameters of `add_adapters`. Its own `init`
  makes kernels of 0.

  Args:
    model: without adapters.
    lora: the adapters.
    training: whether there is dropout; `apply` then needs rngs={'dropout': key} if
      lora.dropout is not 0.

  Raises:
    ValueError: if the adapters do not fit the model, or qwix is not installed.
  """
  check(model, lora)
  qwix = _qwix()
  rules = []
  for name in LINEAR:
    inputs = _sizes(model)[name][0]
    tiled = lora.quantized == 'nf4' and inputs % _BLOCK == 0
    rule = {'module_path': f'(.*/)?{name}', 'weight_qtype': lora.quantized,
            'tile_size': _BLOCK if tiled else None}
    if name in lora.targets:
      dropout = lora.dropout if training else 0.0
      rules.append(qwix.LoraRule(
          rank=lora.rank, alpha=lora.alpha, dropout=dropout, **rule))
    elif lora.quantized:
      rules.append(qwix.QuantizationRule(**rule))
  plain = model.clone(kernel_init=_zeros)
  return qwix.apply_lora_to_model(
      plain, qwix.LoraProvider(rules),
      methods=('__call__', 'hidden', 'logits', 'prefill', 'step'))


def add_adapters(
    model: Llama,
    lora: Lora,
    params: Mapping[str, Any],
    key: jax.Array,
    shardings: Any = None,
) -> dict[str, Any]:
  """Returns the parameters of `with_adapters`: quantizes kernels and adds A and B.

  A is uniform in ±1/√inputs, B is 0; both are float32. The same key draws the same A
  with and without `scan_layers`.

  Args:
    model: without adapters.
    lora: the adapters.
    params: of the model, as initialized or loaded.
    key: for A.
    shardings: a pytree of jax.sharding.Sharding with the structure of the result, or a
      function that maps the result, as jax.ShapeDtypeStructs, to it, for example
      functools.partial(vvlen.sharding.mesh.shardings, mesh=mesh); None: where XLA puts
      the arrays.

  Raises:
    ValueError: as `with_adapters`, or if the parameters are not of the model.
  """
  abstract = abstract_params(with_adapters(model, lora))
  placed = shardings(abstract) if callable(shardings) else shardings or {}
  wanted, where = (flatten_dict(x, sep='/') for x in (abstract, placed))
  base = flatten_dict(params, sep='/')
  count = len(lora.targets) * (1 if model.scan_layers else model.num_layers)
  if (made := sum(map(is_adapter, wanted))) != 2 * count:
    raise ValueError(f'qwix made {made // 2} adapters, not {count}')
  expected = {path: x.shape for path, x in wanted.items() if not is_adapter(path)}
  if odd := expected.items() ^ {path: x.shape for path, x in base.items()}.items():
    path, shape = min(odd)
    raise ValueError(f'the parameters are not of the model: {path} {shape}')
  shapes = {path: x.shape for path, x in wanted.items() if is_adapter(path)}
  draw = lambda key: {path: _draw(path, shape, key) for path, shape in shapes.items()}
  found = jax.jit(draw, out_shardings={path: where.get(path) for path in shapes})(key)
  for path in base:
    x, place = wanted[path], where.get(path)
    if is_quantized(x):
      how = x.how
      quantize = _quantizer(
          how.qtype, tuple(how.channelwise_axes), tuple(how.tiled_axes.items()),
          is_stacked(path), None if place is None else place.array)
      found[path] = x.replace(array=quantize(base[path]))
    else:
      found[path] = base[path] if place is None else jax.device_put(base[path], place)
  return unflatten_dict(found, sep='/')


def split(
    lora: Lora, params: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns the parameters that are trained, and those that are frozen.

  Args:
    lora: the adapters.
    params: of `add_adapters`.

  Raises:
    ValueError: if a name in `lora.also` names no parameter, or one that is quantized.
  """
  flat = flatten_dict(params)
  trained = {path: x for path, x in flat.items()
             if is_adapter(path[-1]) or set(path) & set(lora.also)}
  for name in lora.also:
    if not any(name in path for path in flat):
      raise ValueError(f'no parameter is named {name!r}, of those to train besides the '
                       'adapters')
  if odd := ['/'.join(path) for path, x in trained.items() if is_quantized(x)]:
    raise ValueError(f'{odd[0]} is quantized, so it cannot be trained')
  frozen = {path: x for path, x in flat.items() if path not in trained}
  return unflatten_dict(trained), unflatten_dict(frozen)


def join(trained: Mapping[str, Any], frozen: Mapping[str, Any]) -> dict[str, Any]:
  """Undoes `split`."""
  return unflatten_dict({**flatten_dict(frozen), **flatten_dict(trained)})


def merged(lora: Lora, params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the parameters of the plain model: W + (alpha / rank) A B, of W's dtype.

  Quantized kernels are converted back, to the dtype of their scales. The result is what
  `save_checkpoint` saves, with the model without adapters.
  """
  flat = flatten_dict(params, sep='/')
  found = {}
  for path, x in flat.items():
    if is_adapter(path):
      continue
    if is_quantized(x):
      x = _qwix().dequantize(x.array)
    if path + _A in flat:
      product = jnp.matmul(flat[path + _A], flat[path + _B], precision='highest')
      wide = jnp.promote_types(x.dtype, jnp.float32)
      x = (x.astype(wide) + lora.alpha / lora.rank * product).astype(x.dtype)
    found[path] = x
  return unflatten_dict(found, sep='/')


def is_adapter(path: str) -> bool:
  """Whether a parameter is A or B of an adapter."""
  return path.endswith((_A, _B))


def is_quantized(x: Any) -> bool:
  """Whether a parameter is a kernel that qwix has quantized."""
  return hasattr(x, 'how')


def _zeros(key, shape, dtype):
  """Returns a kernel of 0, as a sum.

  To recognize a kernel that it has quantized, qwix follows an array back through
  operations of one argument, perhaps to another shape. A sum makes it stop.
  """
  del key
  zeros = jnp.zeros(shape, dtype)
  return zeros + zeros


def _draw(path, shape, key):
  """Returns A or B, with the layers' axis of `shape` if it has one."""
  if path.endswith(_B):
    return jnp.zeros(shape)
  layer, name, _ = path.split('/')
  key = jax.random.fold_in(key, LINEAR.index(name))
  bound = 1 / math.sqrt(shape[-2])
  one = lambda layer: jax.random.uniform(
      jax.random.fold_in(key, layer), shape[-2:], minval=-bound, maxval=bound)
  if is_stacked(path):
    return jax.vmap(one)(jnp.arange(shape[0]))
  return one(int(layer.removeprefix('layer_')))


@functools.cache  # compiles once for all kernels of a shape
def _quantizer(qtype, channels, tiles, stacked, place):
  """Returns the function that quantizes a kernel, one layer at a time if stacked."""
  quantize = functools.partial(
      _qwix().quantize, qtype=qtype, channelwise_axes=channels, tiled_axes=dict(tiles))
  each = functools.partial(jax.lax.map, quantize) if stacked else quantize
  return jax.jit(each, out_shardings=place)


def _sizes(model):
  """Returns {name of a projection: (inputs, outputs)}."""
  head = model.head_width or model.width // model.num_heads
  heads, keys = model.num_heads * head, model.num_key_heads * head
  return {
      'query': (model.width, heads), 'key': (model.width, keys),
      'value': (model.width, keys), 'output': (heads, model.width),
      'gate': (model.width, model.mlp_width), 'up': (model.width, model.mlp_width),
      'down': (model.mlp_width, model.width),
  }


def _qwix():
  try:
    return importlib.import_module('qwix')
  except ImportError as error:
    raise ValueError("adapters and quantized weights need a library: pip install "
                     "'vvlen[lora]'") from error
