"""A profiler trace of a short part of a run, for xprof or TensorBoard."""

import pathlib
import tempfile
import threading
from typing import Any

from etils import epath
import jax

from vvlen.reporting import results

SECONDS = 10.0  # the longest trace; a trace of a whole run could fill a disk


class Trace:
  """Traces what is computed between the first and the second report of progress.

  By the first report, the programs of the first part of the work are compiled. It is a
  context manager, whose end also ends an unfinished trace. The results of the run do
  not depend on it: a trace that cannot be made is reported in one line.
  """

  def __init__(self, folder: epath.PathLike, asked: bool, seconds: float = SECONDS):
    """Prepares a trace.

    Args:
      folder: of the run, local or gs://; the trace is written to `trace` in it, by the
        first process.
      asked: whether to trace.
      seconds: the longest time of the trace, which may end in the middle of a call.
    """
    self._folder, self._seconds = epath.Path(folder) / 'trace', seconds
    self._waiting = asked and jax.process_index() == 0
    self._lock = threading.Lock()
    self._timer: threading.Timer | None = None

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._stop()

  def report(self) -> None:
    """Starts the trace when it is called first, and ends it when it is called again."""
    self._stop()
    if self._waiting:
      self._waiting = False
      self._start()

  def _start(self) -> None:
    options: Any = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # calls of Python would be most of the file
    # A local folder first: the profiler writes to no bucket.
    self._local = tempfile.TemporaryDirectory(prefix='vvlen-trace-')
    try:
      jax.profiler.start_trace(self._local.name, profiler_options=options)
    except (RuntimeError, OSError) as error:
      self._give_up(error)
      return
    self._timer = threading.Timer(self._seconds, self._stop)
    self._timer.daemon = True
    self._timer.start()

  def _stop(self) -> None:
    """Ends the trace, if there is one, and writes it; called by either thread."""
    with self._lock:
      if self._timer is None:
        return
      self._timer.cancel()
      self._timer = None
      try:
        jax.profiler.stop_trace()
        local = pathlib.Path(self._local.name)
        for path in sorted(local.rglob('*')):
          if path.is_file():
            results.write_bytes(
                self._folder / path.relative_to(local).as_posix(), path.read_bytes())
      except (RuntimeError, OSError) as error:
        self._give_up(error)
        return
      self._local.cleanup()
    print(f'Trace written: xprof --logdir={self._folder}', flush=True)

  def _give_up(self, error: Exception) -> None:
    self._local.cleanup()
    print(f'No trace: {" ".join(str(error).split())}', flush=True)
