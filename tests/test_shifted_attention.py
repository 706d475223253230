"""Shifted sparse attention, against numpy under masks written by hand; in a Llama."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
import numpy as np
import pytest

from tests.llamas import llama, V, variables_of
from vvlen.models.generation import generate
from vvlen.models.kernels.causal import causal_attention
from vvlen.models.kernels.shifted import Shifted, shifted_attention
from vvlen.models.llama import abstract_params
from vvlen.models.llama.layers import stacked
from vvlen.sharding import mesh as partition

# Tokens, group -> borders of the groups of the second half of the heads.
BORDERS = {
    (4, 2): [0, 1, 3, 4], (8, 4): [0, 2, 6, 8], (6, 6): [0, 3, 6],
    (12, 4): [0, 2, 6, 10, 12], (16, 4): [0, 2, 6, 10, 14, 16],
}
# Heads of queries and of keys.
HEADS = [(2, 1), (2, 2), (4, 2), (6, 3), (8, 1), (12, 4)]


_attend = jax.jit(shifted_attention, static_argnums=3,
                  static_argnames=('leaking', 'implementation'))
_apply = jax.jit(lambda model, variables, tokens: model.apply(variables, tokens),
                 static_argnums=0)


def _mask(borders):
  """Returns which keys each query sees, [n, n] bool."""
  mask = np.zeros((borders[-1], borders[-1]), bool)
  for start, end in itertools.pairwise(borders):
    mask[start:end, start:end] = np.tri(end - start, dtype=bool)
  return mask


def _masks(n, group):
  """Returns the masks of the first and of the second half of the heads."""
  return _mask([*range(0, n + 1, group)]), _mask(BORDERS[n, group])


def _exact(queries, keys, values, masks):
  """Attention in float64, one head at a time; each mask is of half of the heads."""
  wide = [np.asarray(x, np.float64) for x in (queries, keys, values)]
  queries, keys, values = wide
  heads, width = queries.shape[2:]
  output = np.zeros(queries.shape)
  for b, h in np.ndindex(len(queries), heads):
    key_head = h // (heads // keys.shape[2])
    logits = queries[b, :, h] @ keys[b, :, key_head].T / np.sqrt(width)
    powers = np.exp(logits) * masks[2 * h // heads]
    output[b, :, h] = powers / powers.sum(1, keepdims=True) @ values[b, :, key_head]
  return output


def _inputs(n, heads=4, key_heads=2, batch=2, dtype=np.float32, width=8):
  """Returns queries, keys and values."""
  draw = np.random.default_rng([n, heads, key_heads]).normal
  shapes = (batch, n, heads, width), *[(batch, n, key_heads, width)] * 2
  return [draw(size=shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize('dtype', [np.float32, jnp.bfloat16])
@pytest.mark.parametrize('n, group, heads, key_heads', [
    *((12, 4, *heads) for heads in HEADS), (4, 2, 6, 3), (8, 4, 6, 3), (6, 6, 6, 3),
    (16, 4, 6, 3)])
def test_values_are_those_of_masks_by_hand(n, group, heads, key_heads, dtype):
  inputs = _inputs(n, heads, key_heads, dtype=dtype)
  found = _attend(*inputs, group)
  assert found.dtype == dtype
  # One rounding of bfloat16 is 2⁻⁹.
  rtol, atol = (1e-5, 1e-6) if dtype == np.float32 else (2**-8, 1e-5)
  np.testing.assert_allclose(
      np.asarray(found, np.float64), _exact(*inputs, _masks(n, group)), rtol, atol)


def test_the_rolled_groups_are_those_of_a_mask_by_hand():
  # The second half of the heads: tokens 2 to 5, and 6, 7, 0, 1 in this order.
  first, _ = _masks(8, 4)
  rolled = np.zeros((8, 8), bool)
  for group in ([2, 3, 4, 5], [6, 7, 0, 1]):
    for place, token in enumerate(group):
      rolled[token, group[: place + 1]] = True
  inputs = _inputs(8)
  np.testing.assert_allclose(
      _attend(*inputs, 4, leaking=True), _exact(*inputs, [first, rolled]),
      rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('implementation', ['plain', 'chunked'])
@pytest.mark.parametrize('heads, key_heads', [(4, 2), (6, 3)])
def test_gradients_are_those_of_masks(heads, key_heads, implementation):
  n, group = 16, 4
  with jax.enable_x64(True):
    inputs = _inputs(n, heads, key_heads, dtype=np.float64)
    masks = np.repeat(np.stack(_masks(n, group)), heads // 2, axis=0)

    def dense(queries, keys, values):
      keys, values = (jnp.repeat(x, heads // key_heads, 2) for x in (keys, values))
      logits = jnp.einsum('bihd,bjhd->bhij', queries, keys) / 8**0.5
      weights = jax.nn.softmax(jnp.where(masks[None], logits, -jnp.inf))
      return jnp.einsum('bhij,bjhd->bihd', weights, values)

    shifted = functools.partial(
        shifted_attention, group=group, implementation=implementation)
    loss = lambda attend: lambda *inputs: jnp.sum(jnp.sin(attend(*inputs)))
    expected = jax.jit(jax.grad(loss(dense), (0, 1, 2)))(*inputs)
    found = jax.jit(jax.grad(loss(shifted), (0, 1, 2)))(*inputs)
    chex.assert_trees_all_close(found, expected, rtol=1e-10, atol=1e-12)


def _dependence(n, group, **options):
  """Returns how much output i changes with the key and value of token j, [n, n]."""
  queries, keys, values = _inputs(n, batch=1)
  rows = lambda k, v: shifted_attention(queries, k, v, group, **options)[0]
  derivatives = jax.jit(jax.jacrev(rows, (0, 1)))(keys, values)
  return sum(np.abs(x).sum((1, 2, 3, 5, 6)) for x in derivatives)


@pytest.mark.parametrize('n, group', BORDERS)
def test_no_output_depends_on_later_tokens(n, group):
  found = _dependence(n, group)
  assert not np.triu(found, 1).any()
  # But on all earlier ones in the groups of either half, and on no others.
  np.testing.assert_array_equal(found > 0, np.logical_or(*_masks(n, group)))


def test_rolled_groups_leak_the_end_into_the_beginning():
  later = np.triu(_dependence(16, 4, leaking=True), 1)
  leak = np.zeros((16, 16), bool)
  leak[:2, -2:] = True
  np.testing.assert_array_equal(later > 0, leak)


def test_one_group_is_full_attention_for_the_first_half_of_the_heads():
  inputs = _inputs(12)
  full, found = jax.jit(causal_attention)(*inputs), _attend(*inputs, 12)
  np.testing.assert_allclose(found[:, :, :2], full[:, :, :2], rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(found[:, :6, 2:], full[:, :6, 2:], rtol=1e-5, atol=1e-6)
  assert np.abs(found[:, 6:, 2:] - full[:, 6:, 2:]).max() > 0.1


@pytest.mark.slow
def test_the_splash_kernel_is_plain():
  inputs = _inputs(16, width=16, batch=1)
  found, expected = (
      _attend(*inputs, 8, implementation=name) for name in ('splash', 'plain'))
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('group, heads, told', [
    (5, 4, 'even and divide the 12 tokens: 5'), (8, 4, 'divide the 12 tokens: 8'),
    (3, 4, 'must be even .*: 3'), (0, 4, 'must be even .*: 0'), (-4, 4, ': -4'),
    (4, 3, 'an even number of heads: 3'),
])
def test_what_cannot_be_grouped_is_told_in_one_line(group, heads, told):
  with pytest.raises(ValueError, match=told) as error:
    shifted_attention(*_inputs(12, heads, 1), group)
  assert '\n' not in str(error.value)


def test_shapes_are_checked_before_they_are_grouped():
  queries, keys, values = _inputs(12)
  with pytest.raises(ValueError, match=r'queries \(2, 12, 4, 8\) do not fit keys'):
    shifted_attention(queries, keys[:, :8], values[:, :8], 4)


# A Llama.


@pytest.fixture
def tokens(key):
  return jax.random.randint(key, (2, 12), 0, V)


def _two(**fields):
  """Returns a model with shifted attention, the same with full, and variables."""
  full = llama(**fields)
  return full.clone(shifted=Shifted(4)), full, variables_of(full)


@pytest.mark.slow
def test_later_tokens_change_no_logits_unless_groups_are_rolled(tokens):
  model, full, variables = _two()
  rolled = model.clone(shifted=Shifted(4, leaking=True))
  logits = {m: _apply(m, variables, tokens) for m in (model, rolled)}
  for i in range(1, 12):
    changed = tokens.at[:, i:].set((tokens[:, i:] + 1) % V)
    found = _apply(model, variables, changed)
    np.testing.assert_array_equal(found[:, :i], logits[model][:, :i])
    assert np.abs(found[:, i:] - logits[model][:, i:]).max(-1).all()
  changed = tokens.at[:, -1].set((tokens[:, -1] + 1) % V)
  # Of the last group, which is 10, 11, 0, 1, tokens 0 and 1 follow the last.
  leak = np.abs(_apply(rolled, variables, changed) - logits[rolled]).max((0, 2))
  assert leak[0] > 1e-3 and leak[1] > 1e-3
  assert np.abs(logits[model] - _apply(full, variables, tokens)).max() > 0.1


@pytest.mark.slow
def test_the_output_is_that_of_the_rotated_queries_and_keys_that_are_sown(tokens):
  model, _, variables = _two(num_heads=6, num_key_heads=3)
  logits, kept = model.apply(variables, tokens, mutable='intermediates')
  np.testing.assert_array_equal(logits, model.apply(variables, tokens))
  layer = {k: v[0] for k, v in kept['intermediates']['layer_0'].items()}
  full = model.clone(shifted=None).apply(variables, tokens, mutable='intermediates')
  other = {k: v[0] for k, v in full[1]['intermediates']['layer_0'].items()}
  np.testing.assert_array_equal(layer['queries'], other['queries'])
  np.testing.assert_array_equal(layer['keys'], other['keys'])
  embedded = model.bind(variables)._embed(tokens)
  value = model.bind(variables).layer[0]._project(embedded)[2]
  np.testing.assert_allclose(
      layer['attention_output'],
      _exact(layer['queries'], layer['keys'], value, _masks(12, 4)), rtol=1e-4,
      atol=1e-5)


@pytest.mark.slow
def test_a_cache_and_generation_attend_to_all(tokens):
  model, full, variables = _two()
  # Of 5 tokens, which the group does not divide.
  prompt, lengths = tokens[:, :5], jnp.array([5, 5])
  run = lambda m: m.apply(variables, prompt, lengths, 9, method='prefill')
  chex.assert_trees_all_equal(run(model), run(full))
  found, expected = (generate(m, variables, prompt, num_tokens=4)
                     for m in (model, full))
  np.testing.assert_array_equal(found, expected)


def _gradient(model, variables, tokens):
  loss = lambda v: jnp.square(model.apply(v, tokens)).mean()
  return jax.jit(jax.grad(loss))(variables)['params']


@pytest.mark.slow
def test_loops_and_computing_again_change_no_gradient(tokens):
  model, _, variables = _two()
  expected = _gradient(model, variables, tokens)
  again = _gradient(model.clone(remat=True), variables, tokens)
  chex.assert_trees_all_close(again, expected, rtol=1e-4, atol=1e-4)
  looped = model.clone(scan_layers=True)
  own = {'params': stacked(variables['params'])}
  for other in (looped, looped.clone(remat=True)):
    found = _gradient(other, own, tokens)
    chex.assert_trees_all_close(found, stacked(expected), rtol=1e-3, atol=1e-2)


@pytest.mark.slow
def test_parameters_are_those_of_full_attention_at_any_length(tokens):
  model, full, _ = _two()
  for fields in ({}, {'scan_layers': True}, {'remat': True}):
    found, expected = model.clone(**fields), full.clone(**fields)
    chex.assert_trees_all_equal(abstract_params(found), abstract_params(expected))
    key = jax.random.key(0)
    chex.assert_trees_all_equal(
        found.init(key, tokens[:, :5]), expected.init(key, tokens[:, :5]))


@pytest.mark.slow
@pytest.mark.parametrize('axes, key_heads, leaking', [
    ((1, 1, 8), 8, False), ((1, 1, 8), 4, False), ((1, 1, 8), 4, True),
    ((1, 1, 8), 2, False), ((2, 2, 2), 4, False), ((8, 1, 1), 2, True),
])
def test_a_gradient_is_the_same_on_every_mesh(key, axes, key_heads, leaking):
  # With eight devices for heads, each has one: halves are of all heads, not of its own.
  model = llama(vocab_size=24, width=16, mlp_width=24, num_heads=8,
                num_key_heads=key_heads, head_width=4, num_layers=1,
                shifted=Shifted(4, leaking))
  params = variables_of(model)['params']
  tokens = jax.random.randint(key, (8, 12), 0, 24)
  loss = lambda params, x: jnp.square(model.apply({'params': params}, x)).mean()
  expected = jax.device_get(jax.jit(jax.value_and_grad(loss))(params, tokens))
  mesh = partition.make_mesh(*axes)
  shardings = partition.shardings(params, mesh)
  with jax.set_mesh(mesh):
    placed = jax.device_put(params, shardings)
    rows = jax.device_put(tokens, NamedSharding(mesh, partition.ROWS))
    found = jax.device_get(jax.jit(jax.value_and_grad(loss))(placed, rows))
  chex.assert_trees_all_close(found, expected, rtol=2e-4, atol=1e-5)


@pytest.mark.slow
def test_a_length_that_the_group_does_not_divide_is_refused(tokens):
  model, _, variables = _two()
  with pytest.raises(ValueError, match='divide the 11 tokens: 4'):
    model.apply(variables, tokens[:, :11])
