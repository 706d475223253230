"""Does LayerNorm right after attention help at lengths not seen in training?

The command line is in `__main__`.
"""

from typing import Any

from etils import epath

from experiments import report
from experiments.harness import machine, seed_blocks
from experiments.harness.progress import Progress
from experiments.length_generalization import training
from experiments.length_generalization.check import check
from vvlen import sharding
from vvlen.reporting import results, run_folder
from vvlen.reporting.curves import Curves


def main(config: Any, workdir: str) -> None:
  """Runs the experiment, or what is left of it, and writes tables and figures."""
  check(config)
  train = config.train
  machine.use_devices(train.seeds_at_once // train.group_size)
  mesh = sharding.seed_mesh()
  sharding.check_divisible(train.seeds_at_once, mesh, train.group_size)
  machine.lock(workdir)
  before = run_folder.claim(
      workdir, config.to_dict(), machine.session(), may_grow=['num_seeds'],
      may_differ=['train.save_every_seconds'], study='length_generalization',
  )
  if extra := -config.num_seeds % train.seeds_at_once:
    print(f'Seeds are trained {train.seeds_at_once} at once, {extra} more than asked.')

  folder = epath.Path(workdir)
  rows = results.read_rows(folder / 'results.csv')
  curves = Curves(folder / 'metrics.jsonl')
  done = {(row.arm, row.seed) for row in rows}
  todo = [
      (first, arm)
      for first in seed_blocks.first_seeds(config)
      for arm in config.arms
      if any((arm, seed) not in done for seed in seed_blocks.seeds_of(config, first))
  ]
  if not todo:
    print('All seeds were trained and measured before. Making tables and figures.')
  else:
    print(f'{len(todo)} blocks of {train.seeds_at_once} seeds to train and measure, '
          f'{train.num_steps:,} steps each. Compiling first.', flush=True)
  if before and before['num_seeds'] < config.num_seeds:
    print(seed_blocks.SEEDS_ADDED)
  arms = {arm: training.make_arm([config], arm, mesh) for arm in config.arms}
  growing = '_growing' if train.get('first_max_length') else ''
  place = seed_blocks.Place(config.task.name + growing, folder, curves)
  total = len(todo) * train.seeds_at_once * train.num_steps
  with Progress(total, 'seed-steps') as progress:
    for first, arm in todo:
      new = training.run_block(
          arms[arm], [place], first, train.num_steps, progress
      )
      rows = seed_blocks.merge(config.arms, rows, new)
      results.write_rows(folder / 'results.csv', rows)
  report.show(workdir)
  run_folder.finish(workdir, finished=machine.now())
