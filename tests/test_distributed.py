"""Experiments as two processes of one run: results.csv as of one process."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from experiments.harness import lost_process
from tests.conftest import free_port, ROOT, run_two_processes

# Three seeds are not a multiple of two devices.
SEEDS = ('--config.num_seeds=3', '--config.train.seeds_at_once=3')
LINEAR = ('linear_attention', '--config=configs/linear_attention.py:smoke', *SEEDS,
          "--config.tasks=('mean',)", '--config.train_lengths=(5,)')
RETRIEVAL = ('length_generalization', '--config=configs/retrieval.py:smoke', *SEEDS,
             "--config.arms=('layer_norm',)", '--config.evaluate.lengths=(16,32)',
             '--config.evaluate.histogram_lengths=(16,)')
COUNTING = ('counting', '--config=configs/counting.py:smoke_length', *SEEDS,
            '--config.model.num_layers=1',
            '--config.figures.figure_4_length.train_lengths=(5,)')
RECENCY = ('recency_bias', '--config=configs/recency_bias.py:smoke',
           '--config.anisotropies=(0.5,)', '--config.panels.widths=(16,)',
           '--config.heads.num_heads=(2,)', *(f'--config.{field}=()' for field in (
               'depth.num_tokens', 'depth.num_simulations', 'norms.widths',
               'positions.anisotropies', 'map.widths')))
SENSITIVITY = ('sensitivity', '--config=configs/sensitivity.py:smoke',
               "--config.run=('base','l2')", '--config.base.evaluate.lengths=(16,32)',
               '--config.base.model.width=8', '--config.at_steps=(10,)',
               "--config.cells.base.arms=('none','layer_norm')",
               "--config.cells.l2.arms=('none','layer_norm')")
TOGETHER = ('language_model', '--config=configs/language_model.py:smoke',
            f'--config.text.path={ROOT / "LICENSE"}',
            '--config.evaluate.lengths=(1,2)', '--config.evaluate.offsets=(0.25,)')


def _command(study, *flags):
  return [sys.executable, '-m', f'experiments.{study}', *flags]


def _alone(arguments, workdir):
  done = subprocess.run(
      [*_command(*arguments), f'--workdir={workdir}'], cwd=ROOT, capture_output=True,
      text=True, check=False, timeout=900,
      env={**os.environ, 'JAX_NUM_CPU_DEVICES': '2'})
  assert done.returncode == 0, done.stderr


def _check(arguments, tmp_path, alone=None):
  """Runs an experiment alone and as two processes, and compares what they write.

  If a folder of the run alone is given, that is not run again.
  """
  if alone is None:
    alone = tmp_path / 'alone'
    _alone(arguments, alone)
  said = run_two_processes(
      [*_command(*arguments), f'--workdir={tmp_path}/both'], num_devices=1)
  assert 'results' in said[0] or 'tables' in said[0]
  # Only warnings of libraries come from the second one.
  assert not any(word in said[1] for word in ('Error', 'Traceback', 'tables'))
  for path in alone.rglob('*'):
    if path.name in ('results.csv', 'metrics.jsonl'):
      other = tmp_path / 'both' / path.relative_to(alone)
      assert other.read_bytes() == path.read_bytes(), path
  names = lambda folder: sorted(
      str(path.relative_to(folder)) for path in folder.rglob('*')
      if path.is_file() and not {'checkpoints', 'tensorboard'} & {*path.parts})
  assert names(tmp_path / 'both') == names(alone)
  sessions = json.loads((tmp_path / 'both/config.json').read_text())['sessions']
  assert len(sessions) == 1 and sessions[0]['device'].startswith('2 x ')


@pytest.mark.slow
def test_two_processes_write_the_results_of_one(tmp_path, fast_compilation):
  _check(LINEAR, tmp_path)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    'arguments', [COUNTING, RECENCY, SENSITIVITY, TOGETHER],
    ids=lambda arguments: arguments[0])
def test_two_processes_of_a_longer_experiment_write_the_results_of_one(
    arguments, tmp_path, fast_compilation):
  _check(arguments, tmp_path)


@pytest.fixture(scope='module')
def retrieval(tmp_path_factory, fast_compilation):
  """The folder of a run of argmax retrieval, as one process."""
  folder = tmp_path_factory.mktemp('retrieval') / 'alone'
  _alone(RETRIEVAL, folder)
  return folder


@pytest.mark.slow
def test_two_processes_of_argmax_retrieval_write_the_results_of_one(
    retrieval, tmp_path):
  _check(RETRIEVAL, tmp_path, retrieval)


@pytest.mark.long
@pytest.mark.slow
def test_mechanism_measures_in_two_processes(retrieval, tmp_path):
  _check(('mechanism', '--config=configs/mechanism.py:smoke',
          "--config.arms=('layer_norm',)", '--config.lengths=(16,32)',
          f'--config.trained={retrieval}'), tmp_path)


LONG = (*LINEAR, '--config.train.num_steps=200000',
        '--config.train.steps_per_call=100', '--config.train.save_every_seconds=0')


def _send(number, workdir, to=1, arguments=LONG):
  """Sends a signal to one of two processes that train for long, the second by default.

  If that stops the second one, it goes on when the first has ended.

  Returns:
    The exit codes and what they say on standard error.
  """
  port = free_port()
  workers = [
      subprocess.Popen(
          [*_command(*arguments), f'--workdir={workdir}', '--distributed'], cwd=ROOT,
          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={
              **os.environ, 'JAX_NUM_CPU_DEVICES': '1',
              'JAX_COORDINATOR_ADDRESS': f'127.0.0.1:{port}',
              'JAX_NUM_PROCESSES': '2', 'JAX_PROCESS_ID': str(number)})
      for number in range(2)]
  deadline = time.monotonic() + 300
  # A complete one, of a step such as 100; others have longer names.
  while not list(workdir.glob('checkpoints/*/*/*00/_CHECKPOINT_METADATA')):
    assert time.monotonic() < deadline and workers[1].poll() is None
    time.sleep(0.1)
  workers[to].send_signal(number)
  said = [workers[0].communicate(timeout=300)[1]]
  workers[1].send_signal(signal.SIGCONT)
  said.append(workers[1].communicate(timeout=300)[1])
  return [worker.returncode for worker in workers], said


@pytest.mark.slow
def test_a_process_that_a_cluster_has_started_joins_the_run(tmp_path, fast_compilation):
  # As srun starts it: JAX finds the cluster by itself.
  environment = {name: value for name, value in os.environ.items()
                 if not name.startswith('JAX_')}
  done = subprocess.run(
      [*_command(*LINEAR), f'--workdir={tmp_path}/run', '--distributed'], cwd=ROOT,
      capture_output=True, text=True, check=False, timeout=300, env={
          **environment, 'JAX_PLATFORMS': 'cpu', 'SLURM_JOB_ID': '77',
          'SLURM_STEP_NODELIST': 'localhost', 'SLURM_NTASKS': '1', 'SLURM_PROCID': '0',
          'SLURM_LOCALID': '0', 'SLURM_STEP_NUM_NODES': '1'})
  assert done.returncode == 0, done.stderr
  assert 'Open ' in done.stdout and (tmp_path / 'run/index.html').exists()


@pytest.mark.slow
def test_processes_save_at_the_same_steps_whatever_their_clocks(
    tmp_path, fast_compilation):
  arguments = (*LINEAR, '--config.train.num_steps=4000',
               '--config.train.steps_per_call=10',
               '--config.train.save_every_seconds=0.2')
  run_two_processes([*_command(*arguments), f'--workdir={tmp_path}'], 1)
  saved = [*tmp_path.glob('checkpoints/*/*/*/_CHECKPOINT_METADATA')]
  assert {path.parent.name for path in saved} >= {'4000'}


@pytest.mark.slow
def test_sigterm_to_one_process_stops_both_at_one_step(tmp_path, fast_compilation):
  codes, said = _send(signal.SIGTERM, tmp_path)
  assert codes == [143, 143], said
  told = [next(line for line in text.splitlines() if 'Told to stop' in line)
          for text in said]
  assert told[0] == told[1] and told[0].endswith('The same command resumes the run.')
  saved = tmp_path.glob('checkpoints/*/*/*/_CHECKPOINT_METADATA')
  last = max(int(path.parent.name) for path in saved)
  assert f'after step {last} of 200000, saved.' in told[0]


@pytest.mark.long
@pytest.mark.slow
def test_a_process_without_its_peer_ends_in_one_line(tmp_path, fast_compilation):
  long = (*LINEAR, '--config.train.num_steps=20000',
          '--config.train.steps_per_call=100', '--config.train.save_every_seconds=0')
  codes, said = _send(signal.SIGKILL, tmp_path / 'both', arguments=long)
  # JAX aborts it, if it misses the heartbeats of the other before its own error comes.
  assert codes[0] in (1, -signal.SIGABRT) and codes[1] == -signal.SIGKILL, said
  line, = [line for line in said[0].splitlines() if 'Error' in line]
  assert line.startswith('Error: another process of the run has ended')
  assert line.endswith('The same command resumes the run.')
  # Started again, both resume, and end with the results of an unbroken run. They save
  # less often, which changes no result.
  long = (*long[:-1], '--config.train.save_every_seconds=60')
  said = run_two_processes([*_command(*long), f'--workdir={tmp_path}/both'], 1)
  assert 'resumed at step' in said[0]
  _alone(long, tmp_path / 'alone')
  results = [(tmp_path / name / 'results.csv').read_bytes()
             for name in ('both', 'alone')]
  assert results[0] == results[1]


@pytest.mark.long
@pytest.mark.slow
def test_a_process_whose_peer_hangs_ends_in_one_line(tmp_path, fast_compilation):
  codes, said = _send(signal.SIGSTOP, tmp_path)
  # JAX aborts both, if the error of a barrier does not come first.
  assert {*codes} <= {1, -signal.SIGABRT}, said
  for text in said:
    line, = text.splitlines()
    assert line.startswith('Error: another process of the run has ended')


@pytest.mark.slow
def test_a_process_without_the_first_ends_in_one_line(tmp_path, fast_compilation):
  codes, said = _send(signal.SIGKILL, tmp_path, to=0)
  # JAX aborts it, if its own error does not come first.
  assert codes[0] == -signal.SIGKILL and codes[1] in (1, -signal.SIGABRT), said
  line, = said[1].splitlines()
  assert line.startswith('Error: another process of the run has ended')
  assert line.endswith('The same command resumes the run.')


_WARNING = 'W1126 06:38:57.815743    9871 preemption_sync_manager.cc:147] Failed: x\n'
_FATAL = ('F1126 06:38:57.815881    9871 client.h:80] Terminating process because the '
          'JAX distributed service detected fatal errors.\n')
_SERVICE = ('E1126 06:38:57.815743    9871 coordination_service.cc:1549] [7774] Use '
            'error polling to propagate the following error to all tasks:\n')
_CRASHED = "The tasks have crashed. [type.googleapis.com/CoordinationServiceError='']\n"
_AGENT = ('E1126 06:38:57.815881    9871 coordination_service_agent.cc:289] Polled an '
          'error from coordination service.\n')
_MORE = 'Additional GRPC error information from remote target:\n'
_TRACE = '    @     0x7fedce440634  absl::lts_20260107::log_internal::LogMessage\n'
_OURS = 'Error: another process of the run has ended: closed.\n'
_OTHER = 'E1126 06:38:57.815881    9871 pjrt.cc:80] something else\n'


@pytest.mark.parametrize('lines, expected', [
    (['a\n', _WARNING, _MORE, _FATAL, _MORE, _TRACE, '\n'],
     ['a\n', lost_process.ENDED]),
    ([_FATAL, _TRACE, _FATAL], [lost_process.ENDED]),
    # As of jax 0.12.
    ([_WARNING, ':UNAVAILABLE:closed\n', '=== Source Location Trace: ===\n',
      'external/xla+/x.h:89\n', '. This is only expected\n', _FATAL, '\n'],
     [lost_process.ENDED]),
    ([_WARNING, _MORE, _OURS, _FATAL, _TRACE], [_OURS]),
    # The process that has the service, whose peer misses its heartbeats.
    ([_SERVICE, '1\n', _CRASHED, _AGENT, _FATAL, '1\n', _CRASHED, _OURS],
     [lost_process.ENDED]),
    ([_SERVICE, '1\n', _CRASHED, _OURS, _AGENT, _FATAL], [_OURS]),
    # What belongs to something else stays, in its order.
    ([_WARNING, _MORE, _OTHER, _TRACE], [_WARNING, _MORE, _OTHER, _TRACE]),
    ([_MORE, _TRACE, _WARNING], [_MORE, _TRACE, _WARNING]),
    ([_WARNING, 'Traceback (most\n', 'x\n'], [_WARNING, 'Traceback (most\n', 'x\n']),
])
def test_messages_of_a_lost_process_become_one_line(lines, expected):
  assert [*lost_process.shortened(lines)] == expected
