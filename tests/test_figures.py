"""Figures of trained models: what each panel shows, read from its artists.

The numbers are made up, and no two are alike.
"""

import itertools

import numpy as np
import pytest
from scipy import stats

from experiments.counting import figures as counting
from experiments.counting.cells import read_figures
from experiments.language_model import figures as language_model
from experiments.language_model import report as language_model_report
from experiments.length_generalization import figures as length_figures
from experiments.length_generalization import sample_figures
from experiments.mechanism import figures as mechanism
from tests.artists import bands, line_of, lines, shades
from tests.cells import mean_of
from vvlen.reporting import plots, results
from vvlen.reporting.results import Row

_ARMS = {'none': ('Baseline', '#0072B2'), 'standardize': ('std.', '#E69F00'),
         'layer_norm': ('LN', '#009E73')}
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
  axes = length_figures.accuracy(_index(measured), 16).axes
  for (above, below), suffix in zip(
      (axes[::2], axes[1::2]), ('', '+adaptive'), strict=True):
    assert shades(above) == shades(below) == [(pytest.approx(shades(above)[0][0]), 16)]
    for arm, (name, colour) in _ARMS.items():
      at = lambda arm, n, suffix=suffix: 100 * measured[arm + suffix, 'accuracy', n]
      _check(above, name, colour, _LENGTHS, [at(arm, n) for n in _LENGTHS])
      if arm != 'none':
        _check(below, name, colour, _LENGTHS,
               [at(arm, n) - at('none', n) for n in _LENGTHS])


def test_figure_3_has_means_on_the_left_and_variances_on_the_right(measured):
  left, right = length_figures.output_moments(_index(measured), 16).axes
  assert 'mean' in left.get_title() and 'variance' in right.get_title()
  for arm, (name, colour) in _ARMS.items():
    of = lambda metric, arm=arm: [measured[arm, metric, n] for n in _LENGTHS]
    _check(left, name, colour, _LENGTHS, of('output_mean'))
    _check(right, name, colour, _LENGTHS, of('output_variance'), geometric=True)
  assert len(lines(left)) == len(lines(right)) == 3


def test_proposition_1_has_each_arm_and_the_bound_of_the_baseline(measured):
  more = {(arm, metric, None): values for arm in ('none', 'layer_norm')
          for metric, values in (
              ('logit_range', np.array([0.3, 0.9, 0.5, 0.2]) + (arm != 'none')),
              ('value_variance', np.array([2.0, 1.5, 0.4, 3.0])))}
  figure = length_figures.component_variance(_index(measured | more), 16)
  [axes] = figure.axes
  for arm, (name, colour) in _ARMS.items():
    columns = [measured[arm, 'component_variance', n] for n in _LENGTHS]
    _check(axes, name, colour, _LENGTHS, columns, geometric=True)
    of_seeds = np.array(columns).T
    slopes = [stats.linregress(np.log(_LENGTHS), np.log(x)).slope for x in of_seeds]
    words = '{} {:.2f} [{:.2f}, {:.2f}]'.format(name, *mean_of(slopes))
    assert words.replace('-', '−') in figure.get_supxlabel()
  bound = np.exp(np.median(2 * more['none', 'logit_range', None]
                           + np.log(more['none', 'value_variance', None])))
  assert f'median over seeds: $e^{{2\\delta}}\\sigma^2/N = {bound:.1f}/N$' in (
      figure.get_supxlabel())
  large = more | {('none', 'logit_range', None): np.full(4, 9.0)}
  large = length_figures.component_variance(_index(measured | large), 16)
  assert '= 10^{8}/N$, too loose to draw' in large.get_supxlabel()


def test_learning_curves_have_each_seed_and_the_mean_of_whole_blocks():
  rng, curves = np.random.default_rng(2), []
  for arm, first, steps in (('none', 0, (10, 20)), ('none', 2, (10, 20)),
                            ('none', 4, (10,)), ('layer_norm', 0, (10, 20))):
    curves += [{'arm': arm, 'step': step, 'first_seed': first,
                'loss': rng.random(2).tolist(), 'accuracy': rng.random(2).tolist()}
               for step in steps]
  left, right = length_figures.learning_curves(curves).axes
  for axes, metric, scale in ((left, 'loss', 1), (right, 'accuracy', 100)):
    thin = [line_of(line) for line in axes.lines if line.get_label().startswith('_')]
    bold = lines(axes)
    for arm in ('none', 'layer_norm'):
      name, colour = _ARMS[arm]
      of_seeds = {}
      for line in curves:
        for i, x in enumerate(line[metric] if line['arm'] == arm else ()):
          of_seeds.setdefault(line['first_seed'] + i, []).append(scale * x)
      own = [line for line in thin if line.colour == colour]
      assert [line.y.tolist() for line in own] == [*of_seeds.values()]
      assert [line.x for line in own] == [[10, 20][:len(x)] for x in of_seeds.values()]
      assert bold[name].colour == colour and bold[name].x == [10, 20]
      close(bold[name].y, np.mean([x for x in of_seeds.values() if len(x) == 2], 0))
    assert len(bold) == 2
  assert 'loss' in left.get_ylabel() and 'accuracy' in right.get_ylabel()


@pytest.fixture(scope='module')
def samples():
  rng = np.random.default_rng(0)
  return {
      arm: {f'components_{n}': rng.normal(i, 1 + n / 64, (50, 3)) for n in (16, 64)}
           | {f'weights_{n}': rng.random((6, 4)) for n in (16, 32, 100)}
      for i, arm in enumerate(('none', 'layer_norm'))}


def test_figure_2_has_every_component_at_every_length(samples):
  axes = sample_figures.components(samples).axes
  for panel, ((arm, arrays), i) in zip(
      axes, itertools.product(samples.items(), range(3)), strict=True):
    assert panel.get_title() == f'{_ARMS[arm][0]}, component {i}'
    columns = [arrays[f'components_{n}'][:, i] for n in (16, 64)]
    low, high = np.quantile(np.concatenate(columns), (0.002, 0.998))
    for (filled, outline), n, column in zip(
        zip(panel.patches[::2], panel.patches[1::2], strict=True), (16, 64), columns,
        strict=True):
      heights, edges = np.histogram(
          column, np.linspace(low, high + 1e-9, 41), density=True)
      for patch in (filled, outline):
        corners = patch.get_xy()
        close([corners[:, 0].min(), corners[:, 0].max()], edges[[0, -1]])
        close(np.unique(corners[:, 1]), np.unique([0, *heights]), atol=1e-12)
      assert outline.get_label() == f'N = {n}'
  colours = {patch.get_edgecolor() for patch in axes[0].patches[1::2]}
  assert len(colours) == 2


def test_figure_4_has_weights_by_arm_and_length_and_what_they_come_to(
    samples, measured):
  words = 'the items of a task'
  told = {arm: {'shown_items': np.array(words), **x} for arm, x in samples.items()}
  figure = sample_figures.weights(_index(measured), told, 16)
  left, right = figure.subfigs
  panels = [axes for axes in left.axes if axes.images]
  for panel, ((arm, arrays), n) in zip(
      panels, itertools.product(samples.items(), (16, 32, 100)), strict=True):
    np.testing.assert_array_equal(panel.images[0].get_array(), arrays[f'weights_{n}'])
    if n == 16:
      assert panel.get_ylabel() == f'{_ARMS[arm][0]}\n6 sequences'
  assert [axes.get_title() for axes in panels[:3]] == ['$2^{4}$', '$2^{5}$', '100']
  assert left.get_supxlabel() == f'{words}; model of seed 0'
  for axes, metric, title in zip(
      right.axes, ('attention_entropy', 'target_weight'), ('entropy', 'target'),
      strict=True):
    assert title in axes.get_title()
    for arm, (name, colour) in _ARMS.items():
      _check(axes, name, colour, _LENGTHS, [measured[arm, metric, n] for n in _LENGTHS])


# Counting.


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
  assert not shades(axes)


# Language models.


@pytest.fixture(scope='module')
def aligned():
  """A family of three arms, its run, and values."""
  arms = {name: language_model_report.Arm(name, x, (0, 0.5), 1.0)
          for name, x in (('a', 0.0), ('b', 0.1), ('c', 0.3))}
  run = language_model_report.Run(arms, 'a', 8, (1, 4, 8), 4)
  [family] = language_model_report.families(run, set(arms))
  values = _draw((arm, metric, n) for arm in arms for metric in ('nll', 'excess', 'sce')
                 for n in (8, 32, 64) if metric == 'nll' or n < 64)
  return family, run, values


def test_perplexity_its_change_and_misalignment_stand_in_panels_of_their_own(aligned):
  family, run, values = aligned
  plain, difference, excess = language_model.by_length(
      family, run, _index(values)).axes
  for arm, name, colour in zip(
      'abc', ('α = 0', 'α = 0.1', 'α = 0.3'), _COLOURS, strict=False):
    of = lambda metric, lengths, arm=arm: [values[arm, metric, n] for n in lengths]
    _check(plain, name, colour, [8, 32, 64], np.exp(of('nll', (8, 32, 64))), True)
    _check(excess, name, colour, [8, 32], of('excess', (8, 32)), geometric=True)
    if arm != 'a':
      _check(difference, name, colour, [8, 32, 64],
             np.subtract(of('nll', (8, 32, 64)), of('nll', (8, 32, 64), 'a')))
  assert len(lines(difference)) == 2
  assert difference.get_title() == 'against α = 0'
  assert [t.get_text() for t in plain.get_xticklabels()] == ['L', '4 L', '8 L']


def test_the_course_of_training_has_the_shortest_and_the_longest_length(aligned):
  _, run, _ = aligned
  metrics = ('nll_8', 'nll_32', 'nll_64', 'excess_8', 'excess_32')
  made = _draw(itertools.product('abc', (5, 10), metrics), seeds=5)
  # In two blocks of seeds.
  steps = [{'arm': arm, 'step': step, 'first_seed': first}
           | {m: made[arm, step, m][first:first + 3].tolist() for m in metrics}
           for arm in 'abc' for step in (5, 10) for first in (0, 3)]
  axes = language_model.by_step(run, steps).axes
  assert [x.get_title() for x in axes] == [
      'perplexity at L', 'perplexity at 8 L', 'symmetric KL at L, nats']
  for panel, metric in zip(axes, ('nll_8', 'nll_64', 'excess_8'), strict=True):
    for arm, name, colour in zip(
        'abc', ('α = 0', 'α = 0.1', 'α = 0.3'), _COLOURS, strict=False):
      columns = np.array([made[arm, step, metric] for step in (5, 10)])
      columns = np.exp(columns) if metric != 'excess_8' else columns
      _check(panel, name, colour, [5, 10], columns, geometric=True)


# Mechanism.


def test_each_intervention_has_its_line_and_colour():
  done = mechanism.INTERVENTIONS
  values = _draw((arm + suffix, metric, n) for arm in ('none', 'layer_norm')
                  for suffix in ('', *(f'+{name}' for name in done))
                  for metric in ('accuracy', 'total_variance') for n in _LENGTHS)
  axes = mechanism.figure(_index(values), 16).axes
  groups = (mechanism.RESTORED, mechanism.IMPOSED, mechanism.READ)
  for (*changed, variance), arm in zip(
      (axes[:4], axes[4:]), ('none', 'layer_norm'), strict=True):
    for panel, group in zip(changed, groups, strict=True):
      assert panel.get_title().startswith(_ARMS[arm][0])
      assert {*lines(panel)} == {'as it is', *(name for name, _, _ in group.values())}
      for name, (label, colour, _) in group.items():
        _check(panel, label, colour, _LENGTHS,
               [100 * values[f'{arm}+{name}', 'accuracy', n] for n in _LENGTHS])
      _check(panel, 'as it is', '#000000', _LENGTHS,
             [100 * values[arm, 'accuracy', n] for n in _LENGTHS])
    first = values[arm, 'total_variance', 16]
    found = lines(variance)[_ARMS[arm][0]]
    assert found.colour == _ARMS[arm][1]
    close(found.y, [stats.gmean(values[arm, 'total_variance', n] / first)
                    for n in _LENGTHS])
  colours = [colour for _, colour, _ in done.values()]
  assert len({*colours}) == len(colours) == 12
