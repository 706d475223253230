"""Writes the tables and the figure of interventions. Runs without JAX."""

from etils import epath
import numpy as np

from experiments.length_generalization.about import about
from experiments.length_generalization.setting import read_setting
from experiments.mechanism import parts, parts_tables
from experiments.mechanism.answer import answer, headline
from experiments.mechanism.figures import arms_of, figure
from experiments.mechanism.tables import gain_table, length_table, table
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.endpoints import CONTROL, TREATED
from vvlen.reporting.page import Report
from vvlen.reporting.plots import ARMS
from vvlen.reporting.tables import write_tables


def write(workdir: epath.PathLike) -> Report:
  """Writes the tables and the figure of a run into its folder.

  Args:
    workdir: a folder with config.json and results.csv of `experiments.mechanism`.

  Returns:
    What the run has found.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  rows = results.read_run(folder, r'\w+', ARMS)
  with run_folder.reading(folder / 'config.json') as stored:
    trained = stored['config']['trained_config']
    setting = read_setting(trained, rows[0].experiment)
    trained_step = int(stored['config']['trained_step'])
  trained_up_to = setting.trained_up_to
  index = results.index(rows)
  made = table(index, trained_up_to)
  made = made._replace(
      title=f'{made.title}, after {trained_step:,} training steps'
  )
  tables = [made]
  if CONTROL in arms_of(index) and len(arms_of(index)) > 1:
    tables.append(gain_table(index, trained_up_to))
  if all(parts.measured(index, arm, trained_up_to) for arm in (CONTROL, TREATED)):
    run = {'': parts_tables.Measured(index, trained_up_to, int(trained['num_seeds']))}
    tables += [parts_tables.table(run), parts_tables.gain_table(run, level=0.05)]
  shortest = {}
  for arm in arms_of(index):
    lengths, values = plots.values(index, arm, 'accuracy')
    shortest[ARMS[arm][0]] = float(100 * np.nanmean(values[:, 0]))
  by_length = length_table(index, trained_up_to)
  title = headline(made.records, shortest, by_length.records)
  with plots.style():
    paths = plots.save(
        folder / 'figures', {made.name: figure(index, setting, title)})
  tables.append(by_length)
  write_tables(folder, tables)
  return Report(
      'Why does accuracy fall with length: vanishing variance, or dispersed attention?',
      answer(made.records, shortest, setting.chance, lengths[0]), tables, paths,
      len(tables) - 1,
      about=about([rows[0].experiment],
                  'A trained model is frozen, and its attention output is changed at '
                  'test time: which change restores accuracy at longer inputs?'))
