"""The learning rate of an arm on a task, chosen at the training lengths.

  r = argmin_r mean_s L(r, s)

over the rates r and seeds s of the tuning. L is the mean loss over the last tenth of
training. Batches are not repeated, so L is a validation loss at the training lengths;
test lengths are not used. Runs without JAX.
"""

from collections.abc import Iterable, Mapping, Sequence
import math
import statistics
from typing import NamedTuple

from vvlen.reporting import results

# rate -> seed -> training loss
Losses = Mapping[float, Mapping[int, float]]
EDGE, TIE, FAILED = 'at the edge', 'tie', 'not finite'


class Choice(NamedTuple):
  """The rate that was chosen, and what is odd about the choice."""

  rate: float
  losses: Mapping[float, float]  # rate -> mean over seeds; nan if one is not finite
  notes: tuple[str, ...]  # of EDGE, TIE and FAILED
  # Of the second best rate, loss minus that of the chosen one, paired by seed; nan if
  # there is none.
  ahead: float = math.nan
  standard_error: float = math.nan  # of it, nan with fewer than two seeds


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
    and EDGE if it is the smallest or the largest of several rates.
  """
  rates = sorted(losses)
  means = {}
  for rate in rates:
    values = [*losses[rate].values()]
    means[rate] = _mean(values) if all(map(math.isfinite, values)) else math.nan
  finite_rates = [rate for rate in rates if math.isfinite(means[rate])]
  best = min(finite_rates, key=lambda rate: (means[rate], rate), default=rates[0])
  notes = []
  if len(rates) > 1 and best in (rates[0], rates[-1]):
    notes.append(EDGE)
  if sum(means[rate] == means[best] for rate in finite_rates) > 1:
    notes.append(TIE)
  if len(finite_rates) < len(rates):
    notes.append(FAILED)
  others = [rate for rate in finite_rates if rate != best]
  if not others:
    return Choice(best, means, tuple(notes))
  second = losses[min(others, key=lambda rate: (means[rate], rate))]
  changes = [second[seed] - x for seed, x in losses[best].items() if seed in second]
  error = (statistics.stdev(changes) / math.sqrt(len(changes))
           if len(changes) > 1 else math.nan)
  return Choice(best, means, tuple(notes), _mean(changes), error)


def _mean(values: Sequence[float]) -> float:
  """Returns the mean of values, nan of none."""
  return math.fsum(values) / len(values) if values else math.nan
