"""Seeds as an axis: a function of one seed, mapped over seeds and devices."""

from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
import functools
from typing import Any

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from vvlen.sharding import memory, padding

_SEEDS = PartitionSpec('seed')


def seed_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
  """Returns a mesh of one axis, 'seed', over all devices of all processes, or these."""
  # Auto lets the compiler follow the arguments; jax's default, Explicit, would ask
  # for shardings inside the mapped function.
  # In the order of devices, not by jax.make_mesh, which refuses several slices: seeds
  # do not communicate, so any order is as fast.
  devices = jax.devices() if devices is None else devices
  return Mesh(np.array(devices), ('seed',), axis_types=(AxisType.Auto,))


def over_seeds(
    function: Callable[..., Any],
    mesh: Mesh,
    group_size: int = 1,
    donate: tuple[int, ...] = (),
    shared: int = 0,
    limit: int | None = None,
) -> Callable[..., Any]:
  """Compiles a function of one seed into one over a leading axis of seeds.

  The seeds are divided among the devices of the mesh. Each device runs its seeds in
  groups: groups one after the other, the seeds of a group together by vmap. Nothing
  crosses devices, and the result of a group does not depend on how many other groups
  there are.

  Args:
    function: of arrays that belong to one seed, returning a pytree of arrays.
    mesh: with the axis 'seed'.
    group_size: the most seeds in a group. A device's groups are equal, and as few as
      this allows (`padding.group_of`) if they fit into memory; `padding.put` needs the
      same group_size. A group of 1 uses no vmap: each seed is then computed as by the
      plain function under jit, bit for bit; on a CPU that is also the fastest. Three
      things may change the last bits of a result: the size of its group; whether its
      device has one group, for which the compiler needs no loop, or several; and
      whether there is one device or several. With several, the compiler treats large
      constants of the function differently: pass them as arguments.
    donate: positions of arguments whose memory the result may reuse.
    shared: the number of arguments, counted from the first, that all seeds share.
    limit: MiB that the function may use of a device; None: nine tenths of its memory,
      or any amount on a CPU. Groups that need more are halved, and a line is printed
      (`vvlen.sharding.memory`).

  Returns:
    A jit-compiled function. Its arguments, except those shared, and its results have a
    leading axis of seeds, a multiple of the number of devices: see `padding.put`.

  Raises:
    ValueError: if group_size is not positive.
  """
  padding.group_of(1, group_size)  # checks it

  def of_group(group_size):
    def local(same, own):
      group = padding.group_of(len(jax.tree.leaves(own)[0]), group_size)
      batch = None if group == 1 else group
      return jax.lax.map(lambda one: function(*same, *one), own, batch_size=batch)

    # check_vma off: a loop inside may start from constants, which are not sharded.
    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=(PartitionSpec(), _SEEDS), out_specs=_SEEDS,
        check_vma=False,
    )
    run = lambda *arguments: mapped(arguments[:shared], arguments[shared:])
    return jax.jit(run, donate_argnums=donate)

  if limit is None:
    limit = memory.memory_limit(mesh) if group_size > 1 else None
  if limit is None:
    return of_group(group_size)
  return memory.Fitting(of_group, group_size, mesh, shared, limit)


def compile_together(functions: Iterable[Any], *arguments: Any) -> None:
  """Compiles several functions for the same arguments in parallel, on a CPU.

  A CPU core compiles one program at a time, so two cores compile two programs in the
  time of one. A later call with arguments of these shapes, on these devices, compiles
  nothing. Does nothing on an accelerator: its compiler times programs on the device,
  which should then do nothing else.

  Args:
    functions: jit-compiled functions, such as `over_seeds` returns.
    arguments: the arguments of every function.
  """
  if jax.default_backend() != 'cpu':
    return
  with futures.ThreadPoolExecutor(jax.local_device_count()) as pool:
    waiting = [pool.submit(f.lower(*arguments).compile) for f in functions]
  for program in waiting:
    program.result()


def interleave(trees: Sequence[Any]) -> Any:
  """Joins trees of seeds so that what belongs to one seed stays on one device.

  Args:
    trees: R pytrees of arrays [S, ...], of the same shapes.

  Returns:
    A pytree of arrays [S·R, ...]; row s·R + r is seed s of tree r.
  """
  return trees[0] if len(trees) == 1 else _interleave(trees)


def separate(tree: Any, count: int) -> list[Any]:
  """Undoes `interleave` of `count` trees."""
  return [tree] if count == 1 else _separate(tree, count)


@jax.jit
def _interleave(trees):
  join = lambda *x: jnp.stack(x, axis=1).reshape(-1, *x[0].shape[1:])
  return jax.tree.map(join, *trees)


@functools.partial(jax.jit, static_argnums=1)
def _separate(tree, count):
  part = lambda x, r: x.reshape(-1, count, *x.shape[1:])[:, r]
  return [jax.tree.map(functools.partial(part, r=r), tree) for r in range(count)]


def whole(mesh: Mesh) -> NamedSharding:
  """Returns the sharding that replicates an array on all devices of the mesh."""
  return NamedSharding(mesh, PartitionSpec())


def fetch(tree: Any) -> Any:
  """Returns arrays with a leading axis of seeds as numpy, on every process."""
  if jax.process_count() > 1:
    return multihost_utils.process_allgather(tree, tiled=True)
  return jax.tree.map(np.asarray, tree)
