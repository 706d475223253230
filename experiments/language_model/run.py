"""Does aligning short and long contexts carry language models to longer ones?

The command line is in `__main__`.
"""

from typing import Any

from etils import epath
import jax

from experiments import report
from experiments.harness import fingerprint, machine, seed_blocks
from experiments.harness.fields import naming_fields
from experiments.harness.processes import first_of_processes
from experiments.harness.progress import Progress
from experiments.language_model import check, sharded, training
from vvlen import sharding
from vvlen.reporting import results, run_folder
from vvlen.sharding import mesh as partition


def main(config: Any, workdir: str) -> None:
  """Runs the experiment, or what is left of it, and writes tables and figures."""
  with naming_fields():
    check.check(config)
  together = config.train.seeds_at_once > 0
  machine.use_devices(
      config.train.seeds_at_once // config.train.group_size if together else None)
  text = training.read_text(config)
  model = training.make_model(config, text.tokenizer)
  if together:
    mesh = sharding.seed_mesh()
    sharding.check_divisible(config.train.seeds_at_once, mesh, config.train.group_size)
  else:
    mesh = partition.make_mesh(**config.mesh.to_dict())
    sharded.check(config, model, mesh)
  folder, first = epath.Path(workdir), jax.process_index() == 0
  first_of_processes(lambda: _claim(config, workdir, text.facts))
  rows = {row[:-1]: row for row in results.read_rows(folder / 'results.csv')}
  done = {(row.arm, row.seed) for row in rows.values()}
  blocks = seed_blocks.first_seeds(config) if together else range(config.num_seeds)
  at_once = config.train.seeds_at_once if together else 1
  todo = [
      (name, block) for name in config.arms for block in blocks
      if any((name, seed) not in done
             for seed in range(block, min(block + at_once, config.num_seeds)))
  ]
  total = at_once * sum(
      training.num_steps(config, config.arms[name]) for name, _ in todo)
  print(f'{len(todo)} of {len(config.arms) * len(blocks)} trainings to do. '
        f'{"Compiling first." if todo else ""}', flush=True)
  with Progress(total, 'seed-steps') as progress:
    for name, block in todo:
      if together:
        new = together.run_arm(
            config, name, [block], model, text, mesh, folder, progress)
      else:
        new = sharded.run_seed(
            config, name, block, model, text, mesh, folder, progress)
      rows |= {row[:-1]: row for row in new}
      if first:
        results.write_rows(folder / 'results.csv', _sorted(config, rows))
  if first:
    report.show(workdir)
    run_folder.finish(workdir, finished=machine.now())


def _claim(config: Any, workdir: str, facts: dict[str, Any]) -> None:
  """Makes the folder this run's, or raises."""
  machine.lock(workdir)
  # Text, tokenizer and checkpoint are known by what they are, not where.
  if config.checkpoint:
    facts = {**facts, 'checkpoint_sha256': fingerprint.fingerprint(config.checkpoint)}
  run = {**config.to_dict(), 'inputs': facts}
  before = run_folder.claim(
      workdir, run, machine.session(), may_grow=['num_seeds'],
      may_differ=['train.save_every_seconds', 'train.save_every_steps', 'mesh.data',
                  'mesh.fsdp', 'mesh.tensor', 'checkpoint', 'text.path',
                  'text.tokenizer', 'inputs.text'],
      study='language_model',
  )
  if before and before['num_seeds'] < config.num_seeds:
    print(seed_blocks.SEEDS_ADDED)


def _sorted(config: Any, rows: dict[Any, results.Row]) -> list[results.Row]:
  """Returns rows in an order that does not depend on that of computing."""
  arms = list(config.arms)
  return sorted(rows.values(), key=lambda row: (
      arms.index(row.arm), row.seed, row.length or 0, row.metric))
