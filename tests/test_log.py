"""What a run prints is kept in its folder."""

import datetime
import io
import os
import re
import subprocess
import sys

import pytest
import rich.console

from experiments.harness import log, progress
from experiments.harness.progress import Progress
from tests.conftest import lose_rows, ROOT
from vvlen.reporting import results


@pytest.fixture
def start_log():
  """Returns `log.start`; after the test, the streams are what they were."""
  yield log.start  # not called here: pytest changes the streams before the test
  log.close()


def _columns(folder):
  """Returns the rate and the text of each line, after checking its time."""
  lines = []
  for line in (folder / 'log.txt').read_text().splitlines():
    time, rate, text = line.split('\t')
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(time)
    assert 0 <= age.total_seconds() < 600
    lines.append((rate, text))
  return lines


def test_what_is_printed_before_and_after_is_there_with_its_time(start_log, tmp_path):
  start_log()
  print('before')
  assert not list(tmp_path.iterdir())
  log.open_in(tmp_path)
  print('one\n\ntwo', end='')
  print(' words', 3, file=sys.stdout)
  print('a warning', file=sys.stderr)
  assert _columns(tmp_path) == [
      ('', 'before'), ('', 'one'), ('', 'two words 3'), ('', 'a warning')]


def test_a_second_start_appends(capsys, tmp_path):
  for word in ('first', 'second'):
    log.start()
    log.open_in(tmp_path)
    print(word)
    log.close()
    print('not of a run')
  assert _columns(tmp_path) == [('', 'first'), ('', 'second')]
  assert capsys.readouterr().out == (
      'first\nnot of a run\nsecond\nnot of a run\n')


def test_lines_of_progress_have_their_rate(start_log, tmp_path, capsys):
  start_log()
  log.open_in(tmp_path)
  seconds = iter(range(0, 1000, 20))
  work = Progress(100, 'steps', clock=lambda: next(seconds))
  for _ in range(4):
    work.show('arm', 10)
  rates, texts = zip(*_columns(tmp_path), strict=True)
  assert rates[0] == '' and float(rates[1]) == pytest.approx(10 / 40)
  assert texts == tuple(capsys.readouterr().out.splitlines())


def test_on_a_terminal_the_bar_is_not_in_the_log_but_lines_are(tmp_path, monkeypatch):
  terminal = io.StringIO()
  terminal.isatty = lambda: True
  monkeypatch.setattr(sys, 'stdout', terminal)
  monkeypatch.setenv('TERM', 'xterm')
  monkeypatch.setattr(progress, 'console', rich.console.Console())
  log.start()
  log.open_in(tmp_path)
  with Progress(100, 'steps') as work:
    print('above the bar')
    work.show('arm, loss 0.5', 10)
  print('after it')
  log.close()
  assert sys.stdout is terminal
  (_, above), (rate, line), (_, after) = _columns(tmp_path)
  assert (above, after, rate) == ('above the bar', 'after it', '')
  assert re.fullmatch(r' 10%  arm, loss 0.5  unknown time left', line), line
  shown = terminal.getvalue()
  assert shown.count('above the bar') == shown.count('after it') == 1
  assert '\x1b[' in shown and 'unknown time left' in shown


def test_a_folder_that_cannot_be_written_to_is_told_once(start_log, tmp_path, capsys):
  start_log()
  log.open_in(tmp_path)
  print('one')
  (tmp_path / 'log.txt').unlink()
  (tmp_path / 'log.txt').mkdir()
  print('two')
  print('three')
  said = capsys.readouterr()
  assert said.out == 'one\ntwo\nthree\n'
  assert re.fullmatch(rf'{tmp_path}/log.txt cannot be written: .*Is a directory.*\. '
                      r'The run goes on without it\.\n', said.err)


class _InBucket:
  """log.txt in a bucket that has a line of an earlier start."""

  content = 'earlier\n'

  def __init__(self, folder):
    self._folder = folder

  def __truediv__(self, name):
    return _InBucket(f'{self._folder}/{name}')

  def __fspath__(self):
    return self._folder

  def exists(self):
    return True

  def read_text(self):
    return _InBucket.content


def test_in_a_bucket_it_is_written_once_a_minute(start_log, monkeypatch):
  start_log()
  writes, now = [], [1000.0]
  monkeypatch.setattr(log.epath, 'Path', _InBucket)
  monkeypatch.setattr(log.time, 'monotonic', lambda: now[0])
  monkeypatch.setattr(
      results, 'write_text', lambda path, text: writes.append((os.fspath(path), text)))
  print('0')
  log.open_in('gs://bucket/run')
  for _ in range(12):
    now[0] += 10.0
    print(now[0])
  assert len(writes) == 3
  print('the last')
  log.close()
  assert {path for path, _ in writes} == {'gs://bucket/run/log.txt'}
  lines = writes[-1][1].splitlines()
  assert lines[0] == 'earlier'
  assert [line.split('\t')[2] for line in lines[1:]] == [
      '0', *(str(1010.0 + 10 * i) for i in range(12)), 'the last']
  assert len(writes) == 4


@pytest.mark.slow
def test_a_run_leaves_its_log_and_a_refused_one_adds_nothing(
    tmp_path, fast_compilation):
  command = [
      sys.executable, '-m', 'experiments.linear_attention',
      '--config=configs/linear_attention.py:smoke', f'--workdir={tmp_path}/run']
  start = lambda *more: subprocess.run(
      [*command, *more], cwd=ROOT, capture_output=True, text=True, check=False,
      timeout=600)
  done = start()
  assert done.returncode == 0, done.stderr
  kept = _columns(tmp_path / 'run')
  said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
  assert sorted(text for _, text in kept) == sorted(said)
  assert any(re.search(r'% .* left$', text) for _, text in kept)
  # What is finished is only shown, and another run is refused.
  assert start().returncode == 0
  assert start('--config.optimizer.learning_rate=0.5').returncode == 2
  assert _columns(tmp_path / 'run') == kept
  lose_rows(tmp_path / 'run')
  assert start().returncode == 0
  assert len(_columns(tmp_path / 'run')) > len(kept)
