"""Properties of the retriever that hold for any weights."""

import functools

import chex
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vvlen.models.attention import attend
from vvlen.models.norm import KINDS, standardize
from vvlen.models.retriever import Retriever

B, N, X, Q, W, C = 3, 5, 13, 2, 11, 7

MASK = np.arange(N) < np.array([2, 5, 3])[:, None]


def _normal(*shape):
  return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def _inputs():
  """Returns queries and items."""
  return _normal(B, Q), _normal(B, N, X)


@functools.cache
def _build(**fields):
  """Returns a retriever, weights with biases that are not zero, and its apply."""
  model = Retriever(num_classes=C, width=W, **fields)
  shapes = jax.eval_shape(model.init, jax.random.key(0), *_inputs())['params']
  params = jax.tree.map(lambda x: _normal(*x.shape) / 2, shapes)
  return model, params, jax.jit(lambda p, *inputs: model.apply({'params': p}, *inputs))


@pytest.mark.parametrize('norm', KINDS)
def test_order_of_items_does_not_matter(norm):
  _, params, apply = _build(norm=norm)
  query, items = _inputs()
  logits = apply(params, query, items, MASK)
  chex.assert_shape(logits, (B, C))
  order = np.array([3, 0, 4, 2, 1])
  moved = apply(params, query, items[:, order], MASK[:, order])
  np.testing.assert_allclose(moved, logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('rubbish', [1e3, -1e30, 1e30])
def test_padding_changes_nothing(rubbish):
  _, params, apply = _build(norm='layer_norm')
  query, items = _inputs()
  logits = apply(params, query, items, MASK)
  padded = np.where(MASK[..., None], items, np.float32(rubbish))
  np.testing.assert_array_equal(apply(params, query, padded, MASK), logits)


def test_a_padded_sequence_is_its_items():
  _, params, apply = _build(norm='layer_norm')
  query, items = _inputs()
  logits = apply(params, query, items, MASK)
  alone = apply(params, query[:1], items[:1, :2], None)
  np.testing.assert_allclose(logits[:1], alone, rtol=1e-4, atol=1e-5)


def test_a_sequence_without_items_gives_finite_logits_and_gradients():
  _, params, apply = _build(norm='layer_norm')
  query, items = _inputs()
  mask = MASK & (np.arange(B) > 0)[:, None]
  loss = lambda params: jnp.sum(apply(params, query, items, mask) ** 2)
  value, gradient = jax.value_and_grad(loss)(params)
  chex.assert_tree_all_finite((value, gradient))


@pytest.mark.slow
def test_arms_draw_equal_initial_weights(key):
  arms = [{'norm': kind} for kind in KINDS] + [{'output_projection': True}]
  models = [Retriever(num_classes=C, width=W, **fields) for fields in arms]
  init = jax.jit(lambda key: [m.init(key, *_inputs())['params'] for m in models])
  plain, standardized, normed, projected = init(key)
  assert all(np.ptp(x) > 0 for x in jax.tree.leaves(plain) if x.ndim == 2)
  chex.assert_trees_all_equal(standardized, plain)
  assert set(normed['attention'].pop('norm')) == {'scale', 'bias'}
  chex.assert_trees_all_equal(normed, plain)
  chex.assert_shape(projected['attention'].pop('output_kernel'), (W, W))
  chex.assert_trees_all_equal(projected, plain)


def _as_papers_write_it(p, query, items, mask):
  """The retriever with LayerNorm and a bias of the values, by all keys and values."""
  wide = lambda x, rank: jnp.expand_dims(x, range(rank - 1))
  affine = lambda x, kernel, bias: x @ kernel + wide(bias, x.ndim)
  dense = lambda name, x: affine(x, p[name]['kernel'], p[name]['bias'])
  if 'item_hidden' in p:
    items = nn.gelu(dense('item_hidden', items))
  items = affine(items, p['item_output_kernel'], p['item_output_bias'])
  attention = p['attention']
  query = dense('query_output', nn.gelu(dense('query_hidden', query)))
  output, _ = attend(
      query @ attention['query_kernel'], items @ attention['key_kernel'],
      affine(items, attention['value_kernel'], attention['value_bias']), mask)
  norm = attention['norm']
  output = standardize(output) * wide(norm['scale'], 2) + wide(norm['bias'], 2)
  return dense('head_output', nn.gelu(dense('head_hidden', output)))


@pytest.mark.parametrize('encoder', ['mlp', 'linear'])
def test_no_items_keys_and_values_are_needed_for_values_and_gradients(encoder):
  # In float64, where equal to rounding is equal to 1e-10.
  with jax.enable_x64(True):
    model, params, _ = _build(
        norm='layer_norm', item_encoder=encoder, value_bias=True)
    params['attention']['value_bias'] = np.linspace(-1, 1, W)
    params, query, items = jax.tree.map(np.float64, (params, *_inputs()))
    mask = MASK & (np.arange(B) > 0)[:, None]

    def gradient(function):
      def loss(*inputs):
        logits = function(*inputs, mask)
        return jnp.sum(jnp.sin(logits)), logits
      return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(params, query, items)

    one = gradient(lambda params, *inputs: model.apply({'params': params}, *inputs))
    two = gradient(_as_papers_write_it)
    assert one[1].dtype == jnp.float64
    chex.assert_trees_all_close(one, two, rtol=1e-9, atol=1e-10)
    # ψ_x's bias, which the logits do not need, still reaches the values.
    assert (np.asarray(one[0][0]['item_output_bias']) != 0).all()


@pytest.mark.slow
def test_an_intervention_replaces_what_the_norm_reads():
  model, params, apply = _build(norm='layer_norm')
  inputs = _inputs()
  plain = apply(params, *inputs)
  run = functools.partial(
      model.apply, {'params': params}, *inputs, None, None, mutable='intermediates')
  _, sown = run()
  output, = sown['intermediates']['attention']['attention_output']
  np.testing.assert_allclose(run(lambda o: output)[0], plain, rtol=1e-5, atol=1e-6)
  changed, sown = run(lambda o: output.at[:, 0].add(1.0))
  assert (changed != plain).all()
  normalized, = sown['intermediates']['attention']['normalized_output']
  expected = standardize(output.at[:, 0].add(1.0))
  norm = {name: x[None] for name, x in params['attention']['norm'].items()}
  np.testing.assert_allclose(
      normalized, expected * norm['scale'] + norm['bias'], rtol=1e-4, atol=1e-5)


def _numpy():
  """Returns arrays, and the functions of a retriever, in numpy, float64."""
  def attend(query, keys, values, mask):
    powers = np.exp(np.einsum('bd,bnd->bn', query, keys) / query.shape[-1] ** 0.5)
    weights = powers * mask / (powers * mask).sum(1, keepdims=True)
    return np.einsum('bn,bnd->bd', weights, values)

  def layer_norm(x, scale, bias):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return x if scale is None else x * scale + bias

  gelu = lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
  return lambda x: np.asarray(x, float), gelu, attend, layer_norm


def _torch():
  """Returns the same of PyTorch, float32."""
  torch = pytest.importorskip(
      'torch', reason="compares with PyTorch: pip install '.[oracle]'")
  F = torch.nn.functional
  attend = lambda query, keys, values, mask: F.scaled_dot_product_attention(
      query[:, None], keys, values, torch.tensor(mask)[:, None])[:, 0]
  layer_norm = lambda x, scale, bias: F.layer_norm(x, (W,), scale, bias, 1e-5)
  array = lambda x: torch.tensor(np.asarray(x))
  return array, functools.partial(F.gelu, approximate='tanh'), attend, layer_norm


@pytest.mark.parametrize('oracle', [_numpy, _torch])
@pytest.mark.parametrize('fields', [
    {'norm': 'none'},
    {'norm': 'standardize', 'item_encoder': 'linear'},
    {'norm': 'layer_norm', 'output_projection': True},
], ids=str)
def test_logits_are_those_of_an_oracle(oracle, fields):
  array, gelu, attend, layer_norm = oracle()
  _, params, apply = _build(**fields)
  query, items = _inputs()
  p = jax.tree.map(array, params)
  q, x = array(query), array(items)

  dense = lambda layer, x: x @ layer['kernel'] + layer['bias']
  if fields.get('item_encoder') != 'linear':
    x = gelu(dense(p['item_hidden'], x))
  x = x @ p['item_output_kernel'] + p['item_output_bias']
  q = dense(p['query_output'], gelu(dense(p['query_hidden'], q)))
  attention = p['attention']
  out = attend(q @ attention['query_kernel'], x @ attention['key_kernel'],
               x @ attention['value_kernel'], MASK)
  if fields['norm'] != 'none':
    out = layer_norm(out, **attention.get('norm', {'scale': None, 'bias': None}))
  if fields.get('output_projection'):
    out = out @ attention['output_kernel']
  logits = dense(p['head_output'], gelu(dense(p['head_hidden'], out)))

  np.testing.assert_allclose(
      apply(params, query, items, MASK), np.asarray(logits), atol=1e-5
  )


def test_a_linear_encoder_has_one_layer_less():
  (_, mlp, _), (_, linear, _) = _build(), _build(item_encoder='linear')
  assert set(mlp) - set(linear) == {'item_hidden'}
  chex.assert_shape(mlp['item_output_kernel'], (W, W))
  chex.assert_shape(linear['item_output_kernel'], (X, W))


def test_bfloat16_computes_near_float32_and_returns_float32():
  _, params, apply = _build(norm='standardize')
  narrow = Retriever(num_classes=C, width=W, norm='standardize', dtype=jnp.bfloat16)
  inputs = _inputs()
  exact = np.asarray(apply(params, *inputs))
  logits, state = jax.jit(functools.partial(narrow.apply, mutable='intermediates'))(
      {'params': params}, *inputs
  )
  sown = state['intermediates']['attention']
  assert logits.dtype == jnp.float32
  assert sown['attention_weights'][0].dtype == jnp.float32
  assert sown['attention_output'][0].dtype == jnp.bfloat16
  np.testing.assert_allclose(logits, exact, atol=0.1 * exact.std())
  assert (np.asarray(logits) != exact).any()


def test_all_parameters_are_float32_even_where_the_products_are_not(key):
  model = Retriever(num_classes=C, width=W, norm='layer_norm', dtype=jnp.bfloat16)
  shapes = jax.eval_shape(model.init, key, *_inputs())
  assert {x.dtype for x in jax.tree.leaves(shapes)} == {jnp.dtype('float32')}


@pytest.mark.parametrize('fields', [{'item_encoder': 'cnn'}, {'norm': 'rms'}])
def test_an_unknown_field_is_named(key, fields):
  (value,) = fields.values()
  model = Retriever(num_classes=C, width=W, **fields)
  with pytest.raises(ValueError, match=value):
    jax.eval_shape(model.init, key, *_inputs())
