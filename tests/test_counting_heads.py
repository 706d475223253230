"""The temperature that heads of counting models need: measured, and in its table."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import counting as config_file
from experiments.counting import training
from experiments.counting.cells import Setup
from experiments.counting.heads import look, make_heads
from experiments.counting.heads_table import heads_table, LAWS, tempered_table
from experiments.counting.tempered import make_tempered
from tests.conftest import shown
from vvlen import sharding
from vvlen.evaluation.temperature_law import critical_temperature
from vvlen.evaluation.tempered_heads import (
  apply_tempered,
  power_of_log_n,
  power_of_n,
)
from vvlen.models.decoder import Decoder, SequenceRegressor
from vvlen.objectives import output_reparameterization as outrep
from vvlen.reporting import results
from vvlen.tasks import counting

_MODEL = SequenceRegressor(Decoder(counting.VOCAB_SIZE, num_layers=2, width=16,
                                   num_heads=2, positions='alibi'))
_TOKENS = jnp.array([[2, 0, 1, 1, 0, 3], [2, 1, 1, 1, 1, 3]])


@pytest.fixture(scope='module')
def params():
  return jax.vmap(lambda key: _MODEL.init(key, _TOKENS, jnp.array([-1]))['params'])(
      jax.random.split(jax.random.key(3), 2))


def _one(params, seed):
  return jax.tree.map(lambda x: x[seed], params)


@pytest.mark.slow
def test_logits_are_those_of_the_last_token(params):
  own = _one(params, 0)
  # A pass that computes all rows of all layers.
  _, sown = _MODEL.decoder.apply(
      {'params': own['decoder']}, _TOKENS, mutable=['intermediates'])
  beta, weight = look(_MODEL, own, _TOKENS)
  assert beta.shape == weight.shape == (2, 2, 2)
  for layer in range(2):
    found = sown['intermediates'][f'layer_{layer}']
    logits = found['attention_logits'][0][:, :, -1]
    np.testing.assert_allclose(beta[:, layer], critical_temperature(logits), rtol=1e-5)
    np.testing.assert_allclose(
        weight[:, layer], found['attention_weights'][0][:, :, -1].max(-1), rtol=1e-5)


@pytest.mark.slow
def test_a_block_of_seeds_is_measured_as_each_is_by_hand(params, monkeypatch):
  monkeypatch.setattr('experiments.counting.heads.STRINGS', 9)
  keys = jax.random.split(jax.random.key(4), 2)
  mesh = sharding.seed_mesh(jax.devices()[:2])
  measure = make_heads(_MODEL, (4, 9, 20), 'uniform', mesh, 1)
  put = lambda x: sharding.put(x, mesh, 1)
  measured = measure(jax.tree.map(put, params), put(keys))
  assert len(measured) == 2 * 2 * (2 * 3 + 2)  # layers, heads, lengths
  for seed in range(2):
    medians = []
    for n in (4, 9, 20):
      tokens = counting.sample(
          jax.random.fold_in(keys[seed], n), batch_size=9, min_length=n, max_length=n,
          task='mean', counts='uniform').tokens
      assert tokens.shape == (9, n + 2)
      beta, weight = look(_MODEL, _one(params, seed), tokens)
      medians.append(np.median(beta, axis=0)[1, 0])
      assert measured['needed_temperature', 1, 0, n][seed] == pytest.approx(
          medians[-1], rel=1e-4)
      assert measured['largest_weight', 1, 0, n][seed] == pytest.approx(
          float(weight.mean(0)[1, 0]), rel=1e-4)
    assert np.isfinite(medians).all()
    slope = np.polyfit(np.log([6, 11, 22]), np.log(medians), 1)[0]
    assert measured['needed_power', 1, 0, None][seed] == pytest.approx(slope, rel=1e-3)
    slope = np.polyfit(np.log(np.log([6, 11, 22])), np.log(medians), 1)[0]
    assert measured['needed_power_of_log', 1, 0, None][seed] == pytest.approx(
        slope, rel=1e-3)


@pytest.mark.slow
def test_a_block_of_seeds_is_tempered_as_each_is_by_hand(params, monkeypatch):
  monkeypatch.setattr('experiments.counting.tempered.STRINGS', 9)
  model = _MODEL.clone(decoder=_MODEL.decoder.clone(positions='rope'))
  cell = Setup('sum', 'uniform', 10, 'rope', 'log')
  # Queries are large, so that attention is not nearly uniform.
  params = jax.tree_util.tree_map_with_path(
      lambda path, x: x * 20 if 'query' in str(path) else x, params)
  keys = jax.random.split(jax.random.key(4), 2)
  mesh = sharding.seed_mesh(jax.devices()[:2])
  make = lambda model: make_tempered(model, outrep.LOG, cell, (10, 15, 20), mesh, 1)
  powers = {}
  for layer, head in np.ndindex(2, 2):
    powers['needed_power', layer, head, None] = np.array([0.3, -0.2]) + layer
    powers['needed_power_of_log', layer, head, None] = np.array([1.5, 0.5]) - head
  powers['needed_power', 1, 1, None][0] = np.nan  # keeps its logits
  put = lambda x: sharding.put(x, mesh, 1)
  found = make(model)(jax.tree.map(put, params), put(keys), powers)
  assert {*found} == {(f'squared_error_{law}', None, None, n)
                      for law in LAWS for n in (15, 20)}
  for seed, n in (0, 20), (1, 15):
    drawn = counting.sample(
        jax.random.fold_in(jax.random.fold_in(keys[seed], n), 1), batch_size=9,
        min_length=n, max_length=n, task='sum', counts='uniform')
    own = lambda name, seed=seed: np.array([
        [powers[name, layer, head, None][seed] for head in range(2)]
        for layer in range(2)])
    of = {'none': power_of_n(np.zeros((2, 2)), n + 2, 12),
          'power': power_of_n(np.nan_to_num(own('needed_power')), n + 2, 12),
          'power_of_log': power_of_log_n(own('needed_power_of_log'), n + 2, 12),
          'log_n': power_of_log_n(np.ones((2, 2)), n + 2, 12),
          'inverse_log_n': 1 / power_of_log_n(np.ones((2, 2)), n + 2, 12),
          # Of four heads, each has the power of the one two further on.
          'power_of_others': power_of_n(
              np.nan_to_num(own('needed_power'))[::-1], n + 2, 12)}
    errors = {}
    for law, factors in of.items():
      answer = apply_tempered(
          model, factors, {'params': _one(params, seed)}, drawn.tokens,
          jnp.arange(n + 2))[:, -1]
      errors[law] = float(jnp.square(outrep.LOG.decode(answer) - drawn.target).mean())
      assert found[f'squared_error_{law}', None, None, n][seed] == pytest.approx(
          errors[law], rel=1e-3)
    # The last token's answer is that of a model which reads it alone.
    plain = model.apply({'params': _one(params, seed)}, drawn.tokens, jnp.array([-1]))
    assert errors['none'] == pytest.approx(float(np.mean(
        (outrep.LOG.decode(plain[:, 0]) - drawn.target) ** 2)), rel=1e-3)
    assert len({round(x, 3) for x in errors.values()}) == 6
  assert make(_MODEL)(None, None, powers) == {}  # ALiBi
  near = make_tempered(model, outrep.LOG, cell, (5, 10), mesh, 1)
  assert near(None, None, powers) == {}


@pytest.mark.slow
def test_equal_keys_need_an_infinite_temperature(params):
  # Without positions, the first layer cannot tell equal bits apart.
  model = _MODEL.clone(decoder=_MODEL.decoder.clone(positions='none'))
  own = _one(params, 0)
  query = own['decoder']['layer_0']['query']['kernel']
  key = own['decoder']['layer_0']['key']['kernel']
  blind = jax.tree.map(jnp.zeros_like, {'query': query, 'key': key})
  own['decoder']['layer_0'] |= {name: {'kernel': x} for name, x in blind.items()}
  beta, weight = look(model, own, _TOKENS)
  assert np.isinf(beta[:, 0]).all()
  np.testing.assert_allclose(weight[:, 0], 1 / 6, rtol=1e-6)


@pytest.mark.slow
def test_without_lengths_nothing_is_measured(params):
  measure = make_heads(_MODEL, (), 'fair', sharding.seed_mesh(), 1)
  assert measure(params, None) == {}
  config = config_file.get_config('cpu')
  assert config.to_dict()['evaluate']['temperature_lengths'] is None
  programs = training.make_programs(
      config, Setup('mean', 'fair', 10, 'none', 'identity'), sharding.seed_mesh())
  assert programs.heads(params, None) == {}


def _rows():
  """Returns rows of two seeds with two heads in one layer; one head never can."""
  values = {  # (seed, head): (β at 10, β at 50, weight at 10, weight at 50, p, q)
      (0, 0): (2.0, 8.0, 0.30, 0.10, 0.9, 2.0),
      (0, 1): (3.0, 12.0, 0.40, 0.20, 0.5, 1.0),
      (1, 0): (7.0, 40.0, 0.50, 0.25, 0.4, 0.8),
      (1, 1): (9.0, math.inf, 0.80, 0.61, 7.0, 9.0),
  }
  rows = []
  for (seed, head), (near, far, more, less, p, q) in values.items():
    add = lambda metric, n, x, seed=seed, head=head: rows.append(results.Row(
        'mean_10', 'rope', seed, n, metric, x, layer=1, head=head))
    for n, beta, weight in ((10, near, more), (50, far, less)):
      add('needed_temperature', n, beta)
      add('largest_weight', n, weight)
    add('needed_power', None, p)
    add('needed_power_of_log', None, q)
  return rows


def test_every_cell_of_the_table():
  cell = Setup('mean', 'fair', 10, 'rope', 'identity')
  table = heads_table(_rows(), [cell._replace(positions='none'), cell])
  row = shown(table, 'mean, RoPE')
  # By hand: seeds have the powers 0.7 and 0.4; t of one degree is 12.706.
  half = 12.706 * 0.15
  log_half = 12.706 * 0.35
  assert row == {
      'model': 'mean, RoPE', 'layer': '1', 'largest weight': '0.50 → 0.29',
      'heads that can': '75 %', 'β': '3.0 → 12.0',
      'power of n [95 %]': f'+0.55 [{0.55 - half:+.2f}, {0.55 + half:+.2f}]'.replace(
          '-', '−'),
      'power of log n [95 %]':
          f'+1.15 [{1.15 - log_half:+.2f}, {1.15 + log_half:+.2f}]'.replace('-', '−'),
      'heads': '4',
  }
  assert len(table.records) == 1
  assert 'at 10 → 50 bits' in table.note and 'at 50 bits' in table.note


def test_models_have_names_of_their_own():
  plain = Setup('mean', 'fair', 10, 'rope', 'identity')
  cells = [plain, plain._replace(counts='uniform'), plain._replace(train_length=20),
           plain._replace(task='sum', reparameterization='sqrt')]
  rows = [row._replace(experiment=cell.experiment, arm=cell.arm)
          for cell in cells for row in _rows()]
  table = heads_table(rows, cells)
  assert [r['model'] for r in table.records] == [
      'mean, RoPE', 'mean, number of ones uniform, RoPE', 'mean, RoPE, 1 to 20 bits',
      'sum, RoPE, √(y + 1)']


def test_where_no_head_can_there_is_no_law():
  rows = [row._replace(value=math.inf) if row.metric == 'needed_temperature' else row
          for row in _rows()]
  [record] = heads_table(
      rows, [Setup('mean', 'fair', 10, 'rope', 'identity')]).records
  assert record['can'] == 0
  assert math.isnan(record['power']) and math.isnan(record['temperature_longest'])


def test_a_run_without_rows_of_heads_has_no_table():
  assert heads_table([], [Setup('mean', 'fair', 10, 'rope', 'identity')]) is None


def test_every_cell_of_what_temperatures_change():
  cell = Setup('mean', 'fair', 10, 'rope', 'identity')
  none = cell._replace(positions='none')
  rows = [results.Row('mean_10', 'rope', seed, 10, 'squared_error', 1e-4)
          for seed in range(3)]
  for n, worse in (20, 3.0), (50, 1.0):
    for seed, error in enumerate((0.01, 0.04, 0.02)):
      for i, law in enumerate(LAWS):
        ratio = worse * (2.0, 8.0, math.inf if i == 3 else 1.0)[seed] ** i
        rows.append(results.Row('mean_10', 'rope', seed, n, f'squared_error_{law}',
                                error * ratio))
  made = lambda rows: tempered_table({'mean_10': results.index(rows)}, [none, cell])
  table = made(rows)
  [record] = table.records
  reach = 12.706 * math.log(2)  # t of one degree, times the error of the mean
  # The seed whose error under one law is infinite is in no column.
  assert record['error'] == pytest.approx(0.02)
  for i, law in enumerate(LAWS):
    if i:
      assert record[law] == pytest.approx(4.0 ** i)
      assert record[f'{law}_high'] == pytest.approx(
          4.0 ** i * math.exp(reach * i), rel=1e-3)
  row = shown(table, 'mean, RoPE')
  assert [*row] == [
      'model', 'bits', 'squared error', '× with own power of n [95 %]',
      '× with own power of log n [95 %]', '× with log n [95 %]',
      "× with another head's power of n, a control [95 %]",
      '× with 1 / log n, a control [95 %]', 'seeds']
  assert (row['bits'], row['squared error'], row['seeds']) == ('50', '0.02', '2 of 3')
  # Errors of 0 are rounding.
  exact = [r._replace(value=0.0) if (r.seed, r.metric) == (1, 'squared_error_none')
           else r for r in rows]
  [record] = made(exact).records
  assert record['power'] == pytest.approx(math.sqrt(2 * 0.32 / 1e-12))
  # A model that has not learned has no interval.
  poor = [r._replace(value=0.02) if r.metric == 'squared_error' else r for r in rows]
  [record] = made(poor).records
  assert record['power'] == pytest.approx(4) and math.isnan(record['power_low'])
  assert tempered_table({'mean_10': {}}, [cell]) is None
