"""What the retriever promises, whatever its weights."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vvlen.models.norm import KINDS
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


@pytest.mark.parametrize('encoder', ['mlp', 'linear'])
def test_folding_changes_neither_values_nor_gradients(key, encoder):
  # In float64, where equal to rounding is equal to 1e-10.
  with jax.enable_x64(True):
    model, params, _ = _build(
        norm='layer_norm', item_encoder=encoder, value_bias=True)
    params['attention']['value_bias'] = np.linspace(-1, 1, W)
    params, query, items = jax.tree.map(np.float64, (params, *_inputs()))
    mask = MASK & (np.arange(B) > 0)[:, None]

    @functools.partial(jax.jit, static_argnums=0)
    def run(model, params, query, items):
      def loss(*inputs):
        logits = model.apply({'params': inputs[0]}, *inputs[1:], mask)
        return jnp.sum(jnp.sin(logits)), logits
      return jax.grad(loss, (0, 1, 2), has_aux=True)(params, query, items)

    one, two = (run(model.clone(fold=f), params, query, items) for f in (True, False))
    assert one[1].dtype == jnp.float64
    chex.assert_trees_all_close(one, two, rtol=1e-9, atol=1e-10)
    # The key bias that folding drops, ψ_x's, still reaches the values.
    assert (np.asarray(one[0][0]['item_output_bias']) != 0).all()


@pytest.mark.parametrize('fields', [
    {'norm': 'none'},
    {'norm': 'standardize', 'item_encoder': 'linear'},
    {'norm': 'layer_norm', 'output_projection': True},
], ids=str)
def test_logits_are_those_of_torch(fields):
  torch = pytest.importorskip('torch', reason='torch is the oracle')
  F = torch.nn.functional
  _, params, apply = _build(**fields)
  query, items = _inputs()
  p = jax.tree.map(lambda x: torch.tensor(np.asarray(x)), params)
  q, x = (torch.tensor(np.asarray(x)) for x in (query, items))

  dense = lambda layer, x: F.linear(x, layer['kernel'].T, layer['bias'])
  gelu = functools.partial(F.gelu, approximate='tanh')
  if fields.get('item_encoder') != 'linear':
    x = gelu(dense(p['item_hidden'], x))
  x = F.linear(x, p['item_output_kernel'].T, p['item_output_bias'])
  q = dense(p['query_output'], gelu(dense(p['query_hidden'], q)))
  attention = p['attention']
  out = F.scaled_dot_product_attention(
      (q @ attention['query_kernel'])[:, None], x @ attention['key_kernel'],
      x @ attention['value_kernel'], torch.tensor(MASK)[:, None],
  )[:, 0]
  if fields['norm'] != 'none':
    norm = attention.get('norm', {'scale': None, 'bias': None})
    out = F.layer_norm(out, (W,), norm['scale'], norm['bias'], 1e-5)
  if fields.get('output_projection'):
    out = out @ attention['output_kernel']
  logits = dense(p['head_output'], gelu(dense(p['head_hidden'], out)))

  np.testing.assert_allclose(
      apply(params, query, items, MASK), logits.numpy(), atol=1e-5
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
