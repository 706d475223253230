"""The table of attention outputs of a family, from made-up power laws."""

import numpy as np
import pytest

from experiments.length_generalization.slopes import slopes_at_the_end
from experiments.vanishing_variance import outputs
from experiments.vanishing_variance.effects import FamilyCell
from tests.cells import cells, interval, paired
from vvlen.reporting import results
from vvlen.reporting.numbers import alike
from vvlen.statistics import mean_interval

_LENGTHS = (8, 16, 32, 64, 128, 256)
_CELL = FamilyCell(
    'base', 'retrieval', 16, 5, (10, 20), 0.0, 'kernels', 1e-3, False, False, False)


@pytest.fixture(scope='module')
def made():
  """Slopes, weights {arm: [seeds]} and the index of rows after step 20."""
  rng = np.random.default_rng(5)
  slopes = {arm: rng.normal(mean, 0.1, 5)
            for arm, mean in (('none', -1), ('layer_norm', -0.5))}
  weights = {arm: rng.uniform(low, low + 0.2, 5)
             for arm, low in (('none', 0.3), ('layer_norm', 0.5))}
  rows = []
  for a, arm in enumerate(slopes):
    for seed in range(5):
      for n in _LENGTHS:
        fall = n ** slopes[arm][seed]
        # Not a power law before 16 = 256 / 16.
        row = {'component_variance': 3 * fall if n >= 16 else 7.0,
               'output_variance': (2 + a) * (1 + seed) / n,
               'target_weight': weights[arm][seed] + (0 if n > 16 else 0.4)}
        rows += [results.Row('base', arm, seed, n, name, float(x), 20)
                 for name, x in row.items()]
  return slopes, weights, results.index_cells(rows)


def test_every_cell_of_the_outputs(made):
  slopes, weights, indices = made
  spread = np.exp(np.log(np.arange(1, 6)).mean())  # geometric mean of the seeds
  expected = []
  for a, (arm, name) in enumerate((('none', 'Baseline'), ('layer_norm', 'LN'))):
    ends = [(2 + a) * spread / n for n in (16, 256)]
    gain = ''
    if a:
      test = paired(weights['layer_norm'], weights['none'])
      gain = interval(*test.interval, '+.3f')
    expected.append({
        'cell': 'base', 'arm': name,
        'slope of a component\'s variance': interval(
            *map(float, mean_interval(slopes[arm])), '.2f').replace('-', '−'),
        'global variance': ' → '.join(alike(ends, 3)),
        'weight of the target': f'{weights[arm].mean():.3f}',
        'LN − Baseline of it [95 %]': gain, 'seeds': '5',
    })
  assert cells(outputs.table({'base': _CELL}, indices)) == expected


def test_what_was_not_stored_has_no_row(made):
  *_, indices = made
  other = _CELL._replace(name='l2')
  assert not outputs.table({'l2': other}, indices).records
  # Nor has a cell before its last step.
  assert not outputs.table({'base': _CELL._replace(steps=(10, 40))}, indices).records


def test_slopes_are_of_the_last_lengths_of_seeds_that_are_positive():
  lengths = [1, 16, 64, 256]
  values = np.array([[5.0, 16**-0.5, 64**-0.5, 256**-0.5], [1, 1, 0, 1],
                     [1, 1, np.nan, 1], [9, 2, 2, 2]])
  slopes, start = slopes_at_the_end(lengths, values)
  np.testing.assert_allclose(slopes, [-0.5, 0], atol=1e-12)
  assert start == 16
  assert slopes_at_the_end([16], values[:, :1]) == ([], 16)
