"""Tables of where accuracy is lost with length. Runs without JAX."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from experiments.mechanism import parts
from vvlen.reporting.endpoints import CONTROL, TREATED
from vvlen.reporting.numbers import number
from vvlen.reporting.plots import ARMS
from vvlen.reporting.results import Index
from vvlen.reporting.tables import (
  blank_without,
  CellText,
  difference,
  difference_cell,
  p_cell,
  Table,
)
from vvlen.statistics import at_level

_TITLES = {
    'lost': 'lost [95 %]', 'weights': 'the weights\'', 'readers': 'the reader\'s',
    'scales': 'of it the scale\'s', 'covariances': 'the covariance\'s',
    'attended': 'lost by the class with most weight',
}


class Measured(NamedTuple):
  """Interventions on the models of one run, or of one cell of a family."""

  rows: Index
  trained_up_to: int  # the longest training length
  num_seeds: int  # of each arm, once the run is finished


def table(measured: Mapping[str, Measured]) -> Table:
  """Returns the table of where accuracy is lost, a row per cell and arm.

  Args:
    measured: by the name of the cell; the name of a run by itself is empty.
  """
  records = []
  for name, cell in measured.items():
    for arm in (CONTROL, TREATED):
      found = parts.parts(cell.rows, arm, cell.trained_up_to)
      record: dict[str, Any] = {
          'cell': name, 'arm': ARMS[arm][0], 'seeds': len(found.seeds),
          'at_training_length': found.accuracy[:, 0].mean(),
      }
      for part in parts.NAMES:
        record |= difference(parts.mean_test(getattr(found, part)), f'{part}_')
      records.append(record)
  columns: dict[str, Any] = _names(measured) | {
      'arm': lambda r: r['arm'],
      'at the training length': lambda r: number(r['at_training_length'], '.1f'),
  }
  for part, title in _TITLES.items():
    columns[title] = _loss_cell(part)
  columns['seeds'] = lambda r: str(r['seeds'])
  note = (
      'Points of accuracy lost from the longest training length on, mean over the '
      'longer lengths, with 95 % intervals over seeds, uncorrected. Lost = the '
      'weights\' + the reader\'s.'
  )
  more = (
      'The weights\': no linear reader of the attention output gets it back, fitted at '
      'that length. The reader\'s: such a reader would. Of the reader\'s, the '
      'scale\'s: mean and variance of each component as in training would get it back; '
      'the covariance\'s: mean and whole covariance would. The class with most weight: '
      'the answer of the attention weights alone, without values or layers after them.'
  )
  return Table('parts', 'Where accuracy is lost with length', columns, records, note,
               more=more)


def _names(measured: Mapping[str, Measured]) -> dict[str, Any]:
  """Returns the column of names, none for a run by itself."""
  return {'cell': lambda r: r['cell']} if any(measured) else {}


def _loss_cell(part: str) -> CellText:
  """Returns the cell of a part of the lost accuracy, without a plus sign."""
  signed = difference_cell('.1f', f'{part}_')
  return blank_without(f'{part}_difference', lambda r: signed(r).replace('+', ''))


def gain_table(
    measured: Mapping[str, Measured], level: float, count: int = 1
) -> Table:
  """Returns the table of whether LN loses less, and where, a row per cell.

  Args:
    measured: by the name of the cell; the name of a run by itself is empty.
    level: of all tests in a column together.
    count: how many cells are tested once the family is finished.
  """
  records = []
  for name, cell in measured.items():
    control, treated = (
        parts.parts(cell.rows, arm, cell.trained_up_to) for arm in (CONTROL, TREATED)
    )
    pairs = len(set(control.seeds) & set(treated.seeds))
    complete = pairs == cell.num_seeds
    record: dict[str, Any] = {'cell': name, 'seeds': pairs}
    for part in parts.NAMES:
      test = parts.difference(treated, control, part)
      wide = at_level(test, level / count) if test and np.isfinite(test.t) else None
      record |= difference(wide, f'{part}_')
      record[f'{part}_p'] = (
          min(1.0, test.p * count) if complete and wide and test else np.nan)
    records.append(record)
  columns = _names(measured)
  for part, title in _TITLES.items():
    title = title.replace(' [95 %]', '')
    columns[f'{title} [95 %]'] = blank_without(
        f'{part}_difference', difference_cell('.1f', f'{part}_'))
    if part == 'readers':
      columns['p of the reader\'s'] = p_cell('readers_p')
  columns['seeds'] = lambda r: str(r['seeds'])
  corrected = (f'corrected over the {count} cells (Bonferroni)' if count > 1
               else 'uncorrected')
  note = (
      'The loss of LN minus the loss of the Baseline, in points, paired over seeds; '
      f'below 0, LN loses less. Intervals and p of a column are {corrected}.'
  )
  more = ('The paper\'s claim is that LN lessens the part of the reader. The parts are '
          'explained below the table of where accuracy is lost.')
  return Table('parts_gain', 'Does LN lessen what is lost, and where?', columns,
               records, note, more=more)
