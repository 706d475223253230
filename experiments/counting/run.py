"""Which positions and targets let transformers count beyond the training lengths?

The command line is in `__main__`.
"""

import functools
from typing import Any

from experiments.counting import training
from experiments.counting.cells import all_cells, read_figures, Setup
from experiments.harness import fields, finished, seed_blocks
from experiments.harness.fields import one_of, optional, or_none, real, several, whole
from experiments.harness.parts import naming
from experiments.harness.run_loop import (
  claim_for_seeds,
  curves_of,
  Job,
  run_jobs,
  seed_devices,
)
from vvlen.models import positions
from vvlen.models.kernels.causal import IMPLEMENTATIONS
from vvlen.models.norm import KINDS as NORMS
from vvlen.objectives.output_reparameterization import check_target
from vvlen.reporting import results
from vvlen.reporting.numbers import counted
from vvlen.tasks import counting

# Without random positions: they are drawn per length, so the prefixes of a string
# could not be evaluated in one forward pass.
_POSITIONS = tuple(kind for kind in positions.KINDS if kind != 'random')
_FIELDS = {
    **fields.SEED_BLOCKS,
    'figures.*.task': one_of(counting.TASKS),
    'figures.*.counts': one_of(counting.COUNTS),
    'figures.*.positions': several(one_of(_POSITIONS), once=True),
    'figures.*.reparameterizations':
        several(one_of(tuple(training.REPARAMETERIZATIONS)), once=True),
    'figures.*.train_lengths': several(whole(least=1), once=True),
    'model.num_layers': whole(least=1),
    'model.width': fields.width(),
    'model.num_heads': whole(least=1),
    'model.mlp_factor': fields.width(),
    'model.norm': one_of(NORMS),
    'model.implementation': optional(or_none(one_of(IMPLEMENTATIONS))),
    'model.dtype': optional(one_of(fields.DTYPES)),
    'train.batch_size': whole(least=2),
    'optimizer.weight_decay': real(least=0),
    # A model reads some 2 l tokens at once (`training.answer_prefixes`).
    'evaluate.max_length': whole(least=2, most=2**24),
    'evaluate.num_sequences': whole(least=2),
    'evaluate.temperature_lengths':
        optional(or_none(several(whole(least=1), rising=True))),
}


def main(config: Any, workdir: str) -> None:
  """Runs or resumes the experiment, and writes tables and figures."""
  cells, train = check(config), config.train
  mesh = seed_devices(train)
  _check_targets(cells)  # uses JAX, whose devices are set up by now
  folder = claim_for_seeds(config, workdir, 'counting')
  curves = curves_of(folder)
  done = finished.finished(folder, _part_of)
  todo = [
      (cell, first) for cell in cells for first in seed_blocks.first_seeds(config)
      if not seed_blocks.is_finished(config, done, first, cell.experiment, cell.arm)
  ]
  print(f'{len({cell for cell, _ in todo})} of {len(cells)} models to train, '
        f'{counted(config.num_seeds, "seed")} of {counted(train.num_steps, "step")} '
        'each.'
        f'{" Compiling first." if todo else ""}', flush=True)

  @functools.lru_cache(maxsize=1)  # the blocks of a cell follow one another
  def programs(cell):
    return training.make_programs(config, cell, mesh)

  jobs = [
      Job(train.seeds_at_once * train.num_steps,
          lambda progress, cell=cell, first=first: training.run_block(
              config, cell, programs(cell), first, folder, curves, progress))
      for cell, first in todo
  ]
  place = {(cell.experiment, cell.arm): i for i, cell in enumerate(cells)}
  run_jobs(folder, jobs, 'seed-steps', _part_of, lambda row: (
      place[row.experiment, row.arm], row.seed, row.length or 0, row.metric,
      row.layer or 0, row.head or 0))


def _part_of(row: results.Row) -> finished.Part:
  return row.experiment, row.arm, row.seed


def check(config: Any) -> list[Setup]:
  """Returns the models of a configuration.

  Raises:
    ValueError: if the configuration cannot be run.
  """
  fields.check(config, _FIELDS)
  fields.check_multiples(
      config, *fields.MULTIPLES, ('model.width', 'model.num_heads'))
  if config.train.batch_size % 2:
    raise ValueError('config.train.batch_size must be even, because two strings share '
                     f'a row: {config.train.batch_size}')
  if not fields.width().fits(config.model.width * config.model.mlp_factor):
    raise ValueError('config.model.width times config.model.mlp_factor must be at most '
                     f'2**24: {config.model.width} x {config.model.mlp_factor}')
  at = config.evaluate.get('temperature_lengths') or (1,)
  if at[-1] > config.evaluate.max_length:
    raise ValueError('config.evaluate.temperature_lengths must end at '
                     f'config.evaluate.max_length or before: {at[-1]}, '
                     f'{config.evaluate.max_length}')
  cells = all_cells(read_figures(config.figures.to_dict()))
  if not cells:
    raise ValueError('config.figures is empty')
  for cell in cells:
    _check_cell(config, cell)
  return cells


def _check_cell(config: Any, cell: Setup) -> None:
  if cell.positions == 'rope' and config.model.width // config.model.num_heads % 2:
    raise ValueError('config.model: rope needs heads of even width: '
                     f'{config.model.width} / {config.model.num_heads}')
  if cell.positions == 'sinusoidal' and config.model.width % 2:
    raise ValueError('config.model: sinusoidal positions need an even width: '
                     f'{config.model.width}')
  if cell.train_length >= config.evaluate.max_length:
    raise ValueError(
        'config.evaluate.max_length must be beyond the training lengths: '
        f'{config.evaluate.max_length}, {cell.train_length}'
    )


def _check_targets(cells: list[Setup]) -> None:
  """Raises ValueError if a target cannot be reparameterized, such as 0 by 1/√y."""
  for cell in cells:
    with naming(f'config.figures: {cell.task}, {cell.arm}'):
      check_target(training.reparameterization(cell), float(cell.task == 'length'))
