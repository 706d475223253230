"""Lets training save and stop when its machine is about to be taken away (SIGTERM)."""

from collections.abc import Callable, Iterator
import contextlib
import itertools
import signal
import threading

import jax
from jax.experimental import multihost_utils

_calls = itertools.count(1)  # in this process; all processes make the same calls


class Preempted(BaseException):
  """The run was told to stop; the message says whether its state was saved.

  Like KeyboardInterrupt it is no Exception, because libraries catch these and continue.
  """


@contextlib.contextmanager
def watching_for_preemption() -> Iterator[Callable[[int], bool]]:
  """Yields a function that says, after a step, whether all processes should stop.

  If jax.distributed is initialized, it handles SIGTERM and makes the processes agree on
  the step. If not, this process records SIGTERM until the block ends.
  """
  if jax.distributed.is_initialized():
    # Calls are counted, because the number must never decrease, and the step does when
    # another run begins.
    yield lambda made: multihost_utils.reached_preemption_sync_point(next(_calls))
    return
  if threading.current_thread() is not threading.main_thread():
    yield lambda made: False  # Only the main thread can handle signals.
    return
  noted: list[int] = []
  former = signal.signal(signal.SIGTERM, lambda number, _: noted.append(number))
  try:
    yield lambda made: bool(noted)
  finally:
    signal.signal(signal.SIGTERM, signal.SIG_DFL if former is None else former)
  if noted:  # It may have come too late to stop after a step.
    signal.raise_signal(signal.SIGTERM)
