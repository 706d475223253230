"""Paired comparison of two arms that share their seeds, and a bootstrap."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats


class PairedTest(NamedTuple):
  """A test of whether treated − control has mean zero."""

  mean_difference: float
  ci_low: float  # 95 % interval of the mean difference
  ci_high: float
  effect_size: float  # mean / standard deviation of the differences
  t: float
  p: float  # two-sided
  num_pairs: int


def paired_t_test(treated: ArrayLike, control: ArrayLike) -> PairedTest:
  """Tests whether treated − control has mean zero, pairing by position.

    t = mean(D) √S / sd(D),  S − 1 degrees of freedom

  If all differences are equal up to rounding, as when both arms are right on every
  seed, t is undefined. Everything but their mean and number is then nan, so that a
  table shows a gap and not a certainty.

  Args:
    treated: [S].
    control: [S].

  Returns:
    A `PairedTest`.

  Raises:
    ValueError: if the shapes differ, there are fewer than two pairs, or a value is
      not finite.
  """
  treated, control = np.asarray(treated, float), np.asarray(control, float)
  if treated.ndim != 1 or treated.shape != control.shape:
    raise ValueError(f'need two arrays [S]: {treated.shape} and {control.shape}')
  if treated.size < 2:
    raise ValueError(f'a test needs at least two pairs: {treated.size}')
  difference = treated - control
  if not np.isfinite(difference).all():
    odd = np.flatnonzero(~np.isfinite(difference)).tolist()
    raise ValueError(f'values must be finite; those at {odd} are not')
  num_pairs, mean = difference.size, float(difference.mean())
  rounding = 8 * np.finfo(float).eps * max(np.abs(treated).max(), np.abs(control).max())
  if np.ptp(difference) <= rounding:
    nan = float('nan')
    return PairedTest(mean, nan, nan, nan, nan, nan, num_pairs)
  deviation = float(difference.std(ddof=1))
  error = deviation / num_pairs**0.5
  reach = float(stats.t.ppf(0.975, num_pairs - 1)) * error
  t = mean / error
  return PairedTest(
      mean, mean - reach, mean + reach, mean / deviation, t,
      float(2 * stats.t.sf(abs(t), num_pairs - 1)), num_pairs,
  )


def adjusted_test(after: ArrayLike, before: ArrayLike) -> PairedTest | None:
  """Tests whether a difference is zero after a change where it was zero before.

    D'_s = α + β D_s + ε_s,  t = α̂ / se(α̂),  S − 2 degrees of freedom

  over pairs s, by least squares: an analysis of covariance of differences. If the
  change scales all differences by β, then α measures whether it does more to one arm
  than to the other. Noise in D makes the estimate of β too small.

  Args:
    after: D' [S], treated − control after the change, finite.
    before: D [S], the same before the change.

  Returns:
    α as a `PairedTest`, whose effect size is nan; None if there are fewer than four
    pairs or all D are equal.
  """
  before, after = np.asarray(before, float), np.asarray(after, float)
  if before.size < 4 or np.ptp(before) == 0:
    return None
  fit, freedom = stats.linregress(before, after), before.size - 2
  reach = float(stats.t.ppf(0.975, freedom)) * fit.intercept_stderr
  mean = float(fit.intercept)
  t = mean / fit.intercept_stderr if fit.intercept_stderr else float('nan')
  return PairedTest(mean, mean - reach, mean + reach, float('nan'), t,
                    float(2 * stats.t.sf(abs(t), freedom)), before.size)


def resampled_means(
    values: ArrayLike, weights: ArrayLike, num_resamples: int, seed: int
) -> np.ndarray:
  """Returns weighted means of values and of bootstrap samples of them.

  Which of the S values are drawn depends only on S, R and the seed, so means of
  different values of the same S items can be compared sample by sample.

  Args:
    values: [S].
    weights: [S], not negative.
    num_resamples: R.
    seed: of the samples.

  Returns:
    [1 + R], the mean of all values first; nan where the weights sum to 0.
  """
  weights = np.asarray(weights, float)
  sums, count = np.asarray(values, float) * weights, len(weights)
  drawn = np.random.default_rng(seed).multinomial(
      count, np.full(count, 1 / count), num_resamples
  )
  drawn = np.concatenate([np.ones((1, count), drawn.dtype), drawn])
  with np.errstate(invalid='ignore'):
    return (drawn @ sums) / (drawn @ weights)


def percentiles_cover(count: float) -> float:
  """Returns how often a bootstrap's percentile interval covers the mean of normals.

  For the 95 % interval over `count` values, at least two: ± 1.96 standard errors, whose
  variance is divided by count and not count − 1, which is too narrow for few values.
  """
  return float(2 * stats.t.cdf(1.96 * (1 - 1 / count) ** 0.5, count - 1) - 1)


def holm(p: ArrayLike) -> np.ndarray:
  """Adjusts p-values of a family of tests, by Holm's step-down method.

    p̃_(k) = max over j <= k of min(1, (K − j + 1) p_(j)),  p_(1) <= … <= p_(K)

  Args:
    p: [K]; nan is an undefined test, stays nan and is not counted in K.

  Returns:
    Adjusted p-values [K], in the order of p.

  Raises:
    ValueError: if a p-value lies outside [0, 1].
  """
  p = np.asarray(p, float)
  if p.ndim != 1:
    raise ValueError(f'need p-values [K]: {p.shape}')
  defined = np.flatnonzero(~np.isnan(p))
  if ((p[defined] < 0) | (p[defined] > 1)).any():
    raise ValueError(f'p-values must lie in [0, 1]: {p}')
  order = defined[np.argsort(p[defined], kind='stable')]
  factors = np.arange(order.size, 0, -1)
  adjusted = np.full(p.shape, np.nan)
  adjusted[order] = np.minimum(np.maximum.accumulate(factors * p[order]), 1.0)
  return adjusted


def holm_levels(p: ArrayLike, level: float = 0.05) -> np.ndarray:
  """Returns the level at which Holm's method decides each test.

    level / (K − k + 1)   for the k-th smallest p, up to the first that is not
                          significant, whose level is also that of all larger p

  The interval of a test at its level excludes 0 where its p, adjusted by `holm`, is
  below `level`. These intervals agree with the tests; they are not a confidence region
  for all means together.

  Args:
    p: [K]; nan is an undefined test, stays nan and is not counted in K.
    level: the error rate of all tests together.

  Returns:
    Levels [K], in the order of p.
  """
  p = np.asarray(p, float)
  levels = np.full(p.shape, np.nan)
  order = [i for i in np.argsort(p, kind='stable') if not np.isnan(p[i])]
  own = level / max(len(order), 1)
  for k, i in enumerate(order):
    if k == 0 or p[order[k - 1]] < own:
      own = level / (len(order) - k)
    levels[i] = own
  return levels


def smallest_detectable(
    deviation: float, num_pairs: int, power: float = 0.8, alpha: float = 0.05
) -> float:
  """Returns the mean difference that a paired t-test would have detected.

  A two-sided test at level `alpha` finds this difference significant with probability
  `power`; T is noncentral t with noncentrality difference · √S / sd.

  Args:
    deviation: standard deviation of the differences, not negative.
    num_pairs: S, at least 2.
    power: probability that the test detects the difference.
    alpha: level of the test.

  Returns:
    The difference, in the unit of `deviation`.

  Raises:
    ValueError: if there are fewer than two pairs.
  """
  if num_pairs < 2:
    raise ValueError(f'a test needs at least two pairs: {num_pairs}')
  excess = lambda noncentrality: _found(noncentrality, num_pairs - 1, alpha) - power
  high = 1.0
  while excess(high) < 0:
    high *= 1.5
  noncentrality = optimize.brentq(excess, 0.0, high)
  return float(noncentrality * deviation / num_pairs**0.5)


def power_to_find(
    deviation: float, num_pairs: int, effect: float, alpha: float = 0.05
) -> float:
  """Returns how often a paired t-test would detect a mean difference of this size.

  Args:
    deviation: standard deviation of the differences, positive.
    num_pairs: S, at least 2.
    effect: the mean difference, in the same unit.
    alpha: level of the two-sided test.

  Returns:
    A probability.

  Raises:
    ValueError: if there are fewer than two pairs.
  """
  if num_pairs < 2:
    raise ValueError(f'a test needs at least two pairs: {num_pairs}')
  return _found(effect * num_pairs**0.5 / deviation, num_pairs - 1, alpha)


def _found(noncentrality: float, freedom: int, alpha: float) -> float:
  """Returns the probability that |T| exceeds its critical value, T noncentral t."""
  critical = stats.t.ppf(1 - alpha / 2, freedom)
  found = stats.nct.sf(critical, freedom, noncentrality)
  # P(T < −t_c), by symmetry; scipy's nct.cdf is nan far out in that tail.
  return float(found + stats.nct.sf(critical, freedom, -noncentrality))


def spread(test: PairedTest) -> float:
  """Returns the standard deviation of the differences of a test."""
  reach = stats.t.ppf(0.975, test.num_pairs - 1)
  return float((test.ci_high - test.mean_difference) / reach * test.num_pairs**0.5)


def at_level(test: PairedTest, alpha: float) -> PairedTest:
  """Returns a test with its interval at the level 1 − alpha.

  With alpha = .05 / K, the intervals of K tests cover all their means with a
  probability of at least 95 % (Bonferroni), and an interval excludes 0 where K p < .05.
  """
  error = spread(test) / test.num_pairs**0.5
  reach = float(stats.t.ppf(1 - alpha / 2, test.num_pairs - 1)) * error
  mean = test.mean_difference
  return test._replace(ci_low=mean - reach, ci_high=mean + reach)


class Ratio(NamedTuple):
  """A ratio and its 95 % interval."""

  ratio: float
  ci_low: float
  ci_high: float


def deviation_ratio(x: ArrayLike, y: ArrayLike) -> Ratio:
  """Returns sd(x) / sd(y) of paired values, with Pitman's interval.

    (sd_x / sd_y)² · (K ± √(K² − 1)),   K = 1 + 2 (1 − r²) t² / (S − 2)

  with the correlation r of the pairs and t the 97.5 % point of Student's t with S − 2
  degrees of freedom: exact for pairs that are jointly normal (Pitman, Biometrika 31,
  1939).

  Args:
    x: [S].
    y: [S].

  Returns:
    A `Ratio`, all nan if there are fewer than four pairs or one side does not vary.
  """
  x, y = np.asarray(x, float), np.asarray(y, float)
  if x.size < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
    return Ratio(np.nan, np.nan, np.nan)
  squared = float(x.var(ddof=1) / y.var(ddof=1))
  r = float(np.corrcoef(x, y)[0, 1])
  t = float(stats.t.ppf(0.975, x.size - 2))
  k = 1 + 2 * (1 - r**2) * t**2 / (x.size - 2)
  reach = max(k**2 - 1, 0.0) ** 0.5
  return Ratio(
      squared**0.5, (squared * (k - reach)) ** 0.5, (squared * (k + reach)) ** 0.5
  )


def detectable(test: PairedTest | None, alpha: float = 0.05) -> float:
  """Returns the mean difference that a test would have detected with a power of 80 %.

  Args:
    test: a test, or None if there is none.
    alpha: its level; in a family of K tests at most 0.05 / K, at which Holm's method
      finds the difference whatever the other tests are.

  Returns:
    The difference, nan if there is no test or it is undefined.
  """
  if test is None or not np.isfinite(test.t):
    return float('nan')
  return smallest_detectable(spread(test), test.num_pairs, alpha=alpha)


def corrected(
    tests: Sequence[PairedTest | None],
) -> tuple[np.ndarray, list[float]]:
  """Returns Holm's p-values of a family of tests, and what each could have missed.

  Args:
    tests: [K]; None and tests that are undefined are not counted.

  Returns:
    Adjusted p-values [K], and the smallest `detectable` differences [K] at the level
    of 5 % divided by the number of tests that are counted.
  """
  p = np.array([np.nan if test is None else test.p for test in tests])
  alpha = 0.05 / max(int(np.isfinite(p).sum()), 1)
  return holm(p), [detectable(test, alpha) for test in tests]


class Correlation(NamedTuple):
  """Spearman's rank correlation and its 95 % interval."""

  rank: float
  ci_low: float
  ci_high: float


def rank_correlation(x: ArrayLike, y: ArrayLike) -> Correlation:
  """Returns Spearman's ρ of pairs, nan where it is undefined.

  The interval is that of Fisher's z = artanh ρ with the standard error
  √((1 + ρ²/2) / (S − 3)) of Bonett and Wright (Psychometrika 65, 2000).

  Args:
    x: [S].
    y: [S]; pairs that are not finite are left out.

  Returns:
    A `Correlation`, all nan if fewer than four pairs are left or all values of one
    side are equal.
  """
  both = np.stack([np.asarray(x, float), np.asarray(y, float)])
  both = both[:, np.isfinite(both).all(axis=0)]
  count = both.shape[1]
  if count < 4 or (np.ptp(both, axis=1) == 0).any():
    return Correlation(np.nan, np.nan, np.nan)
  rank = float(stats.spearmanr(*both).statistic)
  reach = float(stats.norm.ppf(0.975)) * ((1 + rank**2 / 2) / (count - 3)) ** 0.5
  with np.errstate(divide='ignore'):
    z = np.arctanh(rank)
  return Correlation(rank, float(np.tanh(z - reach)), float(np.tanh(z + reach)))


def mean_interval(values: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the mean over the first axis, and both ends of its 95 % interval.

  Args:
    values: [S, ...], one entry per seed; entries that are not finite are left out.

  Returns:
    Three arrays [...]; the ends are nan where fewer than two values are left.
  """
  table = np.asarray(values, float)
  kept = np.isfinite(table)
  count = kept.sum(axis=0)
  with np.errstate(invalid='ignore', divide='ignore'):
    mean = np.where(kept, table, 0).sum(axis=0) / count
    squares = np.where(kept, (table - mean) ** 2, 0).sum(axis=0)
    error = np.sqrt(squares / (count - 1) / count)
    reach = stats.t.ppf(0.975, np.maximum(count - 1, 1)) * error
  reach = np.where(count > 1, reach, np.nan)
  return mean, mean - reach, mean + reach
