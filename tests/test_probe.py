"""A probe returns what the model computes at a layer, and runs no later layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.llamas import llama, OWN_ROPES, ROPES, V, variables_of
from vvlen.evaluation.attention_by_length import logits_of_last
from vvlen.evaluation.probe import look, probe_layer, probe_layers, reads_ahead
from vvlen.models.kernels.dense import masked_attention
from vvlen.models.rope import Rope
from vvlen.sharding import mesh as partition

B, N = 3, 11


def _tokens(key, length=N):
  return jax.random.randint(key, (B, length), 0, V)


@pytest.mark.slow
@pytest.mark.parametrize('rope', [None, *ROPES])
def test_a_probe_sees_what_the_whole_model_computes(key, rope):
  model = llama(rope=rope and ROPES[rope], num_layers=3)
  variables, tokens = variables_of(model), _tokens(key)
  _, state = model.apply(variables, tokens, mutable=['intermediates'])
  probes = probe_layers(model, variables, [2, 0, 1])(tokens)
  for layer, probe in zip([2, 0, 1], probes, strict=True):
    sown = state['intermediates'][f'layer_{layer}']
    for name, x in (('queries', probe.queries), ('keys', probe.keys),
                    ('attention_output', probe.output)):
      np.testing.assert_allclose(x, sown[name][0], rtol=1e-5, atol=1e-5)
    one = probe_layer(model, variables, layer)(tokens)
    np.testing.assert_allclose(one.output, probe.output, rtol=1e-5, atol=1e-5)
  assert probes[0].queries.shape == (B, N, 4, 6)
  assert probes[0].keys.shape == (B, N, 2, 6)


@pytest.mark.parametrize('fields', [
    {}, {'rope': None, 'alibi': True}, {'rope': None}], ids=str)
def test_its_queries_and_keys_make_its_output(key, fields):
  model = llama(**fields)
  variables, tokens = variables_of(model), _tokens(key)
  probe = probe_layer(model, variables, 0)(tokens)
  own = variables['params']['layer_0']
  x = variables['params']['embedding'][tokens]
  z = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
  z = z * own['attention_norm']['scale'][None, None]
  values = (z @ own['value']['kernel']).reshape(B, N, 2, 6)
  mask = jnp.tri(N, dtype=bool)
  values = jnp.pad(values, [*3 * [(0, 0)], (0, probe.keys.shape[-1] - 6)])
  expected = masked_attention(probe.queries, probe.keys, values, mask).output
  np.testing.assert_allclose(probe.output, expected[..., :6], rtol=1e-4, atol=1e-5)


def test_its_logits_have_the_bias_of_alibi(key):
  model, tokens = llama(rope=None, alibi=True), _tokens(key)
  variables = variables_of(model)
  probe = probe_layer(model, variables, 1)(tokens)
  _, state = model.apply(variables, tokens, mutable=['intermediates'])
  sown = state['intermediates']['layer_1']
  queries, keys = (np.asarray(sown[name][0], float) for name in ('queries', 'keys'))
  distance = np.arange(N)[:, None] - np.arange(N)
  bias = -np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])[:, None, None] * distance
  expected = np.einsum('bihw,bjhw->bhij', queries, keys.repeat(2, axis=2)) / 6**0.5
  np.testing.assert_allclose(
      logits_of_last(probe.queries, probe.keys, N), expected + bias, atol=1e-4)
  # Without it they are others by far, and a shorter input has the same ones.
  assert abs(bias).max() > 1
  short = probe_layer(model, variables, 1)(tokens[:, :5])
  np.testing.assert_allclose(probe.queries[:, :5], short.queries, atol=1e-4)
  # In bfloat16, places beyond 256 would not be numbers of their own.
  narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), variables)
  assert probe_layer(model, narrow, 1)(tokens).keys.dtype == jnp.float32


def _operations(model, layers, tokens):
  variables = variables_of(model)
  program = look.lower(model, layers, variables, tokens).compile()
  return program.cost_analysis()['flops']


def test_what_is_behind_the_layer_is_not_computed(key):
  tokens = _tokens(key)
  shallow, deep = llama(num_layers=1), llama(num_layers=6)
  assert _operations(deep, (0,), tokens) == _operations(shallow, (0,), tokens)
  costs = [_operations(deep, (i,), tokens) for i in range(3)]
  # The MLP of the layer itself is not run either.
  assert _operations(llama(mlp_width=999), (0,), tokens) == costs[0]
  # A layer more is a layer more.
  np.testing.assert_allclose(costs[2] - costs[1], costs[1] - costs[0], rtol=0.02)
  # Several in one pass cost what the highest does.
  assert _operations(deep, (0, 2, 1), tokens) < 1.05 * costs[2]


def test_other_weights_are_another_argument_of_the_same_program(key):
  model, tokens = llama(mlp_width=7), _tokens(key)
  before = look._cache_size()
  found = [probe_layer(model, variables_of(model, seed), 1)(tokens) for seed in (0, 1)]
  assert look._cache_size() == before + 1
  assert not np.allclose(found[0].output, found[1].output)


def test_a_probe_over_devices(key):
  model = llama()
  variables = variables_of(model)
  tokens = jax.random.randint(key, (8, N), 0, V)
  expected = probe_layer(model, variables, 1)(tokens)
  mesh = partition.make_mesh(data=8)
  with jax.set_mesh(mesh):
    placed = jax.device_put(variables, jax.NamedSharding(mesh, jax.P()))
    found = probe_layer(model, placed, 1)(tokens)
    assert len(found.output.sharding.device_set) == 8
    assert not found.output.sharding.is_fully_replicated
  np.testing.assert_allclose(found.output, expected.output, rtol=1e-5, atol=1e-6)


def test_rates_by_length_read_ahead():
  ropes = {**ROPES, **OWN_ROPES, 'none': None}
  ahead = {name for name, rope in ropes.items() if reads_ahead(llama(rope=rope), 10**6)}
  assert ahead == {'dynamic', 'longrope', 'clex'}
  scaled = OWN_ROPES['clex']
  rates_alone = scaled._replace(stretched=scaled.stretched._replace(log_scale=False))
  for rope in (ROPES['dynamic'], ROPES['longrope'], rates_alone):
    assert not reads_ahead(llama(rope=rope), 8) and reads_ahead(llama(rope=rope), 9)
  # The number of keys multiplies all queries, at any length.
  assert reads_ahead(llama(rope=scaled), 2)


@pytest.mark.slow
def test_a_prefix_is_seen_alike_unless_the_model_reads_ahead(key):
  tokens = _tokens(key)
  for rope, alike in (('default', True), ('yarn', True), ('eabf', True),
                      ('dynamic', False), ('longrope', False), ('clex', False)):
    model = llama(rope={**ROPES, **OWN_ROPES}[rope])
    probe = probe_layer(model, variables_of(model), 1)
    short, long = probe(tokens[:, :7]).output, probe(tokens).output[:, :7]
    assert np.allclose(short, long, atol=1e-5) == alike, rope


def test_what_it_refuses(key):
  model = llama(rope=Rope(1e4))
  variables = variables_of(model)
  for layers in ([2], [-1], [0, 5]):
    with pytest.raises(ValueError, match=rf'layer must be in 0..1: {layers[-1]}'):
      probe_layers(model, variables, layers)
  with pytest.raises(ValueError, match='there are no layers to look at'):
    probe_layers(model, variables, [])
  probe = probe_layer(model, variables, 0)
  with pytest.raises(ValueError, match=f'tokens 0..{V} are not in the vocabulary'):
    probe(jnp.array([[0, V]]))
  with pytest.raises(ValueError, match='tokens must be integers'):
    probe(jnp.zeros((1, 3)))
  with pytest.raises(ValueError, match='do not fit'):
    probe(jnp.zeros(3, int))
