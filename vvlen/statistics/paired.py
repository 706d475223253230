"""Paired comparison of two arms that share their seeds."""

from collections.abc import Mapping
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from vvlen.statistics import student


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
  reach = float(student.quantile(0.975, num_pairs - 1)) * error
  t = mean / error
  return PairedTest(
      mean, mean - reach, mean + reach, mean / deviation, t,
      2 * student.tail(abs(t), num_pairs - 1), num_pairs,
  )


def paired_by_seed(
    treated: Mapping[int, float], control: Mapping[int, float]
) -> PairedTest | None:
  """Tests treated − control over the seeds with finite values in both.

  Args:
    treated: {seed: value}.
    control: {seed: value}.

  Returns:
    As `paired_t_test`; None if there are fewer than two such seeds.
  """
  seeds = [s for s in treated
           if s in control and math.isfinite(treated[s] + control[s])]
  if len(seeds) < 2:
    return None
  return paired_t_test([treated[s] for s in seeds], [control[s] for s in seeds])


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
  from scipy import stats  # takes half a second, and is needed here alone

  fit, freedom = stats.linregress(before, after), before.size - 2
  reach = float(student.quantile(0.975, freedom)) * fit.intercept_stderr
  mean = float(fit.intercept)
  t = mean / fit.intercept_stderr if fit.intercept_stderr else float('nan')
  return PairedTest(mean, mean - reach, mean + reach, float('nan'), t,
                    2 * student.tail(abs(t), freedom), before.size)


def at_level(test: PairedTest, alpha: float) -> PairedTest:
  """Returns a test with its interval at the level 1 − alpha.

  With alpha = .05 / K, the intervals of K tests cover all their means with a
  probability of at least 95 % (Bonferroni), and an interval excludes 0 where K p < .05.
  """
  error = spread(test) / test.num_pairs**0.5
  reach = float(student.quantile(1 - alpha / 2, test.num_pairs - 1)) * error
  mean = test.mean_difference
  return test._replace(ci_low=mean - reach, ci_high=mean + reach)


def spread(test: PairedTest) -> float:
  """Returns the standard deviation of the differences of a test."""
  reach = student.quantile(0.975, test.num_pairs - 1)
  return float((test.ci_high - test.mean_difference) / reach * test.num_pairs**0.5)
