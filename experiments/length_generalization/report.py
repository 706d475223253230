"""Writes the tables and figures of a run of length generalization. Runs without JAX.

They are made from results.csv alone, except Figures 2 and 4 and the learning curves.
Each table is written as Markdown, as LaTeX, and as CSV in full precision.
"""

from etils import epath

from experiments.length_generalization import figures
from experiments.length_generalization.answer import answer
from experiments.length_generalization.tables import main_table, make_tables
from vvlen.reporting import results, run_folder
from vvlen.reporting.curves import read_curves
from vvlen.reporting.page import Report, unfinished
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
  trained_up_to, arms, num_seeds, num_classes = _read_config(folder / 'config.json')
  task = rows[0].experiment
  if odd := {row.experiment for row in rows} - {task}:
    raise ValueError(f'{folder} holds results of {task} and of {", ".join(odd)}')
  tables = make_tables(index, trained_up_to, task, num_classes)
  write_tables(folder, tables)
  paths = figures.write(
      folder / 'figures',
      index,
      trained_up_to=trained_up_to,
      curves=read_curves(folder / 'metrics.jsonl'),
      samples=results.read_samples(folder / 'samples'),
  )
  by_name = {table.name: table for table in tables}
  names = 'primary_endpoint', f'{main_table(task)}_by_model', main_table(task)
  main = [by_name.pop(name) for name in names if name in by_name]
  missing = [
      f'{arm} has {have} of {num_seeds} seeds'
      for arm in arms
      if (have := len(index.get((arm, 'training_loss', None), {}))) < num_seeds
  ]
  said = unfinished(missing)
  if not arms:
    said = ('There is no config.json: it is assumed that training lengths end at '
            f'{trained_up_to}.')
  primary = main[0].records if main and main[0].name == 'primary_endpoint' else ()
  found = answer(primary, by_name['training'].records)
  growing = ', growing' if task.endswith('_growing') else ''
  words = task.removesuffix('_growing').replace('_', ' ').capitalize() + growing
  return Report(
      f'{words}: does LayerNorm after attention help at longer inputs?', found,
      [*main, *by_name.values()], paths, max(len(main), 1), said)


def _read_config(path: epath.Path) -> tuple[int, list[str], int, int | None]:
  """Returns the longest training length, arms, number of seeds, and of classes.

  The number of classes is None for a task that is not of vvlen: they may not be equally
  frequent. Without a config.json, the values are 16, [], 0 and None.
  """
  if not path.exists():
    return 16, [], 0, None
  with run_folder.reading(path) as stored:
    config = stored['config']
    known = config['task'].get('name', 'retrieval') in ('retrieval', 'lookup')
    return (
        int(config['train']['max_length']), list(config['arms']),
        int(config['num_seeds']), int(config['task']['num_classes']) if known else None,
    )
