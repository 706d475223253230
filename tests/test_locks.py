"""Locks of folders: two processes exclude each other, and nothing else is touched."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from experiments.harness import locks
from tests.conftest import ROOT

_HOLD = """
import sys
from experiments.harness import locks
try:
  locks.lock(sys.argv[1])
except ValueError as error:
  print(error, flush=True)
  sys.exit(2)
print('locked', flush=True)
sys.stdin.read()
locks.release()
"""


@pytest.fixture(autouse=True)
def _released():
  yield
  locks.release()


def _holder(folder, **environment):
  """Starts a process that locks a folder until its input ends; returns what it says."""
  process = subprocess.Popen(
      [sys.executable, '-c', _HOLD, str(folder)], cwd=ROOT, text=True,
      stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment})
  return process, process.stdout.readline().strip()


def test_processes_with_different_temporary_folders_exclude_each_other(tmp_path):
  folder, other = tmp_path / 'run', tmp_path / 'other'
  other.mkdir()
  first, said = _holder(folder)
  assert said == 'locked'
  second, said = _holder(folder, TMPDIR=str(other))
  assert said == f'another process is at work in {folder}'
  second.communicate()
  first.communicate('')
  assert not folder.exists()  # it was made for the lock alone
  third, said = _holder(folder, TMPDIR=str(other))
  assert said == 'locked'
  third.communicate('')
  assert list(other.iterdir()) == []


def test_what_a_killed_process_left_locks_nothing_and_is_removed(tmp_path):
  first, _ = _holder(tmp_path)
  first.send_signal(signal.SIGKILL)
  first.communicate()
  assert (tmp_path / '.vvlen.lock').exists()
  locks.lock(str(tmp_path))
  with pytest.raises(ValueError, match=f'^another process is at work in {tmp_path}$'):
    locks.lock(str(tmp_path))
  locks.release()
  assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_removed_while_it_was_taken_is_taken_again(
    tmp_path, monkeypatch
):
  path, taken = tmp_path / '.vvlen.lock', []

  def too_late(handle, workdir):
    if not taken:
      path.unlink()  # as a process does that ends
    taken.append(handle)
    return real(handle, workdir)

  real = locks._lock_file
  monkeypatch.setattr(locks, '_lock_file', too_late)
  locks.lock(str(tmp_path))
  assert len(taken) == 2 and path.exists()
  _, said = _holder(tmp_path)
  assert said == f'another process is at work in {tmp_path}'


def test_a_link_is_not_followed_and_content_is_kept(tmp_path):
  path, precious = tmp_path / 'run/.vvlen.lock', tmp_path / 'precious'
  path.parent.mkdir()
  precious.write_text('mine')
  path.symlink_to(precious)
  with pytest.raises(ValueError, match=r'\.vvlen\.lock cannot be opened to lock the'):
    locks.lock(str(path.parent))
  assert path.is_symlink()
  path.unlink()
  os.link(precious, path)
  locks.lock(str(path.parent))
  locks.release()
  assert precious.read_text() == path.read_text() == 'mine'


@pytest.mark.parametrize('make', [pathlib.Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_named(tmp_path, make):
  make(tmp_path / '.vvlen.lock')
  with pytest.raises(ValueError, match=r'/\.vvlen\.lock (cannot be|is not a file)'):
    locks.lock(str(tmp_path))


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
  (tmp_path / 'file').write_text('mine')
  with pytest.raises(ValueError, match="/run' cannot be made: Not a directory"):
    locks.lock(str(tmp_path / 'file' / 'run'))
  assert (tmp_path / 'file').read_text() == 'mine' and locks._held == []


def test_a_folder_that_cannot_be_written_to_needs_no_lock(tmp_path, monkeypatch):
  def refuse(*_):
    raise PermissionError(13, 'Permission denied')

  monkeypatch.setattr(os, 'open', refuse)
  locks.lock(str(tmp_path))
  assert locks._held == []


def test_a_bucket_is_locked_by_a_file_of_the_temporary_folder(tmp_path, monkeypatch):
  monkeypatch.setattr(locks.tempfile, 'gettempdir', lambda: str(tmp_path))
  locks.lock('gs://bucket/run')
  with pytest.raises(ValueError, match='another process is at work in gs:'):
    locks.lock('gs://bucket/run/')
  locks.lock('gs://bucket/other')
  assert len(list(tmp_path.iterdir())) == 2
