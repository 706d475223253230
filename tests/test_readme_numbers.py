"""What README and docs/speed.md state are the committed results, and the code."""

import configparser
import importlib
import json
import os
import re

import pytest

from experiments.harness import errors, machine
from experiments.length_generalization.slopes import slopes_at_the_end
from tests.conftest import ROOT
from tests.texts import (
  finding,
  interval,
  page,
  plain,
  README,
  RESULTS,
  says,
  signed,
  table,
)
from vvlen.reporting import plots, results
from vvlen.statistics import mean_interval

_SPEED = (ROOT / 'docs/speed.md').read_text()
_WORDS = {1: 'one', 2: 'two', 3: 'three', 4: 'four', 5: 'five', 8: 'eight'}


def _benchmark(name):
  return json.loads((RESULTS / 'benchmarks' / f'{name}.json').read_text())


def _behind(row, difference='difference', low='ci_low', high='ci_high'):
  """Returns 4.4 and '[2.0, 6.8]' for a difference of −4.4 points."""
  center, low, high = (-float(row[name]) for name in (difference, high, low))
  assert center > low > 0
  return center, f'[{low:.1f}, {high:.1f}]'


def test_layer_norm_helps_in_retrieval_without_weight_decay():
  rows = [row for row in table('vanishing_variance', 'verdicts')
          if row['setting'].startswith('retrieval') and row['difference'] != 'nan']
  undecayed = [row for row in rows if float(row['l2']) == 0]
  decayed = [row for row in rows if float(row['l2']) > 0]
  assert {row['verdict'] for row in undecayed} == {'LN ahead'}
  behind = [row for row in decayed if row['verdict'] == 'LN behind']
  (even,) = (row for row in decayed if row['verdict'] == 'no difference found')
  assert len(behind) == 2 == len(decayed) - 1
  least, most = (f(float(row['difference']) for row in undecayed) for f in (min, max))
  worst, best = sorted(float(row['difference']) for row in behind)
  says(finding('without weight decay'),
       f'{least:.1f} to {most:.1f} points', f'{_WORDS[len(undecayed)]} settings',
       'behind in two settings', f'{-worst:.1f} and {-best:.1f} points',
       'a third no difference', signed(float(even['difference']), 1))


def test_the_variance_falls_more_slowly_without_l2():
  rows = [row for row in table('vanishing_variance', 'outputs')
          if not row['cell'].startswith('lookup')]
  with_l2 = [row for row in rows if row['cell'].startswith('l2')]
  without = [row for row in rows if not row['cell'].startswith('l2')]
  assert len(with_l2) == 6 and all(
      abs(float(row['slope']) + 1) < 0.02 for row in with_l2)
  index = results.index(
      row for row in results.read_rows(RESULTS / 'lookup_growing/results.csv')
      if row.metric == 'component_variance')
  lookup, _ = slopes_at_the_end(*plots.values(index, 'none', 'component_variance'))
  says(finding('The variance'), '1/N',
       f'N^{signed(max(float(row["slope"]) for row in without), 2)}',
       f'N^{signed(mean_interval(lookup)[0], 2)}')


def test_layer_norm_is_behind_in_lookup_at_a_constant_rate():
  constant, = table('sensitivity', 'sensitivity', cell='lookup', arm='LN', step='10000')
  first, first_interval = _behind(
      constant, 'holm_difference', 'holm_ci_low', 'holm_ci_high')
  decayed, = table('lookup', 'primary_endpoint', comparison='LN - Baseline')
  second, second_interval = _behind(decayed)
  tuned, = table('league', 'league', task='lookup', arm='layer_norm')
  assert (tuned['verdict'], tuned['learning_rate']) == ('ahead', '0.001')
  half = interval(tuned, form=plain)
  says(finding('In lookup LayerNorm is behind at a constant rate'),
       f'{first:.1f} points', first_interval, f'{second:.1f}', second_interval, half)
  text = page('docs/vanishing_variance.md').replace('**', '')
  assert text.count(f'+{half}') == 3
  other, = table('league', 'league', task='retrieval', arm='layer_norm')
  assert (other['verdict'], other['learning_rate']) == ('no difference found', '0.003')
  assert f'tuned rate of 3e-3 to 0 over 4,000 steps: {interval(other)} |' in text
  growing, = table('lookup_growing', 'primary_endpoint', comparison='LN - Baseline')
  assert growing['at_5_percent'] == 'no difference found'


def test_recency_is_that_of_the_paper():
  rows = table('recency_bias', 'recency_probability')
  published = [row for row in rows if row['published'] != 'nan']
  most = max(float(row['difference_in_errors']) for row in published)
  # The least width at which no bias is left in the last layer.
  fades = [
      min(int(row['width']) for row in rows
          if row['layer'] == '4' and row['setting'] == f'LayerNorm, alpha = {alpha}'
          and f'{float(row["recency_probability"]):.3f}' == '0.500')
      for alpha in ('0', '0.5')
  ]
  says(finding('recency bias'), f'{len(published)} published',
       f'{most:.1f} standard errors', f'width {fades[0]}', f'{fades[1]:,}', '0.5')


def test_numbers_of_bits_are_right_up_to_a_length():
  rows = [table(run, 'figure_1c', model='1/sqrt y')[0]
          for run in ('counting', 'counting_steps', 'counting_larger')]
  assert min(float(row['error_35']) for row in rows) > 1
  up_to = [int(row['right_up_to']) for row in rows]
  says(finding('Counting'), '1/√y', f'{min(up_to)} to {max(up_to)} bits',
       'up to 35')


def test_the_misalignment_term_does_not_help():
  near, = table('language_model', 'alpha_by_length', arm='alpha_0_1', multiple='1')
  far, = table('language_model', 'alpha', arm='alpha_0_1', primary='True')
  far = [signed(float(far[x]), 3) for x in ('difference', 'ci_low', 'ci_high')]
  center, low, high = (
      float(near[f'nll_{x}']) for x in ('difference', 'ci_low', 'ci_high'))
  says(finding('misalignment term'), 'weight 0.1',
       f'{far[0]} nats [{far[1]}, {far[2]}]', 'four times',
       f'{signed(center, 4)} [{low:.4f}, {high:.4f}]')
  farther, = table('language_model', 'alpha_by_length', arm='alpha_0_1', multiple='8')
  center, low, high = (
      float(farther[f'nll_{x}']) for x in ('difference', 'ci_low', 'ci_high'))
  says(finding('misalignment term'),
       f'{signed(center, 3)} [{low:.3f}, {high:.3f}] at eight times')


def test_the_misalignment_term_harms_in_fine_tuning_as_entropy_alone_does():
  rows = table('adapt', 'term')
  changes = [float(row['difference']) for row in rows]
  assert len(rows) == 4 and all(float(row['ci_low']) > 0 for row in rows)
  assert all(float(row['entropy_ci_low']) > 0 for row in rows)
  assert all(float(row['symmetric_kl_ci_low']) < 0 < float(
      row['symmetric_kl_ci_high']) for row in rows)
  assert {row['seeds'] for row in rows} == {'12'}
  says(finding('misalignment term'), 'each of four methods',
       f'{min(changes):.3f} to {max(changes):.3f} nats', 'penalty of entropy alone')


def test_hypotheses_of_fine_tuning_are_decided_by_their_intervals():
  text = (RESULTS / 'adapt/README.md').read_text()
  told = [line.split('|')[3:-1] for line in text.splitlines()
          if re.match(r'\| \d \|', line)][:6]
  assert len(told) == 6
  for place, row in enumerate(table('adapt', 'term')):
    values = lambda kind, row=row: [
        float(row[f'{kind}{x}']) for x in ('difference', 'ci_low', 'ci_high')]
    at, of_control = (table('adapt', f'{row["method"]}_by_length', multiple='2',
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


def _of_correlations(name, **wanted):
  row, = table('correlation', name, **wanted)
  return row


def _found_of_correlations(words):
  """Returns the part of what the study of correlations found that begins so."""
  text = page('experiments/results/correlation/README.md')
  found = text.partition('## What was found ')[2].partition('## ')[0]
  part, = (x for x in re.split(r' - (?=\*\*)', found) if x.startswith(f'**{words}'))
  return part


def _r(row, name='spearman'):
  """Returns such as '+0.13 [−0.19, +0.42]'."""
  return interval(row, name, f'{name}_low', f'{name}_high', digits=2)


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
          for row in table('correlation', 'measures', outcome='score_near')}
  sce, agree, js = rows['sce'], rows['top1_agreement'], rows['js']
  found = [_r(ours('score_near', x)) for x in predictors]
  compared = ours('score_near', 'misalignment')['models']
  trained = len(table('correlation', 'models', weight='0'))
  papers = _of_correlations('table_1', outcome='score', predictor='misalignment',
                            source='the paper')
  says(_found_of_correlations('Neither'), str(trained), compared, *found,
       _r(ours('score_near', 'misalignment'), 'gain'), _r(papers, 'gain'),
       _r(control, 'misalignment'), _r(control, 'loss'))
  says(page('docs/long_short_alignment.md'),
       f'{compared} models of 2 layers, of {trained}', *found,
       *(_r(ours('nll_beyond', x)) for x in predictors),
       *(_r(ours(x, 'misalignment'), 'gain') for x in ('score_near', 'nll_beyond')),
       _r(beyond, 'loss'), 'neither is found',
       _change([float(sce[f'gain{x}']) for x in ('', '_low', '_high')], 2))
  assert f'Over {compared} small models [neither' in README
  assert not any(_excludes_0(ours(x, name)) for name in predictors
                 for x in ('score_near', 'score_far', 'nll_beyond'))
  assert not any(_excludes_0(control, x) for x in ('misalignment', 'loss'))
  logs = _of_correlations('table_1', outcome='nll', predictor='misalignment',
                          source='the paper')
  rope = _of_correlations('groups', outcome='score_near', group='RoPE 10,000')
  says(_found_of_correlations('Over all models'),
       *(signed(row['spearman'], 2) for row in (papers, logs)),
       signed(ours('score_near', 'misalignment')['spearman_low'], 2),
       signed(sce['spearman_low'], 2),
       _r(ours('nll_beyond', 'misalignment')), _r(rope, 'misalignment'),
       _r(rope, 'loss'))
  assert rope['models'] == '12'
  says(_found_of_correlations('Log perplexity'), _r(beyond, 'loss'),
       _r(beyond, 'misalignment'))
  assert _excludes_0(beyond, 'loss') and not _excludes_0(beyond, 'misalignment')

  says(_found_of_correlations('On other scales'), _r(sce),
       _r(sce, 'partial_spearman'), *(
           signed(rows[f'entropy_{x}']['partial_spearman'], 2)
           for x in ('first', 'second')),
       _r(rows['symmetric_kl'], 'partial_spearman'), _r(agree), _r(js, 'pearson'),
       _r(agree, 'within'), _r(js, 'within'))
  assert all(float(row['spearman_high']) > 0 for x, row in rows.items()
             if x != 'top1_agreement')  # of which high is aligned
  assert min(float(row['spearman']) for row in table('correlation', 'dialects')) > .985
  assert 'is 0.985 or more' in _found_of_correlations('Dialects')


def test_positions_decide_over_the_models_of_the_study():
  models = [{key: float(row[key]) if key.startswith(('score', 'train', 'symm', 'short'))
             else row[key] for key in row}
            for row in table('correlation', 'models', weight='0', not_learned='')]
  alibi, rope = ([row for row in models if row['label'].startswith(name)]
                 for name in ('ALiBi', 'RoPE'))
  mean = lambda rows, name='score_near': sum(row[name] for row in rows) / len(rows)
  low = [row for row in models if row['score_near'] < row['shortcut_near']]
  bases = [[row for row in rope if row['model'].startswith(base)]
           for base in ('high_base', 'low_base', 'rope')]
  assert [len(rows) for rows in bases] == [11, 12, 12]
  assert len(models) == 47 and len(alibi) == 12 and all(row in rope for row in low)
  ends = lambda rows: [f(row['score_near'] for row in rows) for f in (min, max)]
  says(_found_of_correlations('The large'), f'{mean(alibi):.2f}',
       '{:.2f} to {:.2f}'.format(*ends(alibi)), str(len(rope)), f'{mean(rope):.2f}',
       '{:.0f} to {:.2f}'.format(*ends(rope)), str(len(low)),
       f'{models[0]["shortcut_near"]:.3f}',
       *(f'{mean(rows, name):.{digits}f}' for name, digits in (
           ('training_cross_entropy', 3), ('symmetric_kl', 4))
         for rows in (alibi, rope)), *(
           f'{mean(rows, "symmetric_kl"):.4f}' for rows in bases),
       *(f'{mean(rows):.2f}' for rows in bases))


def test_the_term_brought_no_gain_to_the_models_of_the_study():
  term = {row['words']: row for row in table('correlation', 'term')}
  change = term['score up to 2 L']
  learned = {row['model']: not row['not_learned']
             for row in table('correlation', 'models')}
  pairs = {name: learned[name.removesuffix('_term')] and found
           for name, found in learned.items() if name.endswith('_term')}
  both = [name for name, found in pairs.items() if found]
  assert all(learned[name.removesuffix('_term')] for name in pairs)
  assert (len(pairs), len(both)) == (20, 14) == (20, int(change['pairs']))
  reach = interval(change, digits=3)
  says(_found_of_correlations('No gain'), str(len(both)), reach,
       _fall(term['SCE at L']),
       interval(term['symmetric KL at L'], digits=3),
       _fall(term['score at L']),
       interval(term['log perplexity at L'], digits=3).replace('+', ''),
       f'{sum("alibi" not in name for name in both)} of the {len(both)}',
       interval(term['score at L, all pairs'], digits=3),
       interval(term['score up to 2 L, all pairs'], digits=3))
  missed = {row['model']: row['not_learned'].split(', ')
            for row in table('correlation', 'models') if row['not_learned']}
  of_term = {name: tasks for name, tasks in missed.items() if name in pairs}
  assert sorted(('alibi' in name, *tasks) for name, tasks in of_term.items()) == [
      *2 * [(False, 'niah_single', 'niah_multikey')], *4 * [(True, 'niah_multikey')]]
  says(page('docs/long_short_alignment.md'), f'{len(both)} pairs of models', reach,
       interval(term['score up to 2 L, all pairs'], digits=3), 'no gain found')


def _change(values, digits):
  """Returns a difference and its interval, in which signs are left out if all are +."""
  said = [signed(x, digits) if round(x, digits) else f'{0:.{digits}f}'
           for x in values]
  low, high = (x.removeprefix('+') if values[1] > 0 else x for x in said[1:])
  return f'{said[0]} [{low}, {high}]'


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
  says(README.partition('[Speed](docs/speed.md)')[2],
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
      signed(x, 1) for x in term['percent_more_mean_and_interval'])
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
      f"{step['plain_baseline']} (**{signed(term['plain_percent_more'], 1)} %**); in "
      f"chunks {step['aligned']} with it, {step['baseline']} without (median "
      f"{signed(term['percent_more'], 1)} %, mean {mean} % [{low}, {high}])",
  ):
    assert words in of_gpu, words


# What README says of commands.


def test_the_first_command_does_what_is_said_of_it():
  config = importlib.import_module('configs.retrieval').get_config('quick')
  assert config.arms == ('none', 'standardize', 'layer_norm')
  assert config.optimizer.l2 > 0
  longest = max(config.evaluate.lengths).bit_length() - 1
  assert max(config.evaluate.lengths) == 2**longest
  commands, _, rest = README.partition('## Two commands ')[2].partition('## ')
  says(commands, 'The first command', f'{config.num_seeds} seeds', 'with weight decay',
       f'2^{longest}', f'`train.seeds_at_once` ({config.train.seeds_at_once} in')
  for name in ('retrieval', 'lookup'):
    train = importlib.import_module(f'configs.{name}').get_config('cpu').train
    says(rest, f'rained on {train.min_length} to {train.max_length} items')


def test_versions_exit_codes_and_the_cache_are_those_of_the_code(monkeypatch):
  setup = configparser.ConfigParser()
  setup.read(ROOT / 'setup.cfg')
  [least, end] = re.fullmatch(
      r'>=3\.(\d+),<3\.(\d+)', setup['options']['python_requires']).groups()
  says(README, f'Python 3.{least} to 3.{int(end) - 1}')
  says(README, 'Wrong input ends', 'exit code 2', f'network with {errors.TRY_AGAIN}')
  monkeypatch.delenv('XDG_CACHE_HOME', raising=False)
  home = os.path.expanduser('~')
  cache = machine.cache_folder().replace(home, '~')
  says(README, f'cached in `{cache}`')


def test_each_paper_has_its_number():
  pages = {'vanishing variance': 'vanishing_variance', 'recency bias': 'recency_bias',
          'long-short alignment': 'long_short_alignment'}
  for name, stem in pages.items():
    heading = (ROOT / f'docs/{stem}.md').read_text().splitlines()[0]
    number = re.search(r'\(arXiv ([\d.]+)\)', heading)[1]
    line = README.partition(f'*{name}*')[2]
    found = re.search(r'arXiv ([\d.]+)\]\(https://arxiv\.org/abs/([\d.]+)\)', line)
    assert found.groups() == (number, number), name


def test_the_studies_and_variants_of_the_table_exist():
  papers = README.partition('| paper | command | result |')[2].partition('## ')[0]
  named = [match.groups() for match in re.finditer(r'`([a-z_]+)(?::(\w+))?`', papers)]
  assert len(named) >= 9 and ('sensitivity', 'cpu') in named
  for name, variant in named:
    assert (ROOT / f'experiments/{name}/__main__.py').exists(), name
    config = importlib.import_module(f'configs.{name}')
    assert config.get_config(variant) if variant else config.get_config()
  growing = re.findall('both configs with `:(\\w+)`', papers)
  assert growing == ['cpu_growing']
  for name in ('retrieval', 'lookup'):
    importlib.import_module(f'configs.{name}').get_config(growing[0])
