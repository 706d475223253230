"""Numbers as texts of the repository state them, and tables of committed results."""

import csv
import re

from tests.cells import text
from tests.conftest import ROOT

RESULTS = ROOT / 'experiments/results'
README = ' '.join((ROOT / 'README.md').read_text().split())


def table(run, name, **wanted):
  """Returns the rows of a table in which columns have the given values."""
  with (RESULTS / run / 'tables' / f'{name}.csv').open() as file:
    return [row for row in csv.DictReader(file)
            if all(row[column] == value for column, value in wanted.items())]


def signed(x, digits):
  return text(float(x), f'+.{digits}f')


def plain(x, digits):
  return text(float(x), f'.{digits}f')


def interval(row, name='difference', low='ci_low', high='ci_high', form=signed,
              digits=1):
  """Returns such as '+1.8 [+0.8, +2.9]'."""
  return '{} [{}, {}]'.format(*(form(row[x], digits) for x in (name, low, high)))


def finding(words):
  """Returns the numbered finding of README whose bold beginning has these words."""
  findings = README.partition('## What was found ')[2].partition('## ')[0]
  found, = (x for x in re.split(r' (?=\d\. \*\*)', findings)
            if re.match(rf'\d\. \*\*[^*]*{words}', x))
  return found


def says(said, *numbers):
  """Asserts that a text has these numbers in this order, however it is worded."""
  between = r'(?<![\d.,−])' + r'(?!\d).*?(?<![\d.,−])'.join(map(re.escape, numbers))
  assert re.search(between + r'(?!\d)', said), (numbers, said)


def page(path):
  return ' '.join((ROOT / path).read_text().split())
