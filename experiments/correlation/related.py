"""How a predictor is related to an outcome over models. Runs without JAX.

  gain = s r(predictor, outcome) − s₀ r(training loss, outcome)

where r is the primary correlation, and s and s₀ are 1 or −1, so that a relation counts
in the direction that is claimed: losses and misalignment are high where scores are low
and log perplexity is high. Above 0, the predictor predicts the outcome better.
Its interval resamples models, the same ones for both r, so it is paired. Among models
that are alike, with the same positions and L, each value is less their mean,

  x − mean of x over the models with the same positions and L

in each resample anew: else the intervals would not know that the means are estimated.

Axes: M models, R resamples.
"""

from collections.abc import Callable
import functools
from typing import NamedTuple

import numpy as np

from experiments.correlation.points import (
    At,
    CORRELATIONS,
    LEAST,
    Model,
    OUTCOME_METRICS,
    Points,
    Run,
    TRAINING_LOSS,
)
from vvlen.statistics import bootstrap, Estimate, partial, pearson, spearman

# A resample with only two different models has |r| = 1, and a gain that may be 0 up to
# rounding.
_ROUNDING = 1e-9
_DIGITS = 12  # of values before they are ranked
_NONE = Estimate(np.nan, np.nan, np.nan)
_Statistic = Callable[..., np.ndarray]  # of arrays [..., M] -> [...]


class Related(NamedTuple):
  """Correlations of one predictor with one outcome, with intervals over models."""

  pearson: Estimate
  spearman: Estimate
  partial: Estimate  # Pearson's, given training loss; nan of training loss itself
  partial_spearman: Estimate  # the same of ranks
  gain: Estimate  # nan of training loss itself

  @property
  def better(self) -> int:
    """Returns 1 if it predicts better than training loss, −1 if worse, 0 if neither."""
    return int(self.gain.ci_low > _ROUNDING) - int(self.gain.ci_high < -_ROUNDING)


def relate(
    run: Run, predictor: np.ndarray, outcome: np.ndarray, training_loss: np.ndarray,
    signs: tuple[float, float], kinds: np.ndarray | None = None,
) -> Related:
  """Returns the correlations of a predictor with an outcome.

  Args:
    run: for the primary correlation, the number of resamples and their seed.
    predictor: [M].
    outcome: [M].
    training_loss: [M]; if the predictor is this array, there is nothing to compare.
    signs: s and s₀, from `signs_of`.
    kinds: [M] numbers, equal for models that are alike, for correlations among these;
      None: over all models.

  Returns:
    `Related`; everything is nan for fewer than `LEAST` models.
  """
  estimate = functools.partial(_estimate, run, kinds)
  alone = predictor is training_loss
  both = predictor, outcome
  return Related(
      estimate(pearson, *both), estimate(spearman, *both),
      _NONE if alone else estimate(partial, *both, training_loss),
      _NONE if alone else estimate(_partial_of_ranks, *both, training_loss),
      _NONE if alone else estimate(
          gain(CORRELATIONS[run.correlation], signs), *both, training_loss))


def signs_of(predictor: str, metric: str) -> tuple[float, float]:
  """Returns the signs of r that are claimed, of a predictor and of training loss.

  Args:
    predictor: a key of `points.PREDICTORS`, or 'misalignment'.
    metric: what the outcome is, 'score' or 'nll'.
  """
  of_loss = 1.0 if metric == 'nll' else -1.0
  # Agreement is the only measure that falls with misalignment.
  return (-of_loss if predictor == 'top1_agreement' else of_loss), of_loss


def metric_of(outcome: str | At) -> str:
  """Returns what an outcome is: 'score' or 'nll'."""
  return outcome.metric if isinstance(outcome, At) else OUTCOME_METRICS[outcome]


def ours(run: Run, points: Points, predictor: str, outcome: str | At) -> Related:
  """Returns the correlations of a predictor with an outcome.

  Args:
    run: as in `relate`.
    points: the models.
    predictor: a key of `points.PREDICTORS`.
    outcome: a key of `points.OUTCOMES`, or score or log perplexity at a length.
  """
  means = points.means
  return relate(run, means[predictor], means[outcome], means[TRAINING_LOSS],
                signs_of(predictor, metric_of(outcome)))


def within(run: Run, points: Points, predictor: str, outcome: str | At) -> Related:
  """Returns correlations as `ours` among models with the same positions and L.

  Args:
    run: as in `relate`.
    points: from `with_others`.
    predictor: a key of `points.PREDICTORS`.
    outcome: as in `ours`.
  """
  means = points.means
  return relate(run, means[predictor], means[outcome], means[TRAINING_LOSS],
                signs_of(predictor, metric_of(outcome)), _kinds(points))


def primary_within(
    run: Run, points: Points, predictor: str, outcome: str | At) -> Estimate:
  """Returns the primary correlation alone of `within`, in a fifth of its time."""
  return _estimate(run, _kinds(points), CORRELATIONS[run.correlation],
                   points.means[predictor], points.means[outcome])


def _estimate(
    run: Run, kinds: np.ndarray | None, statistic: _Statistic, *items: np.ndarray
) -> Estimate:
  """Returns a statistic of items [M] with its interval; arguments as in `relate`."""
  if len(items[0]) < LEAST:
    return _NONE
  statistic = _of_rounded(statistic)
  if kinds is not None:
    statistic, items = _within(statistic), (*items, kinds)
  return bootstrap(statistic, *items, num_resamples=run.num_resamples, seed=run.seed)


def with_others(points: Points) -> Points:
  """Returns the models with whose positions and L there are others."""
  names = [_kind(model) for model in points.models]
  return points.only([names.count(name) > 1 for name in names])


def _kinds(points: Points) -> np.ndarray:
  """Returns a number for each model [M], equal for models that are alike."""
  names = [_kind(model) for model in points.models]
  return np.array([names.index(name) for name in names], float)


def _kind(model: Model) -> tuple[str, int]:
  """Returns what models that are alike have in common."""
  return model.positions, model.length


def gain(correlation: _Statistic, signs: tuple[float, float]) -> _Statistic:
  """Returns the statistic s r(x, y) − s₀ r(z, y), of predictor, outcome, training loss.

  Args:
    correlation: r, of two arrays [..., M].
    signs: s and s₀.
  """
  own, of_loss = signs
  return lambda x, y, z: own * correlation(x, y) - of_loss * correlation(z, y)


def _partial_of_ranks(*values: np.ndarray) -> np.ndarray:
  """Returns the partial correlation of the ranks of x and y given those of z."""
  from scipy import stats  # takes half a second, and is needed here alone

  return partial(*(stats.rankdata(x, axis=-1) for x in values))


def _of_rounded(statistic: _Statistic) -> _Statistic:
  """Returns a statistic of rounded values: equal ones share a rank despite round-off.

  Means of as many right answers may differ in their last bits.
  """
  return lambda *values: statistic(*(np.round(x, _DIGITS) for x in values))


def _within(statistic: _Statistic) -> _Statistic:
  """Returns a statistic of values less the means of their kinds, given last."""

  def of_rest(*items: np.ndarray) -> np.ndarray:
    *values, kinds = items
    return statistic(*(_less_means(x, kinds) for x in values))

  return of_rest


def _less_means(values: np.ndarray, kinds: np.ndarray) -> np.ndarray:
  """Returns values [..., M] less the mean of those of the same kind [..., M]."""
  left = np.array(values, float)
  for kind in np.unique(kinds):
    inside = kinds == kind
    count = np.maximum(inside.sum(-1, keepdims=True), 1)
    mean = np.where(inside, values, 0).sum(-1, keepdims=True) / count
    # One model drawn again and again is 0 exactly, not up to rounding.
    varies = (np.where(inside, values, -np.inf).max(-1, keepdims=True)
              > np.where(inside, values, np.inf).min(-1, keepdims=True))
    left = np.where(inside, np.where(varies, values - mean, 0.0), left)
  return left
