"""Remaining time is of what is left to do, at the rate of the last minute."""

import time

import pytest

from experiments.harness import estimate
from experiments.harness import progress as module
from experiments.harness.progress import Progress


class _Clock:
  now = 1000.0

  def __call__(self):
    return self.now


@pytest.fixture
def clock():
  return _Clock()


def test_what_is_left_is_a_function_of_what_is_known():
  # 20 of 30 units at 2 a second, and 20 s of measuring for each of the 2 last jobs.
  work = estimate.Work(
      total=30, jobs=3, measures=True, done=10, ended=1, measured=20.0,
      measured_in_ended=20.0, done_when_measured=10,
      recent=(estimate.Report(0.0, 0), estimate.Report(5.0, 10)))
  assert estimate.rate(work) == 2 and estimate.left(work) == 10 + 40
  assert estimate.share(work) == 25 / 75
  before = work._replace(ended=0, measured=0.0, done_when_measured=0)
  assert estimate.left(before) == 10 and not estimate.knows_measuring(before)
  assert estimate.left(estimate.Work(total=0)) == 0


def test_compiling_is_not_work(clock):
  shown = Progress(100, 'steps', clock=clock)
  clock.now += 50  # compiles, and makes the first step
  shown.show('a', 10)
  assert shown.rate == 0 and shown.left() == float('inf')
  clock.now += 2
  shown.show('a', 10)
  assert shown.rate == 5 and shown.left() == 16


def test_the_rate_is_recent(clock):
  shown = Progress(10_000, 'steps', clock=clock)
  for amount in [100] * 20 + [10] * 20:
    clock.now += 10
    shown.show('a', amount)
  assert shown.rate == 1 and shown.left() == 10_000 - 2_200


def test_compiling_between_jobs_is_not_work(clock):
  shown = Progress(300, 'steps', jobs=3, clock=clock)
  for _ in range(2):
    clock.now += 50  # compiles
    for _ in range(10):
      clock.now += 2
      shown.show('a', 10)
    shown.end_job()
    assert shown.rate == 5
  clock.now += 50
  shown.show('a', 10)
  assert shown.rate == 5 and shown.left() == 18


def test_a_job_of_one_report_takes_its_whole_time(clock):
  shown = Progress(30, 'steps', jobs=3, clock=clock)
  for seconds in (10, 20, 40):
    clock.now += seconds
    shown.show('a', 10)
    shown.end_job()
  assert shown.rate == 20 / 60


def test_work_of_an_earlier_start_does_not_count(clock):
  shown = Progress(1_000, 'steps', clock=clock)
  shown.skip(900)
  shown.show('a', 1)
  clock.now += 1
  shown.show('a', 1)
  assert (shown.rate, shown.left()) == (1, 98)
  shown.skip(90)  # of the next block
  clock.now += 1
  shown.show('a', 1)
  assert (shown.rate, shown.left()) == (1, 7)


def test_measuring_is_counted_once_a_job(clock, capsys):
  shown = Progress(30, 'steps', jobs=3, clock=clock, every=1e9)
  for _ in range(2):
    for _ in range(10):
      clock.now += 1
      shown.show('a', 1)
    for _ in range(2):  # a job may be measured several times
      with shown.measuring('a'):
        clock.now += 20
    shown.end_job()
  assert shown.rate == 1
  assert shown.left() == 10 + 40
  out = capsys.readouterr().out
  assert out.count('  a, measuring  ') == 4
  assert shown.facts() == {'steps a second': 1.0, 'seconds of measuring': 80.0}


def test_the_share_that_is_done_is_one_of_time(clock):
  shown = Progress(30, 'steps', jobs=3, clock=clock, every=1e9)
  assert shown.share() == 0
  for _ in range(10):
    clock.now += 1
    shown.show('a', 1)
  assert shown.share() == 1 / 3
  with shown.measuring('a'):
    clock.now += 20
    # How long it takes is not known.
    assert shown.left() == 20 and shown.share() == 1 / 3
  shown.end_job()
  assert shown.left() == 20 + 40 and shown.share() == 30 / 90
  for _ in range(20):
    clock.now += 1
    shown.show('a', 1)
  assert shown.share() == 50 / 90  # all is trained, and two jobs are not measured
  for _ in range(2):
    with shown.measuring('a'):
      clock.now += 20
    shown.end_job()
  assert (shown.left(), shown.share()) == (0, 1)


def _told(capsys):
  return capsys.readouterr().out.splitlines()[-1]


def test_a_line_says_that_measuring_is_left_until_it_is_known(clock, capsys):
  shown = Progress(30, 'steps', jobs=3, clock=clock, every=0, measures=True)
  with shown.measuring('a'):  # before training, as nothing of a job is done
    clock.now += 20
  for _ in range(10):
    clock.now += 1
    shown.show('a', 1)
    if shown.rate:
      assert _told(capsys).endswith(f' {30 - shown.work.done} s left and measuring')
  with shown.measuring('a'):
    clock.now += 20
  shown.show('a')
  assert _told(capsys) == ' 33%  a  1.00 steps/s, 2 min left'
  assert shown.left() == 20 + 2 * 40
  shown.end_job()
  assert shown.left() == 20 + 2 * 40


def test_a_run_that_measures_nothing_says_nothing_of_it(clock, capsys):
  shown = Progress(4, 'steps', clock=clock, every=0)
  for _ in range(3):
    clock.now += 1
    shown.show('a', 1)
  assert _told(capsys).endswith(' 1 s left')
  with shown.measuring('a'):
    assert _told(capsys) == ' 75%  a, measuring  1.00 steps/s, 1 s left and measuring'


def test_the_last_line_of_a_run_of_one_measurement(clock, capsys):
  shown = Progress(3, 'steps', clock=clock, every=0, measures=True)
  for _ in range(3):
    clock.now += 1
    shown.show('a', 1)
  with shown.measuring('a'):
    assert _told(capsys) == '100%  a, measuring  1.00 steps/s, measuring left'


@pytest.mark.parametrize('num', [1, 2, 5])
def test_a_job_that_measures_often_is_foretold_from_its_first_measurement(clock, num):
  shown = Progress(30, 'steps', jobs=3, clock=clock, every=1e9, measures=True)
  for _ in range(10 // num):
    clock.now += 1
    shown.show('a', 1)
  with shown.measuring('a'):
    clock.now += 7
  done = 10 // num
  assert shown.left() == 30 - done + 3 * num * 7 - 7


def test_what_is_left_is_true_in_a_run_of_equal_jobs(clock):
  """A simulated run of 4 jobs, 10 steps of 1 s and 2 measurements of 5 s in each."""
  shown = Progress(40, 'steps', jobs=4, clock=clock, every=1e9, measures=True)
  end, foretold = clock.now + 4 * 20, []
  for _ in range(4):
    for step in range(10):
      clock.now += 1
      shown.show('a', 1)
      if step in (4, 9):
        with shown.measuring('a'):
          clock.now += 5
      if clock.now > end - 4 * 20 + 6:
        foretold.append(shown.left() - (end - clock.now))
    shown.end_job()
  assert len(foretold) == 36 and not any(foretold)


@pytest.mark.parametrize('name, seconds, line', [
    ('lookup, none', 0.1,
     '  5%  lookup, none, loss 2.25  191 seed-steps/s, 36 min left and measuring'),
    ('lookup, none, seeds 0 to 7', 30,
     '  5%  lookup, none, seeds 0 to 7, loss 2.25, 30 s ago  '
     '36 min left and measuring'),
    ('lookup, layer_norm, seeds 0 to 7', 30,
     '  5%  lookup, layer_norm, seeds 0 to 7, loss 2.25, 30 s ago  36 min + measuring'),
    ('lookup_l2, layer_norm, seeds 8 to 15', 30,
     '  5%  lookup_l2, layer_norm, seeds 8 to 15, loss 2.25, 30 s ago  >36 min left'),
    ('lookup_larger, layer_norm, seeds 24 to 31', 30,
     '  5%  lookup_larger, layer_norm, seeds 24 to 31, loss 2.25  36 min + measuring'),
    ('lookup_larger, layer_norm, seeds 24 to 31, of a name too long', 30,
     '  5%  lookup_larger, layer_norm, seeds 24 to 31, of a…g, loss 2.25  '
     '>36 min left'),
])
def test_the_name_is_whole_as_long_as_the_rest_can_be_shorter(
    clock, capsys, name, seconds, line):
  shown = Progress(43_000 * 10, 'seed-steps', clock=clock, every=0, measures=True)
  for _ in range(3):
    clock.now += 1
    shown.show(f'{name}, loss 2.25', 191)
  shown.skip(21_500 - 3 * 191)
  clock.now += seconds
  shown._print(clock.now)
  assert _told(capsys) == line


def test_a_line_has_room_for_measuring(clock, capsys):
  shown = Progress(10**8, 'seed-steps', clock=clock, every=0, measures=True)
  for _ in range(3):
    clock.now += 10
    shown.show('a name that is too long for a line, loss 0.0123', 12_345)
    assert len(_told(capsys)) <= 80
  with shown.measuring('a name that is too long for a line'):
    for seconds, end in (
        (1, ' for 1 s  >22 h 30 min left'), (100, ' for 2 min  >22 h 30 min left'),
        (40_000, '  22 h 30 min + measuring')):
      clock.now += seconds
      shown._print(clock.now)
      line = _told(capsys)
      assert len(line) <= 80
      assert line == f'  0%  a name that is too long for a line, measuring{end}'


@pytest.mark.parametrize('room', range(-3, 30))
def test_a_text_is_cut_to_its_room(room):
  text = 'a name that is too long, loss 0.0123'
  short = module._short(text, room)
  assert len(short) == max(room, 0)
  assert room < 15 or short.endswith('loss 0.0123')


def test_a_line_every_half_minute_of_80_columns(clock, capsys):
  shown = Progress(1_000_000, 'seed-steps', clock=clock)
  for _ in range(7):
    clock.now += 10
    shown.show('a name that is far too long for a line ' * 3 + 'loss 0.0123', 12_000)
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 3 and all(len(line) <= 80 for line in lines)
  assert lines[-1].startswith('  8%  a name that is far too')
  assert lines[-1].endswith('… loss 0.0123  13 min left')


@pytest.mark.slow
def test_lines_go_on_while_nothing_is_reported(capfd):
  with Progress(2, 'steps', every=0.2) as shown:
    time.sleep(0.5)
    shown.show('a', 1)
    with shown.measuring('a'):
      time.sleep(1.5)
  lines = capfd.readouterr().out.splitlines()
  assert lines[0] == '  0%  computing  unknown time left', lines
  assert lines[-1] == ' 50%  a, measuring for 1 s  unknown time left'
  assert 5 <= len(lines) <= 14
  time.sleep(0.5)
  assert capfd.readouterr().out == ''


@pytest.mark.parametrize('seconds, words', [
    (20.4, '20 s'), (59, '59 s'), (61, '1 min'), (3540, '59 min'), (3600, '1 h 00 min'),
    (7500, '2 h 05 min'), (float('inf'), 'unknown time')])
def test_durations_in_words(seconds, words):
  assert module._words(seconds) == words


def test_work_without_amounts_is_shown(capsys):
  with Progress(0, 'seed-steps', 0) as shown:
    shown.show('interventions')
    assert shown.left() == 0
  assert 'interventions' in capsys.readouterr().out


def test_a_measurement_counts_while_it_is_under_way(clock):
  # Jobs of 10 steps at 1 a second, each then measured in 20 s: 5 s, then 15 s by parts.
  shown = Progress(30, 'steps', jobs=3, clock=clock, every=1e9, measures=True)
  for _ in range(10):
    clock.now += 1
    shown.show('a', 1)
  with shown.measuring('a') as done:
    clock.now += 5  # compiling
    done(0.0)
    clock.now += 0.3
    done(0.02)
    assert not estimate.knows_measuring(estimate.during(shown.work, clock()))
    clock.now += 2.7
    done(0.2)
    # Two jobs of 30 s, and what the measurement takes at the speed of its last part.
    assert shown.left() == pytest.approx(2 * 30 + 12)
    clock.now += 6
    assert shown.left() == pytest.approx(2 * 30 + 6)
    assert shown.share() == pytest.approx(24 / 90)
    clock.now += 6
    done(1.0)
  shown.end_job()
  assert shown.left() == pytest.approx(2 * 30)
  for _ in range(10):
    clock.now += 1
    shown.show('a', 1)
  with shown.measuring('a'):  # nothing is said of its parts: as long as the first one
    clock.now += 15
    assert shown.left() == pytest.approx(30 + 5)
    clock.now += 15
    assert shown.left() == pytest.approx(30)
