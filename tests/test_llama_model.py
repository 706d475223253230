"""The Llama decoder: against plain numpy, its cache, and its memory."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.cases import mostly_slow
from tests.llamas import llama, numpy_logits, OWN_ROPES, ROPES, V, variables_of
from vvlen.models.llama import abstract_params
from vvlen.models.rope import depends_on_length, Dynamic

B, L = 2, 13


@pytest.fixture
def tokens(key):
  return jax.random.randint(key, (B, L), 0, V)


@pytest.mark.parametrize('fields', [
    {}, {'tied': False}, {'attention_bias': True}, {'output_bias': True},
    {'mlp_bias': True}, {'num_key_heads': 4}, {'num_key_heads': 1}, {'epsilon': 0.1},
    *({'rope': rope} for rope in (*ROPES.values(), *OWN_ROPES.values())),
    {'rope': None, 'alibi': True}, {'rope': None, 'alibi': True, 'num_heads': 6},
], ids=lambda x: '-'.join(map(str, x)))
def test_logits_are_those_of_the_formula(tokens, fields):
  model = llama(**fields)
  variables = variables_of(model)
  logits = model.apply(variables, tokens)
  chex.assert_shape(logits, (B, L, V))
  assert logits.dtype == jnp.float32
  expected = numpy_logits(model, variables, tokens)
  np.testing.assert_allclose(logits, expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize('field, names', [
    ('attention_bias', {'query', 'key', 'value'}), ('output_bias', {'output'}),
    ('mlp_bias', {'gate', 'up', 'down'}),
])
def test_biases_are_those_of_their_field(field, names):
  for layer in ('layer_0', 'layer_1'):
    parts = abstract_params(llama(**{field: True}))[layer]
    assert {name for name, part in parts.items() if 'bias' in part} == names


@pytest.mark.slow
def test_float64_parameters_give_float64_logits(tokens):
  with jax.enable_x64(True):
    model = llama(rope=ROPES['yarn'])
    variables = variables_of(model, dtype=jnp.float64)
    logits = model.apply(variables, tokens)
    assert logits.dtype == jnp.float64
    np.testing.assert_allclose(logits, numpy_logits(model, variables, tokens),
                               rtol=1e-9, atol=1e-10)


@pytest.mark.slow
def test_bfloat16_multiplies_in_bfloat16_and_sums_in_float32(tokens):
  model = llama()
  variables = variables_of(model, scale=0.3)
  narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), variables)
  exact = model.apply(jax.tree.map(lambda x: x.astype(jnp.float32), narrow), tokens)
  logits = model.apply(narrow, tokens)
  assert logits.dtype == jnp.float32
  assert 1e-4 < np.abs(logits - exact).max() < 0.1 * np.abs(exact).max()
  # The same with float32 parameters, from which training can continue.
  masters = jax.tree.map(lambda x: x.astype(jnp.float32), narrow)
  cast = model.clone(dtype=jnp.bfloat16).apply(masters, tokens)
  assert np.abs(cast - exact).max() < 0.1 * np.abs(exact).max()
  hidden = model.clone(dtype=jnp.bfloat16).apply(masters, tokens, method='hidden')
  assert hidden.dtype == jnp.bfloat16


def test_what_follows_a_token_does_not_change_its_logits(tokens):
  model = llama()
  variables = variables_of(model)
  changed = tokens.at[:, 7:].set((tokens[:, 7:] + 1) % V)
  logits, other = model.apply(variables, tokens), model.apply(variables, changed)
  np.testing.assert_allclose(logits[:, :7], other[:, :7], atol=1e-5)
  assert np.abs(logits[:, 7:] - other[:, 7:]).max() > 0.01


def test_positions_count_by_their_distance(tokens):
  model = llama()
  variables = variables_of(model)
  shifted = model.apply(variables, tokens, jnp.arange(L) + 100)
  np.testing.assert_allclose(shifted, model.apply(variables, tokens), atol=1e-3)
  stretched = model.apply(variables, tokens, 2 * jnp.arange(L))
  assert np.abs(stretched - shifted).max() > 0.01
  by_row = jnp.stack([jnp.arange(L), 2 * jnp.arange(L)])
  np.testing.assert_allclose(
      model.apply(variables, tokens, by_row)[1], stretched[1], atol=1e-4
  )


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['dynamic', 'longrope', 'clex'])
def test_rates_go_by_the_last_of_the_positions_given(tokens, kind):
  model = llama(rope={**ROPES, **OWN_ROPES}[kind])
  variables = variables_of(model)
  given = model.apply(variables, tokens, jnp.arange(L))
  np.testing.assert_allclose(given, model.apply(variables, tokens), atol=1e-4)
  short = model.apply(variables, tokens, length=8)
  assert np.abs(short - given).max() > 0.01
  traced = jax.jit(lambda n: model.apply(variables, tokens, length=n))
  for length, expected in ((8, short), (L, given)):
    np.testing.assert_allclose(traced(length), expected, atol=1e-4)


def test_without_positions_a_first_layer_knows_no_order(tokens):
  model = llama(rope=None, num_layers=1)
  variables = variables_of(model)
  shuffled = jnp.concatenate([tokens[:, :-1][:, ::-1], tokens[:, -1:]], axis=1)
  last = lambda x: model.apply(variables, x)[:, -1]
  np.testing.assert_allclose(last(tokens), last(shuffled), atol=1e-4)


@pytest.mark.parametrize('kind, scan_layers', mostly_slow([
    *((kind, False) for kind in (*ROPES, *OWN_ROPES, 'alibi', None)), ('eabf', True),
], 4))
def test_a_cache_changes_nothing(tokens, kind, scan_layers):
  # Some rates change with the length, and with them all states of earlier tokens, which
  # a cache keeps as they were: exact are one layer, and any up to L₀ = 8.
  rope = {**ROPES, **OWN_ROPES}.get(kind)
  model = llama(rope=rope, alibi=kind == 'alibi', attention_bias=True,
                scan_layers=scan_layers, num_layers=1 if depends_on_length(rope) else 2)
  _check_cache(model, tokens, steps=6)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['dynamic', 'longrope'])
def test_a_cache_is_exact_up_to_the_original_length(tokens, kind):
  _check_cache(llama(rope=ROPES[kind]), tokens, steps=3)


@pytest.mark.slow
def test_dynamic_positions_of_a_prompt_go_by_its_own_length(tokens):
  model = llama(rope=ROPES['dynamic'])  # changes beyond 8 tokens
  variables = variables_of(model)
  hidden, _ = model.apply(variables, tokens, jnp.array([9, 12]), L, method='prefill')
  for row, length in enumerate((9, 12)):
    alone = model.apply(variables, tokens[row:row + 1, :length], method='hidden')
    np.testing.assert_allclose(hidden[row], alone[0, -1], atol=3e-5)


def _check_cache(model, tokens, steps):
  variables = variables_of(model)
  lengths = jnp.array([3, 5])
  step = jax.jit(lambda x, cache: model.apply(variables, x, cache, method='step'))
  read = jax.jit(lambda x: model.apply(variables, x, method='hidden'))
  by_length = depends_on_length(model.rope)
  whole = None if by_length else read(tokens)
  hidden, cache = model.apply(variables, tokens[:, :5], lengths, L, method='prefill')
  for number in range(steps + 1):
    for row, length in enumerate(lengths + number):
      # After the prompt each row continues with its own tokens.
      if by_length:
        expected = read(tokens[row:row + 1, :length])[0, -1]
      else:
        expected = whole[row, length - 1]
      np.testing.assert_allclose(hidden[row], expected, atol=3e-5, err_msg=str(number))
    hidden, cache = step(tokens[jnp.arange(B), lengths + number], cache)
  np.testing.assert_array_equal(cache.length, lengths + steps + 1)


def test_remat_changes_no_gradient(tokens):
  model = llama()
  variables = variables_of(model)
  loss = lambda v, m: (m.apply(v, tokens) ** 2).mean()
  plain = jax.jit(jax.grad(loss), static_argnums=1)(variables, model)
  remat = jax.jit(jax.grad(loss), static_argnums=1)(variables, model.clone(remat=True))
  chex.assert_trees_all_close(plain, remat, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_remat_keeps_less_for_the_gradient(tokens):
  def kept(model):
    loss = lambda v: (model.apply(v, tokens, method='hidden') ** 2).mean()
    _, vjp = jax.vjp(loss, variables_of(model))
    return sum(x.size for x in jax.tree.leaves(vjp))

  several = llama(num_layers=4)
  assert kept(several.clone(remat=True)) < 0.4 * kept(several)


@pytest.mark.slow
def test_norm_after_attention_is_of_each_head(tokens):
  model = llama(norm='standardize')
  variables = variables_of(model)
  assert not {'post_attention_norm'} & set(variables['params']['layer_0'])
  plain = llama()
  with_norm = variables_of(llama(norm='layer_norm'))['params']['layer_0']
  assert with_norm['post_attention_norm']['scale'].shape == (6,)
  # Values of each head scaled by a number change nothing after a norm.
  scaled = jax.tree.map(lambda x: x, variables)
  kernel = scaled['params']['layer_0']['value']['kernel']
  scaled['params']['layer_0']['value']['kernel'] = 30 * kernel
  big = jax.tree.map(lambda x: x, scaled)
  big['params']['layer_0']['value']['kernel'] = 60 * kernel
  np.testing.assert_allclose(
      model.apply(scaled, tokens), model.apply(big, tokens), atol=2e-3
  )
  assert np.abs(plain.apply(scaled, tokens) - plain.apply(big, tokens)).max() > 0.05


def test_sown_queries_and_keys_explain_the_output(tokens):
  model = llama(rope=ROPES['llama3'])
  variables = variables_of(model)
  logits, kept = model.apply(variables, tokens, mutable='intermediates')
  np.testing.assert_allclose(logits, model.apply(variables, tokens), atol=1e-5)
  layer = kept['intermediates']['layer_1']
  [queries], [keys], [output] = (
      layer[name] for name in ('queries', 'keys', 'attention_output'))
  chex.assert_shape([queries, output], (B, L, 4, 6))
  chex.assert_shape(keys, (B, L, 2, 6))
  # The first token attends to itself alone: its output is its value.
  scores = np.einsum('bhd,bhd->bh', queries[:, 3], np.repeat(keys, 2, axis=2)[:, 1])
  assert np.isfinite(scores).all() and np.abs(scores).max() > 0.01


def test_tokens_outside_are_refused_or_nan(tokens):
  model = llama()
  variables = variables_of(model)
  bad = tokens.at[0, 3].set(V)
  with pytest.raises(ValueError, match=f'tokens .*{V} are not in 0..{V - 1}'):
    model.apply(variables, bad)
  logits = jax.jit(model.apply)(variables, bad)
  assert np.isnan(logits[0, 3]).all() and np.isfinite(logits[1]).all()


@pytest.mark.parametrize('fields,says', [
    ({'num_key_heads': 3}, '3 key heads do not divide 4'),
    ({'head_width': None, 'width': 13}, '4 heads do not divide a width of 13'),
    ({'num_layers': 0}, 'num_layers must be positive: 0'),
    ({'head_width': 5}, 'even width of heads: 5'),
    ({'alibi': True}, 'alibi needs rope None: Rope'),
    ({'rope': ROPES['dynamic']._replace(stretched=Dynamic(2.0, 0))}, 'original_length'),
])
def test_sizes_that_make_no_model_are_refused(tokens, fields, says):
  with pytest.raises(ValueError, match=says):
    llama(**fields).init(jax.random.key(0), tokens)


@pytest.mark.slow
def test_shapes_that_do_not_fit_are_refused(tokens):
  model = llama()
  variables = variables_of(model)
  with pytest.raises(ValueError, match=r'integers \[B, n\]'):
    model.apply(variables, tokens[0])
  with pytest.raises(ValueError, match='positions'):
    model.apply(variables, tokens, jnp.arange(L + 1))
