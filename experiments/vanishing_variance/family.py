"""Checks the cells of a family, and returns the fields that define the family."""

import json
from typing import Any

import ml_collections

from experiments.harness import fields
from experiments.harness.fields import group, one_of, real, several, text
from experiments.harness.parts import check_blocks, check_known, check_names, naming
from experiments.length_generalization import tasks
from experiments.length_generalization.check import check, table_of
from experiments.mechanism.run import check_lengths, MEASURED

# Fields that may differ between machines; they change results by rounding alone.
MACHINE = ('save_every_seconds', 'seeds_at_once', 'group_size', 'steps_per_call')

_FIELDS = {
    'base': group(),
    'cells.*': group(),
    # The words of tables and figures are of these arms and of this metric.
    'claim.control': one_of(('none',)),
    'claim.treated': one_of(('layer_norm',)),
    'claim.metric': one_of(('accuracy',)),
    'claim.level': real(above=0, below=1),
    'claim.correction': one_of(('bonferroni',)),
    'claim.equivalence': real(above=0),
    'mechanism.cells': several(text('name'), least=0, once=True),
    **{f'mechanism.{name}': kind for name, kind in MEASURED.items()},
    'run': several(text('name'), least=0),
}


def cell_configs(config: Any) -> dict[str, ml_collections.ConfigDict]:
  """Returns the whole configuration of each cell.

  Raises:
    ValueError: if one cannot be run; the message names cell and field.
  """
  fields.check(config, _FIELDS)
  fields.check(config.base, table_of(config.base), 'config.base')
  if not config.cells:
    raise ValueError('config.cells is empty')
  check_names('cells', config.cells)
  cells = {name: _cell_config(config, name) for name in config.cells}
  chosen(config)
  for name in config.mechanism.cells:
    with naming(f'cell {name}'):
      check_lengths(config.mechanism.lengths, cells[name], 'config.mechanism.lengths')
  return cells


def chosen(config: Any) -> tuple[str, ...]:
  """Returns the names of the cells to run; raises ValueError on unknown ones."""
  names = tuple(config.run or config.cells)
  check_known('run', names, config.cells)
  check_known('mechanism.cells', config.mechanism.cells, config.cells)
  return names


def facts(config: Any) -> dict[str, Any]:
  """Returns the fields that define the family: all but `run` and `MACHINE`."""
  plain = json.loads(json.dumps(config.to_dict()))
  del plain['run']
  for part in (plain['base'], *plain['cells'].values()):
    tasks.make_identifying(part, MACHINE)
  return plain


def _cell_config(config: Any, name: str) -> ml_collections.ConfigDict:
  cell = fields.changed(config.base, config.cells[name], f'cell {name}')
  # A cell of fewer seeds than are trained at once is one block.
  cell.train.seeds_at_once = min(cell.train.seeds_at_once, cell.num_seeds)
  with naming(f'cell {name}'):
    check(cell)
    _check_steps(cell.train)
    if set(cell.arms) != {config.claim.control, config.claim.treated}:
      raise ValueError(f'arms must be {config.claim.control}, {config.claim.treated}: '
                       f'{cell.arms}')
    check_blocks(cell, 'num_seeds')
  return cell


def _check_steps(train: Any) -> None:
  """Raises ValueError unless weights are averaged, and measured, at the last step."""
  steps = tuple(train.get('averaged_at', ()))
  if not steps or steps[-1] != train.num_steps:
    raise ValueError(
        f'train.averaged_at must end with train.num_steps {train.num_steps}: {steps}')
  if odd := [step for step in steps if step % train.steps_per_call]:
    raise ValueError(
        f'train.averaged_at {odd} must be multiples of train.steps_per_call '
        f'{train.steps_per_call}')
