"""Student's t, from `scipy.special`: `scipy.stats` takes half a second to import."""

import math
from typing import Any

from numpy.typing import ArrayLike
from scipy import special


def quantile(probability: ArrayLike, freedom: ArrayLike) -> Any:
  """Returns t with P(T ≤ t) = probability; arrays broadcast."""
  return special.stdtrit(freedom, probability)


def tail(t: float, freedom: float, noncentrality: float = 0.0) -> float:
  """Returns P(T > t), T noncentral t, by the symmetry P(T_δ > t) = P(T_−δ < −t)."""
  if not noncentrality:
    return float(special.stdtr(freedom, -t))
  found = float(special.nctdtr(freedom, -noncentrality, -t))
  return 0.0 if math.isnan(found) else found  # nan far out in the tail
