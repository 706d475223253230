"""Tables and figures of a family of runs in which no two numbers are equal."""

import json

from matplotlib.colors import to_hex
import numpy as np
import pytest
from scipy import stats

from configs import vanishing_variance as config_file
from experiments.vanishing_variance import effects, family, report, tables
from tests import artists
from tests.cells import cells, interval, p_of, paired, text
from vvlen.reporting import results
from vvlen.reporting.family import digest_of
from vvlen.reporting.titles import setup_of, title_of
from vvlen.statistics import at_level, paired_t_test, power_to_find, smallest_detectable

_SEEDS, _BEYOND = 8, (32, 64)
_STEPS = {'base': (10, 20, 30, 40), 'l2': (10, 20, 30, 40),
          'output_projection': (10, 20, 30)}
_SUFFIXES = ('', '+averaged', '+adaptive', '+averaged+adaptive')
_TRAINED = {'none': 0.99, 'layer_norm': 0.97}


def _facts():
  """Returns a family of three cells, of which l2 lacks a seed."""
  facts = family.facts(config_file.get_config('smoke'))
  kept = {name: facts['cells'][name] | {'num_seeds': _SEEDS + (name == 'l2')}
          for name in _STEPS}
  return facts | {'cells': kept}


def _draw():
  """Returns accuracies {(cell, step, arm + suffix): [seeds, lengths]} in percent."""
  rng = np.random.default_rng(3)
  middle = {'base': 4.0, 'l2': -3.0, 'output_projection': -6.0}
  drawn = {}
  for name, steps in _STEPS.items():
    for step in steps:
      for i, suffix in enumerate(_SUFFIXES):
        control = rng.normal(40 + 5 * i + step / 10, 2, (_SEEDS, 2))
        gain = middle[name] + i + rng.normal(0, 1 + i / 2, (_SEEDS, 1))
        drawn[name, step, 'none' + suffix] = control
        drawn[name, step, 'layer_norm' + suffix] = control + gain
  return drawn


def _rows(drawn):
  for (name, step, arm), values in drawn.items():
    for seed in range(_SEEDS):
      if '+' not in arm:
        yield results.Row(name, arm, seed, None, 'training_accuracy',
                          _TRAINED[arm] + (seed - 3.5) / 1e4, step)
      for n, x in zip((16, *_BEYOND), (97, *values[seed]), strict=True):
        yield results.Row(name, arm, seed, n, 'accuracy', x / 100, step)


_CHANGED = {  # accuracy of interventions at the training length and beyond
    'none': {'': (98, 80, 50), '+refit': (99, 92, 70), '+standardized': (98, 84, 56),
             '+covariance': (97.5, 86, 60), '+attended_class': (98.5, 83, 54)},
    'layer_norm': {'': (97, 85, 60), '+refit': (99, 91, 72),
                   '+standardized': (97, 86, 63), '+covariance': (97, 87, 64),
                   '+attended_class': (98, 88, 65)},
}


def _changed_rows():
  rng = np.random.default_rng(2)
  for arm, every in _CHANGED.items():
    for suffix, values in every.items():
      for seed in range(_SEEDS):
        for n, x in zip((16, *_BEYOND), values, strict=True):
          yield results.Row('retrieval', arm + suffix, seed, n, 'accuracy',
                            (x + rng.normal(0, 0.5)) / 100)


@pytest.fixture(scope='module')
def told(tmp_path_factory):
  """The made-up values, and the tables and figures that the report makes from them."""
  drawn = _draw()
  return drawn, *_report(tmp_path_factory.mktemp('family'), _rows(drawn))


def _report(folder, rows):
  """Returns the tables and figures of rows that have interventions on base."""
  facts = _facts()
  results.write_rows(folder / 'results.csv', rows)
  (folder / 'config.json').write_text(json.dumps(
      {'config': {'digest': digest_of(facts)} | facts, 'sessions': [{}]}))
  results.write_rows(folder / 'mechanism/base/results.csv', _changed_rows())
  made, figures = {}, {}
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(report, 'write_tables',
                  lambda _, tables: made.update((t.name, t) for t in tables))
    patch.setattr(report.plots, 'save', lambda _, drawn: figures.update(drawn) or {})
    patch.setattr(report.mechanism, 'write', lambda _: ('', []))
    report.write(folder)
  return made, figures


def test_parts_are_of_finished_settings_that_both_arms_have_learned(tmp_path):
  rows = [*_rows(_draw())]
  unlearned = [row._replace(value=0.2) if row.metric == 'training_accuracy' and
               row.arm == 'layer_norm' and row.experiment == 'base' else row
               for row in rows]
  unfinished = [row for row in rows if row.experiment != 'base' or row.seed]
  for kept, shown in ((rows, True), (unlearned, False), (unfinished, False)):
    made, figures = _report(tmp_path, kept)
    assert ('parts' in made) == ('where_lost' in figures) == shown
    record = next(r for r in made['verdicts'].records if r['cell'] == 'base')
    assert np.isnan(record['p_uncorrected']) == (not shown)
    for name in 'along_training', 'averaged_weights':
      there = 'base' in {record['cell'] for record in made[name].records}
      assert there == (kept is not unlearned), name


def _paired(drawn, name, step, suffix=''):
  one, other = (drawn[name, step, arm + suffix].mean(axis=1)
                for arm in ('layer_norm', 'none'))
  return paired(one, other)


def _corrected(test, count, form):
  low, high = stats.ttest_1samp(test.difference, 0).confidence_interval(
      1 - 0.05 / count)
  return interval(test.mean, low, high, '+' + form)


def test_the_verdicts_are_of_corrected_intervals(told):
  drawn, made, figures = told
  assert figures['verdicts'].get_label().endswith(' 2 of 3 settings are finished.')
  means = [_paired(drawn, name, _STEPS[name][-1]).mean
           for name in ('output_projection', 'base')]
  low, high = (f'{mean:+.1f}'.replace('-', '−') for mean in means)
  assert title_of(figures['verdicts']) == (
      f'LN − Baseline in accuracy of retrieval: {low} to {high} points without L2')
  shown = {row['cell']: row for row in cells(made['verdicts'])}
  words = {'base': 'LN ahead', 'l2': '8 of 9 seeds',
           'output_projection': 'LN behind'}
  for name, steps in _STEPS.items():
    test, row = _paired(drawn, name, steps[-1]), shown[name]
    deviation = test.difference.std(ddof=1)
    power = power_to_find(deviation, _SEEDS, 1.0, 0.05 / 3)
    assert row | {'setting': ''} == {
        'cell': name, 'setting': '', 'steps': str(steps[-1]),
        'Baseline': text(drawn[name, steps[-1], 'none'].mean(), '.1f'),
        'LN − Baseline [95 %]': _corrected(test, 3, '.2f'),
        # No p while seeds are missing.
        'p': '' if name == 'l2' else p_of(min(1, 3 * test.p)),
        'seeds': '8', 'spread': text(deviation, '.1f'),
        'power': text(100 * power, '.0f'), 'verdict': words[name],
    }
  for record in made['verdicts'].records:
    test = _paired(drawn, record['cell'], record['steps'])
    assert record['treated'] == pytest.approx(
        drawn[record['cell'], record['steps'], 'layer_norm'].mean())
    assert record['p_uncorrected'] == pytest.approx(
        np.nan if record['cell'] == 'l2' else test.p, nan_ok=True)
    assert record['p'] == pytest.approx(
        np.nan if record['cell'] == 'l2' else min(1, 3 * test.p), nan_ok=True)
    assert record['smallest_detectable'] == pytest.approx(test.least(3))
    assert record['training_accuracy_control'] == pytest.approx(99)
    assert record['training_accuracy_treated'] == pytest.approx(97)


def test_each_step_has_its_own_numbers_under_each_weighting(told):
  drawn, made, _ = told
  shown, records = cells(made['along_training']), made['along_training'].records
  keys = [(name, step) for name, steps in _STEPS.items() for step in steps]
  assert [(r['cell'], r['step']) for r in records] == sorted(
      keys, key=lambda key: list(_STEPS).index(key[0]))
  for row, record in zip(shown, records, strict=True):
    key = record['cell'], record['step']
    expected = {'cell': key[0], 'steps': str(key[1]), 'seeds': '8',
                'in training': '99.0, 97.0'}
    for suffix, title in (('', 'as they are'), ('+averaged', 'averaged'),
                          ('+adaptive', 'adaptive temperature')):
      test = _paired(drawn, *key, suffix)
      expected |= {
          f'Baseline, {title}': text(drawn[*key, 'none' + suffix].mean(), '.1f'),
          f'LN − Baseline, {title}': interval(*test.interval, '+.2f')}
    assert row == expected
    both = _paired(drawn, *key, '+averaged+adaptive')
    assert record['averaged_adaptive_difference'] == pytest.approx(both.mean)


def test_contrasts_are_corrected_over_their_number_and_compare_the_same_step(told):
  drawn, made, _ = told
  table = made['what_changes_it']
  assert len(table.records) == 5  # three slopes and two differences; l2 lacks a seed
  *slopes, _, row = cells(table)
  assert row['what changes the effect of LN'] == 'output projection'
  changes = {'output projection': (row, lambda by_step: (
      by_step('output_projection', 30) - by_step('base', 30)))}
  for name, steps in (('base', _STEPS['base']),
                      ('output_projection', _STEPS['output_projection'])):
    line, = (r for r in slopes if f'({name}, ' in r['what changes the effect of LN'])
    changes[name] = (line, lambda by_step, name=name, steps=steps: np.polyfit(
        np.log2(steps), [by_step(name, step) for step in steps], 1)[0])
  shown = []
  for line, change in changes.values():
    expected = {}
    for suffix, title in (('', 'as they are'), ('+averaged', 'averaged')):
      test = paired(change(lambda name, step, suffix=suffix: _paired(
          drawn, name, step, suffix).difference), np.zeros(_SEEDS))
      expected[f'{title} [95 %]'] = _corrected(test, 5, '.2f')
      expected[f'p, {title}'] = p_of(min(1, 5 * test.p))
      shown.append(p_of(min(1, 5 * test.p)) != p_of(test.p))
    assert line | expected == line
  assert any(shown)  # the correction is seen
  assert (row['unit'], row['seeds']) == ('points', '8')
  assert 'no verdict' in cells(table)[1].values()  # the slope of l2


def test_every_contrast_compares_what_its_name_says():
  known = effects.read_cells(family.facts(config_file.get_config()))
  named = {c.name: dict(c.weights) for c in effects.contrasts(known)}
  at = lambda name, step: (f'{name}', 1000 * step)
  both = lambda one, other: {at(*one): 1.0, at(*other): -1.0}
  for name, expected in {
      'L2 on kernels (constant rate)': both(('l2', 100), ('base', 100)),
      'L2 on all parameters (constant rate)': both(('l2_all', 100), ('base', 100)),
      'L2 on all parameters, not kernels alone': both(('l2_all', 100), ('l2', 100)),
      'L2 on kernels (decaying rate)': both(('l2_decay', 100), ('decay', 100)),
      'L2 on kernels (lookup)': both(('lookup_l2', 20), ('lookup', 20)),
      'rate decaying, not constant (no L2)': both(('decay', 100), ('base', 100)),
      'rate decaying, not constant (L2)': both(('l2_decay', 100), ('l2', 100)),
      'output projection': both(('output_projection', 40), ('base', 40)),
      'lengths growing, not fixed (decaying rate, at lengths beyond both)':
          both(('growing', 20), ('decay', 100)),
      'lookup, not retrieval (no L2, decaying rate)':
          both(('lookup', 20), ('decay', 100)),
      'lookup, not retrieval (L2, decaying rate)':
          both(('lookup_l2', 20), ('l2_decay', 100)),
      'L2 × decaying rate': both(('l2_decay', 100), ('decay', 100))
                            | both(('base', 100), ('l2', 100)),
  }.items():
    assert named.pop(name) == expected, name
  assert all(name.startswith('twice the steps (') for name in named)


def test_averaging_shows_both_arms_before_and_after(told):
  drawn, made, _ = told
  for row, (name, steps) in zip(cells(made['averaged_weights']), _STEPS.items(),
                                strict=True):
    mean = lambda arm, key=(name, steps[-1]): text(drawn[*key, arm].mean(), '.1f')
    plain, averaged = (
        _paired(drawn, name, steps[-1], suffix) for suffix in ('', '+averaged'))
    change = paired(averaged.difference, plain.difference)
    ratio = averaged.difference.std() / plain.difference.std()
    share = row.pop('spread, as a share [95 %]')
    assert share.startswith(f'{ratio:.2f} [')
    assert row == {
        'cell': name, 'steps': str(steps[-1]),
        'Baseline': f'{mean("none")} → {mean("none+averaged")}',
        'LN': f'{mean("layer_norm")} → {mean("layer_norm+averaged")}',
        'change of LN − Baseline [95 %]': interval(*change.interval, '+.2f')}


def _lost(arm):
  """Returns parts {name: [seeds]} of what an arm loses, by their definitions."""
  table = {}
  for row in _changed_rows():
    table.setdefault(row.arm, {})[row.seed, row.length] = 100 * row.value
  of = lambda suffix: np.array([[table[arm + suffix][seed, n] for n in (16, *_BEYOND)]
                                for seed in range(_SEEDS)])
  a, r, s, c, attended = map(of, (
      '', '+refit', '+standardized', '+covariance', '+attended_class'))
  loses = lambda x: x[:, :1] - x[:, 1:]
  return {title: x.mean(axis=1) for title, x in {
      'lost': loses(a), 'the weights\'': loses(r), 'the reader\'s': loses(a) - loses(r),
      'of it the scale\'s': loses(a) - loses(s),
      'the covariance\'s': loses(a) - loses(c),
      'lost by the class with most weight': loses(attended),
  }.items()}


def test_parts_stand_under_their_names(told):
  shown = cells(told[1]['parts'])
  for row, (arm, label) in zip(shown, (('none', 'Baseline'), ('layer_norm', 'LN')),
                               strict=True):
    assert (row['cell'], row['arm'], row['seeds']) == ('base', label, '8')
    for title, values in _lost(arm).items():
      test = paired(values, 0 * values)
      title += ' [95 %]' if title == 'lost' else ''
      assert row[title] == interval(*test.interval, '.1f')
  gain, = cells(told[1]['parts_gain'])
  for title, values in _lost('layer_norm').items():
    test = paired(values, _lost('none')[title])
    # Corrected over the four cells that are to be measured, not the one that was.
    assert gain[f'{title} [95 %]'] == _corrected(test, 4, '.1f')
    if title == 'the reader\'s':
      assert gain['p of the reader\'s'] == p_of(min(1, 4 * test.p))


def test_the_figure_of_verdicts(told):
  drawn, _, figures = told
  left, right = figures['verdicts'].axes
  # Settings without L2 stand above those with it.
  looks = {'base': ('#009E73', True), 'output_projection': ('#009E73', True),
           'l2': ('#6E6E6E', False)}
  assert len(left.containers) == 3
  for y, ((dot, _, (bar,)), (name, (colour, filled))) in enumerate(
      zip(left.containers, looks.items(), strict=True)):
    test = _paired(drawn, name, _STEPS[name][-1])
    wide = stats.ttest_1samp(test.difference, 0).confidence_interval(1 - 0.05 / 3)
    np.testing.assert_allclose((dot.get_xdata()[0], dot.get_ydata()[0]), (test.mean, y))
    np.testing.assert_allclose(bar.get_segments()[0][:, 0], wide)
    assert to_hex(dot.get_color()).upper() == colour
    assert to_hex(dot.get_markerfacecolor()).upper() == (
        colour if filled else '#FFFFFF')
  assert artists.shades(left) == [(-1.0, 1.0)]
  grey, = right.patches
  assert (grey.get_y(), grey.get_y() + grey.get_height()) == (-1.0, 1.0)
  figure = figures['verdicts']
  named = {text.get_text(): handle for text, handle in zip(
      figure.legends[0].get_texts(), figure.legends[0].legend_handles, strict=True)}
  assert to_hex(named['no difference found'].get_color()).upper() == '#6E6E6E'
  assert [text for text in named if text.startswith('within 1 point, ')]
  for label, line in artists.lines(right).items():
    assert to_hex(named[label].get_color()).upper() == line.colour
  # Of l2 no step is finished.
  lines, every = artists.lines(right), artists.all_bands(right)
  for line, (_, x, low, high), name in zip(
      lines.values(), every, ('base', 'output_projection'), strict=True):
    tests = [_paired(drawn, name, step) for step in _STEPS[name]]
    assert line.x == x == list(_STEPS[name])
    np.testing.assert_allclose(line.y, [t.mean for t in tests])
    np.testing.assert_allclose(np.transpose([low, high]),
                               [t.interval[1:] for t in tests])


def test_the_figure_of_parts_has_each_arm_and_part_in_its_place(told):
  figure = told[2]['where_lost']
  legend, = figure.legends
  colour_of = {label.get_text(): to_hex(patch.get_facecolor())
               for label, patch in zip(legend.get_texts(), legend.get_patches(),
                                       strict=True)}
  axes, found = figure.axes[0], {}
  for bar in axes.patches:
    x = bar.get_x() + bar.get_width() / 2
    arm = 'layer_norm' if bar.get_hatch() else 'none'
    assert x - round(x) == pytest.approx(0.2 if bar.get_hatch() else -0.2)
    found.setdefault((arm, to_hex(bar.get_facecolor())), []).append(bar.get_height())
  for arm in ('none', 'layer_norm'):
    lost = {title: values.mean() for title, values in _lost(arm).items()}
    for label, expected in (
        ('a linear reader loses it too', lost['the weights\'']),
        ('only a linear reader does not lose it', lost['the reader\'s']
         - lost['of it the scale\'s']),
        ('mean and variance as in training restore it', lost['of it the scale\'s']),
    ):
      heights = found[arm, colour_of[label]]
      assert len(heights) == 2 and np.mean(heights) == pytest.approx(expected)


  said = []
  for at in range(2):
    shares = []  # of what is lost at this length, that a reader does not lose
    for arm in ('none', 'layer_norm'):
      of = {label: found[arm, colour][at] for label, colour in colour_of.items()}
      shares.append(100 - 100 * of['a linear reader loses it too'] / sum(of.values()))
    said.append(' to '.join(dict.fromkeys(f'{x:.0f}' for x in sorted(shares))))
  assert said[0] != said[1]
  assert title_of(figure) == (
      f'Of the accuracy lost at N = {_BEYOND[0]} and {_BEYOND[-1]}, a linear reader '
      f'does not lose {said[0]} % and {said[1]} % without L2')
  assert 'reader: of the attention output' in setup_of(figure)
  assert 'blue and orange: not lost by the reader' in setup_of(figure)


def test_the_figure_of_averaging_names_each_weighting(told):
  drawn, _, figures = told
  figure = figures['averaged_weights']
  fill_of = {text.get_text(): line.get_markerfacecolor() for text, line in zip(
      figure.legends[0].get_texts(), figure.legends[0].get_lines(), strict=True)}
  plain, averaged = figure.axes[0].lines[0], figure.axes[0].lines[2]
  for line, label, suffix in (
      (plain, 'weights as they are', ''),
      (averaged, 'averaged over the last tenth of steps', '+averaged')):
    np.testing.assert_allclose(
        line.get_xdata(), _paired(drawn, 'base', 40, suffix).difference)
    assert line.get_markerfacecolor() == fill_of[label]
  bar = figure.legends[0].get_lines()[-1]
  assert bar.get_marker() == '|' and 'mean of seeds' in fill_of
  assert len({*fill_of.values()} - {bar.get_markerfacecolor()}) == 2
  ratios = [np.std(_paired(drawn, name, steps[-1], '+averaged').difference, ddof=1)
            / np.std(_paired(drawn, name, steps[-1]).difference, ddof=1)
            for name, steps in _STEPS.items() if name != 'l2']
  low, high = (f'{x:.2f}' for x in (min(ratios), max(ratios)))
  assert title_of(figure) == (
      f'Averaging weights keeps 2 of 2 verdicts; spread over seeds × {low} to {high} '
      'at constant rates')
  assert plain.get_ydata()[0] < averaged.get_ydata()[0]  # above the other


def _effect(gains, learned=(0.99, 0.99), num_seeds=None, odd=()):
  """Returns the effect in one cell of three, nan where a seed is odd."""
  facts = _facts()
  cell = effects.read_cells(facts)['base']._replace(num_seeds=num_seeds or len(gains))
  rows = []
  for seed, gain in enumerate(gains):
    for arm, accuracy, own in zip(('none', 'layer_norm'), (50, 50 + gain), learned,
                                  strict=True):
      value = np.nan if seed in odd else accuracy / 100
      rows += [results.Row('base', arm, seed, n, 'accuracy', value, 40)
               for n in _BEYOND]
      rows.append(results.Row('base', arm, seed, None, 'training_accuracy', own, 40))
  return effects.effect(results.index_cells(rows), cell, 40, effects.read_claim(facts))


def test_what_is_found_without_correction_alone_is_not_found():
  spread = 5 * stats.norm.ppf((np.arange(12) + 0.5) / 12)
  mean = stats.t.ppf(1 - 0.03 / 2, 11) * spread.std(ddof=1) / 12**0.5
  found = _effect(mean + spread)
  assert found.test.p == pytest.approx(0.03) and found.test.ci_low > 0
  assert found.verdict == effects.OPEN
  assert found.detectable == pytest.approx(
      smallest_detectable(spread.std(ddof=1), 12, alpha=0.05 / 3))
  assert found.corrected[1:3] == pytest.approx(
      at_level(paired_t_test(mean + spread, 0 * spread), 0.05 / 3)[1:3])


@pytest.mark.parametrize('learned', [(0.99, 0.6), (0.6, 0.99)])
def test_both_arms_must_learn_the_training_lengths(learned):
  found = _effect(3 + np.arange(8) / 8, learned)
  assert (found.training_accuracy, found.verdict) == (learned, 'not learned')


def test_a_seed_that_is_left_out_is_not_waited_for():
  found = _effect(3 + np.arange(9) / 8, odd=(4,))
  assert found.complete and found.comparison.left_out == (4,)
  assert found.verdict == effects.AHEAD
  assert tables.verdict_words(found, effects.read_claim(_facts())) == 'LN ahead'
