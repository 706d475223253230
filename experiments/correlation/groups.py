"""Correlations among models that are alike: the control. Runs without JAX.

Positions and L may move predictor and outcome together without the one telling anything
of the other.
"""

from collections.abc import Mapping
import functools
from typing import Any

from experiments.correlation import comparison
from experiments.correlation.comparison import CORRELATION_WORDS
from experiments.correlation.points import (
    compared,
    LEAST,
    OUTCOMES,
    outcomes,
    Points,
    PREDICTORS,
    Run,
    without_term,
)
from experiments.correlation.related import with_others, within
from vvlen.reporting.tables import CellText, Table

WITHIN = 'the same positions and L'
ALL = 'also those that have not learned'


def table(run: Run, points: Points) -> Table:
  """Makes the table: a row for each outcome and group, models that are alike first.

  Args:
    run: what was run.
    points: the models that have results.
  """
  plain, used = without_term(points), compared(run, points)
  several = with_others(used)
  among = functools.partial(comparison.both, run, several, relate=within)
  records: list[dict[str, Any]] = []
  for outcome in outcomes(run):
    of = lambda name, part, found, outcome=outcome: {
        'outcome': outcome, 'group': name, 'models': len(part.models), **found}
    records += [of(WITHIN, several, among(outcome))]
    records += [of(name, part, comparison.both(run, part, outcome))
                for name, part in {ALL: plain, **_groups(used)}.items()]
  columns: dict[str, CellText] = {
      'outcome': lambda r: OUTCOMES[r['outcome']], 'group': lambda r: r['group'],
      'models': lambda r: str(r['models']), **comparison.COLUMNS}
  return Table(
      'groups', 'Correlations within groups of models', columns, records,
      'The same positions and L: less the mean of models that have these. r: '
      f'{CORRELATION_WORDS[run.correlation]}; misalignment: '
      f'{PREDICTORS[run.measure]}. The first row is the control of the verdict; all '
      'else is secondary and not corrected for being many.',
      more=f'Groups of fewer than {LEAST} models have no correlations, and models '
           'without others that are alike are not in the first rows. Positions and L, '
           'the length of training, may change misalignment and the outcome together: '
           'a correlation over all models that is not found among those that are alike '
           'may be one between positions, or lengths. Means are taken in each resample '
           'anew. All groups but the second have learned each task that counts.')


def _groups(points: Points) -> Mapping[str, Points]:
  """Returns the models that have the same positions, or the same training length."""
  names = [(model.positions, f'trained on {model.length} tokens')
           for model in points.models]
  return {name: points.only([name in own for own in names])
          for name in dict.fromkeys(own[i] for i in range(2) for own in names)}
