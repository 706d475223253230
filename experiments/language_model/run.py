"""Does aligning short and long contexts help language models at longer ones?

The command line is in `__main__`.
"""

import functools
from typing import Any

from experiments.harness import finished, machine, seed_blocks
from experiments.harness.run_loop import claim_for_seeds, Job, run_jobs, seed_devices
from experiments.language_model import check, sharded, together, training
from experiments.language_model.arms import MAY_DIFFER
from vvlen.models import llama
from vvlen.models.llama.hub import local_folder
from vvlen.sharding import mesh as partition


def main(config: Any, workdir: str) -> None:
  """Runs or resumes the experiment, and writes tables and figures."""
  check.check(config)
  if config.checkpoint:
    config.checkpoint = str(local_folder(config.checkpoint))
  in_blocks = config.train.seeds_at_once > 0
  if in_blocks:
    mesh = seed_devices(config.train)
  else:
    machine.use_devices()
  text = training.read_text(config)
  model = training.make_model(config, text.tokenizer)
  if in_blocks:
    together.check_text(text, mesh)
  else:
    mesh = partition.make_mesh(**config.mesh.to_dict())
    sharded.check(config, model, mesh)
  folder = claim_for_seeds(
      config, workdir, 'language_model', lambda: _inputs(config, text.facts),
      MAY_DIFFER)
  done = finished.finished(folder, seed_blocks.part_of)
  blocks, at_once = seed_blocks.first_seeds(config), seed_blocks.at_once(config)
  todo = [
      (name, first) for name in config.arms for first in blocks
      if not seed_blocks.is_finished(config, done, first, name)
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
        sharded.run_seed, config, name, seed, text, mesh, shared, folder)
  jobs = [
      Job(at_once * training.num_steps(config, config.arms[name]), train(name, block))
      for name, block in todo
  ]
  run_jobs(folder, jobs, 'seed-steps', seed_blocks.part_of, lambda row: (
      arms.index(row.arm), row.seed, row.length or 0, row.metric))


def _inputs(config: Any, facts: dict[str, Any]) -> dict[str, Any]:
  """Returns the facts that identify text, tokenizer and checkpoint by their content."""
  if config.checkpoint:
    facts = {**facts, 'checkpoint_sha256': llama.fingerprint(config.checkpoint)}
  return {'inputs': facts}
