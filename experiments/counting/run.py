"""Which positions and targets let transformers count beyond the training lengths?

The command line is in `__main__`.
"""

import functools
import math
from typing import Any

from experiments.counting import training
from experiments.counting.cells import all_cells, Cell, read_figures
from experiments.harness import seed_blocks
from experiments.harness.fields import naming_fields
from experiments.harness.run_loop import (
  claim_for_seeds,
  Job,
  read_rows,
  run_jobs,
  seed_devices,
)
from vvlen.models.norm import KINDS as NORMS
from vvlen.objectives.output_reparameterization import check_target
from vvlen.reporting import run_folder
from vvlen.reporting.curves import Curves
from vvlen.tasks import counting

# Random positions are drawn for a length, so that prefixes do not share a pass.
_POSITIONS = ('none', 'learned', 'sinusoidal', 'alibi', 'rope')


def main(config: Any, workdir: str) -> None:
  """Runs the experiment, or what is left of it, and writes tables and figures."""
  cells, train = check(config), config.train
  mesh = seed_devices(train)
  _check_targets(cells)  # JAX is set up by now
  folder = claim_for_seeds(config, workdir, 'counting')
  curves = Curves(folder / 'metrics.jsonl')
  done = {(row.experiment, row.arm, row.seed) for row in read_rows(folder).values()}
  todo = [
      (cell, first) for cell in cells for first in seed_blocks.first_seeds(config)
      if any((cell.experiment, cell.arm, seed) not in done
             for seed in seed_blocks.seeds_of(config, first))
  ]
  print(f'{len({cell for cell, _ in todo})} of {len(cells)} models to train, '
        f'{config.num_seeds} seeds of {train.num_steps:,} steps each.'
        f'{" Compiling first." if todo else ""}', flush=True)
  jobs = [
      Job(train.seeds_at_once * train.num_steps, functools.partial(
          training.run_cell, config, cell, [first], mesh, folder, curves))
      for cell, first in todo
  ]
  place = {(cell.experiment, cell.arm): i for i, cell in enumerate(cells)}
  run_jobs(folder, jobs, 'seed-steps', lambda row: (
      place[row.experiment, row.arm], row.seed, row.length or 0, row.metric))


def check(config: Any) -> list[Cell]:
  """Returns what is to be trained.

  Raises:
    ValueError: if that cannot run.
  """
  with naming_fields():
    _check_numbers(config)
    figures = read_figures(config.figures.to_dict())
    for name, figure in figures.items():
      for cell in figure.cells:
        _check_cell(config, f'config.figures.{name}', cell)
        training.make_model(config, cell)
    cells = all_cells(figures)
    if config.model.norm not in NORMS:
      raise ValueError(f'config.model.norm must be of {", ".join(NORMS)}: '
                       f'{config.model.norm!r}')
  if not cells:
    raise ValueError('config.figures is empty')
  return cells


def _check_numbers(config: Any) -> None:
  whole = {
      'num_seeds': 2, 'train.batch_size': 2, 'train.num_steps': 1,
      'train.steps_per_call': 1, 'train.seeds_at_once': 1, 'train.group_size': 1,
      'model.num_layers': 1, 'model.width': 1, 'model.num_heads': 1,
      'model.mlp_factor': 1, 'evaluate.max_length': 2, 'evaluate.num_sequences': 2,
  }
  fields = run_folder.flatten(config.to_dict())
  for name, least in whole.items():
    value = fields[name]
    if not isinstance(value, int) or value < least:
      raise ValueError(
          f'config.{name} must be a whole number from {least} on: {value!r}'
      )
  for name in ('optimizer.learning_rate', 'optimizer.weight_decay',
               'train.save_every_seconds'):
    if not 0 <= fields[name] < math.inf:
      raise ValueError(f'config.{name} must be finite, not negative: {fields[name]}')
  if not fields['optimizer.learning_rate']:
    raise ValueError('config.optimizer.learning_rate must be positive: 0')
  if not 0 <= config.seed < 2**32:
    raise ValueError(f'config.seed must lie in 0..2**32-1: {config.seed}')
  if config.train.batch_size % 2:
    raise ValueError('config.train.batch_size must be even, as strings share rows in '
                     f'pairs: {config.train.batch_size}')
  for many, part in (('train.num_steps', 'train.steps_per_call'),
                     ('train.seeds_at_once', 'train.group_size'),
                     ('model.width', 'model.num_heads')):
    if fields[many] % fields[part]:
      raise ValueError(f'config.{many} {fields[many]} must be a multiple of '
                       f'config.{part} {fields[part]}')


def _check_cell(config: Any, name: str, cell: Cell) -> None:
  if cell.task not in counting.TASKS or cell.counts not in counting.COUNTS:
    raise ValueError(
        f'{name}: task must be of {", ".join(counting.TASKS)}, counts of '
        f'{", ".join(counting.COUNTS)}: {cell.task!r}, {cell.counts!r}'
    )
  if cell.positions not in _POSITIONS:
    raise ValueError(f'{name}: positions must be of {", ".join(_POSITIONS)}: '
                     f'{cell.positions!r}')
  if cell.positions == 'rope' and config.model.width // config.model.num_heads % 2:
    raise ValueError('config.model: rope needs an even width of heads: '
                     f'{config.model.width} / {config.model.num_heads}')
  if cell.positions == 'sinusoidal' and config.model.width % 2:
    raise ValueError('config.model: sinusoidal positions need an even width: '
                     f'{config.model.width}')
  if cell.reparameterization not in training.REPARAMETERIZATIONS:
    raise ValueError(
        f'{name}: reparameterizations must be of '
        f'{", ".join(training.REPARAMETERIZATIONS)}: {cell.reparameterization!r}'
    )
  # True is an int.
  if type(cell.train_length) is not int or cell.train_length < 1:
    raise ValueError(
        f'{name}: train_lengths must be positive whole numbers: {cell.train_length!r}'
    )
  if cell.train_length >= config.evaluate.max_length:
    raise ValueError(
        'config.evaluate.max_length must be beyond the training lengths: '
        f'{config.evaluate.max_length}, {cell.train_length}'
    )


def _check_targets(cells: list[Cell]) -> None:
  """Raises ValueError on a target without a reparameterization, such as 1/√0."""
  for cell in cells:
    try:
      check_target(training.reparameterization(cell), float(cell.task == 'length'))
    except ValueError as error:
      raise ValueError(f'config.figures: {cell.task}, {cell.arm}: {error}') from error
