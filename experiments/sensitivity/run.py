"""Under which settings does LayerNorm after attention help at longer inputs?

The command line is in `__main__`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import functools
import itertools
from typing import Any, NamedTuple

from etils import epath

from experiments.harness import finished, locks, machine, seed_blocks
from experiments.harness.processes import first_of_processes
from experiments.harness.progress import Progress
from experiments.harness.run_loop import curves_of, Job, run_jobs, seed_devices
from experiments.length_generalization import tasks, training
from experiments.sensitivity.cells import KEPT
from experiments.sensitivity.check import check, steps
from vvlen.models.norm import KINDS
from vvlen.reporting import results, run_folder
from vvlen.training import checkpoint

# The most cells in one ensemble; bounds memory and the work that a crash loses.
_TOGETHER = 8


class Stage(NamedTuple):
  """Training of a block of seeds of one arm between two steps, in similar cells."""

  before: int
  step: int
  program: str  # from `training.program`, the same for all cells
  first: int  # first seed
  arm: str
  cells: tuple[str, ...]


def main(config: Any, workdir: str) -> None:
  """Runs or resumes the cells, and writes tables and figures."""
  cells, train = check(config), config.base.train
  cells = {name: tasks.identified(cell) for name, cell in cells.items()}
  mesh = seed_devices(train)
  first_of_processes(lambda: locks.lock(workdir))
  folder = epath.Path(workdir)
  done = finished.finished(folder, seed_blocks.part_of_cell)
  repeated = _to_repeat(config, cells, folder)
  done -= {(name, step, arm, seed) for name, arm, first in repeated
           for step in steps(config, name)
           for seed in seed_blocks.seeds_of(cells[name], first)}
  todo = _schedule(config, cells, done)
  _check_reachable(folder, cells, todo, repeated)
  claims = _claims(config, cells, folder)
  first_of_processes(lambda: _claim(claims, config.base.num_seeds))
  again = [seed_blocks.checkpoints(folder / 'cells' / name, cells[name], arm, first)
           for name, arm, first in repeated]
  first_of_processes(lambda: [path.rmtree() for path in again])

  @functools.cache  # compiled once for all blocks of seeds
  def make_arm(names, arm):
    return training.make_arm([cells[name] for name in names], arm, mesh, samples=False)

  jobs = [
      Job(train.seeds_at_once * (stage.step - stage.before) * len(stage.cells),
          functools.partial(_run_stage, make_arm, cells, folder, stage))
      for stage in todo
  ]
  run_jobs(folder, jobs, 'seed-steps', seed_blocks.part_of_cell,
           seed_blocks.order(KINDS))


def _claims(
    config: Any, cells: Mapping[str, Any], folder: epath.Path
) -> list[dict[str, Any]]:
  """Returns the arguments of `run_folder.claim` for the run and for each cell.

  Cells and arms may be added later, so each cell has its own config.json.
  """
  session, may_differ = machine.session(), 'train.save_every_seconds'
  run = dict(
      workdir=folder, session=session, study='sensitivity',
      config={'base': tasks.identified(config.base).to_dict(),
              'against': config.against.to_dict()},
      may_grow=['base.num_seeds'],
      may_differ=[f'base.{may_differ}', 'base.arms',
                  *(f'against.{name}' for name in config.cells)])
  return [run, *(
      dict(workdir=folder / 'cells' / name, session=session,
           study='length_generalization', config=cell.to_dict(),
           may_grow=['num_seeds', 'train.num_steps'], may_differ=[may_differ, 'arms'])
      for name, cell in cells.items()
  )]


def _claim(claims: Sequence[Mapping[str, Any]], num_seeds: int) -> None:
  """Claims the folders of the run and of its cells."""
  for claim in claims:  # checks all before writing any
    run_folder.claimed(**claim)
  stored = [run_folder.claim(**claim) for claim in claims]
  if (earlier := stored[0]) and earlier['base']['num_seeds'] < num_seeds:
    print(seed_blocks.SEEDS_ADDED)


def _run_stage(
    make_arm: Callable[[tuple[str, ...], str], training.Arm],
    cells: Mapping[str, Any], folder: epath.Path, stage: Stage, progress: Progress,
) -> Iterator[results.Row]:
  """Trains the cells of a stage to its step, and yields their rows there."""
  for part in _ensembles(folder, cells, stage.cells, stage.arm, stage.first):
    places = [
        seed_blocks.Place(
            name, folder / 'cells' / name, curves_of(folder / 'cells' / name),
            stage.step,
        )
        for name in part
    ]
    yield from training.keep(KEPT, training.run_block(
        make_arm(part, stage.arm), places, stage.first, stage.step, progress,
        stage.before,
    ))


def _schedule(
    config: Any, cells: Mapping[str, Any],
    done: Collection[tuple[str, int | None, str, int]],
) -> list[Stage]:
  """Returns the stages that are not finished, the earliest step first."""
  todo: dict[tuple[int, int, str, int, str], list[str]] = {}
  for name, cell in cells.items():
    program = training.program(cell)
    for before, step in itertools.pairwise((0, *steps(config, name))):
      for first, arm in itertools.product(seed_blocks.first_seeds(cell), cell.arms):
        if not seed_blocks.is_finished(cell, done, first, name, step, arm):
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


def _to_repeat(
    config: Any, cells: Mapping[str, Any], folder: epath.Path
) -> list[tuple[str, str, int]]:
  """Returns cell, arm and first seed of blocks that must be trained from the start.

  These have lost rows of a step, and their checkpoint is already beyond that step.
  """
  lost = set(finished.lost(folder, seed_blocks.part_of_cell))
  repeated = []
  for name, cell in cells.items():
    for first, arm in itertools.product(seed_blocks.first_seeds(cell), cell.arms):
      reached = _reached(folder, cells, name, arm, first) if lost else 0
      if any((name, step, arm, seed) in lost for step in steps(config, name)
             for seed in seed_blocks.seeds_of(cell, first) if step < reached):
        repeated.append((name, arm, first))
  return repeated


def _check_reachable(
    folder: epath.Path, cells: Mapping[str, Any], todo: Sequence[Stage],
    repeated: Collection[tuple[str, str, int]],
) -> None:
  """Raises ValueError if a cell is trained beyond a step to be measured."""
  for _, step, _, first, arm, chosen in todo:
    for name in chosen:
      if (name, arm, first) in repeated:
        continue
      if (reached := _reached(folder, cells, name, arm, first)) > step:
        raise ValueError(
            f'cell {name} is already trained to step {reached} and cannot be measured '
            f'at step {step}. Choose later steps, or another --workdir.'
        )


def _ensembles(
    folder: epath.Path, cells: Mapping[str, Any], names: Sequence[str], arm: str,
    first: int,
) -> list[tuple[str, ...]]:
  """Groups cells of one program that have reached the same step, a few per group."""
  parts: dict[int, list[str]] = {}
  for name in names:
    parts.setdefault(_reached(folder, cells, name, arm, first), []).append(name)
  return [
      tuple(part[i : i + _TOGETHER])
      for part in parts.values() for i in range(0, len(part), _TOGETHER)
  ]
