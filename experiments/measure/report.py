"""Writes the tables and figures of a checkpoint. Runs without JAX."""

from etils import epath
import numpy as np

from experiments.harness import finished
from experiments.measure import figures, spread, tables, tempered_report
from experiments.measure.answer import answer
from experiments.measure.rows import (
  BLOCK,
  key_of,
  lengths_of,
  measurement_of,
  read_rows,
)
from vvlen.reporting import plots, run_folder
from vvlen.reporting.page import Report
from vvlen.reporting.tables import write_tables

_ABOUT = ('A checkpoint is read as it is, on windows of a text: blocks do not '
          'overlap, sliding windows do. L is its training length. Papers: arXiv '
          '2504.02827 (spread of attention outputs), arXiv 2506.11769 (misalignment), '
          'arXiv 2509.21042 (recency).')


def write(workdir: epath.PathLike) -> Report:
  """Writes tables and figures of a run into its folder.

  Args:
    workdir: a folder with config.json and results.csv of `experiments.measure`.

  Returns:
    What the run has found.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  with run_folder.reading(folder / 'config.json', of='measurements') as stored:
    config = stored['config']
    length, asked = (int(config['inputs'][x]) for x in ('length', 'measurements'))
    begin = bool(config['perplexity']['begin'])
    samples = int(config['num_resamples']), int(config['seed'])
  values = {key_of(row): row.value for row in read_rows(folder)}
  if not values:
    raise ValueError(f'{folder} has no results.csv with results')
  losses = [values[BLOCK, 'nll', n] for n in lengths_of(values, BLOCK, 'nll')]
  if losses and not np.isfinite(losses).any():
    raise ValueError(f'{folder / "results.csv"}: no log perplexity is finite: the '
                     'model\'s logits are not finite')
  made = [tables.perplexity(values, length, begin, samples),
          spread.slopes(values), spread.by_head(values),
          tables.misalignment(values), tables.recency(values), tables.entropy(values),
          tables.temperature(values), tempered_report.table(values, length)]
  made = [table for table in made if table.records]
  with plots.style():
    name = _name(config['checkpoint'])
    paths = plots.save(folder / 'figures', figures.make(values, length, name))
  write_tables(folder, made)
  records = {table.name: table.records for table in made}
  done = len(finished.finished(folder, measurement_of))
  missing = (f'The run is not finished: {asked - done} of {asked} measurements are '
             'missing.' if done < asked else '')
  return Report(
      'How does this checkpoint behave beyond its training length?',
      [*answer(*(records.get(x, ()) for x in ('perplexity', 'recency', 'temperature'))),
       *tempered_report.sentence(records.get('tempered', ()))],
      made, paths, 1, missing, _ABOUT)


def _name(checkpoint: str) -> str:
  """Returns the name of a checkpoint: the last part of its path, or ORG/NAME."""
  path = epath.Path(checkpoint)
  if path.parent.name == 'snapshots':  # in the cache of the hub
    return str(path.parent.parent.name).removeprefix('models--').replace('--', '/')
  return str(path.name)
