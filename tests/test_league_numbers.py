"""What README and the pages of the league state are its committed tables."""

import functools
import re

import numpy as np

from tests.texts import finding, interval, page, plain, RESULTS, says, signed, table
from vvlen.reporting import results

_WORDS = {2: 'two', 3: 'three', 8: 'eight'}


def test_hypotheses_on_retrieval_are_decided_by_the_tables_of_the_league():
  readme = page('experiments/results/league/README.md')
  found = readme.partition('## What was found ')[2].partition('Until 2026')[0]
  said = dict(re.findall(r'- \*\*(\d) (.*?)(?= - \*\*\d |$)', found))
  of = lambda name, **wanted: table('league', name, task='retrieval', **wanted)
  arms = {row['arm']: row for row in of('league')}
  laws = 'log_n', 'ssmax', 'linear'
  assert said['1'].startswith('is not confirmed.**')
  assert [float(arms[arm]['ci_low']) > 5 for arm in laws] == [False, True, True]
  assert all(interval(arms[arm]) in said['1'] for arm in laws)
  assert 4 < min(float(arms[arm]['ci_low']) for arm in laws)
  assert 'All three gain 4 points or more.' in said['1']

  far = {arm: max(-float(arms[arm]['ci_low']), float(arms[arm]['ci_high']))
         for arm in ('layer_norm', 'rms_norm', 'sink', 'l2_softmax')}
  assert said['2'].startswith('holds.**') and max(far.values()) < 2
  assert max(far, key=far.get) == 'l2_softmax'
  worst = arms['l2_softmax']
  assert f'{interval(worst)}, which is behind softmax (p = ' in said['2']
  assert f'(p = {float(worst["p"]):.3f})'.replace('0.', '.') in said['2']
  assert [arms[arm]['verdict'] for arm in far] == 3 * ['no difference found'] + [
      'behind']

  pair = lambda *names: of('contrasts', first=names[0], second=names[1])[0]
  there = ('longest_difference', 'longest_ci_low', 'longest_ci_high')
  log_n, ssmax = pair('linear', 'log_n'), pair('linear', 'ssmax')
  assert said['3'].startswith('holds by its criterion**')
  assert float(log_n['longest_ci_low']) > 0 > float(ssmax['longest_ci_low'])
  says(said['3'], '16,384', interval(log_n, *there), interval(ssmax, *there),
        interval(ssmax))

  assert said['4'].startswith('holds by its criterion**')
  [p] = of('scalars', arm='power')
  learned = interval(p, 'value', 'value_low', 'value_high', plain, 3)
  [needs], [gains] = of('needs'), of('at_inference')
  fitted = interval(
      needs, *(f'power_in_training{end}' for end in ('', '_low', '_high')), plain, 2)
  gained = ('trained_power_difference', 'trained_power_ci_low', 'trained_power_ci_high')
  assert float(p['value_high']) < 0.2 and float(pair('linear', 'power')['ci_low']) > 0
  says(said['4'], learned, interval(pair('linear', 'power')), fitted)
  assert f'gains {interval(gains, *gained)} at'.replace(' [', ' points [') in said['4']

  # The page of the league says the same.
  docs = page('docs/league.md').partition('**Found so far**')[2].partition('## ')[0]
  says(docs, *(interval(arms[arm]) for arm in ('linear', 'ssmax', 'log_n')))
  assert all(abs(float(arms[arm][end])) < 1 for end in ('ci_low', 'ci_high')
             for arm in ('layer_norm', 'rms_norm', 'sink'))
  assert interval(gains, *gained).replace(']', ', uncorrected]') in docs
  more = lambda row: '{:.1f} points [{:.1f}, {:.1f}, uncorrected]'.format(
      *(float(row[x]) for x in ('difference', 'ci_low', 'ci_high')))
  assert f'by {more(ssmax)}' in docs
  assert {arm for arm, row in arms.items() if row['verdict'] == 'behind'} == {
      'l2_softmax', 'qk_norm', 'qk_norm_log_n', 'sigmoid'}
  gated = interval(arms['gated'])
  assert f'Of gated attention none was found either, {gated}.' in docs
  assert arms['gated']['verdict'] == 'no difference found'

  on_top = {law: pair(f'{law}_layer_norm', law) for law in (
      'ssmax', 'log_n', 'sqrt_log_n', 'power', 'linear', 'adaptive')}
  inside = {law: -2 < float(row['ci_low']) and float(row['ci_high']) < 2
            for law, row in on_top.items()}
  assert said['5'].startswith('is not confirmed.**')
  assert inside['linear'] and not inside['log_n']
  values = {row['arm']: float(row['value']) for row in of('scalars')}
  says(said['5'], *(interval(on_top[law]) for law in (
      'linear', 'log_n', 'ssmax', 'power')),
        f'{values["power_layer_norm"]:.3f}', f'{values["power"]:.3f}')
  little = sorted(float(on_top[law]['difference']) for law, is_in in inside.items()
                  if is_in)
  says(docs, '{} and {} points for four of six'.format(
      *(signed(little[i], 1) for i in (0, -1))),
        more(on_top['power']),
        interval(on_top['log_n']).replace(']', ', uncorrected]'))
  assert len(little) == 4


def test_what_is_said_of_lookup_is_in_the_tables_of_the_league():
  readme = page('experiments/results/league/README.md')
  said = readme.partition('- **6 ')[2].partition('Until 2026')[0]
  docs = page('docs/league.md').partition('On lookup, where')[2].partition('## ')[0]
  of = lambda name, **wanted: table('league', name, task='lookup', **wanted)
  arms = {row['arm']: row for row in of('league')}
  ahead = ['log_n', 'linear', 'ssmax', 'sqrt_log_n']
  behind = ['power', 'adaptive']
  # It fails if a law is ahead, or the interval of LN lies above −5.
  assert said.startswith('fails**') and float(arms['layer_norm']['ci_low']) > -5
  assert {arm for arm, row in arms.items() if row['verdict'] == 'ahead'} == {
      *ahead, 'layer_norm'}
  assert {arm for arm, row in arms.items() if row['verdict'] == 'behind'} == {*behind}
  says(said, *(interval(arms[arm]) for arm in (*ahead, 'layer_norm')))
  [harm] = of('contrasts', first='linear', second='log_n')
  says(docs, *(interval(arms[arm]) for arm in ahead),
        interval(harm).replace(']', ', uncorrected]'),
        *(interval(arms[arm]) for arm in ('layer_norm', *behind)))
  there = interval(harm, 'longest_difference', 'longest_ci_low', 'longest_ci_high')
  assert f'β ∝ n − log n is {interval(harm)}, at 16,384 items {there}.' in said
  [softmax] = table('league', 'by_length_lookup', arm='softmax')
  right = {n: float(softmax[f'accuracy_{n}']) for n in (16, 32, 64, 128, 256, 512)}
  parts = f'{right[512]:.1f}', f'{float(softmax["accuracy_16384"]):.1f}'
  assert min(right.values()) == right[512]
  says(said, *parts)
  says(docs, *parts, f'(mean {float(arms["log_n"]["control"]):.1f} %)')

  [p], [needs], [gains] = of('scalars', arm='power'), of('needs'), of('at_inference')
  gain = lambda law: interval(
      gains, *(f'{law}_{x}' for x in ('difference', 'ci_low', 'ci_high')))
  says(said, interval(p, 'value', 'value_low', 'value_high', plain, 3),
        *(interval(arms[arm]) for arm in behind), gain('adaptive'))
  losses = {row['arm']: float(row[f'loss_{float(row["learning_rate"]):g}'])
            for row in of('tuning') if row['arm'] in arms or row['arm'] == 'softmax'}
  assert {*sorted(losses, key=losses.get)[:2]} == {*behind}
  assert len(losses) == len(arms) + 1
  assert f'those of these two are the least of all {_WORDS[len(losses)]} arms' in said
  assert f'training moves p below 0, to {signed(p["value"], 3)}' in docs

  powers = lambda row, name: interval(
      row, *(f'{name}{x}' for x in ('', '_low', '_high')), plain, 2)
  [other] = table('league', 'needs', task='retrieval')
  says(said, powers(needs, 'power'), f'{int(needs["power_to"]):,}',
        powers(needs, 'power_of_log'), powers(other, 'power'), other['power_to'])
  says(said, gain('trained_power'), plain(gains['applied_trained_power'], 2))
  says(docs, gain('trained_power').replace(']', ', uncorrected]'),
        *(plain(row['power'], 2) for row in (other, needs)),
        plain(needs['power_of_log'], 2),
        *(plain(row['power_in_training'], 2) for row in (other, needs)))
  [at_retrieval] = table('league', 'at_inference', task='retrieval')
  [linear] = table('league', 'league', task='retrieval', arm='linear')
  says(finding('What carries to longer inputs depends on the task'),
        *(plain(row['difference'], 1) for row in (linear, arms['linear'])),
        *(plain(row['trained_power_difference'], 1) for row in (at_retrieval, gains)))


# What is said of set complement.
_NORMS = ['layer_norm', 'rms_norm', 'standardize']
_LAWS = ['ssmax', 'log_n', 'sqrt_log_n', 'power', 'linear', 'adaptive']


def _arms(task):
  """Returns {arm: its row of the table `league`}."""
  return {row['arm']: row for row in table('league', 'league', task=task)}


def _is_in(arms, verdict):
  return {arm for arm, row in arms.items() if row['verdict'] == verdict}


def _ends(row):
  return [float(row[end]) for end in ('ci_low', 'ci_high')]


def _shown(row):
  """Returns a gain with its interval, in which 0.0 has no sign."""
  return re.sub(r'[+−]0\.0\b', '0.0', interval(row))


def _of_set_complement(beginning):
  """Returns the paragraph of the README of the league that begins so."""
  readme = page('experiments/results/league/README.md')
  said = readme.partition('On set complement: ')[2].partition(' Until 2026')[0]
  found, = (x for x in re.split(r'(?:^| )- (?=[A-Z*e])', said)
            if x.startswith(beginning))
  return found


def _docs_of_set_complement():
  return page('docs/league.md').partition('On set complement, where all')[2].partition(
      'Of the two tasks')[0]


def _accuracy_at(n, arm):
  row, = table('league', 'by_length_set_complement', arm=arm)
  return row[f'accuracy_{n}']


def test_what_norms_gain_on_set_complement():
  arms = _arms('set_complement')
  assert len(arms) == 22 and 'by all 23 arms' in _docs_of_set_complement()
  order = sorted(_NORMS, key=lambda arm: -float(arms[arm]['difference']))
  assert order == _NORMS
  assert _ends(arms['layer_norm'])[0] > max(_ends(arms[arm])[1] for arm in _NORMS[1:])
  # Hypothesis 7.
  half = float(arms['layer_norm']['difference']) / 2
  assert f'{half:.1f}, half of LN\'s' in page('experiments/results/league/README.md')
  assert min(_ends(arms[arm])[0] for arm in _NORMS[1:]) > 5.6 == round(half, 1)
  says(_of_set_complement('**7 holds'), *(_shown(arms[arm]) for arm in (
      'rms_norm', 'standardize', 'layer_norm')),
       *(plain(_accuracy_at(60, arm), 1) for arm in ('layer_norm', 'softmax')))
  assert all(float(_accuracy_at(n, 'layer_norm')) > float(_accuracy_at(n, 'softmax'))
             for n in (24, 32, 40, 48, 56, 60))
  says(_docs_of_set_complement(), *(_shown(arms[arm]) for arm in _NORMS))


def test_which_arms_go_farthest_on_set_complement_and_how_their_logits_fall():
  arms, retrieval = _arms('set_complement'), _arms('retrieval')
  first = ['sigmoid', 'l2_softmax']
  assert sorted(arms, key=lambda arm: -float(arms[arm]['difference']))[:2] == first
  said = [x for arm in first
          for x in (_shown(arms[arm]), plain(_accuracy_at(60, arm), 1))]
  says(_of_set_complement('Of all arms sigmoid'), *said)
  says(_docs_of_set_complement(), *(_shown(arms[arm]) for arm in first),
       *(f'{-float(retrieval[arm]["difference"]):.1f}' for arm in first))
  assert min(retrieval, key=lambda arm: float(
      retrieval[arm]['difference'])) == 'sigmoid'  # last there
  index = _index_of_set_complement()
  slopes = {arm: _slope_of_gap(index, arm) for arm in ('softmax', *_NORMS, *first)}
  says(_of_set_complement('So what one symbol'), *(signed(slopes[arm], 2) for arm in (
      'softmax', 'standardize', 'rms_norm', 'layer_norm', 'l2_softmax', 'sigmoid')))
  # All norms lie between softmax and L2 softmax.
  assert all(slopes['softmax'] < slopes[arm] < slopes['l2_softmax'] for arm in _NORMS)


def test_what_temperatures_gain_on_set_complement():
  arms = _arms('set_complement')
  said = _of_set_complement('No temperature by itself')
  by_holm = f'p = {float(arms["ssmax"]["p"]):.3f}'.replace('0.', '.')
  says(said, '+0.3', by_holm, interval(arms['ssmax'], digits=2).removeprefix('+'),
       *(_shown(arms[arm]) for arm in ('linear', 'linear_layer_norm')), '+11.2')
  says(_docs_of_set_complement(), '+0.3', _shown(arms['linear']), '+11.2',
       _shown(arms['linear_layer_norm']))
  assert max(_ends(arms[arm])[1] for arm in _LAWS) < 0.3
  assert _is_in(arms, 'ahead') & {*_LAWS} == {'ssmax'}
  assert _ends(arms['ssmax'])[0] < 0
  gain = float(arms['ssmax']['difference'])
  assert f'by {gain:.2f} points with an interval that holds 0' in page('docs/league.md')
  assert _is_in(arms, 'no difference found') & {*_LAWS} == {
      'log_n', 'sqrt_log_n', 'adaptive'}
  assert signed(arms['power']['difference'], 1) == '−0.1'
  assert arms['power']['verdict'] == 'behind'
  on_top = {signed(arms[f'{law}_layer_norm']['difference'], 1)
            for law in _LAWS if law != 'linear'}
  assert on_top == {signed(arms['layer_norm']['difference'], 1)} == {'+11.2'}
  assert _badly_trained('softmax') == 3 and not _badly_trained('ssmax')
  assert 'three seeds of softmax ended training with a loss above 0.001' in said


def test_which_arms_lose_on_set_complement():
  arms = _arms('set_complement')
  lose = ['entmax', 'sink', 'qk_norm', 'qk_norm_log_n']
  says(_of_set_complement('entmax-1.5'), *(_shown(arms[arm]) for arm in lose[:2]),
       *(str(_badly_trained(arm)) for arm in lose[:2]),
       *(_shown(arms[arm]) for arm in lose[2:]),
       *(plain(_accuracy_at(16, arm), 1) for arm in ('qk_norm', 'softmax')),
       _shown(arms['gated']))
  assert arms['gated']['verdict'] == 'no difference found'
  assert _is_in(arms, 'behind') == {*lose, 'linear', 'power'}
  gains = [float(arms[arm]['difference']) for arm in lose]
  assert f'lose {-max(gains):.1f} to {-min(gains):.1f} points' in (
      _docs_of_set_complement())


def test_what_the_tuning_of_set_complement_leaves_open():
  noted = lambda words: {
      row['arm'] for row in table('league', 'tuning', task='set_complement')
      if words in row['notes']}
  said = page('experiments/results/league/README.md').partition(
      ' Set complement: the rates of')[2].partition(' - ')[0]
  assert said == (' QK-norm, with and without log n, lie at the edge; for all arms '
                  'with LN, standardization, RMSNorm, β ∝ n and entmax-1.5 the tuning '
                  'does not decide.')
  assert noted('not decided') == {
      *_NORMS, *(f'{law}_layer_norm' for law in _LAWS), 'linear', 'entmax'}
  assert noted('at the edge') == {'qk_norm', 'qk_norm_log_n'}


def test_what_other_pages_say_of_set_complement():
  arms, retrieval = _arms('set_complement'), _arms('retrieval')
  gain = lambda arm: float(arms[arm]['difference'])
  says(finding('What carries to longer inputs depends on the task'),
       f'lose {-gain("linear"):.1f} points', interval(arms['layer_norm'], form=plain),
       f'{gain("linear_layer_norm"):.1f}', f'{gain("sigmoid"):.1f}',
       f'loses {-float(retrieval["sigmoid"]["difference"]):.1f}')
  says(page('docs/vanishing_variance.md'),
       *(interval(arms[arm], form=plain) for arm in ('layer_norm', 'sigmoid')))


@functools.cache
def _index_of_set_complement():
  rows = results.read_rows(RESULTS / 'league/results.csv')
  return results.index(row for row in rows if row.experiment == 'set_complement')


def _badly_trained(arm):
  """Returns how many seeds ended training with a loss above 0.001."""
  losses = _index_of_set_complement()[arm, 'training_loss', None].values()
  return sum(x > 1e-3 for x in losses)


def _slope_of_gap(index, arm, symbols=64):
  """Returns the mean slope, over seeds, of log gap of logits against log set size.

  All absent symbols are taken to have one logit, and all present ones another.
  """
  sizes = sorted(n for own, name, n in index if (own, name) == (arm, 'accuracy'))
  found = np.array([[*index[arm, 'accuracy', n].values()] for n in sizes])
  n = np.array(sizes)[:, None]
  gap = np.log(found / (1 - found) * n / (symbols - n))
  return np.polyfit(np.log(sizes), np.log(gap), 1)[0].mean()
