"""How a language model is shared out over devices: one mesh, and one rule a parameter.

The mesh has three axes. Rows of a batch go over `data` and `fsdp`; parameters, and what
an optimizer keeps of each, over `fsdp`, which gathers a layer's when it is computed,
and `tensor`, over which heads, hidden features of MLPs and words are computed apart:

  embedding, output_embedding [V, d]            (tensor, fsdp)
  kernels [outputs, inputs] that lead out of the stream   (tensor, fsdp)
  kernels that lead back                        (fsdp, tensor)
  scales and biases                             whole on every device

Kernels of `vvlen.models.decoder`, as of all nn.Dense, are [inputs, outputs].
"""

from collections.abc import Callable
import re
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

AXES = ('data', 'fsdp', 'tensor')
# Over which the rows of a batch are shared out.
ROWS = PartitionSpec(('data', 'fsdp'))

_IN, _OUT = ('tensor', 'fsdp'), ('fsdp', 'tensor')
# The end of a parameter's path -> the axes of the mesh; the first that fits. Of
# `vvlen.models.llama.model`, then of `vvlen.models.decoder`.
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r'layer_\d+/(query|key|value|gate|up)/kernel', _IN),
    (r'layer_\d+/(output|down)/kernel', _OUT),
    (r'(output_)?embedding', _IN),
    (r'decoder/layer_\d+/(query|key|value|mlp_hidden)/kernel', _OUT),
    (r'decoder/layer_\d+/(output|mlp_output)/kernel', _IN),
    (r'decoder/embedding', _IN),
    (r'decoder/position_embedding', (None, 'fsdp')),
    (r'.*/(scale|bias)', ()),
)


def make_mesh(data: int = 1, fsdp: int = 1, tensor: int = 1) -> Mesh:
  """Returns a mesh of all devices of all processes.

  Args:
    data: devices that hold the same parameters; -1: all that are left.
    fsdp: over which each parameter is cut.
    tensor: over which each layer is.

  Raises:
    ValueError: if their product is not the number of devices.
  """
  sizes, count = [data, fsdp, tensor], jax.device_count()
  if sizes.count(-1) == 1:
    others = int(np.prod([size for size in sizes if size != -1]))
    if others > 0:
      sizes[sizes.index(-1)] = count // others
  if min(sizes) < 1 or int(np.prod(sizes)) != count:
    wanted = ' x '.join(f'{n} {s}' for n, s in zip(
        AXES, (data, fsdp, tensor), strict=True))
    raise ValueError(f'a mesh of {wanted} does not have the {count} devices there are')
  return jax.make_mesh(tuple(sizes), AXES, axis_types=(AxisType.Auto,) * 3)


def rule_of(path: str) -> tuple[str | None, ...]:
  """Returns the axes of a parameter, such as 'layer_0/query/kernel'.

  Raises:
    ValueError: if no rule is made for it.
  """
  for pattern, axes in RULES:
    if re.fullmatch(pattern, path):
      return axes
  raise ValueError(f'no partition rule for the parameter {path!r}')


def shardings(params: Any, mesh: Mesh) -> Any:
  """Returns the sharding of each parameter.

  Args:
    params: of one of the models above, nested by name: arrays or ShapeDtypeStructs.
    mesh: of `make_mesh`.

  Returns:
    A NamedSharding for each.

  Raises:
    ValueError: if an axis of the mesh does not divide a parameter, or there is no rule
      for one.
  """

  def one(path, x):
    name = '/'.join(key.key for key in path)
    axes = rule_of(name)
    for size, axis in zip(x.shape, axes, strict=False):
      if axis is not None and size % mesh.shape[axis]:
        raise ValueError(
            f'mesh axis {axis} of {mesh.shape[axis]} devices does not divide the '
            f'parameter {name} {tuple(x.shape)}'
        )
    return NamedSharding(mesh, PartitionSpec(*axes))

  return jax.tree_util.tree_map_with_path(one, params)


def shardings_of_state(state: Any, params: Any, mesh: Mesh) -> Any:
  """Returns the sharding of all that training changes.

  Args:
    state: a pytree of arrays or ShapeDtypeStructs, such as `vvlen.training.step`'s
      TrainState. What stands in it for parameters, as moments of an optimizer do, has
      their names and shapes and is shared out alike; all else is whole everywhere.
    params: as in `shardings`.
    mesh: of `make_mesh`.
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
  """Keeps the rows of x [B, ...] on the devices of `data` and `fsdp`.

  For what stands between the layers of a model, so that XLA gathers weights and not
  rows. Does nothing without a mesh that has these axes (jax.set_mesh).
  """
  return _constrain(x, ('data', 'fsdp'))


def gathered(table: jax.Array) -> jax.Array:
  """Gathers the rows of an embedding [V, d], which stays cut by words over `tensor`.

  So that looking words up leaves each device the rows of its own batch. Does nothing
  without a mesh that has this axis.
  """
  return _constrain(table, ('tensor',))


def over_heads(
    attend: Callable[..., jax.Array],
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
) -> jax.Array:
  """Returns attend(queries, keys, values), each device by its own rows and heads.

  XLA cannot share out the attention kernels of TPUs itself. Calls `attend` as it is
  without a mesh that has the three axes (jax.set_mesh), and where they do not divide
  rows and heads.

  Args:
    attend: to [B, n, h, d], and of each row and key head apart.
    queries: [B, n, h, d].
    keys: [B, n, k, d].
    values: [B, n, k, d].
  """
  mesh = jax.sharding.get_abstract_mesh()
  if not set(AXES) <= set(mesh.auto_axes) or mesh.size == 1:
    return attend(queries, keys, values)
  rows = mesh.shape['data'] * mesh.shape['fsdp']
  if queries.shape[0] % rows or keys.shape[2] % mesh.shape['tensor']:
    return attend(queries, keys, values)
  spec = PartitionSpec(ROWS[0], None, 'tensor')
  # What a kernel varies over is not known to JAX.
  apart = jax.shard_map(attend, in_specs=spec, out_specs=spec, check_vma=False)
  return apart(queries, keys, values)


def _constrain(x, names):
  mesh = jax.sharding.get_abstract_mesh()
  axes = tuple(name for name in names if name in mesh.auto_axes)
  return jax.lax.with_sharding_constraint(x, PartitionSpec(axes)) if axes else x
