"""Figures of simulations, theory and checkpoints, read from their artists.

The numbers are made up, and no two are alike.
"""

import itertools
import re

from matplotlib.colors import to_hex
from matplotlib.contour import ContourSet
import numpy as np
import pytest

from experiments.linear_attention import figures as linear
from experiments.measure import figures as measure
from experiments.measure import spread
from experiments.measure.rows import BLOCK, Part, SLIDING, spread_part
from experiments.recency_bias import extensions, figures
from experiments.recency_bias.cells import Settings, Simulated
from tests.artists import all_bands, bands, line_of, lines, shades, words
from vvlen.reporting import plots
from vvlen.reporting.titles import setup_of, title_of

_COLOURS = ('#0072B2', '#E69F00', '#009E73', '#CC79A7', '#56B4E9', '#D55E00')
close = np.testing.assert_allclose


@pytest.fixture(autouse=True)
def style():
  with plots.style():
    yield


# Recency bias.


def _simulated(seed, **fields):
  """A simulation of four layers, of numbers of its own."""
  fields = dict(group='x', name=str(seed), width=16, num_tokens=5, num_layers=4,
                anisotropy=0.5, num_simulations=3000) | fields
  rng, n, layers = np.random.default_rng(seed), fields['num_tokens'], range(1, 5)
  numbers = {(name, i): rng.uniform(low, high)
             for name, low, high in (('recency_probability', 0.5, 1.0),
                                     ('recency_probability_error', 0.001, 0.01),
                                     ('violation_rate', 0.1, 0.4),
                                     ('violation_rate_error', 0.02, 0.03))
             for i in layers}
  arrays = {'mean': rng.normal(3, 1, (4, n, n)), 'last_row': rng.normal(3, 1, (4, n)),
            'standard_error': rng.uniform(0.01, 0.02, (4, n, n)),
            'last_row_error': rng.uniform(0.01, 0.02, (4, n))}
  return Simulated(Settings(**fields), numbers, arrays)


def test_heat_maps_have_a_row_a_simulation_and_a_panel_a_layer():
  rows = [_simulated(0), _simulated(1, layer_norm=False, residual=1.0)]
  figure = figures.heat_maps(rows)
  panels = [axes for axes in figure.axes if axes.get_images()
            and axes.get_label() != '<colorbar>']
  off = np.tri(5, k=-1, dtype=bool)
  for axes, (row, layer) in zip(
      panels, itertools.product(rows, range(4)), strict=True):
    mean = row.arrays['mean'][layer]
    drawn, lower = axes.images[0].get_array(), np.tri(5, dtype=bool)
    np.testing.assert_array_equal(drawn.filled(np.nan)[lower], mean[lower])
    every = row.arrays['mean'][:, off]  # one scale for a row
    close(axes.images[0].get_clim(), (every.min(), every.max()))
    rp = row.numbers['recency_probability', layer + 1]
    assert words(axes) == [f'RP {rp:.4f}']
    if row is rows[0]:
      assert axes.get_title() == f'layer {layer + 1}'
  assert panels[0].get_ylabel().startswith('LayerNorm\nα = 0.5\n\n')
  assert panels[4].get_ylabel().startswith('no LayerNorm\nα = 0.5\nresidual\n\n')


def test_what_the_paper_prints_stands_beside_what_is_measured():
  row = _simulated(0, num_tokens=10, width=64)
  figure = figures.heat_maps([row])
  said = [words(axes)[0].split('\n')[1] for axes in figure.axes if words(axes)]
  assert said == ['(0.5000)', '(0.5544)', '(0.6274)', '(0.7073)']
  assert figures.published(_simulated(0, num_tokens=8, width=64)) == ()
  assert figures.published(_simulated(0, num_tokens=10, layer='rms_norm')) == ()


def test_heat_maps_say_in_how_many_settings_recent_tokens_are_favoured():
  rows = [_simulated(i) for i in range(5)]
  for row, last in zip(rows, (0.71, 0.2, 0.504, 0.93, 0.496), strict=True):
    for layer in (1, 2, 3, 4):
      row.numbers['recency_probability', layer] = last if layer == 4 else 0.5
      row.numbers['recency_probability_error', layer] = 0.003
  title = lambda rows: title_of(figures.heat_maps(rows))
  assert title(rows) == (
      'Recent tokens are clearly favoured (RP > 0.52) in 2 of 5 settings, old ones '
      '(RP < 0.48) in 1: recency probability (RP) of layer 4 is 0.20 to 0.93')
  assert title(rows[:1]) == (
      'Recent tokens are clearly favoured (RP > 0.52) in 1 of 1 setting: '
      'recency probability (RP) of layer 4 is 0.71')
  # Below the margin none is counted, though another layer has an order.
  rows[0].numbers['recency_probability', 4] = 0.5 + figures.MARGIN - 1e-3
  rows[0].numbers['recency_probability', 3] = 0.7
  assert 'in 0 of 1 setting:' in title(rows[:1])
  # Nor what two standard errors may explain.
  rows[3].numbers['recency_probability_error', 4] = 0.3
  assert title(rows[3:4]).startswith(
      'Recent tokens are clearly favoured (RP > 0.52, two standard errors from 0.5) '
      'in 0 of 1 setting')


def test_a_bias_below_the_margin_is_no_order_whatever_its_error():
  row = _simulated(0)
  for layer in (1, 2, 3, 4):
    row.numbers['recency_probability_error', layer] = 1e-5
    row.numbers['recency_probability', layer] = 0.5 + figures.MARGIN - 1e-3
  assert figures.without_order(row)
  assert f'grey: RP within {figures.MARGIN:g} of 0.5 in all layers' in setup_of(
      figures.heat_maps([row]))
  row.numbers['recency_probability', 4] = 0.5 - figures.MARGIN - 1e-3
  assert not figures.without_order(row)


def test_the_closed_form_says_how_much_logits_rise():
  config = {'num_tokens': 6, 'width': 64, 'anisotropies': (0.0, 0.5)}
  figure = figures.curves(config, 0.0)
  ends = [line.get_ydata()[-1] / line.get_ydata()[0] for line in figure.axes[0].lines]
  assert title_of(figure) == (
      'The factor h(j) of the logits of layer 2 rises with the key token j, by up to '
      f'{100 * (max(ends) - 1):.2g} %')


def test_noise_has_nearly_one_colour():
  rng = np.random.default_rng(0)
  noise, errors = 16 + 0.002 * rng.normal(size=(4, 45)), np.full((4, 45), 0.002)
  low, high = figures.scale(noise, errors)
  assert high - low == pytest.approx(0.08)
  assert np.ptp((noise - low) / (high - low)) < 0.2
  signal = noise + np.arange(45)
  assert figures.scale(signal, errors) == (signal.min(), signal.max())


def _by_layer(simulated):
  """Returns recency probability and its error, [layers] each."""
  return [np.array([simulated.numbers[name, i] for i in (1, 2, 3, 4)])
          for name in ('recency_probability', 'recency_probability_error')]


def _check_layers(axes, expected):
  """Checks lines of (simulation, colour), with bands of two standard errors."""
  found = [line_of(line) for line in axes.lines
           if len(line.get_xdata()) and line.get_label() not in ('no order', 'paper')]
  for line, band, (simulated, colour) in zip(
      found, all_bands(axes), expected, strict=True):
    value, error = _by_layer(simulated)
    assert (line.colour, line.x) == (band[0], band[1]) == (colour, [1, 2, 3, 4])
    close(line.y, value)
    close(band[2:], [value - 2 * error, value + 2 * error])


def test_depth_has_a_line_a_length_and_the_logits_of_the_longest():
  found = [_simulated(i, num_tokens=n, residual=residual) for i, (n, residual) in
           enumerate(itertools.product((5, 9), (0.0, 1.0)))]
  plain, residual, last = extensions.depth(found).axes
  _check_layers(plain, [(found[0], _COLOURS[0]), (found[2], _COLOURS[1])])
  _check_layers(residual, [(found[1], _COLOURS[0]), (found[3], _COLOURS[1])])
  assert [*lines(plain)] == ['n = 5', 'n = 9', 'no order']
  assert (plain.get_title(), residual.get_title()) == ('no residual', 'residual')
  assert [*lines(last)] == ['layer 1', 'layer 2', 'layer 4']
  looks = lambda axes: {line.get_marker() for line in axes.lines[:2]}
  assert not looks(plain) & looks(last)
  assert not {line.colour for line in lines(last).values()} & {*_COLOURS}
  for layer, line, (_, _, low, high) in zip(
      (1, 2, 4), lines(last).values(), all_bands(last), strict=True):
    assert line.x == [*range(1, 9)]
    mean, error = (found[2].arrays[name][layer - 1, :-1]
                   for name in ('last_row', 'last_row_error'))
    close(line.y, mean)
    close([low, high], [mean - 2 * error, mean + 2 * error])


def test_norms_stand_beside_each_other_and_their_difference():
  found = [_simulated(i, width=width, residual=residual, layer=layer)
           for i, (width, residual, layer) in enumerate(itertools.product(
               (16, 64), (0.0, 1.0), ('causal', 'rms_norm')))]
  left, right = extensions.norms(found).axes
  _check_layers(left, [(s, _COLOURS[i // 2]) for i, s in enumerate(found)])
  own = [line for line in left.lines
         if len(line.get_xdata()) and line.get_marker() != 'x']
  assert [line.get_linestyle() for line in own] == ['-', ':'] * 4
  assert [line.get_label() for line in own[::2]] == [
      'd = 16', 'd = 16, residual', 'd = 64', 'd = 64, residual']
  assert {line.get_label(): line.get_linestyle() for line in left.lines
          if not len(line.get_xdata())} == {'LayerNorm': '-', 'RMSNorm': ':'}
  assert right.get_title() == 'RMSNorm − LayerNorm, thousandths'
  most = max(np.abs(_by_layer(a)[0] - _by_layer(b)[0]).max()
             for a, b in zip(found[::2], found[1::2], strict=True))
  [told] = re.findall(
      r'at most (\S+) thousandths in', title_of(extensions.norms(found)))
  assert 1e3 * most <= float(told) < 1e3 * most + 0.1
  for i, drawn in enumerate(right.containers):
    (layer_norm, one), (rms_norm, other) = map(_by_layer, found[2 * i : 2 * i + 2])
    points, _, [bars] = drawn
    middle = 1e3 * (rms_norm - layer_norm)
    assert line_of(points).colour == _COLOURS[i]
    close(line_of(points).y, middle)
    close(line_of(points).x, np.arange(1, 5) + 0.06 * (i - 1.5))
    reach = 2e3 * np.sqrt(one**2 + other**2)
    close([bar[:, 1] for bar in bars.get_segments()],
          np.transpose([middle - reach, middle + reach]))
  assert len(right.containers) == 4


def test_heads_with_one_projection_stand_on_the_left():
  found = [_simulated(i, layer='heads', num_heads=h, tied=tied)
           for i, (tied, h) in enumerate(itertools.product((True, False), (1, 4)))]
  left, right = extensions.heads(found[::-1]).axes
  _check_layers(left, [(found[1], _COLOURS[0]), (found[0], _COLOURS[1])])
  _check_layers(right, [(found[3], _COLOURS[0]), (found[2], _COLOURS[1])])
  assert [*lines(left)] == [*lines(right)] == ['4 heads', '1 head', 'no order']
  assert 'shared' in left.get_title() and 'separate' in right.get_title()
  best = [max(own, key=lambda s: s.numbers['recency_probability', 4])
          for own in (found[:2], found[2:])]
  name = {1: '1 head', 4: '4 heads'}
  assert title_of(extensions.heads(found)) == (
      'Recency probability in layer 4 is highest for ' + ', '.join(
          f'{name[s.cell.num_heads]} with {words} projections '
          f'({s.numbers["recency_probability", 4]:.2f})'
          for s, words in zip(best, ('shared', 'separate'), strict=True)))


def test_mask_and_rotary_positions_have_lines_of_their_own():
  layers = {'causal': 'causal mask', 'unmasked': 'neither',
            'rotary': 'causal mask and rotary positions',
            'rotary_unmasked': 'rotary positions'}
  found = [_simulated(i, layer=layer, anisotropy=alpha)
           for i, (layer, alpha) in enumerate(itertools.product(layers, (0.0, 0.5)))]
  isotropic, left, first, last = extensions.positions(found).axes
  for axes, own in ((isotropic, found[::2]), (left, found[1::2])):
    _check_layers(axes, [(s, _COLOURS[i]) for i, s in enumerate(own)])
    assert [line.get_linestyle() for line in axes.lines[:4]] == ['-', '--', '-', '--']
    assert lines(axes)['no order'].y.tolist() == [0.5, 0.5]
  assert (isotropic.get_title(), left.get_title()) == ('α = 0', 'α = 0.5')
  for axes, layer in ((first, 0), (last, 3)):
    assert axes.get_title() == f'query token 5, layer {layer + 1}, α = 0.5'
    for (label, line), colour, s in zip(
        lines(axes).items(), _COLOURS, found[1::2], strict=False):
      assert (label, line.colour) == (layers[s.cell.layer], colour)
      close(line.y, s.arrays['last_row'][layer, :-1])
    assert len(lines(axes)) == 4
  rp = found[1].numbers['recency_probability', 4]
  assert f'{rp:.2f} by the causal mask' in title_of(extensions.positions(found))


def test_the_map_has_layer_2_and_the_last():
  found = [_simulated(3 * i + j, width=d, anisotropy=alpha)
           for i, d in enumerate((16, 64)) for j, alpha in enumerate((0.0, 0.3, 0.6))]
  figure = extensions.over_anisotropy_and_width(found[::-1])
  for axes, layer in zip(figure.axes, (2, 4), strict=False):
    assert axes.get_title() == f'layer {layer}'
    close(np.ravel(axes.collections[0].get_array()),
          [s.numbers['recency_probability', layer] for s in found])
  # All above the bound of the title are above 0.6, and one just below it is not.
  assert title_of(figure).startswith('Recency probability by anisotropy and') == (
      _clear_above(found) is None)
  for s in found:
    s.numbers['recency_probability', 4] = 0.5 + s.cell.anisotropy / 3
  figure = extensions.over_anisotropy_and_width(found)
  [told] = re.findall(
      r'is above (\S+) \(dashed\), recency probability is above 0.6 in layer 4',
      title_of(figure))
  # Its line is drawn in both panels.
  for axes in figure.axes[:2]:
    dashed = [lines for lines in axes.collections
              if isinstance(lines, ContourSet) and len(lines.levels) == 1]
    assert 10 ** float(dashed[0].levels[0]) == pytest.approx(float(told))
    assert dashed[0].get_linestyles()[0][1] is not None
    # Each line has its value written on it, apart from the edges of the panel.
    for drawn in axes.collections:
      if isinstance(drawn, ContourSet):
        for text in drawn.labelTexts:
          alpha, width = text.get_position()
          value = np.exp(-(1 - alpha) * np.sqrt(width))
          assert value == pytest.approx(float(text.get_text()), rel=0.25)
          assert 0.05 < alpha < 0.55 and 18 < width < 63
  bound = _clear_above(found)
  assert bound <= float(told) <= 2 * bound


def _clear_above(found):
  """Returns the largest exp(−(1−α)√d) without a clear bias; None if none is above."""
  terms = {np.exp(-(1 - s.cell.anisotropy) * np.sqrt(s.cell.width)):
           s.numbers['recency_probability', 4] for s in found}
  without = [term for term, rp in terms.items() if rp <= 0.6]
  return max(without) if without and max(without) < max(terms) else None


# Linear attention.


@pytest.mark.parametrize('solved', [False, True])
def test_losses_of_linear_attention_are_those_of_their_task(solved):
  rng = np.random.default_rng(0)
  arms = {'exact': ('exact optimum', '#0072B2'),
          'single': ("the paper's single number Γ", '#56B4E9'),
          'sqrt': ('exact on $\\sqrt{y}$', '#E69F00'),
          'log': ('exact on $\\log y$', '#009E73'),
          'inverse_sqrt': ('exact on $1/\\sqrt{y}$', '#CC79A7')}
  indices = {}
  for task in ('mean', 'length'):
    own = arms if task == 'length' else ('exact', 'single')
    nothing = solved and task == 'mean'
    indices[task] = {
        (arm, 'loss', k): {0: 1e-30 if nothing else rng.uniform(1, 9)}
        for arm in own for k in range(1, 13)}
    indices[task] |= {('trained', 'loss', k): {s: rng.uniform(1, 9) for s in range(3)}
                      for k in range(1, 13)}
  mean, length, ratios = linear.losses(4, indices).axes
  assert [x.get_title() for x in (mean, length, ratios)] == [
      'mean of bits', 'number of bits', 'number of bits, beyond training']
  for axes, task in ((mean, 'mean'), (length, 'length')):
    index, found = indices[task], lines(axes)
    own = ('exact', 'single')
    for arm in own if not (solved and task == 'mean') else ():
      name, colour = arms[arm]
      assert (found[name].colour, found[name].x) == (colour, [*range(1, 13)])
      close(found[name].y, [index[arm, 'loss', k][0] for k in range(1, 13)])
    circles = [line_of(line) for line in axes.lines if line.get_marker() == 'o']
    for seed, line in enumerate(circles):
      assert line.x == [1, 5, 10]
      close(line.y, [index['trained', 'loss', k][seed] for k in (1, 5, 10)])
    assert len(circles) == 3 and shades(axes) == [(0, 4)]
  assert (len(lines(mean)), bool(words(mean))) == ((1, True) if solved else (3, False))
  index = indices['length']
  for line, (arm, (_, colour)) in zip(ratios.lines, arms.items(), strict=True):
    assert line_of(line)[:2] == (colour, [*range(5, 13)])
    close(line.get_ydata(), [index[arm, 'loss', k][0] / index['exact', 'loss', k][0]
                             for k in range(5, 13)])
  assert linear.losses(4, indices, 7.5).axes[2].get_ylim() == (0.9, 7.5)
  # Of the optima for other functions alone, beyond training.
  every = [index[arm, 'loss', k][0] / index['exact', 'loss', k][0]
           for arm in ('sqrt', 'log', 'inverse_sqrt') for k in range(5, 13)]
  title = title_of(linear.losses(4, indices))
  assert title == ('Exact at all lengths for the mean, not for the number of bits' if
                   solved else 'Not exact for the mean and number of bits') + (
      '; last panel: fits to √y, log y, 1/√y have '
      f'{min(every):.2f} to {max(every):.2f} × the error of the optimum')
  assert '; Γ: the best single number' in setup_of(linear.losses(4, indices))
  assert 'fits' not in title_of(linear.losses(4, {'mean': indices['mean']}))


def test_losses_of_linear_attention_in_training_and_of_0_are_in_words():
  index = {(arm, 'loss', k): {0: float(k)} for arm in linear._LOOKS
           for k in range(1, 9)}
  index |= {('trained', 'loss', k): {0: k + 1e-9} for k in range(1, 9)}
  index['single', 'loss', 3] = {0: 0.0}
  index |= {('exact', 'training_loss', None): {0: 1.448},
            ('single', 'training_loss', None): {0: 2.0}}
  added = index | {('exact', 'loss', k): {0: k / 100} for k in range(1, 9)}
  mean = {key: {0: 1e-9 if key[0] == 'trained' else 0.0} for key in index}
  panels = linear.losses(4, {'length': index, 'sum': added, 'mean': mean}).axes
  number, total, solved, _ = panels
  for axes in (number, total):
    assert [*words(axes)] == [
        '0 here', 'loss in training:\nexact optimum 1.448\nsingle number Γ 2.000']
    assert axes.texts[0].xy == (3, 0)
  assert number.get_ylim() == total.get_ylim() and number.get_ylim()[0] < 0.01
  assert words(solved)[0].endswith('no loss at any length\ntrained: not exactly 0')


# Measurements of a checkpoint.


class _Values(dict):
  """Values (part, metric, length) -> number, with intervals, in any order."""

  def __init__(self):
    super().__init__()
    self._rng = np.random.default_rng(1)

  def add(self, arm, metric, length, interval=True):
    """Makes a value up and, if asked for, ends of its interval."""
    middle = self._rng.uniform(1, 5)
    self[arm, metric, length] = middle
    if interval:
      self[arm, f'{metric}_low', length] = middle - self._rng.uniform(0.1, 0.5)
      self[arm, f'{metric}_high', length] = middle + self._rng.uniform(0.1, 0.5)

  def of(self, arm, metric, lengths):
    return [self[arm, metric, n] for n in lengths]

  def ends(self, arm, metric, lengths):
    return [self.of(arm, metric + end, lengths) for end in ('_low', '_high')]


def test_loss_by_window_is_drawn_in_blocks_and_sliding():
  values, lengths = _Values(), [8, 16, 64]
  for part, n in itertools.product((SLIDING, BLOCK), lengths):
    values.add(part, 'nll', n)
  [axes] = measure.perplexity(values, 16).axes
  for name, part, colour in (('blocks', BLOCK, '#0072B2'),
                             ('sliding window', SLIDING, '#E69F00')):
    assert lines(axes)[name][:2] == (colour, lengths)
    close(lines(axes)[name].y, values.of(part, 'nll', lengths))
    x, low, high = bands(axes)[colour]
    assert x == lengths
    close([low, high], values.ends(part, 'nll', lengths))
  [mark] = [line for line in axes.lines if line.get_linestyle() == ':']
  assert mark.get_xdata() == [16, 16]


def test_loss_by_position_begins_where_tokens_are_enough():
  values = _Values()
  places = {8: (1, 2, 4), 64: (1, 2, 4, 16)}
  for n, own in places.items():
    values.add(BLOCK, 'nll', n)
    values[BLOCK, 'scored', n] = 1
    for i in own:
      values.add(BLOCK._replace(distance=i), 'nll_after', n)
      values[BLOCK._replace(distance=i), 'scored', n] = 10 if (n, i) == (64, 1) else 400
  [axes] = measure.by_position(values, 16).axes
  for (label, n), band in zip(
      (('window of 8', 8), ('window of 64', 64)), axes.collections, strict=True):
    shown = [i for i in places[n] if (n, i) != (64, 1)]
    line = lines(axes)[label]
    assert line.x == [*shown, n]
    parts = [BLOCK._replace(distance=i) for i in shown]
    loss = [values[part, 'nll_after', n] for part in parts]
    close(line.y, [*loss, loss[-1]])
    assert to_hex(band.get_facecolor()[0]).upper() == line.colour
    ends = [values[part, f'nll_after{end}', n]
            for part in parts for end in ('_low', '_high')]
    close(np.unique(band.get_paths()[0].vertices[:, 1]), np.unique(ends))
  assert lines(axes)['window of 8'].colour != lines(axes)['window of 64'].colour
  loss = np.average([values[BLOCK._replace(distance=i), 'nll_after', 64]
                     for i in (2, 4)])
  assert re.fullmatch(
      'In windows of 64 tokens, the loss (at L|from L to 4 L) is (more than|at most) '
      rf'0.5 nats above that at tokens 2 to 15, {loss:.2f}(, and at the end [\d.]+)?',
      title_of(axes.figure))
  assert axes.figure.get_label().endswith(
      '0.5 nats above its mean at tokens 2 to 15 of windows of 64.')


def test_the_loss_by_position_rises_where_it_leaves_the_mean_before_l():
  values = _Values()
  for place, scored, loss in ((1, 400, 3.0), (4, 1200, 2.0), (16, 900, 2.6),
                              (32, 900, 2.9), (64, 900, 5.0)):
    part = BLOCK._replace(distance=place)
    values[part, 'scored', 128], values[part, 'nll_after', 128] = scored, loss
  values[BLOCK, 'nll', 128] = 3.0
  title, rises, known = measure._loss_by_position(values, 16)
  # The mean before L is (400 · 3 + 1200 · 2) / 1600 = 2.25; it is left at 2.9.
  assert (title, rises) == (
      'In windows of 128 tokens, the loss from L to 2 L is at most 0.5 nats above that '
      'at tokens 1 to 15, 2.25; then more, at the end 5.00', 32)
  assert known == 'tokens 1 to 15 of windows of 128'
  values[BLOCK._replace(distance=32), 'nll_after', 128] = 2.7
  assert measure._loss_by_position(values, 16)[1] == 64
  values[BLOCK._replace(distance=64), 'nll_after', 128] = 2.7
  assert measure._loss_by_position(values, 16)[:2] == (
      'In windows of 128 tokens, the loss from L to 8 L is at most 0.5 nats above that '
      'at tokens 1 to 15, 2.25', 128)
  # What is not drawn, of too few tokens, is not in the mean.
  values[BLOCK._replace(distance=1), 'scored', 128] = 10
  values[BLOCK._replace(distance=16), 'nll_after', 128] = 2.6
  assert measure._loss_by_position(values, 16)[:2] == (
      'In windows of 128 tokens, the loss at L is more than 0.5 nats above that at '
      'tokens 4 to 15, 2.00, and at the end 2.70', 16)


def test_the_rise_of_perplexity_is_of_both_kinds_of_windows():
  blocks = {8: 3.2, 16: 3.0, 32: 3.05, 64: 3.09, 128: 4.0}
  sliding = {8: 3.2, 16: 3.0, 32: 3.05, 64: 3.2, 128: 5.0}
  assert measure._rise_to({'blocks': blocks}, 16) == (
      'From L to 4 L, perplexity changes by +9.4 % in blocks; at 8 L it is 54.6', 64)
  assert measure._rise_to({'blocks': blocks, 'a sliding window': sliding}, 16) == (
      'From L to 2 L, perplexity changes by +5.1 % in blocks and +5.1 % in a sliding '
      'window; at 8 L it is 54.6 and 148', 32)
  falls = {n: loss for n, loss in blocks.items() if n < 128} | {64: 2.9}
  assert measure._rise_to({'blocks': falls}, 16) == (
      'From L to 4 L, perplexity changes by −9.5 % in blocks', 64)
  assert measure._rise_to({'blocks': {16: 3.0, 32: 4.0}}, 16) == (
      'From L to 2 L, perplexity is 20.1 → 54.6 in blocks', 16)
  assert measure._rise_to({'blocks': blocks}, 12)[1] == 0  # not measured at L


def test_scales_of_misalignment_have_panels_of_their_own():
  values = _Values()
  places = {16: (1, 4), 256: (1, 4, 64)}
  metrics = {'sce': 'symmetric cross-entropy, nats',
             'symmetric_kl': 'symmetric KL, nats',
             'js': 'Jensen–Shannon, nats', 'top1_agreement': 'top-1 agreement'}
  for n, offsets in places.items():
    for offset, metric in itertools.product(offsets, (*metrics, 'entropy_first')):
      values.add(Part('misalignment', 'text', offset=offset), metric, n)
  axes = measure.misalignment(values, 256, 'tiny').axes
  assert setup_of(axes[0].figure).startswith('tiny, trained on L = 256 tokens; ')
  for panel, (metric, name) in zip(axes, metrics.items(), strict=True):
    assert panel.get_title() == name
    for (n, offsets), label in zip(
        places.items(), ('window of 16', 'window of 256 = L'), strict=True):
      line = lines(panel)[label]
      assert line.x == [*offsets]
      parts = [Part('misalignment', 'text', offset=e) for e in offsets]
      close(line.y, [values[part, metric, n] for part in parts])
      _, low, high = bands(panel)[line.colour]
      close([low, high], [[values[part, metric + end, n] for part in parts]
                          for end in ('_low', '_high')])
    assert len({line.colour for line in lines(panel).values()}) == 2
  ends = lambda *places: ' to '.join(dict.fromkeys(f'{100 * x:.0f}' for x in sorted(
      values[Part('misalignment', 'text', offset=e), 'top1_agreement', n]
      for n, e in places)))
  assert title_of(axes[0].figure) == (
      'Windows agree on the likeliest token in '
      f'{ends((16, 1), (256, 1))} % of cases at offset 1, in '
      f'{ends((16, 4), (256, 64))} % at the largest offset of each')


_ORDERS = {'text': '#009E73', 'shuffled': '#CC79A7'}


def _of_heads(axes, order):
  """Returns the line of the mean over heads, and the band of their range."""
  place = [*_ORDERS].index(order)
  found = [band for band in all_bands(axes) if len(band[1]) > 1]
  assert found[place][0] == _ORDERS[order] == lines(axes)[order].colour
  return lines(axes)[order], found[place][1:]


def test_logits_by_distance_are_of_their_layer_head_and_order():
  values, places = _Values(), [0, 1, 4]
  for order, layer in itertools.product(_ORDERS, (0, 2)):
    arm = Part('recency', order, layer)
    values.add(arm, 'recency_probability', 16)
    for head, n in itertools.product((0, 1), places):
      values.add(arm._replace(head=head, distance=n), 'logit_at', 16, interval=False)
  axes = measure.logits(values).axes
  for panel, layer in zip(axes, (0, 2), strict=True):
    rp = [values[Part('recency', order, layer), 'recency_probability', 16]
          for order in _ORDERS]
    assert panel.get_title() == f'layer {layer}: RP {rp[0]:.3f}, {rp[1]:.3f}'
    for order in _ORDERS:
      logit = [[values[Part('recency', order, layer, h, distance=n), 'logit_at', 16]
                for n in places] for h in (0, 1)]
      bold, (x, low, high) = _of_heads(panel, order)
      close([low, high], [np.min(logit, axis=0), np.max(logit, axis=0)])
      close(bold.y, np.mean(logit, axis=0))
      assert bold.x == x == [0.5, 2, 9.5]  # the middle of 0, 1..3, 4..15
  of_text = [Part('recency', 'text', layer) for layer in (0, 2)]
  values[of_text[0], 'recency_probability', 16] = 0.4
  values[of_text[1], 'recency_probability', 16] = 0.81
  assert title_of(measure.logits(values)) == (
      'Near keys have higher logits in 1 of 2 layers: recency probability '
      '0.40 to 0.81 in text')


def test_entropy_by_length_is_of_its_layer_head_and_order():
  values, lengths = _Values(), [8, 32]
  for order, layer, n in itertools.product(_ORDERS, (0, 2), lengths):
    arm = Part('entropy', order, layer)
    values.add(arm, 'entropy', n)
    for head in (0, 1, 2):
      values.add(arm._replace(head=head), 'entropy', n, interval=False)
  axes = measure.entropy(values, 16).axes
  for panel, layer in zip(axes, (0, 2), strict=True):
    assert panel.get_title() == f'layer {layer}'
    close(lines(panel)['uniform weights, log N'].y, np.log(lengths))
    for order, colour in _ORDERS.items():
      arm = Part('entropy', order, layer)
      of_heads = [values.of(arm._replace(head=h), 'entropy', lengths)
                  for h in (0, 1, 2)]
      bold, (_, *ends) = _of_heads(panel, order)
      close(ends, [np.min(of_heads, axis=0), np.max(of_heads, axis=0)])
      close(bold.y, np.mean(of_heads, axis=0))
      bars = panel.containers[[*_ORDERS].index(order)].lines[2][0]
      assert to_hex(bars.get_color()[0]).upper() == colour
      close([bar[:, 1] for bar in bars.get_segments()],
            np.transpose(values.ends(arm, 'entropy', lengths)))
  first, last = (np.mean([values[Part('entropy', 'text', layer), 'entropy', n]
                          for layer in (0, 2)]) for n in lengths)
  assert title_of(axes[0].figure) == (
      f'Entropy of attention, mean over layers: {first:.1f} → {last:.1f} nats from N = '
      '8 to 32, of uniform weights 2.1 → 3.5')


def test_the_factor_that_heads_need_is_beside_that_of_log_n():
  values = _Values()
  for layer, head, n in itertools.product((0, 2), (0, 1, 2), (8, 64)):
    arm = Part('entropy', 'text', layer, head)
    values[arm, 'temperature', n] = (1 + head) * (n / 8) ** (0.1 + layer / 5)
  figure = measure.temperature(values, 16)
  assert title_of(figure) == (
      'The factor that gives one key half of the weight changes × 1.2 to 2.8 (median '
      'head in text, by layer) from N = 8 to 64; log N grows × 2')
  assert setup_of(figure).endswith(
      '; factor: the least one by which all logits are multiplied for that')
  [legend] = figure.legends
  assert legend.get_title().get_text() == 'bands: from the lowest to the highest head'


_CONDITIONS = {'random_nope': ('random tokens, no positions', '#0072B2'),
               'random': ('random tokens', '#E69F00'), 'text': ('text', '#009E73')}


@pytest.fixture(scope='module')
def spreads():
  """Spreads by length of three conditions, two readings, two layers and two heads."""
  values = _Values()
  for condition, reading, layer in itertools.product(
      _CONDITIONS, ('as_it_is', 'fixed'), (0, 2)):
    arm = spread_part(condition, reading, layer)
    values[arm, 'num_queries', None] = 6 if reading == 'fixed' else 1
    for one in (arm, arm._replace(head=0), arm._replace(head=3)):
      values.add(one, 'slope', None)
      for n in (8, 64):
        values.add(one, 'std', n)
    for i, n in itertools.product((0, 7), (8, 64)):
      values.add(arm._replace(component=i), 'std', n, interval=False)
  return values


def test_figure_1_has_each_condition_in_the_panel_of_its_layer_and_token(spreads):
  figure = spread.curves(spreads, 'tiny')
  assert setup_of(figure) == ('tiny, layer 0 and 2; spread of the attention output; '
                              'held fixed: mean of 6 tokens; bands: 95 % intervals')
  assert figure.get_label().endswith(' (mean of 6 tokens, one after another).')
  assert title_of(figure) == (
      'Last token held fixed: log-log slope of the spread is ' + _ranges(spreads))
  axes, slopes = figure.axes, {}
  for panel, (layer, (reading, name)) in zip(axes, itertools.product(
      (0, 2), (('as_it_is', 'as it is'), ('fixed', 'held fixed'))), strict=True):
    assert panel.get_title() == f'layer {layer}, last token {name}'
    tops = []
    for condition, (label, colour) in _CONDITIONS.items():
      arm = spread_part(condition, reading, layer)
      slope = [spreads[arm, f'slope{end}', None] for end in ('', '_low', '_high')]
      slopes.setdefault((layer, label), []).append(
          '{:+.3f} [{:+.3f}, {:+.3f}]'.format(*slope))
      bold = lines(panel)[label]
      assert (bold.colour, bold.x) == (colour, [8, 64])
      close(bold.y, spreads.of(arm, 'std', (8, 64)))
      close(bands(panel)[colour][1:], spreads.ends(arm, 'std', (8, 64)))
      tops.append(bold.y[0])
    close(lines(panel)['1/√N, slope −0.5'].y, [max(tops), max(tops) / 8**0.5])
  told = [part.legends[0] for part in figure.subfigs]
  assert [text.get_text() for each in told for text in each.get_texts()] == [
      words for layer in (0, 2) for words in (
          *(f'{label}: {", ".join(pair)}' for (i, label), pair in slopes.items()
            if i == layer), '1/√N, slope −0.5')]
  assert {each.get_title().get_text() for each in told} == {
      'slope [95 %] with the last token as it is, held fixed'}


def test_single_components_have_a_figure_of_their_own(spreads):
  figure = spread.single_components(spreads, 'tiny')
  assert setup_of(figure) == (
      'tiny, layer 0 and 2; standard deviation of components of the attention output')
  kinds = 'with random tokens of both kinds'
  factors = {kinds: [], 'in text': []}
  places = itertools.product((0, 2), ('as_it_is', 'fixed'), _CONDITIONS.items())
  for panel, (layer, reading, (condition, (_, colour))) in zip(
      figure.axes, places, strict=True):
    arm = spread_part(condition, reading, layer)
    for component in (0, 7):
      line = lines(panel)[f'component {component}']
      assert (line.colour, line.x) == (colour, [8, 64])
      close(line.y, spreads.of(arm._replace(component=component), 'std', (8, 64)))
      if reading == 'fixed':
        factors['in text' if condition == 'text' else kinds].append(
            line.y[1] / line.y[0])
  each = [f'× {min(own):.2g} to {max(own):.2g} {words}'
          for words, own in factors.items()]
  assert title_of(figure) == (
      'One last token held fixed, N = 8 → 64: 2 components have spread '
      + ', '.join(each))
  whole = {key: x for key, x in spreads.items() if key[0].component is None}
  assert spread.single_components(whole) is None


def _ranges(spreads):
  """Returns the ranges of slopes of each condition with the last token held fixed."""
  each = []
  for condition, (name, _) in _CONDITIONS.items():
    slopes = [spreads[spread_part(condition, 'fixed', layer), 'slope', None]
              for layer in (0, 2)]
    each.append(f'{min(slopes):.2f} to {max(slopes):.2f} ({name})')
  return ', '.join(each)


def test_slopes_of_heads_stand_in_the_panel_of_their_layer_and_token(spreads):
  held = {condition: [spreads[spread_part(condition, 'fixed', layer, head=h), 'slope',
                              None] for layer in (0, 2) for h in (0, 3)]
          for condition in _CONDITIONS}
  random = held['random'] + held['random_nope']
  assert title_of(spread.slopes_by_head(spreads, 'tiny')) == (
      f'Last token held fixed: log-log slopes of heads are {min(random):.2f} to '
      f'{max(random):.2f} with random tokens of both kinds, {min(held["text"]):.2f} to '
      f'{max(held["text"]):.2f} in text')
  axes = spread.slopes_by_head(spreads).axes
  for panel, (layer, reading) in zip(
      axes, itertools.product((0, 2), ('as_it_is', 'fixed')), strict=True):
    assert panel.get_title().startswith(f'layer {layer}, ')
    for place, (bars, (condition, (label, colour))) in enumerate(
        zip(panel.collections, _CONDITIONS.items(), strict=True)):
      arms = [spread_part(condition, reading, layer, head=h) for h in (0, 3)]
      at = lambda name, arms=arms: [spreads[arm, name, None] for arm in arms]
      found = lines(panel)[label]
      assert found.colour == to_hex(bars.get_colors()[0]).upper() == colour
      close(found.y, at('slope'))
      close(found.x, [0.22 * (place - 1), 1 + 0.22 * (place - 1)])
      close([bar[:, 1] for bar in bars.get_segments()],
            np.transpose([at('slope_low'), at('slope_high')]))
    assert [t.get_text() for t in panel.get_xticklabels()] == ['0', '3']
    assert lines(panel)['1/√N'].y.tolist() == [-0.5, -0.5]
