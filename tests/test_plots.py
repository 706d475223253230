"""Axes of figures: labels that are round, enough and where the data are; values."""

from matplotlib import figure
import numpy as np
import pytest

from experiments.language_model import arms as language_model
from experiments.language_model import step_figures
from tests.artists import shades
from vvlen.reporting import plots, titles


@pytest.mark.parametrize('low, high, expected', [
    (5, 13.5, [6, 8, 10, 12]),
    (0.0085, 0.019, [0.01, 0.012, 0.014, 0.016, 0.018]),
    (4, 16, [5, 7, 10, 15]),
    (3.9, 110, [5, 10, 20, 50, 100]),
    (9.9, 10.1, [9.9, 9.95, 10, 10.05]),
    (1e-9, 1e3, [1e-9, 1e-7, 1e-5, 1e-3, 0.1, 10, 1e3]),
])
def test_a_logarithmic_axis_has_labels_at_round_numbers(low, high, expected):
  assert plots.log_ticks(low, high) == expected


def test_a_logarithmic_axis_never_has_few_or_many_labels():
  rng = np.random.default_rng(0)
  for _ in range(2_000):
    low = 10 ** rng.uniform(-9, 5)
    high = low * np.exp(10 ** rng.uniform(-1.5, 1.4))
    ticks = plots.log_ticks(low, high)
    assert 4 <= len(ticks) <= 10, (low, high, ticks)
    assert ticks == sorted(set(ticks)) and low <= ticks[0] and ticks[-1] <= high


def _by_step(steps, seeds=3):
  """The figure of two arms, the second of which ends earlier."""
  arms = {name: language_model.Arm(name, weight, (0, 0.5), 1)
          for name, weight in (('a', 0.0), ('b', 0.1))}
  run = language_model.Run(arms, 'a', 64, (1, 8), seeds)
  rng = np.random.default_rng(0)
  values = lambda: rng.uniform(0.009, 0.018, seeds).tolist()
  lines = [{'arm': arm, 'step': step, 'nll_64': values(), 'nll_512': values(),
            'symmetric_kl_64': values()}
           for arm, own in (('a', steps), ('b', steps[:-1])) for step in own]
  figure = step_figures.by_step(language_model.families(run, set(arms)), run, lines)
  figure.draw_without_rendering()
  return figure


@pytest.mark.parametrize('steps, expected', [
    ([0, 1000, 2000], [0, 1000, 2000]),
    ([1000, 1900, 2000], [1000, 2000]),
    ([12, 25], [12, 25]),
    ([25], [25]),
    ([0, 10, 90, 190, 200], None),
    (list(range(0, 2001, 100)), [0, 1000, 2000]),
    (list(range(1, 9)), None),
])
def test_steps_are_labelled_where_models_were_evaluated_or_at_whole_numbers(
    steps, expected):
  for axes in _by_step(steps).axes:
    low, high = axes.get_xlim()
    ticks = sorted(x for x in axes.get_xticks() if low <= x <= high)
    assert axes.get_xscale() == 'linear' and ticks
    assert all(x == int(x) for x in ticks)
    assert expected is None or ticks == expected


def test_the_course_of_training_says_seeds_and_bands():
  words = _by_step([1, 2]).get_label()
  assert words.endswith('geometric mean of perplexity, mean of the other, over 3 '
                        'seeds, with bands of 95 % intervals.')
  assert _by_step([1, 2], seeds=1).get_label().endswith(
      'one seed, so without intervals.')
  labels = [label.get_text() for axes in _by_step([1, 2]).axes
            for label in axes.get_yticklabels()]
  assert '0.015' in labels


@pytest.mark.parametrize('low, high, most, expected', [
    (14, 20_000, 4, [16, 128, 1024, 8192]), (1, 32, 4, [1, 4, 16]),
    (0.9, 1.1, 4, [1]), (8, 64, 10, [8, 16, 32, 64])])
def test_an_axis_of_lengths_has_a_few_powers_of_two(low, high, most, expected):
  axes = figure.Figure().subplots()
  axes.plot([low, high], [0, 1])
  plots.doubling_axis(axes, most)
  axes.set_xlim(low, high)
  assert list(axes.get_xticks()) == expected
  axes.figure.draw_without_rendering()
  assert [t.get_text() for t in axes.get_xticklabels()] == [
      f'{n:,}' for n in expected]


@pytest.mark.parametrize('x, words', [
    (0.01, '0.01'), (1e-6, '1e−6'), (3e-5, '3e−5'), (1500.0, '1,500'), (0.0, '0'),
    (-0.5, '−0.5'), (2e7, '2e7')])
def test_numbers_on_axes_have_all_digits_in_full_size(x, words):
  assert plots.short_number(x) == words


@pytest.mark.parametrize('limits, first, last', [
    ((1e-4, 1), '0.0001', '1'), ((1e-6, 1), '1e−6', '1e0'), ((1, 1e7), '1e0', '1e7')])
def test_an_axis_has_powers_of_ten_or_none(limits, first, last):
  axes = figure.Figure().subplots()
  plots.log_axis(axes)
  axes.set_ylim(limits)
  labels = [text.get_text() for text in axes.get_yticklabels()]
  assert (labels[0], labels[-1]) == (first, last)
  assert len({'e' in words for words in labels}) == 1


def test_what_a_seed_lacks_is_no_0():
  index = {('a', 'x', 8): {0: 1.0, 1: 3.0, 2: np.nan}, ('a', 'x', 4): {1: 2.0, 2: 5.0},
           ('b', 'x', 4): {1: 0.5}, ('b', 'x', 8): {0: 0.0, 1: 0.5}}
  lengths, table = plots.values(index, 'a', 'x')
  assert lengths == [4, 8]
  np.testing.assert_array_equal(table, [[np.nan, 1], [2, 3], [5, np.nan]])
  # Seed 1 alone has all of both arms.
  lengths, table = plots.gain(index, 'a', 'b', 'x')
  assert (lengths, table.tolist()) == ([4, 8], [[1.5, 2.5]])
  axes = figure.Figure().subplots()
  plots.draw(axes, [4, 8], plots.values(index, 'a', 'x')[1], 'black', 'o', 'a')
  np.testing.assert_array_equal(axes.lines[0].get_ydata(), [3.5, 2])


def test_an_axis_of_items_is_logarithmic_and_has_the_training_lengths_shaded():
  axes = figure.Figure().subplots()
  axes.plot([4, 64], [0, 1])
  plots.length_axis(axes, 16)
  assert (axes.get_xscale(), axes.get_xlabel()) == ('log', 'number of items N')
  low, high = axes.get_xlim()
  assert shades(axes) == [(low, 16)] and low < 4 and high > 64


def test_few_are_chosen_from_the_first_to_the_last():
  assert plots.spread_out([1, 2, 4, 8, 16, 32]) == [1, 2, 4, 16, 32]
  assert plots.spread_out((3, 5)) == [3, 5]


def test_a_line_of_a_title_that_is_too_long_is_broken_at_a_comma():
  short, long = 'one, two, three', f'{"a" * 40}, {"b" * 30}, {"c" * 30}'
  title = plots.new(1, f'{short}\n{long}', '').get_suptitle()
  assert title == f'{short}\n{"a" * 40},\n{"b" * 30}, {"c" * 30}'
  assert plots.new(1, 'd' * 100, '').get_suptitle() == 'd' * 100
  # Not within brackets, though nearer to the middle.
  whole = f'{"a" * 20}, b [{"c" * 20}, {"d" * 30}]'
  assert plots.new(1, whole, '').get_suptitle() == whole.replace(', b', ',\nb')


@pytest.mark.parametrize('before, kept', [
    ('a' * 38, 'N = 16'), ('a' * 38, '12 to 14'), ('a' * 38, '0.2 → 0.1'),
    ('a' * 38, '95 %'), ('a' * 38, 'at 8 L'), ('a' * 38, '12 bits'),
    ('a' * 38, 'width 8')])
def test_no_line_of_a_title_is_broken_within_a_number_and_what_it_belongs_to(
    before, kept):
  for shift in range(8):
    lines = titles.break_lines(f'{before[shift:]} {kept} {"b" * 38} c', 72)
    assert len(lines) == 2 and sum(kept in line for line in lines) == 1, lines


def test_lines_of_a_title_are_few_and_no_word_stands_alone():
  for count in range(12, 27):
    lines = titles.break_lines(' '.join(['word'] * count) + ' end', 72)
    assert len(lines) == -(-(5 * count + 3) // 72)
    assert min(map(len, lines)) > 0.7 * max(map(len, lines))


def test_the_setup_stands_below_the_title_in_smaller_regular_type():
  with plots.style():
    drawn = plots.new(3, 'one finding', 'caption', f'{"a" * 60}, {"b" * 60}')
    drawn.subplots()
    drawn.draw_without_rendering()
    title, = (text for text in drawn.texts if 'finding' in text.get_text())
    setup, = drawn.artists
    assert titles.setup_of(drawn) == f'{"a" * 60}, {"b" * 60}'
    assert titles.title_of(drawn) == 'one finding'
    assert setup.get_text() == f'{"a" * 60},\n{"b" * 60}'
    assert setup.get_fontsize() < title.get_fontsize()
    assert (title.get_fontweight(), setup.get_fontweight()) == ('bold', 'normal')
    # Between the title and the panels.
    box = setup.get_window_extent()
    line = title.get_window_extent().height / 3
    assert box.y1 <= title.get_window_extent().y1 - line
    assert box.y0 >= drawn.axes[0].get_tightbbox().y1
    # Another title has another setup, or none.
    plots.set_title(drawn, 'two')
    assert (titles.setup_of(drawn), drawn.get_suptitle()) == ('', 'two')


def test_bars_of_an_interval_that_reaches_0_end_below_a_logarithmic_axis():
  axes = figure.Figure().subplots()
  plots.log_axis(axes)
  table = np.array([[1.0, 1.0], [2.0, 9.0]])
  plots.bars(axes, [8, 16], table, '#0072B2', 'o', 'x', aside=1.0)
  (line,), (bars,) = axes.lines, axes.collections
  assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([16, 32], [1.5, 5])
  low, high = np.transpose([bar[:, 1] for bar in bars.get_segments()])
  assert (low > 0).all() and high[1] == pytest.approx(5 + 4 * 12.7062, rel=1e-5)


def test_words_on_bands_say_how_many_seeds():
  assert plots.with_bands('of width 8', 5) == (
      'of width 8; bands: 95 % intervals over 5 seeds')
  assert plots.with_bands('', 1) == 'one seed'
