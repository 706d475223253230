"""What every experiment does around its science: flags, devices, errors, progress."""

from collections.abc import Callable, Sequence
import datetime
import hashlib
import importlib.metadata
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, NoReturn

from absl import flags, logging
import jax
from jax.experimental import multihost_utils
from ml_collections import config_flags
import numpy as np
import rich.console
import rich.progress

from vvlen.training.preemption import Preempted

_CONFIG = config_flags.DEFINE_config_file(
    'config', None, 'A file of configs/, which is run as Python; :variant selects.'
)
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the run, local or gs://.')
_DISTRIBUTED = flags.DEFINE_bool(
    'distributed', False, 'One of several processes, each with devices of its own, of '
    'one run. On clusters that JAX knows it finds the others; elsewhere the variables '
    'JAX_COORDINATOR_ADDRESS (host:port), JAX_NUM_PROCESSES and JAX_PROCESS_ID say.'
)

console = rich.console.Console()
_locks: list[Any] = []  # open as long as the process lives


def run(main: Callable[[Any, str], None], needs: Sequence[str]) -> None:
  """Reads the command line and calls main(config, workdir).

  Wrong input ends with one line on standard error and exit code 2.

  Args:
    main: the experiment.
    needs: fields that its configuration has.
  """
  # Orbax's threads log, and print tracebacks of, what the main thread raises again.
  logging.set_verbosity(logging.FATAL)
  threading.excepthook = lambda _: None
  sys.unraisablehook = _interrupt_again
  if {'-h', '--help'} & set(sys.argv):
    print(sys.modules['__main__'].__doc__, flags.FLAGS.module_help(__name__), '',
          'The head of a config file lists its variants. Every field can be set, as '
          'by\n--config.num_seeds=64.', sep='\n')
    return
  try:
    # ml_collections tells of unknown fields by AttributeError and KeyError, of wrong
    # types by TypeError, and a config file may raise what it likes.
    rest = flags.FLAGS(sys.argv)[1:]
    config, workdir = _CONFIG.value, _WORKDIR.value
  except Exception as error:
    _fail(error)
  if rest:
    _fail(ValueError(f'unknown argument {rest[0]!r}'))
  for name, value in (('config', config), ('workdir', workdir)):
    if not value:
      _fail(ValueError(f'--{name} is missing'))
  try:
    # A config that failed to load says so when it is used.
    if absent := [name for name in needs if name not in config]:
      raise ValueError(
          f'config has no {", ".join(absent)}: is it for another experiment?'
      )
    if _DISTRIBUTED.value:
      _join_processes()
    else:
      signal.signal(signal.SIGTERM, _stop)
    main(config, workdir)
  except (ValueError, OSError, MemoryError, jax.errors.JaxRuntimeError) as error:
    _fail(error)
  except Preempted as told:
    sys.stdout.flush()
    print(f'{told}. The same command resumes the run.', file=sys.stderr, flush=True)
    os._exit(143)  # as of SIGTERM
  except KeyboardInterrupt:
    sys.stdout.flush()
    print('Interrupted. The same command resumes the run.', file=sys.stderr, flush=True)
    # At once: a save that was cut off would complain, and its threads may abort.
    os._exit(130)


def _stop(*_: Any) -> NoReturn:
  """Ends a run that is told to, where training does not see to it itself."""
  raise Preempted('Told to stop')


def _join_processes() -> None:
  """Makes this process one of several; the first alone speaks."""
  names = 'JAX_COORDINATOR_ADDRESS', 'JAX_NUM_PROCESSES', 'JAX_PROCESS_ID'
  given = [os.environ[name] for name in names if name in os.environ]
  if len(given) not in (0, 3):
    raise ValueError(f'of {", ".join(names)} set all or none')
  if given and not all(x.isdigit() for x in given[1:]):
    raise ValueError(f'JAX_NUM_PROCESSES and JAX_PROCESS_ID must be numbers: {given}')
  arguments = (given[0], *map(int, given[1:])) if given else ()
  jax.distributed.initialize(*arguments)
  # Where it is given, devices of a CPU are to be set up yet: they are not asked for.
  if int(given[2]) if given else jax.process_index():
    sys.stdout = open(os.devnull, 'w')
    console.quiet = True


def first_of_processes(function: Callable[[], Any]) -> Any:
  """Calls a function in the first process; where it fails, all fail.

  Returns:
    What it returns, in the first process, None in others.
  """
  result, error = None, None
  if jax.process_index() == 0:
    try:
      result = function()
    except (ValueError, OSError) as raised:
      error = raised
  if jax.process_count() > 1:
    failed = multihost_utils.broadcast_one_to_all(np.int32(error is not None))
    if failed and error is None:
      raise ValueError('the first process has failed, and says why')
  if error is not None:
    raise error
  return result


def _interrupt_again(ignored: Any) -> None:
  """Repeats a signal that came in a destructor, where exceptions are lost."""
  for kind, number in ((KeyboardInterrupt, signal.SIGINT), (Preempted, signal.SIGTERM)):
    if isinstance(ignored.exc_value, kind):
      threading.Timer(0.01, os.kill, (os.getpid(), number)).start()


def _fail(error: Exception) -> NoReturn:
  if os.environ.get('VVLEN_TRACEBACK'):
    raise error
  print(f'Error: {_line(error)}', file=sys.stderr, flush=True)
  # At once: Orbax, cut off in a restore, would add complaints of its event loop.
  os._exit(2)


def _line(error: Exception) -> str:
  """Returns what an error says, in one line."""
  text = str(error)
  if isinstance(error, (AttributeError, KeyError)) and error.args:
    # A KeyError's text is the repr of what it says; ml_collections wraps it.
    says = getattr(error.args[0], 'args', error.args)[0]
    text = f'config has no field {says}'
    fields = [arg.partition('=')[0] for arg in sys.argv[1:]]
    own = [x for x in fields if any(f"'{part}'" in text for part in x.split('.'))]
    text += f': {own[0]}' if own else ''
  # ml_collections puts a whole traceback, or all attempts, before the cause.
  where, traceback, cause = text.rpartition('Error whilst parsing config file:')
  if traceback:
    text = where + cause.strip().splitlines()[-1].partition(': ')[2]
  elif 'Failed loading config file' in text:
    text = f'config: {text.strip().splitlines()[-1].strip()}'
  return ' '.join(text.split())


def use_devices(num_groups: int | None = None) -> None:
  """Makes every CPU core a JAX device, where the CPU is what there is.

  A core that trains its own seeds never waits for another, which is faster than
  two cores on one small matrix product. Has no effect on accelerators. Call it
  before JAX is used.

  Args:
    num_groups: groups of seeds, to be shared equally by the devices; None: the devices
      share something else, and JAX_NUM_CPU_DEVICES may say how many there are, or
      --xla_force_host_platform_device_count in XLA_FLAGS.
  """
  affinity = getattr(os, 'sched_getaffinity', None)
  cores = len(affinity(0)) if affinity else os.cpu_count() or 1
  if num_groups is not None:
    cores = max(d for d in range(1, cores + 1) if num_groups % d == 0)
  given = 'JAX_NUM_CPU_DEVICES' in os.environ or (
      'xla_force_host_platform_device_count' in os.environ.get('XLA_FLAGS', ''))
  if num_groups is not None or not given:
    jax.config.update('jax_num_cpu_devices', cores)
  # Each device then is one thread.
  flag = '--xla_cpu_multi_thread_eigen=false'
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {flag}'.strip()
  if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
    cache = os.environ.get('XDG_CACHE_HOME', os.path.expanduser('~/.cache'))
    jax.config.update('jax_compilation_cache_dir', f'{cache}/vvlen')
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
  if jax.default_backend() != 'cpu':
    # float32 products in float32, not in TF32 or bfloat16.
    jax.config.update('jax_default_matmul_precision', 'float32')


def lock(workdir: str) -> None:
  """Keeps other processes of this machine out of a folder until this one ends.

  Raises:
    ValueError: if another process is at work in it.
  """
  import fcntl  # not on Windows

  # Not in the folder itself, which may be another run's, or gs://.
  name = hashlib.sha256(os.path.realpath(workdir).encode()).hexdigest()[:16]
  handle = open(os.path.join(tempfile.gettempdir(), f'vvlen-{name}.lock'), 'w')
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as error:
    raise ValueError(f'another process is at work in {workdir}') from error
  _locks.append(handle)


def session() -> dict[str, Any]:
  """Describes this start of a run: when, by which code, on what."""
  versions = {
      name: importlib.metadata.version(name)
      for name in ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'orbax-checkpoint')
  }
  return {
      'started': now(),
      'command': shlex.join(['python', '-m', *_module(), *sys.argv[1:]]),
      'commit': _commit(),
      'python': platform.python_version(),
      'versions': versions,
      'device': f'{jax.device_count()} x {jax.devices()[0].device_kind}',
      'processor': processor(),
  }


def now() -> str:
  """Returns the time, UTC, to the second."""
  return datetime.datetime.now(datetime.UTC).isoformat('T', 'seconds')


def _module() -> list[str]:
  spec = getattr(sys.modules['__main__'], '__spec__', None)
  return [spec.name.removesuffix('.__main__')] if spec else [sys.argv[0]]


def _commit() -> str:
  """Returns the git commit of the code, with '+' if it was changed since.

  Results are no code: a run may write its own folder of them.
  """
  here = os.path.dirname(os.path.abspath(__file__))

  def git(*arguments):
    return subprocess.run(
        ['git', '-C', here, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()

  try:
    changed = git('status', '--porcelain', '--', ':/', ':!/experiments/results')
    return git('rev-parse', 'HEAD') + ('+' if changed else '')
  except (OSError, subprocess.CalledProcessError):
    return 'unknown'


def processor() -> str:
  """Returns how many cores there are, and of what make."""
  try:
    with open('/proc/cpuinfo') as f:
      names = [line.split(':')[1] for line in f if line.startswith('model name')]
  except OSError:
    names = []
  return f'{os.cpu_count()} x {names[0].strip() if names else platform.processor()}'


class Progress:
  """A progress bar with rate and time left; off a terminal, a line now and then."""

  def __init__(self, total: int, unit: str, every: float = 30.0):
    """Starts at 0 of `total`; off a terminal, a line comes every so many seconds."""
    self._total, self._unit, self._every = total, unit, every
    self._first = self._done = 0
    self._start, self._last = time.monotonic(), -every
    self._bar = None
    if console.is_terminal:
      self._bar = rich.progress.Progress(
          rich.progress.TextColumn('{task.description}'),
          rich.progress.BarColumn(),
          rich.progress.TaskProgressColumn(),
          rich.progress.TextColumn('{task.fields[rate]}'),
          rich.progress.TimeRemainingColumn(),
          console=console,
      )
      self._task = self._bar.add_task('', total=total, rate='')

  def __enter__(self):
    if self._bar:
      self._bar.start()
    return self

  def __exit__(self, *_):
    if self._bar:
      self._bar.stop()

  def skip(self, amount: int) -> None:
    """Counts what an earlier start of the run has done, which took no time now."""
    self._done += amount
    self._first += amount

  def show(self, what: str, amount: int = 0) -> None:
    """Says what is being done, `amount` more being done by now."""
    self._done += amount
    now = time.monotonic()
    rate = (self._done - self._first) / max(now - self._start, 1e-9)
    per_second = f'{rate:,.0f}' if rate >= 10 else f'{rate:.2f}'
    if self._bar:
      self._bar.update(
          self._task, description=what, completed=self._done,
          rate=f'{per_second} {self._unit}/s',
      )
    elif now - self._last >= self._every:
      self._last = now
      left = (self._total - self._done) / rate if rate else float('inf')
      print(
          f'{self._done / self._total:4.0%}  {what}  {per_second} {self._unit}/s  '
          f'{_minutes(left)} left', flush=True,
      )


def _minutes(seconds: float) -> str:
  if seconds == float('inf'):
    return '?'
  return f'{int(seconds // 60)}:{int(seconds % 60):02d}'
