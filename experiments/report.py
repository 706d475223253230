"""Makes the tables, figures and page of a run again from its results, without JAX.

  python -m experiments.report --workdir=runs/quick
  python -m experiments.report --all=runs

With --all, of all runs in a folder; then index.md in it lists them, with what each has
found. With --compress, a results.csv of more than 1 MB becomes results.csv.xz, which
every command reads in its place.
"""

import argparse

from experiments.harness import errors, paths, reports


def main() -> None:
  """Reads the command line; wrong input ends with one line and exit code 2."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  which = parser.add_mutually_exclusive_group(required=True)
  which.add_argument('--workdir', help='folder of the run')
  which.add_argument('--all', help='folder of the folders of runs')
  parser.add_argument('--compress', action='store_true',
                      help='make results.csv.xz of a results.csv of more than 1 MB')
  parser.error = lambda text: errors.refuse(ValueError(text))  # type: ignore
  args = parser.parse_args()
  with errors.reported():
    name = '--all' if args.all else '--workdir'
    folder = paths.usable(args.all or args.workdir, name)
    paths.check_reachable(folder, name)
    show = reports.show_all if args.all else reports.show
    show(folder)
    if args.compress:
      for run in reports.runs_of(folder) if args.all else [folder]:
        reports.compress(run)


if __name__ == '__main__':
  main()
