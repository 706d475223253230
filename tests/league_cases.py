"""A small league of made-up rows for its tests."""

import json

import numpy as np

from configs import league as config_file
from experiments.league import effects, family
from vvlen.reporting import results
from vvlen.reporting.family import digest_of

LENGTHS = (16, 32, 64)
SEEDS = 6
SCALARS = 0.0, 0.1, 0.4, 0.9, 1.6, np.nan
AT_16 = 0.3  # the factor that softmax needs there; most are below 1
RATES = {'softmax': 1e-3, 'layer_norm': 3e-3, 'log_n': 1e-2, 'power': 3e-4}
# task -> arm -> gain over softmax in points; its spread over seeds is about 1.
GAINS = {'retrieval': {'layer_norm': -3.0, 'log_n': 9.0, 'power': 2.0},
         'lookup': {'layer_norm': 0.2, 'log_n': 1.2, 'power': -5.0}}


def make_facts(num_seeds=SEEDS, arms=RATES, tasks=GAINS):
  config = config_file.get_config('cpu')
  config.update(num_seeds=num_seeds)
  for arm in config_file.ARMS:
    if arm not in arms:
      config.arms[arm] = ''
  for task in [*config.tasks]:
    if task not in tasks:
      del config.tasks[task]
  return family.facts(config)


def make_accuracies(seed=0):
  """Returns {(task, arm): accuracy in % [seeds, lengths]}."""
  rng, found = np.random.default_rng(seed), {}
  for task, gains in GAINS.items():
    plain = np.array([97, 80, 60]) + rng.normal(0, 2, (SEEDS, 1))
    found[task, 'softmax'] = plain
    for arm, gain in gains.items():
      noise = rng.normal(0, 1, (SEEDS, len(LENGTHS)))
      found[task, arm] = plain + noise + np.array([0, gain, gain])
  return found


def make_rows(accuracies, learned=None):
  rows = []
  for (task, arm), table in accuracies.items():
    row = lambda seed, length, metric, value, task=task, arm=arm: results.Row(
        task, arm, seed, length, metric, float(value), learning_rate=RATES[arm])
    for seed, values in enumerate(table):
      share = (learned or {}).get((task, arm), 0.95 + len(arm) / 1000)
      rows += [row(seed, None, 'training_accuracy', share),
               row(seed, None, 'training_loss', 0.1)]
      if arm == 'power':  # of which the last seed has none
        rows.append(row(seed, None, 'learned_p', SCALARS[seed]))
      rows += [row(seed, n, 'accuracy', x / 100)
               for n, x in zip(LENGTHS, values, strict=True)]
  return rows


def indices_of(rows):
  return {task: results.index(r for r in rows if r.experiment == task)
          for task in GAINS}


def read_case(rows, facts=None):
  """Returns the family, the indices of rows by task, and the effects."""
  known = effects.family_of(facts or make_facts())
  indices = indices_of(rows)
  return known, indices, effects.read_effects(indices, known)


def endpoints_of(accuracies, task, arm):
  return accuracies[task, arm][:, 1:].mean(axis=1)


def write_folder(folder, facts, rows):
  results.write_rows(folder / 'results.csv', rows)
  (folder / 'config.json').write_text(json.dumps({
      'study': 'league', 'config': {'digest': digest_of(facts)} | facts,
      'sessions': [{}]}))


def with_needs(rows, known=SEEDS):
  """Returns rows as if softmax were measured on retrieval, and its powers by seed.

  The factor grows with p, in training with p / 2; what is applied has another power.
  """
  row = lambda seed, length, metric, value, suffix='': results.Row(
      'retrieval', f'softmax{suffix}', seed, length, metric, float(value),
      learning_rate=1e-3)
  powers = 1.001 + 0.02 * np.arange(SEEDS)  # so that no mean is a tie of rounding
  more = []
  for seed, p in enumerate(powers[:known]):
    more += [row(seed, None, f'needed_{name}', value) for name, value in (
        ('power', p + 1), ('power_of_log', p + 2), ('power_in_training', p + 3))]
    more += [row(seed, n, 'needed_temperature', AT_16 * (n / 16) ** (p / 2))
             for n in (5, 9)]
    for n in LENGTHS:
      more += [row(seed, n, 'needed_temperature', AT_16 * (n / 16) ** p),
               row(seed, n, 'found', 1 - n / 2000 - seed / 100)]
      [plain] = [r.value for r in rows if r[:5] == (
          'retrieval', 'softmax', seed, n, 'accuracy')]
      more += [row(seed, n, 'accuracy', plain + gain * (1 + seed / 10), f'+{law}')
               for law, gain in (('power', 0.05), ('power_of_log', 0.02),
                                 ('trained_power', -0.01), ('fitted', 0.03),
                                 ('adaptive', 0.04))]
  return [*rows, *more], powers
