"""Retrievers with other weights, QK-norm or a gate, against all keys and values."""

import functools

import chex
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.cases import mostly_slow
from vvlen.models.attention import attend, SingleHeadAttention
from vvlen.models.dictionary import DictionaryRetriever, with_key_rows
from vvlen.models.fixes.entmax import entmax15
from vvlen.models.fixes.key_norms import squared_key_norms
from vvlen.models.fixes.l2_softmax import l2_softmax
from vvlen.models.fixes.laws import log_n, ssmax
from vvlen.models.fixes.sigmoid import sigmoid
from vvlen.models.fixes.sink import sink
from vvlen.models.fixes.tempered import softmax, tempered
from vvlen.models.retriever import Retriever

B, N, X, Q, W, C = 3, 5, 13, 2, 11, 7
MASK = np.arange(N) < np.array([2, 5, 0])[:, None]


def _normal(*shape):
  return np.random.default_rng(shape).normal(size=shape)


def _params(model, *inputs):
  shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs)['params']
  rng = np.random.default_rng(0)
  return jax.tree.map(lambda x: rng.normal(size=x.shape) / 4, shapes)


def _by_keys_and_values(model, p, query, items, mask, temperature=None):
  """The retriever, computed from all h_i, keys and values."""
  wide = lambda x, like: jnp.expand_dims(x, range(like.ndim - 1))
  affine = lambda x, kernel, bias: x @ kernel + wide(bias, x)
  dense = lambda name, x: affine(x, p[name]['kernel'], p[name]['bias'])
  if 'item_hidden' in p:
    items = nn.gelu(dense('item_hidden', items))
  items = affine(items, p['item_output_kernel'], p['item_output_bias'])
  a = p['attention']
  features = dense('query_output', nn.gelu(dense('query_hidden', query)))
  q, k = features @ a['query_kernel'], items @ a['key_kernel']
  logits = jnp.einsum('bd,bnd->bn', q, k) / W**0.5
  if 'qk_norm' in a:
    unit = lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True)
    logits = a['qk_norm']['g'] * jnp.einsum('bd,bnd->bn', unit(q), unit(k))
  if temperature is not None:
    logits = logits * temperature(logits, mask)
  weights = (model.weights or softmax)(logits, mask, **a.get('weights', {}))
  values = affine(items, a['value_kernel'], a['value_bias'])
  output = jnp.einsum('bn,bnd->bd', weights, values)
  if 'gate' in a:
    output = output * nn.sigmoid(features @ a['gate']['kernel'])
  output = output @ a['output_kernel']
  return dense('head_output', nn.gelu(dense('head_hidden', output)))


@pytest.mark.parametrize('fields', [
    dict(weights=sigmoid),
    dict(weights=sink, item_encoder='linear'),
    dict(weights=l2_softmax, gated=True),
    dict(weights=tempered(ssmax(16), entmax15)),
    dict(qk_norm=3.0),
    dict(qk_norm=3.0, weights=tempered(log_n(16), sink), item_encoder='linear'),
], ids=['sigmoid', 'sink', 'l2_gated', 'ssmax_entmax', 'qk', 'qk_log_n_sink'])
@pytest.mark.parametrize(
    'temperature', mostly_slow([None, log_n(3, shift=1)], 1), ids=['', 'sharper'])
def test_values_and_gradients_are_those_of_all_keys_and_values(fields, temperature):
  with jax.enable_x64(True):
    model = Retriever(C, W, value_bias=True, output_projection=True,
                      param_dtype=jnp.float64, **fields)
    inputs = _params(model, _normal(B, Q), _normal(B, N, X)), _normal(B, Q), _normal(
        B, N, X)

    def run(function):
      def loss(*inputs):
        logits = function(*inputs, MASK, temperature)
        return jnp.sin(logits).sum(), logits
      return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*inputs)

    found, logits = run(lambda p, *inputs: model.apply({'params': p}, *inputs))
    expected, plain = run(functools.partial(_by_keys_and_values, model))
  assert logits.dtype == jnp.float64
  np.testing.assert_allclose(logits, plain, rtol=1e-12, atol=1e-12)
  chex.assert_trees_all_close(found, expected, rtol=1e-9, atol=1e-11)
  for x in jax.tree.leaves(found[0]['attention']):
    assert (np.asarray(x) != 0).any()


@pytest.mark.slow
def test_arms_draw_the_weights_that_softmax_draws(key):
  fields = dict(value_bias=True, output_projection=True, norm='layer_norm',
                bias_init=nn.initializers.normal())
  draw = lambda **more: Retriever(C, W, **fields, **more).init(
      key, jnp.ones((B, Q)), jnp.ones((B, N, X)))['params']
  plain, other = draw(), draw(
      weights=tempered(ssmax(16), sigmoid), qk_norm=2.5, gated=True)
  added = {name: other['attention'].pop(name)
           for name in ('weights', 'qk_norm', 'gate')}
  chex.assert_trees_all_equal(other, plain)
  chex.assert_shape(added.pop('gate')['kernel'], (W, W))
  assert added == {'weights': {'s': np.float32(1 / np.log(16)), 'b': 0.0},
                   'qk_norm': {'g': 2.5}}


@pytest.mark.slow
def test_a_law_in_training_is_the_law_at_inference():
  query, items = map(np.float32, (_normal(B, Q), _normal(B, N, X)))
  params = _params(Retriever(C, W), query, items)
  law = log_n(2, shift=1)
  trained = Retriever(C, W, weights=tempered(law))
  one = trained.apply({'params': params}, query, items, MASK)
  two = Retriever(C, W).apply({'params': params}, query, items, MASK, law)
  np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
  plain = Retriever(C, W).apply({'params': params}, query, items, MASK)
  assert np.abs(one - plain).max() > 1e-3


@pytest.mark.parametrize('fields', [
    dict(weights=sink), dict(weights=sigmoid, qk_norm=2.0, gated=True)],
    ids=['sink', 'sigmoid_qk_gated'])
def test_tables_of_lookup_give_the_same(fields):
  make = functools.partial(DictionaryRetriever, 9, C, 6, W, value_bias=True, **fields)
  query, items = np.array([1, 4, 8]), np.stack(
      [np.arange(B * N).reshape(B, N) % 9, np.arange(B * N).reshape(B, N) % C], -1)
  params = _params(make(), query, items)
  plain = make(table=False).apply({'params': params}, query, items, MASK)
  for variables in ({'params': params}, with_key_rows(params)):
    found = make().apply(variables, query, items, MASK)
    np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-4)
  softmaxed = DictionaryRetriever(9, C, 6, W, value_bias=True).apply(
      {'params': params}, query, items, MASK)
  assert np.abs(softmaxed - plain).max() > 1e-3


@pytest.mark.slow
def test_a_single_head_is_the_retriever_without_its_encoder():
  fields = dict(weights=sink, qk_norm=2.0, gated=True, value_bias=True)
  query, items = _normal(B, Q), _normal(B, N, X)
  with jax.enable_x64(True):
    model = SingleHeadAttention(W, **fields)
    p = _params(model, query, items)
    found = model.apply({'params': p}, query, items, MASK)
    q, k = query @ p['query_kernel'], items @ p['key_kernel']
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    logits = p['qk_norm']['g'] * np.einsum('bd,bnd->bn', unit(q), unit(k))
    weights = sink(jnp.array(logits), MASK, **p['weights'])
    expected = np.einsum('bn,bnd->bd', weights, items @ p['value_kernel'] + p[
        'value_bias']) / (1 + np.exp(-query @ p['gate']['kernel']))
  np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_one_query_may_attend_to_several_sets():
  query, items = np.float32(_normal(Q)), np.float32(_normal(B, N, X))
  model = Retriever(C, W, weights=sigmoid, qk_norm=2.0, gated=True)
  params = _params(model, query, items)
  together = model.apply({'params': params}, query, items)
  alone = model.apply({'params': params}, query, items[1])
  np.testing.assert_allclose(together[1], alone, rtol=1e-4, atol=1e-5)


def test_bfloat16_keeps_float32_weights():
  query, items = map(np.float32, (_normal(B, Q), _normal(B, N, X)))
  fields = dict(weights=tempered(ssmax(16)), qk_norm=2.0, gated=True)
  params = _params(Retriever(C, W, **fields), query, items)
  exact = Retriever(C, W, **fields).apply({'params': params}, query, items, MASK)
  found, state = Retriever(C, W, dtype=jnp.bfloat16, **fields).apply(
      {'params': params}, query, items, MASK, mutable='intermediates')
  sown = state['intermediates']['attention']
  assert sown['attention_weights'][0].dtype == found.dtype == jnp.float32
  assert sown['normalized_output'][0].dtype == jnp.bfloat16
  np.testing.assert_allclose(found, exact, atol=0.1 * np.asarray(exact).std())


def _plain_squares(items, kernel, bias):
  return ((items @ kernel + jnp.expand_dims(bias, (0, 1))) ** 2).sum(-1)


@pytest.mark.slow
def test_norms_are_those_of_the_keys_in_both_modes_of_derivatives():
  with jax.enable_x64(True):
    inputs = _normal(B, N, X), _normal(X, W), _normal(W)
    tangents = tuple(np.cos(np.arange(x.size)).reshape(x.shape) for x in inputs)
    (one, by_one), (two, by_two) = (
        jax.jvp(f, inputs, tangents) for f in (squared_key_norms, _plain_squares))
    np.testing.assert_allclose(one, two, rtol=1e-12)
    np.testing.assert_allclose(by_one, by_two, rtol=1e-11)
    gradient = lambda f: jax.grad(lambda *x: jnp.sin(f(*x)).sum(), (0, 1, 2))(*inputs)
    chex.assert_trees_all_close(
        gradient(squared_key_norms), gradient(_plain_squares), rtol=1e-10, atol=1e-10)

def test_norms_cost_two_products_an_item_where_keys_cost_three():
  def operations(function):
    gradient = jax.grad(lambda *inputs: jnp.sin(function(*inputs)).sum(), (0, 1, 2))
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32)
              for s in ((64, 16, 24), (24, 24), (24,))]
    return jax.jit(gradient).lower(*shapes).compile().cost_analysis()['flops']

  assert operations(squared_key_norms) < 0.8 * operations(_plain_squares)


@pytest.mark.slow
def test_keys_of_norm_zero_give_finite_gradients():
  model = SingleHeadAttention(W, qk_norm=2.0)
  query, items = np.float32(_normal(B, Q)), np.float32(_normal(B, N, X))
  items[0, 0] = 0
  query[1] = 0
  params = _params(model, query, items)
  loss = lambda *inputs: model.apply({'params': inputs[0]}, *inputs[1:], MASK).sum()
  chex.assert_tree_all_finite(jax.grad(loss, (0, 1, 2))(params, query, items))


def test_weights_of_another_shape_are_refused_with_both_shapes():
  with pytest.raises(ValueError, match=r'weights must give \[3, 5\]: \[3, 1\]'):
    attend(jnp.ones((B, W)), jnp.ones((B, N, W)), jnp.ones((B, N, W)),
           weights=lambda logits, mask: logits[..., :1])
