"""Figures of trained models: what each panel shows, read from its artists.

The numbers are made up, and no two are alike.
"""

import itertools
import json

from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
import numpy as np
import pytest
from scipy import stats

from experiments.counting import figures as counting
from experiments.counting.cells import read_figures
from experiments.language_model import arms as language_model_arms
from experiments.language_model import figures as language_model
from experiments.language_model import report as language_model_report
from experiments.language_model import step_figures
from experiments.length_generalization import figures as length_figures
from experiments.length_generalization import sample_figures, tables
from experiments.length_generalization.setting import Growth, read_setting, Setting
from experiments.length_generalization.training_table import training_table
from experiments.mechanism import figures as mechanism
from tests.artists import all_bands, bands, line_of, lines, shades
from tests.cells import mean_of
from vvlen.reporting import plots, results
from vvlen.reporting.results import Row
from vvlen.reporting.titles import setup_of, title_of
from vvlen.tasks.lengths import growing_length

_ARMS = {'none': ('Baseline', '#0072B2'), 'standardize': ('standardized', '#E69F00'),
         'layer_norm': ('LayerNorm', '#009E73')}
_SETTING = Setting('retrieval', 16, 0.1, 'trained on 5 to 16 items')
_COLOURS = ('#0072B2', '#E69F00', '#009E73', '#CC79A7', '#56B4E9', '#D55E00')
_LENGTHS = [16, 32, 64]
close = np.testing.assert_allclose


@pytest.fixture(autouse=True)
def style():
  with plots.style():
    yield


def _draw(keys, low=0.5, high=2.0, seeds=4):
  """Returns {key: [seeds]} of made-up numbers."""
  rng = np.random.default_rng(3)
  return {key: rng.uniform(low, high, seeds) for key in keys}


def _index(values, experiment='retrieval'):
  """Returns the index of {(arm, metric, length): [seeds]}."""
  return results.index(
      Row(experiment, arm, seed, n, metric, x)
      for (arm, metric, n), of_seeds in values.items()
      for seed, x in enumerate(of_seeds))


def _check(axes, name, colour, x, columns, geometric=False):
  """Checks a line and its band: mean and interval of each of the columns."""
  if geometric:
    ends = np.exp([mean_of(np.log(column)) for column in columns])
  else:
    ends = np.array([mean_of(column) for column in columns])
  found = lines(axes)[name]
  assert (found.colour, found.x) == (colour, x)
  close(found.y, ends[:, 0])
  places, low, high = bands(axes)[colour]
  assert places == x
  close([low, high], ends[:, 1:].T)


# Length generalization.


@pytest.fixture(scope='module')
def measured():
  """Values of three arms, with and without adapted temperature, at three lengths."""
  metrics = ('accuracy', 'output_mean', 'output_variance', 'component_variance',
             'attention_entropy', 'target_weight')
  return _draw((arm + suffix, metric, n) for arm in _ARMS
               for suffix in ('', '+adaptive') for metric in metrics for n in _LENGTHS)


def test_accuracy_and_gain_have_the_colour_of_their_arm(measured):
  axes = length_figures.accuracy(_index(measured), _SETTING).axes
  for (above, below), suffix in zip(
      (axes[::2], axes[1::2]), ('', '+adaptive'), strict=True):
    assert shades(above) == shades(below) == [(pytest.approx(shades(above)[0][0]), 16)]
    for arm, (name, colour) in _ARMS.items():
      at = lambda arm, n, suffix=suffix: 100 * measured[arm + suffix, 'accuracy', n]
      _check(above, name, colour, _LENGTHS, [at(arm, n) for n in _LENGTHS])
      if arm != 'none':
        _check(below, name, colour, _LENGTHS,
               [at(arm, n) - at('none', n) for n in _LENGTHS])


def test_the_mean_gain_beyond_training_stands_above_the_gains(measured):
  made = tables.make_tables(_index(measured), 16)
  [table] = [table for table in made if table.name == 'primary_endpoint']
  figure = length_figures.accuracy(_index(measured), _SETTING, table.records)
  for below, suffix in zip(figure.axes[2:], ('', '+adaptive'), strict=True):
    mean = lambda arm, suffix=suffix: 50 * (
        measured[arm + suffix, 'accuracy', 32] + measured[arm + suffix, 'accuracy', 64])
    words = '{:+.1f} [{:+.1f}, {:+.1f}]'.format(
        *mean_of(mean('layer_norm') - mean('none'))).replace('-', '−')
    ends = words.replace('−', '-').partition('[')[2].removesuffix(']')
    low, high = map(float, ends.split(', '))
    side = 'ahead' if low > 0 else 'behind' if high < 0 else 'no difference found'
    gains = mean('layer_norm') - mean('none')
    assert below.get_title() == (
        f'LayerNorm: {side},\nmean {words},\nahead in {(gains > 0).sum()} of 4 seeds')
  assert 'each length by itself, uncorrected' in figure.get_label()
  words = figure.axes[2].get_title().split('\n')[1].removeprefix('mean ')
  words = words.removesuffix(',').replace(' [', ' points [')
  record = table.records[0]
  told = ('no difference found between LayerNorm and Baseline in accuracy'
          if record['ci_low'] <= 0 <= record['ci_high'] else
          f'LayerNorm is {"ahead of" if record["difference"] > 0 else "behind"} the '
          'Baseline in accuracy')
  assert title_of(figure) == (
      f'As trained, {told} beyond the training lengths: {words}')
  assert setup_of(figure) == f'{_SETTING.title}; bands: 95 % intervals over 4 seeds'
  for low, high, words in ((-0.1, 2.0, 'no difference found'), (0.1, 2.0, 'ahead of'),
                           (-2.0, -0.1, 'behind')):
    row = record | {'difference': (low + high) / 2, 'ci_low': low, 'ci_high': high}
    found = length_figures.accuracy(_index(measured), _SETTING, [row])
    assert words in title_of(found) and title_of(found).startswith('As trained, ')
    assert words.removesuffix(' of') in found.axes[2].get_title()
  # Without a test in the table, there is no interval in the figure either.
  records = [row | {'at_5_percent': 'not learned'} for row in table.records]
  lost = length_figures.accuracy(_index(measured), _SETTING, records)
  assert title_of(lost) == 'Accuracy by length, and its change by a norm'
  for below in lost.axes[2:]:
    assert below.get_title().startswith('LayerNorm: not learned,\n')
    assert '[' not in below.get_title()


def test_figure_3_has_means_on_the_left_and_variances_on_the_right(measured):
  left, right = length_figures.output_moments(_index(measured), _SETTING).axes
  assert 'mean' in left.get_title() and 'variance' in right.get_title()
  for arm, (name, colour) in _ARMS.items():
    of = lambda metric, arm=arm: [measured[arm, metric, n] for n in _LENGTHS]
    _check(left, name, colour, _LENGTHS, of('output_mean'))
    _check(right, name, colour, _LENGTHS, of('output_variance'), geometric=True)
  assert len(lines(left)) == len(lines(right)) == 3
  each = [f'{name} ' + ' → '.join(
      f'{stats.gmean(measured[arm, "output_variance", n]):.1f}' for n in (16, 64))
          for arm, (name, _) in _ARMS.items()]
  assert title_of(left.figure) == (
      f'Variance over features of the attention output, N = 16 → 64: {", ".join(each)}')
  assert setup_of(left.figure).startswith(f'{_SETTING.title}; after the norm')


def test_means_over_features_are_drawn_beside_the_spread_of_features(measured):
  values = {key: 0.01 * x if key[1] == 'output_mean' else x
            for key, x in measured.items()}
  left, _ = length_figures.output_moments(_index(values), _SETTING).axes
  most = max(stats.gmean(values[arm, 'output_variance', n])
             for arm in _ARMS for n in (16, 64))
  close(left.get_ylim(), 1.05 * most**0.5 * np.array([-1, 1]))
  left, _ = length_figures.output_moments(
      _index({key: 100 * x if key[1] == 'output_mean' else x
              for key, x in measured.items()}), _SETTING).axes
  assert left.get_ylim()[1] > max(line.y.max() for line in lines(left).values())


def test_proposition_1_has_each_arm_and_the_bound_of_the_baseline(measured):
  more = {(arm, metric, None): values for arm in ('none', 'layer_norm')
          for metric, values in (
              ('logit_range', np.array([0.3, 0.9, 0.5, 0.2]) + (arm != 'none')),
              ('value_variance', np.array([2.0, 1.5, 0.4, 3.0])))}
  figure = length_figures.component_variance(_index(measured | more), _SETTING)
  [axes] = figure.axes
  for arm, (name, colour) in _ARMS.items():
    columns = [measured[arm, 'component_variance', n] for n in _LENGTHS]
    of_seeds = np.array(columns).T
    slopes = [stats.linregress(np.log(_LENGTHS), np.log(x)).slope for x in of_seeds]
    words = '{}, slope from N = 16: {:.2f} [{:.2f}, {:.2f}]'.format(
        name, *mean_of(slopes))
    _check(axes, words.replace('-', '−'), colour, _LENGTHS, columns, geometric=True)
    slope = f'{np.mean(slopes):.2f} ({name})'.replace('-', '−')
    assert f' {slope}' in title_of(figure)
  assert title_of(figure).startswith(
      'From N = 16, variance over sequences of the attention output before the norm '
      'has log-log slope ')
  # Through the Baseline where its slopes begin.
  start = stats.gmean(measured['none', 'component_variance', 16])
  line = lines(axes)['slope −1, as 1/N']
  assert line.x == [*_LENGTHS]
  close(line.y, start * 16 / np.array(_LENGTHS))
  bound = np.exp(np.median(2 * more['none', 'logit_range', None]
                           + np.log(more['none', 'value_variance', None])))
  assert f'exp(2δ)σ²/N, in the median over seeds {bound:.1f}/N' in figure.get_label()
  large = more | {('none', 'logit_range', None): np.full(4, 9.0)}
  large = length_figures.component_variance(_index(measured | large), _SETTING)
  assert 'too large here to say anything (about 10^8/N)' in large.get_label()


def test_chance_and_published_accuracy_are_drawn_where_they_are_known(measured):
  axes = length_figures.accuracy(_index(measured), _SETTING).axes
  for (above, below), published in zip(
      (axes[::2], axes[1::2]), ((98.6, 12.4), (98.6, 14.0)), strict=True):
    assert lines(above)['chance'].y.tolist() == [10, 10]
    crosses = lines(above)['arXiv 2410.01104']
    assert (crosses.x[0], crosses.x[-1]) == (16, 2**14)
    assert (crosses.y[0], crosses.y[-1]) == published
    assert 'chance' not in lines(below)
  for other in (Setting('lookup', 16, 0.1), Setting('retrieval', 256, 0.1)):
    assert 'arXiv 2410.01104' not in lines(
        length_figures.accuracy(_index(measured), other).axes[0])
  assert 'chance' not in lines(
      length_figures.accuracy(_index(measured), Setting('own')).axes[0])


@pytest.mark.parametrize('config, words', [
    ({'train': {'min_length': 5, 'max_length': 16, 'num_steps': 4000},
      'optimizer': {'l2': 0.0}, 'task': {'num_classes': 10}},
     'lookup, trained on 5 to 16 items for 4,000 steps, no L2 penalty'),
    ({'train': {'min_length': 5, 'max_length': 256, 'first_max_length': 16},
      'optimizer': {'l2': 1e-3}},
     'lookup, trained on 5 items or more, longest length growing from 16 to 256, '
     'L2 penalty 0.001')])
def test_a_setting_in_words(config, words):
  found = read_setting(config, 'lookup_growing')
  assert found.title == words
  assert found.trained_up_to == config['train']['max_length']
  assert found.chance == (0.1 if 'task' in config else None)


def test_a_growing_length_is_that_of_training():
  config = {'train': {'min_length': 5, 'max_length': 256, 'first_max_length': 16,
                      'num_steps': 2000}}
  growth = read_setting(config, 'lookup_growing').growth
  assert growth == (16, 256, 1600)
  for step in (0, 1, 7, 123, 400, 1599, 1600, 2000):
    assert growth.at(step) == growing_length(step, first=16, last=256, num_steps=1600)
  fixed = {'train': {'max_length': 16, 'num_steps': 2000}}
  assert read_setting(fixed, 'lookup').growth is None


def test_learning_curves_have_the_longest_length_above_its_steps():
  curves = [{'arm': 'none', 'step': step, 'first_seed': 0, 'loss': [0.5],
             'accuracy': [1.0]} for step in (500, 1000)]
  growing = _SETTING._replace(growth=Growth(16, 256, 800))
  figure = length_figures.learning_curves(curves, growing)
  for axes in figure.axes:
    [above] = axes.child_axes
    assert above.get_xticks().tolist() == [0, 200, 400, 600, 800]
    assert [x.get_text() for x in above.get_xticklabels()] == [
        '16', '76', '136', '196', '256']
  assert 'no wrong answer' in figure.get_label()
  for axes in length_figures.learning_curves(curves, _SETTING).axes:
    assert axes.child_axes == []


def test_learning_curves_have_mean_and_range_of_whole_blocks_and_chance():
  rng, curves = np.random.default_rng(2), []
  for arm, first, steps in (('none', 0, (10, 20)), ('none', 2, (10, 20)),
                            ('none', 4, (10,)), ('layer_norm', 0, (10, 20))):
    curves += [{'arm': arm, 'step': step, 'first_seed': first,
                'loss': rng.random(2).tolist(), 'accuracy': rng.random(2).tolist()}
               for step in steps]
  left, right = length_figures.learning_curves(curves, _SETTING).axes
  for axes, metric, plain in ((left, 'loss', lambda x: x),
                              (right, 'accuracy', lambda x: 100 * (1 - x))):
    for arm in ('none', 'layer_norm'):
      name, colour = _ARMS[arm]
      of_seeds = {}
      for line in curves:
        for i, x in enumerate(line[metric] if line['arm'] == arm else ()):
          of_seeds.setdefault(line['first_seed'] + i, []).append(plain(x))
      whole = [x for x in of_seeds.values() if len(x) == 2]
      assert lines(axes)[name][:2] == (colour, [10, 20])
      close(lines(axes)[name].y, np.mean(whole, 0))
      close(bands(axes)[colour][1:], [np.min(whole, 0), np.max(whole, 0)])
    assert len(lines(axes)) == 3
  close(lines(left)['chance'].y, np.log(10))
  close(lines(right)['chance'].y, 90)
  assert 'loss' in left.get_title() and 'error' in right.get_title()
  assert title_of(left.figure) == 'Wrong answers in training'
  assert setup_of(left.figure) == _SETTING.title
  # The title has the numbers of the table of training, rounded as there.
  trained = training_table(results.index(
      Row('retrieval', arm, seed, None, f'training_{metric}', value)
      for seed in (0, 1) for metric in ('accuracy', 'loss')
      for arm, value in (('none', 0.99845), ('layer_norm', 0.97)))).records
  figure = length_figures.learning_curves(curves, _SETTING, trained)
  assert title_of(figure) == (
      'Wrong answers at the end of training: Baseline '
      f'{100 - float(f"{99.845:.2f}"):.2f} %, LayerNorm 3.00 %')
  # A seed without a wrong answer does not stretch the axis of errors.
  means = [y for line in lines(right).values() for y in line.y]
  assert min(means) / 2 == pytest.approx(right.get_ylim()[0])
  [legend] = left.figure.legends
  assert 'from the lowest to the highest seed' in legend.get_title().get_text()
  assert left.get_yscale() == right.get_yscale() == 'log'


@pytest.fixture(scope='module')
def samples():
  rng = np.random.default_rng(0)
  return {
      arm: {f'components_{n}': rng.normal(i, 1 + n / 64, (50, 3)) for n in (16, 64)}
           | {f'weights_{n}': rng.random((6, 4)) for n in (16, 32, 100)}
      for i, arm in enumerate(('none', 'layer_norm'))}


def test_figure_2_shows_components_of_typical_spread_in_units_of_their_own(samples):
  figure = sample_figures.components(samples, _SETTING)
  panels = {axes.get_title().partition('\n')[0]: axes for axes in figure.axes}
  drawn, moved = {}, {}
  for arm, arrays in samples.items():
    first = arrays['components_16']
    for i in sample_figures.typical(first):
      name = f'{_ARMS[arm][0]}, component {i}'
      drawn[name] = [
          (arrays[f'components_{n}'][:, i] - first[:, i].mean()) / first[:, i].std()
          for n in (16, 64)]
      moved[name] = (arrays['components_64'][:, i].std() / first[:, i].std(),
                     (arrays['components_64'][:, i].mean() - first[:, i].mean())
                     / first[:, i].std())
  assert panels.keys() == drawn.keys() and len(drawn) == 4
  low, high = np.quantile(np.concatenate([*drawn.values()]), (0.002, 0.998))
  for name, columns in drawn.items():
    for (filled, outline), n, column in zip(
        zip(panels[name].patches[::2], panels[name].patches[1::2], strict=True),
        (16, 64), columns, strict=True):
      heights, edges = np.histogram(
          column, np.linspace(low, high + 1e-9, 81), density=True)
      for patch in (filled, outline):
        corners = patch.get_xy()
        close([corners[:, 0].min(), corners[:, 0].max()], edges[[0, -1]])
        close(np.unique(corners[:, 1]), np.unique([0, *heights]), atol=1e-12)
      assert outline.get_label() == f'N = {n}'
  for name, (spread, shift) in moved.items():
    words = f'{name}\nspread ×{spread:.2f}, shift {shift:+.1f}'.replace('-', '−')
    assert panels[name].get_title().replace('shift 0', 'shift +0') == words.replace(
        'shift −0.0', 'shift +0.0')
  shifts = [shift for _, shift in moved.values()]
  each = []
  for arm in samples:
    own = [x for name, (x, _) in moved.items() if name.startswith(_ARMS[arm][0])]
    ends = dict.fromkeys(f'{end(own):.2f}' for end in (min, max))
    each.append(f'{_ARMS[arm][0]} × {" to ".join(ends)}')
  assert title_of(figure) == (
      f'Spread of 2 of 3 output components, N = 16 → 64: {", ".join(each)}')
  assert 'of each arm the 2 of 3 components whose' in figure.get_label()
  assert setup_of(figure) == (
      f'{_SETTING.title}; model of seed 0; their means shift by up to '
      f'{np.abs(shifts).max():.1f} standard deviations')
  limits = {axes.get_xlim() for axes in figure.axes}
  assert len(limits) == 1
  assert [axes.get_xlabel() for axes in figure.axes] == 2 * [''] + 2 * [
      'value − mean at N = 16,\nin standard deviations there']


def test_components_that_a_norm_keeps_nearly_constant_are_not_typical():
  noise = np.random.default_rng(0).normal(size=(500, 5))
  assert sample_figures.typical(noise * [1e-4, 3, 1e-4, 0.5, 0]) == [1, 3]


def test_figure_4_has_weights_by_arm_and_length_and_what_they_come_to(
    samples, measured):
  words = 'the items of a task'
  told = {arm: {'shown_items': np.array(words), **x} for arm, x in samples.items()}
  figure = sample_figures.weights(_index(measured), told, _SETTING)
  left, right = figure.subfigs
  panels = [axes for axes in left.axes if axes.images]
  for panel, ((arm, arrays), n) in zip(
      panels, itertools.product(samples.items(), (16, 32, 100)), strict=True):
    np.testing.assert_array_equal(panel.images[0].get_array(), arrays[f'weights_{n}'])
    if n == 16:
      assert panel.get_ylabel() == _ARMS[arm][0]
  assert [axes.get_title() for axes in panels[:3]] == ['N = 16', '32', '100']
  # Of the four items shown, the first and the last are numbered below.
  assert [[text.get_text() for text in axes.get_xticklabels()] for axes in panels] == (
      3 * [[]] + 3 * [['1', '4']])
  assert panels[-1].get_xticks().tolist() == [0, 3]
  assert left.get_supxlabel() == f'{words}; each row is a sequence'
  each = []
  for arm in samples:
    first, last = (100 * measured[arm, 'target_weight', n].mean() for n in (16, 64))
    each.append(f'{_ARMS[arm][0]} {first:.0f} → {last:.0f} %')
  assert title_of(figure) == (
      f'Attention on the target from N = 16 to 64: {", ".join(each)}')
  for axes, metric, title in zip(
      right.axes, ('attention_entropy', 'target_weight'), ('entropy', 'target'),
      strict=True):
    assert title in axes.get_title()
    for arm, (name, colour) in _ARMS.items():
      _check(axes, name, colour, _LENGTHS, [measured[arm, metric, n] for n in _LENGTHS])
  entropy, weight = right.axes
  assert all(-0.1 < axes.get_ylim()[0] / axes.get_ylim()[1] < 0 for axes in right.axes)
  close(lines(entropy)['uniform weights'].y, np.log(_LENGTHS))
  close(lines(weight)['uniform weights'].y, 1 / np.array(_LENGTHS))


# Counting.


@pytest.mark.parametrize('task, counts, length, error', [
    # Mean 5.5 of lengths 1 to 10; of 3 fair bits, 1.5 ± √(3/4); 2.75 over training.
    ('length', 'fair', 7, 1.5**2), ('sum', 'fair', 3, 3 / 4 + 1.25**2),
    ('sum', 'uniform', 3, 5 / 4 + 1.25**2), ('mean', 'fair', 4, 1 / 16),
    ('mean', 'uniform', 1, 1 / 4)])
def test_the_error_of_the_best_constant(task, counts, length, error):
  assert counting.constant_error(task, counts, 10, 12)[length - 1] == (
      pytest.approx(error))


def test_the_best_constant_and_the_published_error_are_drawn():
  for task, label in (('sum', 'answering 2.75 always'),
                      ('length', 'answering 5.5 always')):
    _, _, axes = _counted('positions', ('none', 'rope'), task)
    close(lines(axes[0])[label].y, counting.constant_error(task, 'fair', 10, 12))
  _, _, [axes] = _counted('positions', ('none', 'rope'), 'mean')
  assert axes.get_ylim()[1] > lines(axes)['answering ½ always'].y.max()
  assert 'answering ½ always' in lines(axes)
  assert 'paper, no positions' not in lines(axes)  # 50 bits are not shown

def _counted(varied, values, task='sum'):
  fields = dict(task=task, counts='fair', positions=('none',), train_lengths=(10,),
                reparameterizations=('identity',)) | {varied: values}
  [figure] = read_figures(dict(f=fields)).values()
  keys = [(cell, metric, n) for cell in figure.cells
          for metric in ('squared_error', 'median_squared_error') for n in (1, 5, 12)]
  made = _draw(keys, 0.01, 1)
  rows = [Row(cell.experiment, cell.arm, seed, n, metric, x)
          for (cell, metric, n), of_seeds in made.items()
          for seed, x in enumerate(of_seeds)]
  indices = {cell.experiment: results.index(
      r for r in rows if r.experiment == cell.experiment) for cell in figure.cells}
  return figure, made, counting.errors(figure, indices, 12).axes


@pytest.mark.parametrize('fields, right, says', [
    (dict(task='length', positions=('none', 'rope', 'alibi')), (11, 9, 11),
     'Number of bits: right up to 11 bits (no positions, ALiBi), 9 (RoPE)'),
    (dict(task='sum', train_lengths=(5, 10)), (7, 13),
     'Sum of bits: right up to 7, 13 bits when trained up to 5, 10 bits'),
    # Of 12 fair bits the mean has variance 1/48; the least error is 1/1600.
    (dict(task='mean', positions=('none', 'rope')), None,
     'Mean of bits: at 12 bits, RoPE has the least error, '
     '33 times less than that of answering ½ always'),
    (dict(task='mean', counts='uniform'), None,
     'Mean of bits: at 12 bits, no positions has an error, '
     '3.1 times that of answering ½ always')])
def test_titles_of_counting_say_how_far_models_generalize(fields, right, says):
  fields = dict(task='sum', counts='fair', positions=('none',), train_lengths=(10,),
                reparameterizations=('identity',)) | fields
  [figure] = read_figures(dict(f=fields)).values()
  rows = [Row(cell.experiment, cell.arm, 0, n, 'squared_error', 0.1 * n)
          for cell in figure.cells for n in range(1, 13)]
  indices = {name: results.index(row for row in rows if row.experiment == name)
             for name in {cell.experiment for cell in figure.cells}}
  records = [{'training_error': 0.001, 'constant_error': 1.0,
              'error_12': 0.3 if len(figure.cells) == 1 else (1 / 400) / 4**i}
             | ({'right_up_to': right[i]} if right else {})
             for i in range(len(figure.cells))]
  drawn = lambda: counting.errors(figure, indices, 12, 'of width 8', records)
  title = lambda: title_of(drawn())
  assert title() == says
  setup = setup_of(drawn())
  assert 'of width 8' in setup
  assert ('each number of ones equally likely' in setup) == (
      fields['counts'] == 'uniform')
  assert ('right: 95 % of answers of all seeds together round to' in setup) == (
      right is not None)
  # Positions are named where they are the same for all models.
  assert ('no positions' in setup) == (figure.varied != 'positions')
  # A ring is around the last length that is right, if it was measured.
  [axes] = drawn().axes
  rings = [line_of(line) for line in axes.lines
           if line.get_marker() == 'o' and line.get_markersize() == 7]
  ends = [n for n in right or () if n <= 12]
  assert [ring.x for ring in rings] == [[n] for n in ends] + [[]] * bool(ends)
  close([ring.y for ring in rings[:-1]], [[0.1 * n] for n in ends] or [])
  assert ('right up to here' in lines(axes)) == bool(ends)
  # What has not learned is in no finding.
  for record in records:
    record['training_error'] = 0.2
  assert 'right up to' not in title() and 'least error' not in title()
  assert 'right up to here' not in lines(drawn().axes[0])


def test_errors_of_reparameterized_targets_are_means_and_medians():
  figure, made, (left, right) = _counted(
      'reparameterizations', ('identity', 'sqrt', 'log', 'inverse_sqrt'))
  assert left.get_title().endswith('mean over strings')
  assert right.get_title().endswith('median over strings')
  names = ('identity', '$\\sqrt{y + 1}$', '$\\log (y + 1)$', '$1/\\sqrt{y + 1}$')
  for cell, name, colour in zip(figure.cells, names, _COLOURS, strict=False):
    for axes, metric in ((left, 'squared_error'), (right, 'median_squared_error')):
      _check(axes, name, colour, [1, 5, 12],
             [made[cell, metric, n] for n in (1, 5, 12)], geometric=True)
  assert shades(left) == shades(right) == [(0, 10)]


def test_errors_of_training_lengths_are_of_their_own_models():
  figure, made, [axes] = _counted('train_lengths', (5, 10), 'length')
  marks = {line_of(line).colour: line_of(line).x for line in axes.lines
           if line.get_linestyle() == ':'}
  for cell, colour in zip(figure.cells, _COLOURS, strict=False):
    _check(axes, f'1 to {cell.train_length} bits', colour, [1, 5, 12],
           [made[cell, 'squared_error', n] for n in (1, 5, 12)], geometric=True)
    assert marks[colour] == [cell.train_length] * 2
    # From there on, the error of the best constant answer.
    [constant] = [line_of(line) for line in axes.lines
                  if line.get_linestyle() == '--' and line_of(line).colour == colour]
    assert constant.x == [*range(cell.train_length, 13)]
    close(constant.y, [(n - (cell.train_length + 1) / 2) ** 2 for n in constant.x])
  assert 'answering the mean of training always' in lines(axes)
  assert not shades(axes)


# Language models.


@pytest.fixture(scope='module')
def aligned():
  """A family of three arms, its run, and values."""
  arms = {name: language_model_arms.Arm(name, x, (0, 0.5), 1.0)
          for name, x in (('a', 0.0), ('b', 0.1), ('c', 0.3))}
  run = language_model_arms.Run(arms, 'a', 8, (1, 4, 8), 4)
  [family] = language_model_arms.families(run, set(arms))
  values = _draw(
      (arm, metric, n) for arm in arms for metric in ('nll', 'symmetric_kl', 'sce')
      for n in (8, 32, 64) if metric == 'nll' or n < 64)
  return family, run, values


def test_perplexity_its_change_and_misalignment_stand_in_panels_of_their_own(aligned):
  family, run, values = aligned
  plain, difference, divergence = language_model.by_length(
      family, run, _index(values)).axes
  for arm, name, colour in zip(
      'abc', ('α = 0', 'α = 0.1', 'α = 0.3'), _COLOURS, strict=False):
    of = lambda metric, lengths, arm=arm: [values[arm, metric, n] for n in lengths]
    _check(plain, name, colour, [8, 32, 64], np.exp(of('nll', (8, 32, 64))), True)
    # As in its table.
    _check(divergence, name, colour, [8, 32], of('symmetric_kl', (8, 32)))
    if arm != 'a':
      _check(difference, name, colour, [8, 32, 64],
             np.subtract(of('nll', (8, 32, 64)), of('nll', (8, 32, 64), 'a')))
  assert [*lines(difference)] == [
      'α = 0.1', 'α = 0.3', 'hollow: the paper at 2 L, Llama-2-7B']
  # At 4 L, of 8 tokens, from the least to the largest.
  (low, least), (high, most) = sorted(
      ((values[arm, 'nll', 32] - values['a', 'nll', 32]).mean(), name)
      for arm, name in (('b', 'α = 0.1'), ('c', 'α = 0.3')))
  ends = [mean_of(values[arm, 'nll', 32] - values['a', 'nll', 32])[1:]
          for arm in 'bc']
  assert ends[0][0] < 0 < ends[0][1] and 0 < ends[1][0]
  assert title_of(difference.figure) == (
      f'Change of log perplexity from α = 0 at 4 L: {low:+.3f} to {high:+.3f} '
      'nats; no difference found at α = 0.1, worse at α = 0.3')
  # Arms on one side of 0 are named with their differences.
  noisy = values | {('c', 'nll', 32): values['c', 'nll', 32] + np.array([4, -4, 0, 0])}
  assert title_of(language_model.by_length(family, run, _index(noisy))) == (
      f'Change of log perplexity from α = 0 at 4 L: {low:+.3f} ({least}) to '
      f'{high:+.3f} ({most}) nats; no difference found')
  assert setup_of(difference.figure) == (
      'Weight of the misalignment term; language models, L = 8 tokens; '
      'bands: 95 % intervals over 4 seeds')
  # Of one arm, over all lengths.
  moved = values | {('b', 'nll', n): values['a', 'nll', n] + more + np.arange(4) / 100
                    for n, more in ((8, -0.2), (32, 0.1), (64, -0.015))}
  alone = family._replace(others=family.others[:1])
  assert title_of(language_model.by_length(alone, run, _index(moved))) == (
      'Change of log perplexity from α = 0 at L to 8 L: −0.185 to +0.115 nats; '
      'better at L, worse at 4 L, no difference found at 8 L')
  timed = alone._replace(others=(alone.others[0]._replace(steps=0.95),))
  assert ', 2,000 steps at most, ' in setup_of(language_model.by_length(
      timed, run._replace(words='2 layers', steps=2000), _index(moved)))
  assert difference.get_title().endswith('minus that of α = 0')
  # The paper's CLEX on RedPajama-Book after 200 steps, at twice its L.
  hollow = {line_of(line).colour: line_of(line) for line in difference.lines
            if line.get_markerfacecolor() == 'white' and len(line.get_xdata())}
  for colour, theirs in ((_COLOURS[1], 5.88), (_COLOURS[2], 5.98)):
    assert hollow[colour].x == [16]
    close(hollow[colour].y, np.log(theirs / 6.12))
  assert [t.get_text() for t in plain.get_xticklabels()] == ['L', '4 L', '8 L']
  assert [t.get_text() for t in divergence.get_xticklabels()] == ['L', '4 L']
  assert divergence.get_xlim()[1] < 64


def test_labels_name_the_arms_that_have_not_learned_the_control_too(aligned):
  family, run, values = aligned
  loss = {'a': 3.0, 'b': 1.0, 'c': 3.0}
  values = values | {(arm, 'nll', 8): np.full(4, x) for arm, x in loss.items()}
  figure = language_model.by_length(family, run, _index(values), 2.0)
  assert [*lines(figure.axes[0])] == [
      'α = 0, not learned', 'α = 0.1', 'α = 0.3, not learned']
  # No difference is of two models that have learned; the family is named once.
  assert title_of(figure) == 'Perplexity by length of context'
  assert setup_of(figure).startswith('Weight of the misalignment term; ')


def test_an_arm_that_diverged_has_not_learned(aligned):
  family, run, values = aligned
  index = _index(values | {('b', 'nll', 8): np.full(4, np.nan)})
  assert not language_model_arms.have_learned(family, 'b', run, index, 9.0)
  assert language_model_arms.have_learned(family, 'c', run, index, 9.0)
  assert language_model_arms.without_learning(run, index, 9.0) == {'b'}


def test_a_change_of_models_that_have_not_learned_has_no_interval(aligned):
  family, run, values = aligned
  losses = {arm: values[arm, 'nll', 8].mean() for arm in 'abc'}
  draw = lambda most: language_model.by_length(family, run, _index(values), most)
  # All but the arm with the largest loss have learned; then, all but the control.
  worst = max('bc', key=lambda arm: losses[arm])
  values = values | {('a', 'nll', 8): values['a', 'nll', 8] - losses['a'] + 0.1}
  figure, whole = draw(losses[worst] - 1e-9), draw(losses[worst])
  colour = dict(zip('abc', _COLOURS, strict=False))[worst]
  name = {'b': 'α = 0.1', 'c': 'α = 0.3'}[worst]
  assert bands(whole.axes[1]).keys() - bands(figure.axes[1]).keys() == {colour}
  assert len(bands(figure.axes[1])) == 1
  close(lines(figure.axes[1])[f'{name}, not learned'].y,
        lines(whole.axes[1])[name].y)
  assert f'({name})' not in title_of(figure)
  assert f'{name}, not learned' in lines(figure.axes[0])
  assert 'without an interval' in figure.get_label()
  assert 'without an interval' not in whole.get_label()
  values = values | {('a', 'nll', 8): values['a', 'nll', 8] + 9}
  assert not bands(draw(5.0).axes[1])


def test_figures_of_language_models_leave_out_what_tables_leave_out(
    aligned, tmp_path, monkeypatch):
  _, run, values = aligned
  drawn = {}
  monkeypatch.setattr(plots, 'save', lambda folder, made: drawn.update(made) or {})
  arms = {name: {'weight': arm.weight, 'offsets': arm.offsets, 'steps': arm.steps}
          for name, arm in run.arms.items()}
  config = {'arms': arms, 'control': 'a', 'train': {'max_length': 8},
            'evaluate': {'lengths': run.multiples}, 'num_seeds': 4, 'text': {}}
  (tmp_path / 'config.json').write_text(json.dumps({'config': config}))
  # Of bytes, log perplexity above log(256) / 2 = 2.77 is not learned.
  values = values | {('c', 'nll', 8): values['c', 'nll', 8] + 2.5}
  results.write_rows(tmp_path / 'results.csv', [
      Row('language_model', arm, seed, n, metric, x)
      for (arm, metric, n), of_seeds in values.items()
      for seed, x in enumerate(of_seeds)])
  [table, _] = language_model_report.write(tmp_path).tables
  assert [(r['arm'], r['learned']) for r in table.records] == [
      ('a', True), ('b', True), ('c', False)]
  assert bands(drawn['alpha'].axes[1]).keys() == {_COLOURS[1]}


def test_an_interval_that_reaches_0_is_told(aligned):
  family, run, values = aligned
  draw = lambda table: language_model.by_length(family, run, _index(values | table))
  assert 'to the bottom reach 0' not in draw({}).get_label()
  figure = draw({('c', 'symmetric_kl', 32): np.array([0.01, 0.01, 0.01, 2.0])})
  assert 'bars to the bottom reach 0' in figure.get_label()
  assert 'bands and bars: 95 % intervals' in setup_of(figure)
  # It is a bar, that leaves an axis which fits the means, and no band.
  divergence = figure.axes[2]
  assert _COLOURS[2] not in {colour for colour, *_ in all_bands(divergence)
                             } - {to_hex(bar.get_color()[0]).upper()
                                  for bar in divergence.collections
                                  if isinstance(bar, LineCollection)}
  means = [y for line in lines(divergence).values() for y in line.y]
  assert divergence.get_ylim()[0] == pytest.approx(min(means) / 3)


def test_differences_of_many_arms_have_bars_side_by_side(aligned):
  family, run, values = aligned
  arms = {**run.arms, 'd': language_model_arms.Arm('d', 0.5, (0, 0.5), 1.0)}
  run = run._replace(arms=arms)
  [family] = language_model_arms.families(run, set(arms))
  values = values | {key: 1 + x**2 for key, x in _draw(
      ('d', 'nll', n) for n in (8, 32, 64)).items()}
  figure = language_model.by_length(family, run, _index(values))
  bars = [bar for bar in figure.axes[1].collections if isinstance(bar, LineCollection)]
  assert len(bars) == 3 and 'bands and bars' in setup_of(figure)
  for bar, arm in zip(bars, 'bcd', strict=True):
    ends = [mean_of(values[arm, 'nll', n] - values['a', 'nll', n])[1:]
            for n in (8, 32, 64)]
    close([segment[:, 1] for segment in bar.get_segments()], ends)
  places = [bar.get_segments()[1][0, 0] for bar in bars]
  assert places == sorted(places) and places[0] < places[1] < places[2]
  assert all(28 < place < 37 for place in places)


def test_an_arm_looks_alike_in_every_figure(aligned):
  _, run, values = aligned
  more = {**run.arms, 'd': language_model_arms.Arm('d', 0.1, (0, 1), 1.0)}
  run = run._replace(arms=more)
  values = values | _draw(('d', 'nll', n) for n in (8, 32, 64))
  colours = {}
  for each in language_model_arms.families(run, set(more)):
    plain, *_ = language_model.by_length(each, run, _index(values)).axes
    for name, line in lines(plain).items():
      colours.setdefault(name, set()).add(line.colour)
  # Among ranges of offsets an arm is named by its own.
  assert colours.pop('offset up to L/2') == colours['α = 0.1']
  assert [*colours] == ['α = 0', 'α = 0.1', 'α = 0.3', 'offset up to L']
  assert [*colours.values()] == [{x} for x in _COLOURS[:4]]


@pytest.mark.parametrize('offsets, words', [
    ((0, 0.25), 'up to L/4'), ((0.25, 0.5), 'L/4 to L/2'), ((0, 1.0), 'up to L'),
    ((0.0, 0.75), 'up to 3 L/4'), ((0.1, 2), 'L/10 to 2 L')])
def test_a_range_of_offsets_is_named_by_its_ends(offsets, words):
  arm = language_model_arms.Arm('a', 0.1, offsets, 1.0)
  assert language_model.label(arm) == f'α = 0.1, offset {words}'


def test_the_course_of_training_has_the_shortest_and_the_longest_length(aligned):
  family, run, _ = aligned
  metrics = ('nll_8', 'nll_32', 'nll_64', 'symmetric_kl_8', 'symmetric_kl_32')
  made = _draw(itertools.product('abc', (5, 10), metrics), seeds=5)
  # In two blocks of seeds.
  steps = [{'arm': arm, 'step': step, 'first_seed': first}
           | {m: made[arm, step, m][first:first + 3].tolist() for m in metrics}
           for arm in 'abc' for step in (5, 10) for first in (0, 3)]
  figure = step_figures.by_step([family], run, steps)
  axes, changes = figure.axes, [
      sorted(100 * np.expm1(made[arm, 10, m].mean() - made[arm, 5, m].mean())
             for arm in 'abc') for m in ('nll_8', 'nll_64')]
  ends = [f'by {low:+.1f} to {high:+.1f} %'.replace('-', '−')
          for low, _, high in changes]
  assert title_of(figure) == (
      f'From step 5 to the last, perplexity changes {ends[0]} at L, {ends[1]} at 8 L')
  alone = step_figures.by_step([family], run, [x for x in steps if x['step'] == 5])
  assert title_of(alone) == 'Perplexity and symmetric KL during training'
  assert [x.get_title() for x in axes] == [
      'perplexity at L', 'perplexity at 8 L', 'symmetric KL at L, nats']
  for panel, metric in zip(axes, ('nll_8', 'nll_64', 'symmetric_kl_8'), strict=True):
    for arm, name, colour in zip(
        'abc', ('α = 0', 'α = 0.1', 'α = 0.3'), _COLOURS, strict=False):
      columns = np.array([made[arm, step, metric] for step in (5, 10)])
      columns = np.exp(columns) if metric != 'symmetric_kl_8' else columns
      _check(panel, name, colour, [5, 10], columns,
             geometric=metric != 'symmetric_kl_8')


# Mechanism.


def test_changes_that_were_not_run_and_what_knows_the_target_are_told():
  values = _draw((f'none{suffix}', metric, n)
                 for suffix in ('', '+rescaled', '+one_hot', '+shrunk')
                 for metric in ('accuracy', 'total_variance') for n in _LENGTHS)
  figure = mechanism.figure(_index(values), _SETTING)
  told = [part.get_suptitle() for part in figure.subfigs]
  assert [('not known' in words, 'told' in words or 'target known' in words)
          for words in told] == [
      (True, False), (False, True), (False, True), (False, False)]
  assert figure.get_label().endswith(
      'Not run here: mean as in training; mean and variance as in training; mean and '
      'covariance as in training; weight of the target as in training; z-scores of '
      'training, mean as at N; z-scores of training, mean and variance as at N.')


@pytest.mark.parametrize('run, words', [
    (('vanished',), 'mean and variance'), (('shrunk',), 'variance'),
    (('shifted', 'shrunk'), 'mean or variance'),
    (('shrunk', 'vanished'), 'variance or mean and variance'),
    (('shifted', 'shrunk', 'vanished'), 'mean, variance or both')])
def test_the_heading_names_the_moments_that_were_imposed(run, words):
  values = _draw((f'none{suffix}', metric, n)
                 for suffix in ('', *(f'+{name}' for name in run))
                 for metric in ('accuracy', 'total_variance') for n in _LENGTHS)
  row, _ = mechanism.figure(_index(values), _SETTING).subfigs
  assert row.get_suptitle() == (
      f'Output of short inputs (target known), given the {words} at N')


def test_each_intervention_has_its_line_and_colour():
  done = mechanism.INTERVENTIONS
  values = _draw((arm + suffix, metric, n) for arm in ('none', 'layer_norm')
                  for suffix in ('', *(f'+{name}' for name in done))
                  for metric in ('accuracy', 'total_variance') for n in _LENGTHS)
  *changed, variance = mechanism.figure(_index(values), _SETTING).axes
  groups = (mechanism.RESTORED, mechanism.ATTENDED, mechanism.IMPOSED, mechanism.READ)
  for panel, (group, arm) in zip(
      changed, itertools.product(groups, ('none', 'layer_norm')), strict=True):
    assert panel.get_title() == plots.SPELLED[arm]
    assert {*lines(panel)} == {
        'unchanged', 'chance', *(name for name, _, _ in group.values())}
    for name, (label, colour, _) in group.items():
      _check(panel, label, colour, _LENGTHS,
             [100 * values[f'{arm}+{name}', 'accuracy', n] for n in _LENGTHS])
    _check(panel, 'unchanged', '#000000', _LENGTHS,
           [100 * values[arm, 'accuracy', n] for n in _LENGTHS])
    assert lines(panel)['chance'].y.tolist() == [10, 10]
  for arm in ('none', 'layer_norm'):
    first = values[arm, 'total_variance', 16]
    found = lines(variance)[_ARMS[arm][0]]
    assert found.colour == _ARMS[arm][1]
    close(found.y, [stats.gmean(values[arm, 'total_variance', n] / first)
                    for n in _LENGTHS])
  # Lines that nearly coincide show both: one has larger, hollow markers.
  told = changed[2]
  around, within = (next(line for line in told.lines if line.get_label() == label)
                    for label, *_ in mechanism.ATTENDED.values())
  assert around.get_markersize() > 1.5 * within.get_markersize()
  assert around.get_markerfacecolor() == 'none'
  colours = [colour for _, colour, _ in done.values()]
  assert len({*colours} - {colour for _, colour in _ARMS.values()}) == 12


def test_a_setting_names_the_lengths_of_training():
  config = {'train': {'min_length': 5, 'max_length': 16, 'num_steps': 10}}
  assert read_setting(config, 'retrieval').lengths == '5 to 16 items'
