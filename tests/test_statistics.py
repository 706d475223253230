"""The paired test, Holm's correction and the smallest detectable effect."""

import numpy as np
import pytest
from scipy import stats

from vvlen import statistics
from vvlen.statistics import resamples, student


def test_paired_t_test_is_scipys():
  rng = np.random.default_rng(0)
  treated, control = rng.normal((0.3, 0.0), 1.0, (23, 2)).T
  expected = stats.ttest_rel(treated, control)
  interval = expected.confidence_interval(0.95)
  actual = statistics.paired_t_test(treated, control)
  difference = treated - control
  np.testing.assert_allclose(
      actual,
      [difference.mean(), interval.low, interval.high,
       difference.mean() / difference.std(ddof=1), expected.statistic,
       expected.pvalue, 23],
      rtol=1e-12,
  )


def test_hand_worked_pairs():
  # Differences 1, 1, 1.5: mean 7/6, sd 1/√12, t = 7/6 · √3 · √12 = 7.
  actual = statistics.paired_t_test([1.0, 2.0, 3.5], [0.0, 1.0, 2.0])
  np.testing.assert_allclose(
      [actual.mean_difference, actual.t, actual.effect_size],
      [7 / 6, 7.0, 7 / np.sqrt(3)],
  )


@pytest.mark.parametrize('treated, control', [
    ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
    ([0.9, 0.8, 0.7], [0.8, 0.7, 0.6]),  # differ in their last bits
    ([90.3, 50.3, 6.3], [90.0, 50.0, 6.0]),
])
def test_equal_differences_are_undefined_and_not_certain(treated, control):
  actual = statistics.paired_t_test(treated, control)
  assert actual.mean_difference == pytest.approx(treated[0] - control[0])
  assert np.isnan([actual.t, actual.p, actual.ci_low, actual.effect_size]).all()
  assert actual.num_pairs == 3


@pytest.mark.parametrize('treated, control, words', [
    ([1.0], [2.0], 'at least two pairs: 1'),
    ([1.0, 2.0], [1.0, 2.0, 3.0], r'\(2,\) and \(3,\)'),
    ([[1.0, 2.0]], [[1.0, 2.0]], r'\(1, 2\)'),
    ([1.0, np.nan, 3.0], [1.0, 2.0, np.inf], r'\[1, 2\]'),
])
def test_pairs_that_cannot_be_tested(treated, control, words):
  with pytest.raises(ValueError, match=words):
    statistics.paired_t_test(treated, control)


def test_holm_hand_worked():
  # Sorted .01 .02 .03 .04, times 4 3 2 1: .04 .06 .06 .04, made monotone.
  actual = statistics.holm([0.03, 0.01, np.nan, 0.04, 0.02])
  np.testing.assert_allclose(actual, [0.06, 0.04, np.nan, 0.06, 0.06])


def test_intervals_at_the_levels_of_holm_agree_with_its_p():
  p = [0.03, 0.01, np.nan, 0.011, 0.5]
  # 4 · .01 < .05, 3 · .011 < .05, 2 · .03 not: there it ends.
  np.testing.assert_allclose(
      statistics.holm_levels(p), [0.025, 0.0125, np.nan, 0.05 / 3, 0.025])
  rng = np.random.default_rng(0)
  for _ in range(200):
    tests = [statistics.paired_t_test(rng.normal(m, 1, 6), np.zeros(6))
             for m in (0, 0.5, 1, 1.5, 2)]
    p = [test.p for test in tests]
    found = statistics.by_holm(tests)
    for test, wide, own, level in zip(
        tests, found, statistics.holm(p), statistics.holm_levels(p), strict=True):
      assert wide == statistics.at_level(test, level)._replace(p=own)
      assert (own < 0.05) == (wide.ci_low > 0 or wide.ci_high < 0)
  # What is undefined is not counted, and stays as it is.
  undefined = statistics.paired_t_test([1.0, 2.0], [0.0, 1.0])
  more = statistics.by_holm([undefined, *tests, None])
  assert more[1:-1] == found and more[0] is undefined and more[-1] is None


def test_holm_never_exceeds_one_and_keeps_a_single_test():
  np.testing.assert_allclose(statistics.holm([0.7, 0.9]), [1.0, 1.0])
  np.testing.assert_allclose(statistics.holm([0.04]), [0.04])
  assert statistics.holm([]).shape == (0,)
  for outside in (1.5, -0.5):
    with pytest.raises(ValueError, match='0, 1'):
      statistics.holm([outside])
  with pytest.raises(ValueError, match=r'\(1, 2\)'):
    statistics.holm([[0.1, 0.2]])


@pytest.mark.parametrize('num_pairs', [2, 3, 8, 32, 100])
def test_smallest_detectable_is_found_four_times_in_five(num_pairs):
  difference = statistics.smallest_detectable(1.0, num_pairs)
  noise = np.random.default_rng(1).normal(difference, 1.0, (40_000, num_pairs))
  found = stats.ttest_1samp(noise, 0.0, axis=1).pvalue < 0.05
  # Standard error .002.
  assert found.mean() == pytest.approx(0.8, abs=0.01)


def test_students_t_is_that_of_scipy_stats():
  for freedom in (1, 2, 7, 31):
    q, x = np.array([0.025, 0.5, 0.9, 0.999]), np.array([-3.0, 0.0, 1.7, 40.0])
    np.testing.assert_array_equal(
        student.quantile(q, freedom), stats.t.ppf(q, freedom))
    for t in x:
      assert student.tail(t, freedom) == stats.t.sf(t, freedom)
      for center in (-60.0, -20.0, -1.0, 0.3, 12.0, 55.0):
        assert student.tail(t, freedom, center) == pytest.approx(
            stats.nct.sf(t, freedom, center), rel=1e-9, abs=1e-15), (t, center)


@pytest.mark.parametrize('power, alpha', [(0.8, 0.01), (0.06, 0.05)])
def test_smallest_detectable_follows_power_and_level(power, alpha):
  # At a power near the level, the wrong tail has its share.
  difference = statistics.smallest_detectable(2.0, 10, power, alpha)
  center, critical = difference * 10**0.5 / 2.0, stats.t.ppf(1 - alpha / 2, 9)
  found = stats.nct.sf(critical, 9, center) + stats.nct.cdf(-critical, 9, center)
  assert found == pytest.approx(power, rel=1e-6)


def test_smallest_detectable_needs_two_pairs():
  with pytest.raises(ValueError, match='at least two pairs: 1'):
    statistics.smallest_detectable(1.0, 1)


def test_what_a_test_could_have_missed_follows_from_the_test():
  difference = np.random.default_rng(3).normal(0.3, 2.0, 12)
  test = statistics.paired_t_test(difference, np.zeros(12))
  for alpha in (0.05, 0.01):
    assert statistics.detectable(test, alpha) == pytest.approx(
        statistics.smallest_detectable(difference.std(ddof=1), 12, alpha=alpha))
  assert np.isnan(statistics.detectable(None))
  assert np.isnan(statistics.detectable(statistics.paired_t_test([1, 1], [0, 0])))


def test_what_tests_of_a_family_could_miss_is_of_its_level():
  noise = np.random.default_rng(4).normal(0.5, 1.0, (3, 9))
  tests = [statistics.paired_t_test(x, np.zeros(9)) for x in noise]
  found = statistics.detectable_together([tests[0], None, *tests[1:]])
  assert np.isnan(found[1])
  np.testing.assert_allclose(
      np.delete(found, 1),
      [statistics.smallest_detectable(x.std(ddof=1), 9, alpha=0.05 / 3) for x in noise])


def test_smallest_detectable_of_the_specification():
  # "32 seeds see about 3 points at 80 % power" is for a spread of 6 points.
  assert statistics.smallest_detectable(6.0, 32) == pytest.approx(3.07, abs=0.01)


def test_a_difference_at_equal_accuracy_is_the_intercept_of_least_squares():
  rng = np.random.default_rng(5)
  before = rng.normal(2.0, 3.0, 20)
  after = 0.4 + 0.7 * before + rng.normal(0, 0.5, 20)
  found = statistics.adjusted_test(after, before)
  design = np.stack([np.ones(20), before], axis=1)
  solution, [squares], _, _ = np.linalg.lstsq(design, after)
  error = np.sqrt(squares / 18 * np.linalg.inv(design.T @ design)[0, 0])
  expected = stats.t(18, solution[0], error)
  np.testing.assert_allclose(
      (found.mean_difference, found.ci_low, found.ci_high),
      (solution[0], *expected.interval(0.95)))
  assert found.p == pytest.approx(2 * stats.t(18).sf(solution[0] / error))
  assert found.num_pairs == 20
  # To halve all differences does nothing to one arm more than to the other.
  halved = statistics.adjusted_test(before / 2, before)
  assert halved.mean_difference == pytest.approx(0, abs=1e-12)
  assert statistics.adjusted_test([1, 2, 3], [1, 2, 4]) is None
  assert statistics.adjusted_test([1, 2, 3, 4], [1, 1, 1, 1]) is None
  same = statistics.adjusted_test([2, 2, 2, 2], [1, 2, 3, 4])
  assert same.mean_difference == 2 and np.isnan(same.p)


@pytest.mark.parametrize('odd', [np.nan, np.inf])
def test_mean_interval_is_scipys_and_skips_what_is_not_finite(odd):
  values = np.random.default_rng(2).normal(size=(7, 3))
  values[2, 1] = odd
  mean, low, high = statistics.mean_interval(values)
  kept = np.delete(values[:, 1], 2)
  expected = stats.ttest_1samp(kept, 0.0).confidence_interval(0.95)
  np.testing.assert_allclose(
      [mean[1], low[1], high[1]], [kept.mean(), expected.low, expected.high]
  )
  _, low, _ = statistics.mean_interval([[1.0]])
  assert np.isnan(low).all()


def test_rank_correlation_has_an_interval_that_covers():
  rng = np.random.default_rng(0)
  covered = 0
  for _ in range(400):
    x = rng.normal(size=32)
    y = np.exp(x + rng.normal(size=32))  # monotone: ranks alone matter
    found = statistics.rank_correlation(x, y)
    assert found.rank == pytest.approx(stats.spearmanr(x, y).statistic)
    # Of normal pairs with correlation r, Spearman's is 6 / pi asin(r / 2).
    covered += found.ci_low <= 6 / np.pi * np.arcsin(0.5**0.5 / 2) <= found.ci_high
  assert 0.92 < covered / 400 < 0.98
  nothing = statistics.rank_correlation([1, 2, 3, np.nan, 4], [1, 2, 3, 4, np.nan])
  assert np.isnan(nothing).all()  # three pairs
  assert np.isnan(statistics.rank_correlation([1, 1, 1, 1, 1], range(5))).all()
  assert statistics.rank_correlation(range(5), range(5)) == pytest.approx((1, 1, 1))


def test_each_item_is_as_often_in_samples_as_another():
  places = resamples.places(7, 5000, seed=2)
  counted = np.stack([np.bincount(x, minlength=7) for x in places])
  for counts in (counted, resamples.counts(7, 5000, seed=2)):
    assert counts.shape == (5001, 7) and (counts.sum(1) == 7).all()
    assert (counts[0] == 1).all()  # the items themselves
    # Binomial, of 7 draws with probability 1/7.
    np.testing.assert_allclose(counts[1:].mean(0), 1, atol=0.06)
    np.testing.assert_allclose(counts[1:].var(0), 6 / 7, atol=0.1)


def test_means_of_samples_are_of_the_same_draws():
  values, weights = [1.0, 5, 2, 9], [1, 0, 3, 2]
  found = statistics.resampled_means(values, weights, 200, seed=3)
  drawn = np.random.default_rng(3).multinomial(4, [1 / 4] * 4, 200)
  expected = [np.average(np.repeat(values, x), weights=np.repeat(weights, x))
              if np.repeat(weights, x).any() else np.nan for x in drawn]
  np.testing.assert_allclose(found, [25 / 6, *expected])
  assert np.isnan(found).any()
  # What two things differ by in all values, they differ by in all samples.
  other = statistics.resampled_means(np.add(values, 0.5), weights, 200, seed=3)
  np.testing.assert_allclose(other - found, np.where(np.isnan(found), np.nan, 0.5))


def test_pairs_are_the_seeds_with_finite_values_in_both_arms():
  treated = {0: 1.0, 1: 3.0, 2: np.nan, 3: 7.0, 5: 2.0}
  control = {3: 1.0, 0: 0.5, 2: 1.0, 5: np.inf, 1: 1.5}
  found = statistics.paired_by_seed(treated, control)
  assert found == statistics.paired_t_test([1.0, 3.0, 7.0], [0.5, 1.5, 1.0])
  assert statistics.paired_by_seed({0: 1.0, 2: np.nan}, control) is None


def test_a_percentile_interval_may_leave_out_samples_that_are_nan():
  drawn = np.random.default_rng(0).normal(size=(50, 3))
  ends = np.quantile(drawn, (0.025, 0.975), axis=0)
  np.testing.assert_array_equal(statistics.percentile_interval(drawn), ends)
  drawn[7, 1] = np.nan
  assert np.isnan(statistics.percentile_interval(drawn)[:, 1]).all()
  ends[:, 1] = np.quantile(np.delete(drawn[:, 1], 7), (0.025, 0.975))
  np.testing.assert_array_equal(
      statistics.percentile_interval(drawn, skip_nan=True), ends)


def test_intervals_of_percentiles_cover_less_where_values_are_few():
  rng = np.random.default_rng(0)
  inside = []
  for i in range(400):
    _, *means = statistics.resampled_means(rng.normal(size=8), np.ones(8), 300, i)
    low, high = np.quantile(means, (0.025, 0.975))
    inside.append(low < 0 < high)
  covered = statistics.percentiles_cover(8)
  assert 0.88 < covered < 0.9 < statistics.percentiles_cover(80) < 0.95
  np.testing.assert_allclose(np.mean(inside), covered, atol=0.04)
