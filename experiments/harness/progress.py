"""The progress of a run: a bar on a terminal, otherwise a line from time to time."""

from collections.abc import Callable
import time

import rich.console
import rich.progress

console = rich.console.Console()


class Progress:
  """A progress bar with rate and remaining time; lines if not on a terminal."""

  def __init__(self, total: int, unit: str, every: float = 30.0,
               on_work: Callable[[], None] = lambda: None):
    """Starts at 0 of `total`; lines are printed every `every` seconds.

    Args:
      total: amount of work.
      unit: of the work.
      every: seconds between two lines.
      on_work: called whenever work is added.
    """
    self._total, self._unit, self._every = total, unit, every
    self._on_work = on_work
    self._first = self._done = 0
    self._start, self._last = time.monotonic(), -every
    self._bar = None
    if console.is_terminal:
      self._bar = rich.progress.Progress(
          rich.progress.TextColumn('{task.description}'),
          rich.progress.BarColumn(),
          rich.progress.TaskProgressColumn(),
          rich.progress.TextColumn('{task.fields[rate]}'),
          rich.progress.TimeRemainingColumn(),
          console=console,
      )
      self._task = self._bar.add_task('', total=total, rate='')

  def __enter__(self):
    if self._bar:
      self._bar.start()
    return self

  def __exit__(self, *_):
    if self._bar:
      self._bar.stop()

  def skip(self, amount: int) -> None:
    """Adds work of an earlier start of the run, which does not count for the rate."""
    self._done += amount
    self._first += amount

  def show(self, what: str, amount: int = 0) -> None:
    """Adds `amount` of finished work, and shows `what` is being done now."""
    self._done += amount
    if amount:
      self._on_work()
    now = time.monotonic()
    rate = (self._done - self._first) / max(now - self._start, 1e-9)
    per_second = f'{rate:,.0f}' if rate >= 10 else f'{rate:.2f}'
    if self._bar:
      self._bar.update(
          self._task, description=what, completed=self._done,
          rate=f'{per_second} {self._unit}/s',
      )
    elif now - self._last >= self._every:
      self._last = now
      left = (self._total - self._done) / rate if rate else float('inf')
      share = self._done / self._total if self._total else 1.0
      print(
          f'{share:4.0%}  {what}  {per_second} {self._unit}/s  '
          f'{_minutes(left)} left', flush=True,
      )


def _minutes(seconds: float) -> str:
  if seconds == float('inf'):
    return '?'
  return f'{int(seconds // 60)}:{int(seconds % 60):02d}'
