"""The family of a league and the verdicts on its arms, from made-up rows."""

import numpy as np
import pytest
from scipy import stats

from configs import league as config_file
from experiments.league import effects, family, tables
from experiments.league.answer import answer
from tests.cells import cells, p_of, paired
from tests.league_cases import (
  endpoints_of,
  LENGTHS,
  make_accuracies,
  make_facts,
  make_rows,
  RATES,
  read_case,
  SEEDS,
)


def test_the_family_is_read_in_its_order():
  known = effects.family_of(make_facts())
  assert known == (
      ('softmax', 'layer_norm', 'log_n', 'power'), {'retrieval': 16, 'lookup': 16},
      SEEDS, 0.05, (3e-4, 1e-3, 3e-3, 1e-2), 'trained on 5 to 16 items for 4,000 steps',
      {'retrieval': (10, 0, 10.5), 'lookup': (10, 0, 10.5)})
  assert [*known.tasks] == ['retrieval', 'lookup'] and known.num_tests == 3


def test_accuracy_without_information_is_known_of_the_tasks_of_the_league():
  known = effects.family_of(family.facts(config_file.get_config('cpu')))
  assert {task: str(chance) for task, chance in known.chance.items()} == {
      'retrieval': 'chance 10 %', 'lookup': 'chance 10 %',
      'associative_recall': 'chance 1.56 %',
      # 1 − 10.5 / 64, of 5 to 16 items.
      'set_complement': 'as one minus the total variation, which is 83.6 % if the set '
                        'is ignored'}
  at = lambda n: {task: chance.at(n) for task, chance in known.chance.items()}
  always = {'retrieval': 10, 'lookup': 10, 'associative_recall': 100 / 64}
  assert at(16) == {**always, 'set_complement': 75}
  assert at(60) == {**always, 'set_complement': 6.25}
  config = config_file.get_config('cpu')
  with config.unlocked():
    config.tasks.set_complement.train = dict(max_length=32)
  longer = effects.family_of(family.facts(config))
  assert ' 71.1 % if' in str(longer.chance['set_complement'])  # 1 − 18.5 / 64
  assert (longer.tasks['set_complement'], longer.tasks['lookup']) == (32, 16)
  facts = family.facts(config_file.get_config('cpu'))
  facts['tasks']['mine'] = {'task': {'name': 'mine.py:make', 'num_classes': 8}}
  assert effects.family_of(facts).chance == known.chance  # of the user's nothing


@pytest.mark.parametrize('field, value', [
    ('min_length', 4), ('max_length', 32), ('num_steps', 5_000), ('batch_size', 64)])
def test_training_is_described_if_it_is_the_same_in_all_tasks(field, value):
  config = config_file.get_config('cpu')
  with config.unlocked():
    config.tasks.lookup.train = {field: value}
  words = effects.family_of(family.facts(config)).words
  assert words == ('trained on 5 to 16 items for 4,000 steps' if field == 'batch_size'
                   else 'each task trained in its own way')


def test_arms_without_rows_count_as_tests():
  accuracies = make_accuracies()
  part = {key: x for key, x in accuracies.items() if key[1] in ('softmax', 'power')}
  _, _, found = read_case(make_rows(part))
  effect, = found['retrieval']
  control = endpoints_of(accuracies, 'retrieval', 'softmax')
  test = paired(endpoints_of(accuracies, 'retrieval', 'power'), control)
  assert effect.corrected.p == pytest.approx(3 * test.p)
  _, _, whole = read_case(make_rows(accuracies))
  p = {e.arm: e.corrected.p for e in whole['retrieval']}
  assert p['power'] <= effect.corrected.p  # it can only fall


def test_an_arm_that_has_not_learned_counts_as_a_test_without_a_result():
  rows = make_rows(make_accuracies(), {('retrieval', 'log_n'): 0.89})
  _, _, found = read_case(rows)
  of = {e.arm: e for e in found['retrieval']}
  assert of['log_n'].test.p < min(of[arm].test.p for arm in ('layer_norm', 'power'))
  first, last = sorted((of[arm] for arm in ('layer_norm', 'power')),
                       key=lambda e: e.test.p)
  # The first of three p, not the second after that of log n.
  assert first.corrected.p == pytest.approx(3 * first.test.p)
  assert last.corrected.p == pytest.approx(2 * last.test.p)


def test_a_verdict_is_by_the_corrected_p_at_the_level_of_the_family():
  # Of three arms: p of 2.5 % counts, and of 5.5 % does not.
  softmax = np.full((SEEDS, len(LENGTHS)), 80.0) + np.arange(SEEDS)[:, None]
  accuracies = {('retrieval', arm): softmax for arm in RATES}
  noise = 0.1 * np.array([1, -1, 1, -1, 1, -1.0])[:, None]  # gains below a point
  for arm, t in (('log_n', 4.5), ('power', -3.4), ('layer_norm', 2.5)):
    mean = t * np.std(noise, ddof=1) / SEEDS**0.5
    accuracies['retrieval', arm] = softmax + mean + noise
  known, _, found = read_case(make_rows(accuracies))
  of = {e.arm: (e.verdict, e.corrected.p) for e in found['retrieval']}
  p = {arm: 2 * stats.t.sf(t, SEEDS - 1)
       for arm, t in (('log_n', 4.5), ('power', 3.4), ('layer_norm', 2.5))}
  assert of['log_n'] == ('ahead', pytest.approx(3 * p['log_n']))
  assert of['power'] == ('behind', pytest.approx(2 * p['power']))
  assert of['layer_norm'] == (
      'no difference found', pytest.approx(p['layer_norm']))
  assert 0.05 / 3 < of['power'][1] < 0.05 < of['layer_norm'][1]
  [said, _] = answer(tables.league_table(found, {}, known).records, [])
  assert said.endswith(f'], p = {p_of(3 * p["log_n"])}.')


@pytest.mark.parametrize('who', ['softmax', 'power'])
def test_no_verdict_where_the_training_lengths_were_not_learned(who):
  rows = make_rows(make_accuracies(), {('retrieval', who): 0.89})
  known, indices, found = read_case(rows)
  verdicts = {e.arm: e.verdict for e in found['retrieval']}
  failed = verdicts if who == 'softmax' else {'power'}
  assert {arm for arm, x in verdicts.items() if x == 'not learned'} == set(failed)
  assert all(np.isnan(e.corrected.p) for e in found['retrieval'] if e.arm in failed)
  # Of a test that is none, neither interval nor p is shown.
  for row in cells(tables.league_table(found, {}, known)):
    shown = row['arm − softmax [95 %]'], row['p'], row['detectable']
    blank = ['[' not in shown[0], shown[1] == '', shown[2] == '']
    assert blank == 3 * [row['verdict'] == 'not learned'], row
    assert shown[0][0] in '+−'
  # Nor is it a law that goes farthest.
  laws = {each.task: each for each in effects.best_laws(indices, known)}
  other = 'power' if who == 'softmax' else 'softmax'
  assert laws['retrieval'].arms == ('log_n', other)
  assert laws['retrieval'].num_laws == 2 and laws['lookup'].num_laws == 3


@pytest.mark.parametrize('low, verdict', [(0, 'ahead'), (1, 'not learned')])
def test_a_rate_at_which_some_seeds_collapse_gives_no_verdict(low, verdict):
  # Of six seeds, of which none may be below 90 %; the median is above in both cases.
  rows = make_rows(make_accuracies())
  for place, row in enumerate(rows):
    if (row.arm, row.metric, row.experiment) == (
        'log_n', 'training_accuracy', 'retrieval') and row.seed < low:
      rows[place] = row._replace(value=0.1)
  known, indices, found = read_case(rows)
  log_n, = (e for e in found['retrieval'] if e.arm == 'log_n')
  assert (log_n.verdict, log_n.training_accuracy[1] > 0.9) == (verdict, True)
  [laws] = [x for x in effects.best_laws(indices, known) if x.task == 'retrieval']
  assert ('log_n' in laws.arms) == (low == 0)


@pytest.mark.parametrize('values, learned', [
    ([0.95] * 9 + [0.1], True), ([0.95] * 8 + [0.1, 0.2], False),
    ([0.9] * 10, True), ([0.95] * 9 + [np.nan], True),
    ([0.95] * 8 + [np.nan] * 2, False),
    ([0.95] * 29 + [0.5] * 3, True), ([0.95] * 28 + [0.5] * 4, False),
])
def test_nine_seeds_in_ten_must_have_learned(values, learned):
  assert effects.has_learned(dict(enumerate(values))) == learned


def test_an_arm_whose_seeds_diverge_has_no_verdict_however_the_others_do():
  accuracies = make_accuracies()
  accuracies['retrieval', 'log_n'][2:] = np.nan
  known, indices, found = read_case(make_rows(accuracies))
  of = {e.arm: e for e in found['retrieval']}
  assert of['log_n'].test.mean_difference > 5 and of['log_n'].test.num_pairs == 2
  assert of['log_n'].verdict == 'diverged' and np.isnan(of['log_n'].corrected.p)
  assert of['layer_norm'].verdict == 'behind'
  laws = {each.task: each for each in effects.best_laws(indices, known)}
  assert laws['retrieval'].arms == ('power', 'softmax')
  _, _, said, _ = answer(tables.league_table(found, {}, known).records, [])
  assert said.endswith('Without a verdict: 1 diverged.')
  # Not log n, although its other seeds gain more.
  assert 'The arm that goes farthest is n^p, +' in said
  first, *_ = tables.league_table(found, {}, known).records
  assert (first['arm'], first['seeds']) == ('log_n', 2)


def test_missing_seeds_and_equal_differences_have_no_verdict():
  accuracies = make_accuracies()
  accuracies['lookup', 'power'] = accuracies['lookup', 'softmax'] + 1.0
  rows = [r for r in make_rows(accuracies) if not (
      (r.experiment, r.arm, r.seed) == ('retrieval', 'log_n', 5))]
  known, indices, found = read_case(rows)
  by_arm = {(e.task, e.arm): e for each in found.values() for e in each}
  assert by_arm['retrieval', 'log_n'].verdict == 'not finished'
  assert by_arm['lookup', 'power'].verdict == 'undefined'
  assert by_arm['lookup', 'power'].corrected is None
  assert by_arm['retrieval', 'power'].verdict in ('ahead', 'no difference found')
  # A test that is seen before all seeds are there would be seen again.
  p = {(r['task'], r['arm']): r['p_uncorrected']
       for r in tables.league_table(found, {}, known).records}
  assert np.isnan(p['retrieval', 'log_n']) and p['retrieval', 'power'] < 0.05
  laws = {each.task: each for each in effects.best_laws(indices, known)}
  assert laws['retrieval'].arms == ('power', 'softmax')
