"""How a language model is sharded over devices: one mesh, and one rule per parameter.

The mesh has three axes. Rows of a batch are sharded over `data` and `fsdp`. Parameters,
and the optimizer's moments of them, are sharded over two axes: `fsdp`, over which the
parameters of a layer are gathered when it is computed, and `tensor`, each device of
which computes its own heads, hidden features of MLPs and words:

  embedding, output_embedding [V, d]                       (tensor, fsdp)
  kernels [inputs, outputs] that read the residual stream  (fsdp, tensor)
  kernels [inputs, outputs] that write to it               (tensor, fsdp)
  scales, biases, and the matrices of CLEX                 replicated

An array that shares only one axis with a kernel, such as a low-rank adapter A [inputs,
rank] or B [rank, outputs], is sharded along this axis over both axes of the mesh.
"""

from collections.abc import Callable, Sequence
import math
import re
from typing import Any

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

AXES = ('data', 'fsdp', 'tensor')
# How the rows of a batch are sharded.
ROWS = PartitionSpec(('data', 'fsdp'))

# For each axis of a parameter, an axis of the mesh, several, or None.
Axes = tuple[str | tuple[str, ...] | None, ...]

_READS, _WRITES = ('fsdp', 'tensor'), ('tensor', 'fsdp')
# For the parameters of a layer of `vvlen.models.llama`. Adapter A shares the inputs of
# the kernel; adapter B, and the scales of a quantized kernel, share its outputs.
_LAYER: tuple[tuple[str, Axes], ...] = (
    (r'(query|key|value|gate|up)/kernel(/array/qvalue)?', _READS),
    (r'(query|key|value|gate|up)/kernel_lora_a', (('fsdp', 'tensor'), None)),
    (r'(query|key|value|gate|up)/kernel(_lora_b|/array/scale)',
     (None, ('tensor', 'fsdp'))),
    (r'(output|down)/kernel(/array/qvalue)?', _WRITES),
    (r'(output|down)/kernel_lora_a', (('tensor', 'fsdp'), None)),
    (r'(output|down)/kernel(_lora_b|/array/scale)', (None, ('fsdp', 'tensor'))),
)
# A pattern of a parameter's path -> its axes; the first match counts. First for
# `vvlen.models.llama.model`, then for `vvlen.models.decoder`.
RULES: tuple[tuple[str, Axes], ...] = (
    *((rf'layer_\d+/{pattern}', axes) for pattern, axes in _LAYER),
    *((f'layers/{pattern}', (None, *axes)) for pattern, axes in _LAYER),
    (r'(output_)?embedding', ('tensor', 'fsdp')),
    (r'decoder/layer_\d+/(query|key|value|mlp_hidden)/kernel', _READS),
    (r'decoder/layer_\d+/(output|mlp_output)/kernel', _WRITES),
    (r'decoder/embedding', ('tensor', 'fsdp')),
    (r'decoder/position_embedding', (None, 'fsdp')),
    (r'.*/(scale|bias)|clex_(up|down)', ()),
)


def row_ways(mesh: Mesh | jax.sharding.AbstractMesh) -> int:
  """Returns the number of parts into which a mesh divides the rows of a batch.

  Args:
    mesh: axes that it lacks count as 1.
  """
  return math.prod(mesh.shape.get(axis, 1) for axis in ROWS[0])


def filled(num_rows: int, mesh: Mesh | jax.sharding.AbstractMesh) -> int:
  """Returns the least number of rows, from num_rows on, that a mesh divides."""
  ways = row_ways(mesh)
  return math.ceil(num_rows / ways) * ways


def make_mesh(data: int = 1, fsdp: int = 1, tensor: int = 1) -> Mesh:
  """Returns a mesh of all devices of all processes.

  On several TPU slices, which a slow network connects, `data` goes over the slices.

  Args:
    data: the number of copies of the parameters. One of the three sizes may be -1, for
      all devices that are left.
    fsdp: the number of devices over which parameters are stored in parts.
    tensor: the number of devices over which each layer is computed in parts.

  Raises:
    ValueError: if the product of the sizes is not the number of devices, or the number
      of slices does not divide `data`.
  """
  return mesh_of(jax.devices(), axis_sizes(jax.device_count(), data, fsdp, tensor))


def axis_sizes(
    count: int, data: int, fsdp: int, tensor: int
) -> tuple[int, int, int]:
  """Returns the sizes of the axes of a mesh of a number of devices, without a -1.

  Args:
    count: of the devices.
    data: as in `make_mesh`.
    fsdp: as in `make_mesh`.
    tensor: as in `make_mesh`.

  Raises:
    ValueError: if the product of the sizes is not the number of devices.
  """
  sizes = [data, fsdp, tensor]
  if sizes.count(-1) == 1:
    others = int(np.prod([size for size in sizes if size != -1]))
    if others > 0:
      sizes[sizes.index(-1)] = count // others
  if min(sizes) < 1 or int(np.prod(sizes)) != count:
    wanted = ' x '.join(f'{n} {s}' for n, s in zip(
        AXES, (data, fsdp, tensor), strict=True))
    raise ValueError(f'a mesh of {wanted} does not fit the number of devices, {count}')
  return sizes[0], sizes[1], sizes[2]


def mesh_of(devices: Sequence[jax.Device], sizes: tuple[int, int, int]) -> Mesh:
  """Returns a mesh of devices; `make_mesh` says how its axes are placed."""
  types = (AxisType.Auto,) * 3
  slices = len({getattr(device, 'slice_index', 0) for device in devices})
  if slices == 1:
    return jax.make_mesh(sizes, AXES, axis_types=types, devices=devices)
  data, *others = sizes
  if data % slices:
    raise ValueError(
        f'config.mesh.data {data} is not a multiple of the {slices} slices')
  placed = mesh_utils.create_hybrid_device_mesh(
      (data // slices, *others), (slices, 1, 1), devices)
  return Mesh(placed, AXES, axis_types=types)


def rule_of(path: str) -> Axes:
  """Returns the mesh axes of the parameter at a path, such as 'layer_0/query/kernel'.

  Raises:
    ValueError: if no rule matches.
  """
  for pattern, axes in RULES:
    if re.fullmatch(pattern, path):
      return axes
  raise ValueError(f'no partition rule for the parameter {path!r}')


def shardings(params: Any, mesh: Mesh) -> Any:
  """Returns the sharding of each parameter.

  Args:
    params: parameters of a model in `RULES`, arrays or ShapeDtypeStructs in nested
      dictionaries.
    mesh: from `make_mesh`.

  Returns:
    The same tree, with a NamedSharding for each parameter. If a rule names two axes of
    the mesh for one axis of a parameter, and their product does not divide it, only the
    first is used.

  Raises:
    ValueError: if an axis of the mesh does not divide a parameter, or there is no rule
      for one.
  """

  def one(path, x):
    name = '/'.join(getattr(key, 'key', None) or key.name for key in path)
    axes: list[str | tuple[str, ...] | None] = []
    for size, axis in zip(x.shape, rule_of(name), strict=False):
      if isinstance(axis, tuple) and size % math.prod(mesh.shape[a] for a in axis):
        axis = axis[0]
      if isinstance(axis, str) and size % mesh.shape[axis]:
        raise ValueError(
            f'mesh axis {axis} of {mesh.shape[axis]} devices does not divide the '
            f'parameter {name} {tuple(x.shape)}'
        )
      axes.append(axis)
    return NamedSharding(mesh, PartitionSpec(*axes))

  return jax.tree_util.tree_map_with_path(one, params)


def shardings_of_state(state: Any, params: Any, mesh: Mesh) -> Any:
  """Returns the sharding of a training state: parameters and all that goes with them.

  Args:
    state: a pytree of arrays or ShapeDtypeStructs, such as `vvlen.training.step`'s
      TrainState. An entry whose path ends in the path of a parameter and that has its
      shape, such as a moment of an optimizer, is sharded as the parameter; all other
      entries are replicated.
    params: as in `shardings`.
    mesh: from `make_mesh`.
  """
  rules = shardings(params, mesh)
  by_path = {
      tuple(key.key for key in path): (x.shape, rule)
      for (path, x), rule in zip(
          jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(rules),
          strict=True,
      )
  }
  longest = max(map(len, by_path))

  def one(path, x):
    names = tuple(getattr(key, 'key', None) for key in path)
    for length in range(min(longest, len(names)), 0, -1):
      shape, rule = by_path.get(names[-length:], (None, None))
      if shape == x.shape:
        return rule
    return NamedSharding(mesh, PartitionSpec())

  return jax.tree_util.tree_map_with_path(one, state)


def over_batch(x: jax.Array) -> jax.Array:
  """Keeps the rows of x [B, ...] sharded over `data` and `fsdp`.

  For activations between the layers of a model, so that XLA gathers weights and not
  rows. Does nothing without a mesh that has these axes (jax.set_mesh).
  """
  return _constrain(x, ('data', 'fsdp'))


def over_tokens(x: jax.Array) -> jax.Array:
  """Keeps x [B, n, d] sharded by rows as `over_batch`, and by tokens over `tensor`.

  For the residual stream that is kept for gradients: otherwise every device of the axis
  `tensor` would keep a copy. If the axis does not divide the tokens, they are not
  sharded. Does nothing without a mesh that has these axes (jax.set_mesh).
  """
  mesh = jax.sharding.get_abstract_mesh()
  if 'tensor' not in mesh.auto_axes or x.shape[1] % mesh.shape['tensor']:
    return over_batch(x)
  rows = tuple(name for name in ('data', 'fsdp') if name in mesh.auto_axes)
  return jax.lax.with_sharding_constraint(x, PartitionSpec(rows, 'tensor'))


def gathered(table: jax.Array) -> jax.Array:
  """Gathers the columns of an embedding [V, d]; its words stay sharded over `tensor`.

  Then a lookup of words leaves each device with the rows of its own batch. Does nothing
  without a mesh that has the axis `tensor` (jax.set_mesh).
  """
  return _constrain(table, ('tensor',))


def over_heads(
    attend: Callable[..., jax.Array],
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    slopes: jax.Array | None = None,
    positions: jax.Array | None = None,
) -> jax.Array:
  """Returns attend(queries, keys, values); each device computes its own rows and heads.

  XLA cannot shard the attention kernels of TPUs by itself. Calls `attend` directly if
  there is no mesh with the three axes (jax.set_mesh), or if they do not divide rows and
  heads.

  Args:
    attend: returns [B, n, h, d]; it must treat rows and key heads independently.
    queries: [B, n, h, d].
    keys: [B, n, k, d].
    values: [B, n, k, d].
    slopes: [h], passed to `attend` by name if they are given.
    positions: [n] or [B, n], likewise.
  """
  more = {name: x for name, x in (('slopes', slopes), ('positions', positions))
          if x is not None}
  mesh = jax.sharding.get_abstract_mesh()
  if not set(AXES) <= set(mesh.auto_axes) or mesh.size == 1:
    return attend(queries, keys, values, **more)
  rows = row_ways(mesh)
  if queries.shape[0] % rows or keys.shape[2] % mesh.shape['tensor']:
    return attend(queries, keys, values, **more)
  spec = PartitionSpec(ROWS[0], None, 'tensor')
  by_row = ROWS if positions is not None and positions.ndim == 2 else PartitionSpec()
  specs = {'slopes': PartitionSpec('tensor'), 'positions': by_row}
  # check_vma off: JAX does not know over which axes the result of a kernel varies.
  apart = jax.shard_map(
      lambda *heads: attend(*heads[:3], **heads[3]),
      in_specs=(spec, spec, spec, {name: specs[name] for name in more}),
      out_specs=spec, check_vma=False)
  return apart(queries, keys, values, more)


def _constrain(x, names):
  mesh = jax.sharding.get_abstract_mesh()
  axes = tuple(name for name in names if name in mesh.auto_axes)
  return jax.lax.with_sharding_constraint(x, PartitionSpec(axes)) if axes else x
