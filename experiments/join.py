"""Joins the folders of one run that was divided among several machines.

  python -m experiments.join --workdir=runs/all runs/first runs/second

Each machine ran a part of the same configuration: some cells, by --config.run of
`vanishing_variance` or `sensitivity`; some tasks and arms, by --config.run_tasks and
--config.run_arms of `league`; some arms, by --config.run_arms of `adapt`; or some
models, by --config.run_models of `correlation`. Their rows, learning curves,
predictions and starts are added to those in --workdir, which may be new. Checkpoints
and trained models stay where they are, and so do the curves of seeds that are not
measured yet. A row or curve that is in two folders must be the same in both; otherwise
nothing is written.
"""

import argparse
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
import fnmatch
import functools
import json
import math
from typing import Any

from etils import epath

from experiments.adapt import primary
from experiments.correlation import points
from experiments.harness import errors, finished, locks, paths, reports
from vvlen.reporting import results, run_folder
from vvlen.reporting.curves import read_curves

# Studies, and the fields of their configurations that may differ between two parts.
# Seeds may be added to the first two.
_GROW = 'adapt', 'correlation'
_DIVIDED: dict[str, tuple[str, ...]] = {
    'adapt': primary.MAY_DIFFER, 'correlation': points.MAY_DIFFER,
    'league': (), 'sensitivity': (), 'vanishing_variance': (),
}
_NOT_READ = {'checkpoints', 'figures', 'models', 'tables', 'tensorboard', 'trace'}

Content = Mapping[Any, Any]  # of a file: {what a value is of: the value}


def main() -> None:
  """Reads the command line; wrong input ends with one line and exit code 2."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--workdir', required=True, help='folder that is added to')
  parser.add_argument('parts', nargs='+', help='folders that are added')
  parser.error = lambda text: errors.refuse(ValueError(text))  # type: ignore
  args = parser.parse_args()
  with errors.reported():
    workdir, *parts = (
        paths.usable(path, name) for path, name in (
            (args.workdir, '--workdir'), *((part, 'a folder') for part in args.parts)))
    for path in (workdir, *parts):
      paths.check_reachable(path, path)
    locks.lock(workdir)
    try:
      join(workdir, parts)
      reports.show(workdir)
    finally:
      locks.release()


def join(workdir: epath.PathLike, parts: Sequence[epath.PathLike]) -> None:
  """Adds the results of some folders to those of another, which may be new.

  Args:
    workdir: the folder that is added to. What is new comes last in its files; the run
      sorts its rows when it is started again.
    parts: folders of runs with the same configuration; they are only read.

  Raises:
    ValueError: if a folder holds no results of a study that can be divided, or results
      of another configuration, or if two folders have different values of the same row
      or curve. Then nothing has been written.
  """
  target, folders = epath.Path(workdir), [epath.Path(part) for part in parts]
  study = ''
  for folder in folders:
    if not (results.is_there(folder / 'results.csv')
            and (folder / 'config.json').exists()):
      raise ValueError(f'{folder} holds no results of a run')
    if (study := reports.study_of(folder)) not in _DIVIDED:
      raise ValueError(f'{folder} holds a run of {study}, which has no parts that '
                       f'machines could share; {", ".join(_DIVIDED)} have')
  if (target / 'config.json').exists():
    folders.insert(0, target)
  elif run_folder.used(target):
    raise ValueError(f'{target} is not empty and holds no run')
  files = [
      (write, target / inside, joined(places))
      for pattern, joined, write in _kinds(target, study)
      for inside, places in _found(folders, pattern).items()
  ]
  for write, path, content in files:
    if content:  # else nothing of it is measured yet
      write(path, content)


def _found(
    folders: Sequence[epath.Path], pattern: str
) -> dict[str, list[epath.Path]]:
  """Returns {path within a run: the files there} of files of a kind.

  The pattern is of a file's name, or of its path if it has a folder. A compressed
  file, NAME.xz, is named as the plain one: `read_rows` finds it.
  """
  found: dict[str, list[epath.Path]] = {}
  for folder in folders:
    names = {str(path.relative_to(folder)).removesuffix('.xz')
             for path in _files(folder)}
    for inside in sorted(names):
      path = inside if '/' in pattern else inside.rpartition('/')[2]
      if fnmatch.fnmatchcase(path, pattern):
        found.setdefault(inside, []).append(folder / inside)
  return found


def _files(folder: epath.Path) -> Iterator[epath.Path]:
  for path in folder.iterdir():
    if not path.is_dir():
      yield path
    elif path.name not in _NOT_READ:
      yield from _files(path)


def _configuration(study: str, places: Sequence[epath.Path]) -> dict[str, Any]:
  """Returns the content of config.json, with all starts in the order of time.

  Of a study to which seeds can be added later, it has the largest number of seeds.
  """
  differ = 'train.save_every_seconds', *_DIVIDED[study]
  may_differ = {f'config.{name}' for name in differ}
  grows = 'config.num_seeds' if study in _GROW else ''
  starts: list[dict[str, Any]] = []
  first: dict[str, Any] = {}
  for path in places:
    with run_folder.reading(path) as stored:
      starts += [start for start in stored.pop('sessions') if start not in starts]
      starts.sort(key=lambda start: start['started'])
      first = first or stored
      here, there = run_folder.flatten(stored), run_folder.flatten(first)
    if grows in here and here[grows] > there.get(grows, here[grows]):
      first['config']['num_seeds'] = here[grows]
    for name in sorted((here.keys() | there.keys()) - may_differ - {grows}):
      if here.get(name) != there.get(name):
        raise ValueError(
            f'{path.parent} and {places[0].parent} are not of one run: '
            f'{name.removeprefix("config.")} is {here.get(name)} and {there.get(name)}')
  return first | {'sessions': starts}


def _union(
    read: Callable[[epath.Path], Content], places: Sequence[epath.Path]
) -> Content:
  """Returns what any of the files has; raises if two have different values of it."""
  union: dict[Hashable, Any] = {}
  source: dict[Hashable, epath.Path] = {}
  for path in places:
    for key, value in read(path).items():
      # By repr, as nan is not equal to nan.
      if repr(union.setdefault(key, value)) != repr(value):
        words = ' '.join(str(x) for x in (key if isinstance(key, tuple) else [key])
                         if x is not None)
        raise ValueError(
            f'{path} and {source[key]} have different values of {words}: keep that '
            'part of the run in one folder alone')
      source.setdefault(key, path)
  return union


def _whole(path: epath.Path) -> Content:
  """Returns the predictions of a seed, none if it is not measured yet."""
  arm, _, seed = path.name.removesuffix('.jsonl').rpartition('_seed_')
  measured = any((row.arm, str(row.seed)) == (arm, seed) for row in results.read_rows(
      path.parents[1] / 'results.csv'))
  return {'predictions': path.read_text()} if measured else {}


def _rows(path: epath.Path) -> Content:
  return {row.key: row for row in results.read_rows(path)}


def _counts(path: epath.Path) -> Content:
  """Returns how many rows each part of a run has, from rows.json."""
  return finished.listed(path.parent) or {}


def _all_curves(target: epath.Path, places: Sequence[epath.Path]) -> Content:
  """Returns lines of learning curves or evaluations by arm and block of seeds.

  Of blocks that are not measured yet they are those of the target, where the
  checkpoints are from which these go on.
  """
  union = dict(_union(_curves, places))
  for path in places:
    for line in read_curves(path) if path.is_relative_to(target) else ():
      lines = union.setdefault((line['arm'], 'seeds from', line['first_seed']), [])
      if line['step'] > max((x['step'] for x in lines), default=-1):
        lines.append(line)
  return union


def _curves(path: epath.Path) -> Content:
  """Returns the lines of a file up to the last step of each block that was measured."""
  steps = _measured_steps(path)
  blocks: dict[Hashable, list[dict[str, Any]]] = {}
  for line in read_curves(path):
    last = steps.get((line['arm'], line['first_seed']), -1)
    if line['step'] <= last:
      key = line['arm'], 'seeds from', line['first_seed']
      blocks.setdefault(key, []).append(line)
  return blocks


def _measured_steps(path: epath.Path) -> dict[tuple[str, int], float]:
  """Returns {(arm, seed): last measured step} of the models of a file of curves.

  Their rows are in the nearest results.csv, in its folder or one above; there, their
  experiment has the name of a folder on the way. Rows without a step are measured at
  the end, infinity.
  """
  steps: dict[tuple[str, int], float] = {}
  home = next((folder for folder in path.parents
               if results.is_there(folder / 'results.csv')), None)
  for row in results.read_rows(home / 'results.csv') if home else ():
    if home == path.parent or row.experiment in path.relative_to(home).parts:
      step = math.inf if row.step is None else row.step
      arm = row.arm.partition('+')[0]
      steps[arm, row.seed] = max(step, steps.get((arm, row.seed), 0))
  return steps


def _write_curves(path: epath.Path, blocks: Content) -> None:
  results.write_text(path, ''.join(
      json.dumps(line) + '\n' for lines in blocks.values() for line in lines))


def _write_whole(path: epath.Path, content: Content) -> None:
  results.write_text(path, content['predictions'])


def _write_configuration(path: epath.Path, stored: Mapping[str, Any]) -> None:
  results.write_text(path, json.dumps(stored, indent=2) + '\n')


def _kinds(
    target: epath.Path, study: str
) -> Sequence[tuple[str, Callable[..., Any], Callable[..., None]]]:
  """Returns patterns of files, how several become one, and how that is written.

  Rows are last, since they say what is finished.
  """
  curves = functools.partial(_all_curves, target)
  return (
      ('config.json', functools.partial(_configuration, study), _write_configuration),
      ('metrics.jsonl', curves, _write_curves),
      ('evaluations.jsonl', curves, _write_curves),
      ('predictions/*.jsonl', functools.partial(_union, _whole), _write_whole),
      ('rows.json', functools.partial(_union, _counts),
       lambda path, counts: finished.write_listed(path.parent, counts)),
      ('results.csv', functools.partial(_union, _rows),
       lambda path, rows: results.write_rows(path, rows.values())),
  )


if __name__ == '__main__':
  main()
