"""Several processes of one run."""

from collections.abc import Callable
import os
import sys
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from experiments.harness.progress import console


def join_processes() -> None:
  """Makes this process one of several; the first alone speaks."""
  names = 'JAX_COORDINATOR_ADDRESS', 'JAX_NUM_PROCESSES', 'JAX_PROCESS_ID'
  given = [os.environ[name] for name in names if name in os.environ]
  if len(given) not in (0, 3):
    raise ValueError(f'of {", ".join(names)} set all or none')
  if given and not all(x.isdigit() for x in given[1:]):
    raise ValueError(f'JAX_NUM_PROCESSES and JAX_PROCESS_ID must be numbers: {given}')
  if given:
    jax.distributed.initialize(given[0], int(given[1]), int(given[2]))
  else:
    jax.distributed.initialize()
  # Where it is given, devices of a CPU are to be set up yet: they are not asked for.
  if int(given[2]) if given else jax.process_index():
    sys.stdout = open(os.devnull, 'w')
    console.quiet = True


def first_of_processes(function: Callable[[], Any]) -> Any:
  """Calls a function in the first process; where it fails, all fail.

  Returns:
    What it returns, in the first process, None in others.
  """
  result, error = None, None
  if jax.process_index() == 0:
    try:
      result = function()
    except (ValueError, OSError) as raised:
      error = raised
  if jax.process_count() > 1:
    failed = multihost_utils.broadcast_one_to_all(np.int32(error is not None))
    if failed and error is None:
      raise ValueError('the first process has failed, and says why')
  if error is not None:
    raise error
  return result
