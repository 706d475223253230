"""Does aligning short and long contexts carry language models to longer ones?

The command line is in `__main__`.
"""

import functools
from typing import Any

from etils import epath

from experiments.harness import fingerprint, machine, seed_blocks
from experiments.harness.fields import naming_fields
from experiments.harness.processes import first_of_processes
from experiments.harness.run_loop import Job, read_rows, run_jobs, seed_devices
from experiments.language_model import check, sharded, training
from experiments.language_model.together import run_arm
from vvlen.reporting import run_folder
from vvlen.sharding import mesh as partition


def main(config: Any, workdir: str) -> None:
  """Runs the experiment, or what is left of it, and writes tables and figures."""
  with naming_fields():
    check.check(config)
  together = config.train.seeds_at_once > 0
  if together:
    mesh = seed_devices(config.train)
  else:
    machine.use_devices()
  text = training.read_text(config)
  model = training.make_model(config, text.tokenizer)
  if not together:
    mesh = partition.make_mesh(**config.mesh.to_dict())
    sharded.check(config, model, mesh)
  folder = epath.Path(workdir)
  first_of_processes(lambda: _claim(config, workdir, text.facts))
  done = {(row.arm, row.seed) for row in read_rows(folder).values()}
  blocks = seed_blocks.first_seeds(config) if together else range(config.num_seeds)
  at_once = config.train.seeds_at_once if together else 1
  todo = [
      (name, block) for name in config.arms for block in blocks
      if any((name, seed) not in done
             for seed in range(block, min(block + at_once, config.num_seeds)))
  ]
  print(f'{len(todo)} of {len(config.arms) * len(blocks)} trainings to do. '
        f'{"Compiling first." if todo else ""}', flush=True)
  arms = list(config.arms)
  jobs = [
      Job(at_once * training.num_steps(config, config.arms[name]), functools.partial(
          run_arm if together else sharded.run_seed,
          config, name, [block] if together else block, model, text, mesh, folder))
      for name, block in todo
  ]
  run_jobs(folder, jobs, 'seed-steps', lambda row: (
      arms.index(row.arm), row.seed, row.length or 0, row.metric))


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
