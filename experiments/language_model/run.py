"""Does aligning short and long contexts help language models at longer ones?

The command line is in `__main__`.
"""

import functools
from typing import Any

from etils import epath

from experiments.harness import fingerprint, finished, locks, machine, seed_blocks
from experiments.harness.processes import first_of_processes
from experiments.harness.run_loop import Job, run_jobs, seed_devices
from experiments.language_model import check, sharded, together, training
from vvlen.reporting import run_folder
from vvlen.sharding import mesh as partition


def main(config: Any, workdir: str) -> None:
  """Runs or resumes the experiment, and writes tables and figures."""
  check.check(config)
  in_blocks = config.train.seeds_at_once > 0
  if in_blocks:
    mesh = seed_devices(config.train)
  else:
    machine.use_devices()
  text = training.read_text(config)
  model = training.make_model(config, text.tokenizer)
  if not in_blocks:
    mesh = partition.make_mesh(**config.mesh.to_dict())
    sharded.check(config, model, mesh)
  folder = epath.Path(workdir)
  first_of_processes(lambda: _claim(config, workdir, text.facts))
  done = finished.finished(folder, seed_blocks.part_of)
  blocks = seed_blocks.first_seeds(config) if in_blocks else range(config.num_seeds)
  at_once = config.train.seeds_at_once if in_blocks else 1
  todo = [
      (name, block) for name in config.arms for block in blocks
      if any((name, seed) not in done
             for seed in range(block, min(block + at_once, config.num_seeds)))
  ]
  print(f'{len(todo)} of {len(config.arms) * len(blocks)} training runs to do. '
        f'{"Compiling first." if todo else ""}', flush=True)
  arms = list(config.arms)
  if in_blocks:
    # The blocks of an arm follow one another.
    programs = functools.lru_cache(maxsize=1)(lambda name: together.make_programs(
        config, name, model, text, mesh))
    train = lambda name, first: lambda progress: together.run_block(
        config, name, model, programs(name), first, folder, progress)
  else:
    shared = sharded.Programs(config, model, mesh)
    train = lambda name, seed: functools.partial(
        sharded.run_seed, config, name, seed, model, text, mesh, shared, folder)
  jobs = [
      Job(at_once * training.num_steps(config, config.arms[name]), train(name, block))
      for name, block in todo
  ]
  run_jobs(folder, jobs, 'seed-steps', seed_blocks.part_of, lambda row: (
      arms.index(row.arm), row.seed, row.length or 0, row.metric))


def _claim(config: Any, workdir: str, facts: dict[str, Any]) -> None:
  """Claims the folder for this run; raises ValueError if it belongs to another."""
  locks.lock(workdir)
  # Text, tokenizer and checkpoint are identified by their content, not their path.
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
