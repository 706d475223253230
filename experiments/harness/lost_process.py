"""Replaces JAX's many messages on the end of another process of the run by one line.

If a process of a run dies, an exchange of data with it fails in the others, which end
as `errors.leave` says. JAX may be faster: it aborts the others from a thread in C++
that no Python code can stop, at once if the first process is lost, as the coordination
service is lost with it, else when the heartbeats of the lost one are missed. Its
messages are written to file descriptor 2 of a process that is about to end, so another
process has to shorten them. This file, run as a program, copies its standard input to
its standard error and replaces these messages. It imports only the standard library, as
it starts with every process.
"""

from collections.abc import Iterable, Iterator
import os
import re
import subprocess
import sys

ENDED = ('Error: another process of the run has ended, and JAX has ended this one. '
         'The same command resumes the run.\n')
# The message of `errors.leave`, if that comes first.
_SAID = 'Error: another process of the run has ended'
# The files of XLA that report it, after 'F1126 06:38:57.815881    9871 '.
_BEGIN = re.compile(r'[WEF]\d{4} \S+ +\d+ (preemption_sync_manager\.cc|'
                    r'coordination_service(_agent)?\.cc|client\.h):\d+\] ')
_FATAL = 'JAX distributed service detected fatal errors'
# Lines that begin something else; all others continue a message.
_NEW = re.compile(r'[IWEF]\d{4} |Error: |Traceback ')


def shorten_messages() -> None:
  """Sends the standard error of this process through another process."""
  read, write = os.pipe()
  # A session of its own, so that ^C does not end it before it has passed on all lines.
  subprocess.Popen([sys.executable, '-S', '-E', __file__], stdin=read,
                   start_new_session=True)
  os.dup2(write, 2)
  os.close(read)
  os.close(write)


def shortened(lines: Iterable[str]) -> Iterator[str]:
  """Yields lines, with one in place of JAX's messages of a lost process.

  Messages that may belong to it are kept back until something else begins. Nothing
  follows that line: the process is about to end.
  """
  kept: list[str] = []
  ended = False
  for line in lines:
    if ended:  # JAX is aborting the process.
      continue
    if _BEGIN.match(line) or (kept and not _NEW.match(line)):
      kept.append(line)
      if _FATAL in line:
        ended = True
        yield ENDED
    else:
      if line.startswith(_SAID):
        ended = True
      else:
        yield from kept
      kept.clear()
      yield line
  if not ended:
    yield from kept


if __name__ == '__main__':
  for text in shortened(sys.stdin):
    sys.stderr.write(text)
    sys.stderr.flush()
