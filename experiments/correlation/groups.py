"""Correlations within models that are alike: the control. Runs without JAX.

What differs between groups of models, such as their positions, may move predictor and
outcome together without the one telling anything of the other. Within a group it
cannot. A kind is the models with the same positions and the same length of training;
where means of kinds are taken away, all models that have others of their kind are in
one correlation,

  r(x − mean of x in its kind, y − mean of y in its kind)
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

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
from vvlen.reporting.tables import CellText, Table

WITHIN = 'all, each less the mean of its kind'


def within_kinds(points: Points) -> Points:
  """Returns the models that have others of their kind, less the means of kinds."""
  kinds = [(model.positions, model.length) for model in points.models]
  kept = np.array([kinds.count(kind) > 1 for kind in kinds], bool)
  means: dict[str, np.ndarray] = {}
  for field, values in points.means.items():
    less = np.array(values, float)
    for kind in set(kinds):
      inside = np.array([own == kind for own in kinds])
      less[inside] -= less[inside].mean()
    means[field] = less[kept]
  models = tuple(m for m, keep in zip(points.models, kept, strict=True) if keep)
  return points._replace(models=models, means=means)


def table(run: Run, points: Points) -> Table:
  """Makes the table: a row for each outcome and group, those within kinds first."""
  parts = {WITHIN: within_kinds(points), **_groups(points)}
  records: list[dict[str, Any]] = [
      {'outcome': outcome, 'group': name, 'models': len(part.models),
       **comparison.both(run, part, f'{outcome}_beyond')}
      for outcome in outcomes(run) for name, part in parts.items()]
  columns: dict[str, CellText] = {
      'outcome': lambda r: OUTCOMES[r['outcome']], 'group': lambda r: r['group'],
      'models': lambda r: str(r['models']), **comparison.COLUMNS}
  return Table(
      'groups', f'Correlations within groups. Outcomes at {run.beyond_words}',
      columns, records,
      'A kind: models with the same positions and length of training. r: '
      f'{CORRELATION_WORDS[run.correlation]}; misalignment: {PREDICTORS[run.measure]}. '
      'Secondary, not corrected for being many.',
      more=f'Groups of fewer than {LEAST} models have no correlations, and models '
           'without others of their kind are not in the first rows. Positions and '
           'training length may change misalignment and the outcome together: a '
           'correlation over all models that is not found within kinds is one between '
           'them.')


def _groups(points: Points) -> Mapping[str, Points]:
  """Returns the models that have the same positions, or the same training length."""
  names = [(model.positions, f'trained on {model.length} tokens')
           for model in points.models]
  found = {}
  for name in dict.fromkeys(own[place] for place in range(2) for own in names):
    inside = np.array([name in own for own in names])
    found[name] = points._replace(
        models=tuple(m for m, keep in zip(points.models, inside, strict=True) if keep),
        means={field: x[inside] for field, x in points.means.items()})
  return found
