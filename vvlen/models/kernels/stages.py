"""Functions that XLA keeps apart on a CPU, so that what they return is computed once.

XLA fuses what is elementwise into each of its users: entries of a product are computed
anew for each statistic of them, and exponentials of a softmax for each sum. What a
stage returns is in memory and read from there. `jax.lax.optimization_barrier` also
keeps apart what is within, entry by entry: twice the time, or twenty times.
"""

from collections.abc import Callable
import functools
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata


def stage(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a function of arrays, kept apart. Without a CPU it is as it was.

  XLA inlines all calls (CallInliner) but those that have this attribute. Where it has
  none, nothing is lost but time.
  """

  @jax.jit
  def compiled(*arguments):
    with set_xla_metadata(inlineable='true'):  # what it is made of
      return function(*arguments)

  @functools.wraps(function)
  def apart(*arguments):
    if jax.default_backend() != 'cpu':
      return function(*arguments)
    with set_xla_metadata(inlineable='false'):
      return compiled(*arguments)

  return apart
