"""Makes JAX strict, and gives the tests eight CPU devices to shard over."""

import collections
import logging
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time

from absl.testing import flagsaver
import jax
import numpy as np
import pytest

from experiments.harness import command_line, machine
from vvlen.reporting.curves import read_curves
from vvlen.reporting.tables import markdown

jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_numpy_rank_promotion', 'raise')
# Programs are cached on disk, for all workers and later runs; the key holds the
# program, its flags and the versions.
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(pathlib.Path(
    os.environ.get('XDG_CACHE_HOME', '~/.cache'), 'vvlen_tests').expanduser()))
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
for _name in ('compilation_cache_dir', 'persistent_cache_min_compile_time_secs'):
  _value = os.environ[f'JAX_{_name.upper()}']
  jax.config.update(f'jax_{_name}', _value if _name.endswith('dir') else float(_value))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  # So it is in the background of a script, and would be in commands that tests start.
  signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Why a test is skipped without the folder VVLEN_SHARED.
NEEDS_REFERENCE = ('needs reference files that are not part of the repository: '
                   'VVLEN_SHARED does not name their folder')
# Programs are compiled faster and run more slowly. As workers share the cores, one
# thread compiles a program.
_FAST = '--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1'
# Twice as fast, but cells that train together and alone differ in some bits.
_FASTEST = _FAST + ' --xla_cpu_use_fusion_emitters=false' * (
    jax.__version_info__ < (0, 11))


def pytest_configure(config):
  """Has tests compile fast, but for those that are marked `optimized`."""
  chosen = config.option.markexpr
  if chosen != 'optimized':
    flags = _FASTEST if chosen == 'not slow' else _FAST
    with pytest.MonkeyPatch.context() as patch:
      patch.setenv('XLA_FLAGS', f'{os.environ.get("XLA_FLAGS", "")} {flags}')
      jax.devices()  # reads them; libtpu, which does not know all of them, is not to


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
  """Has files that take long begin first, so that no worker ends long after the others.

  A long test counts as ten others.
  """
  weights = collections.Counter()
  for item in items:
    weights[item.path] += 10 if item.get_closest_marker('long') else 1
  items.sort(key=lambda item: -weights[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
  """Skips a long test that would begin after VVLEN_TESTS_UNTIL, in seconds of Unix."""
  until = float(os.environ.get('VVLEN_TESTS_UNTIL', 'inf'))
  if item.get_closest_marker('long') and time.time() > until:
    pytest.skip('no time is left for what takes minutes')


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
  """Runs a test that profiles in a new process if this one has loaded libtpu.

  The profiler of libtpu crashes where there is no TPU.
  """
  if pyfuncitem.get_closest_marker('profiles') is None or 'libtpu' not in sys.modules:
    return None
  done = subprocess.run(
      [sys.executable, '-m', 'pytest', '-q', '-n', '0', '-m', '', pyfuncitem.nodeid],
      cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
  assert done.returncode == 0, done.stdout
  return True


@pytest.fixture(scope='module', autouse=True)
def bounded_memory():
  """Drops the compiled programs of a file, which would add up to gigabytes."""
  yield
  jax.clear_caches()


@pytest.fixture(scope='module')
def fast_compilation():
  """Makes commands compile fast."""
  jax.devices()  # this process has read its flags
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XLA_FLAGS', _FAST)
    yield


@pytest.fixture
def key() -> jax.Array:
  return jax.random.key(0)


@pytest.fixture
def rng() -> np.random.Generator:
  return np.random.default_rng(0)


@pytest.fixture
def staying(monkeypatch):
  """Lets a command end, and leaves this process as it was."""
  monkeypatch.setattr(os, '_exit', sys.exit)
  # Grain defines flags when it is imported, once in a process: they must be there
  # before those of a command are, which are taken back, as are all defined later.
  import grain  # noqa: F401

  monkeypatch.setattr(command_line.absl_logging, 'set_verbosity', lambda _: None)
  for module, name in ((threading, 'excepthook'), (sys, 'unraisablehook')):
    monkeypatch.setattr(module, name, getattr(module, name))
  before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)}
  level = logging.getLogger('asyncio').level
  with flagsaver.flagsaver():
    yield
  for number, handler in before.items():
    signal.signal(number, handler)
  logging.getLogger('asyncio').setLevel(level)


@pytest.fixture
def run_here(staying, monkeypatch, capsys):
  """Returns a function that runs a command in this process, as if of two cores."""
  everything = jax.devices()

  def use_devices(num_groups=2):
    count = 1 if num_groups % 2 else 2
    monkeypatch.setattr(jax, 'device_count', lambda: count)
    monkeypatch.setattr(jax, 'devices', lambda *_: everything[:count])

  monkeypatch.setattr(machine, 'use_devices', use_devices)
  monkeypatch.chdir(ROOT)

  def run(module, *arguments):
    monkeypatch.setattr(sys, 'argv', [module, *arguments])
    code, name = 0, f'experiments.{module}'
    if not hasattr(sys.modules.get(name), '__path__'):  # runpy warns of loaded modules
      monkeypatch.delitem(sys.modules, name, raising=False)
    with flagsaver.flagsaver():  # a command defines its flags
      try:
        runpy.run_module(name, run_name='__main__')
      except SystemExit as left:
        code = left.code
    return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

  return run


def free_port():
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    return free.getsockname()[1]


def run_two_processes(arguments, num_devices, seconds=900):
  """Runs a command as two processes of one run, and returns what each of them says.

  Processes that do not end in time are killed.
  """
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
  try:
    said = [worker.communicate(timeout=seconds)[0] for worker in workers]
  finally:
    for worker in workers:
      worker.kill()  # does nothing to one that has ended
  assert [worker.returncode for worker in workers] == [0, 0], said
  return said


def lose_rows(folder):
  """Removes the last three rows of a folder's results.csv, and one in its middle."""
  path = folder / 'results.csv'
  lines = path.read_text().splitlines(keepends=True)[:-3]
  del lines[len(lines) // 2]
  path.write_text(''.join(lines))


def read_board(folder):
  """Returns {tag: [(step, value)]}, as TensorBoard reads them in a folder."""
  accumulator = pytest.importorskip(
      'tensorboard.backend.event_processing.event_accumulator',
      reason="needs TensorBoard: pip install '.[test]'")
  events = accumulator.EventAccumulator(str(folder))
  events.Reload()
  return {
      tag: [(x.step, x.tensor_proto.float_val[0]) for x in events.Tensors(tag)]
      for tag in events.Tags()['tensors']
  }


def check_board(folder):
  """Asserts that TensorBoard has every point of all curves of a run, as means."""
  paths = [*folder.rglob('metrics.jsonl'), *folder.rglob('evaluations.jsonl')]
  assert paths
  for path in paths:
    for line in read_curves(path):
      run = path.parent / f"tensorboard/{line['arm']}/seed_{line['first_seed']}"
      found = read_board(run)
      for name in line.keys() - {'arm', 'step', 'first_seed'}:
        mean = np.mean(line[name])
        assert (line['step'], pytest.approx(mean)) in found[f'{path.stem}/{name}']


def shown(table, text):
  """Returns the row of a table, as Markdown, that has a cell with this text."""
  lines = [line.strip('|').split('|') for line in markdown(table).splitlines()
           if line.startswith('|')]
  header, _, *rows = [[cell.strip() for cell in line] for line in lines]
  row, = [row for row in rows if text in row]
  return dict(zip(header, row, strict=True))
