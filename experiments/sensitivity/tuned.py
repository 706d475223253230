"""The gain where each arm has the learning rate that suits it best. Runs without JAX.

  r(a) = argmin_r mean_s L(a, r, s)
  gain = mean_s [A(LN, r(LN), s) − A(Baseline, r(Baseline), s)]

over rates r and seeds s, which all rates share. L is the loss on the last batches of
training, as many as one line of the learning curves tells of: all are new, and no rate
has moved the weights much since, so that this is validation in distribution of the
models that are measured; test lengths have no say. A is the mean accuracy beyond the
training lengths. Where two rates do equally well in training, chance chooses, and the
choice may move the gain by more than its standard error; so the interval is that of a
bootstrap over seeds which chooses anew in every sample. It describes: near such a tie
no bootstrap promises to cover in 95 of 100 cases.
"""

from collections.abc import Mapping
import itertools
from typing import NamedTuple

import numpy as np

from vvlen.reporting import results
from vvlen.reporting.endpoints import CONTROL, endpoint, TREATED

# arm -> seed -> training loss at the end
Losses = Mapping[str, Mapping[int, float]]

_SAMPLES = 10_000


class Tuned(NamedTuple):
  """The gain of LN after so many steps, each arm at its own rate.

  Accuracies and differences are in percent and points.
  """

  rates: tuple[str, ...]  # the cells that there were to choose from
  step: int
  chosen: Mapping[str, str]  # arm -> cell
  sure: Mapping[str, float]  # arm -> share of the samples that choose this cell
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
  """Chooses the rate of each arm, and compares the arms.

  Args:
    indices: the rows of cells that differ in their learning rate alone, by cell. Those
      count that have both arms and no fewer seeds than any; of an arm, those of whose
      seeds more than half are finite.
    losses: of these cells.
    step: at which both are measured, the last of each schedule.
    trained_up_to: the longest training length.

  Returns:
    The comparison; None if there are not two rates to choose from.
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
  whole = [name for name in sorted(count) if most and count[name] == most]
  if len(whole) < 2:
    return None
  usable: dict[str, list[str]] = {arm: [] for arm in arms}
  for arm, name in itertools.product(arms, whole):
    finite = {s: x for s, x in values[arm, name].items() if np.isfinite(x).all()}
    values[arm, name] = finite
    # A rate at which most seeds fail is no choice; others share their seeds.
    if 2 * len(finite) > most:
      usable[arm].append(name)
  shared = [values[arm, name] for arm in arms for name in usable[arm]]
  seeds = sorted(set.intersection(*map(set, shared))) if shared else []
  if len(seeds) < 2 or not all(usable.values()):
    return None
  samples = np.random.default_rng(0).integers(len(seeds), size=(_SAMPLES, len(seeds)))
  chosen, sure, means, drawn = {}, {}, [], []
  for arm in arms:
    loss, accuracy = np.moveaxis(np.array(
        [[values[arm, name][s] for s in seeds] for name in usable[arm]]
    ), -1, 0)  # [rates, seeds]
    best = int(loss.mean(axis=1).argmin())
    choices = loss[:, samples].mean(axis=-1).argmin(axis=0)  # [samples]
    chosen[arm] = usable[arm][best]
    sure[arm] = float((choices == best).mean())
    means.append(float(accuracy[best].mean()))
    drawn.append(accuracy[choices[:, None], samples].mean(axis=1))
  low, high = np.quantile(drawn[0] - drawn[1], (0.025, 0.975))
  return Tuned(
      tuple(whole), step, chosen, sure, (means[0], means[1]), means[0] - means[1],
      float(low), float(high), len(seeds),
  )
