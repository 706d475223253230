"""Llamas with positions of the caller: RandomPos, CLEX's of training, ALiBi's."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.llamas import llama, numpy_logits, OWN_ROPES, ROPES, V, variables_of
from vvlen.models import clex
from vvlen.models.clex import Clex
from vvlen.models.generation import generate
from vvlen.models.llama import abstract_params
from vvlen.models.llama.layers import stacked
from vvlen.models.positions import alibi_slopes, random_positions
from vvlen.models.rope import check, depends_on_length, Eabf, extended, KINDS, Rope

L = 13
ALL = {**ROPES, **OWN_ROPES}
FIELDS = {**{kind: {'rope': rope} for kind, rope in ALL.items()},
          'alibi': {'rope': None, 'alibi': True}}


@pytest.fixture
def tokens(key):
  return jax.random.randint(key, (2, L), 0, V)


def _close(found, expected):
  np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize('kind', FIELDS)
def test_random_positions_take_the_place_of_those_counted(key, tokens, kind):
  model = llama(**FIELDS[kind])
  variables = variables_of(model)
  positions = random_positions(key, L, 40)
  found = model.apply(variables, tokens, positions)
  _close(found, numpy_logits(model, variables, tokens, positions))
  assert np.abs(found - model.apply(variables, tokens)).max() > 0.01
  # Of each sequence its own.
  rows = jnp.stack([positions, random_positions(jax.random.key(1), L, 40)])
  by_row = model.apply(variables, tokens, rows)
  _close(by_row[0], found[0])
  _close(by_row[1], model.apply(variables, tokens, rows[1])[1])


def test_a_model_of_random_positions_is_never_given_those_counted(key, tokens):
  model = llama(rope=Rope(1e4, highest=40))
  # Parameters are as of any other model.
  variables = model.init(key, tokens)
  plain = model.clone(rope=Rope(1e4))
  positions = random_positions(key, L, 40)
  np.testing.assert_array_equal(
      model.apply(variables, tokens, positions),
      plain.apply(variables, tokens, positions))
  for call in (
      lambda: model.apply(variables, tokens),
      lambda: model.apply(variables, tokens, method='hidden'),
      lambda: generate(model, variables, tokens, 2)):
    with pytest.raises(ValueError, match=r'RandomPos.*num_tokens, 40\)') as raised:
      call()
    assert '\n' not in str(raised.value)
  # Also if they are extended.
  assert extended(model.rope, 'linear', 2.0, 8).highest == 40
  with pytest.raises(ValueError, match='highest of rotary positions must be positive'):
    check(Rope(1e4, highest=0))


@pytest.mark.slow
@pytest.mark.parametrize('kind', FIELDS)
def test_positions_may_be_between_whole_numbers(tokens, kind):
  model = llama(**FIELDS[kind])
  variables = variables_of(model)
  whole = jnp.arange(L)
  _close(model.apply(variables, tokens, whole.astype(jnp.float32)),
         model.apply(variables, tokens, whole))
  half = model.apply(variables, tokens, whole / 2)
  # Of 13 tokens, the last is at position 6: the length is 7.
  expected = numpy_logits(model, variables, tokens, np.arange(L) / 2)
  _close(half, expected)


@pytest.mark.parametrize('kind', KINDS)
def test_one_field_chooses_the_positions_of_the_same_weights(tokens, kind):
  base = llama(max_length=4)
  rope = extended(base.rope, kind, 3.0, 4)
  model = base.clone(rope=rope)
  params = variables_of(base)['params']
  if kind == 'clex':
    params = {**params, **clex.init_params(jax.random.key(2), rope.stretched, 6)}
  assert chex.assert_trees_all_equal_shapes(abstract_params(model), params) is None
  found = model.apply({'params': params}, tokens)
  assert np.isfinite(found).all()
  changes = np.abs(found - base.apply({'params': params}, tokens)).max()
  assert changes < 1e-6 if kind == 'none' else changes > 0.01


@pytest.mark.slow
def test_a_forward_pass_of_training_has_the_rates_of_the_length_given(key, tokens):
  rope = Rope(1e4, Clex(L, largest=4, steps=10, log_scale=False))
  model = llama(rope=rope)
  variables = variables_of(model)
  t, positions = clex.sample(key, L, L, 4)
  assert t > 1
  read = jax.jit(lambda v, p, t: model.apply(
      v, tokens, p, t * L, mutable='intermediates')[1]['intermediates'])
  found = read(variables, positions, t)['layer_0']
  params = dict(variables['params'])
  matrices = params.pop('clex_up'), params.pop('clex_down')
  first, *_, log_rates = clex.log_rates(rope.stretched, 1e4, *matrices, int(t))
  assert np.abs(log_rates - first).max() > 1
  _, kept = llama(rope=None).apply({'params': params}, tokens, mutable='intermediates')
  turns = np.exp(1j * np.asarray(positions)[:, None, None] * np.exp(log_rates))
  for name in ('queries', 'keys'):
    before = np.asarray(kept['intermediates']['layer_0'][name][0])
    planes = (before[..., :3] + 1j * before[..., 3:]) * turns
    expected = np.concatenate([planes.real, planes.imag], axis=-1)
    np.testing.assert_allclose(found[name][0], expected, atol=1e-3)


@pytest.mark.slow
def test_gradients_reach_the_matrices_of_clex_from_the_loss(key, tokens):
  model = llama(rope=Rope(1e4, Clex(L, largest=4, steps=10, log_scale=False)))
  params = {**variables_of(model)['params'],
            **clex.init_params(key, model.rope.stretched, 6)}
  loss = lambda p, t: (model.apply({'params': p}, tokens, None, t * L) ** 2).mean()
  gradient = jax.jit(jax.grad(loss))
  assert np.abs(gradient(params, 3)['clex_down']).max() > 1e-4
  # W_up has none where W_down is zero, and neither has one where t is 1.
  assert not np.any(gradient(params, 3)['clex_up'])
  assert not np.any(gradient(params, 1)['clex_down'])


def test_the_matrices_of_clex_are_float32_in_any_model():
  model = llama(rope=OWN_ROPES['clex'], param_dtype=jnp.bfloat16, scan_layers=True)
  params = abstract_params(model)
  assert params['clex_up'].dtype == params['clex_down'].dtype == jnp.float32
  assert params['clex_up'].shape == (3, 6) and params['clex_down'].shape == (6, 3)


@pytest.mark.slow
def test_eabf_leaves_the_queries_of_the_first_layers_alone(tokens):
  variables = variables_of(llama(num_layers=3))
  wide = {'params': stacked(variables['params'])}

  def queries(rope, looped=False):
    """Returns [layers, ...], of layers that all read the embedding alone."""
    model = llama(num_layers=3, rope=rope, scan_layers=looped)
    given = jax.tree.map(lambda x: x, wide if looped else variables)
    layers = [given['params'][name] for name in given['params'] if 'layer' in name]
    for layer in layers:
      for name in ('output', 'down'):
        layer[name]['kernel'] = 0 * layer[name]['kernel']
    _, kept = model.apply(given, tokens, mutable='intermediates')
    kept = kept['intermediates']
    if looped:
      return kept['layers']['queries'][0]
    return np.stack([kept[f'layer_{i}']['queries'][0] for i in range(3)])

  plain = queries(Rope(500.0))
  factor = np.maximum(np.log(np.arange(L) + 1) / np.log(4), 1)[:, None, None]
  for looped in (False, True):
    for exempt in (0, 2):
      found = queries(Rope(1e4, Eabf(4, 500.0, exempt)), looped)
      np.testing.assert_allclose(found[:exempt], plain[:exempt], rtol=1e-4, atol=1e-5)
      np.testing.assert_allclose(
          found[exempt:], plain[exempt:] * factor, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_clex_scales_all_queries_by_the_number_of_keys(tokens):
  rope = OWN_ROPES['clex']
  variables = variables_of(llama(rope=rope, num_layers=1))
  found = []
  for log_scale in (True, False):
    model = llama(num_layers=1, rope=rope._replace(
        stretched=rope.stretched._replace(log_scale=log_scale)))
    _, kept = model.apply(variables, tokens[:, :5], mutable='intermediates')
    found.append(kept['intermediates']['layer_0'])
  scaled, plain = found
  np.testing.assert_allclose(
      scaled['queries'][0], plain['queries'][0] * np.log(5) / np.log(8), rtol=1e-5)
  np.testing.assert_allclose(scaled['keys'][0], plain['keys'][0])


def test_alibi_goes_by_the_distance_of_positions(tokens):
  model = llama(**FIELDS['alibi'])
  variables = variables_of(model)
  plain = model.apply(variables, tokens)
  _close(model.apply(variables, tokens, jnp.arange(L) + 50), plain)
  assert np.abs(plain - llama(rope=None).apply(variables, tokens)).max() > 0.01
  _, kept = model.apply(variables, tokens, mutable='intermediates')
  np.testing.assert_allclose(
      kept['intermediates']['layer_1']['slopes'][0], alibi_slopes(4), rtol=1e-6)
  chunked = model.clone(implementation='chunked').apply(variables, tokens)
  _close(chunked, plain)


@pytest.mark.slow
@pytest.mark.parametrize('kind', FIELDS)
def test_generated_tokens_are_the_likeliest_without_a_cache(kind):
  rope = FIELDS[kind]['rope']
  layers = 1 if depends_on_length(rope) else 2
  model = llama(**FIELDS[kind], num_layers=layers)
  variables = variables_of(model)
  prompts, lengths = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]]), np.array([5, 3])
  found = np.asarray(generate(model, variables, prompts, 8, lengths=lengths))
  read = jax.jit(lambda x: model.apply(variables, x).argmax(-1)[0])
  for prompt, length, tokens in zip(prompts, lengths, found, strict=True):
    whole = jnp.asarray([[*prompt[:length], *tokens]])
    if depends_on_length(rope):  # each prefix has its own rates
      for number in (0, 4, 7):
        assert read(whole[:, :length + number])[-1] == tokens[number], number
    else:
      np.testing.assert_array_equal(read(whole)[length - 1:-1], tokens)
