"""Attributes lost accuracy to attention weights or to later layers. Runs without JAX.

A is the accuracy of the unchanged model; R that of a linear reader of the attention
output, fitted at length N; S that of the model if mean and variance of each component
of the attention output are restored to those of training
(`vvlen.evaluation.retriever.intervention`); C that of the class with most attention
weight, which is read from the weights alone. Index N is the test length, index 0 the
longest training length.

  lost      =  A_0 − A_N  =  weights' + reader's
  weights'  =  R_0 − R_N                    no linear reader of the output regains it
  reader's  = (R_N − A_N) − (R_0 − A_0)     a reader fitted at N regains it
  scale's   = (S_N − A_N) − (S_0 − A_0)     part of the reader's: regained by restoring
                                            mean and variance
  attended  =  C_0 − C_N                    what the weights alone lose, without values

The paper's claim is about the reader's and the scale's: the attention output still
determines the answer, but it has shrunk away from what the layers after it were trained
on.
"""

from typing import NamedTuple

import numpy as np

from vvlen.reporting.results import by_seed, Index
from vvlen.statistics import paired_t_test, PairedTest

NAMES = ('lost', 'readers', 'scales', 'covariances', 'weights', 'attended')


class Parts(NamedTuple):
  """Parts of the accuracy that one arm loses, in points."""

  seeds: tuple[int, ...]
  lengths: tuple[int, ...]  # beyond the training lengths
  accuracy: np.ndarray  # [seeds, 1 + lengths]; the first is the training length
  lost: np.ndarray  # [seeds, lengths], like all fields below
  weights: np.ndarray
  readers: np.ndarray
  scales: np.ndarray
  covariances: np.ndarray  # like scales, but restoring the whole covariance
  attended: np.ndarray


def measured(index: Index, arm: str, trained_up_to: int) -> bool:
  """Returns whether a reader was fitted at all lengths, the training length too."""
  lengths = {n for a, m, n in index if (a, m) == (arm, 'accuracy') and n is not None}
  return trained_up_to in lengths and all(
      (arm + '+refit', 'accuracy', n) in index for n in lengths)


def parts(index: Index, arm: str, trained_up_to: int) -> Parts:
  """Returns the parts for each seed whose accuracies are all finite.

  Raises:
    ValueError: if the training length is not among the lengths, or an intervention is
      missing.
  """
  lengths = sorted(n for a, m, n in index if (a, m) == (arm, 'accuracy') and n)
  beyond = [n for n in lengths if n > trained_up_to]
  if trained_up_to not in lengths or not beyond:
    raise ValueError(f'{arm} needs the lengths {trained_up_to} and beyond: {lengths}')
  at = [trained_up_to, *beyond]
  tables = []
  for suffix in ('', '+refit', '+standardized', '+covariance', '+attended_class'):
    if (arm + suffix, 'accuracy', trained_up_to) not in index:
      raise ValueError(f'there are no rows of {arm + suffix}')
    tables.append(by_seed(index, arm + suffix, 'accuracy', at))
  seeds = tuple(sorted(
      seed for seed in set.intersection(*map(set, tables))
      if all(np.isfinite(table[seed]).all() for table in tables)
  ))
  a, r, s, c, attended = (
      100 * np.array([table[seed] for seed in seeds]).reshape(len(seeds), len(at))
      for table in tables
  )
  loses = lambda x: x[:, :1] - x[:, 1:]
  more = lambda x: (x - a)[:, 1:] - (x - a)[:, :1]
  return Parts(
      seeds, tuple(beyond), a, lost=loses(a), weights=loses(r), readers=more(r),
      scales=more(s), covariances=more(c), attended=loses(attended),
  )


def mean_test(values: np.ndarray) -> PairedTest | None:
  """Tests whether the mean of [seeds, lengths] is 0; None for fewer than two seeds."""
  own = values.mean(axis=1)
  return paired_t_test(own, np.zeros_like(own)) if len(own) > 1 else None


def difference(treated: Parts, control: Parts, name: str) -> PairedTest | None:
  """Tests whether two arms differ in one part, treated − control, paired by seed."""
  seeds = sorted(set(treated.seeds) & set(control.seeds))
  if len(seeds) < 2:
    return None
  one, other = (
      getattr(each, name)[[each.seeds.index(s) for s in seeds]].mean(axis=1)
      for each in (treated, control)
  )
  return paired_t_test(one, other)
