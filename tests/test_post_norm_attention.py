"""The norm of each head's output in the attention modules of Flax."""

import functools

import chex
from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vvlen.models.attention import post_norm_attention
from vvlen.models.norm import PostAttentionNorm, standardize

# B sequences, N tokens, W width, H heads of D.
B, N, W, H, D = 3, 7, 10, 2, 5
CAUSAL = np.tri(N, dtype=bool)[None, None]


@pytest.fixture(autouse=True)
def _flax_promotes_ranks():
  with jax.numpy_rank_promotion('allow'):
    yield


def _normal(*shape, seed=0):
  return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


X = _normal(B, N, W)


def _exact(p, norm, x, mask=None):
  """Attention in numpy, float64, with LayerNorm before W_O, one head at a time."""
  p, norm = jax.tree.map(lambda a: np.asarray(a, np.float64), (p, norm))
  out = np.zeros((*x.shape[:2], W)) + p['out']['bias']
  for head in range(H):
    q, k, v = (x @ p[name]['kernel'][:, head] + p[name]['bias'][head]
               for name in ('query', 'key', 'value'))
    logits = q @ k.swapaxes(1, 2) / D**0.5
    weights = np.exp(logits) * (1.0 if mask is None else mask[:, 0])
    output = weights / weights.sum(-1, keepdims=True) @ v
    output -= output.mean(-1, keepdims=True)
    output /= np.sqrt(output.var(-1, keepdims=True) + 1e-5)
    out += (output * norm['scale'] + norm['bias']) @ p['out']['kernel'][head]
  return out


class Block(nn.Module):
  """Attention as users write it, with the norm made in their own module."""

  @nn.compact
  def __call__(self, x, mask=None):
    attention_fn = post_norm_attention(PostAttentionNorm('layer_norm'))
    return nn.MultiHeadDotProductAttention(
        H, attention_fn=attention_fn, name='attention')(x, mask=mask)


class BlockWithSetup(nn.Module):

  def setup(self):
    attention_fn = post_norm_attention(PostAttentionNorm('layer_norm'))
    self.attention = nn.MultiHeadDotProductAttention(H, attention_fn=attention_fn)

  def __call__(self, x, mask=None):
    return self.attention(x, mask=mask)


def _linen(module):
  """Returns normal parameters and a function of them, x and a mask, under jit."""
  shapes = jax.eval_shape(module.init, jax.random.key(0), X)['params']
  params = jax.tree.map(lambda a: _normal(*a.shape, seed=1) / 2, shapes)
  return params, jax.jit(
      lambda params, x, mask=None: module.apply({'params': params}, x, mask=mask))


LAYER = nn.MultiHeadDotProductAttention(
    H, attention_fn=post_norm_attention(PostAttentionNorm('layer_norm')))


@pytest.mark.parametrize('mask', [None, CAUSAL], ids=['all', 'causal'])
@pytest.mark.parametrize('module', [LAYER, Block(), BlockWithSetup()], ids=[
    'alone', 'in_compact', 'in_setup'])
def test_linen_norms_each_head_before_the_output_projection(module, mask):
  params, apply = _linen(module)
  own = params if module is LAYER else params['attention']
  assert set(params) in ({'attention'}, {'query', 'key', 'value', 'out', 'norm'})
  assert jax.tree.map(jnp.shape, own['norm']) == {'scale': (D,), 'bias': (D,)}
  expected = _exact(own, own['norm'], X, mask)
  np.testing.assert_allclose(apply(params, X, mask), expected, rtol=1e-4, atol=1e-5)
  gradient = jax.grad(lambda p: jnp.sin(apply(p, X, mask)).sum())(params)
  gradient = gradient if module is LAYER else gradient['attention']
  for leaf in jax.tree.leaves(gradient['norm']):
    assert (np.abs(leaf) > 1e-3).all()


def test_two_layers_have_a_norm_each():
  attention_fn = post_norm_attention(PostAttentionNorm('layer_norm'))
  layer = functools.partial(nn.MultiHeadDotProductAttention, H,
                            attention_fn=attention_fn)
  shapes = jax.eval_shape(nn.Sequential([layer(), layer()]).init, jax.random.key(0), X)
  assert [set(layer) for layer in shapes['params'].values()] == 2 * [
      {'query', 'key', 'value', 'out', 'norm'}]


class NnxBlock(nnx.Module):
  """Attention as users write it."""

  def __init__(self, rngs):
    norm = nnx.LayerNorm(D, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
    self.attention = nnx.MultiHeadAttention(
        H, W, decode=False, attention_fn=post_norm_attention(norm), rngs=rngs)

  def __call__(self, x, mask=None, **options):
    return self.attention(x, mask=mask, **options)


@pytest.fixture(scope='module')
def block():
  with jax.numpy_rank_promotion('allow'):
    model = NnxBlock(nnx.Rngs(0))
    graph, state = nnx.split(model)
    state = jax.tree.map(lambda a: jnp.asarray(_normal(*a.shape, seed=1) / 2), state)
    return nnx.merge(graph, state)


@pytest.mark.parametrize('mask, options', [
    (None, {}), (CAUSAL, {}), (CAUSAL, {'sow_weights': True}),
    (None, {'is_causal': True}),
], ids=['all', 'causal', 'sown', 'is_causal'])
def test_nnx_norms_each_head_before_the_output_projection(block, mask, options):
  params = nnx.to_pure_dict(nnx.state(block, nnx.Param))['attention']
  norm = params['attention_fn']['norm']
  assert jax.tree.map(jnp.shape, norm) == {'scale': (D,), 'bias': (D,)}
  output = nnx.jit(lambda model, x: model(x, mask, **options))(block, X)
  expected = _exact(params, norm, X, CAUSAL if options.get('is_causal') else mask)
  np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def test_nnx_trains_the_norm(block):
  loss = lambda model: jnp.sin(model(X, CAUSAL)).sum()
  gradients = nnx.to_pure_dict(nnx.jit(nnx.grad(loss))(block))
  for leaf in jax.tree.leaves(gradients['attention']['attention_fn']):
    assert (np.abs(leaf) > 1e-3).all()


def test_a_function_serves_both(block):
  attention_fn = post_norm_attention(standardize)
  layer = nn.MultiHeadDotProductAttention(H, attention_fn=attention_fn)
  params, apply = _linen(layer)
  plain = {'scale': np.ones(D), 'bias': np.zeros(D)}
  np.testing.assert_allclose(
      apply(params, X, CAUSAL), _exact(params, plain, X, CAUSAL), rtol=1e-4, atol=1e-5)
  other = nnx.MultiHeadAttention(
      H, W, decode=False, attention_fn=attention_fn, rngs=nnx.Rngs(0))
  params = nnx.to_pure_dict(nnx.state(other, nnx.Param))
  np.testing.assert_allclose(
      other(X, mask=CAUSAL), _exact(params, plain, X, CAUSAL), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_options_reach_the_attention_of_flax():
  """Without a norm, outputs equal those of Flax bit by bit."""
  identity = lambda x: x
  fields = dict(num_heads=H, dropout_rate=0.5, dtype=jnp.bfloat16,
                force_fp32_for_softmax=True)
  flax = nn.MultiHeadDotProductAttention(**fields)
  own = flax.clone(attention_fn=post_norm_attention(identity))
  variables = flax.init(jax.random.key(0), X, deterministic=True)
  for deterministic in (True, False):
    one, two = (jax.jit(functools.partial(
        layer.apply, deterministic=deterministic, sow_weights=True,
        mutable='intermediates'))(
            variables, X, mask=CAUSAL, rngs={'dropout': jax.random.key(1)})
                for layer in (flax, own))
    assert one[0].dtype == jnp.bfloat16
    chex.assert_trees_all_equal(one, two)
  precise = nn.MultiHeadDotProductAttention(
      H, precision='highest', attention_fn=post_norm_attention(standardize))
  products = str(jax.make_jaxpr(precise.apply)(variables, X)).count('HIGHEST')
  assert products == 2 * (3 + 2 + 1)  # projections, two of attention, W_O
  arguments = dict(num_heads=H, in_features=W, dropout_rate=0.5, decode=False)
  one, two = (nnx.MultiHeadAttention(
      **arguments, attention_fn=fn, rngs=nnx.Rngs(0))(X, deterministic=False)
              for fn in (nnx.dot_product_attention, post_norm_attention(identity)))
  np.testing.assert_array_equal(one, two)


def test_the_norm_keeps_bfloat16():
  params, _ = _linen(LAYER)
  narrow = LAYER.clone(dtype=jnp.bfloat16)
  output = narrow.apply({'params': params}, X)
  assert output.dtype == jnp.bfloat16
  exact = _exact(params, params['norm'], X)
  np.testing.assert_allclose(output.astype(np.float32), exact, atol=0.1 * exact.std())


def test_a_norm_of_the_other_library_is_refused():
  layer = nnx.MultiHeadAttention(
      H, W, decode=False, rngs=nnx.Rngs(0),
      attention_fn=post_norm_attention(PostAttentionNorm('layer_norm')))
  with pytest.raises(ValueError, match=r'needs an NNX norm.*PostAttentionNorm'):
    layer(X)
  layer = nn.MultiHeadDotProductAttention(
      H, attention_fn=post_norm_attention(nnx.LayerNorm(D, rngs=nnx.Rngs(0))))
  with pytest.raises(ValueError, match=r'is for nnx\.MultiHeadAttention'):
    layer.init(jax.random.key(0), X)


@pytest.mark.parametrize('norm, such_as', [
    ('standardize', r"PostAttentionNorm\('standardize'\)"),
    (None, r"PostAttentionNorm\('layer_norm'\): None")])
def test_what_is_no_norm_is_refused_with_one_that_is(norm, such_as):
  with pytest.raises(TypeError, match=such_as):
    post_norm_attention(norm)
