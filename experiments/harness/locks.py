"""Locks the folders of runs against other processes of this machine. Runs without JAX.

A local folder is locked by a file in it, `.vvlen.lock`, so that all processes find the
same one; a folder in a bucket by a file in the temporary folder. The system releases a
lock when its process ends, for any reason: a file left by a killed run locks nothing.
"""

import contextlib
import errno
import hashlib
import os
import stat
import tempfile
from typing import NamedTuple

from vvlen.reporting.run_folder import LOCK


class _Lock(NamedTuple):
  handle: int  # of the open file
  path: str
  new_folder: str  # the folder, if it was made for the lock, else ''


_held: list[_Lock] = []


def lock(workdir: str | os.PathLike[str]) -> None:
  """Locks a folder until `release` or the end of this process.

  A folder that cannot be written to is not locked: nothing can be written there.

  Raises:
    ValueError: if another process has locked it, if it cannot be made, or if what is
      at the lock's path is not a file.
  """
  path, new_folder = _place(str(workdir))
  while True:
    try:
      handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                       | os.O_NONBLOCK, 0o666)
    except OSError as error:
      if error.errno == errno.EROFS or (
          isinstance(error, PermissionError) and not os.path.lexists(path)):
        return
      raise ValueError(f'{path} cannot be opened to lock the folder '
                       f'({error.strerror}). Remove it if no run needs it') from error
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
      os.close(handle)
      raise ValueError(f'{path} is not a file: remove it, as it locks the folder')
    if not _lock_file(handle, str(workdir)):
      return
    # A process that ended meanwhile may have removed the file that was opened.
    with contextlib.suppress(OSError):
      if os.path.samestat(found, os.stat(path, follow_symlinks=False)):
        _held.append(_Lock(handle, path, new_folder))
        return
    os.close(handle)


def release() -> None:
  """Releases all locks of this process, and removes their files."""
  while _held:
    handle, path, new_folder = _held.pop()
    with contextlib.suppress(OSError):
      if not os.fstat(handle).st_size:  # another process has replaced it
        os.unlink(path)
      if new_folder:
        os.rmdir(new_folder)  # only if it is empty
    os.close(handle)


def _place(workdir: str) -> tuple[str, str]:
  """Returns the path of a folder's lock, and the folder if it was made for it."""
  if '://' in workdir:
    name = hashlib.sha256(workdir.rstrip('/').encode()).hexdigest()[:16]
    return os.path.join(tempfile.gettempdir(), f'vvlen-{name}.lock'), ''
  folder = os.path.realpath(workdir)
  new = '' if os.path.isdir(folder) else folder
  try:
    os.makedirs(folder, exist_ok=True)
  except OSError as error:
    raise ValueError(f'the folder {workdir!r} cannot be made: {error.strerror}'
                     ) from error
  return os.path.join(folder, LOCK), new


def _lock_file(handle: int, workdir: str) -> bool:
  """Locks an open file; returns whether its file system can.

  Raises:
    ValueError: if another process has locked it.
  """
  import fcntl  # not available on Windows

  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    os.close(handle)
    raise ValueError(f'another process is at work in {workdir}') from error
  except OSError as error:
    os.close(handle)
    print(f'{workdir} cannot be locked ({error.strerror}): start no second run in it.',
          flush=True)
    return False
  return True
