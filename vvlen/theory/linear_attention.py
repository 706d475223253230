"""Causal linear attention that predicts mean, length or sum of bits, solved exactly.

One layer without softmax, whose output is divided by the position, reads x_1..x_k:

  g(x_1..x_k) = (1/k) Σ_i A[x_k, x_i] = (A[a, 0] (k − c) + A[a, 1] c) / k

with a = x_k the last bit, c the number of ones, and A a 2 × 2 table, to which
embedding, queries, keys, values and head reduce (arXiv 2506.11769, section 3). Trained
on fair bits, at lengths uniform on 1..n, it minimizes

  Σ_{k ≤ n} E (g(x_1..x_k) − y)² / n,   y = c/k (mean), k (length) or c (sum).

This is a least-squares problem. g depends only on (a, c, k), where a is a fair bit and
c − a is binomial over k − 1 bits: so n (n + 1) cases stand for 2ⁿ⁺¹ sequences, and the
two rows of A are separate problems. With H = Σ_{i ≤ n} 1/i:

  mean     A11 = A01 = 1, A10 = A00 = 0: no loss at any length
  length   A11 = A00 = n/H,  A10 = A01 = n(n − 1)/(n − H) − n/H
  sum      A11 = n/H,  A01 = n(n − 1)/(2(n − H)),  A10 = A01 − A11,  A00 = 0

The paper has a single number Γ in place of the table. For length, every entry is
Γ = (n + 1)/2, and the loss at length l is (l − Γ)². For sum, bits of 1 add
Γ = n(n + 3)/(2(n + H)) and bits of 0 add nothing (A11 = A01 = Γ, A10 = A00 = 0), and
the loss is (l + 1)(l − Γ)²/(4l). These are optimal among such tables, not among all:
with a head of two or more dimensions, A can be any table. Either way the losses of
length and sum grow as l², and that of the mean stays 0.

Errata of the paper, found by enumeration: the factor (l + 1)/(2l) in the loss of sum
should be (l + 1)/(4l); the derivative in Eq. 20 should be (l + 1)/(2l) (Γ − l); Eq. 21
has one "=" too many (its root is right). The growth as (l − n)² is asymptotic: at l = n
the loss of length is ((n − 1)/2)², not 0. The constants of Theorem C.2 (Eq. 40) differ
from those of its text, so the theorem cannot be tested literally.

Everything is numpy, float64.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

TASKS = ('mean', 'length', 'sum')

# An elementwise function of an array of targets or predictions.
Transform = Callable[[np.ndarray], np.ndarray]


class Fit(NamedTuple):
  """The table that minimizes the training loss."""

  table: np.ndarray  # [2, 2], A; A[a, b]: the last bit a attends to a bit b
  train_loss: float  # in units of the encoded target, squared


def fit(task: str, train_length: int, encode: Transform | None = None) -> Fit:
  """Returns the table that training should find: least squares over all bit strings.

  Args:
    task: 'mean', 'length' or 'sum'.
    train_length: n; lengths 1..n are trained on.
    encode: maps y to the target to train on, as in output reparameterization
      (`vvlen.objectives.output_reparameterization`); None to train on y itself.

  Returns:
    A `Fit`. If several tables are optimal, as for n = 1, the one of least norm.

  Raises:
    ValueError: on an unknown task, a length that is not positive, or a target for which
      `encode` is not finite, such as 1/√0.
  """
  table, squares = np.zeros((2, 2)), 0.0
  _check(task, train_length)
  for last in (0, 1):
    cases = [_cases(task, k, last) for k in range(1, train_length + 1)]
    columns = zip(*cases, strict=True)
    features, target, probability = map(np.concatenate, columns)
    if encode is not None:
      with np.errstate(divide='ignore', invalid='ignore'):
        target = encode(target)
      if not np.isfinite(target).all():
        raise ValueError(f'the encoded target is not finite for every {task} of bits')
    root = np.sqrt(probability)
    table[last] = np.linalg.lstsq(features * root[:, None], target * root)[0]
    squares += probability @ (features @ table[last] - target) ** 2
  return Fit(table, float(squares / train_length))


def loss(
    table: np.ndarray, task: str, length: int, decode: Transform | None = None
) -> float:
  """Returns the mean squared error of a table over all bit strings of one length.

  Args:
    table: [2, 2], as in `Fit`.
    task: 'mean', 'length' or 'sum'.
    length: l.
    decode: the inverse of the `encode` passed to `fit`; None if there was none.

  Returns:
    E (g − y)², in units of y, squared.

  Raises:
    ValueError: on a table of another shape, an unknown task or a length that is not
      positive.
  """
  table = np.asarray(table, float)
  if table.shape != (2, 2):
    raise ValueError(f'table must be [2, 2]: {table.shape}')
  _check(task, length)
  squares = 0.0
  for last in (0, 1):
    features, target, probability = _cases(task, length, last)
    prediction = features @ table[last]
    if decode is not None:
      prediction = decode(prediction)
    squares += probability @ (prediction - target) ** 2
  return float(squares)


def single_value(task: str, train_length: int) -> float:
  """Returns the paper's Γ, the best single number in place of the table.

  Args:
    task: 'mean', 'length' or 'sum'.
    train_length: n.

  Raises:
    ValueError: on an unknown task or a length that is not positive.
  """
  _check(task, train_length)
  n = train_length
  if task == 'mean':
    return 1.0
  if task == 'length':
    return (n + 1) / 2
  return n * (n + 3) / (2 * (n + _harmonic(n)))


def single_value_table(task: str, value: float) -> np.ndarray:
  """Returns the table [2, 2] that a single number stands for in the paper.

  Args:
    task: 'length': every entry is Γ. 'mean' or 'sum': bits of 1 add Γ, and bits of 0
      add nothing.
    value: Γ.

  Raises:
    ValueError: on an unknown task.
  """
  _check(task, 1)
  return np.full((2, 2), value) * ([1.0, 1.0] if task == 'length' else [0.0, 1.0])


def closed_form_table(task: str, train_length: int) -> np.ndarray:
  """Returns the table [2, 2] of `fit` from the closed forms above.

  Args:
    task: 'mean', 'length' or 'sum'.
    train_length: n, at least 2: n = 1 leaves half of the table undetermined.

  Raises:
    ValueError: on an unknown task or a length below 2.
  """
  _check(task, train_length)
  if train_length < 2:
    raise ValueError(f'train_length must be at least 2: {train_length}')
  n, total = train_length, _harmonic(train_length)
  same, other = n / total, n * (n - 1) / (n - total)
  if task == 'mean':
    return np.array([[0.0, 1.0], [0.0, 1.0]])
  if task == 'length':
    return np.array([[same, other - same], [other - same, same]])
  return np.array([[0.0, other / 2], [other / 2 - same, same]])


def _cases(
    task: str, length: int, last: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns shares of zeros and ones [l, 2], targets [l] and probabilities [l].

  One case for each number of ones that strings of this length and last bit can have.
  """
  before = np.arange(length)  # ones before the last bit
  ones = before + last
  share = ones / length
  target = {'mean': share, 'length': np.full(length, float(length)),
            'sum': ones.astype(float)}[task]
  from scipy import stats  # takes half a second, and is needed here alone

  probability = stats.binom.pmf(before, length - 1, 0.5) / 2
  return np.stack([1 - share, share], axis=1), target, probability


def _harmonic(n: int) -> float:
  return float((1 / np.arange(1, n + 1)).sum())


def _check(task: str, length: int) -> None:
  if task not in TASKS:
    raise ValueError(f'task must be one of {", ".join(TASKS)}: {task!r}')
  whole = isinstance(length, (int, np.integer)) and length is not True
  if not whole or length < 1:
    raise ValueError(f'lengths must be positive whole numbers: {length!r}')
