"""The answer of a league in sentences, from made-up rows."""

import pytest
from scipy import stats

from experiments.league import effects, tables
from experiments.league.answer import answer
from tests.cells import paired, text
from tests.league_cases import (
  endpoints_of,
  make_accuracies,
  make_rows,
  RATES,
  read_case,
)


def test_the_answer_counts_arms_and_names_the_best():
  accuracies = make_accuracies()
  known, indices, found = read_case(make_rows(accuracies, {('lookup', 'softmax'): 0.5}))
  league = tables.league_table(found, {}, known).records
  laws = tables.laws_table(effects.best_laws(indices, known)).records
  retrieval, learned, lookup = answer(league, laws, known.chance)
  ends = {arm: endpoints_of(accuracies, 'retrieval', arm) for arm in RATES}
  gain = paired(ends['log_n'], ends['softmax'])
  wide = stats.ttest_1samp(gain.difference, 0).confidence_interval(1 - 0.05 / 3)
  over = paired(ends['log_n'], ends['power'])
  form = lambda *values: [text(x, '+.1f') for x in values]
  of_gain, low, high = form(gain.mean, *wide)
  of_law, law_low, law_high = form(*over.interval)
  assert retrieval == (
      'Retrieval: of 3 arms, 2 gain over softmax and 1 lose. The arm that goes '
      f'farthest is log n, {of_gain} points [corrected 95 %: {low}, {high}], p < .001. '
      f'Of 3 laws of temperature, log n goes farthest, {of_law} points over n^p '
      f'[uncorrected 95 %: {law_low}, {law_high}], both chosen by the same seeds.')
  assert 3 * gain.p < 0.001 and league[0]['p_uncorrected'] == pytest.approx(gain.p)
  assert lookup == ('Lookup: no verdict; of 3 arms, 3 not learned. Softmax has not '
                    'learned the training lengths.')
  shares = {arm: f'{95 + len(arm) / 10:.1f}' for arm in RATES}
  low, high = min(shares.values()), max(shares.values())
  assert learned == (
      'At the training lengths, arms that have learned, and the accuracy of their '
      f'median seed: retrieval 4 of 4 arms, from {low} to {high} % (softmax '
      f'{shares["softmax"]} %, chance 10 %); lookup 3 of 4 arms, from 50.0 to {high} % '
      '(softmax 50.0 %, chance 10 %). An arm counts as learned if at least nine of ten '
      'seeds, not the median alone, have 90 % or more.')
  assert 'chance' not in answer(league, laws)[1]
  assert answer([], []) == [
      'No answer: the run has not both softmax and another arm yet.']


def test_laws_that_differ_by_as_much_on_every_seed_have_no_interval():
  accuracies = make_accuracies()
  del accuracies['retrieval', 'log_n']
  accuracies['retrieval', 'power'] = accuracies['retrieval', 'softmax'] + 2.0
  known, indices, found = read_case(make_rows(accuracies))
  _, _, said, _ = answer(tables.league_table(found, {}, known).records,
                         tables.laws_table(effects.best_laws(indices, known)).records)
  assert said.endswith(
      ' Without a verdict: 1 undefined. Of 2 laws of temperature, n^p goes farthest, '
      '+2.0 points over softmax, both chosen by the same seeds.')


def test_the_answer_says_that_two_laws_are_the_same():
  known, _, found = read_case(make_rows(make_accuracies()))
  records = tables.league_table(found, {}, known).records
  said = lambda *pair: answer(records, [
      {'task': 'retrieval', 'best': pair[0], 'second': pair[1], 'laws': 7,
       'difference': 1.0, 'ci_low': 0.5, 'ci_high': 1.5}])[2]
  same = ('; these two are the same function of n up to a factor that the weights of '
          'the model can hold, so they differ in optimization and learning rate alone.')
  assert said('ssmax', 'log_n').endswith(
      'SSMax goes farthest, +1.0 points over log n [uncorrected 95 %: +0.5, +1.5], '
      f'both chosen by the same seeds{same}')
  assert said('log_n', 'ssmax').endswith(same)
  assert said('ssmax', 'linear').endswith('chosen by the same seeds.')


def test_the_answer_says_why_there_is_no_verdict():
  accuracies = make_accuracies()
  rows = [r for r in make_rows(accuracies, {('retrieval', 'power'): 0.5})
          if (r.experiment, r.arm, r.seed) != ('retrieval', 'log_n', 5)]
  part = [r for r in rows if r.arm != 'layer_norm']
  known, _, found = read_case(part)
  assert answer(tables.league_table(found, {}, known).records, [])[0] == (
      'Retrieval: no verdict; of the 2 arms run so far (corrected over all 3), 1 not '
      'finished, 1 not learned.')
  _, _, found = read_case(rows)
  _, _, retrieval, lookup = answer(tables.league_table(found, {}, known).records, [])
  assert retrieval.startswith('Retrieval: of 3 arms, 0 gain over softmax and 1 lose. '
                              'No arm goes farther than softmax; the closest is LN, −')
  assert retrieval.endswith('Without a verdict: 1 not finished, 1 not learned.')
  # −5 is the largest difference on lookup, and not what goes farthest.
  assert 'The arm that goes farthest is log n, +' in lookup


def test_the_answer_begins_with_the_arms_that_are_ahead_on_all_tasks():
  ahead, behind = 'ahead', 'behind'
  verdicts = {
      'a': {'both': ahead, 'one': ahead, 'open': 'no difference found', 'bad': ahead},
      'b_c': {'both': ahead, 'one': behind, 'open': ahead, 'bad': 'diverged'},
      'd': {'bad': ahead}}
  gains = {'a': 7.0, 'b_c': 0.5, 'd': 1.0}
  records = [
      {'task': task, 'arm': arm, 'label': arm.upper(), 'verdict': verdict,
       'difference': gains[task], 'ci_low': 0.0, 'ci_high': 9.0, 'p': 0.01,
       'num_tests': 4, 'training_accuracy': 99.0, 'training_accuracy_control': 99.0,
       'learned': True, 'learned_control': True}
      for task, own in verdicts.items() for arm, verdict in own.items()]
  two = [r for r in records if r['task'] != 'd']
  said = lambda of: answer(of, [])[0]
  assert said(two) == (
      'Of 3 arms with a verdict on each of a, b c, ahead of softmax on all of them: '
      'BOTH (least on b c, +0.5 points, p = .010). Farthest go BOTH on a, +7.0 points; '
      'BOTH on b c, +0.5 points.')
  changed = lambda arm, **fields: [
      r | fields if r['arm'] == arm else r for r in two]
  assert '): OPEN (least on' not in said(two)
  assert '; OPEN (least on b c, ' in said(changed('open', verdict=ahead))
  # An arm of the user may have the label of another.
  assert said(changed('one', label='BOTH')).partition(' Farthest')[0] == (
      said(two).partition(' Farthest')[0])
  # No arm of the third task has a verdict on all, and few arms have been run there.
  assert said(records) == (
      'Of 0 arms with a verdict on each of a, b c, d, ahead of softmax on all of them: '
      'none. Farthest go BOTH on a, +7.0 points; BOTH on b c, +0.5 points.')
  assert said(changed('both', verdict=behind)) == (
      'Of 3 arms with a verdict on each of a, b c, ahead of softmax on all of them: '
      'none.')
  # A task without a verdict does not count.
  lost = [r | {'verdict': 'not learned'} if r['task'] == 'a' else r for r in two]
  assert said(lost).startswith('A: no verdict; ')


@pytest.mark.parametrize('gain, farthest', [
    (0.2, 'The arm that goes farthest is LN, +0.2'),
    (0.0, 'No arm goes farther than softmax; the closest is LN, 0.0')])
def test_an_arm_goes_farther_by_however_little(gain, farthest):
  known, _, found = read_case(make_rows(make_accuracies()))
  [record, *_] = tables.league_table(found, {}, known).records
  record |= {'task': 'set_complement', 'arm': 'layer_norm', 'label': 'LN',
             'difference': gain, 'verdict': 'no difference found',
             'training_accuracy': 99.96, 'training_accuracy_control': 100.0}
  first, learned = answer([record], [])
  assert first.startswith('Set complement: of ') and farthest in first
  assert ': set complement 2 of 2 arms, all 100.0 % (softmax 100.0 %). ' in learned
