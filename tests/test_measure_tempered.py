"""What temperatures of heads change in a checkpoint's predictions of longer inputs."""

import functools

import jax
import numpy as np
import pytest

from configs import measure as configs
from experiments.harness.temperatures import factors
from experiments.measure import figures, measurements, tempered, tempered_report
from experiments.measure.rows import LAWS, TEMPERED
from tests.artists import lines
from tests.cells import cells
from tests.llamas import llama, ROPES, V, variables_of
from vvlen.evaluation.attention_by_length import temperature_of_top
from vvlen.evaluation.perplexity import block_nll
from vvlen.evaluation.probe import probe_layers
from vvlen.evaluation.temperature_law import powers_of
from vvlen.evaluation.tempered_heads import apply_tempered
from vvlen.reporting import plots

CHANGES = {'power_in_training': 0.25, 'power': -0.125, 'power_of_log': 0.5,
           'log_n': 1.0, 'power_of_others': 0.125, 'inverse_log_n': -0.25}
LENGTHS = (1024, 4096)


@pytest.fixture(scope='module')
def values():
  found = {}
  for n in LENGTHS:
    found[TEMPERED, 'pieces', n] = 4
    for law, change in CHANGES.items():
      for end, apart in zip(('', '_low', '_high'), (0, -0.1, 0.1), strict=True):
        found[TEMPERED, f'change_{law}{end}', n] = change * n / 4096 + apart
  for i, law in enumerate(LAWS):
    found[TEMPERED, f'heads_{law}', None] = 36 + i
  return found


def test_exponents_are_fitted_to_all_lengths_or_up_to_l():
  lengths = [8, 16, 32, 64]
  powers = np.array([[0.5, -0.2, 1.0], [0.3, 0.7, -0.4]])  # of layers 0 and 2
  # β ∝ n^p up to 32, and four times as much at 64; no β at all in the last head.
  betas = np.array(lengths, float) ** powers[..., None] * [1, 1, 1, 4]
  betas[1, 2] = np.inf
  fit = lambda longest: tempered.fit(
      np.stack([betas, betas]), lengths, longest, [0, 2], 3)
  found = fit(32)
  assert {*found} == {*LAWS}
  known = [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
  x = np.log(lengths)
  for layer, head in known:
    i = layer // 2
    y, z = np.log(betas[i, head]), np.log(x)
    for law, u in ('power', x), ('power_of_log', z):
      slope = ((u - u.mean()) * y).sum() / ((u - u.mean()) ** 2).sum()
      np.testing.assert_allclose(found[law][layer, head], slope)
    np.testing.assert_allclose(found['power_in_training'][layer, head], powers[i, head])
  for law in ('power_in_training', 'power', 'power_of_log'):
    assert np.isnan(found[law][1]).all() and np.isnan(found[law][2, 2])
    assert np.isfinite(found[law]).sum() == 5
  # The same powers, of which no head has its own.
  others, own = found['power_of_others'].ravel(), found['power'].ravel()
  np.testing.assert_array_equal(np.sort(others), np.sort(own))
  assert (others != own).all()
  assert (found['log_n'] == 1).all() and (found['inverse_log_n'] == -1).all()
  # One length up to L has no slope.
  assert np.isnan(fit(15)['power_in_training']).all()


@pytest.mark.parametrize(('law', 'expected'), [
    ('power_in_training', (64 / 16) ** 0.5), ('power', (64 / 16) ** 0.5),
    ('power_of_log', (np.log(64) / np.log(16)) ** 0.5),
    ('log_n', (np.log(64) / np.log(16)) ** 0.5),
    ('inverse_log_n', (np.log(64) / np.log(16)) ** 0.5),
])
def test_factors_are_of_the_law_and_1_without_an_exponent(law, expected):
  found = factors(law, np.array([[0.5, np.nan]]), 64, 16)
  assert found.shape == (1, 64, 2)
  np.testing.assert_allclose(found[0, 63], [expected, 1], rtol=1e-6)
  np.testing.assert_array_equal(found[0, :16], 1)


@pytest.mark.parametrize(('rope', 'begin'), [
    ('default', False), ('default', True), ('dynamic', False)])
def test_losses_are_those_of_a_model_whose_queries_are_multiplied(rng, rope, begin):
  config = configs.get_config('smoke')
  config.entropy.num_sequences = 3
  config.perplexity.begin = begin
  model = llama(max_length=16, rope=ROPES[rope])
  variables = variables_of(model)
  stream = rng.integers(V, size=300).astype(np.int32)
  subject = measurements.Subject(model, stream, V, 1, 16)
  [one] = tempered.tempered(config, subject)
  rows = {(row.metric, row.length): row.value for row in one.rows(variables)}
  assert {n for _, n in rows} == {None, 32}
  # By hand: β of each head, sequence and length, and the powers.
  sequences = np.stack([stream[int(start):][:32] for start in (0, 134, 268)])
  if begin:
    sequences = np.concatenate([np.ones((3, 1), np.int32), sequences[:, :-1]], axis=1)
  lengths = (2, 4, 8, 16, 32)
  betas = np.stack([
      temperature_of_top(*at, (n,))[..., 0] for n in lengths for layer in range(2)
      for at in [probe_layers(model, variables, [layer])(
          sequences[:, :n])[0][:2]]]).reshape(5, 2, 3, 4)
  powers = np.array([[[
      powers_of(some, betas[:len(some), layer, :, head].T[None])[0, which]
      for head in range(4)] for layer in range(2)]
      for some, which in ((lengths[:4], 0), (lengths, 0), (lengths, 1))])
  ones = np.ones((2, 4))
  laws = {**dict(zip(('power_in_training', 'power', 'power_of_log'), powers,
                     strict=True)),
          'log_n': ones, 'inverse_log_n': -ones,
          'power_of_others': np.roll(powers[1], 1, axis=0)}
  text, options = stream[:128], {'begin': 1 if begin else None}
  plain = block_nll(jax.jit(functools.partial(model.apply, variables)), text, 32,
                    **options)
  for law, power in laws.items():
    assert rows[f'heads_{law}', None] == np.isfinite(power).sum()
    tempered_model = functools.partial(
        apply_tempered, model, factors(law, power, 32, 16), variables)
    change = block_nll(tempered_model, text, 32, **options) - plain
    np.testing.assert_allclose(rows[f'change_{law}', 32], change, rtol=2e-2, atol=1e-5)
    assert rows[f'change_{law}_low', 32] <= rows[f'change_{law}_high', 32]
  assert len({round(x, 5) for (name, _), x in rows.items()
              if name in {f'change_{law}' for law in LAWS}}) == len(LAWS)
  assert rows['pieces', 32] == 4
  # Nothing is measured if no window is longer than L.
  config.perplexity.lengths = (0.5, 1.0)
  assert [*tempered.tempered(config, subject)] == []


def test_layers_that_are_not_chosen_keep_their_logits(rng):
  config = configs.get_config('smoke')
  config.entropy.update(num_sequences=3, layers=(1,))
  model = llama(max_length=16)
  stream = rng.integers(V, size=300).astype(np.int32)
  [one] = tempered.tempered(config, measurements.Subject(model, stream, V, None, 16))
  rows = {row.metric: row.value for row in one.rows(variables_of(model))}
  assert rows['heads_power'] <= 4 and rows['heads_log_n'] == 8


def test_every_cell_of_the_table(values):
  table = tempered_report.table(values, 512)
  assert [r['law'] for r in table.records] == [*LAWS]
  shown = cells(table)
  assert shown[1] == {
      'factor of the logits': "each head's power of N", 'heads': '37',
      '1,024 tokens [95 %]': '−0.031 [−0.131, +0.069]',
      '4,096 tokens [95 %]': '−0.125 [−0.225, −0.025]'}
  assert [r['heads'] for r in shown] == ['36', '37', '38', '39', '40', '41']
  assert table.note.endswith('beyond L = 512 tokens. [95 %]: bootstrap over 4 pieces '
                             'of the text.')
  assert tempered_report.table({}, 512).records == []
  one = {key: x for key, x in values.items() if not key[1].endswith(('_low', '_high'))}
  one |= {(TEMPERED, 'pieces', n): 1 for n in LENGTHS}
  alone = tempered_report.table(one, 512)
  assert alone.note.endswith('too few windows for intervals.')
  assert cells(alone)[1]['4,096 tokens [95 %]'] == '−0.125'


def test_the_figure_draws_the_table(values):
  with plots.style():
    figure = figures.make(values, 512)['tempered']
  [axes] = figure.axes
  drawn = lines(axes)
  shown = {law: x for law, x in CHANGES.items() if law != 'power_of_log'}
  assert {LAWS[law] for law in shown} == drawn.keys() & {*LAWS.values()}
  for law, change in shown.items():
    line = drawn[LAWS[law]]
    np.testing.assert_allclose(line.x, LENGTHS, rtol=0.1)
    np.testing.assert_allclose(line.y, [change / 4, change])
  bars = [c.get_segments() for c in axes.collections]
  for segments, change in zip(bars, shown.values(), strict=True):
    ends = [[y for _, y in segment] for segment in segments]
    np.testing.assert_allclose(
        ends, [[change / 4 - 0.1, change / 4 + 0.1], [change - 0.1, change + 0.1]])
  assert ('change log perplexity at 4,096 tokens by −0.25 (1 / log N for all heads, a '
          'control) to +1.00 nats') in ' '.join(figure.get_suptitle().split())
  assert tempered_report.figure({}, 512) is None
  # A change that is not finite has no part in the title.
  bad = {**values, (TEMPERED, 'change_log_n', 4096): np.nan}
  with plots.style():
    title = tempered_report.figure(bad, 512).get_suptitle()
  assert '−0.25 (1 / log N for all heads, a control) to +0.25 nats' in ' '.join(
      title.split())


def test_the_sentence_has_all_laws(values):
  [said] = tempered_report.sentence(tempered_report.table(values, 512).records)
  assert said.startswith('Multiplying logits of heads at inference changes log '
                         'perplexity at 4,096 tokens, nats: ')
  for law, change in CHANGES.items():
    low, high = (f'{change + x:+.3f}'.replace('-', '−') for x in (-0.1, 0.1))
    middle = f'{change:+.3f}'.replace('-', '−')
    assert f'{middle} [95 %: {low}, {high}] ({LAWS[law]})' in said
  assert tempered_report.sentence([]) == []
