"""Correlations over few items, against scipy, regressions and a plain loop."""

import numpy as np
import pytest
from scipy import stats

from vvlen import statistics


def _residuals(y, z):
  design = np.stack([np.ones_like(z), z], axis=1)
  return y - design @ np.linalg.lstsq(design, y, rcond=None)[0]


def test_correlations_are_scipys_along_the_last_axis(rng):
  x = rng.integers(0, 4, size=(5, 9)).astype(float)  # with ties
  y = x + rng.normal(size=(5, 9))
  for own, scipys in ((statistics.pearson, stats.pearsonr),
                      (statistics.spearman, stats.spearmanr)):
    expected = [scipys(*pair).statistic for pair in zip(x, y, strict=True)]
    np.testing.assert_allclose(own(x, y), expected, rtol=1e-12)
    np.testing.assert_allclose(own(x[0], y[0]), expected[0], rtol=1e-12)
    np.testing.assert_array_equal(own(x, y), own(y, x))


def test_a_partial_correlation_is_that_of_residuals(rng):
  z = rng.normal(size=11)
  x, y = z + rng.normal(size=11), rng.normal(size=11) - 2 * z
  expected = stats.pearsonr(_residuals(x, z), _residuals(y, z)).statistic
  assert statistics.partial(x, y, z) == pytest.approx(expected, rel=1e-12)
  assert abs(expected - statistics.pearson(x, y)) > 0.1
  several = statistics.partial(*(np.stack([a, a[::-1]]) for a in (x, y, z)))
  np.testing.assert_allclose(several, [expected, expected], rtol=1e-12)


def test_what_does_not_vary_or_is_determined_has_no_correlation():
  rising, same = [0.1, 0.2, 0.7], [0.1, 0.1, 0.1]
  assert np.isnan(statistics.pearson(rising, same))
  assert np.isnan(statistics.spearman(same, rising))
  assert statistics.pearson(rising, rising) == 1
  other = [3.0, 1.0, 2.0]
  assert np.isnan(statistics.partial(rising, other, rising))
  assert np.isnan(statistics.partial(other, rising, np.array(rising) * -7 + 0.3))
  assert np.isnan(statistics.partial(rising, other, same))


def test_an_interval_is_that_of_a_plain_loop(rng):
  x, y = rng.normal(size=(2, 7))
  found = statistics.bootstrap(statistics.pearson, x, y, num_resamples=300, seed=5)
  draws, values = np.random.default_rng(5), []
  for places in draws.integers(7, size=(300, 7)):
    values.append(stats.pearsonr(x[places], y[places]).statistic)
  assert found.value == pytest.approx(stats.pearsonr(x, y).statistic)
  np.testing.assert_allclose(found[1:], np.percentile(values, [2.5, 97.5]), rtol=1e-9)


def test_a_difference_of_correlations_has_a_paired_interval(rng):
  x, y, noise = rng.normal(size=(3, 12))
  z = x + 1e-3 * noise  # nearly the same predictor
  difference = lambda a, b, c: statistics.pearson(a, c) - statistics.pearson(b, c)
  paired = statistics.bootstrap(difference, x, z, y, num_resamples=400, seed=0)
  single = statistics.bootstrap(statistics.pearson, x, y, num_resamples=400, seed=0)
  assert paired.ci_high - paired.ci_low < (single.ci_high - single.ci_low) / 50


def test_undefined_resamples_are_left_out_unless_they_are_many(rng):
  y = rng.normal(size=7)
  few = statistics.bootstrap(  # all seven alike in (6/7)^7 = 34 % of the resamples
      statistics.pearson, [0, 0, 0, 0, 0, 0, 1], y, num_resamples=500, seed=0)
  assert np.isfinite(few.value) and np.isnan(few[1:]).all()
  more = statistics.bootstrap(  # (4/7)^7 + (3/7)^7 = 2 %
      statistics.pearson, [0, 0, 0, 0, 1, 1, 1], y, num_resamples=500, seed=0)
  assert np.isfinite(more).all()
  none = statistics.bootstrap(
      statistics.pearson, [0] * 7, y, num_resamples=100, seed=0)
  assert np.isnan(none).all()


@pytest.mark.parametrize('items', [([1, 2], [1, 2, 3]), ([], []), ([[1, 2]], [[1, 2]])])
def test_items_that_do_not_belong_together_are_refused(items):
  with pytest.raises(ValueError, match='one shape'):
    statistics.bootstrap(statistics.pearson, *items, num_resamples=100, seed=0)


@pytest.mark.parametrize('count, covers', [(14, 0.91), (7, 0.89)])
def test_how_often_intervals_cover_is_what_is_said(rng, count, covers):
  covered = 0
  for i in range(800):
    x, noise = rng.normal(size=(2, count))
    found = statistics.bootstrap(statistics.pearson, x, 0.7 * x + 0.51**0.5 * noise,
                                 num_resamples=400, seed=i)
    covered += found.ci_low <= 0.7 <= found.ci_high
  assert abs(covered / 800 - covers) < 0.03  # three standard errors
