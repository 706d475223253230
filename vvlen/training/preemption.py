"""Lets training end well when its machine is to be taken away: SIGTERM."""

from collections.abc import Callable, Iterator
import contextlib
import itertools
import signal
import threading

import jax
from jax.experimental import multihost_utils

_calls = itertools.count(1)  # of this process, which all processes make alike


class Preempted(BaseException):
  """The run was told to stop, and says whether it could save its state.

  No Exception, as KeyboardInterrupt is none: libraries catch these, and go on.
  """


@contextlib.contextmanager
def watching_for_preemption() -> Iterator[Callable[[int], bool]]:
  """Yields what says whether to stop after a step, to all processes alike.

  Where jax.distributed runs, it has a handler of SIGTERM and agrees between processes
  on the step. Where it does not, SIGTERM is noted until the block ends.
  """
  if jax.distributed.is_initialized():
    # By a number that never falls, as steps do from one run to the next.
    yield lambda made: multihost_utils.reached_preemption_sync_point(next(_calls))
    return
  if threading.current_thread() is not threading.main_thread():
    yield lambda made: False  # Signals are the main thread's.
    return
  noted: list[int] = []
  former = signal.signal(signal.SIGTERM, lambda number, _: noted.append(number))
  try:
    yield lambda made: bool(noted)
  finally:
    signal.signal(signal.SIGTERM, signal.SIG_DFL if former is None else former)
  if noted:  # It came too late for a step.
    signal.raise_signal(signal.SIGTERM)
