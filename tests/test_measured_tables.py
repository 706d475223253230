"""Every cell of the tables of simulations, theory and checkpoints, of made-up numbers.

No two numbers are alike, and what a cell must show is computed here from them, so that
a column with the number of another one fails.
"""

import itertools

import numpy as np
import pytest

from experiments.linear_attention import tables as linear_tables
from experiments.measure import report as measure_report
from experiments.measure import spread
from experiments.measure import tables as measure
from experiments.measure.rows import BLOCK, Part, SLIDING, spread_part
from experiments.recency_bias import report as recency
from experiments.recency_bias.cells import Settings, Simulated
from tests.cells import cells, interval, mean_of, text
from vvlen.reporting.numbers import alike, give_or_take, known
from vvlen.theory import linear_attention as theory
from vvlen.theory.recency import exact_mean_layer1_score, gram_recursion

# Recency bias.


def _simulated(**fields):
  """A simulation of two layers in which no two numbers are alike."""
  cell = Settings(num_tokens=5, num_layers=2, num_simulations=3000, **fields)
  names = [(name + end, layer) for layer in (1, 2) for end in ('', '_error')
           for name in ('recency_probability', 'violation_rate')]
  numbers = dict(zip(names, (0.511, 0.482, 0.00123, 0.00234, 0.6381, 0.397, 0.0031,
                             0.0042), strict=True))
  rng = np.random.default_rng(1)
  arrays = {'mean': rng.normal(3, 0.1, (2, 5, 5)),
            'standard_error': rng.uniform(0.02, 0.06, (2, 5, 5))}
  return Simulated(cell, numbers, arrays)


def test_every_cell_of_recency_probability():
  simulated = _simulated(
      group='panels', name='d16_LN_a0.5_c1', width=16, anisotropy=0.5, residual=1.0)
  # Published: .5000 and .5931, rounded, of 10,000,000 simulations.
  more = np.sqrt(1 + 3000 / 1e7)
  off = [(0.511 - 0.5 - 5e-5) / (0.00123 * more),
         (0.6381 - 0.5931 - 5e-5) / (0.0031 * more)]
  same = {'d': '16', 'tokens': 'LayerNorm, α = 0.5, residual', 'simulations': '3,000'}
  assert cells(recency.probability_table([simulated])) == [
      same | {'layer': '1', 'recency probability': '0.5110 ± 0.0012',
              'published': '0.5000', 'off by, in errors': f'{off[0]:.1f}',
              'violation rate': '0.482 ± 0.002'},
      same | {'layer': '2', 'recency probability': '0.638 ± 0.003',
              'published': '0.5931', 'off by, in errors': f'{off[1]:.1f}',
              'violation rate': '0.397 ± 0.004'},
  ]


@pytest.mark.parametrize('layer_norm, residual', [(True, 1.0), (False, 0.0)])
def test_every_cell_of_mean_logits(layer_norm, residual):
  simulated = _simulated(group='figure_1', name='x', width=36, anisotropy=0.4,
                         layer_norm=layer_norm, residual=residual)
  limits = gram_recursion(np.eye(5) + 2 / 3, 36, 2, layer_norm, residual)
  words = 'LayerNorm, α = 0.4, residual' if layer_norm else 'no LayerNorm, α = 0.4'
  expected = []
  for i, (mean, error, limit) in enumerate(zip(
      simulated.arrays['mean'], simulated.arrays['standard_error'], limits,
      strict=True)):
    pairs = [(mean[a, b + 1] - mean[a, b], error[a, b + 1] + error[a, b])
             for a in range(5) for b in range(a - 1)]
    exact = exact_mean_layer1_score(36, 0.4)
    expected.append({
        'tokens': words, 'layer': str(i + 1),
        'mean logit of token 5 with 1 → 4': f'{mean[4, 0]:.5f} → {mean[4, 3]:.5f}',
        'standard errors': f'{error[4, 0]:.5f}, {error[4, 3]:.5f}',
        'exact mean': f'{exact:.5f}' if i == 0 and layer_norm else '',
        'limit of large d': f'{limit[4, 0]:.5f} → {limit[4, 3]:.5f}',
        'neighbours that rise': f'{sum(x > 0 for x, _ in pairs)} of 6',
        'clearly rise, fall': f'{sum(x > 2 * e for x, e in pairs)}, '
                              f'{sum(x < -2 * e for x, e in pairs)}',
    })
  assert cells(recency.score_table([simulated])) == expected


# Linear attention.


@pytest.fixture(scope='module')
def bits():
  """Made-up results of 'length' and 'sum' trained on 1 to 5 bits, tested up to 20."""
  made = {}
  rng = np.random.default_rng(6)
  for task in ('length', 'sum'):
    index = made[linear_tables.Setting(task, 5)] = {}
    for arm in ('exact', 'single', 'trained', 'sqrt', 'log', 'inverse_sqrt'):
      seeds = range(3 if arm == 'trained' else 1)
      draw = lambda seeds=seeds: {s: rng.uniform(1, 90) for s in seeds}
      for k in (5, 10, 20):
        index[arm, 'loss', k] = draw()
      if arm in ('exact', 'single', 'trained'):
        for name in (*linear_tables.ENTRIES, 'training_loss'):
          index[arm, name, None] = draw()
    for k in (5, 10):
      for metric in ('sampled_loss', 'sampled_loss_error'):
        index['exact', metric, k] = {0: rng.uniform(1, 90)}
  return made


def test_every_cell_of_linear_attention(bits):
  expected = []
  for setting, index in bits.items():
    exact = [index['exact', name, None][0] for name in linear_tables.ENTRIES]
    for arm, name in (('exact', 'least squares'), ('closed', 'closed form'),
                      ('single', "paper's Γ"), ('trained', 'trained')):
      if arm == 'closed':
        table = theory.closed_form_table(setting.task, 5)
        losses = [theory.loss(table, setting.task, k) for k in (1, 2, 3, 4, 5, 20)]
        columns = [[x] for x in (*table.ravel(), np.mean(losses[:5]), losses[5])]
      else:
        columns = [[*index[arm, metric, None].values()]
                   for metric in (*linear_tables.ENTRIES, 'training_loss')]
        columns.append([*index[arm, 'loss', 20].values()])
      headers = ('A00', 'A01', 'A10', 'A11', 'training loss', 'loss at 20')
      row = {'task': setting.task, 'n': '5', 'table': name}
      for header, column in zip(headers, columns, strict=True):
        middle, _, high = mean_of(column) if len(column) > 1 else (*column, 0, np.nan)
        row[header] = give_or_take(middle, high - middle)
      far = max(abs(x - y) for y, column in zip(exact, columns[:4], strict=True)
                for x in column)
      row['largest difference from least squares'] = (
          '' if arm == 'exact' else known(far, ',.6f'))
      expected.append(row)
  assert cells(linear_tables.optimum(bits, 20)) == expected


def test_every_cell_of_errata(bits):
  number = lambda x: known(x, ',.6f')
  expected = []
  for setting, index in bits.items():
    at = lambda arm, k, index=index: index[arm, 'loss', k][0]
    training = [index[arm, 'training_loss', None][0] for arm in ('single', 'exact')]
    gamma = {'length': 3.0, 'sum': 5 * 8 / (2 * (5 + 137 / 60))}[setting.task]
    rows = [('1..n', 'least training loss', f'that of Γ = {gamma:.6g}', *training,
             'A of two numbers' if setting.task == 'length' else 'A of three numbers')]
    square = (20 - gamma) ** 2
    if setting.task == 'length':
      rows += [('20', 'loss of Γ', '(l − Γ)²', square, at('single', 20), 'as printed'),
               ('5', 'loss of Γ at l = n', 'O((l − n)²) = 0', 0.0, at('single', 5),
                '((n − 1)/2)²')]
    else:
      rows.append(('20', 'loss of Γ', '(l + 1)/(2l)·(l − Γ)²', 21 / 40 * square,
                   at('single', 20), '(l + 1)/(4l)·(l − Γ)²'))
    rows.append(('20', 'loss of the optimum', 'that of Γ', at('single', 20),
                 at('exact', 20), 'no short formula'))
    expected += [
        {'task': setting.task, 'n': '5', 'l': length, 'quantity': what,
         'the paper': formula, 'by the paper': number(paper),
         'over all strings': number(truth), 'correct': right}
        for length, what, formula, paper, truth, right in rows]
  assert cells(linear_tables.errata(bits, 20)) == expected


def test_every_cell_of_reparameterized_targets(bits):
  [index] = [index for setting, index in bits.items() if setting.task == 'length']
  names = {'exact': 'y', 'sqrt': '√y', 'log': 'log y', 'inverse_sqrt': '1/√y'}
  # The made-up results lack 20 and 35, which are no shorter than the longest.
  assert cells(linear_tables.reparameterization(bits, 20)) == [
      {'n': '5', 'f(y)': name, 'l': str(k),
       'loss of y': f'{index[arm, "loss", k][0]:.1f}',
       'times that of f(y) = y': (
           f'{index[arm, "loss", k][0] / index["exact", "loss", k][0]:.3f}')}
      for arm, name in names.items() for k in (5, 20)]


def test_every_cell_of_drawn_strings(bits):
  expected = []
  for setting, index in bits.items():
    for k in (5, 10):
      all_strings, found, error = (
          index['exact', metric, k][0] for metric in (
              'loss', 'sampled_loss', 'sampled_loss_error'))
      expected.append({
          'task': setting.task, 'n': '5', 'l': str(k),
          'loss, all strings': f'{all_strings:.4f}',
          'loss, drawn strings': give_or_take(found, error),
          'difference in standard errors': text((found - all_strings) / error, '+.2f'),
      })
  table = linear_tables.sampled(bits)
  assert cells(table) == expected
  far = max(abs(r['difference_in_errors']) for r in table.records)
  assert f'The farthest is {far:.1f} standard errors away.' in table.note


# Measurements of a checkpoint.


class _Made(dict):
  """Values that are made up when they are asked for, no two alike."""

  def add(self, arm, metric, length, low=0.0, high=1.0):
    draw = np.random.default_rng([len(self), 9])
    self[arm, metric, length] = draw.uniform(low, high)

  def add_interval(self, arm, metric, length):
    for end in ('', '_low', '_high'):
      self.add(arm, metric + end, length)

  def shown(self, arm, metric, length, form):
    return interval(
        *(self[arm, metric + end, length] for end in ('', '_low', '_high')), form)


def test_every_cell_of_perplexity():
  values = _Made()
  for part in (BLOCK, SLIDING):
    for n in (8, 16, 2048):
      values.add_interval(part, 'nll', n)
      for i in range(3):
        values.add(part._replace(piece=i), 'nll', n)
        values.add(part._replace(piece=i), 'scored', n, 10, 20)
  for i, n in enumerate((8, 16, 2048)):
    values |= {(BLOCK, 'pieces', n): 3, (BLOCK, 'scored', n): 1000 + i,
               (SLIDING, 'stride', n): n // 2 + i}
  # Samples have the same pieces at both lengths.
  drawn = np.random.default_rng(3).multinomial(3, [1 / 3] * 3, 40)

  def ratio(part, n):
    middle = np.exp(values[part, 'nll', n] - values[part, 'nll', 16])
    if n == 16:
      return f'{middle:.3f}'
    of_samples = []
    for length in (n, 16):
      nll, scored = np.array([
          [values[part._replace(piece=i), name, length] for i in range(3)]
          for name in ('nll', 'scored')])
      of_samples.append(drawn @ (nll * scored) / (drawn @ scored))
    ends = np.exp(np.quantile(np.subtract(*of_samples), (0.025, 0.975)))
    return interval(middle, *ends, '.3f')

  def perplexity(part, n):
    ends = [np.exp(values[part, f'nll{end}', n]) for end in ('', '_low', '_high')]
    return interval(*ends, '.3f')

  assert cells(measure.perplexity(values, 16, False, (40, 3))) == [
      {'window': window, 'times L': times,
       'log perplexity, blocks [95 %]': values.shown(BLOCK, 'nll', n, '.4f'),
       'perplexity, blocks [95 %]': perplexity(BLOCK, n),
       'stride': stride,
       'log perplexity, sliding [95 %]': values.shown(SLIDING, 'nll', n, '.4f'),
       'perplexity, sliding [95 %]': perplexity(SLIDING, n),
       'tokens scored in blocks': scored,
       '÷ perplexity at L, blocks [95 %]': ratio(BLOCK, n),
       '÷ perplexity at L, sliding [95 %]': ratio(SLIDING, n)}
      for n, window, times, stride, scored in (
          (8, '8', '0.5', '4', '1,000'), (16, '16', '1', '9', '1,001'),
          (2048, '2,048', '128', '1,026', '1,002'))]


def test_every_cell_of_misalignment():
  values, names = _Made(), {
      'sce': 'SCE', 'symmetric_kl': 'symmetric KL', 'kl_first_second': 'KL(long‖short)',
      'kl_second_first': 'KL(short‖long)', 'js': 'Jensen–Shannon',
      'top1_agreement': 'top-1 agreement'}
  places = [(16, 2), (1024, 2), (1024, 64)]
  for n, offset in places:
    for metric in (*names, 'half_sce', 'entropy_first', 'entropy_second'):
      values.add_interval(Part('misalignment', 'text', offset=offset), metric, n)
    values[Part('misalignment', 'text', offset=offset), 'num_sequences', n] = 12
  table = measure.misalignment(values)
  assert cells(table) == [
      {'window': f'{n:,}', 'offset': str(offset)} | {
          name: values.shown(Part('misalignment', 'text', offset=offset), metric, n,
                             '.3f' if metric == 'top1_agreement' else '.4f')
          for metric, name in names.items()}
      for n, offset in places]
  for record, (n, offset) in zip(table.records, places, strict=True):
    part = Part('misalignment', 'text', offset=offset)
    for metric in ('half_sce', 'entropy_first', 'entropy_second'):
      assert record[metric] == values[part, metric, n]


def test_every_cell_of_recency_of_attention():
  values = _Made()
  for order, layer in itertools.product(('text', 'shuffled'), (0, 3)):
    arm = Part('recency', order, layer)
    for metric in ('recency_probability', 'violation_rate'):
      values.add_interval(arm, metric, 256)
      for head in (0, 1, 2):
        values.add(arm._replace(head=head), metric, 256)
  expected = []
  for layer in (0, 3):
    row = {'layer': str(layer)}
    for order in ('text', 'shuffled'):
      arm = Part('recency', order, layer)
      heads = [values[arm._replace(head=h), 'recency_probability', 256]
               for h in range(3)]
      row |= {
          f'recency probability, {order}': values.shown(
              arm, 'recency_probability', 256, '.3f'),
          f'heads, {order}': f'{min(heads):.3f} to {max(heads):.3f}',
          f'violation rate, {order}': values.shown(arm, 'violation_rate', 256, '.3f')}
    expected.append(row)
  assert cells(measure.recency(values)) == expected


def test_every_cell_of_entropy():
  values = _Made()
  for order, layer, n in itertools.product(('text', 'shuffled'), (0, 3), (8, 1024)):
    values.add_interval(Part('entropy', order, layer), 'entropy', n)
    values[Part('entropy', order, layer), 'entropy_high', n] += 2

  def cell(order, layer, n):
    middle, low, high = (values[Part('entropy', order, layer), f'entropy{end}', n]
                         for end in ('', '_low', '_high'))
    return give_or_take(middle, (high - low) / 2)

  assert cells(measure.entropy(values)) == [
      {'layer': str(layer), 'tokens': order, 'N = 8 (2.08)': cell(order, layer, 8),
       'N = 1,024 (6.93)': cell(order, layer, 1024)}
      for layer in (0, 3) for order in ('text', 'shuffled')]


_CONDITIONS = {'random_nope': 'random tokens, no positions', 'random': 'random tokens',
               'text': 'text'}
_READINGS = {'as_it_is': 'as it is', 'fixed': 'held fixed'}


@pytest.fixture(scope='module')
def spreads():
  """Made-up spreads of three conditions, two readings, two layers and two heads."""
  values = _Made()
  for condition, reading, layer in itertools.product(_CONDITIONS, _READINGS, (0, 2)):
    arm = spread_part(condition, reading, layer)
    for one in (arm, arm._replace(head=0), arm._replace(head=3)):
      for name in ('slope', 'slope_low', 'slope_high', 'slope_least', 'slope_most'):
        values.add(one, name, None, -1, 0)
      for n in (8, 64, 1024):
        values.add_interval(one, 'std', n)
    values[arm, 'num_sequences', None] = 40
    values[arm, 'num_queries', None] = 1 if reading == 'as_it_is' else 6
  return values


def test_every_cell_of_the_spread(spreads):
  expected = []
  for layer, reading, condition in itertools.product((0, 2), _READINGS, _CONDITIONS):
    arm = spread_part(condition, reading, layer)
    least, most = (spreads[arm, f'slope_{x}', None] for x in ('least', 'most'))
    expected.append({
        'layer': str(layer), 'sequences of': _CONDITIONS[condition],
        'last token': _READINGS[reading],
        'slope [95 %]': spreads.shown(arm, 'slope', None, '.3f'),
        'single tokens': '' if reading == 'as_it_is' else (
            f'{text(least, ".3f")} to {text(most, ".3f")}'),
        'standard deviation': (
            f'{spreads[arm, "std", 8]:.4f} → {spreads[arm, "std", 1024]:.4f}'),
        'N': '8 → 1,024'})
  table = spread.slopes(spreads)
  assert cells(table) == expected
  assert '40 sequences, 6 last tokens held fixed.' in table.note


def test_every_cell_of_the_spread_by_head(spreads):
  expected = []
  for layer, reading, head in itertools.product((0, 2), _READINGS, (0, 3)):
    row = {'layer': str(layer), 'last token': _READINGS[reading], 'head': str(head)}
    for condition, name in _CONDITIONS.items():
      arm = spread_part(condition, reading, layer, head=head)
      row[f'slope, {name} [95 %]'] = spreads.shown(arm, 'slope', None, '.2f')
      row[f'std, {name}'] = ' → '.join(
          alike([spreads[arm, 'std', n] for n in (8, 1024)], 2))
    expected.append(row)
  assert cells(spread.by_head(spreads)) == expected


@pytest.mark.parametrize('path, name', [
    ('stories260K', 'stories260K'), ('/models/own/', 'own'), ('gs://bucket/own', 'own'),
    ('/home/x/.cache/hub/models--org--some-model/snapshots/0a1b', 'org/some-model')])
def test_a_checkpoint_is_named_as_its_folder(path, name):
  assert measure_report._name(path) == name
