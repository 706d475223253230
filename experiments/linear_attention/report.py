"""Writes the tables and figures of linear attention on bits. Runs without JAX."""

from etils import epath

from experiments.linear_attention import figures, tables
from experiments.linear_attention.answer import answer
from experiments.linear_attention.tables import Indices, Setting
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.page import missing_seeds, Report, unfinished
from vvlen.reporting.tables import write_tables

_ABOUT = ('One layer of linear attention, with a table of four numbers A, reads n '
          'bits and gives their mean, number (length) or sum. The table is computed '
          'by least squares, by closed forms, and by gradient descent. Paper: '
          'long-short alignment, arXiv 2506.11769, section 3.')


def write(workdir: epath.PathLike) -> Report:
  """Writes tables and figures of a run into its folder.

  Args:
    workdir: a folder with config.json and results.csv of a run of linear_attention.

  Returns:
    What the run has found.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  with run_folder.reading(folder / 'config.json', of='linear attention') as stored:
    config = dict(stored['config'])
    settings = [Setting(str(task), int(n)) for task in config['tasks']
                for n in config['train_lengths']]
    longest, asked = int(config['evaluate']['max_length']), int(config['num_seeds'])
  rows = results.read_rows(folder / 'results.csv')
  names = {setting.name for setting in settings}
  if odd := [row for row in rows if row.experiment not in names]:
    raise ValueError(f'{folder}/results.csv has a row of another run: {odd[0].key}')
  indices: Indices = {s: results.index(r for r in rows if r.experiment == s.name)
                      for s in settings}
  if not all(('exact', 'loss', longest) in index for index in indices.values()):
    raise ValueError(
        f'{folder} has no results.csv with results of all tasks. Start the command of '
        'the run again; if it has lost rows, delete results.csv first')
  made = [tables.optimum(indices, longest), tables.errata(indices, longest),
          tables.sampled(indices)]
  if any(setting.task == 'length' for setting in settings):
    made.insert(2, tables.reparameterization(indices, longest))
  lengths = sorted({setting.n for setting in settings})
  # The same axis in the figures of all lengths.
  highest = max((
      float(values.max()) for s, index in indices.items() if s.task == 'length'
      for values in figures.ratios(index, s.n)[1].values()), default=1.0)
  with plots.style():
    drawn = {
        f'loss_{n}': figures.losses(
            n, {s.task: index for s, index in indices.items() if s.n == n},
            0.9 + 1.05 * (highest - 0.9))
        for n in lengths
    }
    paths = plots.save(folder / 'figures', drawn)
  missing = missing_seeds({s.name: len(tables.trained_loss(index))
                           for s, index in indices.items()}, asked)
  write_tables(folder, made)
  return Report(
      "Does gradient descent find the best linear attention, and is it the paper's?",
      answer(made[0].records, made[1].records), made, paths, 1,
      unfinished(missing), _ABOUT)
