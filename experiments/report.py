"""Makes the tables and figures of a run again from its results, without JAX.

python -m experiments.report --workdir=runs/quick
"""

import argparse
import sys

from experiments.harness import errors, paths, reports


def main() -> None:
  """Reads the command line; wrong input ends with one line and exit code 2."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--workdir', required=True, help='folder of the run')
  parser.error = lambda text: errors.refuse(ValueError(text))  # type: ignore
  workdir = parser.parse_args().workdir
  try:
    reports.show(paths.usable(workdir, '--workdir'))
  except KeyboardInterrupt:
    print('Interrupted.', file=sys.stderr)
    sys.exit(130)
  except Exception as error:
    errors.leave(error)


if __name__ == '__main__':
  main()
