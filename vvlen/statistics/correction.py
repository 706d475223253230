"""Several tests together: correction by Holm."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from vvlen.statistics.paired import at_level, PairedTest
from vvlen.statistics.power import detectable


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


def by_holm(tests: Sequence[PairedTest | None]) -> list[PairedTest | None]:
  """Returns a family of tests with p and intervals corrected by Holm's method.

  Args:
    tests: [K]; None and tests that are undefined are not counted, and not changed.

  Returns:
    Tests [K] of which p is that of `holm` and the interval that of `holm_levels`, so
    that it excludes 0 where p is below .05.
  """
  p = [np.nan if test is None else test.p for test in tests]
  return [
      test if test is None or np.isnan(own)
      else at_level(test, level)._replace(p=float(own))
      for test, own, level in zip(tests, holm(p), holm_levels(p), strict=True)
  ]


def detectable_together(tests: Sequence[PairedTest | None]) -> list[float]:
  """Returns what each test of a family could have missed.

  Args:
    tests: [K]; None and tests that are undefined are not counted.

  Returns:
    The smallest `detectable` differences [K] at the level of 5 % divided by the number
    of tests that are counted.
  """
  counted = sum(test is not None and np.isfinite(test.p) for test in tests)
  return [detectable(test, 0.05 / max(counted, 1)) for test in tests]
