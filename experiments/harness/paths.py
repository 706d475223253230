"""Paths given on a command line, local or in a bucket. Runs without JAX."""

import importlib.util
import logging
import os
import re
from typing import Any

from etils import epath

from experiments.harness import errors
from vvlen.reporting import run_folder

# Prefix of a path -> (the library that opens it, how to install it).
_BUCKETS = {
    'gs': ('gcsfs', 'the extra gcs, as in: pip install ".[gcs]"'),
    's3': ('s3fs', 'a library: pip install s3fs'),
}


def usable(path: str, name: str) -> str:
  """Returns a path with `~` expanded, after checking that it can be opened.

  Args:
    path: as given by the user.
    name: of the flag or field that holds it, for messages.

  Raises:
    ValueError: if the home folder does not exist, or the bucket is not supported.
  """
  bucket = re.match(r'([A-Za-z][A-Za-z0-9+.-]*)://', path)
  if bucket:
    if bucket[1] not in _BUCKETS:
      raise ValueError(f'{name} must be local or begin with gs://: {path!r}')
    library, installed_by = _BUCKETS[bucket[1]]
    if not all(map(importlib.util.find_spec, ('fsspec', library))):
      raise ValueError(f'{name} {path!r} needs {installed_by}')
  written_out = os.path.expanduser(path)
  if written_out.startswith('~'):
    raise ValueError(f'{name}: the home folder does not exist: {path!r}')
  return written_out


def check_reachable(path: str, name: str) -> None:
  """Raises an error if a bucket cannot be reached, or may not be read.

  The library that opens it tries again for about half a minute.

  Args:
    path: of a folder or file, local or in a bucket.
    name: of the flag or field that holds it, for messages.

  Raises:
    ConnectionError: if the network failed.
    ValueError: for all other reasons.
  """
  if '://' not in path:
    return
  # It would log each attempt with a traceback.
  logging.getLogger(_BUCKETS[path.partition('://')[0]][0]).setLevel(logging.CRITICAL)
  try:
    epath.Path(path).exists()
  except Exception as error:  # of any library
    kind = ConnectionError if errors.of_network(error) else ValueError
    raise kind(f'{name} {path!r} cannot be reached: {error}') from error


def check_folder(path: str, name: str) -> None:
  """Raises ValueError if a path is a file, or Orbax would find no checkpoints in it.

  Orbax reads some characters as a pattern, also in parent folders, and would report
  good checkpoints as damaged.

  Args:
    path: of the folder, local or in a bucket.
    name: of the flag or field that holds it, for messages.
  """
  whole = path if '://' in path else os.path.realpath(path)
  if odd := sorted(set(whole) & set('[]*?\\')):
    raise ValueError(f'{name} must not contain {" ".join(odd)}: Orbax finds no '
                     f'checkpoints in such a path: {whole!r}')
  if '://' not in path and os.path.isfile(path):
    raise ValueError(f'{name} must be a folder, and is a file: {path!r}')


def make_usable(config: Any) -> None:
  """Replaces the paths among the fields of a configuration by `usable` ones.

  Text that begins with `~` or contains :// is taken to be a path.

  Raises:
    ValueError: as `usable`; the message names the field.
  """
  config.update_from_flattened_dict({
      name: usable(value, f'config.{name}')
      for name, value in run_folder.flatten(config.to_dict()).items()
      if isinstance(value, str) and (value.startswith('~') or '://' in value)
  })
