"""Properties of the decoder that hold for any weights."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.cases import mostly_slow
from vvlen.evaluation.prefixes import all_prefixes
from vvlen.models import positions as encodings
from vvlen.models.decoder import Decoder, layer_norm, SequenceRegressor
from vvlen.models.language_model import LanguageModel

B, N, V = 3, 7, 5
FIXED = [kind for kind in encodings.KINDS if kind != 'random']


def _build(key, **fields):
  model = Decoder(V, width=12, num_heads=2, mlp_factor=2,
                  **{'max_positions': 30, **fields})
  tokens = jax.random.randint(key, (B, N), 0, V)
  rngs = {'params': key, 'positions': key}
  return model, jax.jit(model.init)(rngs, tokens), tokens


def _apply(model, params, *arguments, **options):
  return jax.jit(functools.partial(model.apply, **options))(params, *arguments)


def _numpy(params, tokens, kind, num_heads=2):
  """The decoder written out in float64, one sequence [n] at a time, norm 'none'."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params['params'])

  def norm(x, name, at):
    centred = x - x.mean(-1, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return unit * at[name]['scale'] + at[name]['bias']

  def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

  n = len(tokens)
  x = p['embedding'][tokens]
  if kind == 'learned':
    x = x + p['position_embedding'][:n]
  if kind == 'sinusoidal':
    x = x + np.asarray(encodings.sinusoidal(jnp.arange(n), x.shape[1]), np.float64)
  for layer in (p['layer_0'], p['layer_1']):
    z = norm(x, 'attention_norm', layer)
    heads = []
    for h in range(num_heads):
      d = z.shape[1] // num_heads
      own = slice(h * d, (h + 1) * d)
      kernels = (layer[name]['kernel'] for name in ('query', 'key', 'value'))
      q, k, v = (z @ kernel[:, own] for kernel in kernels)
      if kind == 'rope':
        turn = lambda t: encodings.rotate(jnp.asarray(t)[:, None], jnp.arange(n))
        q, k = (np.asarray(turn(t))[:, 0] for t in (q, k))
      logits = q @ k.T / np.sqrt(d)
      if kind == 'alibi':
        slope = 2.0 ** (-8 * (h + 1) / num_heads)
        logits -= slope * (np.arange(n)[:, None] - np.arange(n))
      logits[np.triu_indices(n, 1)] = -np.inf
      weights = np.exp(logits - logits.max(-1, keepdims=True))
      heads.append(weights / weights.sum(-1, keepdims=True) @ v)
    x = x + np.concatenate(heads, -1) @ layer['output']['kernel']
    hidden = norm(x, 'mlp_norm', layer) @ layer['mlp_hidden']['kernel']
    hidden = gelu(hidden + layer['mlp_hidden']['bias'])
    x = x + hidden @ layer['mlp_output']['kernel'] + layer['mlp_output']['bias']
  return norm(x, 'final_norm', p)


@pytest.mark.slow
@pytest.mark.parametrize('kind', FIXED)
def test_it_is_the_decoder_written_out(key, kind):
  model, params, tokens = _build(key, positions=kind)
  found = _apply(model, params, tokens)
  chex.assert_shape(found, (B, N, 12))
  for b in range(B):
    expected = _numpy(params, np.asarray(tokens[b]), kind)
    np.testing.assert_allclose(found[b], expected, atol=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize('kind, norm', [
    ('learned', 'none'), ('alibi', 'none'), ('random', 'none'), ('rope', 'layer_norm'),
])
def test_no_token_sees_what_follows_it(key, kind, norm):
  model, params, _ = _build(key, positions=kind, norm=norm)
  embedding = params['params']['embedding']
  distinct = jnp.arange(V)[None]  # so that a row of the embedding is a place

  def state(embedding, place):
    changed = {'params': {**params['params'], 'embedding': embedding}}
    hidden = model.apply(changed, distinct, rngs={'positions': key})
    return hidden[0, place].sum() * 1.0 + (hidden[0, place] ** 3).sum()

  gradient = jax.jit(jax.vmap(jax.grad(state), (None, 0)))(embedding, jnp.arange(V))
  touched = np.abs(np.asarray(gradient)).max(-1) > 0  # [place, token]
  np.testing.assert_array_equal(touched, np.tri(V, dtype=bool))


@pytest.mark.slow
@pytest.mark.parametrize('kind, norm', [
    ('learned', 'none'), ('alibi', 'none'), ('rope', 'layer_norm'),
])
def test_reading_some_places_is_reading_all_and_picking(key, kind, norm):
  model, params, tokens = _build(key, positions=kind, norm=norm)
  whole = _apply(model, params, tokens)
  places = jnp.array([[0, 6], [3, 3], [5, 1]])
  found = _apply(model, params, tokens, read_at=places)
  expected = jnp.take_along_axis(whole, places[..., None], axis=1)
  np.testing.assert_allclose(found, expected, atol=2e-5)
  shared = _apply(model, params, tokens, read_at=jnp.array([4]))
  np.testing.assert_allclose(shared, whole[:, 4:5], atol=2e-5)


@pytest.mark.parametrize('kind', mostly_slow(
    ['learned', 'sinusoidal', 'alibi', 'rope'], 3))
def test_all_prefixes_in_one_pass_are_one_pass_each(key, kind):
  decoder = Decoder(V, width=12, num_heads=2, positions=kind, max_positions=N + 2)
  model = SequenceRegressor(decoder)
  bits = jax.random.randint(key, (B, N), 0, 2)
  begin, end = 3, 4
  edge = lambda token: jnp.full((B, 1), token)
  whole = jnp.concatenate([edge(begin), bits, edge(end)], axis=1)
  params = jax.jit(model.init)(key, whole, jnp.array([N + 1]))
  asked = all_prefixes(bits, begin, end)
  found = _apply(model, params, *(
      asked.tokens, asked.read_at, asked.positions, asked.mask))
  chex.assert_shape(found, (B, N))
  for length in (1, 4, N):
    tokens = jnp.concatenate([edge(begin), bits[:, :length], edge(end)], axis=1)
    alone = _apply(model, params, tokens, jnp.array([length + 1]))[:, 0]
    np.testing.assert_allclose(found[:, length - 1], alone, atol=2e-5)


@pytest.mark.slow
def test_padding_behind_changes_nothing(key):
  model, params, tokens = _build(key, positions='rope')
  longer = jnp.concatenate([tokens, jnp.full((B, 4), 2)], axis=1)
  np.testing.assert_allclose(
      _apply(model, params, longer)[:, :N], _apply(model, params, tokens), atol=2e-5
  )


@pytest.mark.slow
def test_arms_draw_the_same_weights(key):
  def without(tree, *names):
    return {k: without(v, *names) if isinstance(v, dict) else v
            for k, v in tree.items() if k not in names}

  plain = _build(key)[1]['params']
  for fields in (
      {'positions': 'learned'}, {'positions': 'rope'}, {'norm': 'layer_norm'}):
    other = _build(key, **fields)[1]['params']
    chex.assert_trees_all_equal(without(other, 'norm', 'position_embedding'), plain)


@pytest.mark.slow
def test_the_norm_is_of_each_head_before_the_output(key):
  model, params, tokens = _build(key, norm='layer_norm', num_layers=1)
  layer = params['params']['layer_0']
  chex.assert_shape(layer['norm']['scale'], (6,))  # of a head, for all heads
  # Standardized heads, turned off by a scale of 0, leave what the MLP alone makes.
  off = jax.tree.map(jnp.zeros_like, layer['norm'])
  silent = {'params': {**params['params'], 'layer_0': {**layer, 'norm': off}}}
  no_output = jax.tree.map(jnp.zeros_like, layer['output'])
  cut = {'params': {**params['params'], 'layer_0': {**layer, 'output': no_output}}}
  np.testing.assert_allclose(
      _apply(model, silent, tokens), _apply(model, cut, tokens), atol=1e-6
  )
  # Larger values change nothing behind a norm (but for its epsilon).
  scaled = {**layer, 'value': jax.tree.map(lambda x: 1000 * x, layer['value'])}
  louder = {'params': {**params['params'], 'layer_0': scaled}}
  np.testing.assert_allclose(
      _apply(model, louder, tokens), _apply(model, params, tokens), atol=1e-3
  )


def test_probes_see_logits_and_weights(key):
  model, params, tokens = _build(key, positions='alibi')
  plain = _apply(model, params, tokens)
  found, state = _apply(model, params, tokens, mutable='intermediates')
  np.testing.assert_allclose(found, plain, atol=2e-5)
  for layer in state['intermediates'].values():
    logits, weights = layer['attention_logits'][0], layer['attention_weights'][0]
    chex.assert_shape([logits, weights], (B, 2, N, N))
    seen = np.tri(N, dtype=bool)
    exp = np.where(seen, np.exp(logits), 0)
    np.testing.assert_allclose(weights, exp / exp.sum(-1, keepdims=True), rtol=1e-4)
    assert not np.asarray(logits)[..., ~seen].any()


@pytest.mark.slow
def test_random_positions_are_drawn_anew(key):
  model, params, tokens = _build(key, positions='random')
  one, again, other = (
      _apply(model, params, tokens, rngs={'positions': jax.random.key(k)})
      for k in (1, 1, 2)
  )
  np.testing.assert_array_equal(one, again)
  assert np.abs(one - other).max() > 1e-2
  given = _apply(model, params, tokens, positions=jnp.arange(N))
  rope = Decoder(V, width=12, num_heads=2, mlp_factor=2, positions='rope')
  np.testing.assert_allclose(given, _apply(rope, params, tokens), atol=1e-6)


def test_narrow_products_stay_near(key):
  model, params, tokens = _build(key, positions='rope')
  narrow = model.clone(dtype=jnp.bfloat16)
  found, wide = _apply(narrow, params, tokens), _apply(model, params, tokens)
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, wide, atol=0.15)
  assert np.abs(found - wide).max() > 1e-4
  program = str(jax.make_jaxpr(narrow.apply)(params, tokens))
  products = re.findall(r':(\w+)\[[\d,]+\] = dot_general', program)
  # Six matrices in each of two layers, and attention, whose sums are float32.
  assert sum(kind == 'bf16' for kind in products) >= 12


def test_long_inputs_take_little_memory():
  model = Decoder(V, width=16, num_heads=4, num_layers=1, positions='alibi')
  tokens = jax.ShapeDtypeStruct((1, 8192), jnp.int32)
  params = jax.eval_shape(model.init, jax.random.key(0), tokens)
  loss = lambda params, tokens: model.apply(params, tokens).sum()
  program = jax.jit(jax.grad(loss)).lower(params, tokens).compile()
  # All logits would be 1 GiB.
  assert program.memory_analysis().temp_size_in_bytes < 2**27


@pytest.mark.slow
def test_the_implementation_and_positions_reach_attention(key):
  model, params, tokens = _build(key, positions='alibi')
  with pytest.raises(ValueError, match='fused'):
    model.clone(implementation='fused').apply(params, tokens)
  chunked = _apply(model.clone(implementation='chunked'), params, tokens)
  np.testing.assert_allclose(chunked, _apply(model, params, tokens), atol=1e-5)
  places = jnp.array([0, 3, 4, 8, 9, 15, 16])
  found = _apply(model, params, tokens, positions=places)
  by_mask = _apply(model, params, tokens, positions=places,
                   mask=jnp.tri(N, dtype=bool))
  np.testing.assert_allclose(found, by_mask, atol=1e-5)
  assert np.abs(found - chunked).max() > 1e-3


def test_places_count_from_the_end_where_negative(key):
  model, params, tokens = _build(key)
  all_places = _apply(model, params, tokens)
  found = _apply(model, params, tokens, read_at=jnp.array([-1, 2, -N]))
  np.testing.assert_allclose(found, all_places[:, jnp.array([N - 1, 2, 0])], atol=1e-5)


@pytest.mark.parametrize('read_at', [None, jnp.array([-1])], ids=['all', 'read_at'])
@pytest.mark.parametrize('mask, told', [
    (jnp.tri(N), 'mask must be bool.*float'),
    (jnp.ones((1, N), bool), r'mask \(1, '),
    (jnp.ones((2, 1, N, N), bool), r'mask \(2, 1, '),
], ids=['numbers', 'keys', 'heads'])
def test_a_mask_that_does_not_fit_is_refused(key, mask, told, read_at):
  model, params, tokens = _build(key)
  with pytest.raises(ValueError, match=told):
    model.apply(params, tokens, mask=mask, read_at=read_at)


@pytest.mark.slow
def test_what_is_not_in_a_table_is_nan_or_an_error(key):
  model, params, tokens = _build(key, positions='learned')
  for bad in (V, -1):
    outside = tokens.at[0, 3].set(bad)
    with pytest.raises(ValueError, match=f'{bad}'):
      model.apply(params, outside)
    found = _apply(model, params, outside)
    assert jnp.isnan(found[0, 3:]).all()
    assert jnp.isfinite(found[1:]).all()
  with pytest.raises(ValueError, match=r'positions 24\.\.30'):
    model.apply(params, tokens, jnp.arange(N) + 24)
  run = jax.jit(model.apply)
  assert jnp.isnan(run(params, tokens, jnp.arange(N) + 24)[:, -1]).all()


@pytest.mark.slow
def test_logits_of_a_language_model_are_hidden_states_times_the_embedding(key):
  tokens = jax.random.randint(key, (B, N), 0, V)
  decoder = Decoder(V, width=12, num_heads=2, positions='learned')
  for dtype, tolerance in ((None, 1e-6), (jnp.bfloat16, 0.05)):
    model = LanguageModel(decoder.clone(dtype=dtype))
    params = model.init(key, tokens)
    for positions in (None, jnp.arange(N) + 3):
      logits = model.apply(params, tokens, positions)
      hidden = model.apply(params, tokens, positions, method='hidden')
      embedding = params['params']['output_embedding']
      assert logits.dtype == jnp.float32 and embedding.shape == (V, 12)
      np.testing.assert_allclose(logits, hidden @ embedding.T, atol=tolerance)
      # As in a loss of hidden states.
      assert hidden.dtype == (dtype or jnp.float32)
      product = jnp.einsum('bnd,vd->bnv', hidden, embedding.astype(hidden.dtype),
                           preferred_element_type=jnp.float32)
      np.testing.assert_array_equal(logits, product)


def test_layer_norm_of_a_large_mean(key):
  norm = layer_norm('norm')
  x = 3000 + jax.random.normal(key, (1, 64))
  found = norm.apply(norm.init(key, x), x)
  x = np.asarray(x, np.float64)
  np.testing.assert_allclose(found, (x - x.mean()) / np.sqrt(x.var() + 1e-5), atol=1e-3)


@pytest.mark.parametrize('fields, tokens', [
    ({'positions': 'fourier'}, (1, 3)), ({'num_heads': 5}, (1, 3)),
    ({'norm': 'batch'}, (1, 3)), ({'positions': 'learned', 'max_positions': 2}, (1, 3)),
    ({'positions': 'random', 'max_positions': 2}, (1, 3)), ({}, (3,)),
    ({'positions': 'rope', 'num_heads': 4}, (1, 3)), ({'num_layers': 0}, (1, 3)),
])
def test_bad_input(key, fields, tokens):
  model = Decoder(V, width=12, **{'num_heads': 2, **fields})
  with pytest.raises(ValueError):
    jax.eval_shape(model.init, {'params': key, 'positions': key},
                   jax.ShapeDtypeStruct(tokens, jnp.int32))


@pytest.mark.parametrize('kind', encodings.KINDS)
def test_positions_are_those_of_tokens(key, kind):
  model = Decoder(V, width=12, num_heads=2, positions=kind)
  keys = {'params': key, 'positions': key}
  with pytest.raises(ValueError, match=r'positions \(4,\) do not fit'):
    model.init(keys, jnp.zeros((2, 3), jnp.int32), jnp.arange(4))
