"""The tables of linear attention on bits. Runs without JAX.

For each task and training length n, four 2 × 2 tables A are compared: that of least
squares over all strings, its closed form, that of the paper's single number Γ, and that
of models trained by gradient descent. `vvlen.theory.linear_attention` has the formulas.
Losses are mean squared errors over all strings of a length.
"""

from collections.abc import Mapping, Sequence
import math
from typing import Any, NamedTuple

import numpy as np

from vvlen.reporting.numbers import give_or_take, known, name_seeds, number, ROUNDING
from vvlen.reporting.results import Index
from vvlen.reporting.tables import CellText, interval_fields, number_cell, Table
from vvlen.statistics import mean_interval
from vvlen.theory import linear_attention as theory

ENTRIES = ('table_00', 'table_01', 'table_10', 'table_11')
_NAMES = {'exact': 'least squares', 'closed': 'closed form', 'single': "paper's Γ",
          'trained': 'trained'}
_OUTREP = {'exact': 'y', 'sqrt': '√y', 'log': 'log y', 'inverse_sqrt': '1/√y'}


class Setting(NamedTuple):
  """A task and the largest number of bits in training."""

  task: str
  n: int

  @property
  def name(self) -> str:
    """Returns the value of the column experiment."""
    return f'{self.task}_{self.n}'


# setting -> its rows, by (arm, metric, length)
Indices = dict[Setting, Index]


def optimum(indices: Indices, longest: int) -> Table:
  """Makes the table of the four tables A of each setting.

  Args:
    indices: of all settings.
    longest: the longest test length.
  """
  records: list[dict[str, Any]] = []
  for setting, index in indices.items():
    exact = _values(index, 'exact', ENTRIES)
    for arm in _NAMES:
      values = _arm_values(setting, index, arm, longest)
      if values is None:
        continue
      record: dict[str, Any] = {'task': setting.task, 'n': setting.n, 'table': arm,
                                'seeds': len(values)}
      for name, column in zip((*ENTRIES, 'training_loss', 'test_loss'), values.T,
                              strict=True):
        record |= interval_fields(name, mean_interval(column))
      finite = values[np.isfinite(values).all(axis=1)]
      record['largest_difference'] = float(
          np.abs(finite[:, :4] - exact).max(initial=0.0)) if len(finite) else math.nan
      records.append(record)
  columns: dict[str, Any] = {
      'task': lambda r: r['task'], 'n': lambda r: str(r['n']),
      'table': lambda r: _NAMES[r['table']],
      **{f'A{name[-2:]}': _half_interval(name) for name in ENTRIES},
      'training loss': _half_interval('training_loss'),
      f'loss at {longest}': _half_interval('test_loss'),
      'largest difference from least squares': lambda r: (
          '' if r['table'] == 'exact' else known(r['largest_difference'], ',.6f')),
  }
  seeds = sorted({r['seeds'] for r in records if r['table'] == 'trained'})
  note = ('A[a, b]: the last bit a attends to the bit b; loss: mean squared error over '
          'all strings.')
  more = 'Training is on 1 to n fair bits, over all strings.'
  if seeds:
    note += (f' Trained: mean over {" or ".join(map(str, seeds))} seeds ± half of the '
             '95 % interval, if that is 1e−6 or more.')
    more += (' The training loss of the trained is as the model computes it. Largest '
             'difference: over entries and seeds. Of the mean, A00 and A10 are '
             'products that may come near 0 slowly in training.')
  note += f' {ROUNDING}: rounding.'
  if any(setting.n == 1 for setting in indices):
    more += ' n = 1 leaves A01 and A10 undetermined; least squares has them 0.'
  broken = [f'{s.name}, {name_seeds(odd)}' for s, index in indices.items()
            if (odd := [seed for seed, x in trained_loss(index).items()
                        if not math.isfinite(x)])]
  note += f' Not finite, and left out: {"; ".join(broken)}.' if broken else ''
  return Table('optimum', 'Linear attention: exact, by formula, and trained', columns,
               records, note, more=more)


def errata(indices: Indices, longest: int) -> Table:
  """Makes the table of the paper's formulas, next to exact values over all strings.

  Args:
    indices: of all settings.
    longest: the longest test length.
  """
  records = []

  def add(setting, length, what, formula, paper, truth, right):
    records.append({
        'task': setting.task, 'n': setting.n, 'length': length, 'quantity': what,
        'formula': formula, 'paper': paper, 'all_strings': truth, 'right': right})

  for setting, index in indices.items():
    task, n = setting
    if task == 'mean':
      continue
    gamma = theory.single_value(task, n)
    at = lambda arm, k, index=index: index[arm, 'loss', k][0]
    best, single = (index[arm, 'training_loss', None][0] for arm in ('exact', 'single'))
    add(setting, None, 'least training loss', f'that of Γ = {gamma:.6g}', single, best,
        'A of two numbers' if task == 'length' else 'A of three numbers')
    if task == 'length':
      add(setting, longest, 'loss of Γ', '(l − Γ)²', (longest - gamma) ** 2,
          at('single', longest), 'as printed')
      add(setting, n, 'loss of Γ at l = n', 'O((l − n)²) = 0', 0.0, at('single', n),
          '((n − 1)/2)²')
    else:
      square = (longest - gamma) ** 2
      add(setting, longest, 'loss of Γ', '(l + 1)/(2l)·(l − Γ)²',
          (longest + 1) / (2 * longest) * square, at('single', longest),
          '(l + 1)/(4l)·(l − Γ)²')
    add(setting, longest, 'loss of the optimum', 'that of Γ', at('single', longest),
        at('exact', longest), 'no short formula')
  columns: dict[str, Any] = {
      'task': lambda r: r['task'], 'n': lambda r: str(r['n']),
      'l': lambda r: '1..n' if r['length'] is None else str(r['length']),
      'quantity': lambda r: r['quantity'], 'the paper': lambda r: r['formula'],
      'by the paper': lambda r: known(r['paper'], ',.6f'),
      'over all strings': lambda r: known(r['all_strings'], ',.6f'),
      'correct': lambda r: r['right'],
  }
  return Table(
      'errata', "The paper's formulas and their corrections", columns, records,
      'The paper: arXiv 2506.11769. Γ is the best of single numbers, as it says, but a '
      'head of two dimensions can have any A. Of sum, E c² = l(l + 1)/4. For the mean '
      'Γ = 1 is the best A, with no loss at any length.')


def reparameterization(indices: Indices, longest: int) -> Table:
  """Makes the table of the exact optimum of length under reparameterized targets.

  Args:
    indices: of all settings; those of the task 'length' are used.
    longest: the longest test length.
  """
  records = []
  for setting, index in indices.items():
    lengths = sorted({setting.n, *(k for k in (20, 35) if k < longest), longest})
    for arm in _OUTREP if setting.task == 'length' else ():
      records += [
          {'n': setting.n, 'target': arm, 'length': k, 'loss': index[arm, 'loss', k][0],
           'ratio': index[arm, 'loss', k][0] / index['exact', 'loss', k][0]}
          for k in lengths
      ]
  columns: dict[str, Any] = {
      'n': lambda r: str(r['n']), 'f(y)': lambda r: _OUTREP[r['target']],
      'l': lambda r: str(r['length']),
      'loss of y': lambda r: number(r['loss'], ',.1f'),
      'times that of f(y) = y': lambda r: number(r['ratio'], '.3f'),
  }
  return Table(
      'reparameterization', 'Length: the exact optimum trained on f(y), decoded',
      columns, records,
      'The best A for f(y) in training; its answer is decoded by the inverse of f (√: '
      'an answer below 0 counts as 0; 1/√: one below 0.001 as that), and its loss is '
      'that of y. A gain beyond n would be a ratio well below 1.')


def sampled(indices: Indices) -> Table:
  """Makes the table of losses over random strings, next to those over all strings.

  Args:
    indices: of all settings.
  """
  records: list[dict[str, Any]] = []
  for setting, index in indices.items():
    lengths = sorted(k for arm, metric, k in index
                     if (arm, metric) == ('exact', 'sampled_loss') and k)
    for k in lengths:
      found, error, exact = (index['exact', metric, k][0] for metric in (
          'sampled_loss', 'sampled_loss_error', 'loss'))
      # For the task 'mean', and for single bits, all strings have the same loss up to
      # rounding.
      varies = error > 1e-6 * max(found, 1e-6)
      records.append({
          'task': setting.task, 'n': setting.n, 'length': k, 'all_strings': exact,
          'sampled': found, 'sampled_error': error,
          'difference_in_errors': (found - exact) / error if varies else math.nan})
  differences = np.array([r['difference_in_errors'] for r in records], float)
  far = np.abs(differences[np.isfinite(differences)]).max(initial=0.0)
  columns: dict[str, Any] = {
      'task': lambda r: r['task'], 'n': lambda r: str(r['n']),
      'l': lambda r: str(r['length']),
      'loss, all strings': lambda r: known(r['all_strings'], ',.4f'),
      'loss, drawn strings': lambda r: give_or_take(r['sampled'], r['sampled_error']),
      'difference in standard errors': number_cell('difference_in_errors', '+.2f'),
  }
  note = ('The exact optimum, put into the model, on drawn strings; ±: standard error. '
          'Shorter strings are the first bits of longer ones, the same for all tasks.')
  if any(r['sampled'] < 1e-6 for r in records):
    note += f' {ROUNDING}: rounding.'
  if far:
    note += f' The farthest is {far:.1f} standard errors away.'
  return Table('sampled', 'Drawn strings against all strings', columns, records, note)


def trained_loss(index: Index) -> Mapping[int, float]:
  """Returns {seed: training loss} of the trained models."""
  return index.get(('trained', 'training_loss', None), {})


def _values(index: Index, arm: str, metrics: Sequence[str]) -> np.ndarray:
  """Returns [seeds, metrics], for metrics that do not depend on a length."""
  return np.stack([[*index[arm, name, None].values()] for name in metrics], axis=1)


def _arm_values(
    setting: Setting, index: Index, arm: str, longest: int
) -> np.ndarray | None:
  """Returns entries, training loss and loss at `longest`, [seeds, 6]; None if none."""
  if arm == 'closed':
    if setting.n < 2:
      return None
    table = theory.closed_form_table(setting.task, setting.n)
    training = np.mean([theory.loss(table, setting.task, k)
                        for k in range(1, setting.n + 1)])
    test = theory.loss(table, setting.task, longest)
    return np.array([[*table.ravel(), training, test]])
  if (arm, 'training_loss', None) not in index:
    return None
  last = [[x] for x in index[arm, 'loss', longest].values()]
  own = _values(index, arm, (*ENTRIES, 'training_loss'))
  return np.concatenate([own, last], axis=1)


def _half_interval(name: str) -> CellText:
  """Returns a cell function: the mean ± half of its interval, if it has one."""
  return lambda r: give_or_take(r[name], r[f'{name}_high'] - r[name])
