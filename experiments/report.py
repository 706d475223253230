"""Remakes the tables and figures of a run from its results, without JAX.

python -m experiments.report --workdir=runs/quick
"""

import argparse
from collections.abc import Callable
import sys
from typing import NoReturn

from etils import epath

from experiments.counting import report as counting
from experiments.language_model import report as alignment
from experiments.length_generalization import report
from experiments.linear_attention import report as linear_attention
from experiments.measure import report as measurements
from experiments.mechanism import report as mechanism
from experiments.recency_bias import report as recency
from experiments.sensitivity import report as sensitivity
from experiments.vanishing_variance import report as vanishing_variance
from vvlen.reporting import run_folder


def show(workdir: str) -> None:
  """Writes tables and figures, prints the main tables."""
  main_tables, paths = _writer(workdir)(workdir)
  print('', main_tables, *paths, sep='\n')


def _writer(workdir: str) -> Callable[..., tuple[str, list[epath.Path]]]:
  """Returns what writes the report of a folder, by its configuration."""
  path = epath.Path(workdir) / 'config.json'
  if not path.exists():
    return report.write
  with run_folder.reading(path) as stored:
    config = dict(stored['config'])
  if config.get('study') == 'vanishing_variance':
    return vanishing_variance.write
  if 'spread' in config:
    return measurements.write
  if 'base' in config:
    return sensitivity.write
  if 'control' in config:
    return alignment.write
  if 'figures' in config:
    return counting.write
  if 'panels' in config:
    return recency.write
  if 'train_lengths' in config:
    return linear_attention.write
  return mechanism.write if 'trained_config' in config else report.write


def main() -> None:
  """Reads the command line; wrong input ends with one line and exit code 2."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--workdir', required=True, help='folder of the run')
  parser.error = _fail
  try:
    show(parser.parse_args().workdir)
  except (ValueError, OSError) as error:
    _fail(error)
  except KeyboardInterrupt:
    print('Interrupted.', file=sys.stderr)
    sys.exit(130)


def _fail(error: object) -> NoReturn:
  print(f'Error: {" ".join(str(error).split())}', file=sys.stderr)
  sys.exit(2)


if __name__ == '__main__':
  main()
