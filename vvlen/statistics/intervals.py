"""Intervals: of means, by Student's t or a bootstrap, of ratios and of correlations."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from vvlen.statistics import resamples, student


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
    reach = student.quantile(0.975, np.maximum(count - 1, 1)) * error
  reach = np.where(count > 1, reach, np.nan)
  return mean, mean - reach, mean + reach


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
  drawn = resamples.counts(count, num_resamples, seed)
  with np.errstate(invalid='ignore'):
    return (drawn @ sums) / (drawn @ weights)


def percentile_interval(drawn: ArrayLike, *, skip_nan: bool = False) -> np.ndarray:
  """Returns the 95 % interval of bootstrap samples: their percentiles 2.5 and 97.5.

  Args:
    drawn: [R, ...], a statistic of each of R samples.
    skip_nan: whether samples that are nan are left out.

  Returns:
    [2, ...], the lower end first. An end is nan if a sample is nan, unless `skip_nan`.
  """
  quantile = np.nanquantile if skip_nan else np.quantile
  return quantile(np.asarray(drawn), (0.025, 0.975), axis=0)


def percentiles_cover(count: float) -> float:
  """Returns how often a bootstrap's percentile interval covers the mean of normals.

  For the 95 % interval over `count` values, at least two: ± 1.96 standard errors, whose
  variance is divided by count and not count − 1, which is too narrow for few values.
  """
  return 1 - 2 * student.tail(1.96 * (1 - 1 / count) ** 0.5, count - 1)


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
  t = float(student.quantile(0.975, x.size - 2))
  k = 1 + 2 * (1 - r**2) * t**2 / (x.size - 2)
  reach = max(k**2 - 1, 0.0) ** 0.5
  return Ratio(
      squared**0.5, (squared * (k - reach)) ** 0.5, (squared * (k + reach)) ** 0.5
  )


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
  from scipy import stats  # takes half a second, and is needed here alone

  rank = float(stats.spearmanr(*both).statistic)
  reach = float(special.ndtri(0.975)) * ((1 + rank**2 / 2) / (count - 3)) ** 0.5
  with np.errstate(divide='ignore'):
    z = np.arctanh(rank)
  return Correlation(rank, float(np.tanh(z - reach)), float(np.tanh(z + reach)))
