"""Runs the cells of a family, one block of seeds after the other."""

from collections.abc import Callable, Iterable
import functools
from typing import Any, NamedTuple

from etils import epath
import jax
import ml_collections

from experiments.harness import finished, machine, seed_blocks
from experiments.harness.processes import first_of_processes
from experiments.harness.progress import Progress
from experiments.harness.run_loop import (
  claim_family,
  curves_of,
  Job,
  run_jobs,
  seed_devices,
)
from experiments.length_generalization import tasks, training
from experiments.mechanism import run as mechanism
from experiments.vanishing_variance import family
from vvlen.models.norm import KINDS
from vvlen.reporting import results, run_folder
from vvlen.training import checkpoint

_KEPT = (
    'training_accuracy', 'training_loss', 'target_weight', 'attention_entropy',
    'output_norm', 'output_mean', 'output_variance', 'component_variance',
    'input_distance',
)


class Block(NamedTuple):
  """A block of seeds of one arm of one cell, and the steps still to be measured."""

  cell: str
  first: int  # first seed
  arm: str
  steps: tuple[int, ...]
  reached: int  # step of the checkpoint from which training resumes
  interventions: bool  # whether interventions are still to be measured


def main(config: Any, workdir: str) -> None:
  """Runs or resumes the family, and writes tables and figures."""
  cells, chosen = family.cell_configs(config), family.chosen(config)
  cells = {name: tasks.identified(cell) for name, cell in cells.items()}
  mesh = seed_devices(config.base.train)
  folder = epath.Path(workdir)
  first_of_processes(
      lambda: claim_family(workdir, family.facts(config), 'vanishing_variance'))
  done = finished.finished(folder, seed_blocks.part_of_cell)
  todo = [
      block for name in chosen
      for block in _blocks(config, cells[name], name, folder, done)
  ]
  changed = sorted({block.cell for block in todo if block.interventions})
  first_of_processes(lambda: [
      _claim_interventions(config.mechanism, cells[name], _intervened(folder, name))
      for name in changed
  ])

  @functools.cache  # compiled once for all blocks
  def make_arm(name, arm):
    return training.make_arm([cells[name]], arm, mesh, samples=False)

  @functools.cache
  def make_measurer(name, arm):
    cell = cells[name]
    return mechanism.block_measurer(
        config.mechanism, cell, folder / 'cells' / name, arm, cell.train.num_steps, mesh
    )

  jobs = []
  for block in todo:
    for before, step in zip((block.reached, *block.steps), block.steps, strict=False):
      seeds = cells[block.cell].train.seeds_at_once
      jobs.append(Job(seeds * (step - before), functools.partial(
          _train, make_arm, block, folder, before, step)))
    if block.interventions:
      jobs.append(Job(0, functools.partial(_intervene, make_measurer, block, folder)))
  run_jobs(folder, jobs, 'seed-steps', seed_blocks.part_of_cell,
           seed_blocks.order(KINDS))


def _blocks(
    config: Any, cell: Any, name: str, folder: epath.Path, done: set[finished.Part]
) -> list[Block]:
  """Returns the blocks of a cell that are not finished."""
  intervened = finished.finished(_intervened(folder, name), seed_blocks.part_of)
  steps = tuple(cell.train.averaged_at)
  left = []
  for first in seed_blocks.first_seeds(cell):
    for arm in cell.arms:
      missing = tuple(
          step for step in steps
          if not seed_blocks.is_finished(cell, done, first, name, step, arm))
      interventions = (
          name in config.mechanism.cells
          and not seed_blocks.is_finished(cell, intervened, first, arm))
      if not missing and not interventions:
        continue
      reached = checkpoint.last_step(
          seed_blocks.checkpoints(folder / 'cells' / name, cell, arm, first)
      )
      # All rows of a block must come from one training run. If its checkpoint is before
      # the last measured step, or beyond the first missing one, training starts again
      # and all rows are replaced.
      measured = [step for step in steps if step not in missing]
      if reached < max(measured, default=0) or (missing and reached > missing[0]):
        missing, reached = steps, 0
      left.append(Block(name, first, arm, missing, reached, interventions))
  return left


def _train(
    make_arm: Callable[[str, str], training.Arm], block: Block, folder: epath.Path,
    before: int, step: int, progress: Progress,
) -> list[results.Row]:
  """Trains a block from one step to another, and returns its rows there."""
  home, trained = folder / 'cells' / block.cell, make_arm(block.cell, block.arm)
  if not before:  # a block that starts again
    checkpoints = seed_blocks.checkpoints(home, trained.config, block.arm, block.first)
    first_of_processes(lambda: checkpoints.exists() and checkpoints.rmtree())
  place = seed_blocks.Place(block.cell, home, curves_of(home), step)
  new = training.run_block(trained, [place], block.first, step, progress, before)
  return list(training.keep(_KEPT, new))


def _intervene(
    make_measurer: Callable[[str, str], Callable[[int], Iterable[results.Row]]],
    block: Block, folder: epath.Path, progress: Progress,
) -> tuple[()]:
  """Measures interventions on a trained block, and adds rows to those of its cell."""
  place = _intervened(folder, block.cell)
  before = results.read_rows(place / 'results.csv')
  with progress.measuring(f'{block.cell}, {block.arm}, interventions'):
    new = list(make_measurer(block.cell, block.arm)(block.first))
  if jax.process_index() == 0:
    finished.write_rows(
        place, seed_blocks.merge(KINDS, before, new), new, seed_blocks.part_of)
  return ()


def _claim_interventions(
    config: Any, cell: ml_collections.ConfigDict, folder: epath.Path
) -> None:
  """Claims a folder for the interventions on one cell."""
  trained = cell.to_dict()
  for name in family.MACHINE:
    trained['train'].pop(name)
  facts = {name: value for name, value in config.to_dict().items() if name != 'cells'}
  run_folder.claim(
      folder,
      facts | {
          'arms': list(cell.arms), 'trained_config': trained,
          'trained_step': cell.train.num_steps,
      },
      machine.session(), study='mechanism',
  )


def _intervened(folder: epath.Path, name: str) -> epath.Path:
  """Returns the folder of the interventions on a cell."""
  return folder / 'mechanism' / name
