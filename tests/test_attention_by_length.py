"""Entropy of attention weights and order of logits: by hand, and against the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from tests.cases import mostly_slow
from tests.llamas import llama, ROPES, V, variables_of
from vvlen.evaluation.attention_by_length import (
  by_length,
  entropy_by_length,
  entropy_of_weights,
  logits_of_last,
  recency_by_layer,
  shuffled,
  temperature_of_top,
)
from vvlen.evaluation.probe import Probe, probe_layers
from vvlen.evaluation.recency import recency_of_logits
from vvlen.evaluation.temperature_law import critical_temperature
from vvlen.models.kernels.dense import masked_attention

B, N, H, K, W = 3, 9, 6, 2, 4  # six query heads, two key heads


def _queries_and_keys(key):
  first, second = jax.random.split(key)
  return jax.random.normal(first, (B, N, H, W)), jax.random.normal(second, (B, N, K, W))


@pytest.mark.parametrize('num_queries', [1, 4, N])
def test_logits_are_those_of_attention(key, num_queries):
  queries, keys = _queries_and_keys(key)
  whole = masked_attention(queries, keys, keys, jnp.ones((N, N), bool)).logits
  np.testing.assert_allclose(
      logits_of_last(queries, keys, num_queries), whole[:, :, N - num_queries :],
      rtol=1e-5, atol=1e-6)


def test_entropy_is_that_of_the_weights_of_attention(key):
  queries, keys = _queries_and_keys(key)
  weights = masked_attention(queries, keys, keys, jnp.tri(N, dtype=bool)).weights
  lengths = (1, 4, 9)
  found = entropy_of_weights(queries, keys, lengths)
  for i, n in enumerate(lengths):
    a = np.asarray(weights[:, :, n - 1, :n], float)
    expected = -(a * np.log(a)).sum(-1)
    np.testing.assert_allclose(found[..., i], expected, rtol=1e-5, atol=1e-6)


def test_uniform_weights_have_log_n_and_a_single_one_none(key):
  queries, _ = _queries_and_keys(key)
  lengths = (1, 2, 7, 9)
  uniform = entropy_of_weights(queries, jnp.ones((B, N, K, W)), lengths)
  expected = np.broadcast_to(np.log(lengths), uniform.shape)
  np.testing.assert_allclose(uniform, expected, rtol=1e-6)
  # Only one of 300 keys is attended to: 0 log 0 must count as 0.
  sharp = 1e3 * jnp.eye(N, W).at[0, 0].set(0.3)[None, :, None]
  keys = jnp.broadcast_to(sharp, (B, N, K, W))
  found = entropy_of_weights(jnp.ones((B, N, H, W)), keys, (2,))
  np.testing.assert_allclose(found, 0, atol=1e-6)


def test_bfloat16_is_measured_in_float32(key):
  queries, keys = (x.astype(jnp.bfloat16) for x in _queries_and_keys(key))
  found = entropy_of_weights(queries, keys, (9,))
  assert found.dtype == jnp.float32
  exact = entropy_of_weights(
      queries.astype(jnp.float32), keys.astype(jnp.float32), (9,))
  np.testing.assert_allclose(found, exact, rtol=1e-5)


def test_the_temperature_of_the_top_key_is_that_of_its_logits(key):
  queries, keys = _queries_and_keys(key)
  logits = masked_attention(queries, keys, keys, jnp.ones((N, N), bool)).logits
  found = temperature_of_top(queries, keys, (3, 9))
  assert found.shape == (B, H, 2)
  for i, n in enumerate((3, 9)):
    last = np.asarray(logits[:, :, n - 1, :n], float)
    np.testing.assert_allclose(found[..., i], critical_temperature(last), rtol=1e-4)
    weights = special.softmax(np.asarray(found)[..., i, None] * last, axis=-1)
    np.testing.assert_allclose(weights.max(-1), 0.5, rtol=1e-4)


def test_several_measures_are_those_of_one_pass_each(key):
  queries, keys = _queries_and_keys(key)
  sequences = np.arange(B)[:, None] * np.ones((1, N), int)
  passes = []

  def look(tokens):
    passes.append(tokens.shape)
    rows = jnp.asarray(tokens)[:, 0]
    return [Probe(queries=queries[rows], keys=keys[rows], output=None)] * 2

  measures = (temperature_of_top, entropy_of_weights)
  both = by_length(look, sequences, (4, 9), measures)
  assert len(passes) == 1
  for found, measure in zip(both, measures, strict=True):
    assert found.shape == (B, 2, H, 2)
    expected = measure(queries, keys, (4, 9))
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-5)
    np.testing.assert_array_equal(found[:, 1], found[:, 0])


@pytest.mark.parametrize('tokens_at_once', [1, 24, 1000])
@pytest.mark.parametrize('rope', mostly_slow(['default', 'dynamic'], 0))
def test_entropy_by_length_of_a_model(rope, tokens_at_once):
  model = llama(rope=ROPES[rope])
  look = probe_layers(model, variables_of(model), [1, 0])
  sequences = np.random.default_rng(0).integers(0, V, (5, 12))
  lengths = [4, 12, 9]
  found = entropy_by_length(
      look, sequences, lengths, separately=rope == 'dynamic',
      tokens_at_once=tokens_at_once)
  assert found.shape == (5, 2, 4, 3)
  for i, n in enumerate(lengths):
    for layer, probe in enumerate(look(sequences[:, :n])):
      expected = entropy_of_weights(probe.queries, probe.keys, (n,))[..., 0]
      np.testing.assert_allclose(found[:, layer, :, i], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_recency_by_layer_is_that_of_each_sequence():
  model = llama()
  look = probe_layers(model, variables_of(model), [0, 1])
  sequences = np.random.default_rng(0).integers(0, V, (5, 12))
  found = [recency_by_layer(look, sequences, 3, tokens_at_once=x) for x in (1, 24, 999)]
  assert found[0].mean_score.shape == (5, 2, 4, 12)
  assert found[0].recency_probability.shape == (5, 2, 4)
  for one, two, three in zip(*found, strict=True):
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one, three, rtol=1e-4, atol=1e-5)
  for layer, probe in enumerate(look(sequences)):
    whole = masked_attention(
        probe.queries, probe.keys, probe.keys, jnp.tri(12, dtype=bool)).logits
    expected = recency_of_logits(whole[:, :, 9:])
    for one, other in zip(found[0], expected, strict=True):
      np.testing.assert_allclose(one[:, layer], other, rtol=1e-4, atol=1e-5)


def test_logits_that_grow_with_the_place_of_the_key_are_recent():
  def look(tokens):
    place = jnp.arange(tokens.shape[1]).reshape(1, -1, 1, 1) / 7
    keys = jnp.broadcast_to(place, (*tokens.shape, 1, 1))
    return [Probe(jnp.ones((*tokens.shape, 2, 1)), sign * keys, keys)
            for sign in (1, -1)]
  found = recency_by_layer(look, np.zeros((4, 10), int), 5)
  np.testing.assert_allclose(found.recency_probability[:, 0], 1, rtol=1e-6)
  np.testing.assert_allclose(found.recency_probability[:, 1], 0, atol=1e-6)
  np.testing.assert_allclose(found.violation_rate[:, 0], 0, atol=1e-6)
  # By distance from the last five of ten tokens, whose places are 5 to 9.
  expected = [np.mean([p - d for p in range(5, 10) if p >= d]) / 7 for d in range(10)]
  np.testing.assert_allclose(
      found.mean_score[0, 0, 0], expected, rtol=1e-5, atol=1e-6)


def test_all_weights_at_once_are_never_held():
  n, heads = 1024, 8
  queries = jax.ShapeDtypeStruct((1, n, heads, 4), jnp.float32)
  keys = jax.ShapeDtypeStruct((1, n, 2, 4), jnp.float32)
  program = entropy_of_weights.lower(queries, keys, (8, 512, 1024)).compile()
  memory = program.memory_analysis()
  assert memory.temp_size_in_bytes < heads * n * n * 4 / 20


def test_shuffled_has_the_same_tokens_in_another_order():
  sequences = np.arange(60).reshape(3, 20) % 17
  found = shuffled(sequences, 5)
  np.testing.assert_array_equal(np.sort(found, 1), np.sort(sequences, 1))
  assert (found != sequences).any(1).all()
  # Each row is in an order of its own.
  orders = shuffled(np.tile(np.arange(20), (3, 1)), 5)
  assert len({tuple(row) for row in orders.tolist()}) == 3
  np.testing.assert_array_equal(found, shuffled(sequences, 5))
  assert (found != shuffled(sequences, 6)).any()


def test_what_they_refuse(key):
  queries, keys = _queries_and_keys(key)
  for count in (0, N + 1):
    with pytest.raises(ValueError, match=rf'num_queries must be in 1..9: {count}'):
      logits_of_last(queries, keys, count)
  with pytest.raises(ValueError, match='do not fit keys'):
    logits_of_last(queries, keys[:, :-1], 1)
  with pytest.raises(ValueError, match='4 key heads do not divide 6 query heads'):
    logits_of_last(queries, jnp.concatenate([keys, keys], axis=2), 1)
  look = probe_layers(llama(), variables_of(llama()), [0])
  sequences = np.zeros((2, 6), int)
  for lengths in ([0, 3], [7], []):
    with pytest.raises(ValueError, match=r'lengths must be in 1\.\.6'):
      entropy_by_length(look, sequences, lengths)
  for count in (0, 7):
    with pytest.raises(ValueError, match=r'must be in 1\.\.6'):
      recency_by_layer(look, sequences, count)
  with pytest.raises(ValueError, match=r'sequences must be \[S, n\]: \(6,\)'):
    recency_by_layer(look, sequences[0], 2)
