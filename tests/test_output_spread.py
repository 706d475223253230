"""The spread of attention outputs: known laws, and the reference."""

import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.cases import mostly_slow
from tests.conftest import NEEDS_REFERENCE
from tests.llamas import llama, ROPES, V, variables_of
from vvlen.evaluation.attention_spread import deviations, slope, spread_by_length
from vvlen.evaluation.probe import Probe, probe_layer
from vvlen.models.llama import load_checkpoint

H, K = 2, 3  # heads, and their width


def _means(tokens):
  """A probe of uniform weights: the output is the mean of values of all tokens."""
  values = jax.random.normal(jax.random.key(0), (V, H, K))
  count = jnp.arange(1, tokens.shape[1] + 1).reshape(1, -1, 1, 1)
  output = values[tokens].cumsum(1) / count
  return Probe(output, output, output)


def test_uniform_weights_on_independent_tokens_fall_as_the_root_of_n():
  sequences = np.random.default_rng(0).integers(0, V, (600, 256))
  lengths = [1, 4, 16, 64, 256]
  outputs = spread_by_length(_means, sequences, lengths, tokens_at_once=20_000)
  assert outputs.shape == (600, 5, H * K) and outputs.dtype == np.float32
  found = slope(lengths, outputs)
  assert found.low < -0.5 < found.high and found.high - found.low < 0.05
  values = np.asarray(_means(np.arange(V)[:, None]).output)[:, 0].reshape(V, -1)
  expected = values.std(0)[None] / np.sqrt(lengths)[:, None]
  np.testing.assert_allclose(outputs.std(0), expected, rtol=0.15)


def test_heads_come_one_after_the_other_and_rows_stay_apart():
  sequences = np.random.default_rng(1).integers(0, V, (5, 7))
  expected = np.asarray(_means(sequences).output)[:, [6, 0, 3]].reshape(5, 3, H * K)
  for at_once in (1, 14, 1000):  # one sequence at a time, two, all
    found = spread_by_length(_means, sequences, [7, 1, 4], tokens_at_once=at_once)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize('last_token', [None, 4])
def test_of_what_is_read_only_the_last_token_is_replaced(last_token):
  read = []

  def probe(tokens):
    read.append(np.asarray(tokens))
    return _means(tokens)

  sequences = np.random.default_rng(1).integers(5, V, (3, 6))
  before = sequences.copy()
  found = spread_by_length(probe, sequences, [2, 6], last_token, separately=True)
  assert [x.shape for x in read] == [(3, 2), (3, 6)]
  for tokens in read:
    n = tokens.shape[1]
    np.testing.assert_array_equal(tokens[:, :-1], sequences[:, : n - 1])
    assert (tokens[:, -1] == (last_token or sequences[:, n - 1])).all()
    expected = np.asarray(_means(tokens).output)[:, -1].reshape(3, -1)
    np.testing.assert_allclose(found[:, [2, 6].index(n)], expected, rtol=1e-6)
  np.testing.assert_array_equal(sequences, before)
  if last_token is None:  # one pass serves a causal model as well
    read.clear()
    np.testing.assert_allclose(spread_by_length(probe, sequences, [2, 6]), found)
    assert [x.shape for x in read] == [(3, 6)]


def test_a_model_that_reads_ahead_is_read_once_for_each_length():
  model = llama(rope=ROPES['dynamic'])
  probe = probe_layer(model, variables_of(model), 1)
  sequences = np.random.default_rng(1).integers(0, V, (4, 20))
  found = spread_by_length(probe, sequences, [5, 20], separately=True)
  for i, n in enumerate([5, 20]):
    expected = np.asarray(probe(sequences[:, :n]).output)[:, -1].reshape(4, -1)
    np.testing.assert_allclose(found[:, i], expected, rtol=1e-5, atol=1e-6)
  assert not np.allclose(spread_by_length(probe, sequences, [5, 20]), found, atol=1e-4)


@pytest.mark.parametrize('power', [-0.5, 0.0, 0.3])
def test_a_power_law_has_its_power_as_slope(power):
  drawn = np.random.default_rng(0).normal(size=(30, 1, 4)) * [1, 2, 3, 9] + 1e3
  lengths = np.array([8, 16, 64, 100])
  outputs = drawn.mean(0) + (drawn - drawn.mean(0)) * lengths[:, None] ** power
  found = slope(lengths, outputs, num_resamples=50)
  # The same sequences at all lengths: no sample of them has another slope.
  np.testing.assert_allclose(found, [power] * 3, atol=1e-9)
  np.testing.assert_allclose(slope(lengths * 7, outputs).slope, power, atol=1e-9)


def test_it_is_the_mean_deviation_that_is_fitted_by_least_squares():
  outputs = np.random.default_rng(0).normal(size=(9, 3, 5)) * np.arange(1, 6)
  deviation = outputs.std(axis=0, ddof=0).mean(axis=1)
  np.testing.assert_allclose(deviations(outputs, 0, 0), deviation[None])
  expected = np.polyfit(np.log([2, 8, 20]), np.log(deviation), 1)[0]
  found = slope([2, 8, 20], outputs, num_resamples=0)
  np.testing.assert_allclose(found.slope, expected)
  assert np.isnan([found.low, found.high]).all()


def test_samples_are_of_whole_sequences_with_replacement():
  outputs = np.random.default_rng(0).normal(loc=1e4, size=(6, 2, 3))
  whole, *found = deviations(outputs, 40, seed=3)
  np.testing.assert_allclose(whole, outputs.std(axis=0).mean(-1))
  counts = np.random.default_rng(3).multinomial(6, [1 / 6] * 6, 40)
  expected = [np.repeat(outputs, c, axis=0).std(axis=0).mean(-1) for c in counts]
  np.testing.assert_allclose(found, expected, rtol=1e-9)
  low, high = np.quantile(
      [np.polyfit(np.log([4, 9]), np.log(x), 1)[0] for x in expected], [0.025, 0.975])
  interval = slope([4, 9], outputs, num_resamples=40, seed=3)
  np.testing.assert_allclose(interval[1:], [low, high])
  assert slope([4, 9], outputs, num_resamples=40, seed=4)[1:] != interval[1:]


def test_of_several_queries_the_mean_of_their_slopes_is_told():
  outputs = np.random.default_rng(0).normal(size=(4, 9, 3, 5))
  outputs *= np.array([1, 10, 0.1, 3])[:, None, None, None]
  each = [slope([2, 8, 20], x, num_resamples=30) for x in outputs]
  both = slope([2, 8, 20], outputs, num_resamples=30)
  np.testing.assert_allclose(both.slope, np.mean([x.slope for x in each]))
  # Samples are the same for all, so that what they share does not average out; of the
  # last tokens too, as others may have other slopes.
  samples = [deviations(x, 30, 0)[1:] for x in outputs]
  slopes = [[np.polyfit(np.log([2, 8, 20]), np.log(y), 1)[0] for y in x]
            for x in samples]
  counts = np.random.default_rng([0, 1]).multinomial(4, [1 / 4] * 4, 30)
  means = [np.repeat(x, c).mean() for x, c in zip(
      np.array(slopes).T, counts, strict=True)]
  np.testing.assert_allclose(both[1:], np.quantile(means, [0.025, 0.975]))
  np.testing.assert_allclose(
      deviations(outputs, 0, 0)[0],
      np.exp(np.log(outputs.std(1).mean(-1)).mean(0)))


def test_an_interval_covers_as_often_as_it_says():
  rng = np.random.default_rng(0)
  covered = 0
  for i in range(100):
    outputs = rng.normal(size=(60, 3, 8)) * np.array([4, 2, 1])[:, None]
    found = slope([1, 4, 16], outputs, num_resamples=200, seed=i)
    covered += found.low < -0.5 < found.high
  assert 88 <= covered <= 100


def test_intervals_tell_of_other_last_tokens():
  # Each token has a slope of its own, the same in all sequences.
  drawn = np.random.default_rng(0).normal(size=(40, 1, 4))
  lengths, slopes = np.array([4, 16, 64]), np.linspace(-1, 0, 6)
  outputs = np.stack([drawn * lengths[:, None] ** x for x in slopes])
  found = slope(lengths, outputs)
  np.testing.assert_allclose(found.slope, -0.5)
  reach = 1.96 * slopes.std() / 6**0.5
  np.testing.assert_allclose(found[1:], [-0.5 - reach, -0.5 + reach], atol=0.04)
  one = slope(lengths, outputs[:1])
  np.testing.assert_allclose(one, slope(lengths, outputs[0]))
  np.testing.assert_allclose(one, [-1] * 3)


def test_no_spread_has_no_slope():
  outputs = np.ones((5, 2, 3))
  assert np.isnan(slope([1, 2], outputs, num_resamples=3)).all()
  # Samples without the last token that has none have a spread.
  other = np.random.default_rng(0).normal(size=(5, 2, 3))
  found = deviations(np.stack([outputs, other]), 30, 0)
  without = np.random.default_rng([0, 1]).multinomial(2, [1 / 2] * 2, 30)[:, 0] == 0
  assert found[0].tolist() == [0, 0] and 0 < without.sum() < 30
  np.testing.assert_array_equal((found[1:] > 0).all(1), without)
  np.testing.assert_allclose(found[1:][without], deviations(other, 30, 0)[1:][without])


def test_what_it_refuses():
  sequences = np.zeros((3, 6), int)
  for lengths in ([0], [7], [2, 9], []):
    with pytest.raises(ValueError, match=r'lengths must be in 1..6'):
      spread_by_length(_means, sequences, lengths)
  with pytest.raises(ValueError, match=r'sequences must be \[S, n\]: \(6,\)'):
    spread_by_length(_means, sequences[0], [2])
  with pytest.raises(ValueError, match=r'outputs must be \[S, 2, D\]: \(3, 3, 4\)'):
    slope([1, 2], np.zeros((3, 3, 4)))
  for lengths, count in (([5, 5], 3), ([5, 6], 1)):
    with pytest.raises(ValueError, match='a slope needs two lengths and two sequences'):
      slope(lengths, np.zeros((count, 2, 4)))


@pytest.fixture(scope='module')
def stories():
  if 'VVLEN_SHARED' not in os.environ:
    pytest.skip(NEEDS_REFERENCE)
  shared = pathlib.Path(os.environ['VVLEN_SHARED'])
  reference = shared / 'reference' / 'stories260K'
  curves = json.loads(reference.with_suffix('.json').read_text())['std']['curves']
  arrays = np.load(reference.with_suffix('.npz'))
  return *load_checkpoint(shared / 'data' / 'stories260K'), arrays, curves


@pytest.mark.parametrize('curve, interval', mostly_slow([
    ('iid_norope', None), ('iid_rope', None), ('text_rope', (-0.026, -0.008))]))
def test_the_curves_of_a_real_model_are_those_of_the_reference(
    stories, curve, interval):
  model, variables, arrays, curves = stories
  expected = curves[curve]
  if curve == 'iid_norope':
    model = model.clone(rope=None)
  sequences = arrays[f'std_ids_{curve.split("_")[0]}'].astype(int)
  lengths = arrays['std_lengths'].tolist()
  outputs = spread_by_length(probe_layer(model, variables, 0), sequences, lengths)
  np.testing.assert_allclose(outputs, arrays[f'std_output_{curve}'], atol=1e-4)
  deviation = outputs.std(axis=0)
  for component, values in expected['std_ddof0'].items():
    if component.isdigit():
      np.testing.assert_allclose(deviation[:, int(component)], values, rtol=1e-4)
  found = slope(lengths, outputs)
  np.testing.assert_allclose(
      found.slope, expected['loglog_slope_avg_8_to_512'], atol=1e-5)
  assert found.low < found.slope < found.high
  if interval:
    np.testing.assert_allclose(found[1:], interval, atol=2e-3)


def _slopes_by_hand(variables, sequences, lengths, last_tokens):
  """Slopes of the first layer without positions, in float64, by counting tokens."""
  params = jax.tree.map(lambda x: np.asarray(x, float), variables['params'])
  own, table = params['layer_0'], params['embedding']
  z = table / np.sqrt((table**2).mean(-1, keepdims=True) + 1e-5)
  z = z * own['attention_norm']['scale']
  queries, keys, values = (
      (z @ own[name]['kernel']).reshape(512, -1, 8) for name in (
          'query', 'key', 'value'))
  slopes = []
  for last in last_tokens:
    deviations = []
    for n in lengths:
      counts = np.stack([np.bincount(x[: n - 1], minlength=512) for x in sequences])
      counts[:, last] += 1
      heads = []
      for head in range(8):
        weight = np.exp(keys[:, head // 2] @ queries[last, head] / np.sqrt(8))
        mixed = counts @ (weight[:, None] * values[:, head // 2])
        heads.append(mixed / (counts @ weight)[:, None])
      deviations.append(np.concatenate(heads, axis=1).std(0).mean())
    slopes.append(np.polyfit(np.log(lengths), np.log(deviations), 1)[0])
  return slopes


@pytest.mark.slow
def test_the_slope_of_a_query_held_fixed_is_that_by_hand(stories):
  model, variables, arrays, _ = stories
  sequences, lengths = arrays['std_ids_iid'].astype(int)[:60], [8, 32, 128]
  probe = probe_layer(model.clone(rope=None), variables, 0)
  for token in (7, 420):
    outputs = spread_by_length(probe, sequences, lengths, token)
    expected, = _slopes_by_hand(variables, sequences, lengths, [token])
    np.testing.assert_allclose(
        slope(lengths, outputs, num_resamples=0).slope, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.optimized
def test_the_mean_slope_of_queries_held_fixed_is_that_of_the_reference(stories):
  model, variables, arrays, _ = stories
  sequences = arrays['std_ids_iid'].astype(int)
  lengths = arrays['std_lengths'].tolist()
  tokens = sequences[:30, -1].tolist()
  slopes = _slopes_by_hand(variables, sequences, lengths, tokens)
  assert abs(np.mean(slopes) + 0.42) < 0.01
  assert -0.52 < min(slopes) and max(slopes) < -0.31
  # The library's, for every sixth of these tokens.
  probe = probe_layer(model.clone(rope=None), variables, 0)
  found = [
      slope(lengths, spread_by_length(probe, sequences, lengths, token),
            num_resamples=0).slope for token in tokens[::6]]
  np.testing.assert_allclose(found, slopes[::6], atol=1e-5)
