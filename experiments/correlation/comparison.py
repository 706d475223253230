"""Training loss and misalignment as predictors of one outcome. Runs without JAX."""

from collections.abc import Callable

from experiments.correlation.points import At, Points, Run, TRAINING_LOSS
from experiments.correlation.related import ours, Related
from vvlen.reporting.tables import (
  blank_without,
  CellText,
  interval_cell,
  interval_fields,
)

CORRELATION_WORDS = {'pearson': 'Pearson', 'spearman': 'Spearman',
                     'partial': 'partial Pearson',
                     'partial_spearman': 'partial Spearman'}
GAIN = 'r as claimed − that of training loss'  # in the direction that is claimed
COLUMNS: dict[str, CellText] = {  # of the fields of `both`
    f'{words} [95 %]': blank_without(name, interval_cell(name, '+.2f'))
    for name, words in (('loss', 'r, training loss'),
                        ('misalignment', 'r, misalignment'), ('gain', GAIN))}


def both(
    run: Run, points: Points, outcome: str | At, relate: Callable[..., Related] = ours
) -> dict[str, float]:
  """Returns r of both predictors with an outcome, as the fields of a record.

  Args:
    run: for the measure of misalignment and the primary correlation.
    points: the models.
    outcome: as in `ours`.
    relate: `ours` or `within`.
  """
  loss, misalignment = (
      relate(run, points, name, outcome) for name in (TRAINING_LOSS, run.measure))
  return {**interval_fields('loss', getattr(loss, run.correlation)),
          **interval_fields('misalignment', getattr(misalignment, run.correlation)),
          **interval_fields('gain', misalignment.gain)}
