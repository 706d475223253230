"""Every cell of the tables of trained models, of made-up numbers.

No two numbers are alike, and what a cell must show is computed here from them, so that
a column with the number of another one fails.
"""

import itertools

import numpy as np
import pytest
from scipy import stats

from experiments.counting import tables as counting
from experiments.counting.cells import read_figures
from experiments.language_model import arms as language_model
from experiments.language_model import tables as language_model_tables
from experiments.length_generalization import endpoint_table
from experiments.length_generalization import tables as length_tables
from experiments.mechanism import tables as mechanism
from experiments.sensitivity import tables as sensitivity
from experiments.sensitivity.cells import CellSetting, read_cells
from experiments.sensitivity.tuned import Tuned
from tests.cells import cells, interval, mean_of, p_of, paired, text, wide
from vvlen.reporting import results
from vvlen.reporting.numbers import (
  alike,
  counted,
  from_to,
  give_or_take,
  known,
  memory,
  number,
  with_interval,
)
from vvlen.reporting.results import Row
from vvlen.reporting.tables import (
  cell_if,
  difference_cell,
  interval_cell,
  interval_fields,
  latex,
  markdown,
  number_cell,
  p_cell,
  pair_cell,
  Table,
  to_csv,
)
from vvlen.statistics import holm

# Length generalization.


@pytest.fixture(scope='module')
def accuracy():
  """Accuracies {(arm, N): [5 seeds]} in percent."""
  rng = np.random.default_rng(5)
  arms = {'none': 40, 'standardize': 44, 'layer_norm': 47, 'none+adaptive': 50,
          'layer_norm+adaptive': 55}
  return {(arm, n): level + n / 8 + rng.normal(0, 4, 5)
          for arm, level in arms.items() for n in (16, 32, 64)}


@pytest.fixture(scope='module')
def length_generalization(accuracy):
  rows = [Row('retrieval', arm, seed, n, 'accuracy', x / 100)
          for (arm, n), values in accuracy.items() for seed, x in enumerate(values)]
  training = {'none': (91, 93, 95, 97, 84), 'standardize': (96, 92, 99, 98, 94),
              'layer_norm': (90.5, 93.5, 96.5, 98.5, 99.5)}
  for level, (arm, values) in enumerate(training.items()):
    for seed, x in enumerate(values):
      broken = (arm, seed) == ('standardize', 2)
      rows.append(Row('retrieval', arm, seed, None, 'training_accuracy', x / 100))
      rows.append(Row('retrieval', arm, seed, None, 'training_loss',
                      np.nan if broken else 0.1 * level + 0.01 * seed))
  made = length_tables.make_tables(results.index(rows), 16, chance=1 / 8)
  return {table.name: table for table in made}


_TITLES = {
    'LN − Baseline': ('layer_norm', 'none'),
    'LN − Baseline, adaptive': ('layer_norm+adaptive', 'none+adaptive'),
    'std. − Baseline': ('standardize', 'none'),
    'LN − std.': ('layer_norm', 'standardize'),
}


@pytest.mark.parametrize('name, titles', [
    ('table_1', ('LN − Baseline', 'LN − Baseline, adaptive')),
    ('table_3', ('std. − Baseline', 'LN − Baseline', 'LN − std.')),
])
def test_every_cell_of_accuracy_by_length(
    accuracy, length_generalization, name, titles):
  expected = []
  for title in titles:
    treated, control = _TITLES[title]
    pairs = [(accuracy[treated, n], accuracy[control, n]) for n in (16, 32, 64)]
    tests = [paired(*pair) for pair in pairs]
    for n, (a, b), test, ends, p_holm in zip(
        (16, 32, 64), pairs, tests, wide(tests), holm([test.p for test in tests]),
        strict=True):
      expected.append({
          'comparison': title, 'N': str(n), 'control': f'{b.mean():.1f}',
          'treated': f'{a.mean():.1f}',
          'difference [95 %]': interval(*ends, '+.1f'),
          '% of control': text(100 * (a.mean() / b.mean() - 1), '+.1f'),
          'effect': text(test.effect, '+.2f'), 'p Holm': p_of(p_holm),
          'smallest detectable': f'{test.least():.1f}',
      })
  assert cells(length_generalization[name]) == expected


def test_every_cell_of_the_primary_endpoint(accuracy, length_generalization):
  table = length_generalization['primary_endpoint']
  expected = []
  for title, (treated, control) in _TITLES.items():
    beyond = [(accuracy[arm, 32] + accuracy[arm, 64]) / 2 for arm in (treated, control)]
    test = paired(*beyond)
    expected.append({
        'comparison': title, 'control': f'{beyond[1].mean():.2f}',
        'treated': f'{beyond[0].mean():.2f}',
        'difference [95 %]': interval(*test.interval, '+.2f'),
        'effect': text(test.effect, '+.2f'), 't': text(test.t, '+.2f'),
        'p': p_of(test.p), 'treated ahead': f'{test.ahead} of 5',
        'smallest detectable': f'{test.least():.2f}',
        'at 5 %': 'ahead' if test.p < 0.05 else 'no difference found',
    })
  assert cells(table) == expected
  assert {row['at 5 %'] for row in expected} == {'ahead',
                                                 'no difference found'}


def test_every_cell_of_the_table_in_the_form_of_the_paper(
    accuracy, length_generalization):
  expected = []
  for more, suffix in (('', ''), (', adaptive', '+adaptive')):
    pairs = {str(n): (accuracy[f'layer_norm{suffix}', n], accuracy[f'none{suffix}', n])
             for n in (16, 32, 64)}
    expected += [
        {'N': f'Baseline{more}'} | {
            n: f'{b.mean():.1f}' for n, (_, b) in pairs.items()},
        {'N': f'LN{more}'} | {n: f'{a.mean():.1f}' for n, (a, _) in pairs.items()},
        {'N': f'p{more}'} | {n: p_of(paired(*x).p) for n, x in pairs.items()}]
  assert cells(length_generalization['table_1_by_model']) == expected


def test_gains_in_the_form_of_the_paper(accuracy, length_generalization):
  expected = []
  for title, (treated, control) in _TITLES.items():
    if 'adaptive' not in title:
      pairs = {str(n): (accuracy[treated, n], accuracy[control, n])
               for n in (16, 32, 64)}
      expected += [
          {'N': title} | {
              n: text((a - b).mean(), '+.1f') for n, (a, b) in pairs.items()},
          {'N': 'p'} | {n: p_of(paired(*x).p) for n, x in pairs.items()}]
  found = cells(length_generalization['table_3_by_model'])
  assert {row['N'] for row in found} == {row['N'] for row in expected}
  first = lambda rows: {row['N']: (row, rows[i + 1]) for i, row in enumerate(rows)
                        if row['N'] != 'p'}
  assert first(found) == first(expected) and len(first(found)) == 3


def test_notes_name_chance_and_the_temperatures_that_are_used(length_generalization):
  note = {name: table.note for name, table in length_generalization.items()}
  more = {name: table.more for name, table in length_generalization.items()}
  for name in ('table_1_by_model', 'primary_endpoint'):
    assert ' Chance is 12.5 %.' in note[name]
    assert ' adaptive: with the published adaptive temperature' in more[name]
    assert 'fitted' not in note[name] + more[name]  # none was
  assert note['table_1_by_model'].endswith(
      ' Chance is 12.5 %. adaptive: softmax with another temperature at test time.')
  assert not any('Chance' in note[name] for name in ('table_3', 'training'))


def test_a_table_as_latex_has_the_same_cells():
  table = Table('t', 'A title', {'a_b': lambda r: r['x'], '%': lambda r: r['y']},
                [{'x': '−1 & α', 'y': 'p < .001'}, {'x': r'a\b', 'y': '3'}], '')
  assert latex(table) == (
      '% A title\n' + r'\begin{tabular}{lr}' + '\n' + r'\toprule' + '\n'
      + r'a\_b & \% \\' + '\n' + r'\midrule' + '\n'
      + r'$-$1 \& $\alpha$ & p $<$ .001 \\' + '\n'
      + r'a\textbackslash{}b & 3 \\' + '\n' + r'\bottomrule' + '\n'
      + r'\end{tabular}' + '\n')


def test_latex_writes_signs_and_greek_letters_as_commands():
  table = Table('t', 'Γ', {'β ≥ ½': lambda r: r['x']}, [{'x': 'ε = 1e−8, 1/√N…'}], '')
  title, _, _, header, _, row, *_ = latex(table).split('\n')
  assert title == r'% $\Gamma$'
  assert header == r'$\beta$ $\ge$ $\frac{1}{2}$ \\'
  assert row == r'$\epsilon$ = 1e$-$8, 1/$\surd$N\ldots{} \\'


def test_a_table_as_csv_is_ascii():
  record = {'LN − x, α': '1/√y → Γ²', 'value': -1.25e-9, 'none': np.nan,
            'Δ': 'Ł \n, é'}
  table = Table('t', '', {}, [record], '')
  assert to_csv(table) == (
      '"LN - x, alpha",value,none,Delta\n'
      '1/sqrt y -> Gamma^2,-1.25e-09,nan,"\\u0141 \n, \\xe9"\n')


def test_numbers_in_a_csv_have_12_significant_digits():
  record = {'a': 1 / 3, 'b': np.float64(-2e-7 / 3), 'c': 1.0, 'd': 1234567890123456,
            'e': -0.0, 'f': 0.1 + 0.2, 'g': np.inf, 'h': '0.12345678901234', 'i': None}
  assert to_csv(Table('t', '', {}, [record], '')) == (
      'a,b,c,d,e,f,g,h,i\n0.333333333333,-6.66666666667e-08,1,1234567890123456,0,0.3,'
      'inf,0.12345678901234,\n')


def test_markdown_has_more_about_a_table_folded_below_its_note():
  table = Table('t', 'A title', {'a': lambda r: r['a']}, [{'a': '1'}], 'A note.')
  plain = '**A title**\n\n| a |\n|---|\n| 1 |\n\nA note.\n'
  assert markdown(table) == plain
  assert markdown(table._replace(more='Much *more*.')) == plain + (
      '\n<details><summary>More about this table</summary>\n\nMuch *more*.\n\n'
      '</details>\n')


def test_every_cell_of_training(length_generalization):
  # The best arm is at 96.5 %; at 91.5 % a seed has converged.
  assert cells(length_generalization['training']) == [
      {'arm': 'Baseline', 'seeds': '5', 'loss': '0.0200', 'accuracy': '92.00',
       'lowest accuracy': '84.00', 'not converged': 'seeds 0, 4', 'not finite': 'none'},
      {'arm': 'std.', 'seeds': '5', 'loss': '0.1200', 'accuracy': '95.80',
       'lowest accuracy': '92.00', 'not converged': 'none', 'not finite': 'seed 2'},
      {'arm': 'LN', 'seeds': '5', 'loss': '0.2200', 'accuracy': '95.70',
       'lowest accuracy': '90.50', 'not converged': 'seed 0', 'not finite': 'none'},
  ]


@pytest.mark.parametrize('task, names', [
    ('retrieval', ['table_1', 'table_3']), ('lookup', ['table_2', 'table_6']),
    ('retrieval_growing', ['table_4']), ('lookup_growing', ['table_5']),
])
def test_tables_of_accuracy_and_of_gain_have_the_numbers_of_the_paper(
    accuracy, task, names):
  index = results.index(
      Row(task, arm, seed, n, 'accuracy', x / 100)
      for (arm, n), values in accuracy.items() for seed, x in enumerate(values))
  made = length_tables.make_tables(index, 16, task)
  first, *_ = names
  assert [t.name for t in made] == [
      *(x for name in names for x in (f'{name}_by_model', name)), 'primary_endpoint',
      'training']
  assert made[0].title == (
      f'Table {first.removeprefix("table_")} in the form of the paper. Accuracy in %')
  for table, what in zip(made[1:4:2], ('Accuracy by length', 'Gain of'), strict=False):
    number = table.name.removeprefix('table_')
    assert table.name not in names or table.title.startswith(f'Table {number}. {what}')


@pytest.mark.parametrize('baseline, ln, learned', [
    (0.88, 0.93, 'LN − std.'), (0.93, 0.88, 'std. − Baseline'), (0.93, 0.91, 'all')])
def test_no_verdict_unless_both_arms_have_learned(accuracy, baseline, ln, learned):
  rows = [Row('retrieval', arm, seed, n, 'accuracy', x / 100)
          for (arm, n), values in accuracy.items() for seed, x in enumerate(values)]
  # The lengths tested reach beyond 32 alone.
  for arm, x in (('none', baseline), ('standardize', 0.97), ('layer_norm', ln)):
    rows += [Row('retrieval', arm, seed, None, metric, x) for seed in range(5)
             for metric in ('training_accuracy', 'training_loss')]
  tables = {t.name: t for t in length_tables.make_tables(results.index(rows), 32)}
  table = tables['primary_endpoint']
  judged = {r['comparison'] for r in table.records
            if r['at_5_percent'] != 'not learned'}
  assert judged == {'all': {r['comparison'] for r in table.records}}.get(
      learned, {learned})
  # Of a test that is none, neither interval nor p is shown.
  for record, row in zip(table.records, cells(table), strict=True):
    own = record['comparison'] in judged
    tested = ('p', 'smallest detectable', 'effect', 't')
    assert [row[name] != '' for name in tested] == 4 * [own]
    assert ('[' in row['difference [95 %]']) == own
    assert row['difference [95 %]'][0] in '+−'
  note = table.note
  assert ('is below 90 %, so nothing there is about length' in note) == (
      learned != 'all')
  assert note.startswith('Mean accuracy over N = 64 to 64, ')
  assert 'trained on at most 32 items' in tables['table_1'].note


@pytest.mark.parametrize('p, sign, verdict', [
    (0.048, 1, 'ahead'), (0.048, -1, 'behind'),
    (0.052, 1, 'no difference found'), (0.012, 1, 'ahead'),
    (0.09, -1, 'no difference found'),
])
def test_the_verdict_changes_at_five_percent(p, sign, verdict):
  # Six differences with a mean that makes p what is asked for.
  noise = np.array([-2, -1, 0, 0, 1, 2]) / 100
  shift = stats.t.isf(p / 2, 5) * noise.std(ddof=1) / 6**0.5
  rows = [Row('retrieval', arm, seed, n, 'accuracy', 0.5 + x * (arm == 'layer_norm'))
          for arm in ('none', 'layer_norm') for n in (16, 32)
          for seed, x in enumerate(noise + sign * shift)]
  [record] = endpoint_table.primary_endpoint([
      length_tables.compare(results.index(rows), 'layer_norm', 'none', trained_up_to=16)
  ], 16, {}, None).records
  assert record['p'] == pytest.approx(p)
  assert record['at_5_percent'] == verdict


# Counting.


def _short(value):
  return text(value, '#.2g' if value >= 1e-3 else '.1e').removesuffix('.')


def test_every_cell_of_counting():
  figure = read_figures(dict(f=dict(
      task='length', counts='fair', positions=('rope', 'none', 'alibi'),
      train_lengths=(10,), reparameterizations=('identity',))))['f']
  rng = np.random.default_rng(8)
  levels = {'rope': -2.2, 'none': -2.5, 'alibi': -1.9}
  # log10 of errors, which differ between lengths beyond training too.
  logs = {(arm, metric, n): level + (n - 10) + more + rng.normal(0, 0.3, 5)
          for arm, level in levels.items() for n in (9, 10, 11, 12)
          for metric, more in (('squared_error', 0), ('median_squared_error', -0.7))}
  shares = {'rope': (0.99, 0.96, 0.94, 0.97), 'none': (0.97, 0.951, 0.96, 0.5),
            'alibi': (0.94, 0.99, 0.99, 0.99)}
  rows = [Row('length_10', arm, seed, n, metric, 10**x)
          for (arm, metric, n), values in logs.items() for seed, x in enumerate(values)]
  rows += [Row('length_10', arm, seed, n, 'accuracy', share + d)
           for arm, values in shares.items()
           for n, share in zip((9, 10, 11, 12), values, strict=True)
           for seed, d in enumerate((-0.004, -0.002, 0, 0.002, 0.004))]
  # The endpoint is the mean of logarithms, which is not the logarithm of the mean.
  endpoint = {arm: (logs[arm, 'squared_error', 11] + logs[arm, 'squared_error', 12]) / 2
              for arm in levels}
  others = ('rope', 'alibi')
  tests = {arm: paired(endpoint[arm], endpoint['none']) for arm in others}
  p_holm = dict(zip(others, holm([tests[arm].p for arm in others]), strict=True))
  intervals = dict(zip(others, wide([tests[arm] for arm in others]), strict=True))
  names = {'rope': 'RoPE', 'none': 'no positions', 'alibi': 'ALiBi'}
  expected = []
  ends = {(arm, n): [10**x for x in mean_of(logs[arm, 'squared_error', n])]
          for arm in names for n in (10, 12)}
  # One notation a column, which differs between the two.
  powers = {n: any('e' in _short(x) for arm in names for x in ends[arm, n])
            for n in (10, 12)}
  assert powers == {10: True, 12: False}
  for arm, name in names.items():
    row = {'model': name}
    for n in (10, 12):
      mean, low, high = (text(x, '.1e') if powers[n] else _short(x)
                         for x in ends[arm, n])
      row[f'l = {n}'] = f'{mean} [{low}, {high}]'
    row['median, l = 12'] = _short(10**np.mean(logs[arm, 'median_squared_error', 12]))
    row['right up to'] = {'rope': '10', 'none': '11', 'alibi': '0'}[arm]
    row |= dict.fromkeys(
        ('factor beyond training [95 %]', 'p Holm', 'smallest detectable'), '')
    if arm in tests:
      mean, low, high = (_factor(10**x) for x in intervals[arm])
      row |= {'factor beyond training [95 %]': f'{mean} [{low}, {high}]',
              'p Holm': p_of(p_holm[arm]),
              'smallest detectable': f'×/÷ {_factor(10 ** tests[arm].least(2))}'}
    expected.append(row)
  index = {'length_10': results.index(rows)}
  assert cells(counting.table('f', figure, index, 12)) == expected
  shown = [p_of(p) for p in (*p_holm.values(), *(t.p for t in tests.values()))]
  assert len({*shown}) > 2, shown


def _factor(value):
  return f'{value:.0f}' if value >= 99.5 else f'{value:.2g}'


# Language models.


@pytest.fixture(scope='module')
def aligned():
  """A family of four arms, its run, values {(metric, arm, n): [4]}, and their index."""
  rng = np.random.default_rng(4)
  weights = {'a': 0.0, 'b': 0.1, 'c': 0.3, 'd': 0.5}
  arms = {name: language_model.Arm(name, x, (0, 0.5), 1.0)
          for name, x in weights.items()}
  run = language_model.Run(arms, 'a', 8, (1, 4, 8), 4)
  levels = {'nll': 1.0, 'symmetric_kl': 0.2, 'sce': 2.5}
  values = {
      (metric, arm, n): level + 0.6 * weights[arm] + n / 100 + rng.normal(0, 0.05, 4)
      for metric, level in levels.items() for arm in arms for n in (8, 32, 64)
      if metric == 'nll' or n < 64}
  values |= {('training_cross_entropy', arm, None): 0.7 + rng.normal(0, 0.1, 4)
             for arm in arms}
  index = results.index(
      Row('language_model', arm, seed, n, metric, x)
      for (metric, arm, n), of_seeds in values.items()
      for seed, x in enumerate(of_seeds))
  [family] = language_model.families(run, set(arms))
  return family, run, values, index


def test_every_cell_of_language_models(aligned):
  family, run, values, index = aligned
  tests = {arm: paired(values['nll', arm, 32], values['nll', 'a', 32])
           for arm in 'bcd'}
  secondary = [tests['c'], tests['d']]
  p_holm = dict(zip('cd', map(p_of, holm([test.p for test in secondary])), strict=True))
  intervals = dict(zip('bcd', [tests['b'].interval, *wide(secondary)], strict=True))
  expected = []
  for arm, name in (('a', 'α = 0'), ('b', 'α = 0.1'), ('c', 'α = 0.3'),
                    ('d', 'α = 0.5')):
    row = {'arm': name}
    for multiple, n in (('L', 8), ('4 L', 32), ('8 L', 64)):
      row[f'perplexity at {multiple}'] = interval(
          *map(np.exp, mean_of(values['nll', arm, n])), '.2f')
    row['log perplexity in training'] = interval(
        *mean_of(values['training_cross_entropy', arm, None]), '.3f')
    own = ('Δ log perplexity at 4 L [95 %]', 'p', 'smallest detectable')
    row |= dict.fromkeys(own, '')
    if arm in tests:
      row |= dict(zip(own, (
          interval(*intervals[arm], '+.4f'),
          p_holm.get(arm, f'{p_of(tests[arm].p)}, primary'),
          text(tests[arm].least(1 if arm == 'b' else 2), '.4f')), strict=True))
    expected.append(row)
  found = language_model_tables.by_arm(family, run, index)
  assert cells(found) == expected
  assert found.note.startswith('4 seeds [95 %]. ')
  # Where an arm lacks a seed, both numbers are told.
  fewer = dict(index)
  fewer['b', 'nll', 8] = {s: x for s, x in index['b', 'nll', 8].items() if s < 3}
  note = language_model_tables.by_arm(family, run, fewer).note
  assert note.startswith('3 or 4 seeds [95 %]. ')


def test_every_cell_of_language_models_by_length(aligned):
  family, run, values, index = aligned
  names = {'nll': 'log perplexity', 'symmetric_kl': 'symmetric KL', 'sce': 'SCE'}
  tests, p_holm, intervals = {}, {}, {}
  for metric in names:
    own = [(metric, arm, n) for n in (8, 32, 64) for arm in 'bcd'
           if (metric, arm, n) in values and (metric, n) != ('nll', 32)]
    tests |= {key: paired(values[key], values[metric, 'a', key[2]]) for key in own}
    p_holm |= zip(own, holm([tests[key].p for key in own]), strict=True)
    intervals |= zip(own, wide([tests[key] for key in own]), strict=True)
  expected = []
  for n, length in ((8, 'L'), (32, '4 L'), (64, '8 L')):
    for arm, weight in (('a', 0), ('b', 0.1), ('c', 0.3), ('d', 0.5)):
      row = {'length': length, 'arm': f'α = {weight}'}
      for metric, name in names.items():
        key = metric, arm, n
        if metric != 'nll':
          row[f'{name} [95 %]'] = (
              interval(*mean_of(values[key]), '.4f') if key in values else '')
        row[f'Δ {name} [95 %]'] = (
            interval(*intervals[key], '+.4f') if key in tests else '')
        row[f'p: {name}'] = p_of(p_holm[key]) if key in tests else ''
      expected.append(row)
  assert cells(language_model_tables.by_length(family, run, index)) == expected


# Mechanism.


@pytest.fixture(scope='module')
def intervened():
  """Values {(arm, metric, N): [6]} of two arms, accuracies in percent, and an index."""
  rng = np.random.default_rng(7)
  levels = {'': 50, '+recentred': 51.5, '+standardized': 53, '+one_hot': 55}
  values = {}
  for arm, more in (('none', 0), ('layer_norm', 4)):
    for suffix, level in levels.items():
      for n, lost in ((16, 30), (32, 6), (64, -5)):
        values[arm + suffix, 'accuracy', n] = (
            level + more * (1 + len(suffix) / 12) + lost + rng.normal(0, 3, 6))
        values[arm + suffix, 'total_variance', n] = rng.uniform(0.5, 8, 6)
  index = results.index(
      Row('retrieval', arm, seed, n, metric, x / (100 if metric == 'accuracy' else 1))
      for (arm, metric, n), of_seeds in values.items()
      for seed, x in enumerate(of_seeds))
  return values, index


_DONE = {'recentred': 'mean as in training',
         'standardized': 'mean and variance as in training',
         'one_hot': 'all weight on the target'}
_NAMES = {'none': 'Baseline', 'layer_norm': 'LN'}


def _beyond(values, arm):
  return (values[arm, 'accuracy', 32] + values[arm, 'accuracy', 64]) / 2


def test_every_cell_of_the_mechanism(intervened):
  values, index = intervened
  expected = []
  for arm, name in _NAMES.items():
    tests = {x: paired(_beyond(values, f'{arm}+{x}'), _beyond(values, arm))
             for x in _DONE}
    p_holm = holm([test.p for test in tests.values()])
    for (x, test), ends, p in zip(
        tests.items(), wide([*tests.values()]), p_holm, strict=True):
      before = _beyond(values, arm).mean()
      lost = values[arm, 'accuracy', 16].mean() - before
      # The geometric mean over seeds and lengths, of each seed relative to its own.
      variances = [
          np.exp(np.mean([np.log(values[one, 'total_variance', n]
                                 / values[arm, 'total_variance', 16])
                          for n in (32, 64)])) for one in (arm, f'{arm}+{x}')]
      expected.append({
          'arm': name, 'attention output': _DONE[x], 'unchanged': f'{before:.1f}',
          'changed': f'{_beyond(values, f"{arm}+{x}").mean():.1f}',
          'difference [95 %]': interval(*ends, '+.2f'),
          'restored %': text(100 * test.mean / lost, '.1f'),
          'variance': '{:.2f} → {:.2f}'.format(*variances), 'p Holm': p_of(p),
          'pairs': '6', 'smallest detectable': f'{test.least(3):.2f}',
      })
    assert [*map(p_of, p_holm)] != [p_of(test.p) for test in tests.values()]
  assert cells(mechanism.table(index, 16)) == expected


def test_every_cell_of_what_is_left_of_the_gain(intervened):
  values, index = intervened
  gain = lambda suffix: _beyond(values, 'layer_norm' + suffix) - _beyond(
      values, 'none' + suffix)
  changes = {x: paired(gain(f'+{x}'), gain('')) for x in _DONE}
  p_holm = dict(zip(_DONE, holm([c.p for c in changes.values()]), strict=True))
  intervals = dict(zip(_DONE, wide([*changes.values()]), strict=True))
  expected = []
  for x, done in {'': 'unchanged', **_DONE}.items():
    suffix = f'+{x}' if x else ''
    test = paired(_beyond(values, 'layer_norm' + suffix),
                   _beyond(values, 'none' + suffix))
    row = {
        'arm': 'LN', 'attention output of both': done,
        'Baseline': f'{_beyond(values, "none" + suffix).mean():.1f}',
        'treated': f'{_beyond(values, "layer_norm" + suffix).mean():.1f}',
        'difference [95 %]': interval(*test.interval, '+.2f'), 'p': p_of(test.p),
        'its change [95 %]': '', 'p Holm': '', 'at equal accuracy [95 %]': '',
        'its p': '', 'pairs': '6',
    }
    if x:
      fit = stats.linregress(gain(''), gain(suffix))
      reach = stats.t.ppf(0.975, 4) * fit.intercept_stderr
      p = 2 * stats.t.sf(abs(fit.intercept / fit.intercept_stderr), 4)
      row |= {
          'its change [95 %]': interval(*intervals[x], '+.2f'),
          'p Holm': p_of(p_holm[x]),
          'at equal accuracy [95 %]': interval(
              fit.intercept, fit.intercept - reach, fit.intercept + reach, '+.2f'),
          'its p': p_of(p),
      }
    expected.append(row)
  assert cells(mechanism.gain_table(index, 16)) == expected


def test_every_cell_of_the_mechanism_by_length(intervened):
  values, index = intervened
  expected = []
  for (arm, name), (x, done) in itertools.product(_NAMES.items(), _DONE.items()):
    pairs = [(values[f'{arm}+{x}', 'accuracy', n], values[arm, 'accuracy', n])
             for n in (16, 32, 64)]
    tests = [paired(*pair) for pair in pairs]
    expected += [
        {'arm': name, 'attention output': done, 'N': str(n),
         'unchanged': f'{before.mean():.1f}', 'changed': f'{after.mean():.1f}',
         'difference [95 %]': interval(*ends, '+.1f'), 'p Holm': p_of(p),
         'pairs': '6'}
        for n, (after, before), ends, p in zip(
            (16, 32, 64), pairs, wide(tests), holm([t.p for t in tests]), strict=True)]
  assert cells(mechanism.length_table(index, 16)) == expected


# The grid of choices.


@pytest.fixture(scope='module')
def grid():
  """Values {(cell, step, arm, metric, N): [5]} of three cells, and their index."""
  rng = np.random.default_rng(2)
  values = {}
  for (cell, gain), (arm, treated), step in itertools.product(
      {'base': 2, 'l2': 5, 'wide': -3}.items(), (('none', 0), ('layer_norm', 1)),
      (10, 1000)):
    where = cell, step, arm
    for n in (16, 32, 64):
      values[*where, 'accuracy', n] = (
          60 - n / 4 + step / 200 + gain * treated + rng.normal(0, 1.5, 5))
      for metric in ('target_weight', 'output_norm', 'input_distance'):
        values[*where, metric, n] = rng.uniform(0.1, 3, 5)
    values[*where, 'training_accuracy', None] = rng.uniform(91, 99, 5)
    values[*where, 'training_loss', None] = rng.uniform(1, 9, 5)
  share = lambda metric: 100 if 'accuracy' in metric else 1
  index = results.index_cells(
      Row(cell, arm, seed, n, metric, x / share(metric), step=step)
      for (cell, step, arm, metric, n), of_seeds in values.items()
      for seed, x in enumerate(of_seeds))
  return values, index


def test_every_cell_of_the_grid(grid):
  values, index = grid
  words = {'base': 'plain setting', 'l2': 'L2 0.001', 'wide': 'width 256'}
  settings = {name: CellSetting('retrieval', against='base', words=said)
              for name, said in words.items()}
  beyond = lambda cell, step, arm, metric='accuracy': (
      values[cell, step, arm, metric, 32] + values[cell, step, arm, metric, 64]) / 2
  places = [(cell, step) for cell in ('base', 'l2', 'wide') for step in (10, 1000)]
  tests = {x: paired(beyond(*x, 'layer_norm'), beyond(*x, 'none')) for x in places}
  changes = {x: paired(tests[x].difference, tests['base', x[1]].difference)
             for x in places if x[0] != 'base'}
  # Corrected together: all cells at their last step.
  shown = {}
  for found in (tests, changes):
    family = [x for x in found if x[1] == 1000]
    own = [found[x] for x in family]
    p_holm = holm([test.p for test in own])
    for x, ends, p in zip(family, wide(own), p_holm, strict=True):
      shown[id(found), x] = (
          interval(*ends, '+.2f'), f'{p_of(p)} *', f'{found[x].least(len(family)):.1f}')
    for x in found:
      shown.setdefault((id(found), x), (
          interval(*found[x].interval, '+.2f'), p_of(found[x].p),
          f'{found[x].least():.1f}'))
  gains, changed, measured = [], [], []
  for x in places:
    row = {'setting': words[x[0]], 'cell': x[0], 'steps': f'{x[1]:,}', 'arm': 'LN'}
    both = lambda function: ', '.join(alike([*map(function, _NAMES)], 3))
    measured.append(row | {'in training': both(
        lambda arm, x=x: np.median(values[*x, arm, 'training_accuracy', None]))} | {
            header: both(lambda arm, x=x, metric=metric: beyond(*x, arm, metric).mean())
            for header, metric in (
                ('weight of target', 'target_weight'), ('output norm', 'output_norm'),
                ('distance', 'input_distance'))})
    names = 'difference [95 %]', 'p', 'smallest detectable'
    gains.append(row | dict(zip(names, shown[id(tests), x], strict=True)) | {
        'Baseline': f'{beyond(*x, "none").mean():.1f}',
        'treated': f'{beyond(*x, "layer_norm").mean():.1f}', 'pairs': '5'})
    if x in changes:
      names = 'its change [95 %]', 'its p', 'smallest detectable'
      changed.append(row | dict(zip(names, shown[id(changes), x], strict=True)) | {
          'compared with': 'plain setting'})
  read = read_cells(index, settings)
  table = sensitivity.table(read, settings)
  # What is tested comes first, the largest difference at the top.
  gain = lambda row: tests[row['cell'], 1000].difference.mean()
  last = [row for row in gains if row['steps'] == '1,000']
  expected = [*sorted(last, key=gain, reverse=True),
              *(row for row in gains if row['steps'] != '1,000')]
  assert cells(table) == expected
  assert cells(sensitivity.change_table(read, settings)) == changed
  assert cells(sensitivity.measured_table(read, settings)) == measured
  assert 'after 1,000 steps' in table.note


def test_every_cell_of_tuned_rates():
  tuned = Tuned(
      ('base', 'low', 'high'), 2000, {'none': 'low', 'layer_norm': 'high'},
      {'none': 0.62, 'layer_norm': 0.87}, (71.23, 68.41), 2.82, -1.05, 6.17, 9)
  settings = {'base': CellSetting('retrieval', words='plain setting'),
              'low': CellSetting('retrieval', words='rate 0.0003'),
              'high': CellSetting('retrieval', words='rate 0.003')}
  table = sensitivity.tuned_table({'base': tuned}, settings)
  assert 'In row plain setting: plain setting; rate 0.0003; rate 0.003.' in table.more
  assert cells(table) == [{
      'rates of': 'plain setting', 'steps': '2,000',
      'of the Baseline': 'rate 0.0003 (62 %)', 'of LN': 'rate 0.003 (87 %)',
      'Baseline': '68.4', 'LN': '71.2',
      'difference [95 %]': '+2.82 [−1.05, +6.17]', 'seeds': '9'}]


# Cells.


@pytest.mark.parametrize('value, form, shown', [
    (-0.04, '.1f', '0.0'), (-0.04, '+.1f', '0.0'), (-1234.56, '+,.1f', '−1,234.6'),
    (-1e-9, ',.3f', '0.000'), (1000.0, ',.3f', '1,000.000'), (2e-5, '.0e', '2e−05'),
    (np.nan, '.1f', 'undefined'),
])
def test_numbers_have_a_minus_sign_unless_they_are_shown_as_0(value, form, shown):
  assert number(value, form) == shown


def test_cells_of_numbers_and_of_two():
  record = {'a': -0.5, 'b': 0.25, 'p': 0.0004, 'none': np.nan}
  assert number_cell('a', '.2f')(record) == '−0.50'
  assert p_cell('p')(record) == '< .001'
  assert number_cell('none', '.2f')(record) == p_cell('none')(record) == ''
  assert pair_cell('a', 'b', '.2f')(record) == '−0.50 → 0.25'
  assert pair_cell('b', 'a', '+.1f', 'to')(record) == '+0.2 to −0.5'


@pytest.mark.parametrize('value, error, shown', [
    (1.13432, 0.0120, '1.134 ± 0.012'), (-547.6406, 1.1101, '−547.6 ± 1.1'),
    (268.8312, 0.0753, '268.83 ± 0.08'), (0.5, 0.96, '0.5 ± 1.0'),
    (12345.6, 123.4, '12,346 ± 123'), (0.5, 0.0000019, '0.500000 ± 0.000002'),
    (-2.8e-7, 5.8e-6, '0.000000 ± 0.000006'), (2.1897812, 9e-7, '2.189781'),
    (1e-8, 7e-8, '< 1e−6'), (-1e-17, np.nan, '< 1e−6'), (0.0, np.nan, '0'),
    (0.25, np.nan, '0.250000'), (0.0, 0.0, '0'), (1.0, 0.0, '1'),
    (0.5, 0.0, '0.500000'), (np.nan, np.nan, 'undefined'), (np.inf, 0.0, 'inf'),
])
def test_a_number_has_the_digits_that_its_uncertainty_allows(value, error, shown):
  assert give_or_take(value, error) == shown


@pytest.mark.parametrize('ends, form, shown', [
    ((0.25, -0.125, 0.5), '+.2f', '+0.25 [−0.12, +0.50]'),
    ((0.0061, -0.0063, 0.0186), '+.1f', '+0.01 [−0.01, +0.02]'),
    ((2e-5, 4e-6, 4.7e-5), '.4f', '0.00002 [0.00000, 0.00005]'),
    ((1e-9, -2e-9, 4e-9), '.2f', '< 1e−6'), ((0.0, 0.0, 0.0), '.2f', '0'),
    ((0.0, np.nan, np.nan), '+.2f', '0'), ((0.5, np.nan, np.nan), '+.2f', '+0.50'),
    ((0.0, -np.inf, np.inf), '.1f', '0.0 [−inf, inf]'),
])
def test_an_interval_that_is_not_0_is_not_shown_as_0(ends, form, shown):
  assert with_interval(*ends, form) == shown
  named = interval_fields('x', ends)
  assert list(named) == ['x', 'x_low', 'x_high']
  assert interval_cell('x', form)(named) == shown


def test_cells_of_models_that_have_not_learned_have_no_interval():
  record = {'a_difference': 0.5, 'a_ci_low': 0.25, 'a_ci_high': 1.0, 'learned': True}
  lost = record | {'learned': False}
  learned = lambda r: r['learned']
  cell = difference_cell('.2f', 'a_', interval_if=learned)
  assert [cell(record), cell(lost)] == ['+0.50 [+0.25, +1.00]', '+0.50']
  low = lambda r: str(r['a_ci_low'])
  for otherwise, shown in (('', ''), ('no', 'no'), (low, '0.25')):
    cell = cell_if(learned, lambda r: 'yes', otherwise)
    assert [cell(record), cell(lost)] == ['yes', shown]


@pytest.mark.parametrize('values, shown', [
    ((0.303, 0.3), ['0.303', '0.300']), ((98.9, 99), ['98.9', '99.0']),
    ((346, 1017.2), ['346', '1,017']), ((0.09996, 0.012), ['0.1000', '0.0120']),
    ((10.2, 0.657), ['10.20', '0.66']), ((0.0, -2.5), ['0.00', '−2.50']),
    ((0.0, 0.0), ['0', '0']), ((np.inf, 2.5), ['inf', '2.50']),
    ((1e-9, 2.5), ['0.000000', '2.500000']),
])
def test_numbers_side_by_side_have_the_same_decimals(values, shown):
  assert alike(values, 3) == shown
  pair = pair_cell('a', 'b', '.3g')(dict(zip('ab', values, strict=True)))
  assert pair == ' → '.join(shown)


def test_a_number_that_is_known_has_no_digits_where_it_is_rounding():
  assert [known(x, ',.4f') for x in (0.0, -3e-17, 3e-5, -1234.5, np.nan)] == [
      '0', '< 1e−6', '0.00003', '−1,234.5000', 'undefined']


@pytest.mark.parametrize('count, words', [
    (1, '1 layer'), (0, '0 layers'), (2000, '2,000 layers')])
def test_a_number_of_things_in_words(count, words):
  assert counted(count, 'layer') == words


def test_a_range_has_both_ends_or_one_if_they_are_alike():
  assert from_to([0.5, -0.1, 2.52], '+.1f') == '−0.1 to +2.5'
  assert from_to([0.26, 0.34], '.1f') == '0.3' == from_to([0.3], '.1f')


@pytest.mark.parametrize('num_bytes, text', [
    (1_234, '0.00123 MB'), (2_000_000, '2.00 MB'), (9_996_000, '10.0 MB'),
    (123_456_789, '123 MB'), (999_499_999, '999 MB'), (999_500_000, '1.00 GB'),
    (1_230_000_000, '1.23 GB'), (45_678_000_000, '45.7 GB'), (1.5e12, '1,500 GB')])
def test_sizes_of_memory_have_three_digits(num_bytes, text):
  assert memory(num_bytes) == text
