"""The command line of every experiment: flags, errors, signals."""

from collections.abc import Callable, Sequence
import logging
import os
import re
import signal
import sys
import threading
from typing import Any, NoReturn

from absl import flags
from absl import logging as absl_logging
from ml_collections import config_flags

from experiments.harness import errors, locks, log, paths
from experiments.harness import help as help_texts
from experiments.harness.processes import join_processes
from experiments.harness.trace import SECONDS
from vvlen.training.preemption import Preempted

_CONFIG = config_flags.DEFINE_config_file(
    'config', None, 'A file of configs/, run as Python; :variant selects a variant.'
)
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the run, local or gs://.')
_DISTRIBUTED = flags.DEFINE_bool(
    'distributed', False, 'This is one of several processes of a run. JAX finds the '
    'others on clusters that it supports; elsewhere, set JAX_COORDINATOR_ADDRESS '
    '(host:port), JAX_NUM_PROCESSES and JAX_PROCESS_ID.'
)
_TRACE = flags.DEFINE_bool(
    'trace', False, 'Write a profiler trace of one call of the compiled program, '
    f'{SECONDS:g} seconds at most, into the folder trace of --workdir.'
)

# Messages of Python and ml_collections -> plainer ones.
_IN_PLAIN_WORDS = {
    'Configuration is not available because of an earlier failure to load:': 'config:',
    r'invalid literal for int\(\) with base 10:': 'not a whole number:',
    'could not convert string to float:': 'not a number:',
    r'\s*Did you mean "(\w+)" instead of "\w+"\?': r"; did you mean '\1'?",
}


def run(main: Callable[[Any, str], None], needs: Sequence[str]) -> None:
  """Reads the command line and calls main(config, workdir).

  Wrong input ends with one line on standard error and exit code 2, a network that
  failed with one line and 75, a bug with its traceback and exit code 1.

  Args:
    main: the experiment.
    needs: fields that its configuration must have.
  """
  _quieten_libraries()
  if {'-h', '--help'} & set(sys.argv):
    _show_help()
    return
  try:
    config, workdir = _read(needs)
  except Exception as error:
    # ml_collections raises AttributeError and KeyError for unknown fields, TypeError
    # for wrong types, and a config file may raise anything.
    errors.refuse(_with_plain_message(error))
  try:
    _call(main, config, workdir)
  except Preempted as told:
    errors.end(f'{told}. The same command resumes the run.', 143)  # as by SIGTERM
  except KeyboardInterrupt:
    errors.end('Interrupted. The same command resumes the run.', 130)
  except Exception as error:
    errors.leave(error)
  log.close()


def _quieten_libraries() -> None:
  """Silences what libraries print of errors that the main thread raises again."""
  # Orbax's threads and tasks log errors and print their tracebacks.
  absl_logging.set_verbosity(absl_logging.FATAL)
  logging.getLogger('asyncio').setLevel(logging.CRITICAL)
  threading.excepthook = lambda _: None
  sys.unraisablehook = _interrupt_again


def _show_help() -> None:
  text = sys.modules['__main__'].__doc__ or ''
  try:
    known = help_texts.fields(sys.argv, text)
  except Exception as error:  # of the config
    errors.refuse(error)
  given = flags.FLAGS.module_help(__name__).replace("\n    (default: 'None')", '')
  help_texts.show('\n'.join([
      text, given, '',
      'Every field of a config can be set, as in --config.num_seeds=64.',
      'Comments in the files of configs/ say what the fields mean.',
      '--config=FILE:VARIANT --help shows those of another variant.', '', known]))


def _read(needs: Sequence[str]) -> tuple[Any, str]:
  """Returns the configuration and the workdir of the command line.

  Args:
    needs: fields that the configuration must have.

  Raises:
    ValueError: if one of them is missing, or a path cannot be used.
    Exception: of any kind, from absl, ml_collections or the config.
  """
  # --config first: ml_collections, which reads sys.argv itself, finds fields by it.
  sys.argv[1:] = sorted(map(_with_home, sys.argv[1:]),
                        key=lambda word: not re.match('--?config=', word))
  rest = flags.FLAGS(sys.argv)[1:]
  config, workdir = _CONFIG.value, _WORKDIR.value or ''
  if rest:
    raise ValueError(f'unknown argument {rest[0]!r}')
  for name, value in (('config', config), ('workdir', workdir)):
    if not value:
      raise ValueError(f'--{name} is missing')
  # A config that failed to load raises its error when it is used.
  if absent := [name for name in needs if name not in config]:
    raise ValueError(
        f'config has no {", ".join(absent)}: is it for another experiment?')
  workdir = paths.usable(workdir, '--workdir')
  paths.check_folder(workdir, '--workdir')
  paths.check_reachable(workdir, '--workdir')
  paths.make_usable(config)
  return config, workdir


def _call(main: Callable[[Any, str], None], config: Any, workdir: str) -> None:
  """Calls main(config, workdir) as one process of a run, with its signals and log."""
  if _DISTRIBUTED.value:
    join_processes()
  else:
    signal.signal(signal.SIGTERM, _stop)
  _treat_hangup_as_sigterm()
  log.start()
  try:
    main(config, workdir)
  finally:
    locks.release()


def is_traced() -> bool:
  """Whether the command line has --trace; False if there is no command line."""
  return flags.FLAGS.is_parsed() and _TRACE.value


def _with_home(word: str) -> str:
  """Expands ~ in --config=~/file.py, which a shell expands only as a word's start."""
  flag, _, path = word.partition('=')
  if flag.lstrip('-') == 'config' and path.startswith('~'):
    return f'{flag}={paths.usable(path, "--config")}'
  return word


def _stop(*_: Any) -> NoReturn:
  """Ends a run at SIGTERM, unless training handles the signal itself."""
  raise Preempted('Told to stop')


def _treat_hangup_as_sigterm() -> None:
  """Makes SIGHUP, which a closed terminal sends, stop a run as SIGTERM does."""
  hangup = getattr(signal, 'SIGHUP', None)  # not available on Windows
  if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:  # as by nohup
    signal.signal(hangup, lambda *_: os.kill(os.getpid(), signal.SIGTERM))


def _interrupt_again(ignored: Any) -> None:
  """Repeats a signal that arrived in a destructor, where exceptions are lost."""
  for kind, number in ((KeyboardInterrupt, signal.SIGINT), (Preempted, signal.SIGTERM)):
    if isinstance(ignored.exc_value, kind):
      # Not at once: inside this function it would be lost too, and on a busy machine
      # the thread may start before the function ends.
      threading.Timer(0.5, os.kill, (os.getpid(), number)).start()


def _with_plain_message(error: Exception) -> Exception:
  """Returns an error with a short message about what is wrong with flags or config."""
  text = str(error)
  if isinstance(error, (AttributeError, KeyError)) and error.args:
    # str() of a KeyError is the repr of its message; ml_collections wraps it again.
    says = getattr(error.args[0], 'args', error.args)[0]
    text = f'config has no field {says}'
    fields = [arg.partition('=')[0] for arg in sys.argv[1:]]
    own = [x for x in fields if any(f"'{part}'" in text for part in x.split('.'))]
    text = f'{own[0]}: {text}' if own else text
  # ml_collections prints a whole traceback, or all its attempts, before the cause.
  where, traceback, cause = text.rpartition('Error whilst parsing config file:')
  if traceback:
    text = where + cause.strip().splitlines()[-1].partition(': ')[2]
  elif 'Failed loading config file' in text:
    text = f'config: {text.strip().splitlines()[-1].strip()}'
  for words, plain in _IN_PLAIN_WORDS.items():
    text = re.sub(words, plain, text)
  if text == str(error):
    return error
  return ValueError(text).with_traceback(error.__traceback__)
