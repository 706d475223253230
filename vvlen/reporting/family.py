"""A family of runs that is fixed before its first result: its digest in config.json.

Runs without JAX.
"""

import hashlib
import json
from typing import Any

from etils import epath

from vvlen.reporting import run_folder


def read_family(folder: epath.Path) -> dict[str, Any]:
  """Returns the family whose results a folder holds.

  Raises:
    ValueError: if config.json is missing or damaged, or was changed after the results
      were made.
  """
  path = folder / 'config.json'
  if not path.exists():
    raise ValueError(f'{folder} has no config.json')
  with run_folder.reading(path, of='a family') as stored:
    family = dict(stored['config'])
    digest = family.pop('digest')
  if digest_of(family) != digest:
    raise ValueError(
        f'{path} was changed after its results were made: its family has the digest '
        f'{digest_of(family)[:12]}, the results are of {digest[:12]}'
    )
  return family


def digest_of(family: dict[str, Any]) -> str:
  """Returns the SHA-256 of the fields that define a family."""
  return hashlib.sha256(json.dumps(family, sort_keys=True).encode()).hexdigest()
