"""The progress of a run: a bar on a terminal, otherwise a line from time to time.

  33%  lookup, none, seeds 0 to 7, loss 2.25, 2 s ago  191 seed-steps/s, 36 min left

The remaining time is estimated in `estimate.py` beside this file. Until it is known how
long a job measures, lines say 'left and measuring'. While nothing is reported, lines
say for how long. A line has 80 characters: where they do not suffice, what stands
behind the name is said more briefly, '>36 min left' at last for '36 min left and
measuring', and only then is the name cut.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import math
import threading
import time

import rich.console
import rich.progress

from experiments.harness import estimate, log

console = rich.console.Console()
_WIDTH = 80  # characters of a line
_STARTING = 'computing'  # until the first report


class Progress:
  """A progress bar with rate and remaining time; lines if not on a terminal."""

  def __init__(
      self, total: int, unit: str, every: float = 30.0, jobs: int = 1,
      clock: Callable[[], float] = time.monotonic,
      on_work: Callable[[], None] = lambda: None, measures: bool = False,
  ):
    """Starts at 0 of `total`; lines are printed every `every` seconds.

    Args:
      total: amount of work.
      unit: of the work.
      every: the most seconds between lines; 0 prints a line for each report.
      jobs: number of jobs that the work consists of.
      clock: returns seconds.
      on_work: called whenever work is added.
      measures: whether jobs are known to measure what they have trained.
    """
    self.work = estimate.Work(total, jobs, measures)
    self._unit, self._every, self._clock, self._on_work = unit, every, clock, on_work
    self._printed = -every
    self._what, self._since, self._lasts = _STARTING, clock(), True
    self._lock = threading.RLock()
    self._ended = threading.Event()
    self._bar = None
    if console.is_terminal:
      self._bar = rich.progress.Progress(
          rich.progress.TextColumn('{task.description}'),
          rich.progress.BarColumn(bar_width=12),
          rich.progress.TaskProgressColumn(),
          rich.progress.TextColumn('{task.fields[left]}'),
          console=console,
      )
      self._task = self._bar.add_task(_STARTING, total=total, left='')

  def __enter__(self):
    if self._bar:
      log.detach()
      self._bar.start()
      log.attach()
    if self._every:
      threading.Thread(target=self._repeat, daemon=True).start()
    return self

  def __exit__(self, *_):
    self._ended.set()
    if self._bar:
      log.detach()
      self._bar.stop()
      log.attach()

  def skip(self, amount: int) -> None:
    """Adds work of an earlier start of the run, which does not count for the rate."""
    with self._lock:
      self.work = estimate.skip(self.work, amount)

  def show(self, what: str, amount: int = 0) -> None:
    """Adds `amount` of finished work, and shows `what` is being done now."""
    with self._lock:
      now = self._clock()
      if amount:
        self._on_work()
      self.work = estimate.add(self.work, amount, now)
      self._tell(what, lasts=False)

  @contextlib.contextmanager
  def measuring(self, what: str) -> Iterator[Callable[[float], None]]:
    """Shows that something is being measured, and times it.

    Yields:
      A function to be called, as often as is known, with the share that is measured.
    """
    with self._lock:
      self.work = estimate.begin_measuring(self.work, self._clock())
      self._tell(f'{what}, measuring', lasts=True, at_once=True)
    yield self._measured
    with self._lock:
      end = self._clock()
      self.work = estimate.end_measuring(self.work, end)
      self._what, self._since, self._lasts = f'{what}, measured', end, False

  def _measured(self, share: float) -> None:
    with self._lock:
      now = self._clock()
      self.work = estimate.add_part(self.work, share, now)
      self._print(now)

  def end_job(self) -> None:
    """Notes that a job has ended."""
    with self._lock:
      self.work = estimate.end_job(self.work)

  def facts(self) -> dict[str, float]:
    """Returns the last rate and the seconds of measuring, to be kept with the run."""
    rate = {f'{self._unit} a second': round(self.rate, 2)} if self.rate else {}
    return rate | {'seconds of measuring': round(self.work.measured, 1)}

  @property
  def rate(self) -> float:
    """Returns the recent rate of work in units a second, 0 if it is not known yet."""
    return estimate.rate(self.work)

  def left(self) -> float:
    """Returns the seconds that are left, as far as they are known (`estimate.left`)."""
    return estimate.left(estimate.during(self.work, self._clock()))

  def share(self) -> float:
    """Returns the share of the time that has passed (`estimate.share`)."""
    return estimate.share(estimate.during(self.work, self._clock()))

  def _tell(self, what: str, lasts: bool, at_once: bool = False) -> None:
    """Shows what is being done, which `lasts` from now on, or has just ended."""
    now = self._clock()
    self._what, self._since, self._lasts = what, now, lasts
    self._print(now, at_once)

  def _repeat(self) -> None:
    """Prints what is being done, and since when, if nothing was printed for long.

    On a terminal, it renews the bar every second.
    """
    begin = self._clock()

    def wait():
      until = max(max(self._printed, begin) + self._every - self._clock(), 0.01)
      return self._ended.wait(min(until, 1.0) if self._bar else until)

    while not wait():
      with self._lock:
        self._print(self._clock())

  def _print(self, now: float, at_once: bool = False) -> None:
    work = estimate.during(self.work, now)
    share, forms = estimate.share(work), _left_forms(work, self._unit)
    since = _since_forms(now - self._since, self._lasts)
    if self._bar:
      shown = since if self._lasts else ['']
      what, left = _fit(self._what, shown, forms, _WIDTH - 20)
      self._bar.update(
          self._task, completed=share * self.work.total, left=left, description=what)
    if at_once or now - self._printed >= self._every:
      self._printed = now
      what, left = _fit(self._what, since, forms, _WIDTH - 8)
      log.progress(f'{share:4.0%}  {what}  {left}', self.rate, shown=not self._bar)


def _left_forms(work: estimate.Work, unit: str) -> list[str]:
  """Returns what is said of the remaining time, from the longest form to the shortest.

  The rate is also in log.txt, so it is the first to go.
  """
  rate, time_left = estimate.rate(work), _words(estimate.left(work))
  if not rate or estimate.knows_measuring(work):
    forms = [f'{time_left} left']
  elif work.done < work.total:
    forms = [f'{time_left} left and measuring', f'{time_left} + measuring',
             f'>{time_left} left']
  else:
    forms = ['measuring left']
  if not rate:
    return forms
  per_second = f'{rate:,.0f}' if rate >= 10 else f'{rate:.2f}'
  return [f'{per_second} {unit}/s, {forms[0]}', *forms]


def _since_forms(seconds: float, lasts: bool) -> list[str]:
  """Returns for how long something lasts, or how long ago it ended, and no word."""
  if seconds < 1:
    return ['']
  return [f' for {_words(seconds)}' if lasts else f', {_words(seconds)} ago', '']


def _fit(
    what: str, since_forms: Sequence[str], left_forms: Sequence[str], room: int
) -> tuple[str, str]:
  """Returns what is being done, and what is left, in `room` characters.

  They have the first forms with which `what` is whole: the remaining time is said more
  briefly before the time since is left out. Without any, `what` is cut.
  """
  for since in since_forms:
    for left in left_forms:
      if len(what + since + left) <= room:
        return what + since, left
  return _short(what, room - len(left_forms[-1])), left_forms[-1]


def _short(text: str, room: int) -> str:
  """Shortens a text in the middle, since the loss stands at its end."""
  if len(text) <= room:
    return text
  end = max(min(12, room - 2), 0)
  return f'{text[:room - end - 1]}…{text[len(text) - end:]}' if room > 0 else ''


def _words(seconds: float) -> str:
  """Returns a duration such as '2 h 05 min', '3 min' or '20 s'."""
  if seconds == math.inf:
    return 'unknown time'
  if seconds < 60:
    return f'{seconds:.0f} s'
  hours, minutes = divmod(round(seconds / 60), 60)
  return f'{hours} h {minutes:02d} min' if hours else f'{minutes} min'
