"""Makes JAX strict, and gives the tests eight CPU devices to shard over."""

import os
import pathlib
import socket
import subprocess
import tempfile

import jax
import pytest

from vvlen.reporting.tables import markdown

jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_numpy_rank_promotion', 'raise')
# What two tests of this process have in common is compiled once.
_cache = tempfile.TemporaryDirectory(prefix='vvlen_tests')
jax.config.update('jax_compilation_cache_dir', _cache.name)
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.1)

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope='module')
def fast_compilation(tmp_path_factory):
  """Lets commands share what they compile, with each other alone, and compile fast."""
  jax.devices()  # this process has read its flags
  with pytest.MonkeyPatch.context() as patch:
    cache = tmp_path_factory.getbasetemp() / 'compilation_cache'
    patch.setenv('JAX_COMPILATION_CACHE_DIR', str(cache))
    patch.setenv('XLA_FLAGS', '--xla_backend_optimization_level=0')
    yield


@pytest.fixture
def key() -> jax.Array:
  return jax.random.key(0)


def free_port():
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    return free.getsockname()[1]


def run_two_processes(arguments, num_devices):
  """Runs a command as two processes of one run, and returns what each of them says."""
  port = free_port()
  workers = [
      subprocess.Popen(
          [*arguments, '--distributed'], cwd=ROOT, stdout=subprocess.PIPE,
          stderr=subprocess.STDOUT, text=True, env={
              **os.environ, 'JAX_NUM_CPU_DEVICES': str(num_devices),
              'JAX_COORDINATOR_ADDRESS': f'127.0.0.1:{port}',
              'JAX_NUM_PROCESSES': '2', 'JAX_PROCESS_ID': str(number),
          })
      for number in range(2)
  ]
  said = [worker.communicate(timeout=900)[0] for worker in workers]
  assert [worker.returncode for worker in workers] == [0, 0], said
  return said


def shown(table, text):
  """Returns the row of a table, as Markdown, that has a cell with this text."""
  lines = [line.strip('|').split('|') for line in markdown(table).splitlines()
           if line.startswith('|')]
  header, _, *rows = [[cell.strip() for cell in line] for line in lines]
  row, = [row for row in rows if text in row]
  return dict(zip(header, row, strict=True))
