"""The remaining time of a run, from what it has reported: `Work` in, seconds out.

The remaining time of S units of work that are left, with J jobs in all, is

  S / rate + (J m − measured)

The rate is that of the last minute of work. It leaves out compiling, before the first
step of a job, and work of an earlier start of the run. m is the mean time that the jobs
which have ended took to measure what they had trained. In the first job it is estimated
as the time measured so far over the share of the job's work that was done by then;
before any measurement it is not known. A measurement under way counts with the time it
has taken and, once a twentieth of it is done, with what it still takes at the speed of
its last part. The share of a run that is done is a share of time, so it includes
measuring.
"""

import math
from typing import NamedTuple

RECENT = 60.0  # seconds of work, of which the rate is taken
_ENOUGH = 0.05  # share of a measurement, before which its parts are too short to tell


class Report(NamedTuple):
  """What was done at the time of a report."""

  seconds: float  # of work, on a clock that stands still while a run measures
  done: int  # units of work


class Part(NamedTuple):
  """How far the measurement under way was at a time."""

  seconds: float
  share: float  # of the measurement that was done


class Work(NamedTuple):
  """What is known of the work of a run."""

  total: int  # units of work
  jobs: int = 1  # that the work consists of
  measures: bool = False  # whether jobs measure what they have trained
  done: int = 0  # units of work
  ended: int = 0  # jobs
  measured: float = 0.0  # seconds of measuring, which are no work
  measured_in_ended: float = 0.0  # those of jobs that have ended
  done_when_measured: int = 0  # units of work, at the end of the last measurement
  compiled: float = 0.0  # seconds of compiling between jobs, as far as it is known
  reports: int = 0  # of work, of this job
  is_first: bool = False  # the next report is the first one of a later job
  recent: tuple[Report, ...] = ()
  began: float | None = None  # seconds at which the measurement under way began
  parts: tuple[Part, ...] = ()  # the last two of them, of this measurement
  remaining: float = 0.0  # seconds that the measurement under way still takes


def skip(work: Work, amount: int) -> Work:
  """Adds work of an earlier start of the run, which does not count for the rate."""
  return work._replace(
      done=work.done + amount,
      recent=tuple(Report(x.seconds, x.done + amount) for x in work.recent))


def add(work: Work, amount: int, now: float) -> Work:
  """Adds `amount` of work, or only the time, of a report at `now` seconds."""
  now -= work.measured + work.compiled
  if amount:
    longer = _compiling(work, amount, now)
    now -= longer
    work = work._replace(
        compiled=work.compiled + longer, reports=work.reports + 1, is_first=False)
  done = work.done + amount
  recent = (*work.recent, Report(now, done))
  while len(recent) > 2 and now - recent[1].seconds >= RECENT:
    recent = recent[1:]
  return work._replace(done=done, recent=recent)


def _compiling(work: Work, amount: int, now: float) -> float:
  """Returns how much longer than its work the first report of a later job took."""
  if not work.is_first or not rate(work):
    return 0.0
  return max(now - work.recent[-1].seconds - amount / rate(work), 0.0)


def begin_measuring(work: Work, now: float) -> Work:
  """Notes that a measurement begins."""
  return work._replace(measures=True, began=now, parts=())


def add_part(work: Work, share: float, now: float) -> Work:
  """Notes that a `share` of the measurement under way is done."""
  return work._replace(parts=(*work.parts[-1:], Part(now, share)))


def end_measuring(work: Work, now: float) -> Work:
  """Adds the measurement under way, which has ended."""
  assert work.began is not None
  return work._replace(measured=work.measured + now - work.began, began=None, parts=(),
                       done_when_measured=work.done)


def during(work: Work, now: float) -> Work:
  """Returns the work with the measurement under way, if any, as far as it is."""
  if work.began is None:
    return work
  work = work._replace(measured=work.measured + now - work.began)
  if len(work.parts) < 2 or work.parts[-1].share < _ENOUGH:
    return work
  before, last = work.parts
  speed = (last.share - before.share) / max(last.seconds - before.seconds, 1e-9)
  still = max((1 - last.share) / speed - (now - last.seconds), 0.0)
  return work._replace(remaining=still, done_when_measured=work.done)


def end_job(work: Work) -> Work:
  """Notes that a job has ended."""
  # With one report a job, compiling cannot be told from work.
  return work._replace(ended=work.ended + 1, measured_in_ended=work.measured,
                       is_first=work.reports > 1, reports=0)


def rate(work: Work) -> float:
  """Returns the recent rate in units a second, 0 if it is not known yet."""
  if len(work.recent) < 2:
    return 0.0
  first, last = work.recent[0], work.recent[-1]
  return (last.done - first.done) / max(last.seconds - first.seconds, 1e-9)


def left(work: Work) -> float:
  """Returns the seconds that are left, infinity if they are not known yet.

  Measuring is not in them while `knows_measuring` is False.
  """
  units = work.total - work.done
  seconds = units / rate(work) if rate(work) else math.inf if units else 0.0
  each = _measuring_of_a_job(work)
  if each:
    seconds += max(work.jobs * each - work.measured, work.remaining
                   + max(work.jobs - work.ended - 1, 0) * each)
  return seconds


def share(work: Work) -> float:
  """Returns the share of the time that has passed, of work while no rate is known."""
  if not rate(work) or not knows_measuring(work):
    return work.done / work.total if work.total else 1.0
  passed = work.done / rate(work) + work.measured
  return passed / (passed + left(work))


def knows_measuring(work: Work) -> bool:
  """Returns whether it is known how long a job measures."""
  return _measuring_of_a_job(work) is not None


def _measuring_of_a_job(work: Work) -> float | None:
  """Returns the seconds in which a job measures, None if they are not known yet."""
  if not work.measures:
    return 0.0
  if work.ended and work.measured:
    return work.measured_in_ended / work.ended
  if not work.total or not work.done_when_measured:
    return None
  measured = work.measured + work.remaining
  return measured / min(work.done_when_measured * work.jobs / work.total, 1)
