r"""Does LayerNorm right after attention help at lengths not seen in training?

Trains every arm on the same seeds, measures each model at every length, and tests
the differences, paired by seed. arXiv 2504.02827, Figures 2-4, Proposition 1 and
Tables 1 and 3; with configs/lookup.py Tables 2 and 6; with a variant whose name ends
in growing, which trains on lengths that grow to 256, Tables 4 and 5.

  python -m experiments.length_generalization --config=configs/retrieval.py:quick \
      --workdir=runs/quick
"""

from typing import Any

from etils import epath

from experiments import _run, _training, report
from experiments._check import check
from vvlen import results, run_folder, sharding
from vvlen.curves import Curves


def main(config: Any, workdir: str) -> None:
  """Runs the experiment, or what is left of it, and writes tables and figures."""
  check(config)
  train = config.train
  _run.use_devices(train.seeds_at_once // train.group_size)
  mesh = sharding.seed_mesh()
  sharding.check_divisible(train.seeds_at_once, mesh, train.group_size)
  _run.lock(workdir)
  before = run_folder.claim(
      workdir, config.to_dict(), _run.session(), may_grow=['num_seeds'],
      may_differ=['train.save_every_seconds'],
  )
  if extra := -config.num_seeds % train.seeds_at_once:
    print(f'Seeds are trained {train.seeds_at_once} at once, {extra} more than asked.')

  folder = epath.Path(workdir)
  rows = results.read_rows(folder / 'results.csv')
  curves = Curves(folder / 'metrics.jsonl')
  done = {(row.arm, row.seed) for row in rows}
  todo = [
      (first, arm)
      for first in _training.blocks(config)
      for arm in config.arms
      if any((arm, seed) not in done for seed in _training.seeds_of(config, first))
  ]
  if not todo:
    print('All seeds were trained and measured before. Making tables and figures.')
  else:
    print(f'{len(todo)} blocks of {train.seeds_at_once} seeds to train and measure, '
          f'{train.num_steps:,} steps each. Compiling first.', flush=True)
  if before and before['num_seeds'] < config.num_seeds:
    print(_training.SEEDS_ADDED)
  run_block = {arm: _training.block_runner([config], arm, mesh) for arm in config.arms}
  growing = '_growing' if train.get('first_max_length') else ''
  place = _training.Place(config.task.name + growing, folder, curves)
  total = len(todo) * train.seeds_at_once * train.num_steps
  with _run.Progress(total, 'seed-steps') as progress:
    for first, arm in todo:
      new = run_block[arm]([place], first, train.num_steps, progress)
      rows = _training.merge(config.arms, rows, new)
      results.write_rows(folder / 'results.csv', rows)
  report.show(workdir)
  run_folder.finish(workdir, finished=_run.now())


if __name__ == '__main__':
  _run.run(main, needs=('task', 'model', 'train', 'optimizer', 'evaluate', 'arms'))
