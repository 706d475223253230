"""The temperature that softmax needs, of models whose logits are known."""

import math
from typing import NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np
import pytest
from scipy import optimize

from experiments.league import needed as league_needed
from vvlen import sharding
from vvlen.evaluation.retriever.needed_temperature import needed_temperature
from vvlen.models.temperature import adaptive_temperature

SEQUENCES = 8
LENGTHS = (16, 64, 256)
GAPS = 1.05 * math.log(15), 2 * math.log(15)  # of the two seeds


class _Batch(NamedTuple):
  query: jax.Array
  items: jax.Array
  target: jax.Array
  target_index: jax.Array


class _Attention(nn.Module):
  """Softmax over logits −gap [S], but 0 for the item that is asked for."""

  @nn.compact
  def __call__(self, gap, items, temperature):
    logits = jnp.where(items == 1, 0.0, -gap[:, None])
    beta = 1.0 if temperature is None else temperature(logits, None)
    weights = jax.nn.softmax(beta * logits)
    self.sow('intermediates', 'attention_weights', weights)
    return weights


class _Model(nn.Module):
  """Answers class 1 if the item asked for has more than half of the weight."""

  @nn.compact
  def __call__(self, query, items, mask, temperature, intervention):
    gap = self.param('gap', nn.initializers.ones, ())
    gaps = gap * (1 + query)
    weights = _Attention(name='attention')(gaps, items, temperature)
    own = (weights * items).sum(-1)
    return jnp.stack([1 - own, own], axis=-1)


class _Task(NamedTuple):
  sample_at: object

  def model(self, norm):
    return _Model()


def _sample(key, count, length):
  index = jax.random.randint(key, (count,), 0, length)
  items = jax.nn.one_hot(index, length, dtype=jnp.int32)
  return _Batch(jnp.zeros(count), items, jnp.ones(count, jnp.int32), index)


def _measure(sample, gaps):
  config = ConfigDict(dict(
      evaluate=dict(lengths=(8, *LENGTHS), num_sequences=SEQUENCES),
      train=dict(min_length=4, max_length=16, group_size=1)))
  mesh = sharding.seed_mesh(jax.devices()[:1])
  keys = [sharding.put(jax.random.split(jax.random.key(i), len(gaps)), mesh)
          for i in (0, 1)]
  variables = sharding.put({'params': {'gap': np.float32(gaps)}}, mesh)
  return league_needed.make_measure(config, _Task(sample), mesh)(variables, *keys)


@pytest.fixture(scope='module')
def measured():
  return _measure(_sample, GAPS)


@pytest.mark.slow
def test_the_temperature_needed_and_its_powers_are_those_of_the_logits(measured):
  # (N − 1) exp(−β gap) = 1.
  needed = {n: np.log(n - 1) / GAPS for n in (4, 8, 16, 64, 256)}
  for n, beta in needed.items():
    np.testing.assert_allclose(measured['', 'needed_temperature', n], beta, rtol=1e-4)
    np.testing.assert_array_equal(measured['', 'found', n], 1.0)
  slope = lambda x, some: np.polyfit(x, np.log([needed[n][0] for n in some]), 1)[0]
  for name, x, some in (
      ('needed_power', np.log(LENGTHS), LENGTHS),
      ('needed_power_of_log', np.log(np.log(LENGTHS)), LENGTHS),
      ('needed_power_in_training', np.log((4, 8, 16)), (4, 8, 16))):
    np.testing.assert_allclose(measured['', name, None], slope(x, some), rtol=1e-3)


def test_the_temperature_of_a_model_is_the_median_over_sequences():
  # Gaps of half of the sequences are those of the model, of few they are far smaller.
  more = jnp.array([0, 0, -0.9, 0.2, 0, 0.3, 0, -0.8])
  spread = lambda key, *sizes: _sample(key, *sizes)._replace(query=more[:sizes[0]])
  found = _measure(spread, GAPS[1:])
  for n in (16, 64):
    np.testing.assert_allclose(
        found['', 'needed_temperature', n], math.log(n - 1) / GAPS[1], rtol=1e-4)


@pytest.mark.parametrize('name, power', [
    ('power', 'needed_power'), ('power_of_log', 'needed_power_of_log'),
    ('trained_power', 'needed_power_in_training')])
def test_accuracy_under_a_law_is_that_of_its_factor(measured, name, power):
  for n in (8, *LENGTHS):
    # Nothing is changed up to the longest training length.
    ratio = np.log(n) / np.log(16) if power == 'needed_power_of_log' else n / 16
    factor = np.maximum(ratio, 1.0) ** measured['', power, None]
    right = (n - 1) * np.exp(-factor * GAPS) < 1
    np.testing.assert_array_equal(measured[f'+{name}', 'accuracy', n], right)
    own = 1 / (1 + (n - 1) * np.exp(-factor * GAPS))
    np.testing.assert_allclose(
        measured[f'+{name}', 'loss', n], np.log1p(np.exp(1 - 2 * own)), rtol=1e-4)
  # As it is, the first model would be wrong beyond training.
  assert 255 * np.exp(-GAPS[0]) > 1 and measured['+power', 'accuracy', 256].all()


def test_the_published_polynomial_is_applied_as_it_is(measured):
  for n in (8, *LENGTHS):
    logits = np.where(np.arange(n) == 0, 0.0, -np.array(GAPS)[:, None])
    beta = np.asarray(adaptive_temperature(logits))[:, 0]
    own = 1 / (1 + (n - 1) * np.exp(-beta * GAPS))
    np.testing.assert_allclose(
        measured['+adaptive', 'loss', n], np.log1p(np.exp(1 - 2 * own)), rtol=1e-4)
  assert (beta > 1.01).any()


@pytest.mark.slow
def test_a_fitted_polynomial_sharpens_attention(measured):
  # Sequences of one entropy a length do not determine it: β stays 1.
  for n in LENGTHS:
    right = (n - 1) * np.exp(-np.array(GAPS)) < 1
    np.testing.assert_array_equal(measured['+fitted', 'accuracy', n], right)
  # Where gaps differ between sequences, the best β is always the largest, 16.
  spread = lambda key, *sizes: _sample(key, *sizes)._replace(
      query=jax.random.uniform(key, sizes[:1], minval=-0.3, maxval=0.3))
  found = _measure(spread, GAPS)
  assert (found['+fitted', 'accuracy', 256] == 1).all()


@pytest.mark.slow
def test_a_law_is_not_known_where_no_temperature_finds_the_item():
  found = _measure(_sample, (0.0,))  # all items have the same logit
  assert found['', 'needed_temperature', 16] == np.inf
  assert found['', 'found', 16] == 0
  for name in ('needed_power', 'needed_power_of_log', 'needed_power_in_training'):
    assert np.isnan(found['', name, None]).all()
  for name in ('power', 'power_of_log', 'trained_power'):
    assert np.isnan(found[f'+{name}', 'accuracy', 64]).all()


def test_the_temperature_is_that_of_the_item_asked_for_not_of_the_top():
  logits = jnp.array([0.0, -1.0, -3.0])
  none = jnp.zeros(3, jnp.int32)
  batch = _Batch(none, jnp.zeros((3, 3)), none, jnp.arange(3))

  def apply(variables, query, items, temperature):
    rows = jnp.broadcast_to(logits, (3, 3))
    return None, {'attention_weights': jax.nn.softmax(temperature(rows, None) * rows)}

  found = needed_temperature(apply, lambda *_: batch, None, jax.random.key(0), length=3,
                             num_sequences=3)
  root = optimize.brentq(lambda beta: np.exp(-beta) + np.exp(-3 * beta) - 1, 0, 3)
  np.testing.assert_allclose(found, [root, np.inf, np.inf], rtol=1e-4)


def test_lengths_that_a_law_of_training_is_fitted_to():
  assert league_needed.training_lengths(5, 16) == [5, 9, 16]
  assert league_needed.training_lengths(1, 2) == [2]
