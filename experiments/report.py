"""Remakes the tables and figures of a run from its results, without JAX.

python -m experiments.report --workdir=runs/quick
"""

import argparse
from collections.abc import Callable
import sys
from typing import NoReturn

from etils import epath

from experiments.counting import report as counting
from experiments.language_model import report as language_model
from experiments.length_generalization import report as length_generalization
from experiments.linear_attention import report as linear_attention
from experiments.measure import report as measure
from experiments.mechanism import report as mechanism
from experiments.recency_bias import report as recency_bias
from experiments.sensitivity import report as sensitivity
from experiments.vanishing_variance import report as vanishing_variance
from vvlen.reporting import run_folder

# The study that a run's config.json names -> what writes its report.
WRITERS: dict[str, Callable[..., tuple[str, list[epath.Path]]]] = {
    'counting': counting.write,
    'language_model': language_model.write,
    'length_generalization': length_generalization.write,
    'linear_attention': linear_attention.write,
    'measure': measure.write,
    'mechanism': mechanism.write,
    'recency_bias': recency_bias.write,
    'sensitivity': sensitivity.write,
    'vanishing_variance': vanishing_variance.write,
}


def show(workdir: str) -> None:
  """Writes tables and figures, prints the main tables."""
  main_tables, paths = WRITERS[study_of(workdir)](workdir)
  print('', main_tables, *paths, sep='\n')


def study_of(workdir: epath.PathLike) -> str:
  """Returns the study of a run's folder; without config.json length generalization.

  Raises:
    ValueError: if its config.json names none that there is.
  """
  path = epath.Path(workdir) / 'config.json'
  if not path.exists():
    return 'length_generalization'
  with run_folder.reading(path) as stored:
    study = stored.get('study')
  if study not in WRITERS:
    raise ValueError(f'{path}: study must be of {", ".join(WRITERS)}: {study!r}')
  return study


def main() -> None:
  """Reads the command line; wrong input ends with one line and exit code 2."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--workdir', required=True, help='folder of the run')
  parser.error = _fail  # type: ignore
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
