"""The grid of choices: its table and figure, its cells, its bad input."""

import functools
import itertools
import math
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest
from scipy import stats

from configs import retrieval
from configs import sensitivity as config_file
from experiments.harness import seed_blocks
from experiments.length_generalization import tasks, training
from experiments.sensitivity import check, mechanism_figure, tables
from experiments.sensitivity import figures as sensitivity_figures
from experiments.sensitivity import report as sensitivity
from experiments.sensitivity import run as experiment
from experiments.sensitivity.answer import answer
from experiments.sensitivity.cells import CellSetting, read_cells
from experiments.sensitivity.tuned import tune
from tests.cases import mostly_slow
from tests.cells import cells as shown_cells
from tests.conftest import check_board, lose_rows, ROOT, shown
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.curves import Curves
from vvlen.reporting.results import Row
from vvlen.reporting.tables import grid
from vvlen.reporting.titles import title_of
from vvlen.statistics import Correlation, detectable, holm, holm_levels

_LENGTHS = (16, 32, 64)
_RATES = ('base', 'rate_low', 'rate_high')
_TWO = ('none', 'layer_norm')


def _rows(gains, steps=(10, 20), num_seeds=6):
  """Returns rows whose gain of LN grows to that of each cell, with noise."""
  rng = np.random.default_rng(0)
  rows = []
  for cell, gain in gains.items():
    for step in steps:
      for arm in ('none', 'layer_norm'):
        add = lambda seed, length, metric, value, arm=arm, cell=cell, step=step: (
            rows.append(Row(cell, arm, seed, length, metric, value, step)))
        for seed in range(num_seeds):
          add(seed, None, 'training_loss', 0.1)
          add(seed, None, 'training_accuracy', 0.95)
          for length in _LENGTHS:
            value = 0.5 + gain * (arm == 'layer_norm') * step / 20
            add(seed, length, 'accuracy', value + rng.normal(0, 0.01))
            weight = 0.25 if arm == 'none' else 0.5
            add(seed, length, 'target_weight', weight if length > 16 else 1.0)
  return rows


def test_cells_are_tested_at_their_last_step_and_corrected_together():
  rows = _rows({'b': 0.2, 'a': 0.0, 'c': -0.1})
  cells = read_cells(results.index_cells(rows), {})
  assert [(c.name, c.step) for c in cells] == [
      ('a', 10), ('a', 20), ('b', 10), ('b', 20), ('c', 10), ('c', 20)]
  expected = []
  for name in 'abc':
    endpoint = {
        arm: [np.mean([r.value for r in rows if (*r[:3], r.metric, r.step)
                       == (name, arm, seed, 'accuracy', 20) and r.length > 16])
              for seed in range(6)]
        for arm in ('layer_norm', 'none')
    }
    expected.append(stats.ttest_rel(endpoint['layer_norm'], endpoint['none']).pvalue)
  np.testing.assert_allclose(
      [c.holm.p for c in cells if c.step == 20], holm(expected), rtol=1e-6)
  # The intervals are of the levels at which Holm decides.
  for cell, level in zip(
      [c for c in cells if c.step == 20], holm_levels(expected), strict=True):
    differences = list(cell.comparison.primary_differences.values())
    wide = stats.ttest_1samp(differences, 0).confidence_interval(1 - level)
    assert (cell.holm.ci_low, cell.holm.ci_high) == pytest.approx(tuple(wide))
  assert all(c.holm is None and not c.found for c in cells if c.step == 10)


@pytest.mark.parametrize('p, found', [(0.049, True), (0.051, False), (math.nan, False)])
def test_a_difference_is_found_below_five_percent_by_holm(p, found):
  cell, *_ = read_cells(results.index_cells(_rows({'a': 0.2})), {})
  assert cell._replace(holm=cell.comparison.primary._replace(p=p)).found == found
  assert not cell._replace(holm=None).found


def test_table_and_figure_say_where_it_helps_and_where_it_hurts():
  rows = _rows({'a': 0.0, 'b': 0.2, 'c': -0.1})
  rows += [  # norm and distance of LN and of the Baseline, and accuracy in training
      row._replace(metric=metric, value=value + (row.arm == 'layer_norm'))
      for row in rows if row.metric == 'target_weight'
      for metric, value in (('output_norm', 6.0), ('input_distance', 2.0))
  ]
  rows = [row._replace(value=0.97) if row.metric == 'training_accuracy' and
          row.arm == 'layer_norm' else row for row in rows]
  cells = read_cells(results.index_cells(rows), {})
  table = tables.table(cells, {})
  last = {r['cell']: r for r in table.records if r['step'] == 20}
  assert last['b']['difference'] == pytest.approx(20, abs=2)
  assert last['b']['target_weight_treated'] == 0.5
  assert last['b']['target_weight_control'] == 0.25
  only = table._replace(records=[last['b']])
  cell = next(c for c in cells if c[:2] == ('b', 20))
  treated, control = cell.comparison.primary_means
  assert treated > control + 15
  assert shown(only, 'b').items() >= {
      'steps': '20', 'arm': 'LN', 'Baseline': f'{control:.1f}',
      'treated': f'{treated:.1f}', 'p': '< .001 *', 'pairs': '6',
      'difference [95 %]': '{:+.2f} [{:+.2f}, {:+.2f}]'.format(*cell.holm),
  }.items()
  measured = tables.measured_table(cells, {})
  of_b, = (r for r in measured.records if (r['cell'], r['step']) == ('b', 20))
  assert shown(measured._replace(records=[of_b]), 'b') == {
      'setting': 'b', 'steps': '20', 'arm': 'LN', 'in training': '95.0, 97.0',
      'weight of target': '0.250, 0.500', 'output norm': '6.00, 7.00',
      'distance': '2.00, 3.00', 'cell': 'b'}
  with plots.style():
    left, right = sensitivity_figures.gains(cells, {}).axes
  family = [c for c in cells if c.in_family and c.comparison.primary]
  gains = [c.comparison.primary.mean_difference for c in family]
  found = [x for c, x in zip(family, gains, strict=True) if c.found]
  assert len(gains) == 3 and title_of(left.figure) == (
      f'After 20 steps, LN is ahead in {sum(x > 0 for x in found)} and behind in '
      f'{sum(x < 0 for x in found)} of 3 tested settings ({min(gains):+.1f} to '
      f'{max(gains):+.1f} points)'.replace('-', '−'))
  points = [line for line in left.lines if line.get_marker() == '^']
  places = [(line.get_ydata()[0], line.get_xdata()[0]) for line in points]
  gain = {c[:2]: c.comparison.primary for c in cells}
  np.testing.assert_allclose(places, [
      (y, gain[name, 20].mean_difference)
      for y, name in ((1, 'a'), (0, 'b'), (2, 'c'))])
  family = {c.name: c.holm for c in cells if c.step == 20}
  bars = [bar.get_segments()[0] for bar in left.collections]
  np.testing.assert_allclose(
      [bar[:, 0] for bar in bars], [(test.ci_low, test.ci_high)
                                    for test in family.values()])
  found = [line.get_markerfacecolor() != 'white' for line in points]
  assert found == [False, True, True]
  # Behind those two, where it helps and where it hurts.
  shades = {tuple(p.get_bbox().intervaly): p.get_facecolor() for p in left.patches}
  assert {y: blue > red for y, (red, _, blue, _) in shades.items()} == {
      (-0.5, 0.5): True, (1.5, 2.5): False}
  # The largest gain stands above, with the accuracy of the Baseline.
  labels = [t.get_text() for t in left.get_yticklabels()]
  assert labels == ['b   50', 'a   51', 'c   50']
  drawn = [line for line in right.lines if line.get_linestyle() not in ('None', '')][:3]
  assert [list(line.get_xdata()) for line in drawn] == [[10, 20]] * 3
  np.testing.assert_allclose(
      [line.get_ydata() for line in drawn],
      [[gain[name, step].mean_difference for step in (10, 20)] for name in 'abc'])
  for band, name in zip(right.collections, 'abc', strict=True):
    ends = {(x, y) for x, y in band.get_paths()[0].vertices}
    assert ends >= {(step, end) for step in (10, 20)
                    for end in (gain[name, step].ci_low, gain[name, step].ci_high)}
  # Only those of the family are tested, and a is not found.
  marks = {(line.get_marker(), line.get_markerfacecolor() != 'white',
            line.get_xdata()[0], line.get_ydata()[0])
           for line in right.lines if line.get_linestyle() == 'None'}
  assert marks == {
      (mark, filled, step, gain[name, step].mean_difference)
      for name, found in (('a', False), ('b', True), ('c', True))
      for step, mark, filled in ((10, 'x', True), (20, '^', found))}
  told = left.figure.legends[0]
  assert [text.get_text() for text in told.get_texts()] == [
      'p < .05, corrected', 'p ≥ .05, corrected', 'not tested',
      'LN (LayerNorm)', 'a', 'b', 'c', 'LN ahead', 'LN behind']
  markers = [(handle.get_marker(), handle.get_markerfacecolor() != 'white')
             for handle in told.legend_handles[:3]]
  assert markers == [('^', True), ('^', False), ('x', True)]


def test_a_cell_is_compared_with_base_at_the_same_step():
  rows = _rows({'base': 0.1, 'a': 0.3, 'b': 0.1}) + _rows({'late': 0.1}, steps=(40,))
  cells = {(c.name, c.step): c
           for c in read_cells(results.index_cells(rows), {})}
  gain = {
      (name, step): [
          np.mean([r.value * (1 if r.arm == 'layer_norm' else -1) * 2 for r in rows
                   if (r.experiment, r.step, r.seed, r.metric) == (
                       name, step, seed, 'accuracy')
                   and r.length > 16]) for seed in range(6)]
      for name in ('base', 'a', 'b') for step in (10, 20)}
  for step in (10, 20):
    expected = stats.ttest_rel(gain['a', step], gain['base', step])
    assert cells['a', step].change.p == pytest.approx(expected.pvalue)
    assert cells['a', step].change.mean_difference == pytest.approx(
        100 * np.mean(np.subtract(gain['a', step], gain['base', step])))
  uncorrected = [stats.ttest_rel(gain[x, 20], gain['base', 20]).pvalue for x in 'ab']
  np.testing.assert_allclose(
      [cells[x, 20].holm_change.p for x in 'ab'], holm(uncorrected))
  assert cells['base', 20].change is cells['late', 40].change is None


def test_each_cell_has_the_training_lengths_of_its_own():
  rows = _rows({'base': 0.1, 'a': 0.3})
  cells = read_cells(results.index_cells(rows), {'a': CellSetting(trained_up_to=32)})
  by_name = {c.name: c.comparison for c in cells}
  assert by_name['base'].primary.mean_difference == pytest.approx(np.mean(
      [t.mean_difference for t in by_name['base'].by_length[1:]]))
  assert by_name['a'].primary == by_name['a'].by_length[2]


def test_cells_are_compared_with_each_other_at_lengths_beyond_both():
  rows = _rows({'base': 0.1})
  rows += [row._replace(experiment=row.experiment.replace('base', 'range'))
           for row in rows]
  # Both gain at N = 32 alone, which `range` was trained on.
  rows = [row._replace(value=row.value + 0.2) if row.arm == 'layer_norm'
          and row.metric == 'accuracy' and row.length == 32 else row for row in rows]
  cells = read_cells(
      results.index_cells(rows), {'range': CellSetting(trained_up_to=32)})
  last = {c.name: c for c in cells if c.step == 20}
  assert last['range'].change.mean_difference == pytest.approx(0, abs=1e-9)
  assert (last['base'].comparison.primary.mean_difference
          > last['range'].comparison.primary.mean_difference + 5)


def test_lookup_with_weight_decay_is_compared_with_lookup():
  settings = {'lookup': CellSetting('lookup', against=None),
              'lookup_l2': CellSetting('lookup', against='lookup')}
  rows = _rows({'base': 0.0, 'lookup': 0.2, 'lookup_l2': 0.3})
  cells = read_cells(results.index_cells(rows), settings)
  last = {c.name: c.change for c in cells if c.step == 20}
  assert last['lookup'] is None  # another task
  assert last['lookup_l2'].mean_difference == pytest.approx(10, abs=2)


def test_cells_are_tested_together_at_the_last_step_that_all_have_whole():
  # a has continued, b has one step, c has begun the next, d has only begun.
  rows = [*_rows({'a': 0.1}, steps=(10, 20)), *_rows({'b': 0.1}, steps=(10,)),
          *_rows({'c': 0.1}, steps=(10,)), *_rows({'c': 0.1}, (20,), num_seeds=3),
          *_rows({'d': 0.1}, (10,), num_seeds=3)]
  cells = read_cells(results.index_cells(rows), {})
  assert [c[:2] for c in cells if c.in_family] == [('a', 10), ('b', 10), ('c', 10)]
  assert all((c.holm is not None) == c.in_family for c in cells)
  note = tables.table(cells, {}).note
  assert 'after 10 steps' in note
  chosen = read_cells(results.index_cells(rows), {}, family=[('a', 20)])
  assert [c[:2] for c in chosen if c.in_family] == [('a', 20)]


def _folder(path, rows, num_seeds, changes=()):
  """Makes the folder of a grid of six seeds a cell, but `num_seeds` asked for."""
  results.write_rows(path / 'results.csv', rows)
  session = {}
  run_folder.claim(path / 'as', {'base': {'num_seeds': num_seeds}}, session)
  (path / 'as/config.json').rename(path / 'config.json')
  for name in {r.experiment for r in rows}:
    run_folder.claim(path / 'cells' / name, dict(
        train=dict(max_length=16, num_steps=20), num_seeds=6,
        task=dict(name='retrieval'), optimizer=dict(learning_rate=1e-3),
        arms=('none', 'layer_norm')) | dict(changes).get(name, {}), session)
  return path


@pytest.mark.slow
def test_cells_with_fewer_seeds_than_asked_are_named_and_not_tested(tmp_path):
  rows = _rows({'base': 0.2, 'a': 0.2})
  assert not sensitivity.write(_folder(tmp_path / 'whole', rows, 6)).missing
  more = [r._replace(seed=r.seed + 6) for r in rows if r.experiment == 'base']
  grown = _folder(tmp_path / 'grown', [*rows, *more], 12)
  assert sensitivity.write(grown).missing == (
      'The grid is not finished: a@20 has 6 of 12 seeds of none, a@20 has 6 of 12 '
      'seeds of layer_norm. Only cells with as many seeds as any are tested together.')


def test_settings_are_those_of_the_cells_configurations(tmp_path):
  names = ('base', 'low', 'decay', 'wide', 'other', 'other_low')
  changes = {
      'low': dict(optimizer=dict(learning_rate=1e-4)),
      'decay': dict(optimizer=dict(learning_rate=1e-3, decay_steps=20)),
      'wide': dict(model=dict(width=256), optimizer=dict(learning_rate=1e-4)),
      'other': dict(task=dict(name='lookup'), train=dict(max_length=32, num_steps=20)),
      'other_low': dict(task=dict(name='lookup'),
                        optimizer=dict(learning_rate=1e-4)),
  }
  folder = _folder(tmp_path / 'run', _rows(dict.fromkeys(names, 0.1)), 6, changes)
  settings, rates, ends = sensitivity._read_settings(folder, {'other_low': 'other'})
  assert rates == {'base': ['base', 'decay', 'low']}  # alone
  against = {name: setting.against for name, setting in settings.items()}
  assert against == {'base': None, 'low': 'base', 'decay': 'base', 'wide': 'base',
                     'other': None, 'other_low': 'other'}
  assert settings['other'][:2] == ('lookup', 32)
  assert ends['wide', 20] == ['none', 'layer_norm']


def test_the_answer_and_the_table_have_words_for_settings():
  rows = _rows({'base': 0.1, 'a': 0.3, 'b': 0.1})
  cells = read_cells(results.index_cells(rows), {})
  settings = {'base': CellSetting('retrieval', words='plain setting'),
              'a': CellSetting('lookup', words='plain setting'),
              'b': CellSetting('retrieval', words='width 9')}
  gain = lambda cell: cell.comparison.primary.mean_difference
  family = [cell for cell in cells if cell.in_family]
  words = {'base': 'plain setting', 'a': 'lookup, plain setting', 'b': 'width 9'}
  least, most = (words[of(family, key=gain).name] for of in (min, max))
  first, second, third = answer(cells, settings)
  assert third == (
      'At the training lengths both arms are right in 95 % or more in each of these '
      '(medians of seeds; 90 % is needed).')
  assert f'({least}) to ' in first and first.endswith(f'({most}), in 3 settings.')
  assert 'corrected over the settings by Holm' in second
  records = tables.table(cells, settings).records
  assert [r['cell'] for r in records[:3]] == [
      cell.name for cell in sorted(family, key=gain, reverse=True)]
  shown_first = tables.table(cells, settings)._replace(records=records[:1])
  assert shown(shown_first, most)['cell'] == 'a'


def test_a_grid_that_has_not_learned_is_reported_without_figures(tmp_path):
  rows = [row._replace(value=0.5) if row.metric == 'training_accuracy' else row
          for row in _rows({'base': 0.1, 'a': 0.3, 'b': 0.1})]
  found = sensitivity.write(_folder(tmp_path, rows, 6))
  assert found.answer[0].startswith('No verdict: ') and not found.figures


def test_a_damaged_grid_is_named(tmp_path):
  rows = _rows({'base': 0.2})
  folder = _folder(tmp_path / 'odd', [*rows, rows[0]._replace(step=None)], 6)
  with pytest.raises(ValueError, match=r"of a cell has no step: \('base', 'none'"):
    sensitivity.write(folder)
  folder = _folder(tmp_path / 'lost', rows, 6)
  (folder / 'cells/base/config.json').unlink()
  with pytest.raises(ValueError, match=r'lost has no cells/base/config.json'):
    sensitivity.write(folder)
  folder = _folder(tmp_path / 'one_arm', [r for r in rows if r.arm == 'none'], 6)
  with pytest.raises(ValueError, match='no cell with results of Baseline and LN yet'):
    sensitivity.write(folder)
  (folder / 'config.json').write_text('{"config": {}}')
  with pytest.raises(ValueError, match=r'config.json is not the config.json of a grid'):
    sensitivity.write(folder)


def test_a_cell_without_a_baseline_yet_waits():
  rows = _rows({'a': 0.1}) + [r for r in _rows({'b': 0.1}) if r.arm != 'none']
  assert {c.name for c in read_cells(results.index_cells(rows), {})} == {'a'}


def test_what_a_cell_could_have_missed_is_of_its_level_in_the_family():
  cells = read_cells(results.index_cells(_rows({'base': 0.1, 'a': 0.3, 'b': 0.1})), {})
  for cell in cells:
    tests = ((cell.comparison.primary, cell.detectable, 3),
             (cell.change, cell.detectable_change, 2))
    for test, found, count in tests:
      expected = detectable(test, 0.05 / (count if cell.in_family else 1))
      assert found == pytest.approx(expected, nan_ok=True)


def test_a_seed_that_failed_is_named_and_a_cell_that_has_not_learned():
  rows = [row._replace(value=np.nan) if row.seed == 4 and row.arm == 'none' and
          (row.experiment, row.step) == ('b', 20) else row
          for row in _rows({'a': 0.1, 'b': 0.1, 'c': 0.1})]
  rows = [row._replace(value=0.5) if row.metric == 'training_accuracy' and
          (row.experiment, row.step) == ('b', 20) else row for row in rows]
  cells = read_cells(results.index_cells(rows), {})
  assert [c[:2] for c in cells if c.in_family] == [('a', 20), ('c', 20)]
  assert [c.comparison.left_out for c in cells if c[:2] == ('b', 20)] == [(4,)]
  note = tables.table(cells, {}).note
  assert 'Left out, not there or not finite in one of the arms: seed 4.' in note
  assert note.endswith('is about length, and not tested: b.')
  said = answer(cells, {})
  assert said[0].startswith('LayerNorm after attention, after 20 steps: from ')
  assert said[-1].endswith('(medians of seeds; 90 % is needed); b was not learned.')
  # One arm that has learned is not enough.
  for arm in _TWO:
    one = [row._replace(value=0.99) if row.metric == 'training_accuracy' and
           (row.experiment, row.step) == ('b', 20) and row.arm == arm else row
           for row in rows]
    cells = read_cells(results.index_cells(one), {})
    assert [c.name for c in cells if c.in_family] == ['a', 'c']
    row = next(x for x in shown_cells(tables.table(cells, {}))
               if (x['cell'], x['steps']) == ('b', '20'))
    assert row['p'] == 'not learned' and '[' not in row['difference [95 %]']
  # Where no cell has learned, as after a few steps, there is no verdict.
  rows = [row._replace(value=0.5) if row.metric == 'training_accuracy' else row
          for row in rows]
  cells = read_cells(results.index_cells(rows), {})
  assert not any(c.in_family for c in cells)
  verdict, = answer(cells, {})
  assert verdict.startswith('No verdict: ') and 'at most 50 % of both' in verdict
  assert {x['p'] for x in shown_cells(tables.table(cells, {}))} == {'not learned'}
  # Arms of which every seed diverged have no accuracy, and are not said to be at 0 %.
  for arms, said in ((('none',), False), (_TWO, False), ((), True)):
    lost = [row._replace(value=float('nan')) if row.metric == 'training_accuracy' and
            row.arm in arms else row for row in rows]
    verdict, = answer(read_cells(results.index_cells(lost), {}), {})
    assert ('at most' in verdict) == said and 'nan' not in verdict
  lost = [row._replace(value=float('nan')) if row.metric == 'training_accuracy' and
          (row.arm, row.experiment) == ('none', 'a') else row for row in rows]
  verdict, = answer(read_cells(results.index_cells(lost), {}), {})
  assert 'at most 50 % of both' in verdict


def _tune(rows, losses, step=20):
  """Tunes cells with the losses {(arm, cell): of each seed}."""
  at_step = {cell: index for (cell, at), index in results.index_cells(rows).items()
             if at == step}
  by_cell = {cell: {arm: dict(enumerate(losses[arm, cell])) for arm in _TWO}
             for cell in at_step}
  return tune(at_step, by_cell, step, 16)


def test_each_arm_has_the_rate_of_its_lowest_training_loss():
  rows = _rows({'base': 0.1, 'rate_low': 0.2, 'rate_high': 0.3}, steps=(10, 20))
  best = {'none': 'rate_low', 'layer_norm': 'rate_high'}
  losses = {(arm, cell): [0.05 if cell == best[arm] else 0.1] * 6
            for arm in best for cell in _RATES}
  tuned = _tune(rows, losses)
  assert tuned.step == 20
  assert tuned.chosen == best and tuned.sure == {'none': 1, 'layer_norm': 1}
  assert tuned.rates == ('base', 'rate_high', 'rate_low') and tuned.num_seeds == 6
  endpoints = [
      [100 * np.mean([r.value for r in rows if r[:3] == (best[arm], arm, seed)
                      and r.step == 20
                      and r.metric == 'accuracy' and r.length > 16])
       for seed in range(6)] for arm in ('layer_norm', 'none')
  ]
  np.testing.assert_allclose(tuned.means, np.mean(endpoints, axis=1))
  gains = np.subtract(*endpoints)
  assert tuned.mean_difference == pytest.approx(gains.mean())
  # With a choice that is sure, the interval is that of a plain bootstrap.
  plain = stats.bootstrap((gains,), np.mean, method='percentile', rng=1)
  np.testing.assert_allclose(
      (tuned.ci_low, tuned.ci_high), plain.confidence_interval, atol=0.05)


def test_a_choice_that_is_chance_widens_the_interval():
  # Two rates that train equally well, with endpoints ten points apart.
  rows = _rows({'base': 0.1, 'rate_low': 0.1}, steps=(20,), num_seeds=32)
  rows = [row._replace(value=row.value + 0.1) if row.metric == 'accuracy' and
          row[:2] == ('rate_low', 'none') else row for row in rows]
  noise = np.random.default_rng(3).normal(0, 0.01, 32)
  losses = {('none', 'base'): 0.1 + noise, ('none', 'rate_low'): 0.1001 - noise,
            ('layer_norm', 'base'): [0.1] * 32, ('layer_norm', 'rate_low'): [0.2] * 32}
  losses['none', 'base'] -= noise.mean()
  losses['none', 'rate_low'] += noise.mean()
  tuned = _tune(rows, losses)
  assert tuned.chosen == {'none': 'base', 'layer_norm': 'base'}
  assert 0.4 < tuned.sure['none'] < 0.7 and tuned.sure['layer_norm'] == 1
  assert tuned.mean_difference == pytest.approx(10, abs=1)
  assert tuned.ci_low == pytest.approx(0, abs=1.5)
  assert tuned.ci_high == pytest.approx(10, abs=1.5)


def test_rates_that_cannot_be_chosen():
  rows = _rows({'base': 0.1, 'rate_low': 0.2}, steps=(20,))
  losses = {(arm, cell): [0.05 if cell == 'rate_low' else 0.1] * 6
            for arm in _TWO for cell in _RATES}

  def chosen(failed=(), rows=rows):
    changed = losses | {('none', 'rate_low'): [np.nan if s in failed else 0.05
                                               for s in range(6)]}
    tuned = _tune(rows, changed)
    return tuned and (tuned.chosen['none'], tuned.num_seeds)

  assert chosen() == ('rate_low', 6)
  # A cell at which most seeds fail is no choice, and one seed decides nothing.
  assert chosen(failed=(3,)) == ('rate_low', 5)
  assert chosen(failed=range(3)) == chosen(failed=range(4)) == ('base', 6)
  # Nothing is chosen while a cell lacks seeds, nor from a single cell.
  assert chosen(rows=[
      r for r in rows if r.experiment != 'rate_low' or r.seed < 5]) is None
  assert chosen(rows=[r for r in rows if r.experiment == 'base']) is None


def test_tuned_rates_have_a_table_and_a_place_in_the_figure():
  gains = {'base': 0.1, 'rate_low': 0.2, 'rate_high': 0.3}
  rows = _rows(gains)
  best = _tune(rows, {(arm, cell): [0.05 if cell == 'rate_low' else 0.1] * 6
                      for arm in _TWO for cell in gains})
  tuned = {'base': best}
  assert best.means[0] > best.means[1] + 15
  table = tables.tuned_table(tuned, {})
  row = shown(table, '20')
  assert row.items() >= {
      'rates of': 'base', 'of the Baseline': 'rate_low (100 %)', 'seeds': '6',
      'of LN': 'rate_low (100 %)', 'LN': f'{best.means[0]:.1f}',
      'Baseline': f'{best.means[1]:.1f}'}.items()
  assert 'In row base: base; rate_high; rate_low.' in table.more
  cells = read_cells(results.index_cells(rows), {})
  with plots.style():
    left, _ = sensitivity_figures.gains(cells, {}, tuned).axes
  labels = [t.get_text().split('   ') for t in left.get_yticklabels()]
  assert [name for name, _ in labels] == [
      'rate_high', 'rate_low', 'base', 'base, best rates']
  assert labels[-1][1] == f'{best.means[1]:.0f}'
  places = [(line.get_ydata()[0], line.get_xdata()[0])
            for line in left.lines if line.get_marker() == 'x']
  assert places == [(3, best.mean_difference)]
  assert 'not tested' in [text.get_text() for text in left.texts]


@pytest.mark.slow
def test_rates_are_chosen_on_the_last_batches_of_training(tmp_path):
  # rate_high is the best at the step of the tests, for the Baseline, and only there.
  rates = {'base': 1e-3, 'rate_low': 3e-4, 'rate_high': 3e-3}
  folder = _folder(tmp_path / 'run', _rows(dict.fromkeys(rates, 0.1)), 6, {
      name: dict(optimizer=dict(learning_rate=rate)) for name, rate in rates.items()})
  for cell in rates:
    curves = Curves(folder / f'cells/{cell}/metrics.jsonl')
    for arm, first, step in itertools.product(_TWO, (0, 3), (10, 19, 20, 30)):
      loss = {'base': 0.5, 'rate_low': 0.1, 'rate_high': 0.3}[cell]
      if (cell, arm, step) == ('rate_high', 'none', 20):
        loss = 0.05
      curves.add(arm, step, first, {'loss': np.full(3, loss)})
  *_, tuned = sensitivity.write(folder).tables
  row = next(x for x in grid(tuned).splitlines() if x.startswith('| plain setting'))
  assert 'rate 0.003 (100 %) | rate 0.0003 (100 %)' in re.sub(' +', ' ', row)


def test_the_figure_of_the_mechanism_has_a_point_a_cell():
  rows = [row._replace(value=0.45) if row[:2] + row[4:5] + (
      row.step,) == ('c', 'layer_norm', 'target_weight', 20) else row
          for row in _rows({'a': 0.0, 'b': 0.2, 'c': -0.1})]
  cells = read_cells(results.index_cells(rows), {})
  with plots.style():
    drawn = mechanism_figure.mechanism(cells, {})
  above, below = drawn.axes[:3], drawn.axes[3:]
  points = [line for line in above[0].lines if line.get_marker() == '^']
  np.testing.assert_allclose(  # by their gain
      [line.get_xdata()[0] for line in points], [0.25, 0.25, 0.2])
  np.testing.assert_allclose(
      [line.get_ydata()[0] for line in points], [20, 0, -10], atol=2)
  # Those found are filled; what is not measured has no place.
  assert [line.get_markerfacecolor() != 'white' for line in points] == [
      True, False, True]
  assert 'correlation' not in above[1].get_title()
  labels = [t.get_text().split()[0] for t in below[0].get_yticklabels()]
  assert labels == ['b', 'a', 'c']
  # Of four cells there is a correlation.
  more = next(cell for cell in cells if cell.in_family)._replace(name='d')
  with plots.style():
    [weight, *_] = mechanism_figure.mechanism([*cells, more], {}).axes
  assert re.fullmatch(r'weight of the target\nrank correlation\n0\.\d\d',
                      weight.get_title())


def test_the_title_of_the_mechanism_names_what_the_gain_goes_with():
  names = [*mechanism_figure.TITLES]
  [cell, *_] = read_cells(results.index_cells(_rows({'a': 0.1, 'b': 0.2})), {})
  above, around, below = (
      Correlation(x, x - 0.2, x + 0.2) for x in (0.5, 0.1, -0.5))

  def title(ranks, *over_seeds):
    cells = [cell._replace(explained=dict(zip(names, each, strict=True)))
             for each in over_seeds]
    return mechanism_figure._headline(dict(zip(names, ranks, strict=True)), cells)

  most = (above, around, below), (above, above, below), (around, around, around)
  assert title((0.74, 0.77, 0.2), *most) == (
      "Over settings, LN's gain rises with weight and norm of the output; over the "
      'seeds of 3 settings, it rises with weight in 2, with norm of the output in 1, '
      'falls with distance in 2')
  assert title((0.1, 0.49, -0.5), most[2]) == (
      "Over settings, LN's gain falls with distance; over the seeds of 1 setting, it "
      'falls with distance in 0')
  # On the side that it has over settings.
  assert title((-0.6, 0.1, 0.1), *most).endswith('falls with weight in 0, with '
                                                 'distance in 2')
  # Not in more than half of the settings.
  assert title((0.1, np.nan, 0.2), most[0], most[2]).endswith(
      'goes with none of these')
  assert title((np.nan,) * 3, most[2]).endswith('?')


def test_a_gain_is_explained_by_what_goes_with_it_from_seed_to_seed():
  rows = []
  for seed, gain in enumerate((0.05, 0.01, 0.08, 0.02, 0.07, 0.03)):
    for arm in ('none', 'layer_norm'):
      add = lambda metric, value, length, seed=seed, arm=arm: rows.append(
          Row('base', arm, seed, length, metric, value, 10))
      add('training_loss', 0.1, None)
      treated = arm == 'layer_norm'
      for length in _LENGTHS:
        add('accuracy', 0.5 + seed / 10 + gain * treated, length)
        # At 16, which was trained on, it would turn the order round.
        more = gain if length > 16 else -9 * gain
        add('target_weight', 0.5 - seed / 20 + more * treated, length)
        add('output_norm', (seed + 1.0) * (1 - gain * treated), length)
  (cell,) = read_cells(results.index_cells(rows), {})
  assert cell.explained['target_weight'].rank == pytest.approx(1)
  assert cell.explained['output_norm'].rank == pytest.approx(-1)  # of the ratio
  assert np.isnan(cell.explained['input_distance'].rank)  # not measured
  with plots.style():
    below = mechanism_figure.mechanism([cell._replace(in_family=True)], {}).axes[3:]
  ranks = [[line.get_xdata()[0] for line in axes.lines if line.get_marker() == 'x']
           for axes in below]
  np.testing.assert_allclose(ranks, [[1], [-1], [np.nan]])


def test_every_cell_is_a_change_of_the_base_that_can_run():
  for variant in ('paper', 'cpu', 'quick', 'smoke'):
    config = config_file.get_config(variant)
    assert config.base.num_seeds == (
        8 if variant == 'quick' else retrieval.get_config(variant).num_seeds)
    for name in check.names(config):
      cell = check.cell_config(config, name)
      assert (cell == check.cell_config(config, 'base')) == (name == 'base')
      followed = config.also_at.get(name, ())
      assert cell.train.num_steps == max((*config.at_steps, *followed))


@functools.cache
def _after_two_steps(name):
  """Returns loss and parameters of a small model of a cell after two updates."""
  config = config_file.get_config('smoke')
  config.base.model.width = config.base.train.batch_size = 8
  with config.unlocked():
    config.cells.same = {}
  problem = training.problem(check.cell_config(config, name), 'layer_norm')

  key = jax.random.key(0)
  # Not compiled as a whole: most cells consist of the same operations.
  params = problem.init(key)
  state, loss = problem.optimizer.init(params), 0.0
  # Two: where the rate decays, the first is as without.
  for step in range(2):
    batch = problem.sample(key, step)
    (loss, _), gradient = jax.value_and_grad(problem.loss, has_aux=True)(params, batch)
    updates, state = problem.optimizer.update(gradient, state, params)
    params = jax.tree.map(jnp.add, params, updates)
  return float(loss), jax.tree.map(np.asarray, params)


@pytest.mark.parametrize('name', mostly_slow(
    [*config_file.get_config('smoke').cells, 'same'], 5, 10, 21, 25))
def test_every_cell_trains_another_model_than_base(name):
  (loss, params), (base_loss, base) = map(_after_two_steps, (name, 'base'))
  alike = jax.tree.structure(params) == jax.tree.structure(base) and all(
      x.shape == y.shape for x, y in zip(
          jax.tree.leaves(params), jax.tree.leaves(base), strict=True))
  far = abs(loss - base_loss)
  if alike:
    far = max(far, *jax.tree.leaves(jax.tree.map(
        lambda x, y: np.abs(x - y).max(), params, base)))
  if name in ('base', 'same'):
    assert alike and far == 0
  else:
    assert not alike or far > 1e-6


@pytest.mark.parametrize('name, query', [('base', 0.5), ('informative_query', 0.75)])
def test_the_query_held_fixed_is_the_middle_of_those_for_the_highest(name, query):
  cell = check.cell_config(config_file.get_config('smoke'), name)
  task = tasks.make_task(cell)
  batch = task.sample_at(jax.random.key(0), 4000, 2)
  highest = batch.items[..., 0].argmax(1) == batch.target_index
  assert task.fixed_query == [query]
  np.testing.assert_allclose(np.median(batch.query[highest]), query, atol=0.03)


@pytest.mark.parametrize('change, words', [
    (dict(optimizer=dict(learning_rte=0.1)), 'base has no optimizer.learning_rte'),
    (dict(optimiser=dict(l2=0.1), seed=1), 'config.base has no optimiser.l2'),
    (dict(model=dict(width='wide')), 'width'),
    (dict(task=dict(name='lookup', num_keys='x')),
     "config.task.num_keys must be a whole number from 1 to .*: 'x'"),
    (dict(optimizer=dict(l2=None)), 'config.optimizer.l2 must be .*: None'),
    (dict(task=dict(name='lookup', num_keys=64, informative_query=True)),
     'informative_query must be False, as only retrieval'),
    # Cells that could not be compared or run with the others.
    (dict(evaluate=dict(lengths=(32, 64))), 'must share evaluate.lengths'),
    (dict(seed=5), 'must share seed'),
    (dict(num_seeds=4, train=dict(seeds_at_once=1)),
     'must share num_seeds, train.seeds_at_once'),
])
def test_a_change_that_is_none_of_the_base_is_named(change, words):
  config = config_file.get_config('smoke')
  with config.unlocked():
    config.cells.odd = change
  with pytest.raises(ValueError, match=f'cell odd: .*{words}'):
    check.cell_config(config, 'odd')


def test_a_rate_that_decays_must_end_with_training():
  config = config_file.get_config('smoke')
  config.at_steps = (10, 40)
  words = r'decay_steps 20 must be 0 or the last step .*, 40'
  with pytest.raises(ValueError, match=words):
    check.cell_config(config, 'rate_decay')
  config.cells.rate_decay.optimizer.decay_steps = 40
  assert check.cell_config(config, 'rate_decay').train.num_steps == 40


def test_an_ensemble_has_a_few_cells_at_most(tmp_path, monkeypatch):
  monkeypatch.setattr(experiment, '_TOGETHER', 2)
  config = config_file.get_config('smoke')
  cells = {n: check.cell_config(config, n) for n in check.names(config)}
  names = ('base', 'l2', 'decoupled', 'rate_low', 'rate_high')
  parts = experiment._ensembles(tmp_path, cells, names, 'none', 0)
  assert parts == [('base', 'l2'), ('decoupled', 'rate_low'), ('rate_high',)]


@pytest.mark.parametrize('name', ['a@b', 'a/b', 'A'])
def test_names_that_results_could_not_hold_are_refused(name):
  config = config_file.get_config('smoke')
  with config.unlocked():
    config.cells[name] = {}
  with pytest.raises(ValueError, match=f'must consist of a-z, 0-9 and _: {name}'):
    check.names(config)


def test_steps_of_a_cell_that_there_is_not_are_named():
  config = config_file.get_config('smoke')
  with config.unlocked():
    config.also_at.colour = (5,)
  with pytest.raises(ValueError, match=r'also_at must be one or more of .*: colour'):
    check.names(config)


def _small_grid(monkeypatch):
  """Returns a grid of two cells, and lets it run in this process."""
  mesh = jax.make_mesh((2,), ('seed',), devices=jax.devices()[:2],
                       axis_types=(jax.sharding.AxisType.Auto,))
  monkeypatch.setattr(experiment, 'seed_devices', lambda train: mesh)
  monkeypatch.setattr(experiment.locks, 'lock', lambda folder: None)
  config = config_file.get_config('smoke')
  config.run, config.at_steps = ('base', 'l2'), (4, 6)
  config.also_at = {}
  config.base.model.width = config.base.train.batch_size = 4
  config.base.train.update(steps_per_call=2, save_every_seconds=0.0)
  config.base.evaluate.update(lengths=(32,), num_sequences=4)
  config.cells.base.arms = config.cells.l2.arms = ('none', 'layer_norm')
  return config


@pytest.mark.long
@pytest.mark.slow
def test_a_grid_cut_off_between_two_saves_ends_as_if_it_had_not_been(
    tmp_path, monkeypatch, capsys
):
  config = _small_grid(monkeypatch)
  experiment.main(config, str(tmp_path / 'whole'))
  save = experiment.checkpoint.save

  def fail(folder, step, state):
    if folder.is_relative_to(tmp_path / 'cut/cells/l2') and step == 4:
      raise OSError('no space')
    save(folder, step, state)

  with monkeypatch.context() as patch:
    patch.setattr(experiment.checkpoint, 'save', fail)
    with pytest.raises(OSError, match='no space'):
      experiment.main(config, str(tmp_path / 'cut'))
  cells = {name: check.cell_config(config, name) for name in ('base', 'l2')}
  reached = [experiment._reached(tmp_path / 'cut', cells, name, 'none', 0)
             for name in cells]
  assert reached == [4, 2]
  parts = experiment._ensembles(tmp_path / 'cut', cells, cells, 'none', 0)
  assert parts == [('base',), ('l2',)]
  experiment.main(config, str(tmp_path / 'cut'))
  for name in ('results.csv', 'cells/base/metrics.jsonl', 'cells/l2/metrics.jsonl'):
    ours, theirs = ((tmp_path / run / name).read_text() for run in ('cut', 'whole'))
    assert sorted(ours.splitlines()) == sorted(theirs.splitlines()), name
  check_board(tmp_path / 'whole')

  # Rows that are lost come back, also those of a step that the checkpoint has passed.
  before = (tmp_path / 'whole/results.csv').read_bytes()
  assert b',4\n' in before.splitlines(keepends=True)[3]
  lose_rows(tmp_path / 'whole')
  rows = (tmp_path / 'whole/results.csv').read_bytes().splitlines(keepends=True)
  (tmp_path / 'whole/results.csv').write_bytes(b''.join(rows[:3] + rows[4:]))
  experiment.main(config, str(tmp_path / 'whole'))
  assert (tmp_path / 'whole/results.csv').read_bytes() == before

  # Seeds may be added, to all cells or to one.
  config.run, config.base.num_seeds = ('base',), 4
  before = results.read_rows(tmp_path / 'whole/results.csv')
  capsys.readouterr()
  experiment.main(config, str(tmp_path / 'whole'))
  out = capsys.readouterr().out
  assert seed_blocks.SEEDS_ADDED in out
  assert 'l2@6 has 2 of 4 seeds of none' in out
  after = results.read_rows(tmp_path / 'whole/results.csv')
  assert [r for r in after if r.seed < 2] == before
  assert {(r.experiment, r.step) for r in after if r.seed in (2, 3)} == {
      ('base', 4), ('base', 6)}
  config.run, config.base.num_seeds = ('base', 'l2'), 2

  # A refused run leaves the folder unchanged.
  before = {p: p.read_bytes() for p in (tmp_path / 'cut').rglob('*') if p.is_file()}
  config.at_steps = (4, 5 + 3)
  config.cells.l2.optimizer.l2 = 0.5
  with pytest.raises(ValueError, match=r'l2 holds another run \(optimizer.l2'):
    experiment.main(config, str(tmp_path / 'cut'))
  config.at_steps = (2, 4, 6)
  with pytest.raises(ValueError, match='base is already trained to step 6 and cannot'):
    experiment.main(config, str(tmp_path / 'cut'))
  assert before == {
      p: p.read_bytes() for p in (tmp_path / 'cut').rglob('*') if p.is_file()}


@pytest.mark.parametrize('fields, words', [
    ({'at_steps': ()}, r'config.at_steps must be one or more whole numbers .*: \(\)'),
    ({'at_steps': (0, 20)}, r'config.at_steps must be .* from 1 to .*: \(0, 20\)'),
    ({'also_at.base': (0,)}, r'config.also_at.base must be .* from 1 to .*: \(0,\)'),
    ({'at_steps': ('a',)}, r"config.at_steps must be .* from 1 to .*: \('a',\)"),
    ({'at_steps': (7,)},
     r'cell base: steps \[7\] of config.at_steps and also_at are not multiples'),
    ({'base.model.kernel_init': 'foo'},
     r"config.base.model.kernel_init must be one of lecun_normal, uniform: 'foo'"),
    ({'base.model.epsilon': -1.0}, r'config.base.model.epsilon must be .* above 0: -1'),
    ({'base.num_seeds': 3}, r'num_seeds 3 must be a multiple of'),
    ({'cells.l2.arms': ('none',)}, r'cell l2: arms must have none and layer_norm'),
    ({'cells': ml_collections.ConfigDict()}, r'config.cells is empty'),
    ({'run': (1,)}, r'config.run must be names: \(1,\)'),
    ({'run': 1}, 'config.run must be names: 1'),
    ({'base.train': None}, 'config.base.train must have fields, such as .*: None'),
    ({'against.lookup_l2': 'colour'}, 'against must be one or more of .*: colour'),
])
def test_a_grid_that_cannot_run_is_named_and_nothing_is_made(tmp_path, fields, words):
  config = config_file.get_config('smoke')
  config.run = () if 'cells' in fields else ('base', 'l2')
  with config.ignore_type():
    config.update_from_flattened_dict(fields)
  with pytest.raises(ValueError, match=words):
    experiment.main(config, str(tmp_path / 'run'))
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('arguments, words', [
    (["--config.run=('base','colour')"], 'run must be one or more of base, classes_32'),
    (['--config.cells.lookup.task.num_keys=8', "--config.run=('lookup',)"],
     'cell lookup: lengths in config.train and config.evaluate go up to 64, but a'),
    (['--config=configs/sensitivity.py:cpu_growing'],
     "without a variant it is paper: 'cpu_growing'"),
    (['--config.cells.base.optimizer.colour=3'],
     "--config.cells.base.optimizer.colour: config has no field 'optimizer'"),
    (['--config=configs/lookup.py:smoke'],
     'config has no base, cells, at_steps, also_at, against, run: is it for another'),
])
def test_bad_input_is_one_line_and_exit_code_2(run_here, tmp_path, arguments, words):
  done = run_here('sensitivity', f'--workdir={tmp_path}/run',
                  '--config=configs/sensitivity.py:smoke', *arguments)
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr.startswith('Error: ') and done.stderr.count('\n') == 1
  assert words in done.stderr
  assert not (tmp_path / 'run').exists()


def test_cells_that_run_together_are_one_function_of_their_states():
  config = config_file.get_config('smoke')
  parts: dict[str, list[ml_collections.ConfigDict]] = {}
  for name in check.names(config):
    cell = check.cell_config(config, name)
    parts.setdefault(training.program(cell), []).append(cell)
  params = {'kernel': np.full((2, 3), 0.5, np.float32), 'bias': np.ones(3, np.float32)}
  gradients = jax.tree.map(lambda x: 0.1 * x, params)
  seen = set()
  for part in parts.values():
    shared, *_ = [training.problem(cell, 'none').optimizer for cell in part]
    for cell in part:
      own = training.problem(cell, 'none').optimizer
      ours = theirs = own.init(params)
      for _ in range(3):
        expected, theirs = own.update(gradients, theirs, params)
        actual, ours = shared.update(gradients, ours, params)
        jax.tree.map(np.testing.assert_array_equal, actual, expected)
      seen.add(float(actual['kernel'][0, 0]))
  assert len(seen) > 6  # the numbers are not the same


@pytest.mark.slow
def test_cells_run_together_that_differ_in_numbers_and_first_weights():
  config = config_file.get_config('smoke')
  cells = {n: check.cell_config(config, n) for n in check.names(config)}
  parts: dict[str, set[str]] = {}
  for name, cell in cells.items():
    parts.setdefault(training.program(cell), set()).add(name)
  together = [part for part in parts.values() if len(part) > 1]
  assert sorted(map(sorted, together)) == [
      ['base', 'decoupled', 'l2', 'rate_high', 'rate_low', 'uniform_init'],
      ['l2_rate_decay', 'l2_rate_high_decay', 'rate_decay', 'rate_high_decay',
       'rate_higher_decay', 'rate_low_decay'],
      ['lookup', 'lookup_l2'],
  ]


_ARMS = "=('none','layer_norm')"
_SMALL = ('--config.base.model.width=8', '--config.base.train.batch_size=8',
          '--config.base.evaluate.lengths=(16,32)')


def _single(workdir, name, *arguments):
  """Returns the rows of a single run of the settings of `_SMALL`."""
  small = [argument.replace('config.base', 'config') for argument in _SMALL]
  done = subprocess.run(
      [sys.executable, '-m', 'experiments.length_generalization',
       f'--workdir={workdir}', f'--config=configs/{name}.py:smoke', *small,
       '--config.evaluate.fit_lengths=()', '--config.evaluate.histogram_lengths=(16,)',
       f'--config.arms{_ARMS}', *arguments],
      cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
  assert done.returncode == 0, done.stderr
  return {r[1:5]: r.value for r in results.read_rows(workdir / 'results.csv')}


def _sensitivity(workdir, *arguments):
  return subprocess.run(
      [sys.executable, '-m', 'experiments.sensitivity', f'--workdir={workdir}',
       '--config=configs/sensitivity.py:smoke', *arguments],
      cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.long
@pytest.mark.slow
def test_cells_equal_single_runs_and_may_be_added(tmp_path, fast_compilation):
  # base and l2 train together.
  arms = [f'--config.cells.{name}.arms{_ARMS}' for name in ('base', 'l2', 'lookup')]
  grid = functools.partial(_sensitivity, tmp_path / 'grid', *_SMALL, *arms)
  done = grid("--config.run=('base','l2')")
  assert done.returncode == 0, done.stderr
  table = (tmp_path / 'grid/tables/sensitivity.md').read_text()
  assert re.search(r'\| L2 0\.001 +\| 20 .*\| l2 +\|', table)
  before = results.read_rows(tmp_path / 'grid/results.csv')
  done = grid("--config.run=('base','lookup')")
  assert done.returncode == 0, done.stderr
  rows = results.read_rows(tmp_path / 'grid/results.csv')
  assert [r for r in rows if r.experiment != 'lookup'] == before

  single = {
      ('l2', 20): _single(tmp_path / 'l2', 'retrieval'),
      ('lookup', 10): _single(tmp_path / 'lookup', 'lookup',
                              '--config.optimizer.l2=0.0',
                              '--config.train.num_steps=10'),
  }
  for (name, step), values in single.items():
    cell = {r[1:5]: r.value for r in rows if (r.experiment, r.step) == (name, step)}
    assert len(cell) > 40
    assert cell == {key: values[key] for key in cell}, name
