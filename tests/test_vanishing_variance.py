"""A family of runs: errors, reports, and resuming in another folder."""

import json
import shutil
import subprocess
import sys

from etils import epath
import numpy as np
import pytest
from scipy import stats

from configs import vanishing_variance as config_file
from experiments.harness.progress import Progress
from experiments.mechanism import parts, parts_tables
from experiments.vanishing_variance import (
  effects,
  family,
  figures,
  report,
  run,
  tables,
)
from tests.conftest import check_board, lose_rows, ROOT, shown
from vvlen.reporting import plots, results
from vvlen.reporting.family import digest_of
from vvlen.reporting.numbers import number
from vvlen.reporting.tables import grid
from vvlen.reporting.titles import setup_of, title_of
from vvlen.statistics import at_level, deviation_ratio, paired_t_test, power_to_find

LENGTHS = (16, 32, 64)


def _family(**cells):
  """Returns a family of cells like those of the smoke variant, each changed."""
  config = config_file.get_config('smoke')
  facts = family.facts(config)
  kept = {name: facts['cells'][name] for name in cells}
  for name, change in cells.items():
    kept[name] |= change
  return facts | {'cells': kept}


def _rows(name, step, gains, suffix='', learned=0.99, base=0.5):
  """Returns rows of a cell whose seeds gain so many points beyond training."""
  rows = []
  for seed, gain in enumerate(gains):
    for arm, more in (('none', 0.0), ('layer_norm', gain / 100)):
      if not suffix:
        rows.append(
            results.Row(name, arm, seed, None, 'training_accuracy', learned, step))
      rows += [
          results.Row(name, arm + suffix, seed, n, 'accuracy',
                      0.98 if n == 16 else base + more, step)
          for n in LENGTHS
      ]
  return rows


def _effect(gains, **how):
  facts = _family(base={'num_seeds': len(gains)}, l2={}, decay={})
  cell = effects.read_cells(facts)['base']
  step = cell.steps[-1]
  indices = results.index_cells(_rows('base', step, gains, **how))
  return effects.effect(indices, cell, step, effects.read_claim(facts))


def test_effects_are_tested_at_the_level_of_the_family():
  gains = np.random.default_rng(0).normal(3, 2, 8)
  found = _effect(gains)
  plain = stats.ttest_1samp(gains, 0)
  assert found.test.p == pytest.approx(plain.pvalue)
  assert found.corrected.p == pytest.approx(3 * plain.pvalue)  # three cells
  wide = plain.confidence_interval(1 - 0.05 / 3)
  np.testing.assert_allclose(
      (found.corrected.ci_low, found.corrected.ci_high), wide, rtol=1e-9)
  assert found.power == pytest.approx(
      power_to_find(gains.std(ddof=1), 8, 1.0, 0.05 / 3))
  assert found.training_accuracy == (0.99, 0.99)


@pytest.mark.parametrize('mean, noise, expected', [
    (3.0, 1.0, effects.AHEAD), (-3.0, 1.0, effects.BEHIND),
    (0.5, 0.1, effects.AHEAD_LITTLE), (-0.5, 0.1, effects.BEHIND_LITTLE),
    (0.0, 0.3, effects.EQUAL), (0.3, 3.0, effects.OPEN), (1.5, 3.0, effects.OPEN),
])
def test_verdicts_tell_equal_from_not_found(mean, noise, expected):
  gains = mean + noise * stats.norm.ppf((np.arange(12) + 0.5) / 12)
  assert _effect(gains).verdict == expected


def test_there_is_no_verdict_where_training_failed_or_seeds_lack():
  gains = 3 + np.arange(8) / 8
  assert _effect(gains, learned=0.6).verdict == 'not learned'
  facts = _family(base={'num_seeds': 9}, l2={}, decay={})
  cell = effects.read_cells(facts)['base']
  claim = effects.read_claim(facts)
  indices = results.index_cells(_rows('base', cell.steps[-1], gains))
  found = effects.effect(indices, cell, cell.steps[-1], claim)
  assert found.verdict == 'not finished'
  assert tables.verdict_words(found, claim) == '8 of 9 seeds'
  unlearned = found._replace(training_accuracy=(0.99, 0.2))
  assert tables.verdict_words(unlearned, claim) == '8 of 9 seeds, not learned'
  record = tables.main_table({'base': cell}, {('base', ''): (found,)}, claim).records[0]
  assert np.isnan(record['p']) and np.isnan(record['p_uncorrected'])
  assert record['difference'] == pytest.approx(gains.mean())
  assert tables.verdict_words(None, claim) == 'not run'
  assert effects.effect({}, cell, cell.steps[-1], claim) is None


def test_equal_differences_have_no_test_and_are_not_called_unfinished():
  found = _effect(np.full(8, 2.0))
  assert found.complete and found.verdict == 'undefined'


def test_power_is_how_often_the_effect_is_found():
  rng = np.random.default_rng(0)
  draws = rng.normal(1.0, 2.0, (4000, 16))
  found = stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.01
  assert power_to_find(2.0, 16, 1.0, 0.01) == pytest.approx(found.mean(), abs=0.02)
  test = paired_t_test(draws[0], np.zeros(16))
  wide = stats.ttest_1samp(draws[0], 0).confidence_interval(0.99)
  assert at_level(test, 0.01)[1:3] == pytest.approx(tuple(wide))
  assert at_level(test, 0.05)[1:3] == pytest.approx(test[1:3])


def test_the_interval_of_a_ratio_of_spreads_covers():
  rng = np.random.default_rng(0)
  covered = []
  for _ in range(1000):
    shared = rng.normal(size=12)
    x, y = 2 * shared + rng.normal(size=12), shared + rng.normal(size=12)
    found = deviation_ratio(x, y)
    covered.append(found.ci_low < (5 / 2) ** 0.5 < found.ci_high)
  assert np.mean(covered) == pytest.approx(0.95, abs=0.02)
  assert found.ratio == pytest.approx(np.std(x) / np.std(y))


def test_contrasts_are_combinations_of_one_seed():
  facts = _family(base={'num_seeds': 4}, l2={'num_seeds': 4})
  cells, claim = effects.read_cells(facts), effects.read_claim(facts)
  rng = np.random.default_rng(0)
  steps = cells['base'].steps
  assert steps == (10, 20, 30, 40)
  gains = {(name, step): rng.normal(0, 1, 4) for name in cells for step in steps}
  indices = results.index_cells(
      row for (name, step), each in gains.items() for row in _rows(name, step, each))
  by_name = {c.name: c for c in effects.contrasts(cells)}
  assert len(by_name) == 3
  test = lambda contrast: effects.contrast_test(contrast, indices, cells, claim)
  slopes = [
      np.polyfit(np.log2(steps), [gains['l2', t][s] for t in steps], 1)[0]
      for s in range(4)
  ]
  assert test(by_name['twice the steps (l2, 10 to 40)']) == pytest.approx(
      paired_t_test(slopes, np.zeros(4)))
  assert test(by_name['L2 on kernels (constant rate)']) == pytest.approx(
      paired_t_test(gains['l2', 40], gains['base', 40]))
  # A cell that lacks seeds has no contrasts.
  more = dict(cells, l2=cells['l2']._replace(num_seeds=5))
  slope = by_name['twice the steps (l2, 10 to 40)']
  assert effects.contrast_test(slope, indices, more, claim) is None
  # Nor has one that was not learned.
  learned = lambda name: 0.5 if name == 'l2' else 0.99
  indices = results.index_cells(
      row for (name, step), each in gains.items()
      for row in _rows(name, step, each, learned=learned(name)))
  assert effects.contrast_test(slope, indices, cells, claim) is None
  assert effects.contrast_test(
      by_name['twice the steps (base, 10 to 40)'], indices, cells, claim) is not None


def test_the_interaction_of_decay_and_schedule():
  facts = _family(base={}, l2={}, decay={}, l2_decay={})
  cells, claim = effects.read_cells(facts), effects.read_claim(facts)
  last = {name: cell.steps[-1] for name, cell in cells.items()}
  value = dict(base=(1.0, 2.0), l2=(3.0, 7.0), decay=(0.5, 0.7), l2_decay=(9.0, 4.0))
  indices = results.index_cells(
      row for name, gains in value.items() for row in _rows(name, last[name], gains))
  contrast = next(c for c in effects.contrasts(cells) if c.name == 'L2 × decaying rate')
  found = effects.contrast_test(contrast, indices, cells, claim)
  expected = [(9 - 0.5) - (3 - 1), (4 - 0.7) - (7 - 2)]
  assert found.mean_difference == pytest.approx(np.mean(expected))


def test_growing_lengths_are_compared_at_lengths_beyond_both():
  facts = _family(growing={}, decay={})
  cells, claim = effects.read_cells(facts), effects.read_claim(facts)
  assert (cells['growing'].trained_up_to, cells['growing'].grows) == (32, True)
  rows = []
  for name in cells:
    for row in _rows(name, cells[name].steps[-1], (1.0, 2.0)):
      # At 32, within the lengths of growing alone, something else.
      odd = row.length == 32 and row.arm == 'layer_norm'
      rows.append(row._replace(value=0.9) if odd and name == 'decay' else row)
  contrast = next(
      c for c in effects.contrasts(cells) if c.name.startswith('lengths growing'))
  found = effects.contrast_test(
      contrast, results.index_cells(rows), cells, claim)
  assert found.mean_difference == pytest.approx(0)


def _write(folder, facts, rows):
  results.write_rows(folder / 'results.csv', rows)
  (folder / 'config.json').write_text(json.dumps({
      'study': 'vanishing_variance',
      'config': {'digest': digest_of(facts)} | facts, 'sessions': [{}],
  }))


def test_tables_and_figures_show_the_right_numbers(tmp_path):
  facts = _family(base={'num_seeds': 6}, l2={'num_seeds': 6}, decay={'num_seeds': 6})
  rng = np.random.default_rng(0)
  steps = (10, 20, 30, 40)
  plain = {('base', t): rng.normal(t / 10, 0.5, 6) for t in steps}
  plain |= {('l2', t): rng.normal(-t / 10, 0.5, 6) for t in steps[:-1]}
  averaged = {key: each / 4 + 1 for key, each in plain.items()}
  rows = [
      row for suffix, all_of in (('', plain), ('+averaged', averaged))
      for (name, step), each in all_of.items()
      for row in _rows(name, step, each, suffix)
  ]
  _write(tmp_path, facts, rows)
  made = report.write(tmp_path)
  assert all(path.exists() for path in made.figures)
  cells, claim = effects.read_cells(facts), effects.read_claim(facts)
  indices = results.index_cells(rows)
  found = {
      (name, suffix): [
          e for t in cell.steps
          if (e := effects.effect(indices, cell, t, claim, suffix))]
      for name, cell in cells.items() for suffix in tables.SUFFIXES
      if suffix in ('', '+averaged')
  }
  main = tables.main_table(cells, found, claim)
  assert grid(made.main[0]).count('\n') == 4  # a header, a rule, and a line a cell
  row = shown(main, 'base')
  wide = stats.ttest_1samp(plain['base', 40], 0).confidence_interval(1 - 0.05 / 3)
  mean = plain['base', 40].mean()
  assert row['LN − Baseline [95 %]'] == (
      f'{mean:+.2f} [{wide.low:+.2f}, {wide.high:+.2f}]')
  assert (row['Baseline'], row['steps'], row['seeds']) == ('50.0', '40', '6')
  assert row['spread'] == f'{plain["base", 40].std(ddof=1):.1f}'
  assert row['verdict'] == 'LN ahead'
  assert 'no weight decay, rate 0.001' in row['setting']
  assert shown(main, 'l2')['verdict'] == 'not run'  # not at its last step
  assert shown(main, 'decay')['LN − Baseline [95 %]'] == ''
  along = tables.along_table(cells, found).records
  assert [(r['cell'], r['step']) for r in along] == [*plain]
  np.testing.assert_allclose(
      [r['plain_difference'] for r in along], [x.mean() for x in plain.values()])
  np.testing.assert_allclose(
      [r['averaged_difference'] for r in along], [x.mean() for x in averaged.values()])
  assert np.isnan([r['adaptive_difference'] for r in along]).all()
  record = tables.averaging_table(found).records[0]
  assert record['ratio'] == pytest.approx(0.25)
  assert record['change_difference'] == pytest.approx(
      (averaged['base', 40] - plain['base', 40]).mean())
  assert record['treated_averaged'] == pytest.approx(50 + averaged['base', 40].mean())

  with plots.style():
    drawn = figures.verdicts(cells, found, claim)
  left, right = drawn.axes
  assert drawn.get_label().endswith(' 1 of 3 settings is finished.')
  assert title_of(drawn) == (
      f'LN − Baseline in accuracy of retrieval: {mean:+.1f} points without L2')
  assert 'right bands: uncorrected' in setup_of(drawn)
  # Only base is finished; its interval is the corrected one.
  (dot, _, (bar,)), = left.containers
  assert dot.get_xdata()[0] == pytest.approx(mean)
  np.testing.assert_allclose(bar.get_segments()[0][:, 0], wide)
  assert [t.get_text().split(': ')[1] for t in left.get_yticklabels()] == [
      'LN ahead', 'not run', 'not run']
  # Accuracies of models that have not learned say nothing: they are not drawn.
  unlearned = {key: [e._replace(training_accuracy=(0.99, 0.2)) for e in each]
               for key, each in found.items()}
  with plots.style():
    shown_of = lambda found: figures.verdicts(cells, found, claim)
    assert not shown_of(unlearned).axes[0].containers
    assert title_of(shown_of(unlearned)) == 'LN − Baseline in accuracy'
    assert figures.averaging(unlearned, cells, claim) is None
    half = {key: each if key[0] == 'base' else unlearned[key]
            for key, each in {**found, ('l2', '+averaged'): found['l2', '']}.items()}
    # Three lines for each setting that is learned, a name and both verdicts.
    [axes] = figures.averaging(half, cells, claim).axes
    [name] = [text.get_text() for text in axes.get_yticklabels()]
    assert name.endswith('\n40 steps, 6 seeds:\nLN ahead → LN ahead')
    both = found['base', '+averaged']
    half['base', '+averaged'] = [*both[:-1], both[-1]._replace(verdict=effects.OPEN)]
    [axes] = figures.averaging(half, cells, claim).axes
    assert axes.get_yticklabels()[0].get_text().endswith(
        ':\nLN ahead → no difference found')
    # If l2 was finished too, and learned, or not.
    last = found['l2', ''][-1]._replace(step=40, verdict='', training_accuracy=(1, 1))
    assert title_of(shown_of({**found, ('l2', ''): [last]})).endswith(
        f': {mean:+.1f} points without L2, '
        f'{number(last.test.mean_difference, "+.1f")} points with L2')
    # A task is named if it counts.
    looked = {**cells, 'l2': cells['l2']._replace(task='lookup')}
    for each, tasks in ((last, 'retrieval and lookup'),
                        (last._replace(training_accuracy=(1, 0.2)), 'retrieval')):
      made = figures.verdicts(looked, {**found, ('l2', ''): [each]}, claim)
      assert title_of(made).startswith(f'LN − Baseline in accuracy of {tasks}: ')
    last = last._replace(training_accuracy=(1, 0.2))
    assert title_of(shown_of({**found, ('l2', ''): [last]})).endswith(
        f': {mean:+.1f} points without L2')
  lines = {line.get_label(): line for line in right.lines}
  np.testing.assert_allclose(
      lines['no L2'].get_ydata(), [plain['base', t].mean() for t in steps])
  np.testing.assert_allclose(
      lines['L2 on kernels'].get_ydata(), [plain['l2', t].mean() for t in steps[:-1]])
  with plots.style():
    axes, = figures.averaging(found, cells, claim).axes
  np.testing.assert_allclose(axes.lines[0].get_xdata(), plain['base', 40])
  np.testing.assert_allclose(axes.lines[2].get_xdata(), averaged['base', 40])
  both = found['base', ''][-1], found['base', '+averaged'][-1]
  constant, decaying = (cells['base']._replace(decays=x) for x in (False, True))
  assert title_of(axes.figure) == figures._averaged([(constant, *both)]) == (
      'Averaging weights keeps 1 of 1 verdict; spread over seeds × 0.25 at constant '
      'rates')
  other = both[1]._replace(verdict=effects.BEHIND)
  lost = both[0]._replace(training_accuracy=(0.99, 0.2))
  part = both[0]._replace(complete=False)
  assert figures._averaged([
      (constant, *both), (decaying, both[0], other), (decaying, both[1], both[1]),
      (constant, lost, other), (constant, part, other)]) == (
          'Averaging weights keeps 2 of 3 verdicts; spread over seeds × 0.25 at '
          'constant rates, × 0.25 to 1.00 at decaying rates')
  assert figures._averaged([(constant, lost, other)]) == (
      'Weights as they are, and averaged')


def test_contrasts_are_corrected_in_their_table():
  contrast = effects.Contrast('one', {('base', 10): 1.0})
  gains = np.random.default_rng(0).normal(1, 1, 6)
  test = paired_t_test(gains, np.zeros(6))
  other = paired_t_test(2 * gains, np.zeros(6))
  made = tables.contrast_table(
      {'': [(contrast, test)] * 2, '+averaged': [(contrast, None), (contrast, other)]},
      level=0.005)  # of a family whose level is 0.01
  first, second = made.records
  wide = stats.ttest_1samp(gains, 0).confidence_interval(0.995)
  assert (first['plain_ci_low'], first['plain_ci_high']) == pytest.approx(tuple(wide))
  assert first['plain_p'] == pytest.approx(2 * test.p)
  assert np.isnan(first['averaged_p'])
  assert second['averaged_difference'] == pytest.approx(2 * gains.mean())


def _intervened(seeds, accuracy):
  """Returns rows of interventions: {suffix: {length: accuracy}} of each arm."""
  return results.index(
      results.Row('retrieval', arm + suffix, seed, n, 'accuracy',
                  value / 100 + 0.001 * seed)
      for arm, table in accuracy.items() for suffix, values in table.items()
      for seed in range(seeds) for n, value in zip(LENGTHS, values, strict=True))


_ACCURACY = {
    'none': {'': (98, 80, 50), '+refit': (99, 92, 70), '+standardized': (98, 84, 56),
             '+covariance': (97.5, 86, 60), '+attended_class': (98.5, 83, 54)},
    'layer_norm': {'': (97, 85, 60), '+refit': (99, 91, 72),
                   '+standardized': (97, 86, 63), '+covariance': (97, 87, 64),
                   '+attended_class': (98, 88, 65)},
}


def test_parts_of_what_is_lost_add_up():
  index = _intervened(3, _ACCURACY)
  found = parts.parts(index, 'none', 16)
  np.testing.assert_allclose(found.lost, [[18, 48]] * 3)
  np.testing.assert_allclose(found.weights, [[7, 29]] * 3)
  np.testing.assert_allclose(found.readers, [[11, 19]] * 3)
  np.testing.assert_allclose(found.scales, [[4, 6]] * 3)
  np.testing.assert_allclose(found.covariances, [[6.5, 10.5]] * 3)
  np.testing.assert_allclose(found.attended, [[15.5, 44.5]] * 3)
  np.testing.assert_allclose(found.weights + found.readers, found.lost)
  treated = parts.parts(index, 'layer_norm', 16)
  for name, expected in dict(
      lost=(12 + 37 - 18 - 48) / 2, readers=(4 + 10 - 11 - 19) / 2,
      weights=(8 + 27 - 7 - 29) / 2, scales=(1 + 3 - 4 - 6) / 2,
      attended=(10 + 33 - 15.5 - 44.5) / 2,
  ).items():
    test = parts.difference(treated, found, name)
    assert test.mean_difference == pytest.approx(expected), name
  with pytest.raises(ValueError, match=r'needs the lengths 8 and beyond'):
    parts.parts(index, 'none', 8)
  del index['none+refit', 'accuracy', 16]
  with pytest.raises(ValueError, match=r'no rows of none\+refit'):
    parts.parts(index, 'none', 16)


def test_tables_and_figure_of_parts():
  rng = np.random.default_rng(0)
  index = _intervened(5, _ACCURACY)
  for values in index.values():
    values.update({seed: x + rng.normal(0, 0.001) for seed, x in values.items()})
  cells = effects.read_cells(_family(base={'num_seeds': 5}))
  both = {'base': index}
  measured = lambda num_seeds: {'base': parts_tables.Measured(index, 16, num_seeds)}
  table = parts_tables.table(measured(5))
  assert [r['arm'] for r in table.records] == ['Baseline', 'LN']
  for record, part in zip(table.records, (
      parts.parts(index, arm, 16) for arm in ('none', 'layer_norm')), strict=True):
    for name in parts.NAMES:
      own = getattr(part, name).mean(axis=1)
      interval = stats.ttest_1samp(own, 0).confidence_interval()
      assert (record[f'{name}_difference'], record[f'{name}_ci_low']) == pytest.approx(
          (own.mean(), interval.low))
  gain, = parts_tables.gain_table(measured(5), 0.05, 4).records
  one, other = (parts.parts(index, arm, 16) for arm in ('layer_norm', 'none'))
  for name in parts.NAMES:
    own = (getattr(one, name) - getattr(other, name)).mean(axis=1)
    test = stats.ttest_1samp(own, 0)
    assert gain[f'{name}_p'] == pytest.approx(min(1, 4 * test.pvalue))
    assert gain[f'{name}_ci_high'] == pytest.approx(
        test.confidence_interval(1 - 0.05 / 4).high)
  unfinished, = parts_tables.gain_table(measured(6), 0.05, 4).records
  assert np.isnan(unfinished['readers_p'])
  assert unfinished['readers_difference'] == gain['readers_difference']
  with plots.style():
    axes = figures.where_lost(both, cells).axes[0]
  heights = [[bar.get_height() for bar in each] for each in axes.containers
             if hasattr(each, 'patches')]
  np.testing.assert_allclose(heights, [
      [7, 29], [7, 13], [4, 6], [8, 27], [3, 7], [1, 3]], atol=0.5)
  # Lost are 18 points (LN 12) at 32 and 48 (37) at 64, without L2 or with it.
  decaying = {**cells, 'other': cells['base']._replace(l2=0.1)}
  with plots.style():
    titles = [title_of(figures.where_lost(dict.fromkeys(names, index), decaying))
              for names in (['base'], ['base', 'other'], ['other'])]
  of = lambda said: (f'Of the accuracy lost at N = 32 and 64, a linear reader does '
                     f'not lose {said} L2')
  shares = '33 to 61 % and 27 to 40 %'
  both_ways = f'{shares} without L2, {shares} with'
  assert titles == [of(f'{shares} without'), of(both_ways), of(f'{shares} with')]
  # No panel is left empty, whatever the number of cells.
  for names in ([*cells][:1], [*cells][:3]):
    index = next(iter(both.values()))
    with plots.style():
      figure = figures.where_lost(dict.fromkeys(names, index), cells)
      figure.draw_without_rendering()
    assert len(figure.axes) == len(names) and all(x.get_visible() for x in figure.axes)
    assert figure.axes[-1].get_position().width > 0.8


@pytest.mark.parametrize('kept, reported', [
    (lambda key: True, True),
    # A family that was stopped between the interventions of its two arms.
    (lambda key: key[0].startswith('none'), False),
    (lambda key: key[0] != 'layer_norm+refit', False),
], ids=['both_arms', 'one_arm', 'no_refit'])
def test_where_accuracy_is_lost_needs_the_interventions_of_both_arms(
    tmp_path, kept, reported
):
  rows = [results.Row('retrieval', key[0], seed, key[2], key[1], value)
          for key, values in _intervened(2, _ACCURACY).items() if kept(key)
          for seed, value in values.items()]
  results.write_rows(tmp_path / 'mechanism/base/results.csv', rows)
  cells = effects.read_cells(_family(base={}, l2={}))
  found = report._interventions(tmp_path, cells)
  assert list(found) == (['base'] if reported else [])


@pytest.mark.parametrize('damage, words', [
    (lambda f: f['cells']['base']['optimizer'].update(l2=0.1), 'was changed after its'),
    (lambda f: f['claim'].update(equivalence=2.0), 'was changed after its results'),
    (lambda f: f.pop('digest'), 'is not the config.json of a family'),
])
def test_a_family_that_was_changed_is_refused(tmp_path, damage, words):
  facts = _family(base={'num_seeds': 2})
  _write(tmp_path, facts, _rows('base', 40, (1.0, 2.0)))
  stored = json.loads((tmp_path / 'config.json').read_text())
  damage(stored['config'])
  (tmp_path / 'config.json').write_text(json.dumps(stored))
  with pytest.raises(ValueError, match=words):
    report.write(tmp_path)


def test_rows_of_no_cell_are_refused(tmp_path):
  _write(tmp_path, _family(base={'num_seeds': 2}), _rows('base', 41, (1.0, 2.0)))
  with pytest.raises(ValueError, match='not of its family: base at step 41'):
    report.write(tmp_path)


def test_what_a_machine_chooses_defines_no_family():
  config = config_file.get_config('smoke')
  known = digest_of(family.facts(config))
  config.base.train.update(save_every_seconds=1.0, seeds_at_once=1)
  config.run = ('base',)
  assert digest_of(family.facts(config)) == known
  config.cells.l2.optimizer.l2 = 0.01
  assert digest_of(family.facts(config)) != known


def test_a_cell_of_fewer_seeds_than_are_trained_at_once_is_one_block():
  config = config_file.get_config()
  config.base.train.seeds_at_once = 32
  found = {name: cell.train.seeds_at_once
           for name, cell in family.cell_configs(config).items()}
  assert found['base'] == found['lookup'] == 32
  assert found['l2_all'] == found['growing'] == 16


def test_the_family_is_the_one_that_was_fixed_beforehand():
  """The digest that results/vanishing_variance carries: nothing of it may change."""
  stored = json.loads(
      (ROOT / 'experiments/results/vanishing_variance/config.json').read_text())
  facts = family.facts(config_file.get_config())
  assert stored['config']['digest'] == digest_of(facts)


@pytest.mark.parametrize('change, words', [
    (lambda c: c.cells.base.update(num_seeds=3), 'cell base: num_seeds 3 must be a'),
    (lambda c: c.cells.l2.optimizer.update(l2_on='biases'), 'cell l2: .*l2_on must'),
    (lambda c: c.cells.l2.train.update(averaged_at=(10, 20)), 'must end with train.'),
    (lambda c: c.cells.l2.train.update(averaged_at=(11, 40)), r'\[11\] must be mult'),
    (lambda c: c.cells.l2.train.update(averaged_at=(20, 10, 40)), 'must increase'),
    (lambda c: c.cells.l2.train.update(averaged_at=(90, 40)), 'at must not exceed'),
    (lambda c: c.base.update(arms=('none', 'standardize')), 'cell base: arms must be'),
])
def test_a_family_that_cannot_run_is_named(change, words):
  config = config_file.get_config('smoke')
  with config.unlocked():
    change(config)
  with pytest.raises(ValueError, match=words):
    family.cell_configs(config)


def test_unknown_cells_are_named():
  config = config_file.get_config('smoke')
  config.run = ('base', 'bse')
  with pytest.raises(ValueError, match=r'config\.run must be one or more of .*: bse'):
    family.chosen(config)


def test_interventions_are_measuring_and_do_not_slow_the_rate_of_training(tmp_path):
  clock = [0.0]
  progress = Progress(
      1000, 'seed-steps', jobs=4, clock=lambda: clock[0], measures=True, every=0)
  for _ in range(3):
    clock[0] += 10
    progress.show('training', 100)
  progress.end_job()

  def measure(first):
    clock[0] += 900
    return [results.Row('base', 'none', first, 16, 'accuracy', 0.5)]

  block = run.Block('base', 8, 'none', (), 0, interventions=True)
  run._intervene(lambda *_: measure, block, epath.Path(tmp_path), progress)
  clock[0] += 10
  progress.show('training', 100)
  assert progress.rate == 10 and progress.facts()['seconds of measuring'] == 900
  assert [row.seed for row in results.read_rows(
      tmp_path / 'mechanism/base/results.csv')] == [8]


def _run(*arguments):
  return subprocess.run(
      [sys.executable, '-m', 'experiments.vanishing_variance',
       '--config=configs/vanishing_variance.py:smoke', "--config.run=('base',)",
       '--config.base.model.width=8', *arguments],
      cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.long
@pytest.mark.slow
def test_a_family_runs_and_goes_on_elsewhere(tmp_path, fast_compilation):
  workdir = f'--workdir={tmp_path}/run'
  done = _run(workdir)
  assert done.returncode == 0, done.stderr
  assert 'Does LayerNorm after attention help' in done.stdout
  folder = tmp_path / 'run'
  first = (folder / 'results.csv').read_bytes()
  index = results.index_cells(results.read_rows(folder / 'results.csv'))
  assert index.keys() == {('base', step) for step in (10, 20, 30, 40)}
  check_board(folder)
  assert ('layer_norm+averaged+adaptive', 'accuracy', 64) in index['base', 30]
  changed = folder / 'mechanism/base/results.csv'
  interventions = changed.read_bytes()
  assert b'none+refit,' in interventions and b'layer_norm+covariance,' in interventions
  # What was lost from the last step and from the interventions is measured again, from
  # the checkpoint of the last step; a block that lost an earlier step is trained again.
  lose_rows(folder)
  lose_rows(folder / 'mechanism/base')
  done = _run(workdir)
  assert done.returncode == 0, done.stderr
  assert (folder / 'results.csv').read_bytes() == first
  assert changed.read_bytes() == interventions
  # Elsewhere, without checkpoints, what is finished is not trained again.
  shutil.copytree(folder, tmp_path / 'clone',
                  ignore=shutil.ignore_patterns('checkpoints'))
  done = _run(f'--workdir={tmp_path}/clone')
  assert done.returncode == 0, done.stderr
  assert (tmp_path / 'clone/results.csv').read_bytes() == first
  assert not list((tmp_path / 'clone').rglob('checkpoints'))
  # Elsewhere, without checkpoints, with rows of one arm and of half of the other: what
  # lacks is trained again from its start.
  shutil.rmtree(folder / 'cells/base/checkpoints')
  rows = results.read_rows(folder / 'results.csv')
  kept = [r for r in rows if r.arm.startswith('none') or r.step == 10]
  assert len(kept) < len(rows)
  results.write_rows(folder / 'results.csv', kept)
  left = [r for r in results.read_rows(changed) if r.arm.startswith('none')]
  results.write_rows(changed, left)
  done = _run(workdir)
  assert done.returncode == 0, done.stderr
  assert (folder / 'results.csv').read_bytes() == first
  assert changed.read_bytes() == interventions
  # Another family is refused, naming the field, and nothing is overwritten.
  done = _run(workdir, '--config.cells.l2.optimizer.l2=0.01')
  assert (done.returncode, done.stdout) == (2, '')
  assert 'cells.l2.optimizer.l2: 0.001 there, 0.01 here' in done.stderr
  assert (folder / 'results.csv').read_bytes() == first
