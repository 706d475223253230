"""Keeps what a run prints in log.txt in its folder. Runs without JAX.

A line has three columns, separated by tabs: the UTC time, the rate of work in units a
second (empty where it is not known or the line is not about progress), and what was
printed. From the start of a command on, lines are kept in memory, since its folder may
be another run's; `open_in` writes them. Output that libraries write without Python's
streams is not kept.
"""

from collections.abc import Iterator
import contextlib
import datetime
import os
import sys
import threading
import time
from typing import Any

from etils import epath

from vvlen.reporting import results

NAME = 'log.txt'
_MOST = 10_000  # lines in memory
_EVERY = 60.0  # seconds between two writes to a bucket, which rewrite the file


class _Log:
  """The lines of one start of a run, and where they are written."""

  def __init__(self) -> None:
    self.streams: tuple[Any, Any] | None = None  # those that the copies replace
    self._here = threading.local()  # whether this thread is `paused`
    self._lock = threading.RLock()
    self._path: epath.Path | None = None
    self._new: list[str] = []  # not yet written
    self._whole = ''  # what a file in a bucket has
    self._written = 0.0

  def add(self, text: str, rate: float | None = None) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat('T', 'seconds')
    column = '' if rate is None else f'{rate:.6g}'
    with self._lock:
      self._new.append(f'{now}\t{column}\t{text}\n')
      del self._new[:-_MOST]
      if self._path:
        self._write()

  def open_in(self, folder: epath.PathLike) -> None:
    with self._lock:
      self._path = epath.Path(folder) / NAME
      try:
        if '://' in os.fspath(self._path) and self._path.exists():
          self._whole = self._path.read_text()
      except Exception as error:  # of any library
        self._give_up(error)
      self._write()

  def _write(self, at_once: bool = False) -> None:
    if not (self._path and self._new):
      return
    bucket = '://' in os.fspath(self._path)
    if bucket and not at_once and time.monotonic() - self._written < _EVERY:
      return
    new = ''.join(self._new)
    self._new = []
    try:
      if bucket:
        self._whole += new
        results.write_text(self._path, self._whole)
        self._written = time.monotonic()
      else:
        with self._path.open('a') as file:
          file.write(new)
    except Exception as error:  # of any library
      self._give_up(error)

  def _give_up(self, error: Exception) -> None:
    path, self._path = self._path, None
    with self.pausing():
      print(f'{path} cannot be written: {" ".join(str(error).split())}. The run goes '
            'on without it.', file=sys.stderr, flush=True)

  @property
  def paused(self) -> bool:
    return getattr(self._here, 'paused', False)

  @contextlib.contextmanager
  def pausing(self) -> Iterator[None]:
    before, self._here.paused = self.paused, True
    try:
      yield
    finally:
      self._here.paused = before

  def close(self) -> None:
    with self._lock:
      self._write(at_once=True)
      self._path = None


class _Copying:
  """A stream that also adds each line to the log."""

  def __init__(self, stream: Any, log: _Log):
    self._stream, self._log, self._line = stream, log, ''

  def write(self, text: str) -> int:
    count = self._stream.write(text)
    if not self._log.paused:
      *lines, self._line = (self._line + text).split('\n')
      for line in filter(str.strip, lines):
        self._log.add(line)
    return count

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)


_log: _Log | None = None


def start() -> None:
  """Begins to keep what is printed."""
  global _log
  _log = _Log()
  attach()


def open_in(folder: epath.PathLike) -> None:
  """Writes what was printed, and what will be, to log.txt in a folder.

  Only the first process of a run should call it. If the file cannot be written, it
  prints one line, and the run goes on. Without `start`, it has no effect.
  """
  if _log:
    _log.open_in(folder)


def close() -> None:
  """Writes what is left, and keeps no more of what is printed."""
  global _log
  detach()
  if _log:
    _log.close()
  _log = None


def attach() -> None:
  """Puts copying streams before the present ones, after `detach`."""
  if _log and _log.streams is None:
    _log.streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_Copying(x, _log) for x in _log.streams)


def detach() -> None:
  """Takes the copying streams away, for a progress bar that replaces the streams."""
  if _log and _log.streams is not None:
    sys.stdout, sys.stderr = _log.streams
    _log.streams = None


def progress(line: str, rate: float, shown: bool) -> None:
  """Prints a line about progress if it is to be shown, and adds it with its rate."""
  if shown:
    with _log.pausing() if _log else contextlib.nullcontext():
      print(line, flush=True)
  if _log:
    _log.add(line, rate or None)
