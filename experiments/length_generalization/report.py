"""Writes the tables and figures of a run of length generalization. Runs without JAX.

They are made from results.csv alone, except Figures 2 and 4 and the learning curves.
Each table is written as Markdown, and as CSV in full precision.
"""

from etils import epath

from experiments.length_generalization import figures
from experiments.length_generalization.tables import main_table, make_tables
from vvlen.reporting import results, run_folder
from vvlen.reporting.curves import read_curves
from vvlen.reporting.plots import ARMS
from vvlen.reporting.tables import markdown, write_table


def write(workdir: epath.PathLike) -> tuple[str, list[epath.Path]]:
  """Writes tables and figures of a run into its folder.

  Args:
    workdir: a folder with results.csv; config.json, metrics.jsonl and samples/ are
      used if they exist.

  Returns:
    The main tables as Markdown, and the paths written.

  Raises:
    ValueError: if there is no results.csv, or it is damaged.
  """
  folder = epath.Path(workdir)
  rows = results.read_run(folder, r'\w+', ARMS)
  index = results.index(rows)
  trained_up_to, arms, num_seeds = _read_config(folder / 'config.json')
  task = rows[0].experiment
  if odd := {row.experiment for row in rows} - {task}:
    raise ValueError(f'{folder} holds results of {task} and of {", ".join(odd)}')
  tables = make_tables(index, trained_up_to, task)
  paths = []
  for table in tables:
    paths += write_table(folder, table)
  paths += figures.write(
      folder / 'figures',
      index,
      trained_up_to=trained_up_to,
      curves=read_curves(folder / 'metrics.jsonl'),
      samples=results.read_samples(folder / 'samples'),
  )
  main = [t for t in tables if t.name in (main_table(task), 'primary_endpoint')]
  text = [markdown(table) for table in main or tables]
  missing = [
      f'{arm} has {have} of {num_seeds} seeds'
      for arm in arms
      if (have := len(index.get((arm, 'training_loss', None), {}))) < num_seeds
  ]
  if missing:
    text.insert(0, f'The run is not finished: {", ".join(missing)}.\n')
  if not arms:
    text.insert(0, 'There is no config.json: it is assumed that training lengths end '
                   f'at {trained_up_to}.\n')
  return '\n'.join(text), paths


def _read_config(path: epath.Path) -> tuple[int, list[str], int]:
  """Returns the longest training length, the arms, and the number of seeds requested.

  Without a config.json they are 16, [] and 0.
  """
  if not path.exists():
    return 16, [], 0
  with run_folder.reading(path) as stored:
    config = stored['config']
    return (
        int(config['train']['max_length']), list(config['arms']),
        int(config['num_seeds']),
    )
