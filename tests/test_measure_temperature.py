"""The temperature that heads of a checkpoint need: table, figure and sentence."""

import math

import numpy as np
import pytest

from experiments.measure import figures, tables
from experiments.measure.answer import answer
from experiments.measure.rows import Part
from tests.artists import lines
from tests.cells import cells
from vvlen.reporting import plots

# By layer and head: the power of N with its interval, of text.
POWERS = {(0, 0): (0.5, 0.4, 0.6), (0, 1): (-0.2, -0.3, -0.1), (1, 0): (0.1, -0.1, 0.3),
          (1, 1): (0.8, 0.7, 0.9)}
LENGTHS = (8, 64, 2048)


@pytest.fixture(scope='module')
def values():
  found = {}
  for (layer, head), power in POWERS.items():
    for order, factor in (('text', 1.0), ('shuffled', 3.0)):
      part = Part('entropy', order, layer, head)
      for n in LENGTHS:
        found[part, 'temperature', n] = factor * (head + 1) * n ** power[0]
      for end, x in zip(('', '_low', '_high'), power, strict=True):
        found[part, f'exponent_of_n{end}', None] = x + factor - 1
        found[part, f'exponent_of_log_n{end}', None] = 4 * x
  del found[Part('entropy', 'shuffled', 1, 1), 'exponent_of_n_low', None]
  return found


def test_the_table_has_a_row_for_each_head(values):
  table = tables.temperature(values)
  assert [(r['layer'], r['head']) for r in table.records] == [*POWERS]
  shown = cells(table)
  assert shown[1] == {
      'layer': '0', 'head': '1', 'β, text': '1.32 → 0.44',
      'power of N, text [95 %]': '−0.20 [−0.30, −0.10]',
      'power of log N, text [95 %]': '−0.80 [−1.20, −0.40]',
      'β, shuffled': '3.96 → 1.31',
      'power of N, shuffled [95 %]': '+1.80 [+1.70, +1.90]'}
  assert 'at N = 8 and 2,048.' in table.note
  assert math.isnan(table.records[3]['shuffled_of_n_low'])
  assert tables.temperature({}).records == []


def test_the_sentence_counts_heads_by_the_interval_of_their_power(values):
  [said] = answer((), (), tables.temperature(values).records)
  assert said == (
      'The inverse temperature that gives the top key half of the weight grows with N '
      'in 2 of 4 heads and falls in 1; in the median head as N to the power +0.30, or '
      'as log N to the power +1.20.')
  without = {key: x for key, x in values.items() if 'exponent' not in key[1]}
  assert answer((), (), tables.temperature(without).records) == []


def test_the_figure_has_the_median_head_and_the_range(values):
  with plots.style():
    figure = figures.temperature(values, 64)
  for layer, axes in enumerate(figure.axes):
    drawn = lines(axes)
    for order, factor in (('text', 1.0), ('shuffled', 3.0)):
      heads = [[factor * (head + 1) * n ** POWERS[layer, head][0] for n in LENGTHS]
               for head in (0, 1)]
      np.testing.assert_allclose(drawn[order].x, LENGTHS)
      np.testing.assert_allclose(drawn[order].y, np.mean(heads, 0))
    bands = [x.get_paths()[0].vertices for x in axes.collections]
    assert np.isclose(bands[0][:, 1].max(), max(heads[0][2], heads[1][2]) / 3)
    guide = drawn['proportional to log N']
    np.testing.assert_allclose(
        guide.y, drawn['text'].y[0] * np.log(LENGTHS) / np.log(8))
  # What is 0 or infinite has no place on a logarithmic axis.
  bad = {**values, (Part('entropy', 'text', 0, 0), 'temperature', 8): math.inf,
         (Part('entropy', 'text', 0, 1), 'temperature', 8): 0.0}
  with plots.style():
    drawn = lines(figures.temperature(bad, 64).axes[0])
  np.testing.assert_allclose(drawn['text'].x, LENGTHS[1:])
  assert figures.temperature({}, 64) is None
