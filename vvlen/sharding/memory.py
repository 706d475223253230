"""Groups of seeds as large as the memory of a device allows.

A program over seeds needs, on each device,

  arguments + temporaries + results - memory that results share with arguments

bytes, from the compiler's analysis. Temporaries grow with the group. Groups are halved
until the program fits into a device.
"""

from collections.abc import Callable
import functools
from typing import Any

import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh
import numpy as np

from vvlen.sharding import padding

SHARE = 0.9  # of a device's memory; the rest is for arrays beside the program's


def memory_limit(mesh: Mesh) -> int | None:
  """Returns the MiB that programs may use of each device of a mesh.

  It is `SHARE` of the smallest memory among this process's devices. None if the devices
  do not report their memory, as CPUs do not, or if programs are only compiled for them.
  """
  if mesh.devices.flat[0].platform == 'cpu':
    return None
  try:
    stats: list[Any] = [device.memory_stats() for device in mesh.local_devices]
  except jax.errors.JaxRuntimeError:  # a device that is only compiled for
    return None
  known = [x['bytes_limit'] for x in stats if x and x.get('bytes_limit')]
  return int(SHARE * min(known) / 2**20) if known and len(known) == len(stats) else None


class Fitting:
  """A function over seeds, run in groups that fit into memory.

  The groups are chosen when it is first called with arguments of new shapes, by
  compiling it; a smaller group is reported in one line.
  """

  def __init__(
      self, of_group: Callable[[int], Any], group_size: int, mesh: Mesh, shared: int,
      limit: int,
  ):
    """Prepares a function; compiles nothing.

    Args:
      of_group: size of the groups -> jit-compiled function.
      group_size: the most seeds in a group.
      mesh: with the axis 'seed'.
      shared: the number of arguments, counted from the first, that all seeds share.
      limit: MiB that it may use of a device; the smallest limit of all processes holds.
    """
    self._of_group = functools.cache(of_group)
    self._group_size, self._mesh, self._shared = group_size, mesh, shared
    self._limit = limit
    self._chosen: dict[Any, Any] = {}

  def __call__(self, *arguments):
    return self._fitting(arguments)(*arguments)

  def lower(self, *arguments):
    return self._fitting(arguments).lower(*arguments)

  def trace(self, *arguments):
    return self._fitting(arguments).trace(*arguments)

  def _fitting(self, arguments: tuple[Any, ...]) -> Any:
    leaves, structure = jax.tree.flatten(arguments)
    if any(isinstance(x, jax.core.Tracer) for x in leaves):
      return self._of_group(padding.group_of(self._rows(arguments), self._group_size))
    kind = structure, *((x.shape, x.dtype) for x in leaves)
    if kind not in self._chosen:
      self._chosen[kind] = self._of_group(self._choose(arguments))
    return self._chosen[kind]

  def _rows(self, arguments: tuple[Any, ...]) -> int:
    """Returns the number of seeds of a device."""
    return len(jax.tree.leaves(arguments[self._shared:])[0]) // self._mesh.size

  def _choose(self, arguments: tuple[Any, ...]) -> int:
    """Returns the size of the largest groups that fit, by halving; 1 if none does."""
    rows = self._rows(arguments)
    wanted = group = padding.group_of(rows, self._group_size)
    if group == 1:
      return group
    limit = _least(self._limit, self._mesh)
    first = needed = _needed(self._of_group(group), arguments)
    while group > 1 and needed > limit:
      group = padding.group_of(rows, group // 2)
      needed = _needed(self._of_group(group), arguments) if group > 1 else 0.0
    if group < wanted:
      needs = 'more than' if first == np.inf else f'{first:,.0f} MiB of'
      _say(f'Groups of {wanted} seeds need {needs} the {limit:,} MiB that a device '
           f'has for them: groups of {group} are used, with which results may differ '
           'in their last digits.')
    return group


def _needed(function: Any, arguments: tuple[Any, ...]) -> float:
  """Returns the MiB that a function needs on a device; a later call compiles nothing.

  It is inf if the compiler refuses the program for lack of memory.
  """
  try:
    analysis = function.lower(*arguments).compile().memory_analysis()
  except jax.errors.JaxRuntimeError as error:
    # The compiler of TPUs refuses a program that does not fit.
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    return np.inf
  if analysis is None:
    return 0.0
  return (analysis.argument_size_in_bytes + analysis.temp_size_in_bytes
          + analysis.output_size_in_bytes - analysis.alias_size_in_bytes) / 2**20


def _least(limit: int, mesh: Mesh) -> int:
  """Returns the least limit of all processes, which must run the same program."""
  processes = {device.process_index for device in mesh.devices.flat}
  if jax.process_count() == 1 or len(processes) < jax.process_count():
    return limit
  return int(multihost_utils.process_allgather(np.int32(limit)).min())


@functools.cache  # once for programs that need the same
def _say(line: str) -> None:
  print(line, flush=True)
