"""Does LayerNorm right after attention help beyond the training lengths?

The command line is in `__main__`.
"""

import functools
from typing import Any

from experiments.harness import finished, seed_blocks
from experiments.harness.run_loop import (
  claim_for_seeds,
  curves_of,
  Job,
  run_jobs,
  seed_devices,
)
from experiments.length_generalization import tasks, training
from experiments.length_generalization.check import check
from experiments.length_generalization.own_task import check_own_task
from vvlen.reporting.numbers import counted


def main(config: Any, workdir: str) -> None:
  """Runs or resumes the experiment, and writes tables and figures."""
  check(config)
  config = tasks.identified(config)
  train, mesh = config.train, seed_devices(config.train)
  check_own_task(config)
  folder = claim_for_seeds(config, workdir, 'length_generalization',
                           may_differ=['train.keep_checkpoints'])
  done = finished.finished(folder, seed_blocks.part_of)
  todo = [
      (first, arm)
      for first in seed_blocks.first_seeds(config)
      for arm in config.arms
      if not seed_blocks.is_finished(config, done, first, arm)
  ]
  if not todo:
    print('All seeds are already trained and measured. Making tables and figures.')
  else:
    seeds = counted(train.seeds_at_once, 'seed')
    steps = counted(train.num_steps, 'step')
    print(f'{counted(len(todo), "block")} to train and measure, each {seeds} of one '
          f'arm, {steps}.\nCompiling first.', flush=True)
  arms = {arm: training.make_arm([config], arm, mesh) for arm in config.arms}
  growing = '_growing' if train.get('first_max_length') else ''
  place = seed_blocks.Place(
      tasks.make_task(config).name + growing, folder, curves_of(folder)
  )

  def clear(arm, first):
    if not train.get('keep_checkpoints', True):
      seed_blocks.checkpoints(folder, config, arm, first).rmtree()

  jobs = [
      Job(train.seeds_at_once * train.num_steps,
          functools.partial(
              training.run_block, arms[arm], [place], first, train.num_steps),
          after=functools.partial(clear, arm, first))
      for first, arm in todo
  ]
  run_jobs(
      folder, jobs, 'seed-steps', seed_blocks.part_of, seed_blocks.order(config.arms))
