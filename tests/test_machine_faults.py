"""Runs on machines whose clock jumps, or whose bucket is out of reach."""

import importlib.util
import os
import shutil
import subprocess
import sys

from etils import epath
import pytest

from experiments.harness import paths
from tests.conftest import ROOT

_COMMAND = (sys.executable, '-m', 'experiments.linear_attention',
            '--config=configs/linear_attention.py:smoke', "--config.tasks=('mean',)",
            '--config.train_lengths=(5,)', '--config.train.save_every_seconds=0.001')
# Python runs this file first. Every third reading of the clock is a day off.
_CLOCK = '''
import itertools, time
_right, _reading = time.time, itertools.count()
time.time = lambda: _right() + 86_400 * (0, 1, -1)[next(_reading) % 3]
'''


def _run(workdir, **environment):
  return subprocess.run(
      [*_COMMAND, f'--workdir={workdir}'], cwd=ROOT, capture_output=True, text=True,
      check=False, timeout=300, env={**os.environ, **environment})


@pytest.mark.slow
def test_a_clock_that_jumps_changes_nothing(tmp_path):
  (tmp_path / 'sitecustomize.py').write_text(_CLOCK)
  path = os.pathsep.join([str(tmp_path), os.environ.get('PYTHONPATH', '')])
  for name, environment in (('right', {}), ('jumping', {'PYTHONPATH': path})):
    done = _run(tmp_path / name, **environment)
    assert done.returncode == 0, done.stderr
  jumped = subprocess.run(
      [sys.executable, '-c', 'import time; print(time.time() - time.time())'],
      capture_output=True, text=True, check=True,
      env={**os.environ, 'PYTHONPATH': path})
  assert abs(float(jumped.stdout)) > 80_000
  right, jumping = (tmp_path / name for name in ('right', 'jumping'))
  assert (jumping / 'results.csv').read_bytes() == (right / 'results.csv').read_bytes()
  steps = lambda folder: sorted(
      path.name for path in folder.glob('checkpoints/*/*/*') if path.name.isdigit())
  assert steps(jumping) == steps(right) != []


# Mounts a small disk, which ends with this script, on which the second checkpoint of a
# run has no room; then makes room, and starts the run again.
_FULL = '''
set -u
folder=$1; shift
mount -t tmpfs -o size=4m none "$folder"
fallocate -l 3896K "$folder/filler"
"$@" --workdir="$folder/run"
echo "code $? of the full disk; checkpoints: $(ls "$folder"/run/checkpoints/*/*)"
rm "$folder/filler"
"$@" --workdir="$folder/run"
echo "code $? of the emptied disk"
cat "$folder/run/results.csv" > "$folder.csv"
'''


@pytest.mark.slow
def test_a_disk_that_is_full_while_a_checkpoint_is_saved(tmp_path):
  (tmp_path / 'disk').mkdir()
  namespace = ['unshare', '--map-root-user', '--mount']
  can_mount = shutil.which('unshare') and not subprocess.run(
      [*namespace, 'mount', '-t', 'tmpfs', 'none', tmp_path / 'disk'],
      capture_output=True, check=False).returncode
  if not can_mount:
    pytest.skip('a disk cannot be mounted without root: unshare --map-root-user')
  done = subprocess.run(
      [*namespace, 'bash', '-c', _FULL, 'bash', tmp_path / 'disk', *_COMMAND],
      cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
  assert 'code 2 of the full disk; checkpoints: 200\n' in done.stdout, done.stderr
  assert 'code 0 of the emptied disk' in done.stdout, done.stderr
  [line] = done.stderr.splitlines()
  assert line.startswith('Error: Could not save the checkpoint ')
  assert 'No space left on device' in line
  assert _run(tmp_path / 'unbroken').returncode == 0
  assert ((tmp_path / 'disk.csv').read_bytes()
          == (tmp_path / 'unbroken/results.csv').read_bytes())


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec('gcsfs') is None,
                    reason="needs gcsfs: pip install '.[gcs]'")
def test_a_bucket_that_cannot_be_reached_is_one_line():
  done = _run('gs://bucket/run', STORAGE_EMULATOR_HOST='http://127.0.0.1:9')
  assert (done.returncode, done.stdout) == (75, '')
  assert done.stderr.startswith(
      "Error: --workdir 'gs://bucket/run' cannot be reached: Cannot connect to host")
  assert len(done.stderr.splitlines()) == 1


# Runs an experiment that finds no server when it saves its third checkpoint.
_FAILING = '''
import itertools, runpy, socket, sys
from vvlen.training import checkpoint
manager, saved = checkpoint._manager, itertools.count()
def failing(folder):
  if 'save' in sys._getframe(1).f_code.co_name and next(saved) == 2:
    with socket.socket() as free:
      free.bind(('127.0.0.1', 0))
      address = free.getsockname()
    socket.create_connection(address)
  return manager(folder)
checkpoint._manager = failing
sys.argv[0] = 'linear_attention'
runpy.run_module('experiments.linear_attention', run_name='__main__', alter_sys=True)
'''


@pytest.mark.slow
def test_a_network_that_fails_in_mid_run_is_one_line_and_the_run_resumes(tmp_path):
  failed = subprocess.run(
      [sys.executable, '-c', _FAILING, *_COMMAND[3:], f'--workdir={tmp_path}/failed'],
      cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
  assert failed.returncode == 75, failed.stderr
  [line] = failed.stderr.splitlines()
  assert line.startswith('Error: Could not save the checkpoint ')
  assert line.endswith('The network or a bucket failed: run the same command again.')
  for name in ('failed', 'unbroken'):
    done = _run(tmp_path / name)
    assert done.returncode == 0, done.stderr
    assert ('resumed at step' in done.stdout) == (name == 'failed')
  assert ((tmp_path / 'failed/results.csv').read_bytes()
          == (tmp_path / 'unbroken/results.csv').read_bytes())


def test_a_bucket_that_may_not_be_read_is_named(monkeypatch):

  def forbidden(_):
    raise OSError('Forbidden: no storage.objects.get access')

  monkeypatch.setattr(type(epath.Path('gs://bucket/run')), 'exists', forbidden)
  with pytest.raises(ValueError, match=r"--workdir 'gs://bucket/run' cannot be "
                                       'reached: Forbidden: no storage'):
    paths.check_reachable('gs://bucket/run', '--workdir')
  paths.check_reachable('runs/x', '--workdir')
