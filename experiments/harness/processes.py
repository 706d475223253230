"""Runs with several processes."""

from collections.abc import Callable
import os
import re
import sys
from typing import Any

import jax
from jax._src import distributed
from jax.experimental import multihost_utils
import numpy as np

from experiments.harness import errors, lost_process
from experiments.harness.progress import console
from vvlen.training.preemption import Preempted, watching_for_preemption


def join_processes() -> None:
  """Makes this process one of several of a run; only the first one prints."""
  names = 'JAX_COORDINATOR_ADDRESS', 'JAX_NUM_PROCESSES', 'JAX_PROCESS_ID'
  given = [os.environ[name] for name in names if name in os.environ]
  if len(given) not in (0, 3):
    raise ValueError(f'set all or none of {", ".join(names)}')
  if given:
    _check(*given)
    jax.distributed.initialize(given[0], int(given[1]), int(given[2]))
  else:
    try:
      jax.distributed.initialize()
    except ValueError as error:  # JAX knows no cluster that this process belongs to
      raise ValueError(
          '--distributed: no cluster was found that JAX knows. Set '
          f'{", ".join(names)}, or run without --distributed'
      ) from error
  lost_process.shorten_messages()
  # Not jax.process_index(), which initializes the devices: `machine.use_devices` must
  # run first.
  if distributed.global_state.process_id:
    sys.stdout = open(os.devnull, 'w')
    console.quiet = True


def _check(address: str, count: str, number: str) -> None:
  """Raises ValueError unless the environment variables describe a process of a run."""
  port = re.fullmatch(r'(?:[^\s:/]+|\[[0-9A-Fa-f:.]+\]):([0-9]+)', address)
  if not port or not 1 <= int(port[1]) <= 65535:
    raise ValueError('JAX_COORDINATOR_ADDRESS must be a host and a port up to 65535, '
                     f'such as 10.0.0.2:8476: {address!r}')
  if not re.fullmatch('[0-9]{1,9}', count) or not int(count):
    raise ValueError(f'JAX_NUM_PROCESSES must be a number of at least 1: {count!r}')
  if not re.fullmatch('[0-9]{1,9}', number) or int(number) >= int(count):
    raise ValueError('JAX_PROCESS_ID must be a number below JAX_NUM_PROCESSES, '
                     f'{count}: {number!r}')


def stop_if_told(after: str) -> None:
  """Raises Preempted in all processes at once, if one of them was sent SIGTERM.

  All must make the same calls. A single process does not need this: its signal handler
  raises Preempted (`command_line.run`).

  Args:
    after: what is finished, for the message, such as '3 of 18 measurements'.
  """
  if jax.distributed.is_initialized():
    with watching_for_preemption() as told_to_stop:
      if told_to_stop(0):
        raise Preempted(f'Told to stop after {after}')


def first_of_processes(function: Callable[[], Any]) -> Any:
  """Calls a function in the first process; if it fails, all processes fail.

  If the network failed, all raise an error of the network.

  Returns:
    The value of the function in the first process, None in the others.
  """
  result, error = None, None
  if jax.process_index() == 0:
    try:
      result = function()
    except (ValueError, OSError) as raised:
      error = raised
  if jax.process_count() > 1:
    kinds = ValueError, ConnectionError
    failed = 0 if error is None else 1 + errors.of_network(error)
    failed = int(multihost_utils.broadcast_one_to_all(np.int32(failed)))
    if failed and error is None:
      raise kinds[failed - 1]('the first process failed; its message says why')
  if error is not None:
    raise error
  return result
