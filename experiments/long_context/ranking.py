"""Which checkpoint is better, and does the dialect of scores change that?

Reads finished runs of one suite, of a checkpoint each, and ranks them by each task and
length in each dialect. Runs without JAX.

  python -m experiments.long_context.ranking runs/first runs/second

With --output=FOLDER, the table is also written into FOLDER/tables.
"""

import argparse
from collections.abc import Sequence
import functools
import itertools
import re
import shutil
from typing import Any, NamedTuple

from etils import epath
import numpy as np

from experiments.harness import errors, paths
from experiments.long_context import scores
from experiments.long_context.tables import joined, name_of
from vvlen.evaluation.longbench import DIALECTS
from vvlen.reporting import run_folder
from vvlen.reporting.tables import CellText, grid, Record, Table, write_tables

# Fields that may differ between runs that are compared. All others decide what is
# asked; texts and stories are identified by their content.
_MAY_DIFFER = re.compile(
    'babi|batch_size|beyond_window|checkpoint|data|dialect|dtype|lengths|multiples'
    '|num_resamples|num_samples|predictions|text|window|(mesh|rope)[.].*'
    '|inputs[.](bad_lines|checkpoint_sha256|not_run|predictions_sha256|samples|window)')
_EQUAL = 1e-9  # means that are closer are equal up to round-off

Cell = tuple[str, int | str]  # task, and length in tokens or LongBench's bucket


class Ranked(NamedTuple):
  """Scores of the same samples by several checkpoints."""

  names: list[str]  # of the checkpoints, C
  cells: dict[Cell, dict[str, np.ndarray]]  # scores [C, samples] by dialect
  left_out: list[str]  # tasks and lengths of which not all runs have all samples
  num_resamples: int
  seed: int


def main() -> None:
  """Reads the command line; wrong input ends with one line and exit code 2."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('runs', nargs='+', help='folders of experiments.long_context')
  parser.add_argument('--output', help='folder to write the table into')
  parser.error = lambda text: errors.refuse(ValueError(text))  # type: ignore
  args = parser.parse_args()
  with errors.reported():
    for path in args.runs:
      paths.check_reachable(path, path)
    made = table(read([paths.usable(path, 'a folder') for path in args.runs]))
    print(made.title, grid(made, shutil.get_terminal_size().columns), made.note,
          sep='\n')
    if args.output:
      write_tables(epath.Path(paths.usable(args.output, '--output')), [made])


def read(folders: Sequence[epath.PathLike]) -> Ranked:
  """Reads runs that asked several checkpoints the same.

  Raises:
    ValueError: if these are fewer than two, a folder holds no run of this study, the
      runs asked different things, or they have no task and length in common.
  """
  if len(folders) < 2:
    raise ValueError('there is nothing to compare one run with: name two or more')
  if len({*map(str, folders)}) < len(folders):
    raise ValueError('a folder is named twice')
  configs = [_config(epath.Path(folder)) for folder in folders]
  for folder, config in zip(folders, configs, strict=True):
    differing = sorted(
        name for name in config.keys() | configs[0].keys()
        if config.get(name) != configs[0].get(name)
        and not _MAY_DIFFER.fullmatch(name))
    if differing:
      raise ValueError(f'{folder} and {folders[0]} differ in {", ".join(differing)}: '
                       'their checkpoints were not asked the same')
  runs = [_samples(folder) for folder in folders]
  everywhere: dict[Cell, dict[str, np.ndarray]] = {}
  left_out = []
  for cell in dict.fromkeys(itertools.chain.from_iterable(runs)):
    own = [run.get(cell, {}) for run in runs]
    if all(x.keys() == own[0].keys() for x in own):
      everywhere[cell] = {
          dialect: np.array([[run[sample][place] for sample in sorted(run)]
                             for run in own])
          for place, dialect in enumerate(DIALECTS)}
    else:
      left_out.append(f'{name_of(cell[0])} at {cell[1]}')
  if not everywhere:
    raise ValueError('the runs have no task and length with the same samples')
  names = [epath.Path(folder).name for folder in folders]
  if len({*names}) < len(names):
    names = [str(folder) for folder in folders]
  return Ranked(names, everywhere, left_out, int(configs[0]['num_resamples']),
                int(configs[0]['seed']))


def _config(folder: epath.Path) -> dict[str, Any]:
  """Returns the configuration of a run, {field: value}."""
  if not (folder / 'config.json').exists():
    raise ValueError(f'{folder} holds no run of experiments.long_context')
  with run_folder.reading(folder / 'config.json', of='a suite') as stored:
    if stored['study'] != 'long_context':
      raise ValueError(f'it is of {stored["study"]}')
    return run_folder.flatten(stored['config'])


def _samples(
    folder: epath.PathLike
) -> dict[Cell, dict[tuple[Any, ...], list[float]]]:
  """Returns the scores of each sample, in the order of dialects."""
  rows = scores.read_rows(folder)
  found: dict[tuple[Any, ...], dict[str, float]] = {}
  for row in rows:
    key = row.arm, scores.bucket_of(row), row.seed, row.length, row.depth
    found.setdefault(key, {})[row.metric] = row.value
  cells: dict[Cell, dict[tuple[Any, ...], list[float]]] = {}
  for (task, length, *sample), own in found.items():
    cells.setdefault((task, length), {})[*sample, own['chance']] = [
        own[f'score_{dialect}'] for dialect in DIALECTS]
  return cells


def table(ranked: Ranked) -> Table:
  """Makes the table: a row for each task and length, and for the mean over tasks."""
  count = len(ranked.names)
  records = [_record(ranked, 'mean' if len(cells) > 1 else cells[0][0], cells)
             for cells in _rows(ranked)]
  columns: dict[str, CellText] = {
      'task': lambda r: name_of(r['task']),
      'length': lambda r: r['length'] if isinstance(r['length'], str)
      else f'{r["length"]:,}',
      'samples': lambda r: f'{r["samples"]}',
      **{dialect: functools.partial(_order, ranked.names, dialect)
         for dialect in DIALECTS},
      'pairs turned': lambda r: str(r['turned']),
      'beyond noise': lambda r: str(r['beyond_noise']),
  }
  left_out = (f'Left out, as not all runs have the same samples: '
              f'{", ".join(ranked.left_out)}.' if ranked.left_out else '')
  note = (f'Mean scores in %, the best first. Pairs turned: of '
          f'{count * (count - 1) // 2} pairs of checkpoints, those of which one is '
          'better in the official dialect and worse in another.')
  more = joined(
      'Beyond noise: of these pairs, those of which the 95 % intervals of both '
      'differences (bootstrap over samples, those of both checkpoints together) '
      'exclude 0. Without correction for the number of rows and pairs. Checkpoints '
      'with different tokenizers are not asked quite the same prompts.', left_out)
  return Table('ranking', 'Order of checkpoints by dialect', columns, records, note,
               more=more)


def turned(x: np.ndarray, y: np.ndarray) -> list[tuple[int, int]]:
  """Returns the pairs of places that x [C] and y [C] put in opposite orders."""
  return [(i, j) for i, j in itertools.combinations(range(len(x)), 2)
          if min(abs(x[i] - x[j]), abs(y[i] - y[j])) > _EQUAL
          and (x[i] > x[j]) != (y[i] > y[j])]


def _rows(ranked: Ranked) -> list[list[Cell]]:
  """Returns the cells of each row: one, or those of all tasks at a length."""
  tasks = dict.fromkeys(task for task, _ in ranked.cells)
  lengths = dict.fromkeys(length for _, length in ranked.cells)
  rows = [[cell] for cell in ranked.cells]
  for length in lengths if len(tasks) > 1 else ():
    own = [(task, length) for task in tasks if (task, length) in ranked.cells]
    if len(own) == len(tasks):
      rows.append(own)
  return rows


def _record(ranked: Ranked, task: str, cells: Sequence[Cell]) -> dict[str, Any]:
  """Returns the record of a row; the mean over tasks weighs each alike."""
  values = {dialect: [ranked.cells[cell][dialect] for cell in cells]
            for dialect in DIALECTS}
  means = {dialect: np.mean([x.mean(axis=1) for x in own], axis=0)
           for dialect, own in values.items()}
  official, *others = DIALECTS
  pairs = {dialect: turned(means[official], means[dialect]) for dialect in others}
  sign = lambda dialect, i, j: _sign(
      [x[i] - x[j] for x in values[dialect]], ranked.num_resamples, ranked.seed)
  beyond = {(i, j) for dialect, own in pairs.items() for i, j in own
            if sign(official, i, j) * sign(dialect, i, j) < 0}
  return {
      'task': task, 'length': cells[0][1],
      'samples': sum(x.shape[1] for x in values[official]),
      'turned': len({pair for own in pairs.values() for pair in own}),
      'beyond_noise': len(beyond),
      **{f'{dialect}_{name}': 100 * float(mean) for dialect, own in means.items()
         for name, mean in zip(ranked.names, own, strict=True)}}


def _sign(groups: Sequence[np.ndarray], num_resamples: int, seed: int) -> int:
  """Returns the sign of a mean difference, 0 if its interval includes 0."""
  _, low, high = scores.mean_interval(groups, num_resamples, seed)
  return (low > 0) - (high < 0)


def _order(names: Sequence[str], dialect: str, record: Record) -> str:
  """Returns the checkpoints with their scores, such as 'b 91.7 > a 85.4 = c 85.4'."""
  value = lambda name: record[f'{dialect}_{name}']
  first, *rest = sorted(names, key=value, reverse=True)
  text = f'{first} {value(first):.1f}'
  for before, name in itertools.pairwise([first, *rest]):
    equal = value(before) - value(name) <= 100 * _EQUAL
    text += f' {"=" if equal else ">"} {name} {value(name):.1f}'
  return text


if __name__ == '__main__':
  main()
