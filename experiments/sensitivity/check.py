"""Checks the cells of a grid."""

from collections.abc import Sequence
from typing import Any

import ml_collections

from experiments.harness import fields
from experiments.harness.fields import group, several, text, whole
from experiments.harness.parts import check_blocks, check_known, check_names, naming
from experiments.length_generalization.check import check as check_cell
from experiments.length_generalization.check import table_of
from vvlen.reporting import run_folder

# Fields that the base may lack.
_OPTIONAL = ('task.num_keys', 'optimizer.decay_steps')
# Fields that a cell may change, besides all of task, model and optimizer.
_CHANGES = ('arms', 'train.batch_size', 'train.min_length', 'train.max_length')

_FIELDS = {
    'base': group(),
    'cells.*': group(),
    'at_steps': several(whole(least=1)),
    'also_at.*': several(whole(least=1), least=0),
    'against.*': text('name'),
    'run': several(text('name'), least=0),
}


def check(config: Any) -> dict[str, ml_collections.ConfigDict]:
  """Returns the configurations of the cells to run.

  Raises:
    ValueError: if one cannot be run.
  """
  fields.check(config, _FIELDS)
  fields.check(config.base, table_of(config.base), 'config.base')
  return {name: cell_config(config, name) for name in names(config)}


def names(config: Any) -> tuple[str, ...]:
  """Returns the names of the cells to run; raises ValueError for unknown names."""
  if not config.cells:
    raise ValueError('config.cells is empty')
  check_names('cells', config.cells)
  chosen = tuple(config.run or config.cells)
  for field, those in (
      ('run', chosen), ('also_at', config.also_at), ('against', config.against),
      ('against', config.against.values()),
  ):
    check_known(field, those, config.cells)
  return chosen


def steps(config: Any, name: str) -> list[int]:
  """Returns the steps at which a cell is measured."""
  return sorted({*config.at_steps, *config.also_at.get(name, ())})


def cell_config(config: Any, name: str) -> ml_collections.ConfigDict:
  """Returns the configuration of one cell, after checking it."""
  change, part = config.cells[name], f'cell {name}'
  with naming(part):
    _check_change(config.base, change)
  cell = fields.changed(config.base, change, part)
  cell.train.num_steps = steps(config, name)[-1]
  with naming(part):
    _check_steps(cell, steps(config, name))
    check_cell(cell)
    check_blocks(cell, 'config.base.num_seeds')
    if not {'none', 'layer_norm'} <= set(cell.arms):
      raise ValueError(f'arms must have none and layer_norm: {cell.arms}')
  return cell


def _check_change(base: Any, change: Any) -> None:
  """Raises ValueError if a cell changes a field that it must not, or that is not."""
  known = {*run_folder.flatten(base.to_dict()), *_OPTIONAL}
  changed = run_folder.flatten(change.to_dict())
  if unknown := [x for x in changed if x not in known]:
    raise ValueError(f'config.base has no {", ".join(unknown)}')
  groups = ('task', 'model', 'optimizer')
  if shared := [x for x in changed
                if x not in _CHANGES and x.partition('.')[0] not in groups]:
    raise ValueError(f'all cells must share {", ".join(shared)}')


def _check_steps(cell: Any, when: Sequence[int]) -> None:
  """Raises ValueError unless a cell can be measured at each step of `when`."""
  per_call = cell.train.steps_per_call
  if odd := [step for step in when if step % per_call]:
    raise ValueError(
        f'steps {odd} of config.at_steps and also_at are not multiples of '
        f'config.base.train.steps_per_call {per_call}')
  if (end := cell.optimizer.get('decay_steps', 0)) not in (0, when[-1]):
    raise ValueError(
        f'optimizer.decay_steps {end} must be 0 or the last step at which the cell is '
        f'measured, {when[-1]}')
  if 'first_max_length' in cell.train:
    raise ValueError('train.first_max_length is not supported in a grid')
