"""Runs the cells of a family, block of seeds by block of seeds."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from etils import epath
import ml_collections

from experiments.harness import machine, seed_blocks
from experiments.harness.progress import Progress
from experiments.harness.run_loop import seed_devices
from experiments.length_generalization import training
from experiments.mechanism import run as mechanism
from experiments.vanishing_variance import family, report
from vvlen.reporting import results, run_folder
from vvlen.reporting.curves import Curves
from vvlen.training import checkpoint

_KEPT = (
    'training_accuracy', 'training_loss', 'target_weight', 'attention_entropy',
    'output_norm', 'output_mean', 'output_variance', 'component_variance',
    'input_distance',
)


class Block(NamedTuple):
  """Some seeds of one arm of one cell, and the steps at which they lack rows."""

  cell: str
  first: int  # seed
  arm: str
  steps: tuple[int, ...]
  reached: int  # the step of the checkpoint to go on from
  interventions: bool  # whether those are to be measured after the last step


def main(config: Any, workdir: str) -> None:
  """Runs the blocks that are left, and writes tables and figures."""
  cells, chosen = family.cell_configs(config), family.chosen(config)
  train = config.base.train
  mesh = seed_devices(train)
  machine.lock(workdir)
  folder, known = epath.Path(workdir), family.facts(config)
  run_folder.claim(
      folder,
      {'digest': report.digest_of(known), **known},
      machine.session(), study='vanishing_variance',
  )
  todo = [
      block for name in chosen for block in _blocks(config, cells[name], name, folder)
  ]
  for name in sorted({block.cell for block in todo if block.interventions}):
    _claim_interventions(config.mechanism, cells[name], _intervened(folder, name))
  total = sum(
      train.seeds_at_once * (block.steps[-1] - block.reached)
      for block in todo if block.steps
  )
  compiled: dict[tuple[str, str], tuple[training.Arm, Any]] = {}
  with Progress(total, 'seed-steps') as progress:
    for block in todo:
      cell, key = cells[block.cell], (block.cell, block.arm)
      if key not in compiled:
        compiled[key] = (
            training.make_arm([cell], block.arm, mesh, samples=False),
            mechanism.block_measurer(
                config.mechanism, cell, folder / 'cells' / block.cell, block.arm,
                cell.train.num_steps, mesh,
            ),
        )
      arm, intervene = compiled[key]
      _train(block, cell, arm, folder, progress)
      if block.interventions:
        progress.show(f'{block.cell}, {block.arm}, interventions')
        path = _intervened(folder, block.cell) / 'results.csv'
        _add(path, cell.arms, intervene(block.first))
  report.show(workdir)
  run_folder.finish(folder, finished=machine.now())


def _blocks(
    config: Any, cell: Any, name: str, folder: epath.Path
) -> list[Block]:
  """Returns what is left of a cell; blocks that miss nothing are left out."""
  rows = results.read_rows(folder / 'results.csv')
  done = {(row.experiment, row.arm, row.seed) for row in rows}
  changed = results.read_rows(_intervened(folder, name) / 'results.csv')
  intervened = {(row.arm, row.seed) for row in changed}
  steps = tuple(cell.train.averaged_at)
  left = []
  for first in seed_blocks.first_seeds(cell):
    for arm in cell.arms:
      seeds = seed_blocks.seeds_of(cell, first)
      missing = tuple(
          step for step in steps
          if any((f'{name}@{step}', arm, seed) not in done for seed in seeds)
      )
      interventions = name in config.mechanism.cells and any(
          (arm, seed) not in intervened for seed in seeds
      )
      if not missing and not interventions:
        continue
      reached = checkpoint.last_step(
          seed_blocks.checkpoints(folder / 'cells' / name, cell, arm, first)
      )
      # All rows of a block are of one training. Where its checkpoint is elsewhere, it
      # starts again, and all its rows are replaced.
      measured = [step for step in steps if step not in missing]
      if reached < max(measured, default=0) or (missing and reached > missing[0]):
        missing, reached = steps, 0
      left.append(Block(name, first, arm, missing, reached, interventions))
  return left


def _kept(row: results.Row) -> bool:
  """Whether a row is kept: accuracy, and of weights as they are what figures show."""
  return row.metric == 'accuracy' or ('+' not in row.arm and row.metric in _KEPT)


def _train(
    block: Block, cell: ml_collections.ConfigDict, arm: training.Arm,
    folder: epath.Path, progress: Progress,
) -> None:
  """Trains a block to each of its steps, and writes what is measured there."""
  home = folder / 'cells' / block.cell
  if block.steps and not block.reached:
    checkpoints = seed_blocks.checkpoints(home, cell, block.arm, block.first)
    if checkpoints.exists():
      checkpoints.rmtree()
  for before, step in zip((block.reached, *block.steps), block.steps, strict=False):
    place = seed_blocks.Place(
        f'{block.cell}@{step}', home, Curves(home / 'metrics.jsonl')
    )
    new = training.run_block(arm, [place], block.first, step, progress, before)
    _add(folder / 'results.csv', cell.arms, filter(_kept, new))


def _claim_interventions(
    config: Any, cell: ml_collections.ConfigDict, folder: epath.Path
) -> None:
  """Makes a folder that of the interventions on one cell."""
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
  return folder / 'mechanism' / name


def _add(path: epath.Path, arms: Sequence[str], new: Iterable[results.Row]) -> None:
  """Adds rows to a file, in place of those that it has of the same number."""
  rows = seed_blocks.merge(arms, results.read_rows(path), new)
  results.write_rows(path, rows)
