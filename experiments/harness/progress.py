"""How far a run is: a bar on a terminal, a line now and then elsewhere."""

import time

import rich.console
import rich.progress

console = rich.console.Console()


class Progress:
  """A progress bar with rate and time left; off a terminal, a line now and then."""

  def __init__(self, total: int, unit: str, every: float = 30.0):
    """Starts at 0 of `total`; off a terminal, a line comes every so many seconds."""
    self._total, self._unit, self._every = total, unit, every
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
    """Counts what an earlier start of the run has done, which took no time now."""
    self._done += amount
    self._first += amount

  def show(self, what: str, amount: int = 0) -> None:
    """Says what is being done, `amount` more being done by now."""
    self._done += amount
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
      print(
          f'{self._done / self._total:4.0%}  {what}  {per_second} {self._unit}/s  '
          f'{_minutes(left)} left', flush=True,
      )


def _minutes(seconds: float) -> str:
  if seconds == float('inf'):
    return '?'
  return f'{int(seconds // 60)}:{int(seconds % 60):02d}'
