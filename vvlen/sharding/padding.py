"""Any number of seeds on any number of devices: the last seed is repeated to fill them.

All devices have equally many rows. S seeds on D devices have

  rows per device  n = g ceil(ceil(S / D) / g),  in groups of  g  seeds by vmap
  rows in all      D n,  of which the last D n - S repeat the last seed

The repeated rows are computed, but never reported or saved.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

_SEEDS = PartitionSpec('seed')


def group_of(rows: int, group_size: int) -> int:
  """Returns the size of a device's groups of rows.

  The groups are equal, and as few as group_size allows.

  Args:
    rows: of one device.
    group_size: the most rows in a group.

  Raises:
    ValueError: if group_size is not positive.
  """
  if group_size < 1:
    raise ValueError(f'group_size must be positive: {group_size}')
  return math.ceil(rows / math.ceil(rows / group_size))


def padded(num_seeds: int, num_devices: int, group_size: int = 1) -> int:
  """Returns the number of rows of `num_seeds` seeds, D n above.

  Raises:
    ValueError: if num_seeds or group_size is not positive.
  """
  if num_seeds < 1:
    raise ValueError(f'num_seeds must be positive: {num_seeds}')
  rows = math.ceil(num_seeds / num_devices)
  group = group_of(rows, group_size)
  return num_devices * group * math.ceil(rows / group)


def put(tree: Any, mesh: Mesh, group_size: int = 1) -> Any:
  """Places arrays with a leading axis of seeds on the devices of the mesh.

  Args:
    tree: a pytree of arrays [S, ...], the same in all processes.
    mesh: with the axis 'seed'.
    group_size: the most seeds that a device runs together.

  Returns:
    The same with `padded` rows: the rows after the first S repeat the last one.

  Raises:
    ValueError: if there are no seeds, or group_size is not positive.
  """
  count = len(jax.tree.leaves(tree)[0])
  if extra := padded(count, mesh.size, group_size) - count:
    tree = _repeat_last(tree, extra)
  place = functools.partial(_place, sharding=NamedSharding(mesh, _SEEDS))
  return jax.tree.map(place, tree)


def cut(tree: Any, count: int, mesh: Mesh) -> Any:
  """Undoes the padding of `put`: returns the first `count` rows.

  If rows are cut off, every device gets all rows that remain, because JAX shards arrays
  only into equal parts.
  """
  if len(jax.tree.leaves(tree)[0]) == count:
    return tree
  return _first(count, mesh)(tree)


def _place(x, sharding):
  """Places an array; if each process holds all of it, each places its own part."""
  everywhere = not isinstance(x, jax.Array) or x.is_fully_addressable
  if sharding.is_fully_addressable or not everywhere:
    return jax.device_put(x, sharding)
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):  # numpy has no keys
    data = _place(jax.random.key_data(x), sharding)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
  whole = np.asarray(x)
  return jax.make_array_from_callback(whole.shape, sharding, lambda part: whole[part])


@functools.partial(jax.jit, static_argnums=1)
def _repeat_last(tree, extra):
  return jax.tree.map(
      lambda x: jnp.concatenate([x, jnp.repeat(x[-1:], extra, axis=0)]), tree)


@functools.cache
def _first(count, mesh):
  first = lambda tree: jax.tree.map(lambda x: x[:count], tree)
  return jax.jit(first, out_shardings=NamedSharding(mesh, PartitionSpec()))
