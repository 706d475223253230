"""The table about training, a row per arm. Runs without JAX."""

from collections.abc import Iterable, Sequence
import math
from typing import Any

from experiments.length_generalization.comparisons import NAMES
from vvlen.reporting import results
from vvlen.reporting.endpoints import median_accuracy, not_converged
from vvlen.reporting.numbers import name_seeds, number
from vvlen.reporting.tables import Table


def training_table(index: results.Index) -> Table:
  """Makes the table about training, a row per arm."""
  accuracy = {arm: index.get((arm, 'training_accuracy', None), {}) for arm in NAMES}
  loss = {arm: index.get((arm, 'training_loss', None), {}) for arm in NAMES}
  records = [
      _record(name, accuracy[arm], loss[arm], [*accuracy.values()])
      for arm, name in NAMES.items() if accuracy[arm] and loss[arm]
  ]
  columns = {
      'arm': lambda r: r['arm'],
      'seeds': lambda r: str(r['seeds']),
      'loss': lambda r: number(r['loss'], '.4f'),
      'accuracy': lambda r: number(r['accuracy'], '.2f'),
      'lowest accuracy': lambda r: number(r['lowest_accuracy'], '.2f'),
      'not converged': lambda r: r['not_converged'],
      'not finite': lambda r: r['not_finite'],
  }
  note = (
      'Means at the end of training, on batches not yet trained on: loss in nats, '
      'accuracy in %. Not converged: seeds more than 5 points below the median of the '
      'best arm; these stay in the tests. Not finite: left out of the tests.'
  )
  more = ('The end of training: its last tenth, or the last line of the learning '
          'curves if that covers more steps.')
  return Table('training', 'Training', columns, records, note, more=more)


def _record(
    arm: str, accuracy: dict[int, float], loss: dict[int, float],
    accuracies: Sequence[dict[int, float]],
) -> dict[str, Any]:
  """Returns the row of an arm.

  Args:
    arm: its name.
    accuracy: {seed: accuracy at the end of training}.
    loss: {seed: loss at the end of training}.
    accuracies: those of all arms; seeds far below the best arm have not converged.
  """
  finite = [x for x in accuracy.values() if math.isfinite(x)]
  broken = [s for s, x in loss.items() if not math.isfinite(x)]
  return {
      'arm': arm, 'seeds': len(accuracy),
      'loss': _finite_mean(loss.values()),
      'accuracy': 100 * _finite_mean(accuracy.values()),
      'median_accuracy': 100 * median_accuracy(accuracy),
      'lowest_accuracy': 100 * min(finite, default=math.nan),
      'not_converged': name_seeds(
          s for s in not_converged(accuracy, accuracies) if s not in broken),
      'not_finite': name_seeds(broken),
  }


def _finite_mean(values: Iterable[float]) -> float:
  finite = [x for x in values if math.isfinite(x)]
  return sum(finite) / len(finite) if finite else math.nan
