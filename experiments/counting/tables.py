"""The table of a figure of counting, a row for each of its lines. Runs without JAX.

The endpoint of a model is the mean over the lengths l beyond training of

  log10 E(l),   E(l) = the mean squared error at l bits, at least `FLOOR`

and a model is compared with the control of its figure, paired over seeds:

  factor = 10 ** mean over seeds of (endpoint of the model − endpoint of the control)
"""

from collections.abc import Callable, Iterable, Sequence
import math
from typing import Any

import numpy as np

from experiments.counting import figures
from experiments.counting.answer import best_constant, both_learned, short
from experiments.counting.cells import FigureSetups, Setup
from experiments.counting.figures import FLOOR
from vvlen.reporting import plots, results
from vvlen.reporting.numbers import name_seeds, number, p_value
from vvlen.reporting.results import by_seed, Index
from vvlen.reporting.tables import (
  blank_without,
  cell_if,
  CellText,
  interval_fields,
  p_of,
  Record,
  Table,
)
from vvlen.statistics import (
  by_holm,
  detectable_together,
  mean_interval,
  paired_by_seed,
  PairedTest,
)

_SHOWN = (10, 20, 35, 50)  # lengths that have a column, and the longest
_RIGHT = 0.95  # the least share of right answers at which a length counts as right

# experiment -> its rows, by (arm, metric, length)
Indices = dict[str, Index]


def table(
    name: str, figure: FigureSetups, indices: Indices, longest: int
) -> Table:
  """Makes the table of a figure, a row for each of its lines.

  Args:
    name: of the figure.
    figure: with cells that all have results.
    indices: of all experiments.
    longest: the longest test length.
  """
  control = figure.control
  tests = [
      None if control in (None, cell) else compare(indices, cell, control)
      for cell in figure.cells
  ]
  detectable = detectable_together(tests)
  lengths = [n for n in _SHOWN if n < longest] + [longest]
  counted = figure.cells[0].task != 'mean'
  records = [
      _record(figure, indices, cell, lengths, counted, test, least) | {
          'p': p_of(uncorrected)}
      for cell, uncorrected, test, least in zip(
          figure.cells, tests, by_holm(tests), detectable, strict=True)
  ]
  columns: dict[str, CellText] = {'model': lambda r: r['model']}
  for n in lengths:
    columns[f'l = {n}'] = _error_cell(f'error_{n}', records)
  of_median = _notation(r['median_error'] for r in records)
  columns[f'median, l = {longest}'] = lambda r: of_median(r['median_error'])
  if counted:
    columns['right up to'] = lambda r: str(r['right_up_to'])
  if control is not None:
    columns |= _test_columns(records, _label(figure, control))
  return Table(name, _title(name, figure), columns, records,
               _note(figure, indices, longest), more=_more(figure, counted, longest))


def _test_columns(records: Sequence[Record], control: str) -> dict[str, CellText]:
  """Returns the columns of the tests against the model with the label `control`.

  Where a model or the control has not learned, the factor stands without its interval.
  """
  learned = lambda record: both_learned(record, records, control)
  factors = ('factor', 'factor_low', 'factor_high')
  factor = _notation(r[name] for r in records for name in factors
                     if name == 'factor' or learned(r))
  least = _notation(r['smallest_detectable'] for r in records if learned(r))

  def with_ends(record: Record) -> str:
    mean, low, high = (factor(record[name]) for name in factors)
    return f'{mean} [{low}, {high}]'

  return {
      'factor beyond training [95 %]': blank_without('factor', cell_if(
          learned, with_ends, lambda r: factor(r['factor']))),
      'p Holm': cell_if(
          lambda r: r['model'] != control,
          cell_if(learned, lambda r: p_value(r['p_holm']), 'not learned')),
      'smallest detectable': cell_if(learned, blank_without(
          'smallest_detectable', lambda r: f'×/÷ {least(r["smallest_detectable"])}')),
  }


def compare(indices: Indices, treated: Setup, control: Setup) -> PairedTest | None:
  """Tests log10 of the error beyond training, treated − control.

  Returns:
    The test; None if fewer than two seeds have finite errors in both cells.
  """
  return paired_by_seed(endpoint(indices, treated), endpoint(indices, control))


def endpoint(indices: Indices, cell: Setup) -> dict[int, float]:
  """Returns {seed: mean of log10 of the error over lengths beyond training}."""
  index = indices[cell.experiment]
  lengths, _ = plots.values(index, cell.arm, 'squared_error')
  beyond = [n for n in lengths if n > cell.train_length]
  errors = by_seed(index, cell.arm, 'squared_error', beyond)
  return {seed: float(np.log10(np.maximum(x, FLOOR)).mean())
          for seed, x in errors.items()}


def _broken(indices: Indices, cell: Setup) -> list[int]:
  """Returns the seeds whose error is not finite at some length."""
  index = indices[cell.experiment]
  lengths, _ = plots.values(index, cell.arm, 'squared_error')
  errors = by_seed(index, cell.arm, 'squared_error', lengths)
  return [seed for seed, x in errors.items() if not np.isfinite(x).all()]


def seeds_of(indices: Indices, cell: Setup) -> set[int]:
  """Returns the seeds of a cell that have results."""
  index = indices[cell.experiment]
  return {*index.get((cell.arm, 'squared_error', 1), ())}


def _record(
    figure: FigureSetups, indices: Indices, cell: Setup, lengths: Sequence[int],
    counted: bool, test: PairedTest | None, detectable: float,
) -> dict[str, Any]:
  """Returns what is known of a cell: errors, right answers, its corrected test."""
  index = indices[cell.experiment]
  values = lambda metric, n: np.array([*index[cell.arm, metric, n].values()])
  record: dict[str, Any] = {
      'model': _label(figure, cell), 'seeds': len(seeds_of(indices, cell))}
  for n in lengths:
    errors = np.log10(np.maximum(values('squared_error', n), FLOOR))
    record |= interval_fields(
        f'error_{n}', [10 ** float(x) for x in mean_interval(errors)])
  median = values('median_squared_error', lengths[-1])
  learned = np.log10(np.maximum(values('squared_error', cell.train_length), FLOOR))
  record['training_error'] = 10 ** float(mean_interval(learned)[0])
  record['constant_error'] = best_constant(
      cell.task, cell.counts, cell.train_length)
  record['median_error'] = 10 ** float(
      mean_interval(np.log10(np.maximum(median, FLOOR)))[0])
  if counted:
    record['right_up_to'] = _right_up_to(index, cell.arm)
  nan = math.nan
  power = lambda x: float(10**x)
  record |= {
      'factor': power(test.mean_difference) if test else nan,
      'factor_low': power(test.ci_low) if test else nan,
      'factor_high': power(test.ci_high) if test else nan,
      'p_holm': p_of(test),
      'smallest_detectable': power(detectable),
  }
  return record


def _right_up_to(index: Index, arm: str) -> int:
  """Returns the last length up to which 95 % of answers round to the target."""
  lengths, _ = plots.values(index, arm, 'accuracy')
  last = 0
  for n in lengths:
    share, _, _ = mean_interval([*index[arm, 'accuracy', n].values()])
    if not share >= _RIGHT:
      break
    last = n
  return last


def control_label(figure: FigureSetups) -> str | None:
  """Returns the label of the model that others are tested against, if any."""
  return None if figure.control is None else _label(figure, figure.control)


def _label(figure: FigureSetups, cell: Setup) -> str:
  """Returns the label of a cell in a figure: what it has of what the figure varies."""
  return figures.label(figure.varied, cell)


def _title(name: str, figure: FigureSetups) -> str:
  words = name.removeprefix('figure_').replace('_', ', ')
  return f'Figure {words}. Mean squared error of the {figures.what(figure)}'


def _note(figure: FigureSetups, indices: Indices, longest: int) -> str:
  """Returns the note of a table: what its numbers are, and which seeds are left out."""
  seeds = sorted({len(seeds_of(indices, cell)) for cell in figure.cells})
  trained = sorted({cell.train_length for cell in figure.cells})
  upto = '' if len(trained) > 1 else f', trained on 1 to {trained[0]} bits'
  parts = [f'Geometric mean over {" or ".join(map(str, seeds))} seeds [95 %]{upto}.']
  if figure.control is not None:
    parts.append(
        f'Factor: the error divided by that of {_label(figure, figure.control)}; p: '
        'paired t-test, corrected over the lines, as is the interval.')
  parts += _trivial(figure, longest)
  broken = {_label(figure, cell): _broken(indices, cell) for cell in figure.cells}
  parts += [f'Not finite, and left out: {cell}, {name_seeds(s)}.'
            for cell, s in broken.items() if s]
  return ' '.join(parts)


def _trivial(figure: FigureSetups, longest: int) -> list[str]:
  """Returns a sentence on the error of the mean without reading any bits."""
  if figure.cells[0].task != 'mean':
    return []
  counts = figure.cells[0].counts
  formula = '1/(4l)' if counts == 'fair' else '1/12 + 1/(6l)'
  error = best_constant('mean', counts, longest)
  return [f'To answer 1/2 always is an error of {formula}, {short(error)} at '
          f'{longest}.']


def _more(figure: FigureSetups, counted: bool, longest: int) -> str:
  parts = ['Median: over strings of one length.']
  if counted:
    parts.append('Right up to: the last length up to which 95 % of answers round to '
                 'the target.')
  if any(cell.positions == 'learned' for cell in figure.cells):
    parts.append('Learned positions beyond the training lengths keep their initial '
                 'values.')
  if figure.control is not None:
    parts.append(
        'Factor: geometric mean over all lengths beyond training; p is of its '
        'logarithm, corrected by Holm over the lines of the table. Smallest '
        'detectable: the factor that this test finds four times in five.'
    )
  return ' '.join([*parts, *_published(figure, longest)])


def _published(figure: FigureSetups, longest: int) -> list[str]:
  """Returns sentences on the paper's values, which are read off its figures."""
  parts, (mean, (at, _)) = [], figures.PUBLISHED
  if mean in figure.cells and longest >= at:
    parts.append('The paper: about 1e-5 at 50 without positions.')
  if mean._replace(task='length', reparameterization='inverse_sqrt') in figure.cells:
    parts.append('The paper: 1/√y is nearly perfect up to 35.')
  return parts


def _error_cell(field: str, records: Sequence[Record]) -> CellText:
  """Returns the cell of an error and its interval, in one notation in all records."""
  names = [f'{field}{end}' for end in results.ENDS]
  written = _notation(r[name] for r in records for name in names)

  def cell(record: Record) -> str:
    mean, low, high = (written(record[name]) for name in names)
    return mean if math.isnan(record[names[1]]) else f'{mean} [{low}, {high}]'

  return cell


def _notation(values: Iterable[float]) -> Callable[[float], str]:
  """Returns how numbers of a column are written: with powers of ten if one needs it."""
  if any('e' in short(x) for x in values if math.isfinite(x)):
    return lambda x: number(x, '.1e')
  return short
