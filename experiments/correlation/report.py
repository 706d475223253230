"""Writes the tables and figures of correlations over models. Runs without JAX.

The primary comparison is that of config.primary: r of misalignment minus r of
training loss, in the direction that is claimed, each with the primary outcome on inputs
longer than those of training, over models; decided by its 95 % bootstrap interval. All
else is secondary.
"""

from etils import epath

from experiments.correlation import figures, tables
from experiments.correlation.answer import answer
from experiments.correlation.points import EXPERIMENT, points, read_run
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.page import missing_seeds, Report, unfinished
from vvlen.reporting.tables import write_tables

_ABOUT = ('Small language models that differ in positions, training length, steps, '
          'norm after attention and loss are trained on answered prompts, and asked '
          'longer ones. Misalignment is how much predictions of the same token differ '
          'between two windows; L is the length of training of a model; r is a '
          'correlation over models. Paper: long-short alignment, arXiv 2506.11769, '
          'Table 1.')


def write(workdir: epath.PathLike) -> Report:
  """Writes tables and figures of a run into its folder.

  Args:
    workdir: a folder with config.json and results.csv of `experiments.correlation`.

  Returns:
    What the run has found.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  with run_folder.reading(folder / 'config.json', of='correlations') as stored:
    run = read_run(stored['config'])
  names = {model.name for model in run.models}
  rows = results.read_run(folder, '|'.join((EXPERIMENT, *run.tasks)), names)
  found = points(run, rows)
  made = tables.make(run, found) if found.models else []
  write_tables(folder, made)
  with plots.style():
    paths = plots.save(folder / 'figures', figures.make(run, found))
  have = {model.name: len({row.seed for row in rows if row.arm == model.name})
          for model in run.models}
  return Report(
      'Does misalignment tell which models generalize to longer inputs?',
      answer(run, found), made, paths, 1,
      unfinished(missing_seeds(have, run.num_seeds)), _ABOUT)
