"""The command line of every experiment: flags, errors, signals."""

from collections.abc import Callable, Sequence
import os
import signal
import sys
import threading
from typing import Any, NoReturn

from absl import flags, logging
import jax
from ml_collections import config_flags

from experiments.harness.processes import join_processes
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
    config, workdir = _CONFIG.value, _WORKDIR.value or ''
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
      join_processes()
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


