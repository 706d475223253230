"""Writes the tables and figures of a run of length generalization. Runs without JAX.

They are made from results.csv alone, except Figures 2 and 4 and the learning curves.
Each table is written as Markdown, as LaTeX, and as CSV with 12 significant digits.
"""

from etils import epath

from experiments.length_generalization import figures
from experiments.length_generalization.about import about
from experiments.length_generalization.answer import answer
from experiments.length_generalization.setting import read_setting, Setting
from experiments.length_generalization.tables import main_table, make_tables
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.curves import read_curves
from vvlen.reporting.page import missing_seeds, Report, unfinished
from vvlen.reporting.plots import ARMS
from vvlen.reporting.tables import write_tables


def write(workdir: epath.PathLike) -> Report:
  """Writes tables and figures of a run into its folder.

  Args:
    workdir: a folder with results.csv; config.json, metrics.jsonl and samples/ are
      used if they exist.

  Returns:
    What the run has found.

  Raises:
    ValueError: if there is no results.csv, or it is damaged.
  """
  folder = epath.Path(workdir)
  rows = results.read_run(folder, r'\w+', ARMS)
  index = results.index(rows)
  task = rows[0].experiment
  setting, arms, num_seeds = _read_config(folder / 'config.json', task)
  trained_up_to = setting.trained_up_to
  if odd := {row.experiment for row in rows} - {task}:
    raise ValueError(f'{folder} holds results of {task} and of {", ".join(odd)}')
  tables = make_tables(index, trained_up_to, task, setting.chance)
  write_tables(folder, tables)
  by_name = {table.name: table for table in tables}
  endpoint = by_name.get('primary_endpoint')
  primary = endpoint.records if endpoint else ()
  with plots.style():
    paths = plots.save(folder / 'figures', figures.make(
        index, setting, read_curves(folder / 'metrics.jsonl'),
        results.read_samples(folder / 'samples'), primary))
  names = f'{main_table(task)}_by_model', 'primary_endpoint', main_table(task)
  main = [by_name.pop(name) for name in names if name in by_name]
  have = {arm: len(index.get((arm, 'training_loss', None), {})) for arm in arms}
  said = unfinished(missing_seeds(have, num_seeds))
  if not arms:
    said = ('There is no config.json: it is assumed that training lengths end at '
            f'{trained_up_to}.')
  found = answer(primary, by_name['training'].records, setting.chance,
                 setting.lengths)
  if setting.words:
    found.append(f'Setting: {setting.title}.')
  growing = ', growing' if task.endswith('_growing') else ''
  words = task.removesuffix('_growing').replace('_', ' ').capitalize() + growing
  return Report(
      f'{words}: does LayerNorm after attention help at longer inputs?', found,
      [*main, *by_name.values()], paths, max(len(main), 1), said,
      about([task]), 'primary_endpoint')


def _read_config(path: epath.Path, task: str) -> tuple[Setting, list[str], int]:
  """Returns the setting, the arms, and the number of seeds requested.

  Without a config.json they are training lengths up to 16, [] and 0.
  """
  if not path.exists():
    return Setting(task), [], 0
  with run_folder.reading(path) as stored:
    config = stored['config']
    return read_setting(config, task), list(config['arms']), int(config['num_seeds'])
