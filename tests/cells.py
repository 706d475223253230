"""What tables must show, computed from made-up numbers by numpy and scipy."""

import re
import types

import numpy as np
from scipy import stats

from vvlen.statistics import smallest_detectable

# Sentences on single seeds and models come last, and may be as long as they must.
LAST = re.compile(r' (Left out,|Not learned|Not finite,).*')


def is_short(note):
  """Whether a note has at most two lines, but for seeds left out or not learned."""
  return len(LAST.sub('', note)) <= 240 and '\n' not in note


def cells(table):
  """Returns the rows of a table as they are shown; fails if its note is too long."""
  assert is_short(table.note), f'{len(table.note)} characters: {table.note}'
  return [{name: cell(r) for name, cell in table.columns.items()}
          for r in table.records]


def text(value, form):
  return format(value, form).replace('-', '−')


def interval(middle, low, high, form):
  return f'{text(middle, form)} [{text(low, form)}, {text(high, form)}]'


def p_of(value):
  return '< .001' if value < 0.001 else f'{value:.3f}'.lstrip('0')


def mean_of(values):
  """Returns a mean over seeds with its 95 % interval."""
  return np.mean(values), *stats.t.interval(
      0.95, len(values) - 1, np.mean(values), stats.sem(values))


def wide(tests):
  """Returns (mean, low, high) of tests from `paired`, at levels by Holm over them."""
  found, level = {}, 0.05 / len(tests)
  order = sorted(range(len(tests)), key=lambda i: tests[i].p)
  for rank, i in enumerate(order):
    # The level at which Holm's method decides; it stays where one is not found.
    if rank == 0 or tests[order[rank - 1]].p < level:
      level = 0.05 / (len(tests) - rank)
    ends = stats.ttest_1samp(tests[i].difference, 0).confidence_interval(1 - level)
    found[i] = (tests[i].mean, *ends)
  return [found[i] for i in range(len(tests))]


def paired(treated, control):
  """Returns a paired t-test by scipy, and the values that tables show of it."""
  difference = np.subtract(treated, control)
  test, deviation = stats.ttest_1samp(difference, 0), difference.std(ddof=1)
  return types.SimpleNamespace(
      mean=difference.mean(), interval=(difference.mean(), *test.confidence_interval()),
      effect=difference.mean() / deviation, t=test.statistic, p=test.pvalue,
      ahead=(difference > 0).sum(), difference=difference,
      least=lambda tests=1: smallest_detectable(
          deviation, difference.size, alpha=0.05 / tests))
