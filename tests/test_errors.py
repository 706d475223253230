"""A run that fails ends with one line for wrong input, with a traceback for a bug."""

import asyncio
import gc
import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.harness import command_line, errors
from tests.conftest import ROOT
from vvlen.models.kernels.causal import causal_attention
from vvlen.reporting import results, run_folder
from vvlen.training.checkpoint import restore


@pytest.fixture
def ending(staying, monkeypatch, capsys):
  """Returns a function that runs a main, and returns exit code and standard error."""
  monkeypatch.setattr(sys, 'argv', [
      'main', f'--config={ROOT}/configs/retrieval.py:smoke', '--workdir=unused'])

  def run(main):
    with pytest.raises(SystemExit) as left:
      command_line.run(lambda config, workdir: main(), needs=('task', 'train'))
    out, err = capsys.readouterr()
    assert out == ''
    return left.value.code, err

  return run


def _raise(error):
  raise error


def _damaged_rows(tmp_path):
  (tmp_path / 'results.csv').write_text('experiment,arm\n')
  results.read_rows(tmp_path / 'results.csv')


def _damaged_config(tmp_path):
  (tmp_path / 'config.json').write_text('{')
  run_folder.claim(tmp_path, {}, {})


def _damaged_checkpoint(tmp_path):
  (tmp_path / '5' / 'default').mkdir(parents=True)
  restore(tmp_path, {'x': jax.ShapeDtypeStruct((), np.float32)})


def _traced(tmp_path):
  # As jax does: it removes its own frames from the traceback.
  attend = lambda x: causal_attention(x, x[:1], x)
  jax.eval_shape(attend, jax.ShapeDtypeStruct((2, 3, 1, 4), jnp.float32))


@pytest.mark.parametrize('main, words', [
    (_damaged_rows, 'results.csv does not begin with experiment,arm,seed'),
    (_damaged_config, 'config.json is not the config.json of a run'),
    (_damaged_checkpoint, 'Damaged checkpoint'),
    (_traced, 'keys'),
    (lambda folder: (folder / 'file').write_text('') or (folder / 'file/x').mkdir(),
     'Not a directory'),
    (lambda folder: (folder / 'absent').read_text(), 'No such file or directory'),
    (lambda _: _raise(FileNotFoundError('gs://bucket/absent')), 'gs://bucket/absent'),
    (lambda _: _raise(OSError(28, 'No space left on device')), 'No space left on'),
    (lambda _: np.zeros(2**58), 'Unable to allocate'),
    (lambda _: _raise(MemoryError()), 'Error: out of memory. Smaller batches, models'),
    (lambda _: _raise(jax.errors.JaxRuntimeError(
        'RESOURCE_EXHAUSTED: Out of memory\nallocating 9 bytes.')),
     'Out of memory allocating 9 bytes'),
    (lambda _: _raise(BrokenPipeError(32, 'Broken pipe')), 'Broken pipe'),
    (lambda _: _raise(PermissionError('gs://bucket/mine')), 'gs://bucket/mine'),
])
def test_an_error_of_input_or_machine_is_one_line(ending, tmp_path, main, words):
  code, told = ending(lambda: main(tmp_path))
  assert code == 2
  assert told.startswith('Error: ') and told.count('\n') == 1
  assert words in told


def _from(error, cause):
  try:
    raise cause
  except type(cause) as raised:
    raise error from raised


def _no_server():
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    address = free.getsockname()
  socket.create_connection(address)


def _no_http_server():
  aiohttp = pytest.importorskip('aiohttp', reason="needs aiohttp: pip install '.[gcs]'")

  async def ask():
    async with aiohttp.ClientSession() as session:
      await session.get('http://127.0.0.1:9')

  asyncio.run(ask())


def _busy_bucket():
  retry = pytest.importorskip('gcsfs.retry', reason="needs gcsfs: pip install '.[gcs]'")
  raise retry.HttpError({'code': 503, 'message': 'Backend Error'})


_LOST = jax.errors.JaxRuntimeError('UNAVAILABLE: no coordinator')


@pytest.mark.parametrize('main', [
    _no_server, _no_http_server, _busy_bucket,
    lambda: _raise(ConnectionResetError(104, 'Connection reset by peer')),
    lambda: _raise(TimeoutError('no answer')),
    lambda: _raise(OSError(101, 'Network is unreachable')),
    lambda: _raise(socket.gaierror(-3, 'Temporary failure in name resolution')),
    lambda: _from(ValueError('could not be downloaded'), ConnectionError('no answer')),
])
@pytest.mark.parametrize('of_several', [False, True])
def test_a_network_that_fails_is_one_line_and_75(ending, monkeypatch, main, of_several):
  monkeypatch.setattr(jax.distributed, 'is_initialized', lambda: of_several)
  code, told = ending(main)
  assert code == 75
  assert told.startswith('Error: ') and told.count('\n') == 1
  assert told.endswith('The network or a bucket failed: run the same command again.\n')


@pytest.mark.parametrize('main', [
    lambda: _raise(_LOST),
    lambda: _raise(ValueError('ABORTED: Gloo connection closed')),
    lambda: _from(OSError('Could not save the checkpoint'), _LOST)])
def test_a_process_that_has_ended_is_no_network_that_failed(
    ending, monkeypatch, main):
  monkeypatch.setattr(jax.distributed, 'is_initialized', lambda: True)
  code, told = ending(main)
  assert code == 1 and told.startswith('Error: another process of the run has ended: ')


def test_what_jax_cannot_reach_without_other_processes_is_the_network(ending):
  code, told = ending(lambda: _raise(_LOST))
  assert (code, told.count('\n')) == (75, 1)
  assert told.startswith('Error: UNAVAILABLE: no coordinator. The network')


def test_tasks_that_fail_beside_the_main_thread_print_nothing(ending, caplog):
  # As those of Orbax on a full disk, whose first error is the one that is told.
  async def fails():
    _raise(OSError(28, 'No space left on device'))

  async def two_fail():
    for task in [asyncio.ensure_future(fails()) for _ in range(2)]:
      await task  # ends with the error of the first

  def main():
    try:
      asyncio.run(two_fail())
    finally:
      gc.collect()

  code, told = ending(main)
  assert (code, told) == (2, 'Error: No space left on device\n')
  assert not caplog.records


def test_too_little_memory_for_a_program_is_one_line(ending):
  code, told = ending(lambda: jnp.zeros((2**20, 2**20, 64)).block_until_ready())
  assert code == 2
  assert told.startswith('Error: RESOURCE_EXHAUSTED') and told.count('\n') == 1
  assert told.endswith('Smaller batches, models or lengths need less memory.\n')


def _unpacks():
  a, b = [1]
  return a + b


def _of_a_library():
  try:
    np.zeros(3) + np.zeros(4)
  except ValueError as error:
    raise ValueError('not of a file of vvlen') from error


@pytest.mark.parametrize('main, words', [
    (lambda: _raise(TypeError('a bug')), 'TypeError: a bug'),
    (lambda: {}['absent'], "KeyError: 'absent'"),
    (lambda: [][0], 'IndexError'),
    (lambda: None.absent, 'AttributeError'),
    (lambda: _raise(AssertionError()), 'AssertionError'),
    (lambda: 1 / 0, 'ZeroDivisionError'),
    (lambda: float(10**400), 'OverflowError'),
    # If Python, numpy or jax refuse an input, it is a bug of vvlen that passed it.
    (_unpacks, 'ValueError: not enough values to unpack'),
    (lambda: int('x'), 'ValueError: invalid literal for int'),
    (lambda: np.zeros(3) + np.zeros(4), 'ValueError: operands could not be broadcast'),
    (lambda: np.zeros(-1), 'ValueError: negative dimensions'),
    (lambda: jnp.zeros(3).reshape(2), 'TypeError: cannot reshape'),
    (lambda: jnp.concatenate([]), 'ValueError: Need at least one array to concatenate'),
    (_of_a_library, 'ValueError: not of a file of vvlen'),
    (lambda: _raise(OSError('a library is at a loss')), 'OSError: a library is at a'),
    (lambda: _raise(jax.errors.JaxRuntimeError('INTERNAL: a pass failed')), 'INTERNAL'),
])
def test_a_bug_has_its_traceback_and_says_where_to_report_it(ending, main, words):
  code, told = ending(main)
  assert code == 1
  first, *traceback, last = told.splitlines()
  assert first.startswith('Traceback')
  assert any(words in line for line in traceback)
  assert last.startswith('This is a bug in vvlen, unless') and 'report it' in last


def test_an_error_of_our_own_that_a_library_calls_for_is_no_bug(ending):
  code, told = ending(lambda: sorted([1], key=lambda x: results.read_run(
      ROOT / 'tests', '', ())))
  assert (code, told) == (2, f'Error: {ROOT}/tests has no results.csv with results\n')


@pytest.mark.parametrize('error', [OSError(2, 'no disk'), TypeError('no disk')])
def test_every_error_has_its_traceback_if_asked(ending, monkeypatch, error):
  monkeypatch.setenv('VVLEN_TRACEBACK', '1')
  with pytest.raises(type(error), match='no disk'):
    ending(lambda: _raise(error))


@pytest.mark.parametrize('error, text', [
    (ValueError('no more\n  memory'), 'no more memory'),
    (ValueError(), 'ValueError without a message'),
    (MemoryError(),
     'out of memory. Smaller batches, models or lengths need less memory.'),
])
def test_an_error_without_a_text_says_something(error, text):
  assert errors.in_one_line(error) == text


def test_a_report_tells_input_from_bugs_too(tmp_path):
  def run(program):
    return subprocess.run(
        [sys.executable, '-c', program, f'--workdir={tmp_path}'], cwd=ROOT,
        capture_output=True, text=True, timeout=100, check=False)

  done = run('from experiments import report; report.main()')
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr.startswith('Error: ') and done.stderr.count('\n') == 1
  done = run('from experiments import report\n'
             'def write(workdir): return int(str(workdir))\n'
             'report.reports.writer = lambda study: write\n'
             'report.main()')
  assert (done.returncode, done.stdout) == (1, '')
  assert 'ValueError: invalid literal for int' in done.stderr
  assert 'This is a bug' in done.stderr.splitlines()[-1]


def test_the_last_line_is_written_in_one_piece():
  # Threads of JAX write to the same place, and may write between two pieces.
  ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  program = "from experiments.harness import errors; errors.end('The end.', 3)"
  done = subprocess.run(
      [sys.executable, '-c', program], stderr=its.fileno(), cwd=ROOT, check=False,
      env={**os.environ, 'PYTHONUNBUFFERED': '1'})
  its.close()
  with ours:
    assert (done.returncode, ours.recv(100), ours.recv(100)) == (3, b'The end.\n', b'')
