"""Which checkpoint is better, and does the dialect of scores change that?

Reads runs of one suite, of a checkpoint each, and ranks them by each task and length in
each dialect. Only what all runs were asked and have answered is compared. Runs without
JAX.

  python -m experiments.long_context.ranking runs/first runs/second

With --output=FOLDER, the table is also written into FOLDER/tables.
"""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
import itertools
import os
import re
import shutil
import textwrap
from typing import Any, NamedTuple

from etils import epath
import numpy as np

from experiments.harness import errors, paths
from experiments.long_context import dialect_tables, scores, settings
from experiments.long_context.longbench_tables import MEANS, three_means
from experiments.long_context.scores import Cells
from experiments.long_context.tables import joined, name_of
from vvlen.evaluation.longbench import DIALECTS
from vvlen.reporting import run_folder
from vvlen.reporting.numbers import counted
from vvlen.reporting.tables import grid, Record, Table, write_tables

# Fields that may differ between runs that are compared. All others decide what is
# asked; texts and stories are identified by their content.
_MAY_DIFFER = re.compile(
    'babi|batch_size|beyond_window|checkpoint|data|dialect|dtype|lengths|multiples'
    '|num_resamples|num_samples|predictions|text|window|(mesh|rope)[.].*'
    '|inputs[.](bad_lines|checkpoint_sha256|ends|not_run|predictions_sha256|samples'
    '|window|asked_sha256[.].*)')
_EQUAL = 1e-9  # means that are closer are equal up to round-off
# Of fewer samples, all of which may agree, a bootstrap shows too little noise.
_FEWEST = 20

Cell = tuple[str, int | str]  # task, and length in tokens or LongBench's bucket


class Ranked(NamedTuple):
  """Scores of the same samples by several checkpoints."""

  names: list[str]  # of the checkpoints, C
  sources: list[str]  # their hashes, and how they were run
  template: str  # hash of that of their prompts
  cells: dict[Cell, dict[str, np.ndarray]]  # scores [C, samples] by dialect
  left_out: list[str]  # tasks and lengths of which not all runs have the same samples
  num_resamples: int
  seed: int
  suite: str
  made_elsewhere: bool  # the predictions


class _Group(NamedTuple):
  """Cells that are ranked together, or a mean over them."""

  task: str  # or what the mean is over
  length: int | str
  cells: list[Cell]
  # (scores of the cells, bootstrap samples, seed) -> mean and ends of its interval
  interval: Callable[[Cells, int, int], tuple[float, float, float]]


def main() -> None:
  """Reads the command line; wrong input ends with one line and exit code 2."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('runs', nargs='+', help='folders of experiments.long_context')
  parser.add_argument('--output', help='folder to write the table into')
  parser.error = lambda text: errors.refuse(ValueError(text))  # type: ignore
  args = parser.parse_args()
  with errors.reported():
    folders = [paths.usable(path, 'a folder') for path in args.runs]
    output = args.output and paths.usable(args.output, '--output')
    for path in folders:
      paths.check_reachable(path, path)
    made = table(read(folders))
    width = shutil.get_terminal_size().columns
    print(made.title, grid(made, width), *textwrap.wrap(made.note, width), '',
          *textwrap.wrap(made.more, width), sep='\n')
    if output:
      write_tables(epath.Path(output), [made])


def read(folders: Sequence[epath.PathLike]) -> Ranked:
  """Reads runs that asked several checkpoints the same.

  Raises:
    ValueError: if these are fewer than two, a folder holds no run of this study, the
      runs asked different things, or they have no task and length in common.
  """
  if len(folders) < 2:
    raise ValueError('there is nothing to compare one run with: name two or more')
  if len({*map(_place, folders)}) < len(folders):
    raise ValueError('a folder is named twice')
  configs = [_config(epath.Path(folder)) for folder in folders]
  for folder, config in zip(folders, configs, strict=True):
    differing = sorted(
        name for name in config.keys() | configs[0].keys()
        if config.get(name) != configs[0].get(name)
        and not _MAY_DIFFER.fullmatch(name))
    if differing:
      raise ValueError(f'{folder} and {folders[0]} differ in {", ".join(differing)}: '
                       'their checkpoints were not asked the same, in the same order')
  runs = [_samples(folder, config.get('inputs.not_run', ()))
          for folder, config in zip(folders, configs, strict=True)]
  everywhere: dict[Cell, dict[str, np.ndarray]] = {}
  left_out = []
  for cell in dict.fromkeys(itertools.chain.from_iterable(runs)):
    own = [run.get(cell, {}) for run in runs]
    if len({_asked(config, cell) for config in configs}) == 1 and all(
        x.keys() == own[0].keys() for x in own):
      everywhere[cell] = {
          dialect: np.array([[run[sample][place] for sample in sorted(run)]
                             for run in own])
          for place, dialect in enumerate(DIALECTS)}
    else:
      left_out.append(f'{name_of(cell[0])} at {_length_words(cell[1])}')
  if not everywhere:
    raise ValueError('the runs have no task and length with the same samples')
  names = [epath.Path(folder).name for folder in folders]
  if len({*names}) < len(names):
    names = [str(folder) for folder in folders]
  first = configs[0]
  return Ranked(
      names, _sources(configs), _sha(first, 'template'), everywhere, left_out,
      int(first['num_resamples']), int(first['seed']),
      first['suite'], 'inputs.predictions_sha256' in first)


def _sha(config: Mapping[str, Any], name: str) -> str:
  """Returns the first digits of a hash of a run, '' if it has none."""
  return str(config.get(f'inputs.{name}_sha256', ''))[:12]


def _sources(configs: Sequence[Mapping[str, Any]]) -> list[str]:
  """Returns the hash of each run's weights or predictions, and how it was run.

  A window is named where it is not the checkpoint's own, or where windows differ.
  """
  windows = [config.get('inputs.window', 0) for config in configs]
  sources = []
  for config, window in zip(configs, windows, strict=True):
    found = settings.changes(config)
    if len({*windows}) > 1 and not config.get('window'):
      found.append(settings.window_words(window))
    words = f' ({", ".join(found)})' if found else ''
    sources.append(
        f'{_sha(config, "checkpoint") or _sha(config, "predictions")}{words}')
  return sources


def _asked(config: Mapping[str, Any], cell: Cell) -> str:
  """Returns the hash of what predictions made elsewhere answer, '' of other runs."""
  task, length = cell
  return str(config.get(f'inputs.asked_sha256.{task}_{length}', ''))


def _place(folder: epath.PathLike) -> str:
  """Returns where a folder is, in one spelling."""
  path = os.fspath(folder)
  return path.rstrip('/') if '://' in path else os.path.realpath(path)


def _config(folder: epath.Path) -> dict[str, Any]:
  """Returns the configuration of a run, {field: value}."""
  nothing = ValueError(f'{folder} holds no run of experiments.long_context')
  if not (folder / 'config.json').exists():
    raise nothing
  with run_folder.reading(folder / 'config.json', of='a suite') as stored:
    study, config = stored['study'], run_folder.flatten(stored['config'])
    _ = config['num_resamples'], config['seed'], config['suite']
    settings.changes(config)
  if study != 'long_context':
    raise nothing
  return config


def _samples(
    folder: epath.PathLike, not_run: Collection[str]
) -> dict[Cell, dict[tuple[Any, ...], list[float]]]:
  """Returns the scores of each sample of which all are there, by dialect.

  Args:
    folder: of the run.
    not_run: as in `scores.read_rows`.
  """
  found: dict[tuple[Any, ...], dict[str, float]] = {}
  for row in scores.read_rows(folder, not_run):
    key = row.arm, scores.bucket_of(row), row.seed, row.length
    found.setdefault(key, {})[row.metric] = row.value
  metrics = [f'score_{dialect}' for dialect in DIALECTS]
  cells: dict[Cell, dict[tuple[Any, ...], list[float]]] = {}
  for (task, length, *sample), own in found.items():
    if own.keys() >= {'chance', *metrics}:
      cells.setdefault((task, length), {})[*sample, own['chance']] = [
          own[metric] for metric in metrics]
  return cells


def table(ranked: Ranked) -> Table:
  """Makes the table: a row for each task, length and dialect, and for means of tasks.

  Means are of the tasks at a length of which all have this length; of LongBench also
  the three published ones, over all cells.
  """
  count = len(ranked.names)
  records = [record for group in _groups(ranked) for record in _records(ranked, group)]
  columns = {
      'task': lambda r: name_of(r['task']),
      'length': lambda r: _length_words(r['length']).removesuffix(' tokens'),
      'samples': lambda r: f'{r["samples"]}',
      'dialect': lambda r: r['dialect'],
      'pairs turned': lambda r: _blank(r, str(r['turned'])),
      'beyond noise': lambda r: _blank(r, str(r['beyond_noise'])),
      'order': lambda r: _order(ranked.names, r),
  }
  pairs = count * (count - 1) // 2
  of_all = counted(pairs, 'pair')
  note = (f'Mean scores in %, best first. Pairs turned: of {of_all} of checkpoints, '
          'those of which one is better in the official dialect, worse in this one.')
  hashes = ', '.join(
      f'{name} {source}'
      for name, source in zip(ranked.names, ranked.sources, strict=True))
  of_template = f'; template of prompts {ranked.template}' * bool(ranked.template)
  left_out = (f'Left out, as not all runs have the same samples: '
              f'{", ".join(ranked.left_out)}.' if ranked.left_out else '')
  more = joined(
      left_out, f'SHA-256: {hashes}{of_template}.',
      dialect_tables.strict_words(ranked.suite, ranked.made_elsewhere),
      'Beyond noise: of the pairs turned, those of which the 95 % intervals of both '
      'differences exclude 0, without correction for the number of rows and pairs '
      '(bootstrap over samples, those of both checkpoints together; at least '
      f'{_FEWEST} samples of each task and length). Prompts differ between tokenizers, '
      'and those of LongBench that are too long are cut to the window of each '
      'checkpoint. Where dialects are the same rule, as official and lm_eval of RULER, '
      'no pair can turn.')
  return Table('ranking', 'Order of checkpoints by dialect', columns, records, note,
               ('task', 'length', 'dialect', 'pairs turned', 'order'), more)


def turned(x: np.ndarray, y: np.ndarray) -> list[tuple[int, int]]:
  """Returns the pairs of places that x [C] and y [C] put in opposite orders."""
  return [(i, j) for i, j in itertools.combinations(range(len(x)), 2)
          if min(abs(x[i] - x[j]), abs(y[i] - y[j])) > _EQUAL
          and (x[i] > x[j]) != (y[i] > y[j])]


def _groups(ranked: Ranked) -> list[_Group]:
  """Returns the groups of rows: each cell, and the means."""
  mean = lambda found, *more: scores.mean_interval([*found.values()], *more)
  tasks = dict.fromkeys(task for task, _ in ranked.cells)
  lengths = dict.fromkeys(length for _, length in ranked.cells)
  groups = [_Group(*cell, [cell], mean) for cell in ranked.cells]
  for length in lengths if len(tasks) > 1 else ():
    own = [(task, length) for task in tasks if (task, length) in ranked.cells]
    if len(own) == len(tasks):
      groups.append(_Group('mean', length, own, mean))
  if ranked.suite == 'longbench':
    groups += [
        _Group(f'mean {words}', 'all', [*ranked.cells],
               lambda *args, name=name: three_means(*args)[name])
        for name, words in MEANS.items()]
  return groups


def _records(ranked: Ranked, group: _Group) -> list[dict[str, Any]]:
  """Returns a record for each dialect."""
  scored = {dialect: {cell: ranked.cells[cell][dialect] for cell in group.cells}
            for dialect in DIALECTS}
  means = {  # whose intervals are not used
      dialect: np.array([
          group.interval({cell: x[i] for cell, x in own.items()}, 1, ranked.seed)[0]
          for i in range(len(ranked.names))])
      for dialect, own in scored.items()}
  official = DIALECTS[0]

  def sign(dialect: str, i: int, j: int) -> int:
    differences = {cell: x[i] - x[j] for cell, x in scored[dialect].items()}
    return _sign(ranked, group, differences)

  records = []
  for dialect in DIALECTS:
    pairs = turned(means[official], means[dialect])
    records.append({
        'task': group.task, 'length': group.length,
        'samples': sum(x.shape[1] for x in scored[dialect].values()),
        'dialect': dialect, 'turned': len(pairs), 'beyond_noise': sum(
            sign(official, i, j) * sign(dialect, i, j) < 0 for i, j in pairs),
        **{f'score_{name}': 100 * float(mean)
           for name, mean in zip(ranked.names, means[dialect], strict=True)}})
  return records


def _sign(ranked: Ranked, group: _Group, differences: Cells) -> int:
  """Returns the sign of a mean difference, 0 if its interval includes 0."""
  if min(map(len, differences.values())) < _FEWEST:
    return 0
  _, low, high = group.interval(differences, ranked.num_resamples, ranked.seed)
  return (low > 0) - (high < 0)


def _blank(record: Record, text: str) -> str:
  """Returns a text, '' for the dialect that others are compared with."""
  return '' if record['dialect'] == DIALECTS[0] else text


def _length_words(length: int | str) -> str:
  return length if isinstance(length, str) else f'{length:,} tokens'


def _order(names: Sequence[str], record: Record) -> str:
  """Returns the checkpoints with their scores, such as 'b 91.7 > a 85.4 = c 85.4'."""
  value = lambda name: record[f'score_{name}']
  first, *rest = sorted(names, key=value, reverse=True)
  text = f'{first} {value(first):.1f}'
  for before, name in itertools.pairwise([first, *rest]):
    equal = value(before) - value(name) <= 100 * _EQUAL
    text += f' {"=" if equal else ">"} {name} {value(name):.1f}'
  return text


if __name__ == '__main__':
  main()
