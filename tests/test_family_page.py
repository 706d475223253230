"""The texts on the family of vanishing variance have the numbers of its tables."""

import csv
import re

import pytest

from tests.conftest import ROOT
from vvlen.reporting.numbers import number

_RESULTS = ROOT / 'experiments/results/vanishing_variance'


def _rows(table):
  with (_RESULTS / f'tables/{table}.csv').open() as file:
    return list(csv.DictReader(file))


def _text(path):
  """Returns a page in one line, without plus signs and bold."""
  return re.sub(r'\s+', ' ', path.read_text().replace('+', '').replace('*', ''))


def _says(text, row, prefix='', form='.1f'):
  """Returns whether a text has a difference and its interval, with either sign."""
  value, low, high = (
      float(row[prefix + name]) for name in ('difference', 'ci_low', 'ci_high'))
  signs = ((value, low, high), (-value, -high, -low))
  return any(re.search(
      r'(?<![\d.])' + re.escape(number(value, form)) + r'[^\d\[]{0,60}'
      + re.escape(f'[{number(low, form)}, {number(high, form)}]'), text)
      for value, low, high in signs)


_PAGE = _text(ROOT / 'docs/vanishing_variance.md')
_README = _text(_RESULTS / 'README.md')


def test_a_number_that_differs_in_a_digit_is_found():
  row = dict(difference='-4.036', ci_low='-4.624', ci_high='-3.447')
  assert _says('decaying −4.0 [−4.6, −3.4],', row)
  assert _says('costs it 4.0 points [3.4, 4.6]', row)
  assert not _says('decaying −4.0 [−4.6, −3.5],', row)  # from −3.45, rounded twice
  assert not _says('decaying −14.0 [−4.6, −3.4],', row)
  assert not _says('decaying 4.0 [−4.6, −3.4],', row)


@pytest.mark.parametrize('row', [
    row for row in _rows('verdicts') if row['difference'] != 'nan'
], ids=lambda row: row['cell'])
def test_the_verdicts_are_in_the_texts(row):
  assert _says(_PAGE, row)
  assert _says(_README, row, form='.2f')


@pytest.mark.parametrize('row', [
    row for row in _rows('along_training') if row['step'] == '100000'
    or (row['cell'], row['step']) in (('output_projection', '40000'),
                                      ('growing', '20000'))
], ids=lambda row: row['cell'])
def test_the_last_step_is_in_the_texts_in_each_weighting(row):
  assert _says(_README, row, 'averaged_', '.2f')
  assert _says(_README, row, 'adaptive_', '.2f')
  # The page has Table 1, which is trained on 5 to 16 items, with this temperature.
  assert _says(_PAGE, row, 'adaptive_') or row['cell'] == 'growing'


_NOT_IN_THE_PAGE = ('L2 on all parameters, not kernels alone', 'output projection',
                    'L2 × decaying rate')


@pytest.mark.parametrize('row', [
    row for row in _rows('what_changes_it') if row['plain_difference'] != 'nan'
    and row['contrast'].replace(' x ', ' × ') not in _NOT_IN_THE_PAGE
], ids=lambda row: row['contrast'])
def test_what_changes_the_effect_is_in_the_page(row):
  assert _says(_PAGE, row, 'plain_')


@pytest.mark.parametrize('row', _rows('parts_gain'), ids=lambda row: row['cell'])
@pytest.mark.parametrize('part', ['weights', 'readers', 'attended'])
def test_where_ln_loses_less_is_in_the_texts(row, part):
  for text in (_PAGE, _README):
    assert _says(text, row, f'{part}_')
