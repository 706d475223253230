"""Under which choices does LayerNorm after attention help at longer inputs?

The command line is in `__main__`.
"""

from collections.abc import Collection, Mapping, Sequence
import itertools
import re
from typing import Any, NamedTuple

from etils import epath
import ml_collections

from experiments import report
from experiments.harness import machine, seed_blocks
from experiments.harness.fields import naming_fields
from experiments.harness.progress import Progress
from experiments.harness.run_loop import seed_devices
from experiments.length_generalization import training
from experiments.length_generalization.check import check
from experiments.sensitivity.cells import kept
from vvlen.models.norm import KINDS
from vvlen.reporting import results, run_folder
from vvlen.reporting.curves import Curves
from vvlen.training import checkpoint

# Cells in one ensemble at most. It bounds memory, and what is lost to a crash.
_TOGETHER = 8
# Fields that the base may lack.
_OPTIONAL = ('task.num_keys', 'optimizer.decay_steps')
# What a cell may change, beside anything of task, model and optimizer.
_CHANGES = ('arms', 'train.batch_size', 'train.min_length', 'train.max_length')


class Stage(NamedTuple):
  """A block of seeds of one arm, from one step to the next, in cells of a program."""

  before: int
  step: int
  program: str  # of `training.program`
  first: int  # seed
  arm: str
  cells: tuple[str, ...]


def main(config: Any, workdir: str) -> None:
  """Runs the cells, or what is left of them, and writes table and figure."""
  with naming_fields():
    cells = {name: cell_config(config, name) for name in names(config)}
    train = config.base.train
  mesh = seed_devices(train)
  machine.lock(workdir)
  folder = epath.Path(workdir)
  rows = results.read_rows(folder / 'results.csv')
  done = {(row.experiment, row.arm, row.seed) for row in rows}
  todo = _schedule(config, cells, done)
  _check_reachable(folder, cells, todo)
  # Cells and arms may be added to a folder; each cell has a configuration of its own.
  session = machine.session()
  against = config.against.to_dict()
  claims = [(
      folder, {'base': config.base.to_dict(), 'against': against}, session,
      ['base.num_seeds'], ['base.train.save_every_seconds', 'base.arms',
                           *(f'against.{name}' for name in config.cells)],
      'sensitivity',
  )]
  claims += [
      (folder / 'cells' / name, cell.to_dict(), session,
       ['num_seeds', 'train.num_steps'], ['train.save_every_seconds', 'arms'],
       'length_generalization')
      for name, cell in cells.items()
  ]
  for claim in claims:  # nothing is written if one is refused
    run_folder.claimed(*claim)
  stored = [run_folder.claim(*claim) for claim in claims]
  if (earlier := stored[0]) and earlier['base']['num_seeds'] < config.base.num_seeds:
    print(seed_blocks.SEEDS_ADDED)

  total = train.seeds_at_once * sum(
      (stage.step - stage.before) * len(stage.cells) for stage in todo
  )
  arms: dict[tuple[Any, ...], training.Arm] = {}
  with Progress(total, 'seed-steps') as progress:
    for before, step, _, first, arm, chosen in todo:
      for part in _ensembles(folder, cells, chosen, arm, first):
        if (part, arm) not in arms:
          arms[part, arm] = training.make_arm(
              [cells[name] for name in part], arm, mesh, samples=False
          )
        places = [
            seed_blocks.Place(
                f'{name}@{step}', folder / 'cells' / name,
                Curves(folder / 'cells' / name / 'metrics.jsonl'),
            )
            for name in part
        ]
        new = training.run_block(
            arms[part, arm], places, first, step, progress, before
        )
        rows = seed_blocks.merge(KINDS, rows, filter(kept, new))
        results.write_rows(folder / 'results.csv', rows)
  report.show(workdir)
  run_folder.finish(folder, finished=machine.now())


def _schedule(
    config: Any, cells: Mapping[str, Any], done: Collection[tuple[str, str, int]]
) -> list[Stage]:
  """Returns what is not done, the earliest step first."""
  todo: dict[tuple[int, int, str, int, str], list[str]] = {}
  for name, cell in cells.items():
    program = training.program(cell)
    for before, step in itertools.pairwise((0, *steps(config, name))):
      for first, arm in itertools.product(seed_blocks.first_seeds(cell), cell.arms):
        seeds = seed_blocks.seeds_of(cell, first)
        if any((f'{name}@{step}', arm, seed) not in done for seed in seeds):
          todo.setdefault((before, step, program, first, arm), []).append(name)
  stages = [Stage(*key, tuple(names)) for key, names in todo.items()]
  return sorted(stages, key=lambda stage: stage.step)


def _reached(
    folder: epath.Path, cells: Mapping[str, Any], name: str, arm: str, first: int
) -> int:
  """Returns the step of the last checkpoint of a block of seeds."""
  return checkpoint.last_step(
      seed_blocks.checkpoints(folder / 'cells' / name, cells[name], arm, first)
  )


def _check_reachable(
    folder: epath.Path, cells: Mapping[str, Any], todo: Sequence[Stage]
) -> None:
  """Raises ValueError where a cell is beyond a step at which it is to be measured."""
  for _, step, _, first, arm, chosen in todo:
    for name in chosen:
      if (reached := _reached(folder, cells, name, arm, first)) > step:
        raise ValueError(
            f'cell {name} is trained to step {reached} and cannot be measured at '
            f'{step} any more. Choose later steps, or another --workdir.'
        )


def _ensembles(
    folder: epath.Path, cells: Mapping[str, Any], names: Sequence[str], arm: str,
    first: int,
) -> list[tuple[str, ...]]:
  """Parts the cells of one program by the step that they have reached, a few each."""
  parts: dict[int, list[str]] = {}
  for name in names:
    parts.setdefault(_reached(folder, cells, name, arm, first), []).append(name)
  return [
      tuple(part[i : i + _TOGETHER])
      for part in parts.values() for i in range(0, len(part), _TOGETHER)
  ]


def names(config: Any) -> tuple[str, ...]:
  """Returns the cells to run; raises ValueError on those that there are not."""
  if not config.cells:
    raise ValueError('config.cells is empty')
  chosen = tuple(config.run or config.cells)
  for field, those in (
      ('run', chosen), ('also_at', tuple(config.also_at)),
      ('against', tuple(config.against)), ('against', tuple(config.against.values())),
  ):
    unknown = [name for name in those if name not in config.cells]
    odd = [name for name in those if not isinstance(name, str)
           or not re.fullmatch('[a-z0-9_]+', name)]
    if odd:
      raise ValueError(
          f'not the name of a cell, a-z, 0-9 and _: {", ".join(map(str, odd))}'
      )
    if unknown:
      raise ValueError(
          f'config.{field} must be of {", ".join(config.cells)}: {", ".join(unknown)}'
      )
  return chosen


def steps(config: Any, name: str) -> list[int]:
  """Returns the steps at which a cell is measured; raises ValueError on bad ones."""
  when = (*config.at_steps, *config.also_at.get(name, ()))
  if not config.at_steps or any(not isinstance(x, int) or x < 1 for x in when):
    raise ValueError(
        'config.at_steps and also_at must be positive integers: '
        f'{tuple(config.at_steps)}, {name}: {tuple(config.also_at.get(name, ()))}'
    )
  return sorted(set(when))


def cell_config(config: Any, name: str) -> ml_collections.ConfigDict:
  """Returns the configuration of one cell, checked."""
  cell, change = config.base.copy_and_resolve_references(), config.cells[name]
  known = {*run_folder.flatten(cell.to_dict()), *_OPTIONAL}
  if not isinstance(change, ml_collections.ConfigDict):
    raise ValueError(f'cell {name}: must be the fields that it changes, not {change!r}')
  changed = run_folder.flatten(change.to_dict())
  if unknown := [x for x in changed if x not in known]:
    raise ValueError(f'cell {name}: config.base has no {", ".join(unknown)}')
  groups = ('task', 'model', 'optimizer')
  if shared := [x for x in changed
                if x not in _CHANGES and x.partition('.')[0] not in groups]:
    raise ValueError(f'cell {name}: all cells share {", ".join(shared)}')
  try:
    with cell.unlocked():
      cell.update(change)
  except TypeError as error:
    raise ValueError(f'cell {name}: {error}') from error
  when = steps(config, name)
  cell.train.num_steps = when[-1]
  odd = [step for step in when if step % cell.train.steps_per_call]
  if odd:
    raise ValueError(
        f'cell {name}: steps {odd} of config.at_steps and also_at are no multiples '
        f'of config.base.train.steps_per_call {cell.train.steps_per_call}'
    )
  if (end := cell.optimizer.get('decay_steps', 0)) not in (0, when[-1]):
    raise ValueError(
        f'cell {name}: optimizer.decay_steps {end} must be the last step at which it '
        f'is measured, {when[-1]}'
    )
  if 'first_max_length' in cell.train:
    raise ValueError(f'cell {name}: lengths cannot grow in a grid')
  try:
    check(cell)
  except ValueError as error:
    raise ValueError(f'cell {name}: {error}') from error
  if cell.num_seeds % cell.train.seeds_at_once:
    raise ValueError(
        f'cell {name}: config.base.num_seeds {cell.num_seeds} must be a multiple of '
        f'train.seeds_at_once {cell.train.seeds_at_once}'
    )
  if not {'none', 'layer_norm'} <= set(cell.arms):
    raise ValueError(f'cell {name}: needs the arms none and layer_norm: {cell.arms}')
  return cell
