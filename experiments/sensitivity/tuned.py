"""The gain if each arm has its best learning rate. Runs without JAX.

  r(a) = argmin_r mean_s L(a, r, s)
  gain = mean_s [A(LN, r(LN), s) − A(Baseline, r(Baseline), s)]

for rates r and seeds s, which all rates share. A is the mean accuracy beyond the
training lengths. L is the loss on the last batches of training, those of the last line
of the learning curves. These batches are new, and the weights change little while they
are read, so L is an in-distribution validation loss of the measured models; test
lengths are not used to choose. If two rates train equally well, the choice between them
is random and may change the gain by more than its standard error. Therefore the
interval is from a bootstrap over seeds that repeats the choice in every sample. It is
descriptive: near such a tie, no bootstrap guarantees a coverage of 95 %.
"""

from collections.abc import Mapping
import itertools
from typing import NamedTuple

import numpy as np

from vvlen.reporting import results
from vvlen.reporting.endpoints import CONTROL, endpoint, TREATED
from vvlen.statistics import percentile_interval, resamples

# arm -> seed -> training loss at the end
Losses = Mapping[str, Mapping[int, float]]

_SAMPLES = 10_000


class Tuned(NamedTuple):
  """The gain of LN after `step` steps, each arm at its best learning rate.

  Accuracies and differences are in percent and points.
  """

  rates: tuple[str, ...]  # the cells to choose from
  step: int
  chosen: Mapping[str, str]  # arm -> cell
  sure: Mapping[str, float]  # arm -> share of bootstrap samples that choose this cell
  means: tuple[float, float]  # treated, control
  mean_difference: float
  ci_low: float  # 95 %, percentiles of the bootstrap
  ci_high: float
  num_seeds: int


def tune(
    indices: Mapping[str, results.Index],
    losses: Mapping[str, Losses],
    step: int,
    trained_up_to: int,
) -> Tuned | None:
  """Chooses the learning rate of each arm, and compares the arms.

  Args:
    indices: {cell: rows}, for cells that differ only in learning rate. A cell is used
      if it has both arms and no fewer seeds than other cells, and for an arm if more
      than half of the seeds are finite.
    losses: {cell: arm -> seed -> training loss}.
    step: the step at which the cells are measured, the last one of each schedule.
    trained_up_to: the longest training length.

  Returns:
    The comparison; None if there are fewer than two rates or two seeds.
  """
  arms = (TREATED, CONTROL)
  values: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
  for name, index in indices.items():
    for arm in arms:
      accuracy = endpoint(index, arm, trained_up_to)
      values[arm, name] = {s: (x, accuracy[s]) for s, x in losses[name].get(
          arm, {}).items() if s in accuracy}
  count = {name: min(len(values[arm, name]) for arm in arms) for name in indices}
  most = max(count.values(), default=0)
  # The cells that have as many seeds as any.
  whole = [name for name in sorted(count) if most and count[name] == most]
  if len(whole) < 2:
    return None
  usable: dict[str, list[str]] = {arm: [] for arm in arms}
  for arm, name in itertools.product(arms, whole):
    finite = {s: x for s, x in values[arm, name].items() if np.isfinite(x).all()}
    values[arm, name] = finite
    # A rate at which half of the seeds fail or more is not used; others share seeds.
    if 2 * len(finite) > most:
      usable[arm].append(name)
  shared = [values[arm, name] for arm in arms for name in usable[arm]]
  seeds = sorted(set.intersection(*map(set, shared))) if shared else []
  if len(seeds) < 2 or not all(usable.values()):
    return None
  samples = resamples.places(len(seeds), _SAMPLES, 0)
  chosen, sure, means = {}, {}, []
  for arm in arms:
    loss, accuracy = np.moveaxis(np.array(
        [[values[arm, name][s] for s in seeds] for name in usable[arm]]
    ), -1, 0)  # [rates, seeds]
    choices = loss[:, samples].mean(axis=-1).argmin(axis=0)  # [1 + samples]
    chosen[arm] = usable[arm][choices[0]]
    sure[arm] = float((choices[1:] == choices[0]).mean())
    means.append(accuracy[choices[:, None], samples].mean(axis=1))
  gain = means[0] - means[1]  # [1 + samples]
  low, high = percentile_interval(gain[1:])
  return Tuned(
      tuple(whole), step, chosen, sure, (float(means[0][0]), float(means[1][0])),
      float(gain[0]), float(low), float(high), len(seeds),
  )
