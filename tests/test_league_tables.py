"""The tables of a league, from made-up rows."""

import numpy as np
from scipy import stats

from configs import league as config_file
from experiments.league import effects, tables
from experiments.league.answer import answer
from experiments.league.names import name_of
from experiments.league.rates import Choice, EDGE, TIE
from tests.cells import cells, interval, p_of, paired, text
from tests.league_cases import (
  endpoints_of,
  GAINS,
  LENGTHS,
  make_accuracies,
  make_facts,
  make_rows,
  RATES,
  read_case,
  SCALARS,
  SEEDS,
)
from vvlen.reporting import results
from vvlen.reporting.tables import grid


def test_every_column_of_the_league_is_right(monkeypatch):
  accuracies = make_accuracies()
  rows = make_rows(accuracies)
  monkeypatch.setattr(effects, 'MOST_BELOW', 0.34)
  for task, arm, seed, share in (  # the medians stay
      ('lookup', 'power', 1, 0.5), ('lookup', 'power', 4, np.nan),
      ('retrieval', 'log_n', 3, 0.918)):
    place, = (i for i, r in enumerate(rows) if r[:5] == (
        task, arm, seed, None, 'training_accuracy'))
    rows[place] = rows[place]._replace(value=share)
  least = {('lookup', 'power'): 'undefined', ('retrieval', 'log_n'): '91.8'}
  known, _, found = read_case(rows)
  edge = lambda arm: RATES[arm] in (known.rates[0], known.rates[-1])
  choices = {(task, arm): Choice(rate, {}, (EDGE,) if edge(arm) else (TIE,))
             for task in GAINS for arm, rate in RATES.items()}
  table = tables.league_table(found, choices, known)
  expected = []
  for task, gains in GAINS.items():
    control = endpoints_of(accuracies, task, 'softmax')
    tests = {arm: paired(endpoints_of(accuracies, task, arm), control) for arm in gains}
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


def test_what_each_arm_gains_on_each_task():
  accuracies = make_accuracies()
  accuracies['retrieval', 'power'][2, 2] = np.nan
  accuracies['lookup', 'power'][:, 1:] += 9
  del accuracies['lookup', 'log_n']
  known, _, found = read_case(make_rows(accuracies, {('lookup', 'power'): 0.5}))
  gains = {(task, arm): endpoints_of(accuracies, task, arm) - endpoints_of(
      accuracies, task, 'softmax') for task, arm in accuracies if arm != 'softmax'}

  def shown(task, arm):
    own = gains[task, arm][np.isfinite(gains[task, arm])]
    wide = stats.ttest_1samp(own, 0).confidence_interval(1 - 0.05 / 3)
    return interval(own.mean(), wide.low, wide.high, '+.1f')

  table = tables.by_task_table(found, known)
  # By retrieval, which all have; without an interval where it was not learned.
  assert cells(table) == [
      {'arm': 'log n', 'retrieval [95 %]': shown('retrieval', 'log_n'),
       'lookup [95 %]': ''},
      {'arm': 'n^p', 'retrieval [95 %]': f'{shown("retrieval", "power")}, diverged',
       'lookup [95 %]':
           f'{text(gains["lookup", "power"].mean(), "+.1f")}, not learned'},
      {'arm': 'LN', 'retrieval [95 %]': shown('retrieval', 'layer_norm'),
       'lookup [95 %]': shown('lookup', 'layer_norm')}]
  assert 'over the 3 arms of a task' in table.note
  del found['lookup']
  assert not tables.by_task_table(found, known).records  # the table `league` has it


def test_an_arm_without_a_test_is_the_last_of_its_task():
  rows = [r for r in make_rows(make_accuracies()) if r.arm != 'log_n' or not r.seed]
  known, _, found = read_case(rows)
  assert [r['arm'] for r in tables.league_table(found, {}, known).records] == [
      'power', 'layer_norm', 'log_n', 'layer_norm', 'power', 'log_n']


def test_the_terminal_shows_whole_gains_and_p_of_the_longest_names():
  known, _, found = read_case(make_rows(make_accuracies()))
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
  known, indices, found = read_case(make_rows(make_accuracies()))
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


def test_an_arm_of_which_nothing_is_finite_has_no_accuracy_of_0():
  rows = [r._replace(value=np.nan) if (r.experiment, r.arm) == ('retrieval', 'log_n')
          else r for r in make_rows(make_accuracies())]
  known, _, found = read_case(rows)
  table = tables.league_table(found, {}, known)
  [row] = [r for r in cells(table) if (r['task'], r['arm']) == ('retrieval', 'log n')]
  assert (row['verdict'], row['seeds']) == ('diverged', '0')
  assert (row['in training'], row['seeds below 90']) == (
      '95.7 (95.7), undefined (undefined)', '0, 6')
  learned = answer(table.records, [], known.chance)[1]
  assert 'retrieval 3 of 4 arms, from 95.5 to 96.0 % (softmax 95.7 %, ch' in learned


def test_temperatures_are_compared_with_each_other_too():
  accuracies = make_accuracies()
  known, indices, _ = read_case(make_rows(accuracies))
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
  _, indices, _ = read_case(make_rows(accuracies))
  assert [x.task for x in effects.contrasts(indices, known)] == ['retrieval']


def test_what_the_hypotheses_compare_is_in_the_table_of_contrasts():
  laws = 'ssmax', 'log_n', 'sqrt_log_n', 'power', 'linear', 'adaptive'
  arms = ('softmax', 'layer_norm', *laws, *(f'{law}_layer_norm' for law in laws))
  rng = np.random.default_rng(0)
  table = {arm: rng.random((SEEDS, len(LENGTHS))) for arm in arms}
  rows = [results.Row('retrieval', arm, seed, n, 'accuracy', float(x))
          for arm in arms for seed in range(SEEDS)
          for n, x in zip(LENGTHS, table[arm][seed], strict=True)]
  rows += [results.Row('retrieval', arm, seed, None, 'training_accuracy', 1.0)
           for arm in arms for seed in range(SEEDS)]
  known = effects.family_of(make_facts(SEEDS, arms, ('retrieval',)))
  found = {x.arms: x for x in effects.contrasts(
      {'retrieval': results.index(rows)}, known)}
  pairs = [('linear', 'log_n'), ('linear', 'ssmax'), ('linear', 'power'),
           ('ssmax', 'log_n'), ('power', 'log_n'),
           *((f'{law}_layer_norm', law) for law in laws),
           *((f'{law}_layer_norm', 'layer_norm') for law in laws)]
  assert [*found] == pairs
  for one, two in pairs:
    expected = paired(*(100 * table[arm][:, 1:].mean(axis=1) for arm in (one, two)))
    shown = found[one, two].test
    np.testing.assert_allclose(
        (shown.mean_difference, shown.ci_low, shown.ci_high), expected.interval)


def test_the_best_law_of_each_task():
  accuracies = make_accuracies()
  known, indices, _ = read_case(make_rows(accuracies))
  table = tables.laws_table(effects.best_laws(indices, known))
  expected = []
  for task, order in (
      ('retrieval', ('log_n', 'power')), ('lookup', ('log_n', 'softmax'))):
    one, two = (endpoints_of(accuracies, task, arm) for arm in order)
    test = paired(one, two)
    expected.append({
        'task': task, 'best law': 'log n', 'accuracy': text(one.mean(), '.1f'),
        'second best': name_of(order[1]).label, 'its accuracy': text(two.mean(), '.1f'),
        'best − second [95 %]': interval(*test.interval, '+.1f'), 'of laws': '3',
        'seeds': '6'})
  assert cells(table) == expected


def test_a_temperature_with_ln_is_no_law_of_temperature():
  accuracies = {key: x for key, x in make_accuracies().items() if key[0] == 'retrieval'}
  accuracies['retrieval', 'log_n_layer_norm'] = accuracies['retrieval', 'log_n'] + 5
  rows = [row for key, table in accuracies.items() for row in make_rows(
      {(key[0], key[1].removesuffix('_layer_norm')): table})
      for row in [row._replace(arm=key[1])]]
  facts = make_facts(SEEDS, [arm for _, arm in accuracies], ('retrieval',))
  known = effects.family_of(facts)
  [best] = effects.best_laws({'retrieval': results.index(rows)}, known)
  assert (best.arms, best.num_laws) == (('log_n', 'power'), 3)


def test_learned_scalars_rates_and_accuracies_by_length():
  accuracies = make_accuracies()
  row = lambda name: results.Row('lookup', 'log_n', 0, None, f'learned_{name}', 0.5)
  at_5 = results.Row('lookup', 'softmax', 0, 5, 'needed_temperature', 0.5)
  known, indices, _ = read_case([*make_rows(accuracies), row('t'), row('s'), at_5])
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
  _, indices, _ = read_case(make_rows(accuracies))
  table = tables.by_length_table('lookup', indices['lookup'], known)
  assert cells(table)[1]['16'] == text(
      np.nanmean(accuracies['lookup', 'layer_norm'][:, 0]), '.1f')
  assert table.note == (
      'Accuracy in %, means over the seeds where it is finite, by number of items.')


def test_the_weight_of_the_item_asked_for_is_apart_from_its_order():
  accuracies = make_accuracies()
  rows = make_rows(accuracies)
  of = lambda arm, metric, seed, value, n=64: results.Row(
      'lookup', arm, seed, n, metric, value, learning_rate=RATES[arm])
  for seed in range(SEEDS):
    rows += [of('log_n', 'target_weight', seed, 0.5 + seed / 10),
             of('log_n', 'target_weight', seed, 0.99, n=16),
             of('log_n', 'target_first', seed, 0.7 + seed / 100),
             of('power', 'target_weight', seed, np.nan if seed == 1 else seed / 50),
             of('softmax', 'target_weight', seed, 0.25),
             of('softmax', 'found', seed, 0.5 + (seed == 2) / 10)]
  known, indices, _ = read_case(rows)
  table = tables.targets_table(indices, known)
  right = {arm: f'{accuracies["lookup", arm][:, -1].mean():.1f}'
           for arm in ('softmax', 'log_n', 'power')}
  shared = {'task': 'lookup', 'items': '64', 'seeds': str(SEEDS)}
  assert cells(table) == [
      {**shared, 'arm': 'softmax', 'accuracy': right['softmax'],
       'largest weight': '51.7', 'its weight': '25.0'},
      {**shared, 'arm': 'log n', 'accuracy': right['log_n'], 'largest weight': '72.5',
       'its weight': '75.0'},
      # Of a seed without a number the others count; what is not measured is empty.
      {**shared, 'arm': 'n^p', 'accuracy': right['power'], 'largest weight': '',
       'its weight': '5.6'}]
  assert not tables.targets_table({'retrieval': indices['retrieval']}, known).records
