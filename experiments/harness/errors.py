"""Reports errors: input and machine errors in one line, bugs with a traceback.

Runs without JAX.
"""

from collections.abc import Iterator
import contextlib
import errno
import linecache
import os
import pathlib
import re
import sys
import traceback
from types import TracebackType
from typing import NoReturn

from experiments.harness import log
import vvlen

# JAX's words for errors caused by the machine's limits or by another process.
_OF_MACHINE = re.compile(
    '(RESOURCE_EXHAUSTED|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED)'
    '|out of memory|connection (closed|reset|refused)', re.IGNORECASE)
# Words with which JAX and its libraries report that another process of the run has
# ended. The error is a JaxRuntimeError, a ValueError, or another error caused by one of
# these.
_OF_PEER = re.compile('UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|Gloo|NCCL'
                      '|[Cc]onnection (closed|reset|refused)')
# Names of exceptions of Python, aiohttp, requests, httpx and google.auth, whose
# subclasses count too, for a network or a server that failed.
_OF_NETWORK = frozenset((
    'ConnectionError', 'TimeoutError', 'gaierror', 'ClientConnectionError',
    'ClientPayloadError', 'Timeout', 'TransportError'))
# Subclasses of these with other causes: the reader of our output is gone, or the user
# has forbidden to ask the hub.
_NOT_OF_NETWORK = frozenset(('BrokenPipeError', 'OfflineModeIsEnabled'))
_NO_ROUTE = (errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH)
# JAX's words for a failed network in a run of one process.
_JAX_OF_NETWORK = re.compile('UNAVAILABLE|DEADLINE_EXCEEDED'
                             '|connection (closed|reset|refused)', re.IGNORECASE)
# Status codes of HTTP after which to try again.
_AGAIN = frozenset(('408', '429', '500', '502', '503', '504'))
# The packages `vvlen` and `experiments`.
_OURS = tuple(f'{folder}{os.sep}' for folder in (
    pathlib.Path(vvlen.__file__).resolve().parent,
    pathlib.Path(__file__).resolve().parents[1]))
TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
_BUG = (
    'This is a bug in vvlen, unless the traceback above ends in your own code. Please '
    'report it, with all lines above, as an issue in the repository from which you got '
    'vvlen. The same command resumes the run.'
)


def leave(error: Exception) -> NoReturn:
  """Ends the process as `refuse`, or with a bug's traceback and exit code 1.

  If another process of the run has ended, prints one line and exits with code 1.
  Nothing is wrong with the input then, so `tpu_scripts` starts the run again.

  If the environment variable VVLEN_TRACEBACK is set, every error has its traceback.
  """
  if os.environ.get('VVLEN_TRACEBACK'):
    raise error
  if not of_network(error) and lost_peer(error):
    end(f'Error: another process of the run has ended: {in_one_line(error)}. '
        'The same command resumes the run.', 1)
  if not is_bug(error):
    refuse(error)
  with contextlib.suppress(BrokenPipeError):
    sys.stdout.flush()
  traceback.print_exception(error)
  end(_BUG, 1)


@contextlib.contextmanager
def reported() -> Iterator[None]:
  """Ends the process as `leave` does if the block fails, and with 130 at ^C."""
  try:
    yield
  except KeyboardInterrupt:
    print('Interrupted.', file=sys.stderr)
    sys.exit(130)
  except Exception as error:
    leave(error)


def refuse(error: Exception) -> NoReturn:
  """Ends the process with one line and exit code 2, or 75 if the network failed."""
  if os.environ.get('VVLEN_TRACEBACK'):
    raise error
  if of_network(error):
    end(f'Error: {in_one_line(error)}. The network or a bucket failed: run the same '
        'command again.', TRY_AGAIN)
  end(f'Error: {in_one_line(error)}', 2)


def end(text: str, code: int) -> NoReturn:
  """Ends the process at once, with a text on standard error.

  It does not wait for other threads: after an interrupted save or restore, those of
  Orbax would print errors and may abort.
  """
  with contextlib.suppress(BrokenPipeError):  # such as by `head`
    sys.stdout.flush()
  # In one call, as JAX's threads write too: `print` would write the end of the line in
  # another one where PYTHONUNBUFFERED is set.
  sys.stderr.write(f'{text}\n')
  sys.stderr.flush()
  log.close()
  os._exit(code)


def in_one_line(error: Exception) -> str:
  """Returns the message of an error in one line."""
  text = re.sub(r'\[Errno \d+\] ', '', ' '.join(str(error).split()))
  if isinstance(error, MemoryError) or 'out of memory' in text.lower():
    text = (f'{text.rstrip(".") or "out of memory"}. Smaller batches, models or '
            'lengths need less memory.')
  return text or f'{type(error).__name__} without a message'


def of_network(error: BaseException | None) -> bool:
  """Whether an error, or its cause, is a failure of the network.

  Nothing is wrong with the input then. A bucket or a file that does not exist, or may
  not be read, is not a failure of the network.
  """
  jax = sys.modules.get('jax')
  while error is not None:
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _OF_NETWORK and not names & _NOT_OF_NETWORK:
      return True
    if isinstance(error, OSError) and error.errno in _NO_ROUTE:
      return True
    if 'HttpError' in names and str(getattr(error, 'code', '')) in _AGAIN:  # of gcsfs
      return True
    if (jax and isinstance(error, jax.errors.JaxRuntimeError)
        and not jax.distributed.is_initialized()):
      return bool(_JAX_OF_NETWORK.search(str(error)))
    error = error.__cause__
  return False


def lost_peer(error: BaseException | None) -> bool:
  """Whether an error, or its cause, is the end of another process of the run."""
  jax = sys.modules.get('jax')
  if jax is None or not jax.distributed.is_initialized():
    return False
  while error is not None:
    if _OF_PEER.search(str(error)):
      return True
    error = error.__cause__ or error.__context__
  return False


def is_bug(error: Exception) -> bool:
  """Whether an error that ended a run is a bug, not an error of input or machine.

  A ValueError raised by a `raise` statement of vvlen is an error of the input. One
  raised by Python or a library ("not enough values to unpack", shapes that do not fit)
  is a bug: we passed wrong arguments. An OSError of a subclass, or with the system's
  error number, is an error of the machine, and so is a JAX error whose message is about
  memory or another process.
  """
  if isinstance(error, MemoryError) or of_network(error):
    return False
  if isinstance(error, OSError) and (error.errno is not None
                                     or type(error) is not OSError):
    return False
  if isinstance(error, ValueError | OSError):
    return not _is_raised_by_us(error.__traceback__)
  jax = sys.modules.get('jax')
  return not (jax and isinstance(error, jax.errors.JaxRuntimeError)
              and _OF_MACHINE.search(str(error)))


def _is_raised_by_us(last: TracebackType | None) -> bool:
  """Whether a traceback ends in a `raise` statement of vvlen or experiments."""
  while last is not None and last.tb_next is not None:
    last = last.tb_next
  if last is None:
    return False
  path = os.path.realpath(last.tb_frame.f_code.co_filename)
  statement = linecache.getline(path, last.tb_lineno).strip()
  return path.startswith(_OURS) and statement.startswith('raise ')
