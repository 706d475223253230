"""What helps a trained model to read longer inputs, and does the term help there?

The command line is in `__main__`.
"""

import functools
from typing import Any

import jax.numpy as jnp

from experiments.adapt import check, methods, report
from experiments.adapt.frequencies import pair_entropy
from experiments.adapt.primary import MAY_DIFFER
from experiments.adapt.programs import Programs
from experiments.adapt.steps_table import measured_steps
from experiments.harness import finished, machine, parts, seed_blocks
from experiments.harness.run_loop import claim_for_seeds, Job, run_jobs
from experiments.language_model import sharded, training
from vvlen.models import llama
from vvlen.models.llama.hub import local_folder
from vvlen.sharding import mesh as partition
from vvlen.tasks.tokens import Stream

_MOST_COUNTED = 2**22  # tokens of the training text


def main(config: Any, workdir: str) -> None:
  """Runs or resumes the experiment, and writes tables and figures."""
  check.check(config)
  config.checkpoint = str(local_folder(config.checkpoint))
  machine.use_devices()
  text = training.read_text(config)
  model = training.make_model(config, text.tokenizer)
  if config.train.dtype != 'float32':
    model = model.clone(dtype=jnp.dtype(config.train.dtype))
  check.check_model(config, model)
  mesh = partition.make_mesh(**config.mesh.to_dict())
  sharded.check(config, model, mesh)
  facts = {**text.facts, 'original_length': model.max_length,
           'pair_nats': _pair_entropy(text),
           'checkpoint_sha256': llama.fingerprint(config.checkpoint)}
  factor = methods.factor_of(config, model.max_length)
  if not config.positions.factor:
    facts['factor'] = factor
  folder = claim_for_seeds(
      config, workdir, report.EXPERIMENT, lambda: {'inputs': facts}, MAY_DIFFER)
  done = finished.finished(folder, seed_blocks.part_of)
  arms = list(config.arms)
  now = parts.chosen('run_arms', config.run_arms, arms)
  todo = [(name, seed) for name in now for seed in range(config.num_seeds)
          if (name, seed) not in done]
  if stretched := methods.STRETCHED.intersection(report.methods_of(config)):
    print(f'Factor of {", ".join(sorted(stretched))}: {factor:g}. L is '
          f'{config.train.max_length} tokens, the checkpoint has {model.max_length}.')
  print(f'{len(todo)} of {len(now) * config.num_seeds} training runs to do. '
        f'{"Compiling first." if todo else ""}', flush=True)
  # The arms of a method follow one another.
  programs = functools.lru_cache(maxsize=1)(
      lambda method: Programs(config, method, model, mesh))

  # All arms of a method begin as its control does.
  controls = {
      family.control.name
      for family in report.families(report.read_run(config), config)
  }

  def train(name, seed, progress):
    return sharded.run_seed(
        config, name, seed, text, mesh, programs(config.arms[name].method), folder,
        progress, report.EXPERIMENT, measure_first=name in controls,
        measure_after=measured_steps(config, config.arms[name].steps).values())

  jobs = [
      Job(training.num_steps(config, config.arms[name]),
          functools.partial(train, name, seed))
      for name, seed in sorted(
          todo, key=lambda x: (report.methods_of(config).index(
              config.arms[x[0]].method), arms.index(x[0]), x[1]))
  ]
  run_jobs(folder, jobs, 'seed-steps', seed_blocks.part_of, lambda row: (
      arms.index(row.arm), row.seed, row.length or 0, row.metric))


def _pair_entropy(text: training.Text) -> float:
  """Returns how well counts of pairs of tokens predict the held-out text, nats."""
  train = Stream(text.documents, text.tokenizer.begin)[:_MOST_COUNTED]
  return pair_entropy(train, text.held_out[:], text.tokenizer.vocab_size)
