"""The tests of one claim, from tidy rows: primary and secondary endpoints.

One claim has one primary endpoint, the same for every run: the mean accuracy over
all test lengths of the run beyond its training lengths, treated minus control, paired
over seeds, two-sided t-test at 5 %. Secondary: every length, Holm-corrected over them.
"""

from collections.abc import Mapping, Sequence
import math
from typing import NamedTuple

import numpy as np

from vvlen.reporting.results import by_seed, Index
from vvlen.statistics import adjusted_test, holm, paired_t_test, PairedTest

# The arms of the claim.
CONTROL, TREATED = 'none', 'layer_norm'
# If the best arm's accuracy at the training lengths is lower, no test makes sense.
LEARNED = 0.9


class Comparison(NamedTuple):
  """Two arms, at each length and over all lengths beyond training.

  Accuracies and differences are in percent and points.
  """

  treated: str
  control: str
  lengths: tuple[int, ...]
  by_length: tuple[PairedTest | None, ...]  # None: fewer than two pairs
  holm_p: np.ndarray  # [lengths]
  treated_mean: np.ndarray  # [lengths], over the paired seeds
  control_mean: np.ndarray  # [lengths]
  primary: PairedTest | None
  primary_means: tuple[float, float]  # treated, control
  primary_differences: dict[int, float]  # of each seed
  left_out: tuple[int, ...]  # seeds with a value that is missing or not finite


def compare(
    index: Index,
    treated: str,
    control: str,
    *,
    trained_up_to: int,
    metric: str = 'accuracy',
) -> Comparison:
  """Tests treated against control.

  Args:
    index: from `vvlen.reporting.results.index`.
    treated: name of an arm.
    control: name of an arm.
    trained_up_to: the longest training length; longer ones enter the primary
      endpoint.
    metric: a share, compared in percent.

  Returns:
    A `Comparison`. Seeds with a value that is not finite, in either arm at any
    length, are left out of all tests and listed in `left_out`.

  Raises:
    ValueError: if an arm has no rows, or none beyond the training lengths.
  """
  lengths = tuple(sorted({
      length for arm, name, length in index
      if name == metric and length is not None and arm in (treated, control)
  }))
  for arm in (treated, control):
    absent = [n for n in lengths if (arm, metric, n) not in index]
    if absent or not lengths:
      raise ValueError(f'no {metric} of {arm} at lengths {absent}')
  beyond = [i for i, n in enumerate(lengths) if n > trained_up_to]
  if not beyond:
    raise ValueError(f'no test length is above {trained_up_to}: {lengths}')

  one, other = (
      {seed: 100 * x for seed, x in by_seed(index, arm, metric, lengths).items()}
      for arm in (treated, control)
  )
  # A seed that only one arm has yet is not a pair.
  both = sorted(one.keys() & other.keys())
  seeds = [s for s in both if np.isfinite(one[s] + other[s]).all()]
  a = np.array([one[s] for s in seeds]).reshape(len(seeds), len(lengths))
  b = np.array([other[s] for s in seeds]).reshape(len(seeds), len(lengths))
  by_length = tuple(_test(x, y) for x, y in zip(a.T, b.T, strict=True))
  endpoint_a, endpoint_b = a[:, beyond].mean(axis=1), b[:, beyond].mean(axis=1)
  return Comparison(
      treated=treated,
      control=control,
      lengths=lengths,
      by_length=by_length,
      holm_p=holm([np.nan if t is None else t.p for t in by_length]),
      treated_mean=_mean(a),
      control_mean=_mean(b),
      primary=_test(endpoint_a, endpoint_b),
      primary_means=(float(_mean(endpoint_a)), float(_mean(endpoint_b))),
      primary_differences=dict(
          zip(seeds, (endpoint_a - endpoint_b).tolist(), strict=True)
      ),
      left_out=tuple(s for s in both if s not in seeds),
  )


def endpoint(
    index: Index, arm: str, trained_up_to: int, metric: str = 'accuracy'
) -> dict[int, float]:
  """Returns a share, in percent: each seed's mean beyond the training lengths."""
  beyond = sorted(n for name, other, n in index
                  if (name, other) == (arm, metric) and n and n > trained_up_to)
  values = by_seed(index, arm, metric, beyond)
  return {seed: float((100 * x).mean()) for seed, x in values.items()}


def _test(treated: np.ndarray, control: np.ndarray) -> PairedTest | None:
  return paired_t_test(treated, control) if len(treated) > 1 else None


def change(comparison: Comparison, before: Comparison) -> PairedTest | None:
  """Tests whether a difference has changed from that of `before`, paired over seeds.

  Returns:
    The test of the primary endpoint's difference minus that of `before`; None if fewer
    than two seeds have both.
  """
  return _test(*_shared(comparison, before))


def change_at_equal(comparison: Comparison, before: Comparison) -> PairedTest | None:
  """Tests whether a difference is zero where that of `before` is, over shared seeds."""
  return adjusted_test(*_shared(comparison, before))


def _shared(*comparisons: Comparison) -> list[np.ndarray]:
  """Returns the primary differences [S] of each, of the seeds that all have."""
  differences = [c.primary_differences for c in comparisons]
  seeds = sorted(set.intersection(*map(set, differences)))
  return [np.array([d[s] for s in seeds]) for d in differences]


def _mean(values: np.ndarray) -> np.ndarray:
  """Returns the mean over the first axis; nan where there are no seeds."""
  return values.mean(axis=0) if len(values) else np.full(values.shape[1:], np.nan)


def not_converged(
    training_accuracy: dict[int, float], others: Sequence[dict[int, float]] = ()
) -> Sequence[int]:
  """Returns the seeds that learned the training lengths much worse than others.

  Args:
    training_accuracy: {seed: accuracy over the last tenth of training} of an arm.
    others: the same of the other arms.

  Returns:
    Seeds more than 5 points below the median of the best arm, or without a finite
    value.
  """
  arms = training_accuracy, *others
  best = np.fmax.reduce([median_accuracy(arm) for arm in arms])  # ignores nan
  return [s for s, x in training_accuracy.items() if not x >= best - 0.05]


def median_accuracy(training_accuracy: Mapping[int, float]) -> float:
  """Returns the median over seeds whose value is finite, nan without any."""
  finite = [x for x in training_accuracy.values() if math.isfinite(x)]
  return float(np.median(finite)) if finite else math.nan
