"""The table of what the attention output does with length. Runs without JAX.

It is about three statements of arXiv 2504.02827: Proposition 1 (the variance of a
component falls at least as 1/N), Figure 3 (the global variance is steadier with LN) and
Figure 4 (attention is less dispersed with LN).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.length_generalization.slopes import slopes_at_the_end
from experiments.vanishing_variance.effects import FamilyCell
from vvlen.reporting import plots
from vvlen.reporting.endpoints import CONTROL, endpoint, TREATED
from vvlen.reporting.plots import ARMS
from vvlen.reporting.results import Index
from vvlen.reporting.tables import (
  blank_without,
  difference,
  difference_cell,
  interval_cell,
  interval_fields,
  number_cell,
  pair_cell,
  Table,
)
from vvlen.statistics import mean_interval, paired_by_seed


def table(
    cells: Mapping[str, FamilyCell], indices: Mapping[tuple[str, int], Index]
) -> Table:
  """Returns the table of attention outputs after the last step, two rows per cell."""
  records, first = [], set()
  for cell in cells.values():
    index = indices.get((cell.name, cell.steps[-1]), {})
    for arm in (CONTROL, TREATED):
      found = _record(index, cell, arm)
      if found:
        records.append(found | {'cell': cell.name, 'arm': ARMS[arm][0]})
        first.add(found['slope_from'])
  columns = {
      'cell': lambda r: r['cell'], 'arm': lambda r: r['arm'],
      'slope of a component\'s variance': blank_without(
          'slope', interval_cell('slope', '.2f')),
      'global variance': pair_cell('variance_short', 'variance_long', '.3g'),
      'weight of the target': number_cell('weight', '.3f'),
      'LN − Baseline of it [95 %]': blank_without(
          'weight_difference', difference_cell('.3f', 'weight_')),
      'seeds': lambda r: str(r['seeds']),
  }
  start = f', {min(first):,} items' if first else ''
  note = (
      'Slope: of the variance of a component of the output against N, log-log (−1: as '
      '1/N). Global variance: over features, after the norm, from the longest training '
      'length → the longest. Weight: attention weight, mean beyond training.'
  )
  more = (
      'After the last step; intervals are uncorrected. Slopes are of each seed, from a '
      f'sixteenth of the longest length on{start}; global variances are geometric '
      'means over seeds. Seeds: those whose attention outputs were stored.'
  )
  return Table('outputs', 'What the attention output does with length', columns,
               records, note, more=more)


def _record(index: Index, cell: FamilyCell, arm: str) -> dict[str, Any]:
  """Returns what the outputs of an arm of a cell do with length, {} if not measured."""
  lengths, components = plots.values(index, arm, 'component_variance')
  shown, variances = plots.values(index, arm, 'output_variance')
  if not lengths or not shown:
    return {}
  slopes, start = slopes_at_the_end(lengths, components)
  trained = [n for n in shown if n <= cell.trained_up_to]
  short = shown.index(trained[-1] if trained else shown[0])
  logs = np.log(np.where(variances > 0, variances, np.nan))
  means = np.exp(np.nanmean(logs, axis=0))
  of_arm = lambda arm: {seed: x / 100 for seed, x in endpoint(
      index, arm, cell.trained_up_to, 'target_weight').items()}
  weights = of_arm(arm)
  test = paired_by_seed(weights, of_arm(CONTROL)) if arm == TREATED else None
  return {
      **interval_fields('slope', mean_interval(slopes)), 'slope_from': start,
      'variance_short': float(means[short]), 'variance_long': float(means[-1]),
      'weight': float(np.mean([*weights.values()])),
      **difference(test, 'weight_'), 'seeds': len(components),
  }
