"""The cells of a family, checked, and what the family is known by."""

import json
import re
from typing import Any

import ml_collections

from experiments.length_generalization.check import check

# What a machine may choose; the results are the same to rounding.
MACHINE = ('save_every_seconds', 'seeds_at_once', 'group_size', 'steps_per_call')


def cell_configs(config: Any) -> dict[str, ml_collections.ConfigDict]:
  """Returns the whole configuration of each cell.

  Raises:
    ValueError: if one cannot run, naming cell and field.
  """
  if not config.cells:
    raise ValueError('config.cells is empty')
  return {name: _cell_config(config, name) for name in config.cells}


def chosen(config: Any) -> tuple[str, ...]:
  """Returns the names of the cells to run; raises ValueError on unknown ones."""
  names = tuple(config.run or config.cells)
  for field, those in (('run', names), ('mechanism.cells', config.mechanism.cells)):
    if unknown := [str(name) for name in those if name not in config.cells]:
      raise ValueError(
          f'config.{field} must be of {", ".join(config.cells)}: {", ".join(unknown)}'
      )
  return names


def facts(config: Any) -> dict[str, Any]:
  """Returns the fields that define the family: all but what a machine may choose."""
  plain = json.loads(json.dumps(config.to_dict()))
  del plain['run']
  for part in (plain['base'], *plain['cells'].values()):
    for name in MACHINE:
      part.get('train', {}).pop(name, None)
  return plain


def _cell_config(config: Any, name: str) -> ml_collections.ConfigDict:
  if not re.fullmatch('[a-z0-9_]+', name):
    raise ValueError(f'not the name of a cell, a-z, 0-9 and _: {name!r}')
  cell, change = config.base.copy_and_resolve_references(), config.cells[name]
  if not isinstance(change, ml_collections.ConfigDict):
    raise ValueError(f'cell {name}: must be the fields that it changes, not {change!r}')
  try:
    with cell.unlocked():
      cell.update(change)
  except TypeError as error:
    raise ValueError(f'cell {name}: {error}') from error
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
        f'cell {name}: train.averaged_at {odd} are no multiples of '
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
