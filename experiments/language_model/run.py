r"""Does aligning short and long contexts carry language models to longer ones?

Trains a Llama, from scratch or from a checkpoint, with and without the misalignment
term of arXiv 2506.11769 on the same two windows of the same text, and measures it at
multiples of the training length.

  python -m experiments.language_model --config=configs/lm.py:quick --workdir=runs/lm
"""

from typing import Any

from etils import epath
import jax

from experiments import (
    _checkpoint,
    _language_model,
    _lm_check,
    _lm_sharded,
    _lm_together,
    _run,
    _training,
    report,
)
from experiments._check import naming_fields
from vvlen import partition, results, run_folder, sharding


def main(config: Any, workdir: str) -> None:
  """Runs the experiment, or what is left of it, and writes tables and figures."""
  with naming_fields():
    _lm_check.check(config)
  together = config.train.seeds_at_once > 0
  _run.use_devices(
      config.train.seeds_at_once // config.train.group_size if together else None)
  text = _language_model.read_text(config)
  model = _language_model.make_model(config, text.tokenizer)
  if together:
    mesh = sharding.seed_mesh()
    sharding.check_divisible(config.train.seeds_at_once, mesh, config.train.group_size)
  else:
    mesh = partition.make_mesh(**config.mesh.to_dict())
    _lm_sharded.check(config, model, mesh)
  folder, first = epath.Path(workdir), jax.process_index() == 0
  _run.first_of_processes(lambda: _claim(config, workdir, text.facts))
  rows = {row[:-1]: row for row in results.read_rows(folder / 'results.csv')}
  done = {(row.arm, row.seed) for row in rows.values()}
  blocks = _training.blocks(config) if together else range(config.num_seeds)
  at_once = config.train.seeds_at_once if together else 1
  todo = [
      (name, block) for name in config.arms for block in blocks
      if any((name, seed) not in done
             for seed in range(block, min(block + at_once, config.num_seeds)))
  ]
  total = at_once * sum(
      _language_model.num_steps(config, config.arms[name]) for name, _ in todo)
  print(f'{len(todo)} of {len(config.arms) * len(blocks)} trainings to do. '
        f'{"Compiling first." if todo else ""}', flush=True)
  with _run.Progress(total, 'seed-steps') as progress:
    for name, block in todo:
      if together:
        new = _lm_together.run_arm(
            config, name, [block], model, text, mesh, folder, progress)
      else:
        new = _lm_sharded.run_seed(
            config, name, block, model, text, mesh, folder, progress)
      rows |= {row[:-1]: row for row in new}
      if first:
        results.write_rows(folder / 'results.csv', _sorted(config, rows))
  if first:
    report.show(workdir)
    run_folder.finish(workdir, finished=_run.now())


def _claim(config: Any, workdir: str, facts: dict[str, Any]) -> None:
  """Makes the folder this run's, or raises."""
  _run.lock(workdir)
  # Text, tokenizer and checkpoint are known by what they are, not where.
  if config.checkpoint:
    facts = {**facts, 'checkpoint_sha256': _checkpoint.fingerprint(config.checkpoint)}
  run = {**config.to_dict(), 'inputs': facts}
  before = run_folder.claim(
      workdir, run, _run.session(), may_grow=['num_seeds'],
      may_differ=['train.save_every_seconds', 'train.save_every_steps', 'mesh.data',
                  'mesh.fsdp', 'mesh.tensor', 'checkpoint', 'text.path',
                  'text.tokenizer', 'inputs.text'],
  )
  if before and before['num_seeds'] < config.num_seeds:
    print(_training.SEEDS_ADDED)


def _sorted(config: Any, rows: dict[Any, results.Row]) -> list[results.Row]:
  """Returns rows in an order that does not depend on that of computing."""
  arms = list(config.arms)
  return sorted(rows.values(), key=lambda row: (
      arms.index(row.arm), row.seed, row.length or 0, row.metric))


if __name__ == '__main__':
  _run.run(main, needs=('arms', 'text', 'train', 'optimizer', 'evaluate'))
