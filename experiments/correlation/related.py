"""How a predictor is related to an outcome over models. Runs without JAX.

  gain = |r(predictor, outcome)| − |r(training loss, outcome)|

where r is the primary correlation. Above 0, the predictor predicts the outcome better.
Its interval resamples models, the same ones for both r, so it is paired.

Axes: M models.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from experiments.correlation.points import (
    CORRELATIONS,
    LEAST,
    Points,
    Run,
    TRAINING_LOSS,
)
from vvlen.statistics import bootstrap, Estimate, partial, pearson, spearman

# A resample with only two different models has |r| = 1, and a gain of 0 up to rounding.
_ROUNDING = 1e-9
_NONE = Estimate(np.nan, np.nan, np.nan)


class Related(NamedTuple):
  """Correlations of one predictor with one outcome, with intervals over models."""

  pearson: Estimate
  spearman: Estimate
  partial: Estimate  # Pearson's, given training loss; nan of training loss itself
  gain: Estimate  # nan of training loss itself

  @property
  def better(self) -> int:
    """Returns 1 if it predicts better than training loss, −1 if worse, 0 if neither."""
    return int(self.gain.ci_low > _ROUNDING) - int(self.gain.ci_high < -_ROUNDING)


def relate(
    run: Run, predictor: np.ndarray, outcome: np.ndarray, training_loss: np.ndarray
) -> Related:
  """Returns the correlations of a predictor with an outcome.

  Args:
    run: for the primary correlation, the number of resamples and their seed.
    predictor: [M].
    outcome: [M].
    training_loss: [M]; if the predictor is this array, there is nothing to compare.

  Returns:
    `Related`; everything is nan for fewer than `LEAST` models.
  """
  if len(outcome) < LEAST:
    return Related(_NONE, _NONE, _NONE, _NONE)
  estimate = lambda statistic, *items: bootstrap(
      statistic, *items, num_resamples=run.num_resamples, seed=run.seed)
  alone = predictor is training_loss
  both = predictor, outcome
  return Related(
      estimate(pearson, *both), estimate(spearman, *both),
      _NONE if alone else estimate(partial, *both, training_loss),
      _NONE if alone else estimate(
          gain(CORRELATIONS[run.correlation]), *both, training_loss))


def ours(run: Run, points: Points, predictor: str, outcome: str) -> Related:
  """Returns the correlations of a predictor with a field such as 'score_beyond'."""
  means = points.means
  return relate(run, means[predictor], means[outcome], means[TRAINING_LOSS])


def gain(correlation: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
  """Returns the statistic |r(x, y)| − |r(z, y)| of predictor, outcome, training loss.

  Args:
    correlation: r, of two arrays [..., M].
  """
  return lambda x, y, z: abs(correlation(x, y)) - abs(correlation(z, y))
