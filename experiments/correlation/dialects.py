"""Whether a dialect of the scorers changes which models are better.

Runs without JAX. Axes: M models.
"""

from typing import Any

from experiments.correlation.points import METRICS, OfTask, Points, Run
from experiments.language_model.figures import times
from experiments.long_context import ranking
from vvlen.reporting.numbers import number
from vvlen.reporting.tables import CellText, Table
from vvlen.statistics import spearman

_OTHERS = {dialect: metric for dialect, metric in METRICS.items()
           if dialect != 'official'}


def table(run: Run, points: Points) -> Table:
  """Makes the table: each task, length and dialect in which a pair of models turns.

  Args:
    run: what was run.
    points: the models to compare.
  """
  every: list[dict[str, Any]] = []
  for task in run.tasks:
    for n in run.lengths:
      official = points.means[OfTask(task, n)]
      for dialect, metric in _OTHERS.items():
        other = points.means[OfTask(task, n, metric)]
        every.append({
            'task': task, 'length': n, 'dialect': dialect,
            'official': float(official.mean()), 'mean': float(other.mean()),
            'spearman': float(spearman(official.round(9), other.round(9))),
            'turned': len(ranking.turned(official, other))})
  records = [record for record in every if record['turned']]
  columns: dict[str, CellText] = {
      'task': lambda r: r['task'], 'length': lambda r: times(r['length']),
      'dialect': lambda r: r['dialect'],
      'mean, official': lambda r: number(r['official'], '.3f'),
      'mean, dialect': lambda r: number(r['mean'], '.3f'),
      'Spearman': lambda r: number(r['spearman'], '+.2f'),
      'pairs turned': lambda r: str(r['turned']),
  }
  count = len(points.models)
  return Table(
      'dialects', 'Whether dialects change the order of the models', columns, records,
      f'Of {len(every)} combinations of task, length and dialect, the {len(records)} '
      f'in which a pair of the {count} models turns. Pairs turned: of '
      f'{count * (count - 1) // 2} pairs, those of which the one is better in the '
      'official dialect and worse in this one.',
      more='Whether pairs turn beyond noise is not tested: rows are means over '
           'prompts, and a pair may turn by one answer. Means are over the models that '
           'are compared; Spearman: of their scores in both dialects. lm_eval: that of '
           'lm-evaluation-harness, of needles and pass keys the same rule as official, '
           'so that nothing can turn there; strict: whole words, and no wrong answer '
           'beside the right one.')
