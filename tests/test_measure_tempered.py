"""What temperatures of heads change in a checkpoint's predictions of longer inputs."""

import functools

import jax
import numpy as np
import pytest

from configs import measure as configs
from experiments.measure import figures, measurements, tempered, tempered_report
from experiments.measure.rows import LAWS, TEMPERED
from tests.artists import lines
from tests.cells import cells
from tests.llamas import llama, V, variables_of
from vvlen.evaluation.perplexity import block_nll
from vvlen.evaluation.tempered_heads import apply_tempered
from vvlen.reporting import plots

CHANGES = {'power_in_training': 0.25, 'power': -0.125, 'power_of_log': 0.5,
           'log_n': 1.0, 'inverse_log_n': -0.25}
LENGTHS = (1024, 4096)


@pytest.fixture(scope='module')
def values():
  found = {}
  for n in LENGTHS:
    found[TEMPERED, 'nll', n] = 3.5 if n == 1024 else 4.25
    for law, change in CHANGES.items():
      for end, apart in zip(('', '_low', '_high'), (0, -0.1, 0.1), strict=True):
        found[TEMPERED, f'change_{law}{end}', n] = change * n / 4096 + apart
  for i, law in enumerate(LAWS):
    found[TEMPERED, f'heads_{law}', None] = 36 + i
  return found


def test_exponents_are_fitted_to_all_lengths_or_up_to_l():
  lengths, powers = [8, 16, 32, 64], np.array([[0.5, -0.2, 1.0]])
  # β ∝ n^p up to 32, and four times as much at 64; no β at all in the last head.
  betas = np.array(lengths, float) ** powers[..., None] * [1, 1, 1, 4]
  betas[0, 2] = np.inf
  found = tempered.fit(np.stack([betas, betas]), lengths, 32)
  assert [*found] == [*LAWS]
  np.testing.assert_allclose(found['power_in_training'][0, :2], [0.5, -0.2])
  x, y = np.log(lengths), np.log(betas[0, 0])
  slope = ((x - x.mean()) * y).sum() / ((x - x.mean()) ** 2).sum()
  np.testing.assert_allclose(found['power'][0, 0], slope)
  z = np.log(x)
  slope = ((z - z.mean()) * y).sum() / ((z - z.mean()) ** 2).sum()
  np.testing.assert_allclose(found['power_of_log'][0, 0], slope)
  assert all(np.isnan(found[law][0, 2]) for law in [*LAWS][:3])
  assert (found['log_n'] == 1).all() and (found['inverse_log_n'] == -1).all()
  # One length up to L has no slope.
  alone = tempered.fit(np.stack([betas, betas]), lengths, 15)
  assert np.isnan(alone['power_in_training']).all()


@pytest.mark.parametrize(('law', 'expected'), [
    ('power_in_training', (64 / 16) ** 0.5), ('power', (64 / 16) ** 0.5),
    ('power_of_log', (np.log(64) / np.log(16)) ** 0.5),
    ('log_n', (np.log(64) / np.log(16)) ** 0.5),
    ('inverse_log_n', (np.log(64) / np.log(16)) ** 0.5),
])
def test_factors_are_of_the_law_and_1_without_an_exponent(law, expected):
  found = tempered.factors(law, np.array([[0.5, np.nan]]), 64, 16)
  assert found.shape == (1, 64, 2)
  np.testing.assert_allclose(found[0, 63], [expected, 1], rtol=1e-6)
  np.testing.assert_array_equal(found[0, :16], 1)


def test_losses_are_those_of_a_model_whose_queries_are_multiplied(rng):
  config = configs.get_config('smoke')
  config.entropy.num_sequences = 3
  model = llama(max_length=16)
  variables = variables_of(model)
  stream = rng.integers(V, size=300).astype(np.int32)
  subject = measurements.Subject(model, stream, V, None, 16)
  [one] = tempered.tempered(config, subject)
  rows = {(row.metric, row.length): row.value for row in one.rows(variables)}
  assert {n for _, n in rows} == {None, 32}
  text = stream[:128]
  plain = jax.jit(functools.partial(model.apply, variables))
  np.testing.assert_allclose(rows['nll', 32], block_nll(plain, text, 32), rtol=1e-5)
  for law, power in ('log_n', 1.0), ('inverse_log_n', -1.0):
    factors = tempered.factors(law, np.full((2, 4), power), 32, 16)
    tempered_model = functools.partial(apply_tempered, model, factors, variables)
    change = block_nll(tempered_model, text, 32) - rows['nll', 32]
    assert abs(change) > 1e-4
    np.testing.assert_allclose(rows[f'change_{law}', 32], change, rtol=1e-2, atol=1e-6)
    assert rows[f'change_{law}_low', 32] <= change <= rows[f'change_{law}_high', 32]
  assert rows['heads_log_n', None] == 8 and rows['heads_power', None] <= 8
  assert rows['pieces', 32] == 4
  # Nothing is measured if no window is longer than L.
  config.perplexity.lengths = (0.5, 1.0)
  assert [*tempered.tempered(config, subject)] == []


def test_every_cell_of_the_table(values):
  table = tempered_report.table(values, 512)
  assert [r['law'] for r in table.records] == [*LAWS]
  shown = cells(table)
  assert shown[1] == {
      'factor of the logits': "each head's power of N", 'heads': '37',
      '1,024 tokens [95 %]': '−0.031 [−0.131, +0.069]',
      '4,096 tokens [95 %]': '−0.125 [−0.225, −0.025]'}
  assert [r['heads'] for r in shown] == ['36', '37', '38', '39', '40']
  assert 'beyond L = 512 tokens' in table.note
  assert 'Without: 3.500 at 1,024, 4.250 at 4,096.' in table.note
  assert tempered_report.table({}, 512).records == []


def test_the_figure_draws_the_table(values):
  with plots.style():
    figure = figures.make(values, 512)['tempered']
  [axes] = figure.axes
  drawn = lines(axes)
  for law, change in CHANGES.items():
    line = drawn[LAWS[law]]
    np.testing.assert_allclose(line.x, LENGTHS, rtol=0.1)
    np.testing.assert_allclose(line.y, [change / 4, change])
  bars = [c.get_segments() for c in axes.collections]
  assert len(bars) == len(LAWS)
  for segments, change in zip(bars, CHANGES.values(), strict=True):
    ends = [[y for _, y in segment] for segment in segments]
    np.testing.assert_allclose(
        ends, [[change / 4 - 0.1, change / 4 + 0.1], [change - 0.1, change + 0.1]])
  assert ('change log perplexity at 4,096 tokens by −0.25 (1 / log N for all heads, a '
          'control) to +1.00 nats') in ' '.join(figure.get_suptitle().split())
  assert tempered_report.figure({}, 512) is None


def test_the_sentence_has_all_laws(values):
  [said] = tempered_report.sentence(tempered_report.table(values, 512).records)
  assert said.startswith('Multiplying logits of heads at inference changes log '
                         'perplexity at 4,096 tokens, nats: ')
  for law, change in CHANGES.items():
    low, high = (f'{change + x:+.3f}'.replace('-', '−') for x in (-0.1, 0.1))
    middle = f'{change:+.3f}'.replace('-', '−')
    assert f'{middle} [95 %: {low}, {high}] ({LAWS[law]})' in said
  assert tempered_report.sentence([]) == []
