"""Comparisons of two arms against the same numbers by numpy and scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from vvlen import statistics
from vvlen.reporting import endpoints as comparison

_LENGTHS = (16, 32, 64)
_TRAINED_UP_TO = 16


def _accuracies(num_seeds=6):
  """Returns treated and control, shares [seeds, lengths]."""
  rng = np.random.default_rng(0)
  spread = np.array([0.01, 0.02, 0.05])
  treated = np.array([0.9, 0.6, 0.3]) + spread * rng.normal(size=(num_seeds, 3))
  control = np.array([0.8, 0.6, 0.2]) + spread * rng.normal(size=(num_seeds, 3))
  return treated, control


def _compare(treated, control, metric='accuracy'):
  """Compares two tables whose rows begin with the longest length."""
  index = {
      (arm, metric, length): dict(enumerate(table[:, i]))
      for i, length in reversed(list(enumerate(_LENGTHS)))
      for arm, table in (('treated', treated), ('control', control))
  }
  return comparison.compare(
      index, 'treated', 'control', trained_up_to=_TRAINED_UP_TO, metric=metric
  )


def test_each_length_is_tested_and_its_numbers_stand_in_order():
  treated, control = _accuracies()
  actual = _compare(treated, control)
  assert actual.lengths == _LENGTHS
  expected = stats.ttest_rel(treated, control)
  np.testing.assert_allclose([t.t for t in actual.by_length], expected.statistic)
  np.testing.assert_allclose(actual.holm_p, statistics.holm(expected.pvalue))
  np.testing.assert_allclose(
      [t.mean_difference for t in actual.by_length],
      100 * (treated - control).mean(axis=0),
  )
  np.testing.assert_allclose(actual.treated_mean, 100 * treated.mean(axis=0))
  np.testing.assert_allclose(actual.control_mean, 100 * control.mean(axis=0))


def test_another_metric_is_compared_as_accuracy_is():
  treated, control = _accuracies()
  actual = _compare(treated, control, metric='target_weight')
  assert actual.primary == _compare(treated, control).primary


@pytest.mark.parametrize('length', range(3))
@pytest.mark.parametrize('arm', range(2))
def test_a_seed_is_left_out_wherever_it_is_not_finite(arm, length):
  tables = _accuracies()
  tables[arm][2, length] = np.nan
  actual = _compare(*tables)
  assert actual.left_out == (2,)
  others = np.arange(6) != 2
  assert actual.primary == _compare(*(x[others] for x in tables)).primary


def test_lengths_that_the_treated_arm_lacks_are_named():
  index = {('treated', 'accuracy', 32): {0: 0.5}, ('control', 'accuracy', 32): {0: 0.5},
           ('control', 'accuracy', 64): {0: 0.5}}
  with pytest.raises(ValueError, match=r'no accuracy of treated at lengths \[64\]'):
    comparison.compare(index, 'treated', 'control', trained_up_to=16)


def test_seeds_more_than_five_points_below_the_median_did_not_converge():
  accuracy = {0: 0.9, 1: 0.86, 2: 0.82, 3: 1.0, 4: 0.9, 5: float('nan'), 6: 0.1}
  assert comparison.not_converged(accuracy) == [2, 5, 6]


def test_an_arm_that_diverged_has_no_median_and_is_not_the_best():
  nan = float('nan')
  assert math.isnan(comparison.median_accuracy({0: nan, 1: nan}))
  assert math.isnan(comparison.median_accuracy({}))
  assert comparison.median_accuracy({0: nan, 1: 0.25, 2: 0.75}) == 0.5
  for arm, others in (({0: 0.9, 1: 0.9, 2: 0.8}, [{0: nan}]),
                      ({0: 0.8}, [{0: nan}, {0: 0.9}])):
    assert comparison.not_converged(arm, others) == [len(arm) - 1]
  assert comparison.not_converged({0: nan, 1: nan}, [{0: 0.9}]) == [0, 1]
  assert comparison.not_converged({0: nan, 1: nan}) == [0, 1]


def test_a_change_is_paired_over_the_seeds_that_both_have():
  treated, control = _accuracies(8)
  after, before = _compare(treated, control), _compare(treated + 0.1, control)
  del before.primary_differences[2], after.primary_differences[5]
  left = [s for s in range(8) if s not in (2, 5)]
  test = comparison.change(after, before)
  assert (test.num_pairs, test.mean_difference) == (6, pytest.approx(-10))
  after.primary_differences[0] += 1  # equal changes are no test
  test = comparison.change(after, before)
  expected = stats.ttest_rel([after.primary_differences[s] for s in left],
                             [before.primary_differences[s] for s in left])
  assert test.p == pytest.approx(expected.pvalue)
