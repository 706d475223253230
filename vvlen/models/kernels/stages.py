"""Functions that XLA compiles separately on a CPU, so that results are computed once.

XLA fuses elementwise operations into each operation that uses them: entries of a
product are computed again for each of their statistics, and exponentials of a softmax
for each sum. The result of a stage is stored in memory and read from there.
`jax.lax.optimization_barrier` also separates the entries within a stage, which takes
two to twenty times as long.
"""

from collections.abc import Callable
import functools
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from vvlen.sharding import platform


def stage(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns the function of arrays, compiled separately on a CPU, unchanged elsewhere.

  XLA (CallInliner) inlines every call, except calls with the attribute
  inlineable='false'. If a version of XLA ignores it, only speed is lost.
  """

  @jax.jit
  def compiled(*arguments):
    with set_xla_metadata(inlineable='true'):  # the calls within it
      return function(*arguments)

  @functools.wraps(function)
  def apart(*arguments):
    if platform.target() != 'cpu':
      return function(*arguments)
    with set_xla_metadata(inlineable='false'):
      return compiled(*arguments)

  return apart
