"""Tables, figures and sentences of `experiments.long_context`."""

import numpy as np
import pytest

from experiments.long_context import (
    answer,
    dialect_tables,
    figures,
    longbench_tables,
    scores,
    tables,
)
from tests.artists import bands
from tests.conftest import shown
from tests.long_context_cases import field_of, longbench_run, made_rows, QA, run_of
from vvlen.evaluation import longbench
from vvlen.reporting.results import Row
from vvlen.reporting.titles import setup_of, title_of


def test_scores_by_length_are_means_of_samples():
  table = tables.by_length(run_of('babilong', QA))
  assert [r['task'] for r in table.records] == ['qa1', 'qa2', 'mean']
  assert [[r[f'samples_{n}'] for n in (64, 128, 256)] for r in table.records] == [
      [4, 3, 2], [2, 4, 2], [6, 7, 4]]
  found = [[r[f'score_{n}'] for n in (64, 128, 256)] for r in table.records]
  np.testing.assert_allclose(found, [[75, 100, 50], [50, 25, 0], [62.5, 62.5, 25]])
  drawn = np.random.default_rng(0).multinomial(4, [1 / 4] * 4, 200) @ [1, 1, 1, 0] / 4
  np.testing.assert_allclose(
      [field_of(table, 0, f'score_64_{x}') for x in ('low', 'high')],
      100 * np.quantile(drawn, (0.025, 0.975)))
  # The mean: both tasks, each drawn again by itself.
  other = np.random.default_rng(1).multinomial(2, [1 / 2] * 2, 200) @ [1, 0] / 2
  np.testing.assert_allclose(
      [field_of(table, 2, f'score_64_{x}') for x in ('low', 'high')],
      100 * np.quantile((drawn + other) / 2, (0.025, 0.975)))
  # Groups of one size are not drawn alike.
  groups = [np.array([1.0, 0, 0]), np.array([0.0, 1, 1])]
  drawn = [np.random.default_rng(seed).multinomial(3, [1 / 3] * 3, 200) @ x / 3
           for seed, x in zip((7, 8), groups, strict=True)]
  np.testing.assert_allclose(
      scores.mean_interval(groups, 200, 7),
      [0.5, *np.quantile(np.mean(drawn, axis=0), (0.025, 0.975))])
  cells = shown(table, 'qa2')
  assert cells['samples'] == '2 to 4' and cells['128 tokens'].startswith('25.0 [')
  assert shown(table, 'mean')['samples'] == '4 to 7'
  assert list(cells) == ['task', 'samples', '64 tokens', '128 tokens', '256 tokens']
  strict = tables.by_length(run_of('babilong', QA, 'strict'))
  assert field_of(strict, 0, 'score_64') == 25 and 'Dialect: strict.' in strict.note
  lm_eval = tables.by_length(run_of('babilong', QA, 'lm_eval'))
  assert field_of(lm_eval, 1, 'score_128') == 50
  # A task that lacks a length has an empty cell, and there is no mean there.
  part = {key: x for key, x in QA.items() if key != ('qa2', 256, 75)}
  cells = shown(tables.by_length(run_of('babilong', part)), 'mean')
  assert cells['256 tokens'] == '' and cells['128 tokens'].startswith('62.5')
  assert cells['samples'] == '6 to 7'  # where there is a mean


def test_the_effective_length_is_the_longest_without_a_gap():
  can = lambda share, n=100: [(float(i < share * n), 0, 0, 0.1) for i in range(n)]
  values = {('qa1', 64, 0): can(0.8), ('qa1', 128, 0): can(0.68),
            ('qa1', 256, 0): can(0.67), ('qa1', 512, 0): can(0.9),
            ('qa2', 64, 0): can(0.12), ('qa2', 128, 0): can(0.9)}
  made = run_of('babilong', values)
  table = tables.effective_lengths(made)
  one, two, mean = table.records
  assert (one['base_length'], one['effective_length']) == (64, 128)
  assert one['base_score'] == pytest.approx(80) and one['chance'] == pytest.approx(10)
  assert one['base_score_low'] < 80 < one['base_score_high']
  np.testing.assert_allclose([one[f'change_{n}'] for n in (64, 128, 256, 512)],
                             [0, -15, -16.25, 12.5])
  cells = shown(table, 'qa1')
  # The samples of all lengths are drawn again together, as the questions are the same.
  drawn = np.random.default_rng(0).multinomial(100, [1 / 100] * 100, 200)
  own = [drawn @ (np.arange(100) < count) for count in (80, 68, 67, 90)]
  ends = [int(n) for n in np.quantile(
      [(64, 128, 256, 512)[next(
          (i for i in range(3) if x[i + 1] < 0.85 * x[0] - 1e-9), 3)]
       for x in np.transpose(own)], (0.025, 0.975), method='inverted_cdf')]
  assert [one['effective_length_low'], one['effective_length_high']] == ends
  assert ends == [64, 512]
  assert cells['effective length [95 %]'] == '128 [64, 512]'
  assert cells['change at 256'] == '−16'
  assert cells['chance, shortcut'] == '10.0, unknown' and cells['base'] == '64'
  assert cells['change at 512'] == '+12' and 'change at 64' not in cells
  assert cells['score at the base [95 %]'].startswith('80.0 [')
  # 12 % is not above 10 %.
  assert not two['well_above_guess'] and np.isnan(two['effective_length'])
  cells = shown(table, 'qa2')
  assert cells['effective length [95 %]'] == 'not well above a guess'
  assert cells['change at 128'] == cells['change at 512'] == ''
  # The mean is over lengths that both have; its interval is that of the mean score.
  assert (mean['task'], mean['base_length'], mean['effective_length']) == (
      'mean', 64, 128)
  assert mean['change_128'] == pytest.approx(100 * (0.79 / 0.46 - 1))
  assert np.isnan(mean['change_256']) and mean['chance'] == pytest.approx(10)
  same = tables.by_length(made).records[-1]
  assert [mean[f'base_score{end}'] for end in ('', '_low', '_high')] == [
      same[f'score_64{end}'] for end in ('', '_low', '_high')]
  falls = {**values, ('qa1', 128, 0): can(0.1), ('qa2', 128, 0): can(0.1)}
  falls = tables.effective_lengths(run_of('babilong', falls)).records[-1]
  assert (falls['task'], falls['effective_length']) == ('mean', 64)
  # Tasks with other shortest lengths have no mean.
  apart = {key: x for key, x in values.items() if key != ('qa2', 64, 0)}
  assert [r['task'] for r in tables.effective_lengths(
      run_of('babilong', apart)).records] == ['qa1', 'qa2']
  said = answer.answer(tables.effects(made))
  assert said[0].startswith('qa1: 80 % [95 %: 7')
  assert said[0].endswith(
      'at least 85 % of that up to 128 [95 %: 64, 512], and 90 % at 512.')
  assert said[1] == ('No verdict on qa2 (12 %): at 64 tokens, the base length, its '
                     'interval does not lie 10 points above a guess or a shortcut.')
  strict = tables.effective_lengths(made._replace(dialect='strict')).records
  assert strict[0]['base_score'] == 0 and not strict[0]['well_above_guess']
  # Up to the longest, and of one length alone.
  values = {key: x for key, x in values.items() if key[0] == 'qa1' and key[1] < 200}
  [said] = answer.answer(tables.effects(run_of('babilong', values)))
  assert said.endswith(
      ', and at least 85 % of that up to 128 [95 %: 64, 128], the longest.')
  [said] = answer.answer(tables.effects(run_of('babilong', {
      ('qa1', 64, 0): can(0.8)})))
  assert said.endswith('] at 64 tokens.')
  [said, _] = answer.answer(tables.effects(run_of('babilong', {
      ('qa1', 64, 0): can(0.8), ('qa2', 64, 0): can(0.9), ('qa3', 64, 0): can(0)})))
  assert said == (
      'Mean of the 2 tasks that can be done at 64 tokens: 85 % there (qa1, qa2).')
  # Of several tasks, those that it can do.
  more = run_of('babilong', {
      ('qa1', 64, 0): can(0.8), ('qa2', 64, 0): can(0.6), ('qa5', 64, 0): can(0.7),
      ('qa1', 128, 0): can(0.7), ('qa2', 128, 0): can(0.2), ('qa5', 128, 0): can(0.6),
      ('qa3', 64, 0): can(0.0), ('qa3', 128, 0): can(0.5)})
  assert answer.answer(tables.effects(more)) == [
      'Mean of the 3 tasks that can be done at 64 tokens: 70 % there, and 50 % at 128. '
      'Each stays at or above 85 % of its own score there: qa1 up to 128 [95 %: 64, '
      '128], qa2 up to 64 [95 %: 64, 64], qa5 up to 128 [95 %: 64, 128].',
      'No verdict on qa3 (0 %): at 64 tokens, the base length, its interval does not '
      'lie 10 points above a guess or a shortcut.']
  [said] = answer.answer(tables.effects(run_of('babilong', {
      ('qa1', 64, 0): can(0.8), ('qa1', 128, 0): can(0.2)})))
  assert said.endswith(
      'at least 85 % of that up to 64 [95 %: 64, 64], and 20 % at 128.')
  # Of one sample, nothing is known about others.
  effect, = tables.effects(run_of('babilong', {
      ('qa1', 64, 0): can(0.8), ('qa1', 128, 0): can(0.8)[:1]}))
  assert effect.able and np.isnan(effect.effective_low)
  assert answer.answer([effect])[0].endswith(
      ', and at least 85 % of that up to 128, the longest.')


def test_a_shortcut_has_no_effective_length():
  half = [(float(i % 2), 0, 0, 1 / 6) for i in range(100)]
  made = run_of('babilong', {('qa1', n, 0): half for n in (64, 128, 256)})
  named_last = [Row('babilong', 'qa1', i, n, 'shortcut', value, depth=0)
                for n in (64, 128, 256) for i, (value, *_) in enumerate(half)]
  known = made._replace(rows=[*made.rows, *named_last])
  table = tables.effective_lengths(known)
  assert shown(table, 'qa1')['chance, shortcut'] == '16.7, 50.0'
  assert shown(table, 'qa1')['effective length [95 %]'] == 'not well above a guess'
  assert answer.answer(tables.effects(known)) == [
      'No verdict on qa1 (50 %): at 64 tokens, the base length, its interval does not '
      'lie 10 points above a guess or a shortcut.']
  # Where it is not known, a reader is told.
  words = 'the room that is named last answers half of the stories of qa1'
  assert words not in table.more
  table = tables.effective_lengths(made)
  assert shown(table, 'qa1')['effective length [95 %]'] == '256 [256, 256]'
  assert words in table.more
  # A pass key is the only number of its prompt.
  table = tables.effective_lengths(run_of('passkey', {
      ('passkey', 64, 0): [(1, 0, 0, 0.01)] * 2}))
  assert shown(table, 'pass key')['chance, shortcut'] == '1.0, 1.0'
  assert words not in table.more


def test_lengths_beyond_the_window_have_a_star():
  made = run_of('babilong', QA)._replace(window=132, answer_tokens=4)
  words = ('From 256 tokens on, prompts with BOS and answers of up to 4 tokens exceed '
           'the window, 132 tokens.')
  assert tables.beyond_window(made) == [256] and tables.beyond_words(made) == words
  for table, header in ((tables.by_length(made), '{} tokens'),
                        (tables.by_depth(made), '{} tokens'),
                        (tables.effective_lengths(made), 'change at {}')):
    names = [*table.columns]
    assert {header.format(128), f'{header.format(256)} *'} <= {*names}
    assert f'* {words}' in table.more
  # What the model read counts, with BOS and what stands around a context.
  read = [Row('babilong', 'qa1', 0, 128, 'num_tokens', 129.0, depth=0)]
  assert tables.beyond_window(made._replace(rows=[*made.rows, *read])) == [128, 256]
  inside = made._replace(window=260)
  assert not tables.beyond_window(inside) and not tables.beyond_words(inside)
  assert '256 tokens' in tables.by_length(inside).columns
  assert '*' not in tables.by_length(inside).more
  # The window of predictions made elsewhere is not known; LongBench cuts prompts.
  assert not tables.beyond_window(made._replace(window=0))
  assert not tables.beyond_window(longbench_run()._replace(window=9))


def test_a_few_right_answers_beyond_chance_give_no_effective_length():
  can = lambda share: [(float(i < share * 100), 0, 0, 0.001) for i in range(100)]
  made = run_of('babilong', {
      ('qa1', 64, 0): can(0.04), ('qa1', 128, 0): can(0.04),
      ('qa2', 64, 0): can(0.3), ('qa2', 128, 0): can(0.3)})
  few, many, _ = tables.effective_lengths(made).records
  # Both are above chance, and only one well above it.
  assert 0.1 < few['base_score_low'] < 10.1 < many['base_score_low']
  assert np.isnan([few['effective_length'], few['change_128']]).all()
  assert many['effective_length'] == 128 and many['change_128'] == 0
  effect = tables.Effect(
      'qa1', [64], np.ones(1), 0.19, 0.3, 0.1, np.nan, 64, np.nan, np.nan)
  assert not effect.able and effect._replace(low=0.21).able
  assert not effect._replace(low=0.59, shortcut=0.5).able
  assert effect._replace(low=0.61, shortcut=0.5).able


def test_sentences_on_tasks_of_other_lengths_are_their_own():
  can = lambda share, n=100: [(float(i < share * n), 0, 0, 0.1) for i in range(n)]
  made = run_of('babilong', {
      ('qa1', 4000, 0): can(0.8), ('qa1', 8000, 0): can(0.4),
      ('qa1', 16000, 0): can(0.6), ('qa2', 4000, 0): can(0.6),
      ('qa2', 16000, 0): can(0.2), ('qa3', 4000, 0): can(0.5),
      ('qa3', 8000, 0): can(0.3), ('qa4', 8000, 0): can(0.1),
      ('qa5', 4000, 0): can(0.0), ('qa5', 8000, 0): can(0.9)})
  effects = {x.task: x for x in tables.effects(made)}
  low, high = 100 * effects['qa3'].low, 100 * effects['qa3'].high
  assert answer.answer([*effects.values()]) == [
      'Mean of the 2 tasks that can be done at 4,000 tokens: 70 % there, and 40 % at '
      '16,000. Each stays at or above 85 % of its own score there: qa1 up to 4,000 '
      '[95 %: 4,000, 4,000], qa2 up to 4,000 [95 %: 4,000, 4,000].',
      f'qa3: 50 % [95 %: {low:.0f}, {high:.0f}] at 4,000 tokens, at least 85 % of that '
      'up to 4,000 [95 %: 4,000, 4,000], and 30 % at 8,000.',
      'No verdict on qa4 (10 %): at 8,000 tokens, the base length, its '
      'interval does not lie 10 points above a guess or a shortcut.',
      'No verdict on qa5 (0 %): at 4,000 tokens, the base length, its '
      'interval does not lie 10 points above a guess or a shortcut.']
  [said] = answer.answer([effects['qa1']])
  low, high = 100 * effects['qa1'].low, 100 * effects['qa1'].high
  assert said == (
      f'qa1: 80 % [95 %: {low:.0f}, {high:.0f}] at 4,000 tokens, at least 85 % of that '
      'up to 4,000 [95 %: 4,000, 4,000], and 60 % at 16,000.')
  assert answer.answer([effects['qa4']]) == answer.answer([*effects.values()])[2:3]


def test_one_sample_gives_no_verdict():
  values = {('passkey', 64, 0): [(1, 1, 1, 0)]}
  effect, = tables.effects(run_of('passkey', values))
  assert not effect.able and np.isnan(effect.low)
  assert answer.answer([effect]) == [
      'No verdict on pass key (100 %): at 64 tokens, the base length, a single sample.']


def test_scores_by_depth_are_of_the_samples_there():
  values = {
      ('passkey', 64, 0): [(1, 0, 0, 0), (0, 0, 0, 0)],
      ('passkey', 64, 50): [(1, 0, 1, 0)] * 3, ('passkey', 64, 100): [(0, 0, 0, 0)],
      ('passkey', 96, 100): [(1, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0)]}
  rows = []  # one number a sample of a length
  for length in (64, 96):
    own = [(key, x) for key, all_ in values.items() if key[1] == length for x in all_]
    for i, (key, sample) in enumerate(own):
      rows += [row._replace(seed=i) for row in made_rows('passkey', {key: [sample]})]
  made = run_of('passkey', {})._replace(rows=rows)
  table = tables.by_depth(made)
  assert [(r['depth'], r['samples_64'], r['samples_96']) for r in table.records] == [
      (0, 2, 0), (50, 3, 0), (100, 1, 4)]
  assert shown(table, '100 %')['64 tokens'] == '0'  # one sample has no interval
  assert [r['score_64'] for r in table.records] == [50, 100, 0]
  assert field_of(table, 2, 'score_96') == 25
  assert 0 <= field_of(table, 2, 'score_96_low') < 25 < field_of(
      table, 2, 'score_96_high')
  cells = shown(table, '50 %')
  assert cells['task'] == 'pass key' and cells['96 tokens'] == ''
  assert cells['64 tokens'] == '100.0 [100.0, 100.0]'
  assert field_of(tables.by_depth(made._replace(dialect='strict')), 0, 'score_64') == 0
  assert shown(tables.by_depth(run_of('babilong', QA)), '75–100 %')['task'] == 'qa2'
  figure = figures.by_depth(made)
  texts = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
  # By column and row, those of lengths and depths.
  assert texts == {(0, 0): '50', (0, 1): '100', (0, 2): '0', (1, 2): '25'}
  np.testing.assert_array_equal(
      figure.axes[0].images[0].get_array().filled(np.nan),
      [[50, np.nan], [100, np.nan], [0, 25]])
  assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == (
      'tokens of the prompt', 'depth, % of the context')
  assert table.more == 'Depth: the share of the text before the key.'
  # Each task has a panel of the same lengths and depths.
  several = figures.by_depth(run_of('babilong', {
      **QA, ('qa3', 128, 0): [(0, 0, 0, 0)]}))
  shown_in = {axes.get_title(): axes for axes in several.axes if axes.images}
  assert list(shown_in) == ['qa1', 'qa2', 'qa3']
  of = lambda task: shown_in[task].images[0].get_array().filled(np.nan)
  np.testing.assert_array_equal(of('qa1'), [
      [75, 100, 50], [np.nan] * 3, [np.nan] * 3])
  np.testing.assert_array_equal(of('qa2'), [
      [np.nan] * 3, [50, 25, np.nan], [np.nan, np.nan, 0]])
  np.testing.assert_array_equal(of('qa3')[0], [np.nan, 0, np.nan])
  assert [axes.get_xlabel() for axes in shown_in.values()] == [
      '', *2 * ['tokens of the prompt']]
  assert 'stands, a panel for each task. Empty: no sample. Weights w.' in (
      several.get_label())
  assert [x.get_text() for x in shown_in['qa1'].get_yticklabels()] == [
      '0–25', '25–50', '75–100']
  labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
  assert labels == ['0', '50', '100']
  assert [x.get_text() for x in figure.axes[0].get_xticklabels()] == ['64', '96']


def test_dialects_are_compared_sample_by_sample():
  values = {
      ('qa1', 64, 0): [(1, 1, 0, 0.2), (1, 0, 0, 0.2), (0, 0, 1, 0.2), (1, 1, 1, 0.2)],
      ('qa2', 64, 0): [(1, 1, 1, 0.2)] * 2, ('qa1', 128, 0): [(1, 0, 0, 0.2)]}
  table = dialect_tables.by_length(run_of('babilong', values))
  assert [(r['place'], r['task']) for r in table.records] == [
      (64, 'qa1'), (64, 'qa2'), (128, 'qa1')]
  first = table.records[0]
  assert [first[name] for name in longbench.DIALECTS] == [75, 50, 50]
  assert first['difference_lm_eval'] == first['difference_strict'] == -25
  # Intervals of differences are those of pairs: of these four, −1, −1, +1 and 0.
  drawn = np.random.default_rng(0).multinomial(4, [1 / 4] * 4, 200)
  np.testing.assert_allclose(
      [first[f'difference_strict_{end}'] for end in ('low', 'high')],
      100 * np.quantile(drawn @ [-1, -1, 1, 0] / 4, (0.025, 0.975)))
  assert [*table.columns] == ['length', 'task', *longbench.DIALECTS,
                              'lm_eval − official', 'strict − official']
  cells = shown(table, 'qa2')
  assert cells['strict − official'] == '0' and cells['length'] == '64'
  # Samples of which a row is lost are in no difference.
  lost = run_of('babilong', values)
  lost = lost._replace(rows=[row for row in lost.rows if (
      row.arm, row.length, row.seed, row.metric) != ('qa1', 64, 2, 'score_official')])
  record = dialect_tables.by_length(lost).records[0]
  assert record['difference_strict'] == pytest.approx(-200 / 3)
  assert [cell(table.records[2]) for cell in table.columns.values()] == [
      '128', 'qa1', '100.0', '0', '0', '−100.0', '−100.0']
  for one in (table, longbench_tables.dialects(longbench_run())):
    assert one.note == (
        'Mean score in % of the same predictions in three dialects, and differences in '
        'points [95 %: bootstrap over samples]. Weights w.')
    assert 'experiments.long_context.ranking' in one.more


def test_files_of_ruler_have_a_weaker_strict():
  made = run_of('ruler', {('niah_single', 64, None): [(1, 1, 1, 0)] * 2})
  words = 'Files of RULER do not list wrong answers, so here strict does not check that'
  assert words in dialect_tables.by_length(made._replace(window=0)).more
  assert words not in dialect_tables.by_length(made).more
  assert words not in dialect_tables.by_length(
      run_of('babilong', QA)._replace(window=0)).more


def test_figures_show_scores_with_chance():
  made = run_of('babilong', QA)
  figure = figures.by_length(made)
  panels = {axes.get_title(): axes for axes in figure.axes}
  assert [*panels] == ['qa1', 'qa2']
  score, chance = panels['qa1'].lines[:2]
  assert score.get_xdata().tolist() == [64, 128, 256]
  np.testing.assert_allclose(score.get_ydata(), [75, 100, 50])
  np.testing.assert_allclose(chance.get_ydata(), 100 * (4 * 0.25 + 5 * 0.2) / 9)
  assert 'chance' in chance.get_label() and score.get_label() == 'score'
  records = {r['task']: r for r in tables.by_length(made).records}
  for task, axes in panels.items():
    drawn = axes.lines[0]
    np.testing.assert_allclose(
        drawn.get_ydata(), [records[task][f'score_{n}'] for n in (64, 128, 256)])
    [band] = bands(axes).values()
    assert band[0] == [64, 128, 256]
    np.testing.assert_allclose(band[1:], [
        [records[task][f'score_{n}_{end}'] for n in (64, 128, 256)]
        for end in ('low', 'high')])
  assert [axes.get_ylabel() for axes in figure.axes] == ['score, %', '']
  assert {axes.get_xlabel() for axes in figure.axes} == {'tokens of the prompt'}
  assert figure.get_label() == (
      'Mean score in % by number of tokens of the prompt, a panel for each task; '
      'bands: 95 % intervals by bootstrap over samples; dotted: chance, the score of a '
      'guess without the context. The window of the model is 512 tokens. Weights w.')
  of_context = figures.by_length(made._replace(length_of='context'))
  assert {axes.get_xlabel() for axes in of_context.axes} == {'tokens of the context'}
  assert title_of(of_context) == 'Score by length of the context'
  assert of_context.get_label().startswith(
      'Mean score in % by number of tokens of the context, a panel')
  of_depth = figures.by_depth(made._replace(length_of='context'))
  assert of_depth.axes[0].get_xlabel() == 'tokens of the context'
  strict = figures.by_length(made._replace(dialect='strict'))
  np.testing.assert_allclose(strict.axes[0].lines[0].get_ydata(), [25, 100 / 3, 0])
  with_bands = 'bands: 95 % intervals by bootstrap over samples'
  assert setup_of(strict) == (
      f'2 to 4 samples of each task and length, dialect strict; {with_bands}')
  assert setup_of(figure) == (
      f'2 to 4 samples of each task and length, dialect official; {with_bands}')
  assert setup_of(of_depth) == (
      '2 to 4 samples of each cell, dialect official')
  assert len(panels['qa1'].lines) == 2  # a window of 512 tokens lies beyond
  *_, window = figures.by_length(made._replace(window=128)).axes[0].lines
  assert window.get_xdata() == [128, 128] and window.get_label() == 'window, 128'
  assert [*figures.make(made)] == ['scores', 'depth']
  assert [*figures.make(run_of('ruler', {
      ('niah_single', 64, None): [(1, 1, 1, 0)] * 2}))] == ['scores']
