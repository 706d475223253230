"""The tables, figures and answer of a league, from made-up rows."""

import json
import types

import numpy as np
import pytest
from scipy import stats

from configs import league as config_file
from experiments.league import effects, family, figures, needs, report, tables
from experiments.league.answer import answer
from experiments.league.names import KINDS, name_of
from experiments.league.rates import Choice, EDGE, TIE
from tests.artists import lines, shades
from tests.cells import cells, interval, p_of, paired, text
from vvlen.reporting import plots, results
from vvlen.reporting.family import digest_of
from vvlen.reporting.plots import SMALLEST, WIDTH
from vvlen.reporting.tables import grid

LENGTHS = (16, 32, 64)
SEEDS = 6
SCALARS = 0.0, 0.1, 0.4, 0.9, 1.6, np.nan
AT_16 = 0.3  # the factor that softmax needs there; most are below 1
RATES = {'softmax': 1e-3, 'layer_norm': 3e-3, 'log_n': 1e-2, 'power': 3e-4}
# task -> arm -> gain over softmax in points; its spread over seeds is about 1.
GAINS = {'retrieval': {'layer_norm': -3.0, 'log_n': 9.0, 'power': 2.0},
         'lookup': {'layer_norm': 0.2, 'log_n': 1.2, 'power': -5.0}}


def _facts(num_seeds=SEEDS, arms=RATES, tasks=GAINS):
  config = config_file.get_config('cpu')
  config.update(num_seeds=num_seeds)
  for arm in config_file.ARMS:
    if arm not in arms:
      config.arms[arm] = ''
  for task in [*config.tasks]:
    if task not in tasks:
      del config.tasks[task]
  return family.facts(config)


def _accuracies(seed=0):
  """Returns {(task, arm): accuracy in % [seeds, lengths]}."""
  rng, found = np.random.default_rng(seed), {}
  for task, gains in GAINS.items():
    plain = np.array([97, 80, 60]) + rng.normal(0, 2, (SEEDS, 1))
    found[task, 'softmax'] = plain
    for arm, gain in gains.items():
      noise = rng.normal(0, 1, (SEEDS, len(LENGTHS)))
      found[task, arm] = plain + noise + np.array([0, gain, gain])
  return found


def _rows(accuracies, learned=None):
  rows = []
  for (task, arm), table in accuracies.items():
    row = lambda seed, length, metric, value, task=task, arm=arm: results.Row(
        task, arm, seed, length, metric, float(value), learning_rate=RATES[arm])
    for seed, values in enumerate(table):
      share = (learned or {}).get((task, arm), 0.95 + len(arm) / 1000)
      rows += [row(seed, None, 'training_accuracy', share),
               row(seed, None, 'training_loss', 0.1)]
      if arm == 'power':  # of which the last seed has none
        rows.append(row(seed, None, 'learned_p', SCALARS[seed]))
      rows += [row(seed, n, 'accuracy', x / 100)
               for n, x in zip(LENGTHS, values, strict=True)]
  return rows


def _indices(rows):
  return {task: results.index(r for r in rows if r.experiment == task)
          for task in GAINS}


def _read(rows, facts=None):
  known = effects.family_of(facts or _facts())
  indices = _indices(rows)
  return known, indices, effects.read_effects(indices, known)


def _endpoints(accuracies, task, arm):
  return accuracies[task, arm][:, 1:].mean(axis=1)


def test_the_family_is_read_in_its_order():
  known = effects.family_of(_facts())
  assert known == (
      ('softmax', 'layer_norm', 'log_n', 'power'), {'retrieval': 16, 'lookup': 16},
      SEEDS, 0.05, (3e-4, 1e-3, 3e-3, 1e-2), 'trained on 5 to 16 items for 4,000 steps',
      {'retrieval': 'chance 10 %', 'lookup': 'chance 10 %'},
      {'retrieval': 10, 'lookup': 10})
  assert [*known.tasks] == ['retrieval', 'lookup'] and known.num_tests == 3


def test_accuracy_without_information_is_known_of_the_tasks_of_the_league():
  known = effects.family_of(family.facts(config_file.get_config('cpu')))
  assert known.chance == {
      'retrieval': 'chance 10 %', 'lookup': 'chance 10 %',
      'associative_recall': 'chance 1.56 %',
      # 1 − 10.5 / 64, of 5 to 16 items.
      'set_complement': 'as one minus the total variation, which is 83.6 % if the set '
                        'is ignored'}
  assert known.level_of_chance == {
      'retrieval': 10, 'lookup': 10, 'associative_recall': 100 / 64}
  config = config_file.get_config('cpu')
  with config.unlocked():
    config.tasks.set_complement.train = dict(max_length=32)
  longer = effects.family_of(family.facts(config))
  assert ' 71.1 % if' in longer.chance['set_complement']  # 1 − 18.5 / 64
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


def test_every_column_of_the_league_is_right(monkeypatch):
  accuracies = _accuracies()
  rows = _rows(accuracies)
  monkeypatch.setattr(effects, 'MOST_BELOW', 0.34)
  for task, arm, seed, share in (  # the medians stay
      ('lookup', 'power', 1, 0.5), ('lookup', 'power', 4, np.nan),
      ('retrieval', 'log_n', 3, 0.918)):
    place, = (i for i, r in enumerate(rows) if r[:5] == (
        task, arm, seed, None, 'training_accuracy'))
    rows[place] = rows[place]._replace(value=share)
  least = {('lookup', 'power'): 'undefined', ('retrieval', 'log_n'): '91.8'}
  known, _, found = _read(rows)
  edge = lambda arm: RATES[arm] in (known.rates[0], known.rates[-1])
  choices = {(task, arm): Choice(rate, {}, (EDGE,) if edge(arm) else (TIE,))
             for task in GAINS for arm, rate in RATES.items()}
  table = tables.league_table(found, choices, known)
  expected = []
  for task, gains in GAINS.items():
    control = _endpoints(accuracies, task, 'softmax')
    tests = {arm: paired(_endpoints(accuracies, task, arm), control) for arm in gains}
    # Holm by hand: the least p times 3, then times 2, then 1, never decreasing.
    adjusted, last = {}, 0.0
    for rank, arm in enumerate(sorted(tests, key=lambda arm: tests[arm].p)):
      last = adjusted[arm] = min(1.0, max(last, (3 - rank) * tests[arm].p))
    for arm in sorted(tests, key=lambda arm: -tests[arm].mean):
      wide = stats.ttest_1samp(tests[arm].difference, 0).confidence_interval(
          1 - 0.05 / 3)
      found_it = 'ahead' if tests[arm].mean > 0 else 'behind'
      share = lambda name: f'{95 + len(name) / 10:.1f}'
      expected.append({
          'task': task, 'arm': name_of(arm).label,
          'softmax': text(control.mean(), '.1f'),
          'arm − softmax [95 %]':
              interval(tests[arm].mean, wide.low, wide.high, '+.1f'),
          'verdict': found_it if adjusted[arm] < 0.05 else 'no difference found',
          'p': p_of(adjusted[arm]),
          'detectable': text(tests[arm].least(3), '.1f'),
          'rate': f'{RATES[arm]:g}{", edge" if edge(arm) else ""}', 'seeds': '6',
          'in training': (
              f'{share("softmax")} ({share("softmax")}), {share(arm)} '
              f'({least.get((task, arm), share(arm))})'),
          'seeds below 90': '0, 2' if (task, arm) == ('lookup', 'power') else '0, 0'})
  assert sum('edge' in row['rate'] for row in expected) == 4
  assert cells(table) == expected
  assert len({row['verdict'] for row in expected}) == 3  # the rows test all of them
  assert 'Of 3 arms a task' in table.note


def test_arms_without_rows_count_as_tests():
  accuracies = _accuracies()
  part = {key: x for key, x in accuracies.items() if key[1] in ('softmax', 'power')}
  _, _, found = _read(_rows(part))
  effect, = found['retrieval']
  control = _endpoints(accuracies, 'retrieval', 'softmax')
  test = paired(_endpoints(accuracies, 'retrieval', 'power'), control)
  assert effect.corrected.p == pytest.approx(3 * test.p)
  _, _, whole = _read(_rows(accuracies))
  p = {e.arm: e.corrected.p for e in whole['retrieval']}
  assert p['power'] <= effect.corrected.p  # it can only fall


def test_an_arm_that_has_not_learned_counts_as_a_test_without_a_result():
  rows = _rows(_accuracies(), {('retrieval', 'log_n'): 0.89})
  _, _, found = _read(rows)
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
  known, _, found = _read(_rows(accuracies))
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


def test_an_arm_without_a_test_is_the_last_of_its_task():
  rows = [r for r in _rows(_accuracies()) if r.arm != 'log_n' or not r.seed]
  known, _, found = _read(rows)
  assert [r['arm'] for r in tables.league_table(found, {}, known).records] == [
      'power', 'layer_norm', 'log_n', 'layer_norm', 'power', 'log_n']


def test_the_terminal_shows_whole_gains_and_p_of_the_longest_names():
  known, _, found = _read(_rows(_accuracies()))
  table = tables.league_table(found, {}, known)
  wide = {'difference': -38.1, 'ci_low': -39.0, 'ci_high': -37.1}
  table.records[:] = [
      table.records[0] | {'task': task, 'label': name_of(arm).label, **wide}
      for task in config_file.get_config().tasks for arm in config_file.ARMS]
  shown = grid(table, 80)
  assert ('\n| associative recall | trained adaptive + LN | −38.1 [−39.0, −37.1] | '
          '< .001 |\n') in shown
  assert shown.count('| −38.1 [−39.0, −37.1] | < .001 |') == 4 * len(config_file.ARMS)


def test_notes_of_tables_are_those_of_the_study():
  known, indices, found = _read(_rows(_accuracies()))
  table = tables.league_table(found, {}, known)
  assert table.note == (
      'Mean accuracy in % beyond the training lengths; arm minus softmax in points, '
      'paired over seeds. Of 3 arms a task: intervals by Bonferroni, p by Holm. In '
      'training: median (worst) seed of softmax and arm; one that collapsed counts '
      'too.')
  assert ('An interval may contain 0 where p is below 0.05. Detectable: the difference '
          'that would be found four times in five, at the level of the intervals.'
          ) in table.more
  assert ('In training: accuracy in % over the last tenth of training. A seed far '
          'below the median has not learned as the others have, and stays in the test. '
          'Seeds below 90 there, of softmax and of the arm: with more than a tenth '
          'there is no verdict; up to a tenth stay in the test.') in table.more
  assert tables.laws_table(effects.best_laws(indices, known)).note.startswith(
      'Mean accuracy in % beyond the training lengths. Softmax, whose β is 1, is a law '
      'too. Intervals are uncorrected')
  assert tables.contrasts_table(effects.contrasts(indices, known)).note == (
      'Accuracy in points, paired over seeds: means over the lengths beyond training, '
      'and at the longest one. Uncorrected. SSMax and log n are one law up to a factor '
      'that W_Q W_K can hold: they differ by optimization and rate.')
  # As `arms.built_in` has it.
  assert tables.scalars_table(effects.read_scalars(indices, known)).more == (
      's of SSMax starts at 1 / ln n₀, of √log n at 1 / √(2 ln n₀), of the sink at 0; '
      'p and b start at 0, g at log₂(n₀² − n₀).')
  assert tables.tuning_table({}, known).note == (
      'Loss in nats over the last tenth of training, at the training lengths, mean '
      'over the seeds of tuning. Test lengths have no part in the choice.')


@pytest.mark.parametrize('who', ['softmax', 'power'])
def test_no_verdict_where_the_training_lengths_were_not_learned(who):
  rows = _rows(_accuracies(), {('retrieval', who): 0.89})
  known, indices, found = _read(rows)
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
  rows = _rows(_accuracies())
  for place, row in enumerate(rows):
    if (row.arm, row.metric, row.experiment) == (
        'log_n', 'training_accuracy', 'retrieval') and row.seed < low:
      rows[place] = row._replace(value=0.1)
  known, indices, found = _read(rows)
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
  accuracies = _accuracies()
  accuracies['retrieval', 'log_n'][2:] = np.nan
  known, indices, found = _read(_rows(accuracies))
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


def test_an_arm_of_which_nothing_is_finite_has_no_accuracy_of_0():
  rows = [r._replace(value=np.nan) if (r.experiment, r.arm) == ('retrieval', 'log_n')
          else r for r in _rows(_accuracies())]
  known, _, found = _read(rows)
  table = tables.league_table(found, {}, known)
  [row] = [r for r in cells(table) if (r['task'], r['arm']) == ('retrieval', 'log n')]
  assert (row['verdict'], row['seeds']) == ('diverged', '0')
  assert (row['in training'], row['seeds below 90']) == (
      '95.7 (95.7), undefined (undefined)', '0, 6')
  learned = answer(table.records, [], known.chance)[1]
  assert 'retrieval 3 of 4 arms, from 95.5 to 96.0 % (softmax 95.7 %, ch' in learned


def test_temperatures_are_compared_with_each_other_too():
  accuracies = _accuracies()
  known, indices, _ = _read(_rows(accuracies))
  expected = []
  for task in GAINS:
    one, two = (accuracies[task, arm] for arm in ('power', 'log_n'))
    beyond = paired(one[:, 1:].mean(axis=1), two[:, 1:].mean(axis=1))
    far = paired(one[:, 2], two[:, 2])
    expected.append({
        'task': task, 'difference': 'n^p − log n',
        'beyond training [95 %]': interval(*beyond.interval, '+.1f'),
        'at the longest [95 %]': interval(*far.interval, '+.1f'), 'items there': '64',
        'seeds': '6'})
  assert cells(tables.contrasts_table(effects.contrasts(indices, known))) == expected
  accuracies['lookup', 'log_n'][0] = np.nan
  _, indices, _ = _read(_rows(accuracies))
  assert [x.task for x in effects.contrasts(indices, known)] == ['retrieval']


def test_what_the_hypotheses_compare_is_in_the_table_of_contrasts():
  laws = 'ssmax', 'log_n', 'sqrt_log_n', 'power', 'linear', 'adaptive'
  arms = ('softmax', *laws, *(f'{law}_layer_norm' for law in laws))
  rng = np.random.default_rng(0)
  table = {arm: rng.random((SEEDS, len(LENGTHS))) for arm in arms}
  rows = [results.Row('retrieval', arm, seed, n, 'accuracy', float(x))
          for arm in arms for seed in range(SEEDS)
          for n, x in zip(LENGTHS, table[arm][seed], strict=True)]
  rows += [results.Row('retrieval', arm, seed, None, 'training_accuracy', 1.0)
           for arm in arms for seed in range(SEEDS)]
  known = effects.family_of(_facts(SEEDS, arms, ('retrieval',)))
  found = {x.arms: x for x in effects.contrasts(
      {'retrieval': results.index(rows)}, known)}
  pairs = [('linear', 'log_n'), ('linear', 'ssmax'), ('linear', 'power'),
           ('ssmax', 'log_n'), ('power', 'log_n'),
           *((f'{law}_layer_norm', law) for law in laws)]
  assert [*found] == pairs
  for one, two in pairs:
    expected = paired(*(100 * table[arm][:, 1:].mean(axis=1) for arm in (one, two)))
    shown = found[one, two].test
    np.testing.assert_allclose(
        (shown.mean_difference, shown.ci_low, shown.ci_high), expected.interval)


def test_missing_seeds_and_equal_differences_have_no_verdict():
  accuracies = _accuracies()
  accuracies['lookup', 'power'] = accuracies['lookup', 'softmax'] + 1.0
  rows = [r for r in _rows(accuracies) if not (
      (r.experiment, r.arm, r.seed) == ('retrieval', 'log_n', 5))]
  known, indices, found = _read(rows)
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


def test_the_best_law_of_each_task():
  accuracies = _accuracies()
  known, indices, _ = _read(_rows(accuracies))
  table = tables.laws_table(effects.best_laws(indices, known))
  expected = []
  for task, order in (
      ('retrieval', ('log_n', 'power')), ('lookup', ('log_n', 'softmax'))):
    one, two = (_endpoints(accuracies, task, arm) for arm in order)
    test = paired(one, two)
    expected.append({
        'task': task, 'best law': 'log n', 'accuracy': text(one.mean(), '.1f'),
        'second best': name_of(order[1]).label, 'its accuracy': text(two.mean(), '.1f'),
        'best − second [95 %]': interval(*test.interval, '+.1f'), 'of laws': '3',
        'seeds': '6'})
  assert cells(table) == expected


def test_a_temperature_with_ln_is_no_law_of_temperature():
  accuracies = {key: x for key, x in _accuracies().items() if key[0] == 'retrieval'}
  accuracies['retrieval', 'log_n_layer_norm'] = accuracies['retrieval', 'log_n'] + 5
  rows = [row for key, table in accuracies.items() for row in _rows(
      {(key[0], key[1].removesuffix('_layer_norm')): table})
      for row in [row._replace(arm=key[1])]]
  facts = _facts(SEEDS, [arm for _, arm in accuracies], ('retrieval',))
  known = effects.family_of(facts)
  [best] = effects.best_laws({'retrieval': results.index(rows)}, known)
  assert (best.arms, best.num_laws) == (('log_n', 'power'), 3)


def test_learned_scalars_rates_and_accuracies_by_length():
  accuracies = _accuracies()
  row = lambda name: results.Row('lookup', 'log_n', 0, None, f'learned_{name}', 0.5)
  at_5 = results.Row('lookup', 'softmax', 0, 5, 'needed_temperature', 0.5)
  known, indices, _ = _read([*_rows(accuracies), row('t'), row('s'), at_5])
  values = np.array(SCALARS[:-1])
  low, high = stats.t.interval(0.95, SEEDS - 2, values.mean(), stats.sem(values))
  several = [(x.arm, x.name) for x in effects.read_scalars(indices, known)]
  assert several == [('power', 'p'), ('log_n', 's'), ('log_n', 't'), ('power', 'p')]
  del indices['lookup']['log_n', 'learned_s', None]
  del indices['lookup']['log_n', 'learned_t', None]
  assert cells(tables.scalars_table(effects.read_scalars(indices, known))) == [
      {'task': task, 'arm': 'n^p', 'scalar': 'p',
       'at the end [95 %]': interval(values.mean(), low, high, '.3f'), 'seeds': '5'}
      for task in GAINS]
  tuning = [results.Row('lookup', arm, seed, None, 'training_loss', loss + seed / 100,
                        learning_rate=rate)
            for arm, losses in (('softmax', (0.5, 0.1, 0.3, 0.4)),
                                ('power', (0.2, 0.6, np.nan, 0.7)),
                                ('log_n', (0.8, 0.3, 0.3, 0.4)),
                                ('layer_norm', (0.8, 0.5, 0.4, 0.3)))
            for rate, loss in zip(known.rates, losses, strict=True) for seed in (0, 1)]
  # Of the second rate of LN, one seed is better than at the chosen one.
  tuning = [r._replace(value=0.305) if (r.arm, r.seed, r.learning_rate) == (
      'layer_norm', 1, 3e-3) else r for r in tuning]
  tuning = [r._replace(value=r.value + 0.02 * r.seed) if (
      r.arm, r.learning_rate) == ('softmax', 3e-3) else r for r in tuning]
  choices = effects.read_choices(tuning, known)
  first, layer_norm, log_n, second = cells(tables.tuning_table(choices, known))
  assert (log_n['chosen'], log_n['note']) == ('0.001', 'a tie: the smaller one')
  assert (layer_norm['chosen'], layer_norm['note']) == (
      '0.01', 'at the edge of the rates; not decided')
  of_two = stats.ttest_1samp([0.2, 0.22], 0).confidence_interval()
  assert of_two.low > 0
  assert first == {
      'task': 'lookup', 'arm': 'softmax', 'chosen': '0.001', 'loss at 0.0003': '0.5050',
      'loss at 0.001': '0.1050', 'loss at 0.003': '0.3150', 'loss at 0.01': '0.4050',
      'second best − chosen [95 %]': interval(0.21, *of_two, '+.4f'), 'note': ''}
  assert (second['arm'], second['chosen']) == ('n^p', '0.0003')
  assert second['loss at 0.003'] == 'not finite'
  assert second['note'] == (
      'at the edge of the rates; a rate whose loss was not finite was left out')
  table = tables.by_length_table('lookup', indices['lookup'], known)
  assert (table.name, table.title) == (
      'by_length_lookup', 'Lookup: accuracy by length')
  assert [r['arm'] for r in cells(table)] == [name_of(arm).label for arm in RATES]
  assert cells(table)[1] == {
      'arm': 'LN', **{
          str(n): f'{x:.1f}' for n, x in zip(
              LENGTHS, accuracies['lookup', 'layer_norm'].mean(axis=0), strict=True)}}
  # A seed that has diverged is no 0.
  accuracies['lookup', 'layer_norm'][2] = np.nan
  _, indices, _ = _read(_rows(accuracies))
  table = tables.by_length_table('lookup', indices['lookup'], known)
  assert cells(table)[1]['16'] == text(
      np.nanmean(accuracies['lookup', 'layer_norm'][:, 0]), '.1f')
  assert table.note == (
      'Accuracy in %, means over the seeds where it is finite, by number of items.')


def test_the_answer_counts_arms_and_names_the_best():
  accuracies = _accuracies()
  known, indices, found = _read(_rows(accuracies, {('lookup', 'softmax'): 0.5}))
  league = tables.league_table(found, {}, known).records
  laws = tables.laws_table(effects.best_laws(indices, known)).records
  retrieval, learned, lookup = answer(league, laws, known.chance)
  ends = {arm: _endpoints(accuracies, 'retrieval', arm) for arm in RATES}
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
  accuracies = _accuracies()
  del accuracies['retrieval', 'log_n']
  accuracies['retrieval', 'power'] = accuracies['retrieval', 'softmax'] + 2.0
  known, indices, found = _read(_rows(accuracies))
  _, _, said, _ = answer(tables.league_table(found, {}, known).records,
                         tables.laws_table(effects.best_laws(indices, known)).records)
  assert said.endswith(
      ' Without a verdict: 1 undefined. Of 2 laws of temperature, n^p goes farthest, '
      '+2.0 points over softmax, both chosen by the same seeds.')


def test_the_answer_says_that_two_laws_are_the_same():
  known, _, found = _read(_rows(_accuracies()))
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
  accuracies = _accuracies()
  rows = [r for r in _rows(accuracies, {('retrieval', 'power'): 0.5})
          if (r.experiment, r.arm, r.seed) != ('retrieval', 'log_n', 5)]
  part = [r for r in rows if r.arm != 'layer_norm']
  known, _, found = _read(part)
  assert answer(tables.league_table(found, {}, known).records, [])[0] == (
      'Retrieval: no verdict; of the 2 arms run so far (corrected over all 3), 1 not '
      'finished, 1 not learned.')
  _, _, found = _read(rows)
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
  known, _, found = _read(_rows(_accuracies()))
  [record, *_] = tables.league_table(found, {}, known).records
  record |= {'task': 'set_complement', 'arm': 'layer_norm', 'label': 'LN',
             'difference': gain, 'verdict': 'no difference found',
             'training_accuracy': 99.96, 'training_accuracy_control': 100.0}
  first, learned = answer([record], [])
  assert first.startswith('Set complement: of ') and farthest in first
  assert ': set complement 2 of 2 arms, all 100.0 % (softmax 100.0 %). ' in learned


def test_the_figure_of_the_league_shows_every_gain_and_its_interval():
  accuracies = _accuracies()
  known, _, found = _read(_rows(accuracies, {('lookup', 'power'): 0.5}))
  with plots.style():
    drawn = figures.league(found, known)
  assert drawn.get_size_inches()[0] == WIDTH == 5.5
  retrieval, _ = drawn.axes
  assert [axes.get_title() for axes in drawn.axes] == ['retrieval', 'lookup']
  gains = lambda task, arm: (
      _endpoints(accuracies, task, arm) - _endpoints(accuracies, task, 'softmax'))
  mean = lambda arm: np.mean([gains(task, arm).mean() for task in GAINS])
  order = sorted(GAINS['lookup'], key=lambda arm: -mean(arm))
  assert [t.get_text() for t in retrieval.get_yticklabels()] == [
      name_of(arm).label for arm in order]
  low, high = retrieval.get_ylim()
  assert low > len(order) - 1 and high < 0  # the largest gain is on top, all are seen
  for axes, task in zip(drawn.axes, GAINS, strict=True):
    assert lines(axes) == {} and axes.lines[0].get_xdata() == [0, 0]  # softmax
    assert {c.get_label() for c in axes.containers} == set(order)
    for container in axes.containers:
      arm = container.get_label()
      dot, _, bars = container.lines
      own = gains(task, arm)
      wide = stats.ttest_1samp(own, 0).confidence_interval(1 - 0.05 / 3)
      assert dot.get_xdata()[0] == pytest.approx(own.mean())
      assert dot.get_ydata()[0] == order.index(arm)
      _, colour, marker = KINDS[name_of(arm).kind]
      assert (dot.get_color(), dot.get_marker()) == (colour, marker)
      hollow = (task, arm) == ('lookup', 'power')  # it has not learned
      if hollow:
        assert not bars
      else:
        np.testing.assert_allclose(bars[0].get_segments()[0][:, 0], wide)
      assert dot.get_markerfacecolor() == ('white' if hollow else colour)
  assert [t.get_text() for t in drawn.legends[0].get_texts()] == [
      'law of temperature', 'norm of the output']
  assert {axes.get_xlabel() for axes in drawn.axes} == {'gain (points)'}
  assert drawn.get_label() == (
      'Mean accuracy beyond the training lengths, arm minus softmax in points, paired '
      'over 6 seeds, with 95 % intervals corrected over the 3 arms of a task '
      '(Bonferroni); hollow: no verdict (the table says why), and no interval if the '
      'run or the training is not finished. Softmax is the line at 0; arms are sorted '
      'by their mean over the tasks that all have.')


def test_arms_are_sorted_by_their_mean_over_the_tasks_that_all_have():
  gains = {'log_n': (9, 1, 2), 'power': (4, 4.5, 4.2), 'sink': (-9, 6, 5),
           'entmax': (7, None, 6), 'linear': (None, None, None)}
  effect = lambda arm, gain: types.SimpleNamespace(
      arm=arm, test=None if gain is None else types.SimpleNamespace(
          mean_difference=gain))
  found = {task: [effect(arm, own[i]) for arm, own in gains.items()]
           for i, task in enumerate(('retrieval', 'lookup', 'set_complement'))}
  # All but linear, which has no gain at all, have retrieval and set complement.
  assert figures.sorted_arms(found) == ['entmax', 'log_n', 'power', 'sink']
  # One arm on lookup alone: then retrieval counts, of which there are more.
  found['lookup'].append(effect('linear', 99))
  assert figures.sorted_arms(found) == ['log_n', 'entmax', 'power', 'sink', 'linear']
  assert figures.sorted_arms({}) == []


def test_kinds_of_arms_can_be_told_apart():
  looks = [(colour, marker) for _, colour, marker in KINDS.values()]
  assert len(set(looks)) == len(looks)
  assert len({colour for colour, _ in looks}) == len(looks)
  known = {colour for colour, _ in plots.LOOKS}
  assert {colour for colour, _ in looks} <= known | {'#E69F00'}
  assert KINDS[name_of('layer_norm').kind] != KINDS[name_of('log_n').kind]


def test_accuracy_by_length_shows_softmax_ln_and_the_arms_that_gain_most():
  accuracies = _accuracies()
  known, indices, found = _read(_rows(accuracies))
  with plots.style():
    drawn = figures.by_length(indices, found, known)
  for axes, task in zip(drawn.axes, GAINS, strict=True):
    drawn_lines = lines(axes)
    assert set(drawn_lines) == {'softmax', 'LN', 'log n', 'n^p', 'chance'}
    assert {*drawn_lines.pop('chance').y} == {10}
    assert len({line.colour for line in drawn_lines.values()}) == 4
    for arm in RATES:
      line = drawn_lines[name_of(arm).label]
      assert line.x == list(LENGTHS)
      np.testing.assert_allclose(line.y, accuracies[task, arm].mean(axis=0))
    [(_, shaded_up_to)] = shades(axes)
    assert (axes.get_title(), shaded_up_to) == (task, 16)
    assert axes.get_xlabel() == 'number of items N'
  assert [axes.get_ylabel() for axes in drawn.axes] == ['accuracy (%)', '']
  assert drawn.get_label() == (
      'Accuracy by number of items N of softmax, LN (where it is among the arms) and '
      'the arms with a verdict of largest mean gain over the tasks that all of them '
      'have; mean over 6 seeds, with bands of 95 % intervals; training lengths are '
      'shaded.')
  # An arm without a verdict is not among them, whatever it gains.
  found = {task: [x._replace(verdict=effects.DIVERGED)
                  if x.arm == 'log_n' else x for x in own]
           for task, own in found.items()}
  with plots.style():
    drawn = figures.by_length(indices, found, known)
  assert {*lines(drawn.axes[0])} == {'softmax', 'LN', 'n^p', 'chance'}


def test_few_arms_of_a_second_task_hide_none_of_the_first():
  # As a run is half way: all arms on retrieval; softmax, LN and n^p on lookup.
  accuracies = _accuracies()
  del accuracies['lookup', 'log_n']
  known, indices, found = _read(_rows(accuracies))
  with plots.style():
    drawn = figures.by_length(indices, found, known)
    league = figures.league(found, known)
  assert {*lines(drawn.axes[0])} == {'softmax', 'LN', 'log n', 'n^p', 'chance'}
  assert {*lines(drawn.axes[1])} == {'softmax', 'LN', 'n^p', 'chance'}
  first = lambda arm: -np.mean(_endpoints(accuracies, 'retrieval', arm))
  order = sorted(('log_n', 'power', 'layer_norm'), key=first)
  assert [x.get_text() for x in league.axes[0].get_yticklabels()] == [
      name_of(arm).label for arm in order]
  assert league.get_label().endswith(
      ' have. An arm without a mark has no result on that task.')


def test_no_panel_has_more_than_five_lines():
  arms = ('softmax', 'layer_norm', 'log_n', 'power', 'entmax', 'sink', 'linear')
  rng = np.random.default_rng(0)
  rows = [results.Row('retrieval', arm, seed, n, 'accuracy', rng.random())
          for arm in arms for seed in range(3) for n in LENGTHS]
  rows += [results.Row('retrieval', arm, seed, None, 'training_accuracy', 1.0)
           for arm in arms for seed in range(3)]
  known = effects.family_of(_facts(16, arms, ('retrieval',)))
  indices = {'retrieval': results.index(rows)}
  found = effects.read_effects(indices, known)
  with plots.style():
    axes, = figures.by_length(indices, found, known).axes
  mean = lambda effect: -effect.test.mean_difference
  first = [name_of(effect.arm).label for effect in sorted(found['retrieval'], key=mean)
           if effect.arm != 'layer_norm'][:3]
  assert lines(axes).keys() - {'chance'} == {'softmax', 'LN', *first}


def _write(folder, facts, rows):
  results.write_rows(folder / 'results.csv', rows)
  (folder / 'config.json').write_text(json.dumps({
      'study': 'league', 'config': {'digest': digest_of(facts)} | facts,
      'sessions': [{}]}))


@pytest.mark.slow
def test_the_report_is_written_and_says_what_is_missing(tmp_path):
  rows = _rows(_accuracies())
  _write(tmp_path, _facts(), rows)
  made = report.write(tmp_path)
  assert made.missing == '' and made.tables[0].name == 'league'
  assert {path.name for path in made.figures} == {
      f'{name}.{kind}' for name in ('league', 'league_by_length')
      for kind in ('png', 'pdf')}
  assert all(path.exists() for path in made.figures)
  for kind in ('md', 'csv', 'tex'):
    assert (tmp_path / f'tables/league.{kind}').exists()
  part = [r for r in rows if r.experiment == 'retrieval' and (r.arm, r.seed) != (
      'power', 3)]
  _write(tmp_path, _facts(), part)
  assert report.write(tmp_path).missing == (
      'The run is not finished: seeds of n^p on retrieval, all arms on lookup.')


def test_the_report_has_what_its_rows_say(tmp_path, monkeypatch):
  drawn = {}
  monkeypatch.setattr(plots, 'save', lambda folder, made: drawn.update(made) or {})
  rows, _ = _with_needs(_rows(_accuracies()))
  _write(tmp_path, _facts(), rows)
  results.write_rows(tmp_path / 'tuning/results.csv', [
      results.Row('lookup', 'log_n', 0, None, 'training_loss', loss, learning_rate=rate)
      for rate, loss in zip(RATES.values(), (0.4, 0.1, 0.2, 0.3), strict=True)])
  made = report.write(tmp_path)
  assert made.missing == '' and [*drawn] == ['league', 'league_by_length', 'needs']
  known, indices, found = _read(rows)
  choices = {('lookup', 'log_n'): Choice(3e-3, {}, ())}
  league = tables.league_table(found, choices, known)
  laws = tables.laws_table(effects.best_laws(indices, known))
  some = needs.needs_table(needs.measured(indices, known), known)
  gains = needs.gains_table(needs.measured(indices, known), known)
  of = {table.name: table for table in made.tables}
  assert [*of] == ['league', 'laws', 'contrasts', 'needs', 'at_inference',
                   *(f'by_length_{task}' for task in indices), 'scalars', 'tuning']
  for table in (league, laws, some, gains, *(
      tables.by_length_table(task, index, known) for task, index in indices.items())):
    assert cells(of[table.name]) == cells(table)
  assert cells(of['tuning'])[0]['chosen'] == '0.003'
  assert made.answer == [*answer(league.records, laws.records, known.chance),
                         *needs.needs_answer(some.records, gains.records)]
  assert len(made.answer) == 5 and 'laws of temperature' in made.answer[2]
  # What is not run.
  part = [r for r in rows if r.experiment == 'retrieval' and (r.arm, r.seed) != (
      'power', 3)]
  _write(tmp_path, _facts(), part)
  assert report.write(tmp_path).missing == (
      'The run is not finished: seeds of n^p on retrieval, all arms on lookup.')


def test_a_changed_family_and_rows_of_another_are_refused(tmp_path):
  facts, rows = _facts(), _rows(_accuracies())
  _write(tmp_path, facts, [rows[0]._replace(arm='entmax')])
  with pytest.raises(ValueError, match='a row of another kind of run'):
    report.write(tmp_path)
  _write(tmp_path, facts, rows)
  path = tmp_path / 'config.json'
  path.write_text(path.read_text().replace('"level": 0.05', '"level": 0.1'))
  with pytest.raises(ValueError, match='was changed after its results were made'):
    report.write(tmp_path)


def test_every_text_can_be_read(tmp_path):
  known, indices, found = _read(_rows(_accuracies()))
  with plots.style():
    for drawn in (figures.league(found, known),
                  figures.by_length(indices, found, known)):
      drawn.savefig(tmp_path / 'x.png')
      sizes = [t.get_fontsize() for t in drawn.findobj(lambda a: hasattr(
          a, 'get_fontsize')) if t.get_text()]
      assert min(sizes) >= SMALLEST


def _with_needs(rows, known=SEEDS):
  """Returns rows as if softmax were measured on retrieval, and its powers by seed.

  The factor grows with p, in training with p / 2; what is applied has another power.
  """
  row = lambda seed, length, metric, value, suffix='': results.Row(
      'retrieval', f'softmax{suffix}', seed, length, metric, float(value),
      learning_rate=1e-3)
  powers = 1.001 + 0.02 * np.arange(SEEDS)  # so that no mean is a tie of rounding
  more = []
  for seed, p in enumerate(powers[:known]):
    more += [row(seed, None, f'needed_{name}', value) for name, value in (
        ('power', p + 1), ('power_of_log', p + 2), ('power_in_training', p + 3))]
    more += [row(seed, n, 'needed_temperature', AT_16 * (n / 16) ** (p / 2))
             for n in (5, 9)]
    for n in LENGTHS:
      more += [row(seed, n, 'needed_temperature', AT_16 * (n / 16) ** p),
               row(seed, n, 'found', 1 - n / 2000 - seed / 100)]
      [plain] = [r.value for r in rows if r[:5] == (
          'retrieval', 'softmax', seed, n, 'accuracy')]
      more += [row(seed, n, 'accuracy', plain + gain * (1 + seed / 10), f'+{law}')
               for law, gain in (('power', 0.05), ('power_of_log', 0.02),
                                 ('trained_power', -0.01), ('fitted', 0.03),
                                 ('adaptive', 0.04))]
  return [*rows, *more], powers


def test_every_column_of_the_temperature_that_softmax_needs_is_right():
  rows, powers = _with_needs(_rows(_accuracies()))
  known, indices, _ = _read(rows)
  some = needs.measured(indices, known)
  assert [*some] == ['retrieval']
  table = needs.needs_table(some, known)
  [shown] = cells(table)
  assert table.note == (
      'Power: p and q if the least factor of the logits that gives the item asked for '
      'half of the weight grows as n^p or (log n)^q; means over seeds. Found: items '
      'asked for with the largest logit, in %, at the longest test length.')

  def mean(values, form):
    low, high = stats.t.interval(0.95, SEEDS - 1, values.mean(), stats.sem(values))
    return interval(values.mean(), low, high, form)

  gains = 1 + np.arange(SEEDS) / 10
  of_log = stats.linregress(np.log(np.log(LENGTHS)), np.log(LENGTHS)).slope
  assert shown == {
      'task': 'retrieval', 'at lengths': '16 to 64',
      'power of n [95 %]': mean(powers, '.2f'),
      'power of log n [95 %]': mean(of_log * powers, '.2f'),
      'power of n in training [95 %]': mean(powers / 2, '.2f'),
      'found': f'{100 * (1 - 0.032 - 0.025):.1f}', 'seeds': '6'}
  gained = needs.gains_table(some, known)
  assert gained.note == (
      'Accuracy beyond training in points, with the logits of trained softmax models '
      'times (n / n₀)^p, (log n / log n₀)^q or adaptive temperature, less accuracy '
      'without. p and q: means of the powers of the models.')
  assert cells(gained) == [{
      'task': 'retrieval', 'p, q, p of training': '2.05, 3.05, 4.05',
      'n^p [95 %]': mean(5 * gains, '+.1f'),
      '(log n)^q [95 %]': mean(2 * gains, '+.1f'),
      'n^p of training [95 %]': mean(-gains, '+.1f'),
      'adaptive, fitted [95 %]': mean(3 * gains, '+.1f'),
      'adaptive, published [95 %]': mean(4 * gains, '+.1f'), 'seeds': '6'}]
  words = lambda *cell: mean(*cell).replace('[', 'points [95 %: ')
  assert needs.needs_answer(table.records, gained.records) == [
      'On retrieval, the temperature that softmax needs grows from 16 to 64 items as n '
      f'to the power {mean(powers, ".2f").replace("[", "[95 %: ")}. At inference, n^p, '
      f'1 up to the training lengths, gains {words(5 * gains, "+.1f")} with powers '
      'fitted at test lengths, 2.05 on average, which uses the answers, so it is not a '
      f'method, and {words(-gains, "+.1f")} with powers fitted at training lengths '
      'alone, 4.05 on average.']


@pytest.mark.parametrize('none', [np.inf, 0.0])
def test_powers_are_fitted_at_the_lengths_that_all_models_share(none):
  rows, powers = _with_needs(_rows(_accuracies()))
  # One model has no factor with a logarithm at 64, two have none at 9; growth is
  # steeper there.
  def changed(row):
    if row.metric == 'needed_temperature':
      without = (row.length, row.seed) in ((64, 2), (9, 0), (9, 4))
      return row._replace(value=none if without else row.value * (
          9 if row.length in (9, 64) else 1))
    return row
  known, indices, _ = _read([*map(changed, rows)])
  [record] = needs.needs_table(needs.measured(indices, known), known).records
  assert (record['power_from'], record['power_to'], record['power_seeds']) == (
      16, 32, SEEDS)
  assert record['power'] == pytest.approx(powers.mean())
  assert record['power_in_training'] == pytest.approx(powers.mean() / 2)


def test_powers_are_fitted_where_every_model_finds_nine_items_in_ten():
  rows, powers = _with_needs(_rows(_accuracies()))
  def changed(row):  # growth is steeper where one model finds fewer
    if (row.metric, row.length) == ('needed_temperature', 64):
      return row._replace(value=9 * row.value)
    few = (row.metric, row.length, row.seed) == ('found', 64, 2)
    return row._replace(value=0.8999) if few else row
  exactly = lambda row: row._replace(value=0.9) if row.metric == 'found' else row
  known, indices, _ = _read([*map(exactly, rows)])
  [record] = needs.needs_table(needs.measured(indices, known), known).records
  assert (record['power_from'], record['power_to']) == (16, 64)
  known, indices, _ = _read([*map(changed, rows)])
  some = needs.measured(indices, known)
  [record] = needs.needs_table(some, known).records
  assert (record['power_from'], record['power_to']) == (16, 32)
  assert record['power'] == pytest.approx(powers.mean())
  [said] = needs.needs_answer([record], needs.gains_table(some, known).records)
  share = 100 * np.mean([1 - 0.032 - seed / 100 for seed in (0, 1, 3, 4, 5)]
                        + [0.8999])
  assert ' grows from 16 to 32 items as n to the power 1.05 [' in said
  assert ('. With more items, fewer than 90 % of those asked for have the largest '
          f'logit in some models; with 64, {share:.1f} % have it. At inference, n^p'
          ) in said


def test_no_sentence_on_a_temperature_of_models_that_have_not_learned():
  rows, _ = _with_needs(_rows(_accuracies(), {('retrieval', 'softmax'): 0.89}))
  known, indices, _ = _read(rows)
  some = needs.measured(indices, known)
  records = needs.needs_table(some, known).records
  assert records[0]['training_accuracy'] == pytest.approx(89)
  assert needs.needs_answer(records, needs.gains_table(some, known).records) == []
  # Nor before all seeds are there.
  rows, _ = _with_needs(_rows(_accuracies()), known=SEEDS - 1)
  assert needs.measured(_indices(rows), known) == {}


def test_powers_are_of_the_seeds_whose_power_is_known():
  rows, powers = _with_needs(_rows(_accuracies()))
  def changed(row):
    if (row.seed, row.metric) == (1, 'training_accuracy'):
      return row._replace(value=0.2)
    if (row.seed, row.metric) == (1, 'needed_temperature') and row.length > 16:
      return row._replace(value=np.inf)
    if row.arm == 'softmax+power' and row.seed == 1:
      return row._replace(value=np.nan)
    return row
  known, indices, _ = _read([*map(changed, rows)])
  table = needs.needs_table(needs.measured(indices, known), known)
  [record] = table.records
  left = np.delete(powers, 1)
  assert record['power'] == pytest.approx(left.mean())
  assert record['power_in_training'] == pytest.approx(left.mean() / 2)
  assert (record['power_seeds'], record['seeds']) == (5, 6)
  assert cells(table)[0]['seeds'] == '5 of 6'
  assert record['training_accuracy'] == pytest.approx(95.7)  # a median
  # No gain without all seeds, or where a law was not measured.
  gained = needs.gains_table(needs.measured(indices, known), known)
  assert cells(gained)[0]['n^p [95 %]'] == ''
  assert cells(gained)[0]['(log n)^q [95 %]'] != ''
  _, indices, _ = _read([row for row in rows if row.arm != 'softmax+power_of_log'])
  gained_without = needs.gains_table(needs.measured(indices, known), known)
  assert cells(gained_without)[0]['(log n)^q [95 %]'] == ''
  [said] = needs.needs_answer([record | {'learned': True}], gained.records)
  assert 'fitted at test lengths' not in said and said.endswith(
      '] with powers fitted at training lengths alone, 4.05 on average.')


def test_no_power_where_no_model_finds_half_of_the_items():
  rows, _ = _with_needs(_rows(_accuracies()))
  rows = [r._replace(value=np.inf) if r.metric == 'needed_temperature' else r
          for r in rows]
  known, indices, _ = _read(rows)
  table = needs.needs_table(needs.measured(indices, known), known)
  [shown] = cells(table)
  assert (shown['at lengths'], shown['power of n [95 %]'], shown['seeds']) == (
      '', 'undefined', '0 of 6')
  gained = needs.gains_table(needs.measured(indices, known), known)
  assert needs.needs_answer(table.records, gained.records) == []


def test_the_figure_of_the_temperature_has_only_lengths_and_laws_that_are_known():
  rows, _ = _with_needs(_rows(_accuracies()))
  def changed(row):
    if (row.metric, row.length) == ('needed_temperature', 16):
      return row._replace(value=row.value * 4.0 ** row.seed)
    if (row.metric, row.length, row.seed) == ('needed_temperature', 64, 2):
      return row._replace(value=np.inf)
    if (row.arm, row.metric, row.seed) == ('softmax+fitted', 'accuracy', 3):
      return row._replace(value=np.nan)
    return row
  rows = [*map(changed, rows)]
  rows += [row._replace(length=8, value=1.5) for row in rows
           if (row.metric, row.length) == ('needed_temperature', 16)]
  rows += [row._replace(experiment='lookup', value=row.value / 2) for row in rows
           if (row.experiment == 'retrieval' and '+' in row.arm)
           or row.metric.startswith('needed') or row.metric == 'found']
  known, indices, _ = _read(rows)
  drawn = needs.needs_figure(needs.measured(indices, known), known)
  needed, gained, other, _ = drawn.axes
  shown = lines(needed)
  assert shown['softmax as it is'].x == [5, 8, 9, 16, 32]
  start = AT_16 * 4.0**2.5  # of geometric progressions
  np.testing.assert_allclose(shown['softmax as it is'].y[[1, 3]], [1.5, start])
  assert shown['∝ n'].x == shown['∝ log n'].x == [16, 32]
  np.testing.assert_allclose(shown['∝ n'].y, [start, 2 * start])
  np.testing.assert_allclose(lines(other)['∝ n'].y, [start / 2, start])
  assert 'with adaptive, fitted' not in lines(gained) and 'with n^p' in lines(gained)
  assert [(axes.get_title(), axes.get_ylabel()) for axes in drawn.axes] == [
      ('retrieval', 'factor of the logits'), ('retrieval', 'accuracy (%)'),
      ('lookup', 'factor of the logits'), ('lookup', 'accuracy (%)')]
  assert all((axes.get_xlabel(), shades(axes)[0][1]) == ('number of items N', 16)
             for axes in drawn.axes)
  assert drawn.get_label() == (
      'Left: least factor of the logits of softmax that gives the item asked for half '
      'of the weight, by number of items N, median over sequences, geometric mean over '
      'seeds where all have one. Right: accuracy of the same models with the factor of '
      'a law at inference, fitted to other sequences (where lines lie on each other, '
      'markers lie in each other); mean over 6 seeds, with bands of 95 % intervals; '
      'training lengths are shaded.')


def test_the_figure_of_the_temperature_shows_what_is_needed_and_gained():
  rows, powers = _with_needs(_rows(_accuracies()))
  known, indices, _ = _read(rows)
  drawn = needs.needs_figure(needs.measured(indices, known), known)
  needed, gained = drawn.axes
  shown = lines(needed)
  assert shown['softmax as it is'].x == [5, 9, *LENGTHS]
  np.testing.assert_allclose(
      shown['softmax as it is'].y[2:],
      [AT_16 * (n / 16) ** powers.mean() for n in LENGTHS])
  of_first = lambda name: np.divide(shown[name].y, AT_16)
  np.testing.assert_allclose(of_first('∝ n'), [1, 2, 4])
  np.testing.assert_allclose(of_first('∝ log n'), [1, 5 / 4, 6 / 4])
  accuracy = {name: line.y for name, line in lines(gained).items()}
  assert {*accuracy.pop('chance')} == {10}
  assert len(accuracy) == 5
  assert np.diff([line.get_markersize() for line in gained.lines[:5]]).max() < 0
  for label, gain in (('n^p', 5), ('n^p of training', -1), ('adaptive, fitted', 3),
                      ('adaptive, published', 4)):
    np.testing.assert_allclose(
        accuracy[f'with {label}'] - accuracy['softmax as it is'], 3 * [1.25 * gain])
