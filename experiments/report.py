"""Remakes the tables and figures of a run from its results, without JAX.

python -m experiments.report --workdir=runs/quick
"""

import argparse
from collections.abc import Callable
import json
import sys
from typing import NoReturn

from etils import epath

from vvlen import mechanism, report, sensitivity


def show(workdir: str) -> None:
  """Writes tables and figures, prints the main tables."""
  main_tables, paths = _writer(workdir)(workdir)
  print('', main_tables, *paths, sep='\n')


def _writer(workdir: str) -> Callable[..., tuple[str, list[epath.Path]]]:
  """Returns what writes the report of a folder, by its configuration."""
  path = epath.Path(workdir) / 'config.json'
  try:
    config = json.loads(path.read_text())['config'] if path.exists() else {}
    writers = [
        writer for field, writer in (
            ('base', sensitivity.write), ('trained_config', mechanism.write)
        ) if field in config
    ]
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f'{path} is not the config.json of a run') from error
  return writers[0] if writers else report.write


def main() -> None:
  """Reads the command line; wrong input ends with one line and exit code 2."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--workdir', required=True, help='folder of the run')
  parser.error = _fail
  try:
    show(parser.parse_args().workdir)
  except (ValueError, OSError) as error:
    _fail(error)


def _fail(error: object) -> NoReturn:
  print(f'Error: {" ".join(str(error).split())}', file=sys.stderr)
  sys.exit(2)


if __name__ == '__main__':
  main()
