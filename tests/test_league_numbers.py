"""What README and the pages of the league state are its committed tables."""

import re

import numpy as np

from tests.conftest import ROOT
from tests.texts import finding, interval, page, plain, says, signed, table
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


def test_what_is_said_of_set_complement_is_in_the_tables_of_the_league():
  readme = page('experiments/results/league/README.md')
  said = readme.partition('On set complement: ')[2].partition('Until 2026')[0]
  docs = page('docs/league.md').partition('On set complement, where all')[2].partition(
      'Of the two tasks')[0]
  of = lambda task: {row['arm']: row for row in table('league', 'league', task=task)}
  arms, retrieval = of('set_complement'), of('retrieval')
  accuracy = {row['arm']: row for row in table('league', 'by_length_set_complement')}
  assert len(arms) == 22 and {*accuracy} == {'softmax', *arms}
  assert 'by all 23 arms' in docs
  gain = lambda arm: float(arms[arm]['difference'])
  ends = lambda arm: [float(arms[arm][end]) for end in ('ci_low', 'ci_high')]
  is_in = lambda verdict: {arm for arm, row in arms.items()
                           if row['verdict'] == verdict}

  order = sorted(arms, key=gain, reverse=True)
  assert order[:2] == ['sigmoid', 'l2_softmax'] and order[-1] == 'qk_norm_log_n'
  norms = ['layer_norm', 'rms_norm', 'standardize']
  assert [arm for arm in order if arm in norms] == norms
  assert ends('layer_norm')[0] > max(ends(arm)[1] for arm in norms[1:])
  # Hypothesis 7.
  half = gain('layer_norm') / 2
  assert f'{half:.1f}, half of LN\'s' in readme
  assert said.strip().startswith('- **7 holds')
  assert min(ends(arm)[0] for arm in norms[1:]) > 5.6 == round(half, 1)
  beyond = (24, 32, 40, 48, 56, 60)
  assert all(float(accuracy['layer_norm'][f'accuracy_{n}']) > float(
      accuracy['softmax'][f'accuracy_{n}']) for n in beyond)
  at = lambda n, arm: plain(accuracy[arm][f'accuracy_{n}'], 1)
  shown = lambda *names: [
      re.sub(r'[+−]0\.0\b', '0.0', interval(arms[arm])) for arm in names]
  index = results.index(row for row in results.read_rows(
      ROOT / 'experiments/results/league/results.csv')
      if row.experiment == 'set_complement')
  slopes = {arm: _slope_of_gap(index, arm) for arm in accuracy}
  badly = {arm: sum(x > 1e-3 for x in index[arm, 'training_loss', None].values())
           for arm in accuracy}
  by_holm = f'p = {float(arms["ssmax"]["p"]):.3f}'.replace('0.', '.')
  says(said, *shown('rms_norm', 'standardize', 'layer_norm'), at(60, 'layer_norm'),
        at(60, 'softmax'), *shown('sigmoid'), at(60, 'sigmoid'), *shown('l2_softmax'),
        at(60, 'l2_softmax'),
        *(signed(slopes[arm], 2) for arm in (
            'softmax', 'standardize', 'rms_norm', 'layer_norm', 'l2_softmax',
            'sigmoid')), '+0.3', by_holm,
        interval(arms['ssmax'], digits=2).removeprefix('+'),
        *shown('linear', 'linear_layer_norm'), '+11.2', *shown('entmax', 'sink'),
        str(badly['entmax']), str(badly['sink']),
        *shown('qk_norm', 'qk_norm_log_n'), at(16, 'qk_norm'), at(16, 'softmax'),
        *shown('gated'))
  assert (badly['softmax'], badly['ssmax']) == (3, 0)
  # All norms lie between softmax and L2 softmax.
  assert all(slopes['softmax'] < slopes[arm] < slopes['l2_softmax'] for arm in norms)
  says(docs, *shown('sigmoid', 'l2_softmax'),
        *(f'{-float(retrieval[arm]["difference"]):.1f}'
          for arm in ('sigmoid', 'l2_softmax')), *shown(*norms), '+0.3',
        *shown('linear'), '+11.2', *shown('linear_layer_norm'))

  laws = ['ssmax', 'log_n', 'sqrt_log_n', 'power', 'linear', 'adaptive']
  assert max(ends(arm)[1] for arm in laws) < 0.3
  assert is_in('ahead') & {*laws} == {'ssmax'} and ends('ssmax')[0] < 0
  assert f'by {gain("ssmax"):.2f} points with an interval that holds 0' in page(
      'docs/league.md')
  assert is_in('no difference found') == {'log_n', 'sqrt_log_n', 'adaptive', 'gated'}
  assert signed(gain('power'), 1) == '−0.1' and arms['power']['verdict'] == 'behind'
  on_top = {signed(gain(f'{law}_layer_norm'), 1) for law in laws if law != 'linear'}
  assert on_top == {signed(gain('layer_norm'), 1)} == {'+11.2'}
  lose = ['entmax', 'sink', 'qk_norm', 'qk_norm_log_n']
  assert is_in('behind') == {*lose, 'linear', 'power'}
  least, most = (f'{-end(map(gain, lose)):.1f}' for end in (max, min))
  assert f'lose {least} to {most} points' in docs
  assert min(retrieval, key=lambda arm: float(
      retrieval[arm]['difference'])) == 'sigmoid'  # last there

  noted = lambda words: {
      row['arm'] for row in table('league', 'tuning', task='set_complement')
      if words in row['notes']}
  assert noted('not decided') == {
      *norms, *(f'{law}_layer_norm' for law in laws), 'linear', 'entmax'}
  assert noted('at the edge') == {'qk_norm', 'qk_norm_log_n'}
  says(finding('What carries to longer inputs depends on the task'),
        f'lose {-gain("linear"):.1f} points',
        interval(arms['layer_norm'], form=plain),
        f'{gain("linear_layer_norm"):.1f}', f'{gain("sigmoid"):.1f}',
        f'loses {-float(retrieval["sigmoid"]["difference"]):.1f}')
  says(page('docs/vanishing_variance.md'),
        *(interval(arms[arm], form=plain) for arm in ('layer_norm', 'sigmoid')))


def _slope_of_gap(index, arm, symbols=64):
  """Returns the mean slope, over seeds, of log gap of logits against log set size.

  All absent symbols are taken to have one logit, and all present ones another.
  """
  sizes = sorted(n for own, name, n in index if (own, name) == (arm, 'accuracy'))
  found = np.array([[*index[arm, 'accuracy', n].values()] for n in sizes])
  n = np.array(sizes)[:, None]
  gap = np.log(found / (1 - found) * n / (symbols - n))
  return np.polyfit(np.log(sizes), np.log(gap), 1)[0].mean()
