"""Sizes, lengths and coefficients of the papers, as in the configurations."""

import numpy as np
import pytest

from configs import (
  counting,
  language_model,
  linear_attention,
  lookup,
  mechanism,
  recency_bias,
  retrieval,
)
from vvlen.models.dictionary import DictionaryRetriever
from vvlen.models.norm import PostAttentionNorm
from vvlen.models.retriever import Retriever
from vvlen.models.temperature import PUBLISHED
from vvlen.tasks import counting as counting_task

_POWERS = tuple(2**k for k in range(4, 15))


def _states(config, expected):
  """Asserts that a configuration has these values {path: value}."""
  found = {}
  for path in expected:
    value = config
    for name in path.split('.'):
      value = value[name]
    found[path] = value
  assert found == expected


@pytest.mark.parametrize('configs, steps', [(retrieval, 100_000), (lookup, 20_000)])
def test_variance_of_attention_2504_02827(configs, steps):
  config = configs.get_config()
  _states(config, {
      'num_seeds': 100, 'arms': ('none', 'standardize', 'layer_norm'),
      'task.num_classes': 10,
      'model.width': 128, 'model.output_projection': False, 'model.item_encoder': 'mlp',
      'train.batch_size': 128, 'train.min_length': 5, 'train.max_length': 16,
      'train.num_steps': steps,
      'optimizer.learning_rate': 1e-3, 'optimizer.l2': 1e-3,
      'evaluate.lengths': _POWERS, 'evaluate.num_sequences': 1024,
      'evaluate.fit_lengths': (16, 32, 64, 128, 256),
      'evaluate.histogram_lengths': (2**4, 2**9, 2**14),
      'evaluate.histogram_sequences': 2048, 'evaluate.weight_sequences': 32,
  })
  growing = configs.get_config('growing')
  _states(growing, {'train.first_max_length': 16, 'train.max_length': 2**8})
  assert mechanism.get_config().lengths == _POWERS
  if configs is lookup:
    _states(config, {'task.num_keys': 16384})
    assert DictionaryRetriever.embedding_width == 64
  for owner in (PostAttentionNorm, Retriever):
    assert owner.epsilon == 1e-5


def test_the_polynomial_of_adaptive_temperature_2410_01104():
  assert PUBLISHED == (-0.037, 0.481, -2.3, 4.917, -1.791)
  # It exceeds 1 between two entropies alone, and has its peak between them.
  entropy = np.linspace(0.5, 8, 75_001)
  beta = np.polyval(PUBLISHED, entropy)
  above = entropy[beta > 1]
  np.testing.assert_allclose((above[0], above[-1]), (0.849, 5.945), atol=5e-4)
  np.testing.assert_allclose(
      (beta.max(), entropy[beta.argmax()]), (2.421, 4.412), atol=5e-4)


def test_recency_bias_2509_21042():
  _states(recency_bias.get_config(), {
      'num_simulations': 100_000, 'num_tokens': 10, 'width': 64, 'num_layers': 4,
      'anisotropies': (0.0, 0.2, 0.4, 0.6, 0.8), 'anisotropy': 0.5,
      'panels.widths': (16, 64, 256, 1024), 'panels.num_simulations': 10_000_000,
  })


def test_counting_2506_11769():
  config = counting.get_config()
  _states(config, {
      'model.num_layers': 4, 'model.width': 128, 'model.num_heads': 4,
      'model.mlp_factor': 4, 'model.norm': 'none', 'train.batch_size': 256,
      'train.num_steps': 20_000, 'optimizer.learning_rate': 1e-3,
      'evaluate.max_length': 50, 'evaluate.num_sequences': 2000,
  })
  _states(counting.get_config('cpu'), {
      'model.num_layers': 2, 'model.width': 64, 'train.batch_size': 64,
      'train.num_steps': 5_000, 'evaluate.max_length': 50,
  })
  encodings = ('none', 'learned', 'alibi', 'rope')
  functions = ('identity', 'sqrt', 'log', 'inverse_sqrt')
  one, plain, ten = ('none',), ('identity',), (10,)
  expected = {  # task, counts, encodings, functions of the target, training lengths
      'figure_1a': ('mean', 'fair', encodings, plain, ten),
      'figure_1b': ('length', 'fair', encodings, plain, ten),
      'figure_1c': ('length', 'fair', one, functions, ten),
      'figure_4_length': ('length', 'fair', one, plain, (5, 10, 20, 40)),
      'figure_4_sum': ('sum', 'fair', one, plain, (5, 10, 20, 40)),
      'figure_5': ('sum', 'fair', one, functions, ten),
      'figure_6': ('mean', 'uniform', encodings, plain, ten),
  }
  names = ('task', 'counts', 'positions', 'reparameterizations', 'train_lengths')
  assert {name: tuple(figure[field] for field in names)
          for name, figure in config.figures.items()} == expected
  # All 2^l strings of up to ten bits.
  assert len(counting_task.all_strings(10)) == 1024
  theory = linear_attention.get_config()
  _states(theory, {'tasks': ('mean', 'length', 'sum'), 'evaluate.max_length': 50})
  assert 10 in theory.train_lengths


def test_language_models_2506_11769():
  config = language_model.get_config()
  half, quarter = (0.0, 0.5), (0.0, 0.25)
  assert {name: (arm.weight, arm.offsets, arm.steps)
          for name, arm in config.arms.items()} == {
      'alpha_0': (0.0, half, 1.0), 'alpha_0_1': (0.1, half, 1.0),
      'alpha_0_3': (0.3, half, 1.0), 'alpha_0_5': (0.5, half, 1.0),
      'alpha_1': (1.0, half, 1.0), 'offsets_quarter': (0.1, quarter, 1.0),
      'offsets_second_quarter': (0.1, (0.25, 0.5), 1.0),
      'offsets_whole': (0.1, (0.0, 1.0), 1.0), 'equal_time': (0.1, half, 190 / 200),
  }
  assert config.control == 'alpha_0' and config.num_seeds >= 5
  _states(config, {'model.num_layers': 4, 'model.width': 256, 'train.max_length': 128,
                   'evaluate.lengths': (1, 2, 4, 8)})
  cpu = language_model.get_config('cpu')
  _states(cpu, {'model.num_layers': 2, 'model.width': 128, 'train.max_length': 64})
  assert cpu.num_seeds >= 5
