"""Heads of a trained model get temperatures that grow with the number of keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.llamas import llama, V, variables_of
from vvlen.evaluation import tempered_heads
from vvlen.evaluation.probe import probe_layers
from vvlen.evaluation.temperature_law import critical_temperature, powers_of
from vvlen.models.decoder import Decoder, SequenceRegressor
from vvlen.models.kernels.shifted import Shifted


def _llama(key):
  model = llama(max_length=64)
  return model, variables_of(model), jax.random.randint(key, (3, 12), 0, V)


def test_the_laws_are_their_equations():
  powers = np.array([[0.5, -1.0], [np.nan, 2.0]])
  of_n = tempered_heads.power_of_n(powers, 9, 4)
  of_log = tempered_heads.power_of_log_n(powers, 9, 4)
  assert of_n.shape == of_log.shape == (2, 9, 2)
  for layer, token, head in np.ndindex(2, 9, 2):
    keys, power = max(token + 1, 4), np.nan_to_num(powers)[layer, head]
    np.testing.assert_allclose(
        of_n[layer, token, head], (keys / 4) ** power, rtol=1e-6)
    np.testing.assert_allclose(
        of_log[layer, token, head], (np.log(keys) / np.log(4)) ** power, rtol=1e-6)
  np.testing.assert_array_equal(of_n[:, :4], 1)
  np.testing.assert_array_equal(of_log[:, :4], 1)
  with pytest.raises(ValueError, match='longest must be at least 2: 1'):
    tempered_heads.power_of_n(powers, 9, 1)


def test_the_logits_of_each_head_are_multiplied(key):
  model, variables, tokens = _llama(key)
  factors = jax.random.uniform(key, (2, 12, 4), minval=0.5, maxval=2.0)
  plain = probe_layers(model, variables, [0])(tokens)[0].queries
  _, state = tempered_heads.apply_tempered(
      model, factors, variables, tokens, mutable=['intermediates'])
  tempered = state['intermediates']['layer_0']['queries'][0]
  np.testing.assert_allclose(tempered, plain * factors[None, 0, :, :, None], rtol=1e-5,
      atol=1e-6)


@pytest.mark.parametrize('kind', ['llama', 'regressor'])
def test_factors_are_those_of_weights_with_larger_queries(key, kind):
  """A factor that is the same for all tokens is one of the kernel's columns."""
  of_head = jnp.array([[0.5, 2.0, 1.5, 0.7], [1.2, 3.0, 0.4, 0.9]])
  if kind == 'llama':
    model, variables, tokens = _llama(key)
    rest, within = (), lambda params: params
  else:
    model = SequenceRegressor(Decoder(5, width=16, num_heads=4, positions='rope'))
    tokens = jax.random.randint(key, (3, 12), 0, 5)
    rest = (jnp.arange(12),)
    variables = model.init(key, tokens, *rest)
    within = lambda params: params['decoder']
  factors = jnp.broadcast_to(of_head[:, None], (2, 12, 4))
  found = jax.jit(lambda x, f: tempered_heads.apply_tempered(
      model, f, variables, x, *rest))(tokens, factors)
  changed = jax.tree.map(lambda x: x, variables)
  for layer in range(2):
    query = within(changed['params'])[f'layer_{layer}']['query']
    kernel = query['kernel']
    width = kernel.shape[1] // 4
    query['kernel'] = kernel * jnp.repeat(of_head[layer], width)[None]
  np.testing.assert_allclose(
      found, model.apply(changed, tokens, *rest), rtol=1e-4, atol=1e-5)
  plain = model.apply(variables, tokens, *rest)
  assert np.abs(found - plain).max() > 1e-3
  ones = tempered_heads.apply_tempered(
      model, jnp.ones_like(factors), variables, tokens, *rest)
  np.testing.assert_array_equal(ones, plain)


def test_a_law_keeps_half_of_the_weight_and_not_other_shares():
  """Of equal gaps c log n₀, whose least β for half of the weight is log n / gap."""
  longest, length = 512, 4096
  [[_, power]] = powers_of([longest, length], np.log([[[longest, length]]]))
  assert abs(power - 1) < 1e-6
  shares = {}
  for times in (0.5, 1.0, 1.3):
    for n in (longest, length):
      beta = float(tempered_heads.power_of_log_n(
          np.array([[power]]), n, longest)[0, -1, 0])
      rest = (n - 1) * np.exp(-beta * times * np.log(longest))
      shares[times, n] = 1 / (1 + rest)
  assert shares[1.0, 512] == pytest.approx(0.5, abs=1e-3)
  assert shares[1.0, 4096] == pytest.approx(0.5, abs=1e-3)
  assert shares[0.5, 4096] < 0.5 * shares[0.5, 512]
  assert shares[1.3, 4096] > 1.03 * shares[1.3, 512]


def test_a_fitted_law_keeps_the_weight_of_the_top_key(rng):
  """Of uniform priorities, whose least β grows as n, and not of the plain logits."""
  lengths, longest = (16, 64, 256, 1024), 16
  logits = {n: rng.uniform(size=(400, n)) * 30 for n in lengths}
  betas = np.stack([critical_temperature(jnp.asarray(x, jnp.float32))
                    for x in logits.values()], axis=1)
  [[power, _]] = powers_of(lengths, betas[None])
  assert 0.8 < power < 1.2

  def top_weight(n, beta):
    weights = jax.nn.softmax(jnp.asarray(logits[n]) * beta)
    return float(jnp.median(weights.max(-1)))

  base = top_weight(longest, 1.0)
  factors = tempered_heads.power_of_n(np.array([[power]]), 1024, longest)[0, :, 0]
  assert top_weight(1024, 1.0) < 0.3 * base
  assert 0.8 * base < top_weight(1024, factors[1023]) < 1.25 * base


def test_what_no_factor_can_do_is_refused(key):
  model, variables, tokens = _llama(key)
  apply = lambda model, shape, *rest: tempered_heads.apply_tempered(
      model, jnp.ones(shape), variables, tokens, *rest)
  with pytest.raises(ValueError, match='ALiBi adds to the logits'):
    apply(model.clone(alibi=True), (2, 12, 4))
  with pytest.raises(ValueError, match=r'must be \[layers, 12 tokens, heads\]'):
    apply(model, (2, 11, 4))
  with pytest.raises(ValueError, match='factors are of 1 layers: the model has more'):
    apply(model, (1, 12, 4))
  with pytest.raises(ValueError, match='of 3 layers, and 2 layers of the model have'):
    apply(model, (3, 12, 4))
  with pytest.raises(ValueError, match='factors are of 5 heads and 12 tokens'):
    apply(model, (2, 12, 5))
  for heads in (2, 8):  # these divide the queries, too
    with pytest.raises(ValueError, match=f'factors are of {heads} heads and 12 tokens'):
      apply(model, (2, 12, heads))
  with pytest.raises(ValueError, match='shifted sparse attention has fewer keys'):
    apply(model.clone(shifted=Shifted(6)), (2, 12, 4))
  for width in (16, 48):  # 48: as many numbers as 12 tokens and 4 heads would have
    reads_one = SequenceRegressor(Decoder(5, width=width, num_heads=4))
    few = reads_one.init(key, tokens % 5, jnp.array([-1]))
    with pytest.raises(ValueError, match='factors are of 4 heads and 12 tokens'):
      tempered_heads.apply_tempered(
          reads_one, jnp.ones((2, 12, 4)), few, tokens % 5, jnp.array([-1]))
  with pytest.raises(ValueError, match='ALiBi adds to the logits'):
    tempered_heads.apply_tempered(
        SequenceRegressor(Decoder(5, positions='alibi')), jnp.ones((2, 12, 4)), few,
        tokens % 5)
