"""What a paired test can find: its power, and the smallest difference it detects."""

import numpy as np
from scipy import optimize

from vvlen.statistics import student
from vvlen.statistics.paired import PairedTest, spread


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
  critical = student.quantile(1 - alpha / 2, freedom)
  # P(T > t_c) and P(T < −t_c).
  return (student.tail(critical, freedom, noncentrality)
          + student.tail(critical, freedom, -noncentrality))


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
