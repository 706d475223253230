"""Settings, a text and made-up numbers for tests of `experiments.adapt`."""

import math

import jax
import numpy as np

from configs import adapt as config_file
from experiments.adapt import check
from experiments.language_model import training
from experiments.language_model.arms import Arm, Family, Run
from tests.cells import interval, paired, text, wide
from vvlen.sharding import mesh as partition
from vvlen.statistics import paired_t_test

# A checkpoint of 8 tokens that reads bytes.
MODEL = dict(vocab_size=264, width=16, mlp_width=12, head_width=8)


def write_text(folder):
  """Writes a text of 300 lines, and returns its path."""
  path = folder / 'text.txt'
  path.write_text('\n'.join(f'{i} {"It was the best of times"[i % 20:]}'
                            for i in range(300)))
  return path


def config_of(variant='yarn_smoke', **fields):
  config = config_file.get_config(variant)
  config.update_from_flattened_dict(fields)
  return config


def prepared(checkpoint, text_file, variant='yarn_smoke', **fields):
  """Returns the config, text, model and mesh of a run from this checkpoint."""
  config = config_of(variant, checkpoint=str(checkpoint), **{
      'text.path': str(text_file), 'train.batch_size': 8,
      'evaluate.num_segments': 8, **fields})
  check.check(config)
  read = training.read_text(config)
  model = training.make_model(config, read.tokenizer)
  check.check_model(config, model)
  # One device, for which programs compile sooner.
  mesh = partition.mesh_of(jax.devices()[:1], (1, 1, 1))
  return config, read, model, mesh


ARMS = {name: Arm(name, weight, (0.0, 0.5), steps, term) for name, weight, steps, term
        in (('none', 0.0, 1.0, 'sce'), ('yarn', 0.0, 1.0, 'sce'),
            ('yarn_alpha', 0.1, 1.0, 'sce'), ('yarn_entropy', 0.1, 1.0, 'entropy'),
            ('yarn_kl', 0.1, 1.0, 'symmetric_kl'), ('yarn_more', 0.0, 1.05, 'sce'),
            ('none_alpha', 0.1, 1.0, 'sce'))}
RUN = Run(ARMS, '', 16, (1, 2), 3, '4 steps of 8 streams', 2)
FAMILIES = [
    Family('none', 'fine-tuning alone', ARMS['none'], (ARMS['none_alpha'],),
           'none_alpha'),
    Family('yarn', 'YaRN', ARMS['yarn'], tuple(
        ARMS[n] for n in ('yarn_entropy', 'yarn_alpha', 'yarn_kl', 'yarn_more')),
           'yarn_alpha'),
]


def made_index():
  """Returns {(arm, metric, length): {seed: nats}} of three seeds, all different."""
  rng = np.random.default_rng(2)
  return {
      (name, metric, length): dict(enumerate(
          1.5 + place / 10 + rng.normal(0, 0.02, 3) + length / 100))
      for place, name in enumerate(ARMS) for metric in ('nll', 'sliding')
      for length in (8, 16, 32) if (metric, length) != ('sliding', 32)}


def shown_difference(test, form='.4f'):
  """Returns a mean difference with its interval, as tables show it."""
  return (f'{text(test.mean_difference, "+" + form)} '
          f'[{text(test.ci_low, "+" + form)}, {text(test.ci_high, "+" + form)}]')


def compare(index, one, other, length=32):
  """Returns the paired t-test over seeds of two arms' log perplexity."""
  return paired_t_test([*index[one, 'nll', length].values()],
                       [*index[other, 'nll', length].values()])


def by_holm(index, *pairs, length=32):
  """Returns the cells of differences (one, other), at levels by Holm over them all."""
  tests = [paired([*index[one, 'nll', length].values()],
                  [*index[other, 'nll', length].values()]) for one, other in pairs]
  return [interval(*ends, '+.4f') for ends in wide(tests)]


def evaluations_of(index, steps):
  """Returns evaluations of arms after steps, {arm: steps}, and a fourth seed's."""
  rng = np.random.default_rng(6)
  return [{'arm': name, 'step': step, 'first_seed': seed, 'nll_8': [9.0],
           **{f'nll_{n}': [float(rng.normal(2, 0.1))] for n in (16, 32)}}
          for name, own in steps.items() for seed in range(4) for step in (0, *own)]


def diverge(index, name, seed):
  """Makes all values of a seed of an arm nan."""
  for (arm, _, _), values in index.items():
    if arm == name:
      values[seed] = math.nan
