"""The least inverse temperature that keeps a weight on a key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special, stats

from vvlen.evaluation.temperature_law import (
    critical_temperature,
    exponents,
    powers_of,
)


def _weight(logits, target, beta):
  return special.softmax(beta * np.asarray(logits, np.float64))[target]


@pytest.mark.parametrize('n', [2, 3, 17, 1000])
@pytest.mark.parametrize('weight', [0.1, 0.5, 0.9])
def test_equal_gaps_need_the_logarithm_of_the_number_of_keys(n, weight):
  logits = np.zeros(n)
  logits[n // 2] = 0.25
  # 1 / (1 + (n − 1) exp(−β Δ)) = w
  expected = max(np.log((n - 1) * weight / (1 - weight)), 0.0) / 0.25
  found = critical_temperature(logits, weight=weight)
  np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-5)


@pytest.mark.slow
def test_a_top_of_uniform_priorities_needs_the_number_of_keys(key):
  mean = {n: np.median(critical_temperature(jax.random.uniform(key, (500, n))))
          for n in (16, 256, 4096)}
  slopes = [np.log(mean[16 * n] / mean[n]) / np.log(16) for n in (16, 256)]
  np.testing.assert_allclose(slopes, 1.0, atol=0.1)


def _match_among_gaussians(key, n, match, deviation):
  """Returns the median β that a match needs, of 200 rows of n − 1 Gaussians."""
  logits = deviation * jax.random.normal(key, (200, n))
  targets = jnp.zeros(200, int)
  return np.median(critical_temperature(logits.at[:, 0].set(match), targets))


@pytest.mark.parametrize('n', [16, 256, 2048])
def test_one_match_among_gaussians_needs_the_logarithm_while_it_leads_by_far(key, n):
  found = _match_among_gaussians(key, n, 1.0, 1 / 8)
  root = np.sqrt(1 - 2 * np.log(n - 1) / 64)
  np.testing.assert_allclose(found, 64 * (1 - root), rtol=0.01)
  assert 0.98 < found / np.log(n) < 1.1
  # Where the variance falls as 1 / log n, the ratio to log n is the same at all n.
  even = _match_among_gaussians(key, n, 1.0, 0.5 / np.log(n - 1) ** 0.5)
  np.testing.assert_allclose(even / np.log(n - 1), 4 - 8**0.5, rtol=0.05)


def test_one_match_among_gaussians_may_need_other_laws(key):
  # A match at 1.5 times the largest of n Gaussians: the square root of log n.
  for n in (256, 2048):
    root = np.sqrt(2 * np.log(n))
    found = _match_among_gaussians(key, n, 1.5 * root, 1.0)
    np.testing.assert_allclose(found, (1.5 - 1.25**0.5) * root, rtol=0.02)
  # A match that does not lead more, the more there are: none, once they exceed it.
  assert _match_among_gaussians(key, 4, 1.0, 0.5) < 10
  assert _match_among_gaussians(key, 2048, 1.0, 0.5) == np.inf


def test_a_top_of_gaussians_needs_less_than_the_logarithm(key):
  beta = {n: np.median(critical_temperature(jax.random.normal(key, (1000, n))))
          for n in (16, 128, 1024)}
  first, second, third = (found / np.log(n) for n, found in beta.items())
  assert 0.95 * first > second and 0.95 * second > third > 0.65
  # As the level that one of n Gaussians exceeds, which tends to √(2 log n).
  b = optimize.brentq(lambda b: b * np.sin(np.pi / b) / np.pi - 0.5, 1.1, 5)
  assert b == pytest.approx(1.66, abs=0.005)
  np.testing.assert_allclose(beta[1024], b * stats.norm.isf(1 / 1024), rtol=0.03)
  assert 1.15 < b * np.sqrt(2 * np.log(1024)) / beta[1024] < 1.25


@pytest.mark.parametrize('weight', [0.3, 0.5, 0.8])
def test_it_is_the_first_root_of_the_weight(weight):
  rng = np.random.default_rng(3)
  logits = rng.normal(size=(60, 6)) * rng.choice([0.1, 1.0, 10.0], (60, 1))
  targets = rng.integers(6, size=60)
  with jax.enable_x64(True):
    found = np.asarray(critical_temperature(logits, targets, weight))
  assert found.dtype == np.float64
  grid = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 4000)])
  roots = []
  for z, target, beta in zip(logits, targets, found, strict=True):
    reached = special.softmax(grid[:, None] * z, axis=1)[:, target] >= weight
    if not reached.any():
      # A narrow top of the weight may lie between two points of the grid.
      assert np.isinf(beta) or _weight(z, target, beta) >= weight - 1e-9
      continue
    first = int(reached.argmax())
    roots.append(optimize.brentq(
        lambda b, z=z, t=target: _weight(z, t, b) - weight, *grid[first - 1:first + 1]))
    np.testing.assert_allclose(beta, roots[-1], rtol=1e-6)
  assert 5 < len(roots) < 55


def test_a_key_that_is_not_the_largest_may_have_its_weight_for_a_while():
  # Two keys far below, one a little above: the weight rises, then falls.
  logits, target = np.array([1.0, 0.9, -9.0, -9.0]), np.array(1)
  found = critical_temperature(logits, target, 0.45)
  assert 0 < float(found) < 1
  assert _weight(logits, 1, float(found)) == pytest.approx(0.45, abs=1e-6)
  assert _weight(logits, 1, 10.0) < 0.45
  assert critical_temperature(logits, target, 0.5) == jnp.inf


@pytest.mark.parametrize('logits, target, weight, expected', [
    ([7.0], 0, 0.99, 0.0),  # the only key
    ([1.0, 1.0], 0, 0.5, 0.0),  # one of two, without any logits
    ([1.0, 1.0], 0, 0.51, np.inf),
    ([1.0, 1.0, 0.0], 0, 0.5, np.inf),  # approached, but not reached
    ([1.0, 1.0, 0.0], 0, 0.4, np.log(2.0)),  # 2 e^β / (2 e^β + 1) = 0.8
    ([0.0, 1.0], 0, 0.5, 0.0),
    ([0.0, 1.0], 0, 0.6, np.inf),
    ([0.0, 0.0, 1.0], 0, 0.5, np.inf),
])
def test_few_keys_and_ties(logits, target, weight, expected):
  found = critical_temperature(np.array(logits), np.array(target), weight)
  assert found == pytest.approx(expected, rel=1e-5)


def test_masked_keys_do_not_count(key):
  logits = jax.random.normal(key, (5, 3, 8))
  mask = jnp.arange(8) < 5
  expected = critical_temperature(logits[..., :5])
  wild = jnp.where(mask, logits, jnp.nan)
  np.testing.assert_array_equal(critical_temperature(wild, mask=mask), expected)
  jitted = jax.jit(lambda z: critical_temperature(z, mask=mask))
  np.testing.assert_allclose(jitted(wild), expected, rtol=1e-6)
  one = jax.vmap(jax.vmap(lambda z: critical_temperature(z, mask=mask)))(wild)
  np.testing.assert_allclose(one, expected, rtol=1e-6)
  low = critical_temperature(logits.astype(jnp.bfloat16))
  assert low.dtype == jnp.float32 and low.shape == (5, 3)


@pytest.mark.parametrize('arguments, says', [
    ((np.ones((2, 3), int),), 'logits must be real'),
    ((np.ones(()),), 'logits must be real'),
    ((np.ones((2, 0)),), 'logits must be real'),
    ((np.ones((2, 3)), np.array([0])), 'target must be integers'),
    ((np.ones((2, 3)), np.array([0.0, 1.0])), 'target must be integers'),
    ((np.ones((2, 3)), np.array([0, 3])), r'no key in 0\.\.2'),
    ((np.ones((2, 3)), None, 0.0), 'between 0 and 1: 0'),
    ((np.ones((2, 3)), None, np.nan), 'between 0 and 1: nan'),
    ((np.ones((2, 3)), None, 0.5, np.ones((2, 3))), 'mask must be bool'),
    ((np.ones((2, 3)), None, 0.5, np.ones((2, 1, 3), bool)), 'mask must be bool'),
    ((np.ones((1, 3)), np.array([0]), 0.5, np.array([False, True, True])), 'masked'),
    ((np.array([1.0, np.nan]),), 'not finite'),
])
def test_what_does_not_fit_is_refused(arguments, says):
  with pytest.raises(ValueError, match=says):
    critical_temperature(*arguments)


# The law.


def test_exponents_of_exact_laws_are_found():
  lengths = [8, 16, 64, 512]
  rng = np.random.default_rng(0)
  own = rng.lognormal(size=(21, 1))  # a factor of each sequence changes no slope
  n = np.array(lengths, float)
  of_n, of_log_n = exponents(lengths, own * n**0.7)
  np.testing.assert_allclose(of_n, 0.7, rtol=1e-12)
  assert of_log_n[0] > 1
  of_n, of_log_n = exponents(lengths, own * np.log(n) ** -1.3)
  np.testing.assert_allclose(of_log_n, -1.3, rtol=1e-12)
  assert -1 < of_n[0] < 0
  # Of two models: p and q of each.
  found = powers_of(lengths, [own * n**0.7, own * np.log(n) ** -1.3])
  assert found.shape == (2, 2)
  np.testing.assert_allclose([found[0, 0], found[1, 1]], [0.7, -1.3], rtol=1e-12)


def test_exponents_are_slopes_of_medians_with_a_bootstrap_over_sequences():
  lengths, rng = [4, 8, 16, 32], np.random.default_rng(1)
  beta = rng.lognormal(size=(30, 4)) * np.array(lengths) ** 0.5
  slope = lambda table, x: stats.linregress(x, np.log(np.median(table, axis=0))).slope
  drawn = np.random.default_rng(7).integers(30, size=(200, 30))
  x = np.log(lengths)
  for found, axis in zip(exponents(lengths, beta, 200, 7), (x, np.log(x)), strict=True):
    others = [slope(beta[rows], axis) for rows in drawn]
    np.testing.assert_allclose(
        found, [slope(beta, axis), *np.quantile(others, (0.025, 0.975))], rtol=1e-9)
  assert np.isnan(exponents(lengths, beta, 0).of_n[1:]).all()


def test_lengths_whose_median_has_no_logarithm_are_left_out():
  lengths, beta = [2, 8, 32, 128], np.array([[0.0, 1.0, 2.0, 4.0]] * 3)
  expected = exponents(lengths[1:], beta[:, 1:])
  np.testing.assert_array_equal(exponents(lengths, beta), expected)
  np.testing.assert_allclose(expected.of_n, 0.5, rtol=1e-12)
  beta[:2, 3] = np.inf  # of two of three sequences
  np.testing.assert_array_equal(
      exponents(lengths, beta), exponents([8, 32], beta[:, 1:3]))
  beta[:2, 2] = np.inf
  assert np.isnan(exponents(lengths, beta)).all()


def test_there_is_no_interval_where_medians_of_many_samples_are_unknown():
  lengths, rng = [8, 16, 32], np.random.default_rng(0)
  beta = rng.lognormal(size=(25, 3)) * np.array(lengths)
  beta[:12, 2] = np.inf  # of fewer than half, so the median is finite
  found = exponents(lengths, beta)
  for slope in found:
    assert np.isfinite(slope[0]) and np.isnan(slope[1:]).all()
  beta[:12, 2], beta[:2, 2] = 1e3, np.inf  # the median of no sample is infinite
  assert np.isfinite(exponents(lengths, beta)).all()


@pytest.mark.parametrize('lengths, shape, words', [
    ([2, 4], (3, 3), r'must be \[S, 2\]: \(3, 3\)'),
    ([2, 4], (2,), r'must be \[S, 2\]: \(2,\)'),
    ([2, 4], (0, 2), r'must be \[S, 2\]: \(0, 2\)'),
    ([1, 4], (3, 2), r'must be at least 2, .*\[1, 4\]'),
    ([4, 4], (3, 2), r'each once: \[4, 4\]'),
])
def test_what_has_no_exponent_is_refused(lengths, shape, words):
  with pytest.raises(ValueError, match=words):
    exponents(lengths, np.ones(shape))
