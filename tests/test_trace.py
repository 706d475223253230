"""--trace: a short profile of a run, which changes nothing else."""

import os
import subprocess
import sys
import time

from etils.epath import testing
import jax
import jax.numpy as jnp
from jax.profiler import ProfileData
import pytest

from experiments.harness.progress import Progress
from experiments.harness.trace import Trace
from tests.conftest import ROOT, run_two_processes

# One block of two seeds, 600 steps in calls of 200.
_COMMAND = (sys.executable, '-m', 'experiments.linear_attention',
            '--config=configs/linear_attention.py:smoke', "--config.tasks=('mean',)",
            '--config.train_lengths=(5,)')


def _profiles(folder):
  return list(folder.glob('trace/plugins/profile/*/*.xplane.pb'))


def _work():
  jax.block_until_ready(jax.jit(jnp.sin)(jnp.arange(8.0)))


@pytest.mark.slow
def test_a_run_with_the_flag_has_a_trace_and_the_same_results(tmp_path):
  said = {}
  for name, flags in (('without', ()), ('with', ('--trace',))):
    done = subprocess.run(
        [*_COMMAND, f'--workdir={tmp_path / name}', *flags], cwd=ROOT,
        capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, 'JAX_NUM_CPU_DEVICES': '1'})
    assert done.returncode == 0, done.stderr
    said[name] = done.stdout
  [profile] = _profiles(tmp_path / 'with')
  names = [event.name for plane in ProfileData.from_file(str(profile)).planes
           for line in plane.lines for event in line.events]
  # A call of a program, which was compiled before; calls of Python are left out.
  assert any('PjitFunction(' in name for name in names)
  assert not any('ompile' in name or '.py' in name for name in names)
  assert f'Trace written: xprof --logdir={tmp_path}/with/trace\n' in said['with']
  assert 'race' not in said['without'] and not _profiles(tmp_path / 'without')
  for name in ('results.csv', 'metrics.jsonl'):
    both = [(tmp_path / run / name).read_bytes() for run in ('with', 'without')]
    assert both[0] == both[1], name


@pytest.mark.slow
def test_the_first_of_two_processes_writes_the_trace(tmp_path):
  run_two_processes([*_COMMAND, f'--workdir={tmp_path}/run', '--trace'], num_devices=1)
  assert len(_profiles(tmp_path / 'run')) == 1


@pytest.mark.slow
@pytest.mark.profiles
def test_only_work_between_two_reports_is_traced(tmp_path, capsys):
  with (Trace(tmp_path, asked=True) as trace,
        Progress(4, 'steps', on_work=trace.report) as progress):
    progress.show('compiling')  # no work done
    progress.show('one', 1)
    _work()
    assert not _profiles(tmp_path)
    progress.show('two', 1)
    assert len(_profiles(tmp_path)) == 1
    progress.show('three', 1)
    _work()
    progress.show('four', 1)
  assert len(_profiles(tmp_path)) == 1
  assert capsys.readouterr().out.count('Trace written') == 1


@pytest.mark.slow
@pytest.mark.profiles
def test_a_trace_ends_in_time_and_with_the_run(tmp_path):
  with Trace(tmp_path / 'long', asked=True, seconds=0.2) as trace:
    trace.report()
    _work()
    deadline = time.monotonic() + 60
    while not _profiles(tmp_path / 'long'):
      assert time.monotonic() < deadline
      time.sleep(0.01)
  with pytest.raises(KeyError), Trace(tmp_path / 'cut', asked=True) as trace:
    trace.report()
    _work()
    raise KeyError
  assert len(_profiles(tmp_path / 'long')) == len(_profiles(tmp_path / 'cut')) == 1


@pytest.mark.slow
@pytest.mark.profiles
def test_a_trace_that_cannot_be_made_is_one_line(tmp_path, capsys):
  (tmp_path / 'trace').write_text('a file')
  with Trace(tmp_path, asked=True) as trace:
    trace.report()
    _work()
  with Trace(tmp_path, asked=True) as first, Trace(tmp_path, asked=True) as second:
    first.report()
    second.report()  # a process has one profiler
  lines = [line for line in capsys.readouterr().out.splitlines() if 'No trace' in line]
  assert len(lines) == 3 and 'Only one profile' in lines[1]


@pytest.mark.slow
@pytest.mark.profiles
def test_a_trace_is_written_to_a_bucket(tmp_path):

  def mapped(function, *arguments, **options):
    return function(*(
        x.replace('gs://bucket', str(tmp_path)) if isinstance(x, str) else x
        for x in (os.fspath(arguments[0]), *arguments[1:])), **options)

  names = ('open', 'exists', 'isdir', 'mkdir', 'makedirs', 'replace')
  with testing.mock_epath(**dict.fromkeys(names, mapped)):
    with Trace('gs://bucket/run', asked=True) as trace:
      trace.report()
      _work()
  assert len(_profiles(tmp_path / 'run')) == 1
