"""Correlations over few items, such as models, and their bootstrap intervals.

  Pearson    r_xy = Σ (x − x̄)(y − ȳ) / √(Σ (x − x̄)² Σ (y − ȳ)²)
  Spearman   Pearson's r of the ranks; equal values share their mean rank
  partial    r_xy·z = (r_xy − r_xz r_yz) / √((1 − r_xz²)(1 − r_yz²)), Pearson's r of the
             residuals of x and y after regression on z

Axes: R resamples, S items. Functions of arrays [..., S] work along the last axis, in
float64.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from vvlen.statistics import resamples
from vvlen.statistics.intervals import percentile_interval

_ALIKE = 1e-12  # if 1 − r² with z is not larger, z determines the other variable
_UNDEFINED = 0.1  # the largest share of resamples in which a statistic may be undefined


def pearson(x: ArrayLike, y: ArrayLike) -> np.ndarray:
  """Returns Pearson's r of x and y, [..., S] -> [...]; nan where one does not vary."""
  a, b = _centred(x), _centred(y)
  with np.errstate(invalid='ignore'):
    r = (a * b).sum(-1) / np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
  return np.clip(r, -1, 1)


def _centred(x: ArrayLike) -> np.ndarray:
  """Returns x [..., S] minus its mean; exactly 0 where all values are equal."""
  values = np.asarray(x, float)
  varies = np.ptp(values, axis=-1, keepdims=True) > 0
  return np.where(varies, values - values.mean(axis=-1, keepdims=True), 0.0)


def spearman(x: ArrayLike, y: ArrayLike) -> np.ndarray:
  """Returns Spearman's ρ of x and y, [..., S] -> [...]; nan where one does not vary."""
  from scipy import stats  # takes half a second, and is needed here alone

  return pearson(stats.rankdata(x, axis=-1), stats.rankdata(y, axis=-1))


def partial(x: ArrayLike, y: ArrayLike, given: ArrayLike) -> np.ndarray:
  """Returns the correlation of x and y that a third variable z does not explain.

  Args:
    x: [..., S].
    y: [..., S].
    given: z [..., S].

  Returns:
    [...]; nan where one of the three does not vary, or z determines x or y.
  """
  xy, xz, yz = pearson(x, y), pearson(x, given), pearson(y, given)
  left = np.minimum(1 - xz**2, 1 - yz**2)
  with np.errstate(invalid='ignore', divide='ignore'):
    r = (xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2))
  return np.where(left > _ALIKE, np.clip(r, -1, 1), np.nan)


class Estimate(NamedTuple):
  """A statistic and its 95 % interval."""

  value: float
  ci_low: float
  ci_high: float


def bootstrap(
    statistic: Callable[..., Any], *items: ArrayLike, num_resamples: int, seed: int
) -> Estimate:
  """Returns a statistic with its percentile interval over resampled items.

  R times, S items are drawn with replacement, and the percentiles 2.5 and 97.5 of the
  statistic are the ends. Which items are drawn depends on S, R and the seed alone. With
  few items the interval is too narrow: for normals of correlation 0.7 it covers r in
  91 % of samples of 14 items, and in 89 % of samples of 7.

  Args:
    statistic: of arrays [..., S], as many as `items`, -> [...]; if it is a difference
      of two correlations, its interval is paired.
    *items: arrays [S], whose entries belong together.
    num_resamples: R.
    seed: of the draws.

  Returns:
    An `Estimate`. Resamples in which the statistic is undefined are left out; the ends
    are nan if it is undefined in more than a tenth of them, or for all items.

  Raises:
    ValueError: if the arrays are not of one shape [S], or there are no items.
  """
  arrays = [np.asarray(x, float) for x in items]
  shapes = {x.shape for x in arrays}
  if len(shapes) != 1 or arrays[0].ndim != 1 or not arrays[0].size:
    raise ValueError(f'need arrays of one shape [S], S positive: {sorted(shapes)}')
  places = resamples.places(arrays[0].size, num_resamples, seed)
  found = np.asarray(statistic(*(x[places] for x in arrays)), float)
  value, drawn = float(found[0]), found[1:]
  drawn, known = drawn[np.isfinite(drawn)], np.isfinite(drawn).mean()
  if np.isnan(value) or known < 1 - _UNDEFINED:
    return Estimate(value, np.nan, np.nan)
  low, high = percentile_interval(drawn)
  return Estimate(value, float(low), float(high))
