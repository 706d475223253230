"""Linear attention against all strings of bits, one by one, and the paper's numbers."""

import itertools
import time

import numpy as np
import pytest

from vvlen.theory import linear_attention as linear

TARGETS = {'mean': lambda x: sum(x) / len(x), 'length': len, 'sum': sum}


def _features(bits):
  """Returns what multiplies A[0, 0], A[0, 1], A[1, 0] and A[1, 1]."""
  row = np.zeros((2, 2))
  for bit in bits:
    row[bits[-1], bit] += 1 / len(bits)
  return row.ravel()


def _enumerated(task, lengths):
  """Returns the design, targets and weights of all strings of all lengths."""
  strings = [x for k in lengths for x in itertools.product((0, 1), repeat=k)]
  design = np.array([_features(x) for x in strings])
  target = np.array([TARGETS[task](x) for x in strings], float)
  weight = np.array([0.5 ** len(x) / len(lengths) for x in strings])
  return design, target, weight


@pytest.mark.parametrize('task', linear.TASKS)
@pytest.mark.parametrize('train_length', [1, 2, 3, 7])
def test_fit_is_least_squares_over_all_strings(task, train_length):
  design, target, weight = _enumerated(task, range(1, train_length + 1))
  root = np.sqrt(weight)
  expected = np.linalg.pinv(design * root[:, None]) @ (target * root)
  found = linear.fit(task, train_length)
  np.testing.assert_allclose(found.table.ravel(), expected, atol=1e-12)
  squares = weight @ (design @ expected - target) ** 2
  np.testing.assert_allclose(found.train_loss, squares, atol=1e-12)


@pytest.mark.parametrize('task', linear.TASKS)
@pytest.mark.parametrize('length', [1, 4, 9])
def test_loss_is_the_mean_over_all_strings(task, length):
  table = np.array([[0.3, -1.7], [2.2, 0.9]])
  design, target, weight = _enumerated(task, [length])
  expected = weight @ (design @ table.ravel() - target) ** 2
  np.testing.assert_allclose(linear.loss(table, task, length), expected, rtol=1e-12)
  decoded = weight @ ((design @ table.ravel()) ** 2 - target) ** 2
  np.testing.assert_allclose(
      linear.loss(table, task, length, decode=np.square), decoded, rtol=1e-12
  )


def test_encoded_targets_are_fitted():
  design, target, weight = _enumerated('length', range(1, 6))
  root = np.sqrt(weight)
  expected = np.linalg.pinv(design * root[:, None]) @ (np.log(target) * root)
  found = linear.fit('length', 5, encode=np.log)
  np.testing.assert_allclose(found.table.ravel(), expected, atol=1e-12)


@pytest.mark.parametrize('task', linear.TASKS)
@pytest.mark.parametrize('train_length', [2, 10, 50])
def test_closed_forms(task, train_length):
  np.testing.assert_allclose(
      linear.closed_form_table(task, train_length),
      linear.fit(task, train_length).table, atol=1e-11,
  )


def test_known_numbers():
  found = linear.fit('length', 10)
  np.testing.assert_allclose(
      found.table, [[3.414172, 9.313815], [9.313815, 3.414172]], atol=1e-6
  )
  np.testing.assert_allclose(found.train_loss, 6.447858, atol=1e-6)
  np.testing.assert_allclose(
      linear.loss(found.table, 'length', 50), 1909.423831, atol=1e-6
  )
  found = linear.fit('sum', 10)
  np.testing.assert_allclose(found.train_loss, 2.133422, atol=1e-6)
  np.testing.assert_allclose(
      linear.loss(found.table, 'sum', 50), 488.207155, atol=1e-6
  )


@pytest.mark.parametrize('task, gamma, train, test', [
    ('length', 5.5, 8.25, 44.5**2), ('sum', 5.027470, 2.830361, 515.744756),
    ('mean', 1.0, 0.0, 0.0),
])
def test_the_papers_single_number(task, gamma, train, test):
  value = linear.single_value(task, 10)
  np.testing.assert_allclose(value, gamma, atol=1e-6)

  def losses(value, lengths):
    table = linear.single_value_table(task, value)
    return np.array([linear.loss(table, task, k) for k in lengths])

  np.testing.assert_allclose(losses(value, range(1, 11)).mean(), train, atol=1e-6)
  np.testing.assert_allclose(losses(value, [50]), test, atol=1e-6)
  # It minimizes the loss at the training lengths.
  for other in (value - 1e-3, value + 1e-3):
    assert losses(other, range(1, 11)).mean() > losses(value, range(1, 11)).mean()


def test_errata():
  # 1: the factor of sum is (l + 1)/(4l), twice that is in the paper.
  for length in (1, 5, 50):
    found = linear.loss(linear.single_value_table('sum', 3.0), 'sum', length)
    expected = (length + 1) / (4 * length) * (3.0 - length) ** 2
    np.testing.assert_allclose(found, expected, rtol=1e-12)
  # 2: one number is not the optimum.
  assert linear.fit('length', 10).train_loss < 8.25 - 1.8
  # 3: at the training length the loss of length is not 0.
  table = linear.single_value_table('length', linear.single_value('length', 10))
  np.testing.assert_allclose(linear.loss(table, 'length', 10), 4.5**2, rtol=1e-12)
  # 8: output reparameterization is worse here, at length 50.
  clamped = lambda z: np.maximum(z, 1e-3) ** -2
  table = linear.fit('length', 10, encode=lambda y: y**-0.5).table
  np.testing.assert_allclose(
      linear.loss(table, 'length', 50, decode=clamped), 1985.9, atol=0.05
  )


@pytest.mark.parametrize('task', ['length', 'sum'])
@pytest.mark.parametrize('single', [False, True])
def test_length_and_sum_grow_quadratically_and_the_mean_does_not(task, single):
  def losses(task):
    table = linear.fit(task, 10).table
    if single:
      table = linear.single_value_table(task, linear.single_value(task, 10))
    return [linear.loss(table, task, k) for k in (1000, 2000)]

  first, second = losses(task)
  np.testing.assert_allclose(second / first, 4, rtol=0.02)
  assert max(losses('mean')) < 1e-25


def test_it_takes_well_under_a_second():
  start = time.perf_counter()
  table = linear.fit('sum', 50).table
  linear.loss(table, 'sum', 1000)
  assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize('call', [
    lambda: linear.fit('median', 10), lambda: linear.fit('mean', 0),
    lambda: linear.fit('sum', 3, lambda y: y**-0.5),
    lambda: linear.fit('mean', 3, np.log),
    lambda: linear.fit('mean', 2.5), lambda: linear.fit('mean', True),
    lambda: linear.loss(np.zeros(4), 'mean', 3),
    lambda: linear.loss(np.zeros((2, 2)), 'mean', -1),
    lambda: linear.single_value('mode', 3), lambda: linear.closed_form_table('sum', 1),
])
def test_bad_input(call):
  with pytest.raises(ValueError):
    call()
