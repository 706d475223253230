"""Correlations within models that are alike: the control. Runs without JAX.

What differs between groups of models, such as their positions, may move predictor and
outcome together without the one telling anything of the other. Models of one kind have
the same positions and the same length of training.
"""

from collections.abc import Mapping
import functools
from typing import Any

from experiments.correlation import comparison
from experiments.correlation.comparison import CORRELATION_WORDS
from experiments.correlation.points import (
    LEAST,
    OUTCOMES,
    outcomes,
    Points,
    PREDICTORS,
    Run,
)
from experiments.correlation.related import in_kinds, within_kinds
from vvlen.reporting.tables import CellText, Table

WITHIN = 'within kinds'


def table(run: Run, points: Points) -> Table:
  """Makes the table: a row for each outcome and group, within kinds first."""
  kinds = in_kinds(points)
  within = functools.partial(comparison.both, run, kinds, relate=within_kinds)
  records: list[dict[str, Any]] = []
  for outcome in outcomes(run):
    field = f'{outcome}_beyond'
    of = lambda name, part, found, outcome=outcome: {
        'outcome': outcome, 'group': name, 'models': len(part.models), **found}
    records += [of(WITHIN, kinds, within(field))]
    records += [of(name, part, comparison.both(run, part, field))
                for name, part in _groups(points).items()]
  columns: dict[str, CellText] = {
      'outcome': lambda r: OUTCOMES[r['outcome']], 'group': lambda r: r['group'],
      'models': lambda r: str(r['models']), **comparison.COLUMNS}
  return Table(
      'groups', f'Correlations within groups. Outcomes at {run.beyond_words}',
      columns, records,
      'Within kinds: less the means of models with the same positions and length of '
      f'training. r: {CORRELATION_WORDS[run.correlation]}; misalignment: '
      f'{PREDICTORS[run.measure]}. Secondary, not corrected for being many.',
      more=f'Groups of fewer than {LEAST} models have no correlations, and models '
           'without others of their kind are not in the first rows. Positions and '
           'training length may change misalignment and the outcome together: a '
           'correlation over all models that is not found within kinds is one between '
           'them. Means of kinds are taken in each resample anew; of normals in kinds '
           'such as these, 28 models in 8 kinds, the intervals cover r = 0.7 in 97 % '
           'of samples.')


def _groups(points: Points) -> Mapping[str, Points]:
  """Returns the models that have the same positions, or the same training length."""
  names = [(model.positions, f'trained on {model.length} tokens')
           for model in points.models]
  return {name: points.only([name in own for own in names])
          for name in dict.fromkeys(own[i] for i in range(2) for own in names)}
