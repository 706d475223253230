"""Every cell of the tables of `experiments.adapt`, from made-up numbers."""

import json
import math

import numpy as np
import pytest

from experiments.adapt import (
    misalignment_table,
    paper_table,
    primary,
    report,
    steps_table,
    tables,
)
from experiments.adapt.answer import answer
from experiments.language_model import paper
from experiments.language_model.arms import Arm, Family
from tests.adapt_cases import (
    ARMS,
    by_holm,
    compare,
    config_of,
    evaluations_of,
    FAMILIES,
    made_index,
    RUN,
    shown_difference,
)
from tests.cells import cells, interval, text
from tests.conftest import ROOT
from vvlen.objectives import measures
from vvlen.reporting.numbers import interval_words, p_words
from vvlen.reporting.tables import to_csv
from vvlen.statistics import at_level, detectable, holm, mean_interval, paired_t_test


@pytest.fixture
def index():
  return made_index()


def _perplexity(values):
  from scipy import stats

  low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
  return (f'{text(math.exp(np.mean(values)), ".2f")} '
          f'[{text(math.exp(low), ".2f")}, {text(math.exp(high), ".2f")}]')


def test_every_cell_of_methods(index):
  # A fourth seed is still being trained.
  lines = [{'arm': name, 'step': step, 'first_seed': seed,
            **{f'nll_{n}': [step + seed / 10 + n / 7 + place] for n in (8, 16, 32)}}
           for place, name in enumerate(('none', 'yarn')) for step in (0, 4)
           for seed in range(4)]
  found = cells(tables.methods(FAMILIES, ARMS['none'], RUN, index, lines, 8))
  test = compare(index, 'yarn', 'none')
  expected = []
  for place, (name, words) in enumerate(
      (('none', 'fine-tuning alone'), ('yarn', 'YaRN'))):
    row = {'method': words}
    for at, n in (('8 tokens', 8), ('L', 16), ('2 L', 32)):
      row[f'{at}: before'] = text(math.exp(0.1 + n / 7 + place), '.2f')
      row[f'{at}: after [95 %]'] = _perplexity([*index[name, 'nll', n].values()])
    row['Δ log perplexity at 2 L [95 %]'] = shown_difference(test) if place else ''
    row['p Holm'] = tables.p_value(test.p) if place else ''
    expected.append(row)
  assert found == expected


def test_what_was_not_finite_before_training_is_left_out(index):
  lines = [{'arm': 'none', 'step': 0, 'first_seed': seed, 'nll_16': [x]}
           for seed, x in enumerate((None, 2.0, 2.0))]
  found = cells(tables.methods(FAMILIES, ARMS['none'], RUN, index, lines, 8))
  assert found[0]['L: before'] == text(math.exp(2), '.2f')


@pytest.mark.parametrize('weak', ['YaRN', 'fine-tuning alone'])
def test_a_method_that_did_not_learn_has_no_interval_in_the_table_of_methods(
    index, weak):
  """Nor has one that is compared with such a method, as in the figure."""
  make = lambda *weak: tables.methods(FAMILIES, ARMS['none'], RUN, index, [], 8, *weak)
  whole, found = cells(make()), cells(make([weak]))
  difference, p = 'Δ log perplexity at 2 L [95 %]', 'p Holm'
  test = compare(index, 'yarn', 'none')
  assert whole[1][difference] == shown_difference(test) and whole[1][p]
  assert found == [whole[0], whole[1] | {
      difference: text(test.mean_difference, '+.4f'), p: ''}]
  assert make([weak]).note.endswith(
      f'by Holm over methods. Not learned, so that no test is shown: {weak}.')


def test_every_cell_of_the_term(index):
  table = tables.term(FAMILIES, RUN, index)
  found = cells(table)
  # Also where the first method has not the controls of the second.
  assert len(to_csv(table).splitlines()) == 3
  tests = [compare(index, f'{name}_alpha', name) for name in ('none', 'yarn')]
  p_holm = holm([test.p for test in tests])
  intervals = by_holm(index, ('none_alpha', 'none'), ('yarn_alpha', 'yarn'))
  for row, test, ends, p, words in zip(
      found, tests, intervals, p_holm, ('fine-tuning alone', 'YaRN'), strict=True):
    assert row['method'] == words
    assert row['misalignment term [95 %]'] == ends
    assert row['p Holm'] == tables.p_value(float(p))
    # Of two tests: at 2.5 %, at which Holm's method finds it whatever the other is.
    assert row['smallest detectable'] == text(detectable(test, 0.025), '.4f')
  for header, name in (('entropy alone', 'entropy'), ('symmetric KL alone', 'kl'),
                       ('more steps', 'more')):
    assert found[0][f'{header} [95 %]'] == ''
    assert found[1][f'{header} [95 %]'] == shown_difference(
        compare(index, f'yarn_{name}', 'yarn'))
  assert not any('minus α' in header for header in table.columns)
  # The comparison in equal time, and what the term does besides lowering entropy.
  for header, name in (('more steps', 'more'), ('entropy alone', 'entropy')):
    assert [row[f'term minus {header} [95 %]'] for row in found] == [
        '', shown_difference(compare(index, 'yarn_alpha', f'yarn_{name}'))]


def test_other_weights_are_compared_with_the_primary_arm(index):
  """By pairs: intervals of two arms against the same control decide nothing."""
  rng = np.random.default_rng(7)
  more = {f'yarn_{weight}': Arm(f'yarn_{weight}', weight, (0.0, 0.5), 1.0)
          for weight in (0.3, 0.03)}
  index |= {(name, 'nll', n): dict(enumerate(rng.normal(2, 0.02, 3)))
            for name in more for n in (16, 32)}
  # Not those that differ in more than α.
  apart = [more['yarn_0.3']._replace(offsets=(0.0, 1.0)),
           more['yarn_0.3']._replace(steps=0.95),
           ARMS['yarn_entropy']._replace(weight=0.5)]
  yarn = FAMILIES[1]._replace(
      others=(*FAMILIES[1].others, *apart, *more.values()))
  assert primary.other_weights(yarn) == [*more.values()]
  table = tables.term([FAMILIES[0], yarn], RUN, index)
  headers = {weight: f'α = {weight} minus α = 0.1 [95 %]' for weight in (0.03, 0.3)}
  assert [*table.columns][-2:] == [*headers.values()] and len(table.columns) <= 12
  alone, found = cells(table)
  for weight, header in headers.items():
    test = compare(index, f'yarn_{weight}', 'yarn_alpha')
    assert (alone[header], found[header]) == ('', shown_difference(test))
    record = table.records[1]
    prefix = f'weight_{weight}'.replace('.', '_')
    assert record[f'{prefix}_difference'] == pytest.approx(test.mean_difference)
  assert 'Another α minus α = 0.1: whether less of the term does less' in table.more
  _, weak = cells(tables.term([FAMILIES[0], yarn], RUN, index, ['YaRN']))
  assert weak[headers[0.3]] == found[headers[0.3]].partition(' [')[0]
  # The other rows and columns are as without them.
  plain = cells(tables.term(FAMILIES, RUN, index))
  assert [{k: x for k, x in row.items() if 'minus α' not in k}
          for row in (alone, found)] == plain


def test_the_study_compares_its_weights_in_the_table_of_the_term():
  config = config_of('study').to_dict()
  for family in report.families(report.read_run(config), config):
    assert [arm.weight for arm in primary.other_weights(family)] == [0.03, 0.3]


def test_the_cost_of_the_term_is_that_of_the_committed_benchmark():
  found = json.loads((
      ROOT / 'experiments/results/benchmarks/regularizer_cost_study.json').read_text())
  median, mean = found['percent_more'], found['percent_more_mean_and_interval']
  middle, low, high = (text(x, '+.2f') for x in mean)
  page = (ROOT / 'experiments/results/adapt/README.md').read_text()
  assert (f'{text(median, "+.2f")} % (median of 40; mean {middle} % [{low}, {high}])'
          ) in ' '.join(page.split())
  config = config_of('study')
  assert (found['length'], found['batch'], found['rounds_made']) == (
      config.train.max_length, config.train.batch_size, 40)


def test_p_of_the_term_are_corrected_over_methods(index):
  rng = np.random.default_rng(4)
  for name in ('none', 'yarn'):
    index[f'{name}_alpha', 'nll', 32] = {
        seed: x + 0.04 + rng.normal(0, 0.02)
        for seed, x in index[name, 'nll', 32].items()}
  # A seed of one arm alone is in no pair.
  index['yarn', 'nll', 32][3] = 9.0
  tests = [paired_t_test([index[f'{name}_alpha', 'nll', 32][i] for i in range(3)],
                         [index[name, 'nll', 32][i] for i in range(3)])
           for name in ('none', 'yarn')]
  p = [test.p for test in tests]
  corrected = [float(x) for x in holm(p)]
  table = tables.term(FAMILIES, RUN._replace(num_seeds=4), index)
  assert [row['p Holm'] for row in cells(table)] == [
      tables.p_value(x) for x in corrected]
  assert {tables.p_value(x) for x in corrected} != {tables.p_value(x) for x in p}
  assert [record['seeds'] for record in table.records] == [3, 3]
  assert 'at 2 L, 32 tokens, minus the same method with α = 0' in table.note
  said = answer(FAMILIES, RUN, index, 4.0)[0]
  for test, x, words in zip(
      tests, corrected, ('fine-tuning alone', 'YaRN'), strict=True):
    wider = at_level(test, 0.025)  # in neither is a difference found
    ends = interval_words(wider.ci_low, wider.ci_high, '+.4f')
    assert f'{ends}, {p_words(x)} ({words})' in said
  assert 'p and intervals by Holm over methods' in said
  assert said.startswith(
      'At 2 L, 32 tokens, the misalignment term with α = 0.1 was not found to change '
      'predictions with fine-tuning alone, YaRN: log perplexity changes by ')
  assert min(corrected) >= 0.05
  # Far apart: a difference is found, and which way it goes.
  for change, words in ((1, 'worsens'), (-1, 'improves')):
    index['none_alpha', 'nll', 32] = {
        seed: x + change + seed / 1000
        for seed, x in index['none', 'nll', 32].items()}
    assert (f' {words} predictions with fine-tuning alone, and was not found to change '
            'predictions with YaRN: ') in answer(FAMILIES, RUN, index, 4.0)[0]


def test_what_the_paper_prints_is_a_table():
  # Copied by hand from Tables 2, 3, 6, 9 and 10.
  found = {row['setting']: [*row.values()][1:]
           for row in cells(paper_table.published())}
  assert found == {
      'CLEX on RedPajama-Book': ['6.12', '5.88', '−0.0400', '5.91', '−0.0349'],
      'CLEX on PG19': ['7.45', '7.35', '−0.0135', '7.39', '−0.0081'],
      'LongQLoRA': ['5.82', '5.77', '−0.0086', '5.74', '−0.0138'],
      'EABF': ['6.01', '5.91', '−0.0168', '5.86', '−0.0253']}


def test_perplexities_of_the_paper_are_as_it_prints_them():
  # After 50, 100 and 200 steps, copied by hand from Tables 2, 3 and 6.
  numbers = lambda text: tuple(map(float, text.split('/')))
  by_alpha = lambda *rows: dict(zip(
      ('0', '0.1', *(('0.3', '0.5', '1') if len(rows) == 5 else ('0.5',))),
      map(numbers, rows), strict=True))
  assert paper.ALPHA == {
      'CLEX on RedPajama-Book': by_alpha(
          '7.21/6.56/6.12', '6.89/6.24/5.88', '6.95/6.35/5.98', '7.44/7.01/6.54',
          '16.21/14.12/12.92'),
      'CLEX on PG19': by_alpha('8.92/7.89/7.45', '8.95/7.92/7.35', '9.42/8.59/8.21'),
      'LongQLoRA': by_alpha('6.82/6.41/5.82', '6.72/6.39/5.77', '7.07/6.62/5.92'),
      'EABF': by_alpha('6.89/6.52/6.01', '6.92/6.43/5.91', '7.14/6.78/6.34')}
  # Table 7.
  assert [*paper.OFFSETS.values()] == [*map(numbers, (
      '6.72/6.39/5.77', '6.77/6.29/5.81', '6.82/6.47/5.94', '15.65/13.59/12.52'))]
  assert [*paper.OFFSETS] == ['e up to L/2', 'up to L/4', 'L/4 to L/2', 'up to L']
  # Tables 9 and 10.
  assert paper.EQUAL_TIME == {
      'CLEX on RedPajama-Book': numbers('6.92/6.27/5.91'),
      'CLEX on PG19': numbers('9.02/8.01/7.39'), 'LongQLoRA': numbers('6.79/6.42/5.74'),
      'EABF': numbers('7.01/6.48/5.86')}


def test_every_cell_of_sliding_windows(index):
  table = tables.sliding(FAMILIES, RUN, index, 8, 3)
  assert 'over segments of 3 L' in table.note
  found = cells(table)
  labels = {
      'none': 'fine-tuning alone, α = 0', 'none_alpha': 'fine-tuning alone, α = 0.1',
      'yarn': 'YaRN, α = 0', 'yarn_entropy': 'YaRN, α = 0.1 of entropy',
      'yarn_alpha': 'YaRN, α = 0.1', 'yarn_kl': 'YaRN, α = 0.1 of symmetric KL',
      'yarn_more': 'YaRN, α = 0, 1.05 of the steps'}
  for row, (name, words) in zip(found, labels.items(), strict=True):
    assert row.pop('arm') == words
    assert row == {
        '8 tokens [95 %]': _perplexity([*index[name, 'sliding', 8].values()]),
        'L [95 %]': _perplexity([*index[name, 'sliding', 16].values()])}


def test_every_cell_of_steps(index):
  config = config_of(**{'train.num_steps': 40, 'evaluate.every_steps': 15}).to_dict()
  # 1.05 of the steps are 15.75 and 31.5, rounded down, and 42.
  steps = {name: (15, 30, 40) for name in ARMS} | {'yarn_more': (15, 31, 42)}
  measured = evaluations_of(index, steps)
  # Of one arm nothing was kept but the end; one seed of another was not finite.
  measured = [x for x in measured
              if x['arm'] != 'yarn_kl' or x['step'] == 40]
  bad, = [x for x in measured if (x['arm'], x['first_seed'], x['step']) == (
      'yarn_alpha', 1, 30)]
  bad['nll_32'] = [None]
  other, short = [x for x in measured if (x['arm'], x['first_seed'], x['step']) in (
      ('none', 2, 15), ('yarn', 0, 15))]
  other['nll_16'] = [None]
  del short['nll_16']
  del index['none_alpha', 'nll', 32][2]  # of a seed that is not finished at 2 L
  table = steps_table.steps(FAMILIES, RUN, index, config, measured)
  arms = [arm for family in FAMILIES for arm in (family.control, *family.others)]
  places = [(n, arm) for n in (16, 32) for arm in arms]
  for (n, arm), row, record in zip(places, cells(table), table.records, strict=True):
    expected = {'length': {16: 'L', 32: '2 L'}[n]}
    assert (record['length'], record['arm']) == (n, arm.name)
    for place, step in enumerate((15, 30, 40)):
      made = steps[arm.name][place]
      assert record[f'steps_{step}'] == made
      values = [x[f'nll_{n}'][0] for x in measured if (x['arm'], x['step']) == (
          arm.name, made) and x['first_seed'] in index[arm.name, 'nll', n]
                and f'nll_{n}' in x]  # the fourth is not finished
      ends = [math.exp(x) for x in mean_interval([
          x for x in values if x is not None])] if values else []
      expected[f'{step} steps [95 %]'] = interval(*ends, '.2f') if values else ''
    assert row == {'arm': row['arm'], **expected}
  assert cells(table)[6]['arm'] == 'YaRN, α = 0, 1.05 of the steps'
  assert table.note == (
      '3 seeds [95 %]; L = 16 tokens. Perplexity in blocks of each length, after these '
      'steps of fine-tuning; 1.05 of the steps: 15, 31, 42. Not finite, and left out: '
      'fine-tuning alone, α = 0, seed 2; YaRN, α = 0.1, seed 1.')
  assert len(to_csv(table).splitlines()) == 15


def test_no_table_of_steps_where_arms_were_measured_once(index):
  config = config_of(**{'train.num_steps': 200, 'evaluate.every_steps': 200}).to_dict()
  steps = {name: (200,) for name in ARMS} | {'yarn_more': (200, 210)}
  make = lambda steps: steps_table.steps(
      FAMILIES, RUN, index, config, evaluations_of(index, steps))
  # An arm of 1.05 of the steps is compared at its end alone.
  assert make(steps) is None and make({}) is None
  config['evaluate']['every_steps'] = 100
  assert make(steps) is None
  assert [*make(steps | {'none': (100, 200)}).columns] == [
      'length', 'arm', '100 steps [95 %]', '200 steps [95 %]']


def test_every_cell_of_misalignment(index):
  rng = np.random.default_rng(5)
  words = {'sce': 'SCE', 'symmetric_kl': 'symmetric KL',
           'kl_first_second': 'KL(long‖short)', 'kl_second_first': 'KL(short‖long)',
           'js': 'Jensen–Shannon', 'entropy_first': 'entropy, long',
           'entropy_second': 'entropy, short', 'top1_agreement': 'top-1 agreement'}
  assert {*words} | {'half_sce'} == {*measures.Measures._fields}
  for name in ARMS:
    index |= {(name, scale, n): dict(enumerate(rng.uniform(0, 1, 3)))
              for scale in words for n in (16, 32)}
  del index['yarn_kl', 'js', 32]
  table = misalignment_table.misalignment(FAMILIES, RUN, index)
  arms = [arm for family in FAMILIES for arm in (family.control, *family.others)]
  for arm, row in zip(arms, cells(table), strict=True):
    expected = {}
    for scale, header in words.items():
      values = [*index.get((arm.name, scale, 32), {}).values()]
      ends = [float(x) for x in mean_interval(values)] if values else []
      expected[f'{header} [95 %]'] = interval(*ends, '.4f') if values else ''
    assert row == {'arm': row['arm'], **expected}
  assert cells(table)[3]['arm'] == 'YaRN, α = 0.1 of entropy'
  assert table.note.startswith('3 seeds [95 %]. Two windows of 2 L, 32 tokens,')


def test_holm_over_methods_is_in_the_table_of_methods(index):
  families = [*FAMILIES, Family('pi', 'PI', Arm('pi', 0.0, (0.0, 0.5), 1.0), ())]
  rng = np.random.default_rng(3)
  for n in (8, 16, 32):
    index['pi', 'nll', n] = {
        seed: x + 0.02 + rng.normal(0, 0.02)
        for seed, x in index['none', 'nll', n].items()}
  found = cells(tables.methods(families, ARMS['none'], RUN, index, [], 8))
  p = [compare(index, name, 'none').p for name in ('yarn', 'pi')]
  assert [row['p Holm'] for row in found] == [
      '', *(tables.p_value(float(x)) for x in holm(p))]
  assert found[1]['p Holm'] != tables.p_value(p[0])
  assert [row['Δ log perplexity at 2 L [95 %]'] for row in found] == [
      '', *by_holm(index, ('yarn', 'none'), ('pi', 'none'))]
  assert found[0]['L: before'] == ''  # no lines of step 0


def test_controls_of_the_term_differ_from_the_control_in_one_thing():
  arms = {name: arm._replace(offsets=(0.0, 1.0)) for name, arm in ARMS.items()}
  family = FAMILIES[1]._replace(
      others=(*FAMILIES[1].others, arms['yarn_entropy'], arms['yarn_more'],
              ARMS['yarn_kl']._replace(weight=0.3)))
  assert primary.controls(family) == [
      ARMS[name] for name in ('yarn_entropy', 'yarn_kl', 'yarn_more')]
