"""The learning rate of an arm on a task, chosen at the training lengths.

  r = argmin_r mean_s L(r, s)

over the rates r and seeds s of the tuning. L is the mean loss over the last tenth of
training. Batches are not repeated, so L is a validation loss at the training lengths;
test lengths are not used. Runs without JAX.
"""

from collections.abc import Iterable, Mapping
import math
from typing import NamedTuple

import numpy as np

from vvlen.reporting import results
from vvlen.statistics import paired_by_seed, PairedTest

# rate -> seed -> training loss
Losses = Mapping[float, Mapping[int, float]]
EDGE, TIE, CLOSE, FAILED = 'at the edge', 'tie', 'close', 'not finite'


class Choice(NamedTuple):
  """The rate that was chosen, and what is odd about the choice."""

  rate: float
  losses: Mapping[float, float]  # rate -> mean over seeds; nan if one is not finite
  notes: tuple[str, ...]  # of EDGE, TIE, CLOSE and FAILED
  # Of the loss at the second best rate minus that at the chosen one, paired by seed;
  # None without another rate or with fewer than two seeds.
  second: PairedTest | None = None


def read_losses(rows: Iterable[results.Row], task: str, arm: str) -> Losses:
  """Returns the losses of an arm on a task, from the rows of the tuning."""
  losses: dict[float, dict[int, float]] = {}
  for row in rows:
    if (row.experiment, row.arm, row.metric) == (task, arm, 'training_loss'):
      assert row.learning_rate is not None, row.key
      losses.setdefault(row.learning_rate, {})[row.seed] = row.value
  return losses


def choose(losses: Losses) -> Choice:
  """Chooses the rate of least mean loss; of rates with the same loss, the smallest.

  A rate at which the loss of a seed is not finite is left out. If that leaves none, the
  smallest rate is chosen.

  Args:
    losses: of one arm on one task, with one rate or more.

  Returns:
    The choice, with the notes FAILED if a rate was left out, TIE if another is equal,
    CLOSE if the 95 % interval of the distance from the second best holds 0, and EDGE if
    it is the smallest or the largest of several rates.
  """
  rates = sorted(losses)
  means = {}
  for rate in rates:
    values = [*losses[rate].values()]
    means[rate] = float(np.mean(values)) if np.isfinite(values).all() else math.nan
  finite_rates = [rate for rate in rates if math.isfinite(means[rate])]
  best = min(finite_rates, key=lambda rate: (means[rate], rate), default=rates[0])
  notes = []
  if len(rates) > 1 and best in (rates[0], rates[-1]):
    notes.append(EDGE)
  if sum(means[rate] == means[best] for rate in finite_rates) > 1:
    notes.append(TIE)
  others = [rate for rate in finite_rates if rate != best]
  second = min(others, key=lambda rate: (means[rate], rate), default=best)
  test = paired_by_seed(losses[second], losses[best]) if others else None
  if test is not None and test.ci_low <= 0:
    notes.append(CLOSE)
  if len(finite_rates) < len(rates):
    notes.append(FAILED)
  return Choice(best, means, tuple(notes), test)
