"""Every cell of the tables of the study of correlations, from made-up rows."""

import functools

import numpy as np
import pytest
from scipy import stats

from experiments.correlation import dialects, groups, paper, points, related, tables
from experiments.correlation.points import At, OfTask
from tests import correlation_cases as cases
from tests.conftest import shown
from tests.correlation_cases import (
  cells_of,
  CLAIMED,
  ends_of,
  EXCESS,
  gain_of,
  kinds_of,
  less_means,
  LOSS,
  made_rows,
  ORDER,
  PEARSON,
  score_of,
  signed,
  SPEARMAN,
  study_of,
)
from vvlen import statistics

# Fixtures of this file.
run, found, used = cases.run, cases.found, cases.used


def test_table_1_is_as_the_paper_prints_it():
  # Training loss, misalignment, log perplexity at 16k, LongBench-E; copied by hand.
  assert {name: [*row] for name, row in paper.ROWS.items()} == {
      'GPT-J-6B': [2.1, 3.4, 9.5, 7.8], 'GPT-NeoX-20B': [2.3, 3.2, 9.4, 9.7],
      'Llama2-7B': [1.9, 3.4, 9.4, 8.9], 'RandomPos': [2.0, 2.8, 8.2, 9.2],
      'YaRN-8k': [2.0, 2.6, 3.8, 21.2], 'Qwen-7B-8k': [1.7, 2.8, 3.2, 24.2],
      'CLEX-4K': [1.9, 2.4, 1.8, 32.7]}
  assert paper.PRINTED == {
      ('training loss', 'nll'): 0.62, ('training loss', 'score'): -0.55,
      ('misalignment', 'nll'): 0.85, ('misalignment', 'score'): -0.85}


def _partial(x, y, z):
  design = np.stack([np.ones_like(z), z], 1)
  left = [a - design @ np.linalg.lstsq(design, a, rcond=None)[0] for a in (x, y)]
  determined = len({*z}) < 2 or min(map(np.ptp, left)) < 1e-9
  return np.nan if determined else stats.pearsonr(*left).statistic


def _partial_of_ranks(*items):
  return _partial(*(stats.rankdata(np.round(x, 12)) for x in items))


def _estimate(statistic, *items):
  low, high = ends_of(statistic, *items)
  return f'{signed(statistic(*items))} [{signed(low)}, {signed(high)}]'


@pytest.mark.filterwarnings('ignore:An input array is')
def test_every_cell_of_the_main_table(run, found, used):
  table = tables.table_1(run, found)
  loss, excess = used.means['training_cross_entropy'], used.means['symmetric_kl']
  printed, expected = paper.columns(), []
  rows = [(words, 'ours, 16', loss, excess, used.means[outcome], '', '')
          for outcome, words in points.OUTCOMES.items()]
  rows += [('LongBench-E', 'the paper, 7', printed['training loss'],
            printed['misalignment'], printed['score'], '−0.55', '−0.85'),
           ('log perplexity at 16k', 'the paper, 7', printed['training loss'],
            printed['misalignment'], printed['nll'], '+0.62', '+0.85')]
  for words, source, z, x, y, *prints in rows:
    outcome = 'nll' if 'perplexity' in words else 'score'
    for place, name in enumerate(('training loss', 'misalignment')):
      own = x if place else z
      expected.append([
          words, name, source, *(_estimate(r, own, y) for r in (PEARSON, SPEARMAN)),
          *(_estimate(r, x, y, z) if place else ''
            for r in (_partial, _partial_of_ranks)),
          _estimate(functools.partial(gain_of, outcome=outcome), x, y, z)
          if place else '', prints[place]])
  assert cells_of(table) == expected
  assert list(table.columns) == [
      'outcome', 'predictor', 'models', 'Pearson [95 %]', 'Spearman [95 %]',
      'partial Pearson [95 %]', 'partial Spearman [95 %]',
      'r as claimed − that of training loss [95 %]', 'printed']
  assert table.short == ('outcome', 'predictor', 'models', 'Spearman [95 %]')
  assert table.note == (
      '95 % intervals: 300 resamples of the models. Ours: trained without the term, '
      'that learned each task that counts; misalignment: symmetric KL at L, the length '
      'of training. The paper: its rows recomputed.')
  assert table.more.startswith(
      'Primary: our row of misalignment and score up to 2 L, r as claimed − that of '
      "training loss, with r Spearman's; above 0, misalignment predicts better. All "
      'other intervals are secondary and not corrected for being many. ')
  for made in tables.make(run, found):
    assert not any('|' in text for text in [*made.columns, *made.title])


def test_a_gain_that_is_0_up_to_rounding_decides_nothing():
  made = lambda low, high: related.Related(
      *4 * [statistics.Estimate(0.5, 0.4, 0.6)], statistics.Estimate(0.1, low, high))
  assert made(1e-16, 0.3).better == made(-0.3, -1e-16).better == 0
  assert made(1e-3, 0.3).better == 1 and made(-0.3, -1e-3).better == -1
  assert made(-0.1, 0.3).better == made(np.nan, np.nan).better == 0


def test_as_many_right_answers_share_a_rank_despite_round_off(run):
  scores = np.array([1, 5, 1, 3, 5, 2, 4, 3]) / 10
  # The same numbers, as sums in another order give them.
  noisy = scores + np.array([0, 1, -1, 1, 0, 0, 1, -1]) * 2**-52
  x, z = np.random.default_rng(2).normal(size=(2, 8))
  kinds = np.array([0, 0, 0, 0, 1, 1, 1, 1.0])
  assert stats.spearmanr(x, scores)[0] != stats.spearmanr(x, noisy)[0]
  for of in (None, kinds):
    exact, found = (
        related.relate(run, x, y, z, (-1.0, -1.0), of) for y in (scores, noisy))
    assert found == exact
  value = related.relate(run, x, noisy, z, (-1.0, -1.0)).spearman.value
  assert value == pytest.approx(stats.spearmanr(x, scores)[0])


def test_the_papers_rows_give_these_numbers():
  """Of Table 1, computed by hand from its sums, and by residuals."""
  run = study_of(**{'primary.correlation': 'pearson'})
  columns = paper.columns()
  assert [len(x) for x in columns.values()] == [7] * 4
  numbers = {(x, y): tables.published(run, x, y).pearson.value for x, y in
             paper.PRINTED}
  assert numbers == pytest.approx({
      ('training loss', 'nll'): 0.616, ('training loss', 'score'): -0.557,
      ('misalignment', 'nll'): 0.889, ('misalignment', 'score'): -0.846}, abs=5e-4)
  z, x = columns['training loss'], columns['misalignment']
  for outcome in ('nll', 'score'):
    found = tables.published(run, 'misalignment', outcome)
    # As docs/long_short_alignment.md has them.
    ends = tables.published(
        run._replace(num_resamples=10_000), 'misalignment', outcome).gain
    assert [round(x, 2) for x in ends] == {
        'nll': [0.27, -0.15, 0.9], 'score': [0.29, -0.24, 0.87]}[outcome]
    assert found.partial.value == pytest.approx(_partial(x, columns[outcome], z))
    assert found.gain.value == pytest.approx(
        abs(numbers['misalignment', outcome]) - abs(numbers['training loss', outcome]))
    assert found.gain.ci_low < 0 < found.gain.ci_high
    assert np.isnan(tables.published(run, 'training loss', outcome).gain).all()


def test_every_cell_of_the_table_of_models(run, found):
  more = {**found.means, 'chance': found.means['chance'] + np.arange(20) / 100}
  table = tables.models(run, found._replace(means=more))
  assert [r['chance'] for r in table.records] == pytest.approx(
      0.1 + np.arange(20) / 100)
  assert [r['number'] for r in table.records] == [*range(1, 21)]
  place = [m.name for m in run.models].index('alibi_02')
  order = ORDER[place]

  def cell(value, form, spread):
    # Of two seeds, the interval is 12.7 standard errors wide on either side.
    half = stats.t.ppf(0.975, 1) * spread / 2
    ends = [f'{value + spread / 2 + x:{form}}'.replace('-', '−') for x in (-half, half)]
    return f'{value + spread / 2:{form}} [{ends[0]}, {ends[1]}]' if spread else (
        f'{value:{form}}')

  cells = shown(table, str(place + 1))
  near, far = 0.9 - 0.02 * order - 0.065, 0.9 - 0.02 * order - 0.56 / 3
  label = run.models[place].label
  assert label.startswith('ALiBi') and cells == {
      'no.': str(place + 1), 'model': label, 'L': str(run.models[place].length),
      'not learned': '', 'training loss': cell(LOSS[place], '.3f', 0.01),
      'symmetric KL': cell(EXCESS[place], '.4f', 0.001),
      'log perplexity at L': cell(2.25 + order**2 / 50, '.3f', 0.01),
      'beyond L': cell(2 + order**2 / 50 + 7 / 6, '.3f', 0.01),
      'score at L': cell(0.92, '.3f', 0.005),
      'up to 2 L': cell(near - 0.03, '.3f', 0.005),
      'from 2 L on': cell(far - 0.03, '.3f', 0.005)}
  # Numbers are places in the configuration, whichever models are there.
  few = tables.models(run, found.only(np.arange(20) > 4))
  assert [r['number'] for r in few.records] == [*range(6, 21)]


def test_every_cell_of_all_measures(run, used):
  table, alike = tables.measures(run, used), related.with_others(used)
  assert len(table.records) == 3 * 10
  for r in table.records:
    x, y, z = (used.means[name] for name in (
        r['predictor'], r['outcome'], 'training_cross_entropy'))
    assert r['pearson'] == pytest.approx(PEARSON(x, y))
    assert r['spearman'] == pytest.approx(SPEARMAN(x, y))
    if r['predictor'] != 'training_cross_entropy':
      sign = -1 if r['predictor'] == 'top1_agreement' else 1
      claimed = CLAIMED[r['outcome']]
      assert r['gain'] == pytest.approx(
          claimed * (sign * SPEARMAN(x, y) - SPEARMAN(z, y)))
      assert r['gain_low'] < r['gain'] < r['gain_high']
      assert r['partial_spearman'] == pytest.approx(_partial_of_ranks(x, y, z))
    x, y = (less_means(kinds_of(alike), alike.means[name]).round(12)
            for name in (r['predictor'], r['outcome']))
    assert r['within'] == pytest.approx(SPEARMAN(x, y))
    names = r['predictor'], r['outcome']
    whole = related.within(run, alike, *names).spearman
    assert (r['within'], r['within_low'], r['within_high']) == whole
    few = alike.only(np.arange(len(alike.models)) < 4)
    assert np.isnan(related.primary_within(run, few, *names).value)
  assert f'{len(alike.models)} models have others' in table.more
  first, *_, last = cells_of(table)
  assert (first[:2], last[:2]) == (
      ['score up to 2 L', 'training loss'],
      ['log perplexity beyond L', 'top-1 agreement'])
  assert last[2].startswith(signed(PEARSON(
      used.means['top1_agreement'], used.means['nll_beyond'])) + ' [')


def test_every_cell_by_length(run, used):
  table = tables.by_length(run, used)
  assert [(r['outcome'], r['length']) for r in table.records] == [
      *(('score', n) for n in run.lengths), *(('nll', n) for n in run.nll_lengths)]
  for r, cells in zip(table.records, cells_of(table), strict=True):
    y = used.means[At(r['outcome'], r['length'])]
    loss, excess = (used.means[x] for x in ('training_cross_entropy', 'symmetric_kl'))
    assert cells[:5] == [
        {'score': 'score', 'nll': 'log perplexity'}[r['outcome']],
        'L' if r['length'] == 1 else f'{r["length"]:g} L',
        *(f'{x:.3f}' for x in (y.mean(), y.min(), y.max()))]
    if np.ptp(y):
      assert (r['loss'], r['misalignment'], r['gain']) == pytest.approx(
          (SPEARMAN(loss, y), SPEARMAN(excess, y),
           gain_of(excess, y, loss, r['outcome'])))
      assert cells[6].startswith(f'{signed(SPEARMAN(excess, y))} [')
  assert table.note.startswith('16 models. r: Spearman; misalignment: symmetric KL.')
  other = tables.by_length(study_of(**{'primary.outcome': 'nll_beyond'}), used)
  assert other.records[0]['outcome'] == 'nll'


def test_correlations_within_groups_are_of_their_models_alone(run):
  low = points.points(run, made_rows(
      run, lambda i, n: 0.3 if n == 1 and i == 4 else score_of(i, n)))
  used, plain = points.compared(run, low), points.without_term(low)
  assert len(used.models) == 15 and len(plain.models) == 16
  table = groups.table(run, low)
  records = [r for r in table.records if r['group'] != groups.WITHIN]
  inside = {
      groups.ALL: lambda m: True,
      'ALiBi': lambda m: m.name.startswith('alibi'),
      'RoPE 1,000': lambda m: m.name.startswith('low'),
      'RoPE 1,000,000': lambda m: m.name.startswith('high'),
      'RoPE 10,000': lambda m: m.name.startswith('rope'),
      'trained on 112 tokens': lambda m: m.length == 112,
      'trained on 128 tokens': lambda m: m.length == 128}
  assert {(r['outcome'], r['group']) for r in records} == {
      (outcome, group) for outcome in points.OUTCOMES for group in inside}
  for r in records:
    of = plain if r['group'] == groups.ALL else used
    at = [i for i, m in enumerate(of.models) if inside[r['group']](m)]
    y, loss, excess = (of.means[x][at] for x in (
        r['outcome'], 'training_cross_entropy', 'symmetric_kl'))
    assert r['models'] == len(at)
    if len(at) < 5:  # of fewer than five models there is none
      assert np.isnan(r['gain']) and np.isnan(r['loss'])
    else:
      assert (r['loss'], r['misalignment'], r['gain']) == pytest.approx((
          SPEARMAN(loss, y), SPEARMAN(excess, y),
          gain_of(excess, y, loss, r['outcome'])))
  alibi = 4 - run.models[4].name.startswith('alibi')
  assert [r['models'] for r in records if r['group'] == 'ALiBi'] == 3 * [alibi]
  assert min(r['models'] for r in records if 'tokens' in r['group']) >= 5


def test_among_models_that_are_alike_means_are_taken_away(run, found, used):
  kinds = kinds_of(used)
  counts = {kind: kinds.count(kind) for kind in kinds}
  assert 1 in counts.values() and max(counts.values()) > 1
  rest = used.only([counts[kind] > 1 for kind in kinds])
  records = [r for r in groups.table(run, found).records if r['group'] == groups.WITHIN]
  assert [r['outcome'] for r in records] == [*points.OUTCOMES]
  for r in records:
    loss, excess, y = (less_means(kinds_of(rest), rest.means[field]) for field in (
        'training_cross_entropy', 'symmetric_kl', r['outcome']))
    assert r['models'] == len(rest.models) < 16
    assert (r['loss'], r['misalignment'], r['gain']) == pytest.approx((
        SPEARMAN(loss, y), SPEARMAN(excess, y), gain_of(excess, y, loss, r['outcome'])))
    assert r['gain_low'] < r['gain'] < r['gain_high']
  assert groups.table(run, found).note == (
      'The same positions and L: less the mean of models that have these. r: '
      'Spearman; misalignment: symmetric KL. The first row is the control of the '
      'verdict; all else is secondary and not corrected for being many.')


def test_means_of_kinds_are_taken_in_each_resample(run, used):
  fields = ('symmetric_kl', 'score_near')
  draws = np.random.default_rng(0).integers(16, size=(300, 16))
  names = np.array(kinds_of(used))
  values = [SPEARMAN(*(less_means(names[d], used.means[f][d]).round(12)
                       for f in fields)) for d in draws]
  among = related.within(run, used, *fields).spearman
  low, high = np.percentile(values, [2.5, 97.5])
  assert (among.ci_low, among.ci_high) == pytest.approx((low, high), abs=0.01)
  one = related._less_means(
      np.array([0.1, 0.1, 0.1, 3.0, 5.0]), np.array([0, 0, 0, 1, 1]))
  assert one.tolist() == [0, 0, 0, -1, 1]


def test_dialects_may_turn_the_order_of_models(run, used):
  table = dialects.table(run, used)
  every = [(task, n, dialect) for task in ('niah_single', 'qa1', 'passkey')
           for n in run.lengths for dialect in ('lm_eval', 'strict')]
  shown = [(r['task'], r['length'], r['dialect']) for r in table.records]
  # What is not shown has no pair that turns, as pass keys have none.
  assert shown == [x for x in every if x in shown]
  assert 20 < len(shown) <= 28 and 'passkey' not in {task for task, *_ in shown}
  for task, n, dialect in {*every} - {*shown}:
    official, other = (used.means[OfTask(task, n, x)]
                       for x in ('score', f'score_{dialect}'))
    assert not any((official[i] - official[j]) * (other[i] - other[j]) < -1e-12
                   for i in range(16) for j in range(i))
  for r, cells in zip(table.records, cells_of(table), strict=True):
    official, other = (used.means[OfTask(r['task'], r['length'], x)]
                       for x in ('score', f'score_{r["dialect"]}'))
    pairs = [(i, j) for i in range(16) for j in range(i)]
    turned = sum((official[i] - official[j]) * (other[i] - other[j]) < -1e-12
                 for i, j in pairs)
    assert r['turned'] == turned > 0
    assert cells == [
        r['task'], 'L' if r['length'] == 1 else f'{r["length"]:g} L', r['dialect'],
        f'{official.mean():.3f}', f'{other.mean():.3f}',
        signed(r['spearman']) if np.isfinite(r['spearman']) else 'undefined',
        str(turned)]
    if np.ptp(official) > 1e-9:
      assert r['spearman'] == pytest.approx(SPEARMAN(official, other))
  assert table.note == (
      f'Of 42 combinations of task, length and dialect, the {len(shown)} in which a '
      'pair of the 16 models turns. Pairs turned: of 120 pairs, those of which the one '
      'is better in the official dialect and worse in this one.')


def test_scores_are_told_for_each_task(run, found):
  # Models with the term are in no mean, and have learned or not.
  rows = made_rows(run, lambda i, n: 0.7 if n == 1 and i < 6 else score_of(i, n))
  found = points.points(run, rows)
  table = tables.tasks(run, found)
  plain = np.array([not m.weight for m in run.models])
  assert [r['task'] for r in table.records] == ['niah_single', 'qa1', 'passkey']
  for r, chance, shortcut in zip(
      table.records, (0, 0.2, 0.4), (0.05, 0.25, 0.4), strict=True):
    for n in run.lengths:
      own = found.means[OfTask(r['task'], n)][plain]
      assert (r[f'mean_{n:g}'], r[f'least_{n:g}'], r[f'most_{n:g}']) == pytest.approx(
          (own.mean(), own.min(), own.max()))
    assert (r['chance'], r['shortcut']) == pytest.approx((chance, shortcut))
  # 0.7 − 0.06 is above .625; without 0.02 it is not.
  assert [r['learned'] for r in table.records] == [16, 16, 0]
  rows = made_rows(run, lambda i, n: 0.68 if n == 1 and i < 6 else score_of(i, n))
  lower = tables.tasks(run, points.points(run, rows))
  assert [r['learned'] for r in lower.records] == [
      16, 16 - int(plain[:6].sum()), 0]
  cells = shown(table, 'qa1')
  assert list(cells) == ['task', 'chance', 'shortcut', 'learned', 'L', '1.25 L',
                         '1.5 L', '1.75 L', '2 L', '4 L', '8 L']
  own = found.means[OfTask('qa1', 1.5)][plain]
  assert cells['1.5 L'] == f'{own.mean():.3f} ({own.min():.3f} to {own.max():.3f})'
  assert table.note.startswith('Mean over the 16 models without the term, from the ')
