"""The progress of a run: a bar on a terminal, otherwise a line from time to time.

The remaining time of S units of work that are left, with J jobs in all, is

  S / rate + (J m − measured)

The rate is that of the last minute of work. It leaves out compiling, before the first
step of a job, and work of an earlier start of the run. m is the mean time that the jobs
which have ended took to measure what they had trained. In the first job it is estimated
as the time measured so far over the share of the job's work that was done by then;
before any measurement it is not known, and lines say 'left and measuring'. The share
that is shown as done is a share of time, so it includes measuring. While nothing is
reported, lines say for how long.
"""

import collections
from collections.abc import Callable, Iterator
import contextlib
import threading
import time

import rich.console
import rich.progress

from experiments.harness import log

console = rich.console.Console()
_RECENT = 60.0  # seconds of work, of which the rate is taken
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
    self._on_work = on_work
    self._total, self._unit, self._every, self._jobs = total, unit, every, jobs
    self._clock, self._done, self._printed = clock, 0, -every
    self._ended = 0  # jobs
    self._measured = 0.0  # seconds of measuring, which are no work
    self._measured_in_ended = 0.0  # those of jobs that have ended
    self._done_when_measured = 0  # work, at the end of the last measurement
    self._measures = measures
    self._compiled = 0.0  # seconds of compiling between jobs, as far as it is known
    self._reports = 0  # of work, of this job
    self._is_first = False  # the next report is the first one of a later job
    self._what, self._since, self._lasts = _STARTING, clock(), True
    self._lock = threading.RLock()
    self._ended_all = threading.Event()
    self._recent: collections.deque[tuple[float, int]] = collections.deque()
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
    self._ended_all.set()
    if self._bar:
      log.detach()
      self._bar.stop()
      log.attach()

  def skip(self, amount: int) -> None:
    """Adds work of an earlier start of the run, which does not count for the rate."""
    with self._lock:
      self._done += amount
      self._recent = collections.deque(
          (when, done + amount) for when, done in self._recent)

  def show(self, what: str, amount: int = 0) -> None:
    """Adds `amount` of finished work, and shows `what` is being done now."""
    with self._lock:
      self._add(amount)
      self._tell(what, lasts=False)

  def _add(self, amount: int) -> None:
    rate, now = self.rate, self._clock() - self._measured - self._compiled
    if amount:
      self._on_work()
      if self._is_first and rate:
        # What is longer than this work takes was compiling.
        longer = max(now - self._recent[-1][0] - amount / rate, 0)
        self._compiled += longer
        now -= longer
      self._is_first = False
      self._reports += 1
    self._done += amount
    self._recent.append((now, self._done))
    while len(self._recent) > 2 and now - self._recent[1][0] >= _RECENT:
      self._recent.popleft()

  @contextlib.contextmanager
  def measuring(self, what: str) -> Iterator[None]:
    """Shows that something is being measured, and times it."""
    start = self._clock()
    with self._lock:
      self._measures = True
      self._tell(f'{what}, measuring', lasts=True, at_once=True)
    yield
    with self._lock:
      end = self._clock()
      self._measured += end - start
      self._done_when_measured = self._done
      self._what, self._since, self._lasts = f'{what}, measured', end, False

  def end_job(self) -> None:
    """Notes that a job has ended."""
    with self._lock:
      self._ended += 1
      self._measured_in_ended = self._measured
      # With one report a job, compiling cannot be told from work.
      self._is_first, self._reports = self._reports > 1, 0

  def facts(self) -> dict[str, float]:
    """Returns the last rate and the seconds of measuring, to be kept with the run."""
    rate = {f'{self._unit} a second': round(self.rate, 2)} if self.rate else {}
    return rate | {'seconds of measuring': round(self._measured, 1)}

  @property
  def rate(self) -> float:
    """Returns the recent rate of work in units a second, 0 if it is not known yet."""
    if len(self._recent) < 2:
      return 0.0
    (start, before), (end, now) = self._recent[0], self._recent[-1]
    return (now - before) / max(end - start, 1e-9)

  def left(self) -> float:
    """Returns the seconds that are left, infinity if they are not known yet.

    Measuring is not in them before the first measurement of a job has ended.
    """
    work = self._total - self._done
    seconds = work / self.rate if self.rate else float('inf') if work else 0.0
    each = self._measuring_of_a_job()
    if each:
      seconds += max(self._jobs * each - self._measured,
                     (self._jobs - self._ended - 1) * each, 0)
    return seconds

  def _measuring_of_a_job(self) -> float | None:
    """Returns the seconds in which a job measures, None if they are not known yet."""
    if not self._measures:
      return 0.0
    if self._ended and self._measured:
      return self._measured_in_ended / self._ended
    share = self._done_when_measured * self._jobs / self._total if self._total else 0
    return self._measured / min(share, 1) if share else None

  def share(self) -> float:
    """Returns the share of the time that has passed, of work while no rate is known."""
    if not self.rate or self._measuring_of_a_job() is None:
      return self._done / self._total if self._total else 1.0
    passed = self._done / self.rate + self._measured
    return passed / (passed + self.left())

  def _tell(self, what: str, lasts: bool, at_once: bool = False) -> None:
    """Shows what is being done, which `lasts` from now on, or has just ended."""
    now = self._clock()
    self._what, self._since, self._lasts = what, now, lasts
    self._print(now, at_once)

  def _repeat(self) -> None:
    """Prints what is being done, and since when, if nothing was printed for long."""
    begin = self._clock()
    while not self._ended_all.wait(
        max(max(self._printed, begin) + self._every - self._clock(), 0.01)):
      with self._lock:
        self._print(self._clock())

  def _print(self, now: float, at_once: bool = False) -> None:
    rate = self.rate
    share = self.share()
    left = f'{_words(self.left())} left'
    if rate and self._measuring_of_a_job() is None:
      left = f'{left} and measuring' if self._done < self._total else 'measuring left'
    if rate:
      per_second = f'{rate:,.0f}' if rate >= 10 else f'{rate:.2f}'
      left = f'{per_second} {self._unit}/s, {left}'
    if self._bar:
      self._bar.update(self._task, completed=share * self._total, left=left,
                       description=_short(self._what, _WIDTH - 20 - len(left)))
    if at_once or now - self._printed >= self._every:
      self._printed = now
      ago = _words(now - self._since) if now - self._since >= 1 else ''
      ago = ago and (f' for {ago}' if self._lasts else f', {ago} ago')
      what = _short(self._what, _WIDTH - 8 - len(left + ago)) + ago
      log.progress(f'{share:4.0%}  {what}  {left}', rate, shown=not self._bar)


def _short(text: str, room: int) -> str:
  """Shortens a text in the middle, since the loss stands at its end."""
  if len(text) <= room:
    return text
  end = max(min(12, room - 2), 0)
  return f'{text[:room - end - 1]}…{text[len(text) - end:]}' if room > 0 else ''


def _words(seconds: float) -> str:
  """Returns a duration such as '2 h 05 min', '3 min' or '20 s'."""
  if seconds == float('inf'):
    return 'unknown time'
  if seconds < 60:
    return f'{seconds:.0f} s'
  hours, minutes = divmod(round(seconds / 60), 60)
  return f'{hours} h {minutes:02d} min' if hours else f'{minutes} min'
