"""What README and docs/speed.md state are the committed results, and the code."""

import configparser
import csv
import importlib
import json
import os
import re

import numpy as np
import pytest

from experiments.harness import errors, machine
from experiments.length_generalization.slopes import slopes_at_the_end
from tests.conftest import ROOT
from vvlen.reporting import plots, results
from vvlen.statistics import mean_interval

_RESULTS = ROOT / 'experiments/results'
_README = ' '.join((ROOT / 'README.md').read_text().split())
_SPEED = (ROOT / 'docs/speed.md').read_text()
_WORDS = {1: 'one', 2: 'two', 3: 'three', 4: 'four', 5: 'five', 8: 'eight'}


def _table(run, name, **wanted):
  """Returns the rows of a table in which columns have the given values."""
  with (_RESULTS / run / 'tables' / f'{name}.csv').open() as file:
    return [row for row in csv.DictReader(file)
            if all(row[column] == value for column, value in wanted.items())]


def _benchmark(name):
  return json.loads((_RESULTS / 'benchmarks' / f'{name}.json').read_text())


def _signed(x, digits):
  return f'{float(x):+.{digits}f}'.replace('-', '−')


def _plain(x, digits):
  return f'{float(x):.{digits}f}'.replace('-', '−')


def _interval(row, name='difference', low='ci_low', high='ci_high', form=_signed,
              digits=1):
  """Returns such as '+1.8 [+0.8, +2.9]'."""
  return '{} [{}, {}]'.format(*(form(row[x], digits) for x in (name, low, high)))


def _finding(words):
  """Returns the numbered finding of README whose bold beginning has these words."""
  findings = _README.partition('## What was found ')[2].partition('## ')[0]
  found, = (x for x in re.split(r' (?=\d\. \*\*)', findings)
            if re.match(rf'\d\. \*\*[^*]*{words}', x))
  return found


def _says(text, *numbers):
  """Asserts that a text has these numbers in this order, however it is worded."""
  between = r'(?<![\d.,−])' + r'(?!\d).*?(?<![\d.,−])'.join(map(re.escape, numbers))
  assert re.search(between + r'(?!\d)', text), (numbers, text)


def _behind(row, difference='difference', low='ci_low', high='ci_high'):
  """Returns 4.4 and '[2.0, 6.8]' for a difference of −4.4 points."""
  center, low, high = (-float(row[name]) for name in (difference, high, low))
  assert center > low > 0
  return center, f'[{low:.1f}, {high:.1f}]'


def test_layer_norm_helps_in_retrieval_without_weight_decay():
  rows = [row for row in _table('vanishing_variance', 'verdicts')
          if row['setting'].startswith('retrieval') and row['difference'] != 'nan']
  plain = [row for row in rows if float(row['l2']) == 0]
  decayed = [row for row in rows if float(row['l2']) > 0]
  assert {row['verdict'] for row in plain} == {'LN ahead'}
  behind = [row for row in decayed if row['verdict'] == 'LN behind']
  (even,) = (row for row in decayed if row['verdict'] == 'no difference found')
  assert len(behind) == 2 == len(decayed) - 1
  least, most = (f(float(row['difference']) for row in plain) for f in (min, max))
  worst, best = sorted(float(row['difference']) for row in behind)
  _says(_finding('without weight decay'),
        f'{least:.1f} to {most:.1f} points', f'{_WORDS[len(plain)]} settings',
        'behind in two settings', f'{-worst:.1f} and {-best:.1f} points',
        'a third no difference', _signed(float(even['difference']), 1))


def test_the_variance_falls_more_slowly_without_l2():
  rows = [row for row in _table('vanishing_variance', 'outputs')
          if not row['cell'].startswith('lookup')]
  with_l2 = [row for row in rows if row['cell'].startswith('l2')]
  without = [row for row in rows if not row['cell'].startswith('l2')]
  assert len(with_l2) == 6 and all(
      abs(float(row['slope']) + 1) < 0.02 for row in with_l2)
  index = results.index(
      row for row in results.read_rows(_RESULTS / 'lookup_growing/results.csv')
      if row.metric == 'component_variance')
  lookup, _ = slopes_at_the_end(*plots.values(index, 'none', 'component_variance'))
  _says(_finding('The variance'), '1/N',
        f'N^{_signed(max(float(row["slope"]) for row in without), 2)}',
        f'N^{_signed(mean_interval(lookup)[0], 2)}')


def test_layer_norm_is_behind_in_lookup_at_a_constant_rate():
  plain, = _table('sensitivity', 'sensitivity', cell='lookup', arm='LN', step='10000')
  first, first_interval = _behind(
      plain, 'holm_difference', 'holm_ci_low', 'holm_ci_high')
  decayed, = _table('lookup', 'primary_endpoint', comparison='LN - Baseline')
  second, second_interval = _behind(decayed)
  tuned, = _table('league', 'league', task='lookup', arm='layer_norm')
  assert (tuned['verdict'], tuned['learning_rate']) == ('ahead', '0.001')
  half = _interval(tuned, form=_plain)
  _says(_finding('In lookup LayerNorm is behind at a constant rate'),
        f'{first:.1f} points', first_interval, f'{second:.1f}', second_interval, half)
  page = _page('docs/vanishing_variance.md').replace('**', '')
  assert page.count(f'+{half}') == 3
  other, = _table('league', 'league', task='retrieval', arm='layer_norm')
  assert (other['verdict'], other['learning_rate']) == ('no difference found', '0.003')
  assert f'tuned rate of 3e-3 to 0 over 4,000 steps: {_interval(other)} |' in page
  growing, = _table('lookup_growing', 'primary_endpoint', comparison='LN - Baseline')
  assert growing['at_5_percent'] == 'no difference found'


def test_recency_is_that_of_the_paper():
  rows = _table('recency_bias', 'recency_probability')
  published = [row for row in rows if row['published'] != 'nan']
  most = max(float(row['difference_in_errors']) for row in published)
  # The least width at which no bias is left in the last layer.
  fades = [
      min(int(row['width']) for row in rows
          if row['layer'] == '4' and row['setting'] == f'LayerNorm, alpha = {alpha}'
          and f'{float(row["recency_probability"]):.3f}' == '0.500')
      for alpha in ('0', '0.5')
  ]
  _says(_finding('recency bias'), f'{len(published)} published',
        f'{most:.1f} standard errors', f'width {fades[0]}', f'{fades[1]:,}', '0.5')


def test_numbers_of_bits_are_right_up_to_a_length():
  rows = [_table(run, 'figure_1c', model='1/sqrt y')[0]
          for run in ('counting', 'counting_steps', 'counting_larger')]
  assert min(float(row['error_35']) for row in rows) > 1
  up_to = [int(row['right_up_to']) for row in rows]
  _says(_finding('Counting'), '1/√y', f'{min(up_to)} to {max(up_to)} bits',
        'up to 35')


def test_the_misalignment_term_does_not_help():
  near, = _table('language_model', 'alpha_by_length', arm='alpha_0_1', multiple='1')
  far, = _table('language_model', 'alpha', arm='alpha_0_1', primary='True')
  far = [_signed(float(far[x]), 3) for x in ('difference', 'ci_low', 'ci_high')]
  center, low, high = (
      float(near[f'nll_{x}']) for x in ('difference', 'ci_low', 'ci_high'))
  _says(_finding('misalignment term'), 'weight 0.1',
        f'{far[0]} nats [{far[1]}, {far[2]}]', 'four times',
        f'{_signed(center, 4)} [{low:.4f}, {high:.4f}]')
  farther, = _table('language_model', 'alpha_by_length', arm='alpha_0_1', multiple='8')
  center, low, high = (
      float(farther[f'nll_{x}']) for x in ('difference', 'ci_low', 'ci_high'))
  _says(_finding('misalignment term'),
        f'{_signed(center, 3)} [{low:.3f}, {high:.3f}] at eight times')


def test_the_misalignment_term_harms_in_fine_tuning_as_entropy_alone_does():
  rows = _table('adapt', 'term')
  changes = [float(row['difference']) for row in rows]
  assert len(rows) == 4 and all(float(row['ci_low']) > 0 for row in rows)
  assert all(float(row['entropy_ci_low']) > 0 for row in rows)
  assert all(float(row['symmetric_kl_ci_low']) < 0 < float(
      row['symmetric_kl_ci_high']) for row in rows)
  assert {row['seeds'] for row in rows} == {'12'}
  _says(_finding('misalignment term'), 'each of four methods',
        f'{min(changes):.3f} to {max(changes):.3f} nats', 'penalty of entropy alone')


def test_hypotheses_of_fine_tuning_are_decided_by_their_intervals():
  page = (_RESULTS / 'adapt/README.md').read_text()
  told = [line.split('|')[3:-1] for line in page.splitlines()
          if re.match(r'\| \d \|', line)][:6]
  assert len(told) == 6
  for place, row in enumerate(_table('adapt', 'term')):
    values = lambda kind, row=row: [
        float(row[f'{kind}{x}']) for x in ('difference', 'ci_low', 'ci_high')]
    at, of_control = (_table('adapt', f'{row["method"]}_by_length', multiple='2',
                             arm=f'{row["method"]}{x}')[0] for x in ('_alpha_0_1', ''))
    less, more = values('weight_0_03_'), values('weight_0_3_')
    share = [float(at[f'symmetric_kl_{x}']) / float(of_control['symmetric_kl'])
             for x in ('difference', 'ci_low', 'ci_high')]
    term, beyond, aligned, equal = map(
        values, ('', 'beyond_entropy_', 'symmetric_kl_', 'equal_time_'))
    inside = lambda x: -0.01 < x[1] and x[2] < 0.01
    expected = [
        (term[1] > 0, [_change(term, 3)]), (inside(beyond), [_change(beyond, 4)]),
        (inside(aligned), [_change(aligned, 4)]),
        (less[2] < 0 < more[1], [_change(less, 3), _change(more, 3)]),
        (equal[1] > 0, [_change(equal, 3)]),
        (share[1] > -0.1, ['{:+.0f} % [{:+.0f}, {:+.0f}]'.format(
            *(100 * x for x in share)).replace('-', '−')])]
    for cells, (holds, numbers) in zip(told, expected, strict=True):
      cell = cells[place]
      assert ('**holds**' in cell) == holds and ('undecided' in cell) == (not holds)
      assert all(number in cell for number in numbers), (cell, numbers)


def _of_correlations(table, **wanted):
  row, = _table('correlation', table, **wanted)
  return row


def _found_of_correlations(words):
  """Returns the part of what the study of correlations found that begins so."""
  page = _page('experiments/results/correlation/README.md')
  found = page.partition('## What was found ')[2].partition('## ')[0]
  part, = (x for x in re.split(r' - (?=\*\*)', found) if x.startswith(f'**{words}'))
  return part


def _r(row, name='spearman'):
  """Returns such as '+0.13 [−0.19, +0.42]'."""
  return _interval(row, name, f'{name}_low', f'{name}_high', digits=2)


def _fall(row):
  """Returns such as '0.021 [0.003, 0.039]' of a change of −0.021."""
  return '{:.3f} [{:.3f}, {:.3f}]'.format(
      *(-float(row[x]) for x in ('difference', 'ci_high', 'ci_low')))


def _excludes_0(row, name='spearman'):
  return float(row[f'{name}_low']) > 0 or float(row[f'{name}_high']) < 0


def test_neither_is_found_to_predict_results_on_longer_inputs():
  ours = lambda outcome, name: _of_correlations(
      'table_1', outcome=outcome, predictor=name, source='ours')
  predictors = 'misalignment', 'training loss'
  control, beyond = (
      _of_correlations('groups', outcome=x, group='the same positions and L')
      for x in ('score_near', 'nll_beyond'))
  rows = {row['predictor']: row
          for row in _table('correlation', 'measures', outcome='score_near')}
  sce, agree, js = rows['sce'], rows['top1_agreement'], rows['js']
  found = [_r(ours('score_near', x)) for x in predictors]
  compared = ours('score_near', 'misalignment')['models']
  plain = len(_table('correlation', 'models', weight='0'))
  papers = _of_correlations('table_1', outcome='score', predictor='misalignment',
                            source='the paper')
  _says(_found_of_correlations('Neither'), str(plain), compared, *found,
        _r(ours('score_near', 'misalignment'), 'gain'), _r(papers, 'gain'),
        _r(control, 'misalignment'), _r(control, 'loss'))
  _says(_page('docs/long_short_alignment.md'),
        f'{compared} models of 2 layers, of {plain}', *found,
        *(_r(ours('nll_beyond', x)) for x in predictors),
        *(_r(ours(x, 'misalignment'), 'gain') for x in ('score_near', 'nll_beyond')),
        _r(beyond, 'loss'), 'neither is found',
        _change([float(sce[f'gain{x}']) for x in ('', '_low', '_high')], 2))
  assert f'Over {compared} small models [neither' in _README
  assert not any(_excludes_0(ours(x, name)) for name in predictors
                 for x in ('score_near', 'score_far', 'nll_beyond'))
  assert not any(_excludes_0(control, x) for x in ('misalignment', 'loss'))
  logs = _of_correlations('table_1', outcome='nll', predictor='misalignment',
                          source='the paper')
  rope = _of_correlations('groups', outcome='score_near', group='RoPE 10,000')
  _says(_found_of_correlations('Over all models'),
        *(_signed(row['spearman'], 2) for row in (papers, logs)),
        _signed(ours('score_near', 'misalignment')['spearman_low'], 2),
        _signed(sce['spearman_low'], 2),
        _r(ours('nll_beyond', 'misalignment')), _r(rope, 'misalignment'),
        _r(rope, 'loss'))
  assert rope['models'] == '12'
  _says(_found_of_correlations('Log perplexity'), _r(beyond, 'loss'),
        _r(beyond, 'misalignment'))
  assert _excludes_0(beyond, 'loss') and not _excludes_0(beyond, 'misalignment')

  _says(_found_of_correlations('On other scales'), _r(sce),
        _r(sce, 'partial_spearman'), *(
            _signed(rows[f'entropy_{x}']['partial_spearman'], 2)
            for x in ('first', 'second')),
        _r(rows['symmetric_kl'], 'partial_spearman'), _r(agree), _r(js, 'pearson'),
        _r(agree, 'within'), _r(js, 'within'))
  assert all(float(row['spearman_high']) > 0 for x, row in rows.items()
             if x != 'top1_agreement')  # of which high is aligned
  assert min(float(row['spearman']) for row in _table('correlation', 'dialects')) > .985
  assert 'is 0.985 or more' in _found_of_correlations('Dialects')


def test_positions_decide_over_the_models_of_the_study():
  models = [{key: float(row[key]) if key.startswith(('score', 'train', 'symm', 'short'))
             else row[key] for key in row}
            for row in _table('correlation', 'models', weight='0', not_learned='')]
  alibi, rope = ([row for row in models if row['label'].startswith(name)]
                 for name in ('ALiBi', 'RoPE'))
  mean = lambda rows, name='score_near': sum(row[name] for row in rows) / len(rows)
  low = [row for row in models if row['score_near'] < row['shortcut_near']]
  bases = [[row for row in rope if row['model'].startswith(base)]
           for base in ('high_base', 'low_base', 'rope')]
  assert [len(rows) for rows in bases] == [11, 12, 12]
  assert len(models) == 47 and len(alibi) == 12 and all(row in rope for row in low)
  ends = lambda rows: [f(row['score_near'] for row in rows) for f in (min, max)]
  _says(_found_of_correlations('The large'), f'{mean(alibi):.2f}',
        '{:.2f} to {:.2f}'.format(*ends(alibi)), str(len(rope)), f'{mean(rope):.2f}',
        '{:.0f} to {:.2f}'.format(*ends(rope)), str(len(low)),
        f'{models[0]["shortcut_near"]:.3f}',
        *(f'{mean(rows, name):.{digits}f}' for name, digits in (
            ('training_cross_entropy', 3), ('symmetric_kl', 4))
          for rows in (alibi, rope)), *(
            f'{mean(rows, "symmetric_kl"):.4f}' for rows in bases),
        *(f'{mean(rows):.2f}' for rows in bases))


def test_the_term_brought_no_gain_to_the_models_of_the_study():
  term = {row['words']: row for row in _table('correlation', 'term')}
  change = term['score up to 2 L']
  learned = {row['model']: not row['not_learned']
             for row in _table('correlation', 'models')}
  pairs = {name: learned[name.removesuffix('_term')] and found
           for name, found in learned.items() if name.endswith('_term')}
  both = [name for name, found in pairs.items() if found]
  assert all(learned[name.removesuffix('_term')] for name in pairs)
  assert (len(pairs), len(both)) == (20, 14) == (20, int(change['pairs']))
  interval = _interval(change, digits=3)
  _says(_found_of_correlations('No gain'), str(len(both)), interval,
        _fall(term['SCE at L']),
        _interval(term['symmetric KL at L'], digits=3),
        _fall(term['score at L']),
        _interval(term['log perplexity at L'], digits=3).replace('+', ''),
        f'{sum("alibi" not in name for name in both)} of the {len(both)}',
        _interval(term['score at L, all pairs'], digits=3),
        _interval(term['score up to 2 L, all pairs'], digits=3))
  missed = {row['model']: row['not_learned'].split(', ')
            for row in _table('correlation', 'models') if row['not_learned']}
  of_term = {name: tasks for name, tasks in missed.items() if name in pairs}
  assert sorted(('alibi' in name, *tasks) for name, tasks in of_term.items()) == [
      *2 * [(False, 'niah_single', 'niah_multikey')], *4 * [(True, 'niah_multikey')]]
  _says(_page('docs/long_short_alignment.md'), f'{len(both)} pairs of models', interval,
        _interval(term['score up to 2 L, all pairs'], digits=3), 'no gain found')


def _page(path):
  return ' '.join((ROOT / path).read_text().split())


def test_hypotheses_on_retrieval_are_decided_by_the_tables_of_the_league():
  page = _page('experiments/results/league/README.md')
  found = page.partition('## What was found ')[2].partition('Until 2026')[0]
  said = dict(re.findall(r'- \*\*(\d) (.*?)(?= - \*\*\d |$)', found))
  of = lambda name, **wanted: _table('league', name, task='retrieval', **wanted)
  arms = {row['arm']: row for row in of('league')}
  laws = 'log_n', 'ssmax', 'linear'
  assert said['1'].startswith('is not confirmed.**')
  assert [float(arms[arm]['ci_low']) > 5 for arm in laws] == [False, True, True]
  assert all(_interval(arms[arm]) in said['1'] for arm in laws)
  assert 4 < min(float(arms[arm]['ci_low']) for arm in laws)
  assert 'All three gain 4 points or more.' in said['1']

  far = {arm: max(-float(arms[arm]['ci_low']), float(arms[arm]['ci_high']))
         for arm in ('layer_norm', 'rms_norm', 'sink', 'l2_softmax')}
  assert said['2'].startswith('holds.**') and max(far.values()) < 2
  assert max(far, key=far.get) == 'l2_softmax'
  worst = arms['l2_softmax']
  assert f'{_interval(worst)}, which is behind softmax (p = ' in said['2']
  assert f'(p = {float(worst["p"]):.3f})'.replace('0.', '.') in said['2']
  assert [arms[arm]['verdict'] for arm in far] == 3 * ['no difference found'] + [
      'behind']

  pair = lambda *names: of('contrasts', first=names[0], second=names[1])[0]
  there = ('longest_difference', 'longest_ci_low', 'longest_ci_high')
  log_n, ssmax = pair('linear', 'log_n'), pair('linear', 'ssmax')
  assert said['3'].startswith('holds by its criterion**')
  assert float(log_n['longest_ci_low']) > 0 > float(ssmax['longest_ci_low'])
  _says(said['3'], '16,384', _interval(log_n, *there), _interval(ssmax, *there),
        _interval(ssmax))

  assert said['4'].startswith('holds by its criterion**')
  [p] = of('scalars', arm='power')
  learned = _interval(p, 'value', 'value_low', 'value_high', _plain, 3)
  [needs], [gains] = of('needs'), of('at_inference')
  fitted = _interval(
      needs, *(f'power_in_training{end}' for end in ('', '_low', '_high')), _plain, 2)
  gained = ('trained_power_difference', 'trained_power_ci_low', 'trained_power_ci_high')
  assert float(p['value_high']) < 0.2 and float(pair('linear', 'power')['ci_low']) > 0
  _says(said['4'], learned, _interval(pair('linear', 'power')), fitted)
  assert f'gains {_interval(gains, *gained)} at'.replace(' [', ' points [') in said['4']

  # The page of the league says the same.
  docs = _page('docs/league.md').partition('**Found so far**')[2].partition('## ')[0]
  _says(docs, *(_interval(arms[arm]) for arm in ('linear', 'ssmax', 'log_n')))
  assert all(abs(float(arms[arm][end])) < 1 for end in ('ci_low', 'ci_high')
             for arm in ('layer_norm', 'rms_norm', 'sink'))
  assert _interval(gains, *gained).replace(']', ', uncorrected]') in docs
  more = lambda row: '{:.1f} points [{:.1f}, {:.1f}, uncorrected]'.format(
      *(float(row[x]) for x in ('difference', 'ci_low', 'ci_high')))
  assert f'by {more(ssmax)}' in docs
  assert {arm for arm, row in arms.items() if row['verdict'] == 'behind'} == {
      'l2_softmax', 'qk_norm', 'qk_norm_log_n', 'sigmoid'}
  gated = _interval(arms['gated'])
  assert f'Of gated attention none was found either, {gated}.' in docs
  assert arms['gated']['verdict'] == 'no difference found'

  on_top = {law: pair(f'{law}_layer_norm', law) for law in (
      'ssmax', 'log_n', 'sqrt_log_n', 'power', 'linear', 'adaptive')}
  inside = {law: -2 < float(row['ci_low']) and float(row['ci_high']) < 2
            for law, row in on_top.items()}
  assert said['5'].startswith('is not confirmed.**')
  assert inside['linear'] and not inside['log_n']
  values = {row['arm']: float(row['value']) for row in of('scalars')}
  _says(said['5'], *(_interval(on_top[law]) for law in (
      'linear', 'log_n', 'ssmax', 'power')),
        f'{values["power_layer_norm"]:.3f}', f'{values["power"]:.3f}')
  little = sorted(float(on_top[law]['difference']) for law, is_in in inside.items()
                  if is_in)
  _says(docs, '{} and {} points for four of six'.format(
      *(_signed(little[i], 1) for i in (0, -1))),
        more(on_top['power']),
        _interval(on_top['log_n']).replace(']', ', uncorrected]'))
  assert len(little) == 4


def test_what_is_said_of_lookup_is_in_the_tables_of_the_league():
  page = _page('experiments/results/league/README.md')
  said = page.partition('- **6 ')[2].partition('Until 2026')[0]
  docs = _page('docs/league.md').partition('On lookup, where')[2].partition('## ')[0]
  of = lambda name, **wanted: _table('league', name, task='lookup', **wanted)
  arms = {row['arm']: row for row in of('league')}
  ahead = ['log_n', 'linear', 'ssmax', 'sqrt_log_n']
  behind = ['power', 'adaptive']
  # It fails if a law is ahead, or the interval of LN lies above −5.
  assert said.startswith('fails**') and float(arms['layer_norm']['ci_low']) > -5
  assert {arm for arm, row in arms.items() if row['verdict'] == 'ahead'} == {
      *ahead, 'layer_norm'}
  assert {arm for arm, row in arms.items() if row['verdict'] == 'behind'} == {*behind}
  _says(said, *(_interval(arms[arm]) for arm in (*ahead, 'layer_norm')))
  [harm] = of('contrasts', first='linear', second='log_n')
  _says(docs, *(_interval(arms[arm]) for arm in ahead),
        _interval(harm).replace(']', ', uncorrected]'),
        *(_interval(arms[arm]) for arm in ('layer_norm', *behind)))
  there = _interval(harm, 'longest_difference', 'longest_ci_low', 'longest_ci_high')
  assert f'β ∝ n − log n is {_interval(harm)}, at 16,384 items {there}.' in said
  [softmax] = _table('league', 'by_length_lookup', arm='softmax')
  right = {n: float(softmax[f'accuracy_{n}']) for n in (16, 32, 64, 128, 256, 512)}
  parts = f'{right[512]:.1f}', f'{float(softmax["accuracy_16384"]):.1f}'
  assert min(right.values()) == right[512]
  _says(said, *parts)
  _says(docs, *parts, f'(mean {float(arms["log_n"]["control"]):.1f} %)')

  [p], [needs], [gains] = of('scalars', arm='power'), of('needs'), of('at_inference')
  gain = lambda law: _interval(
      gains, *(f'{law}_{x}' for x in ('difference', 'ci_low', 'ci_high')))
  _says(said, _interval(p, 'value', 'value_low', 'value_high', _plain, 3),
        *(_interval(arms[arm]) for arm in behind), gain('adaptive'))
  losses = {row['arm']: float(row[f'loss_{float(row["learning_rate"]):g}'])
            for row in of('tuning') if row['arm'] in arms or row['arm'] == 'softmax'}
  assert {*sorted(losses, key=losses.get)[:2]} == {*behind}
  assert len(losses) == len(arms) + 1
  assert f'those of these two are the least of all {_WORDS[len(losses)]} arms' in said
  assert f'training moves p below 0, to {_signed(p["value"], 3)}' in docs

  powers = lambda row, name: _interval(
      row, *(f'{name}{x}' for x in ('', '_low', '_high')), _plain, 2)
  [other] = _table('league', 'needs', task='retrieval')
  _says(said, powers(needs, 'power'), f'{int(needs["power_to"]):,}',
        powers(needs, 'power_of_log'), powers(other, 'power'), other['power_to'])
  _says(said, gain('trained_power'), _plain(gains['applied_trained_power'], 2))
  _says(docs, gain('trained_power').replace(']', ', uncorrected]'),
        *(_plain(row['power'], 2) for row in (other, needs)),
        _plain(needs['power_of_log'], 2),
        *(_plain(row['power_in_training'], 2) for row in (other, needs)))
  [at_retrieval] = _table('league', 'at_inference', task='retrieval')
  [linear] = _table('league', 'league', task='retrieval', arm='linear')
  _says(_finding('What carries to longer inputs depends on the task'),
        *(_plain(row['difference'], 1) for row in (linear, arms['linear'])),
        *(_plain(row['trained_power_difference'], 1) for row in (at_retrieval, gains)))


def test_what_is_said_of_set_complement_is_in_the_tables_of_the_league():
  page = _page('experiments/results/league/README.md')
  said = page.partition('On set complement: ')[2].partition('Until 2026')[0]
  docs = _page('docs/league.md').partition('On set complement, where all')[2].partition(
      'Of the two tasks')[0]
  of = lambda task: {row['arm']: row for row in _table('league', 'league', task=task)}
  arms, retrieval = of('set_complement'), of('retrieval')
  accuracy = {row['arm']: row for row in _table('league', 'by_length_set_complement')}
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
  assert f'{half:.1f}, half of LN\'s' in page and said.strip().startswith('- **7 holds')
  assert min(ends(arm)[0] for arm in norms[1:]) > 5.6 == round(half, 1)
  beyond = (24, 32, 40, 48, 56, 60)
  assert all(float(accuracy['layer_norm'][f'accuracy_{n}']) > float(
      accuracy['softmax'][f'accuracy_{n}']) for n in beyond)
  at = lambda n, arm: _plain(accuracy[arm][f'accuracy_{n}'], 1)
  shown = lambda *names: [
      re.sub(r'[+−]0\.0\b', '0.0', _interval(arms[arm])) for arm in names]
  index = results.index(row for row in results.read_rows(
      ROOT / 'experiments/results/league/results.csv')
      if row.experiment == 'set_complement')
  slopes = {arm: _slope_of_gap(index, arm) for arm in accuracy}
  badly = {arm: sum(x > 1e-3 for x in index[arm, 'training_loss', None].values())
           for arm in accuracy}
  by_holm = f'p = {float(arms["ssmax"]["p"]):.3f}'.replace('0.', '.')
  _says(said, *shown('rms_norm', 'standardize', 'layer_norm'), at(60, 'layer_norm'),
        at(60, 'softmax'), *shown('sigmoid'), at(60, 'sigmoid'), *shown('l2_softmax'),
        at(60, 'l2_softmax'),
        *(_signed(slopes[arm], 2) for arm in (
            'softmax', 'standardize', 'rms_norm', 'layer_norm', 'l2_softmax',
            'sigmoid')), '+0.3', by_holm,
        _interval(arms['ssmax'], digits=2).removeprefix('+'),
        *shown('linear', 'linear_layer_norm'), '+11.2', *shown('entmax', 'sink'),
        str(badly['entmax']), str(badly['sink']),
        *shown('qk_norm', 'qk_norm_log_n'), at(16, 'qk_norm'), at(16, 'softmax'),
        *shown('gated'))
  assert (badly['softmax'], badly['ssmax']) == (3, 0)
  # All norms lie between softmax and L2 softmax.
  assert all(slopes['softmax'] < slopes[arm] < slopes['l2_softmax'] for arm in norms)
  _says(docs, *shown('sigmoid', 'l2_softmax'),
        *(f'{-float(retrieval[arm]["difference"]):.1f}'
          for arm in ('sigmoid', 'l2_softmax')), *shown(*norms), '+0.3',
        *shown('linear'), '+11.2', *shown('linear_layer_norm'))

  laws = ['ssmax', 'log_n', 'sqrt_log_n', 'power', 'linear', 'adaptive']
  assert max(ends(arm)[1] for arm in laws) < 0.3
  assert is_in('ahead') & {*laws} == {'ssmax'} and ends('ssmax')[0] < 0
  assert f'by {gain("ssmax"):.2f} points with an interval that holds 0' in _page(
      'docs/league.md')
  assert is_in('no difference found') == {'log_n', 'sqrt_log_n', 'adaptive', 'gated'}
  assert _signed(gain('power'), 1) == '−0.1' and arms['power']['verdict'] == 'behind'
  on_top = {_signed(gain(f'{law}_layer_norm'), 1) for law in laws if law != 'linear'}
  assert on_top == {_signed(gain('layer_norm'), 1)} == {'+11.2'}
  lose = ['entmax', 'sink', 'qk_norm', 'qk_norm_log_n']
  assert is_in('behind') == {*lose, 'linear', 'power'}
  least, most = (f'{-end(map(gain, lose)):.1f}' for end in (max, min))
  assert f'lose {least} to {most} points' in docs
  assert min(retrieval, key=lambda arm: float(
      retrieval[arm]['difference'])) == 'sigmoid'  # last there

  noted = lambda words: {
      row['arm'] for row in _table('league', 'tuning', task='set_complement')
      if words in row['notes']}
  assert noted('not decided') == {
      *norms, *(f'{law}_layer_norm' for law in laws), 'linear', 'entmax'}
  assert noted('at the edge') == {'qk_norm', 'qk_norm_log_n'}
  _says(_finding('What carries to longer inputs depends on the task'),
        f'lose {-gain("linear"):.1f} points',
        _interval(arms['layer_norm'], form=_plain),
        f'{gain("linear_layer_norm"):.1f}', f'{gain("sigmoid"):.1f}',
        f'loses {-float(retrieval["sigmoid"]["difference"]):.1f}')
  _says(_page('docs/vanishing_variance.md'),
        *(_interval(arms[arm], form=_plain) for arm in ('layer_norm', 'sigmoid')))


def _slope_of_gap(index, arm, symbols=64):
  """Returns the mean slope, over seeds, of log gap of logits against log set size.

  All absent symbols are taken to have one logit, and all present ones another.
  """
  sizes = sorted(n for own, name, n in index if (own, name) == (arm, 'accuracy'))
  found = np.array([[*index[arm, 'accuracy', n].values()] for n in sizes])
  n = np.array(sizes)[:, None]
  gap = np.log(found / (1 - found) * n / (symbols - n))
  return np.polyfit(np.log(sizes), np.log(gap), 1)[0].mean()


def _change(values, digits):
  """Returns a difference and its interval, in which signs are left out if all are +."""
  texts = [_signed(x, digits) if round(x, digits) else f'{0:.{digits}f}'
           for x in values]
  low, high = (x.removeprefix('+') if values[1] > 0 else x for x in texts[1:])
  return f'{texts[0]} [{low}, {high}]'


def test_speeds_of_the_readme():
  training = {name: _benchmark(f'{name}_training') for name in (
      'retrieval', 'lookup', 'lookup_growing', 'retrieval_growing', 'counting')}
  xeon = _benchmark('lookup_training_xeon')
  ratios = [x['ratio'] for x in training.values()]
  ratios += [xeon['ratio'], xeon['redraw_ratio']]
  two = training['counting']['ratio_to_processes']
  llama = [_benchmark(name)['ratio'] for name in (
      'llama_training_second', 'llama_training')]
  attention = _benchmark('long_attention')['tokens']['16384']['ratio']['torch']
  assert 0.2 < attention < 0.3
  gpu = _benchmark('accelerator_nvidia_h200')['rows']['retrieval']['result']
  _says(_README.partition('[Speed](docs/speed.md)')[2],
        f'{min(ratios):.1f} to {max(ratios):.0f} times', f'{two:.1f} times',
        f'{llama[0]:.2f} to {llama[1]:.1f} times', '16,384 tokens', 'a quarter',
        f'{gpu["num_seeds"]} seeds', f'{gpu["ratio"]:.0f} times')


@pytest.mark.parametrize('name, row', [
    ('retrieval', 'training, 8 seeds, one device per core'),
    ('lookup', 'dictionary lookup, one device per core'),
    ('retrieval_growing', 'retrieval, lengths growing to 256'),
    ('lookup_growing', 'dictionary lookup, lengths growing to 256'),
])
def test_speeds_of_training(name, row):
  found = _benchmark(f'{name}_training')
  line, = (x for x in _SPEED.splitlines()
           if x.startswith(f'| {row}') and 'PyTorch' in x)
  _, _, ours, theirs, _ = line.split('|')
  torch = found['torch_steps_per_second']
  assert ours.strip() == f"{found['seed_steps_per_second']:,.0f}"
  assert f'PyTorch, one seed: {torch:.{0 if torch > 10 else 1}f} ' in theirs
  assert f'(**{found["ratio"]:.1f} times**)' in theirs


def test_the_rows_of_generation():
  found = _benchmark('llama_generation')
  cases = found['rows_1'], found['rows_8'], found['rows_8_prompt_2048']
  start = _SPEED.index('| greedy generation')
  lines = [x.strip('| ').split(' | ') for x in _SPEED[start:].splitlines()[:4]]
  for (_, ours, theirs), case in zip(lines, cases, strict=False):
    rates = case['tokens_per_second']
    assert ours == f"{rates['vvlen']:,.0f}"
    assert theirs.removeprefix('transformers: ').startswith(
        f"{rates['transformers']:.0f} (**{case['ratio']:.1f} times**; ")
    assert case['share_of_equal_tokens'] == 1
  compiled = cases[2]['about']['vvlen']['programs_compiled']
  assert lines[2][0].endswith(
      f'; {compiled} programs are compiled, one of which generates')
  about = {name: x['peak_bytes_beside_model'] / 1e9
           for name, x in case['about'].items()}
  assert lines[3][1:] == [f"{about['vvlen']:.2f} GB", f"{about['transformers']:.2f} GB"]
  assert f"{case['about']['vvlen']['cache_bytes'] / 1e6:.0f} MB of it" in lines[3][0]


def test_the_rows_of_a_gpu():
  rows = {name: row['result'] for name, row in
          _benchmark('accelerator_nvidia_h200')['rows'].items()}
  of_gpu = _SPEED.partition('**On a GPU**')[2]
  training, term = rows['retrieval'], rows['misalignment_term']
  chunked = rows['chunked_loss']
  gigabytes = {name: x / 1e9 for name, x in chunked['temporary_bytes'].items()}
  step = {name: f'{x:.3f} s' for name, x in term['seconds'].items()}
  mean, low, high = (
      _signed(x, 1) for x in term['percent_more_mean_and_interval'])
  for words in (
      f"| {training['seed_steps_per_second']:,.0f} | PyTorch, one seed, on the same "
      f"GPU: {training['torch_steps_per_second']:.0f} (**{training['ratio']:.0f} times",
      f"of {training['peak_gflops_per_second'] / 1000:.0f} TFLOP/s that was measured "
      f"beside it | {training['share_of_matrix_peak']:.0%} |".replace('%', ' %'),
      f"| {gigabytes['chunked']:.2f} GB | all logits at once: "
      f"{gigabytes['plain']:.1f} GB (**{100 * chunked['memory_ratio']:.1f} %**)",
      f"| {chunked['seconds']['chunked']:.3f} s | {chunked['seconds']['plain']:.3f} s "
      f"({chunked['time_ratio']:.1f} times the time)",
      f"all logits at once {step['plain_aligned']} | without it "
      f"{step['plain_baseline']} (**{_signed(term['plain_percent_more'], 1)} %**); in "
      f"chunks {step['aligned']} with it, {step['baseline']} without (median "
      f"{_signed(term['percent_more'], 1)} %, mean {mean} % [{low}, {high}])",
  ):
    assert words in of_gpu, words


# What README says of commands.


def test_the_first_command_does_what_is_said_of_it():
  config = importlib.import_module('configs.retrieval').get_config('quick')
  assert config.arms == ('none', 'standardize', 'layer_norm')
  assert config.optimizer.l2 > 0
  longest = max(config.evaluate.lengths).bit_length() - 1
  assert max(config.evaluate.lengths) == 2**longest
  commands, _, rest = _README.partition('## Two commands ')[2].partition('## ')
  _says(commands, 'The first command', f'{config.num_seeds} seeds', 'with weight decay',
        f'2^{longest}', f'`train.seeds_at_once` ({config.train.seeds_at_once} in')
  for name in ('retrieval', 'lookup'):
    train = importlib.import_module(f'configs.{name}').get_config('cpu').train
    _says(rest, f'rained on {train.min_length} to {train.max_length} items')


def test_versions_exit_codes_and_the_cache_are_those_of_the_code(monkeypatch):
  setup = configparser.ConfigParser()
  setup.read(ROOT / 'setup.cfg')
  [least, end] = re.fullmatch(
      r'>=3\.(\d+),<3\.(\d+)', setup['options']['python_requires']).groups()
  _says(_README, f'Python 3.{least} to 3.{int(end) - 1}')
  _says(_README, 'Wrong input ends', 'exit code 2', f'network with {errors.TRY_AGAIN}')
  monkeypatch.delenv('XDG_CACHE_HOME', raising=False)
  home = os.path.expanduser('~')
  cache = machine.cache_folder().replace(home, '~')
  _says(_README, f'cached in `{cache}`')


def test_each_paper_has_its_number():
  pages = {'vanishing variance': 'vanishing_variance', 'recency bias': 'recency_bias',
           'long-short alignment': 'long_short_alignment'}
  for name, page in pages.items():
    heading = (ROOT / f'docs/{page}.md').read_text().splitlines()[0]
    number = re.search(r'\(arXiv ([\d.]+)\)', heading)[1]
    line = _README.partition(f'*{name}*')[2]
    found = re.search(r'arXiv ([\d.]+)\]\(https://arxiv\.org/abs/([\d.]+)\)', line)
    assert found.groups() == (number, number), name


def test_the_studies_and_variants_of_the_table_exist():
  table = _README.partition('| paper | command | result |')[2].partition('## ')[0]
  named = [match.groups() for match in re.finditer(r'`([a-z_]+)(?::(\w+))?`', table)]
  assert len(named) >= 9 and ('sensitivity', 'cpu') in named
  for name, variant in named:
    assert (ROOT / f'experiments/{name}/__main__.py').exists(), name
    config = importlib.import_module(f'configs.{name}')
    assert config.get_config(variant) if variant else config.get_config()
  growing = re.findall('both configs with `:(\\w+)`', table)
  assert growing == ['cpu_growing']
  for name in ('retrieval', 'lookup'):
    importlib.import_module(f'configs.{name}').get_config(growing[0])
