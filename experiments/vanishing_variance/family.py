"""Checks the cells of a family, and returns the fields that define the family."""

import json
import re
from typing import Any

import ml_collections

from experiments.harness import fields
from experiments.harness.fields import group, one_of, real, several, text
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
  cells = {name: _cell_config(config, name) for name in config.cells}
  chosen(config)
  for name in config.mechanism.cells:
    try:
      check_lengths(config.mechanism.lengths, cells[name], 'config.mechanism.lengths')
    except ValueError as error:
      raise ValueError(f'cell {name}: {error}') from error
  return cells


def chosen(config: Any) -> tuple[str, ...]:
  """Returns the names of the cells to run; raises ValueError on unknown ones."""
  names = tuple(config.run or config.cells)
  for field, those in (('run', names), ('mechanism.cells', config.mechanism.cells)):
    if unknown := [name for name in those if name not in config.cells]:
      raise ValueError(
          f'config.{field} must be one or more of {", ".join(config.cells)}: '
          f'{", ".join(unknown)}'
      )
  return names


def facts(config: Any) -> dict[str, Any]:
  """Returns the fields that define the family: all but `run` and `MACHINE`."""
  plain = json.loads(json.dumps(config.to_dict()))
  del plain['run']
  for part in (plain['base'], *plain['cells'].values()):
    tasks.make_identifying(part, MACHINE)
  return plain


def _cell_config(config: Any, name: str) -> ml_collections.ConfigDict:
  if not re.fullmatch('[a-z0-9_]+', name):
    raise ValueError(
        f'config.cells: a name must consist of a-z, 0-9 and _: {name}')
  cell = fields.changed(config.base, config.cells[name], f'cell {name}')
  # A cell of fewer seeds than are trained at once is one block.
  cell.train.seeds_at_once = min(cell.train.seeds_at_once, cell.num_seeds)
  try:
    check(cell)
  except ValueError as error:
    raise ValueError(f'cell {name}: {error}') from error
  claim, steps = config.claim, tuple(cell.train.get('averaged_at', ()))
  if not steps or steps[-1] != cell.train.num_steps:
    raise ValueError(
        f'cell {name}: train.averaged_at must end with train.num_steps '
        f'{cell.train.num_steps}: {steps}'
    )
  if odd := [step for step in steps if step % cell.train.steps_per_call]:
    raise ValueError(
        f'cell {name}: train.averaged_at {odd} must be multiples of '
        f'train.steps_per_call {cell.train.steps_per_call}'
    )
  if set(cell.arms) != {claim.control, claim.treated}:
    raise ValueError(
        f'cell {name}: arms must be {claim.control}, {claim.treated}: {cell.arms}'
    )
  if cell.num_seeds % cell.train.seeds_at_once:
    raise ValueError(
        f'cell {name}: num_seeds {cell.num_seeds} must be a multiple of '
        f'train.seeds_at_once {cell.train.seeds_at_once}'
    )
  return cell
