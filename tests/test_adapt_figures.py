"""What the figures of `experiments.adapt` draw, from made-up numbers."""

import math

import numpy as np
import pytest

from experiments.adapt import figures, term_figure
from experiments.language_model.arms import Arm, Family
from tests.adapt_cases import ARMS, compare, diverge, FAMILIES, made_index, RUN
from tests.artists import bands, lines, shades
from tests.cells import paired, wide
from vvlen.reporting import plots
from vvlen.reporting.titles import setup_of, title_of
from vvlen.statistics import mean_interval


@pytest.fixture
def index():
  return made_index()


def _points(axes):
  """Returns {arm: (mean, low, high), with (mean,) alone without an interval}."""
  found = {}
  for container in axes.containers:
    dots, _, bars = container.lines
    ends = [x for bar in bars for x in bar.get_segments()[0][:, 0]]
    found[container.get_label()] = [float(dots.get_xdata()[0]), *ends]
  return found


def test_the_figure_of_the_term_draws_what_its_table_has(index):
  with plots.style():
    figure = term_figure.term(FAMILIES, RUN, index)
    weak = term_figure.term(FAMILIES, RUN, index, ['YaRN'])
    assert term_figure.term(
        [f._replace(primary='', others=()) for f in FAMILIES], RUN, index) is None
  alone, yarn = figure.axes
  rows = [tick.get_text() for tick in alone.get_yticklabels()]
  assert rows == ['α = 0.1', 'α = 0.1 of entropy', 'α = 0.1 of symmetric KL',
                  'α = 0, 1.05 of the steps']
  values = lambda name: [*index[name, 'nll', 32].values()]
  wider = wide([paired(values(f'{name}_alpha'), values(name))
                for name in ('none', 'yarn')])
  assert _points(alone) == {'none_alpha': pytest.approx(wider[0])}
  expected = {'yarn_alpha': pytest.approx(wider[1])}
  for name in ('yarn_entropy', 'yarn_kl', 'yarn_more'):
    test = compare(index, name, 'yarn')
    expected[name] = pytest.approx([test.mean_difference, test.ci_low, test.ci_high])
  assert _points(yarn) == expected
  places = {c.get_label(): float(c.lines[0].get_ydata()[0]) for c in yarn.containers}
  assert places == {'yarn_alpha': 0, 'yarn_entropy': 1, 'yarn_kl': 2, 'yarn_more': 3}
  colours = {c.get_label(): c.lines[0].get_color() for c in yarn.containers}
  assert [name for name, colour in colours.items()
          if colour != colours['yarn_kl']] == ['yarn_alpha']
  assert [shades(axes) for axes in figure.axes] == [
      [pytest.approx((math.log(5.88 / 6.12), math.log(5.77 / 5.82)))]] * 2
  assert 'paired over 3 seeds' in figure.get_label()
  assert ('Shaded: the paper, at 8,192 tokens: 2 L of CLEX, L of the others; α = 0.1, '
          'single runs of Llama-2-7B.') in figure.get_label()
  # Without intervals where it has not learned.
  assert len(_points(weak.axes[0])['none_alpha']) == 3
  assert {len(point) for point in _points(weak.axes[1]).values()} == {1}
  assert 'methods that have not learned' in weak.get_label()
  assert 'have not learned' not in figure.get_label()


@pytest.mark.parametrize(('change', 'scale', 'words'), [
    (0.15, 'linear', 'change of log perplexity, nats'),
    (0.25, 'symlog', 'change of log perplexity, nats, logarithmic beyond ±0.01')])
def test_changes_of_very_different_sizes_are_drawn_on_a_logarithmic_axis(
    index, change, scale, words):
  for arm in ARMS.values():
    index[arm.name, 'nll', 32] = {
        seed: 2 + (arm.name == 'yarn_kl') * change + (arm.weight + arm.steps) * seed / (
            100 if arm.name != 'yarn_kl' else 130) for seed in range(3)}
  with plots.style():
    figure = term_figure.term(FAMILIES[1:], RUN, index)
  axes, = figure.axes
  assert axes.get_xscale() == scale
  assert figure.get_supxlabel() == words
  assert _points(axes)['yarn_kl'][0] == pytest.approx(change, abs=0.01)
  assert axes.get_xlim()[1] > change


@pytest.mark.parametrize(('changes', 'words'), [
    ((0.5, 0.5), 'worse with 2 of 2 methods, better with 0'),
    ((0.5, -0.5), 'worse with 1 of 2 methods, better with 1'),
    ((0, -0.5), 'worse with 0 of 2 methods, better with 1')])
def test_the_title_of_the_figure_of_the_term_counts_methods(index, changes, words):
  for name, change in zip(('none', 'yarn'), changes, strict=True):
    index[f'{name}_alpha', 'nll', 32] = {
        seed: x + change + (0.01 * (-1) ** seed) for seed, x in index[
            name, 'nll', 32].items()}
  assert title_of(term_figure.term(FAMILIES, RUN, index)).replace('\n', ' ') == (
      f'Misalignment term, α = 0.1, at 2 L: {words}')
  found = term_figure.term(FAMILIES, RUN, index, ['YaRN', 'fine-tuning alone'])
  assert title_of(found).replace('\n', ' ') == (
      'The misalignment term at 2 L: no method has learned')


def test_a_method_that_diverged_has_not_the_lowest_perplexity(index):
  message = lambda: figures._message(FAMILIES, ARMS['none'], RUN, index)
  diverge(index, 'none', 0)
  # Of two methods, one is left.
  assert message() == 'Perplexity by length of context'
  families = [*FAMILIES, Family('pi', 'PI', Arm('pi', 0.0, (0.0, 0.5), 1.0), ())]
  index['pi', 'nll', 32] = {0: 1.0, 1: 1.01, 2: 1.0}
  assert figures._message(families, ARMS['none'], RUN, index) == (
      'At 2 L, PI has the lowest perplexity')
  # The lowest mean is not named if a difference to another was not found.
  for higher in ({0: 1.3, 1: 1.9, 2: 1.6}, {0: 9.0}):
    some = [*families, Family('ntk', 'NTK', Arm('ntk', 0.0, (0.0, 0.5), 1.0), ())]
    index['ntk', 'nll', 32] = higher
    assert figures._message(some, ARMS['none'], RUN, index) == (
        'Perplexity by length of context')
  diverge(index, 'pi', 2)
  assert figures._message(families, ARMS['none'], RUN, index) == (
      'Perplexity by length of context')


def test_the_figure_of_methods_has_what_the_rows_say(index):
  with plots.style():
    figure = figures.methods(FAMILIES, ARMS['none'], RUN, index, 8)
    alone = figures.methods(FAMILIES[1:], None, RUN, index, 8)
  plain, change = figure.axes
  drawn, shades = lines(plain), bands(plain)
  for family, (colour, _) in zip(FAMILIES, plots.LOOKS, strict=False):
    table = np.array([[*index[family.name, 'nll', n].values()] for n in (8, 16, 32)]).T
    mean, low, high = np.exp(mean_interval(table))
    assert (drawn[family.title].colour, drawn[family.title].x) == (colour, [8, 16, 32])
    np.testing.assert_allclose(drawn[family.title].y, mean)
    np.testing.assert_allclose(shades[colour][1:], (low, high))
  assert figure.legends[0]._ncols == 2
  with plots.style():
    long = [f._replace(title=f'{f.title}, with a name that is very long')
            for f in FAMILIES]
    assert figures.methods(long, ARMS['none'], RUN, index, 8).legends[0]._ncols == 1
  minus, = lines(change).values()
  assert lines(change).keys() == {'YaRN'} and minus.x == [8, 16, 32]
  expected = [compare(index, 'yarn', 'none', n) for n in (8, 16, 32)]
  np.testing.assert_allclose(minus.y, [test.mean_difference for test in expected])
  np.testing.assert_allclose(
      bands(change)[minus.colour][1:],
      ([test.ci_low for test in expected], [test.ci_high for test in expected]))
  zero, = [line for line in change.lines if line.get_label() != 'YaRN']
  assert (zero.get_color(), [*zero.get_ydata()]) == (plots.LOOKS[0][0], [0, 0])
  # By the longest length, not by L.
  index['yarn', 'nll', 32] = {0: 1.0, 1: 1.01, 2: 1.0}
  assert figures._message(FAMILIES, ARMS['none'], RUN, index) == (
      'At 2 L, YaRN has the lowest perplexity')
  assert [text.get_text() for axes in figure.axes for text in axes.get_xticklabels()
          ] == ['8', 'L', '2 L'] * 2
  assert [[*axes.get_xticks()] for axes in figure.axes] == [[8, 16, 32]] * 2
  assert {axes.get_xscale() for axes in figure.axes} == {'log'}
  assert [axes.get_yscale() for axes in figure.axes] == ['log', 'linear']
  assert [axes.get_title() for axes in figure.axes] == [
      'perplexity', 'log perplexity, nats,\nminus that of fine-tuning alone']
  assert {axes.get_xlabel() for axes in figure.axes} == {'length of context, tokens'}
  assert setup_of(figure) == (
      '4 steps of 8 streams, L = 16 tokens; bands: 95 % intervals over 3 seeds')
  assert figure.get_label() == (
      'Perplexity in blocks after fine-tuning with each method, without the '
      'misalignment term, and its logarithm minus that of fine-tuning alone, paired by '
      'seed, by length of context: geometric mean over 3 seeds, with bands of 95 % '
      'intervals.')
  # Nothing to compare with: one panel.
  assert len(alone.axes) == 1 and 'minus' not in alone.get_label()


@pytest.mark.parametrize('weak, marked', [
    (['YaRN'], 'YaRN, not learned'), (['fine-tuning alone'], 'YaRN')])
def test_a_method_that_has_not_learned_has_no_interval_in_its_figure(
    index, weak, marked):
  draw = lambda weak: figures.methods(FAMILIES, ARMS['none'], RUN, index, 8, weak)
  with plots.style():
    whole, found = draw([]), draw(weak)
  [line] = lines(found.axes[1]).values()
  assert [*lines(found.axes[1])] == [marked]
  np.testing.assert_array_equal(line.y, lines(whole.axes[1])['YaRN'].y)
  assert (len(bands(whole.axes[1])), len(bands(found.axes[1]))) == (1, 0)
  assert f'{weak[0]}, not learned' in lines(found.axes[0])
  assert 'without an interval' in found.get_label()
  assert 'without an interval' not in whole.get_label()
  # Nor is it a message that one of two methods is the best.
  assert title_of(found) == 'Perplexity by length of context'
