"""The causal stack, against its closed forms, its Gram matrix, and numpy."""

import functools
import re

import chex
from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import pytest

from vvlen.evaluation.recency import recency_of_logits
from vvlen.models.causal_stack import (
  _run_layers,
  causal_stack,
  CausalStack,
  run_stack,
  self_attend,
)
from vvlen.models.kernels import short as short_inputs
from vvlen.models.kernels.stages import stage
from vvlen.sharding import seed_mesh
from vvlen.theory import recency

# B inputs of N tokens of width D, L layers.
B, N, D, L = 3, 5, 7, 2


_stack = jax.jit(causal_stack, static_argnums=(1, 2), static_argnames='epsilon')
_run = jax.jit(run_stack, static_argnums=(1, 2), static_argnames='epsilon')


def _normal(*shape, dtype=np.float32):
  return np.random.default_rng(shape).normal(size=shape).astype(dtype)


def _exact(x, num_layers, layer_norm=True, residual=0.0, epsilon=0.0):
  """The stack in numpy, float64, token by token: scores, weights and X'."""
  x = np.asarray(x, np.float64)
  n, d = x.shape
  scores, weights = np.zeros((2, num_layers, n, n))
  for layer in range(num_layers):
    z = x
    if layer_norm:
      z = (x - x.mean(1)[:, None]) / np.sqrt(x.var(1)[:, None] + epsilon)
    output = residual * x
    for i in range(n):
      logits = [z[i] @ z[j] / d**0.5 for j in range(i + 1)]
      exponentials = np.exp(logits)
      scores[layer, i, : i + 1] = logits
      weights[layer, i, : i + 1] = exponentials / exponentials.sum()
      output[i] += sum(weights[layer, i, j] * z[j] for j in range(i + 1))
    x = output
  return scores, weights, x


def _equicorrelated(num_tokens, width, anisotropy, scale):
  """Tokens of mean 0, norm s √d, and all of cosine α with each other."""
  normal = _normal(width, num_tokens, dtype=np.float64)
  rows = np.linalg.qr(normal - normal.mean(0))[0].T
  np.testing.assert_allclose(rows @ rows.T, np.eye(num_tokens), atol=1e-12)
  np.testing.assert_allclose(rows.mean(1), 0.0, atol=1e-12)
  cosine = (1 - anisotropy) * np.eye(num_tokens) + anisotropy
  return scale * width**0.5 * np.linalg.cholesky(cosine) @ rows


@pytest.mark.parametrize('num_tokens, width', [(10, 16), (7, 64), (3, 251)])
@pytest.mark.parametrize('anisotropy', [0.0, 0.3, 0.8])
@pytest.mark.parametrize('residual, scale', [(0.0, 0.2), (1.0, 1.0), (2.5, 0.1)])
def test_tokens_of_one_cosine_have_the_scores_of_the_closed_forms(
    num_tokens, width, anisotropy, residual, scale
):
  x = _equicorrelated(num_tokens, width, anisotropy, scale)
  with jax.enable_x64(True):
    scores = _stack(x, 2, residual=residual)
  first = recency.layer1_scores(num_tokens, width, anisotropy)
  # c counts in units of Z, and x is s Z.
  second = recency.layer2_scores(num_tokens, width, anisotropy, residual * scale)
  np.testing.assert_allclose(scores, [first, second], rtol=0, atol=1e-12)


def test_the_residual_of_tokens_of_the_papers_norm_is_a_fraction_in_units_of_z():
  width, anisotropy = 64, 0.5
  scale = (width * (1 - anisotropy)) ** -0.5
  x = _equicorrelated(7, width, anisotropy, scale)
  with jax.enable_x64(True):
    scores = _stack(x, 2, residual=1.0)
  residual = recency.residual_in_units_of_z(1.0, width, anisotropy)
  expected = recency.layer2_scores(7, width, anisotropy, residual)
  np.testing.assert_allclose(scores[1], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize('width', [16, 61])
@pytest.mark.parametrize('scale', [0.25, 0.5])
def test_without_layer_norm_all_earlier_keys_have_one_score(width, scale):
  x = _equicorrelated(7, width, 0.0, scale)
  with jax.enable_x64(True):
    scores = _stack(x, 2, False)
  b, before = scale**2 * width**0.5, np.arange(7)
  total = np.exp(b) + before
  expected = np.tril(np.tile((b / total)[:, None], 7), -1)
  expected += np.diag(b * (np.exp(2 * b) + before) / total**2)
  np.testing.assert_allclose(scores, [b * np.eye(7), expected], rtol=0, atol=1e-12)


@pytest.mark.parametrize('anisotropy', [0.0, 0.3, 0.8])
def test_without_layer_norm_tokens_of_the_papers_norm_have_the_closed_forms(anisotropy):
  width = 61
  scale = (width * (1 - anisotropy)) ** -0.5
  x = _equicorrelated(7, width, anisotropy, scale)
  with jax.enable_x64(True):
    first, second = np.asarray(_stack(x, 2, False))
  expected = recency.layer1_scores(7, width, anisotropy, layer_norm=False)
  np.testing.assert_allclose(first, expected, rtol=0, atol=1e-12)
  if not anisotropy:
    expected = recency.layer2_scores(7, width, layer_norm=False)
    np.testing.assert_allclose(second, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize('residual', [0.0, 1.0, 0.3])
@pytest.mark.parametrize('layer_norm', [True, False])
# The products of one input, of many short rows, and of many long ones.
@pytest.mark.parametrize('shape', [(10, 64), (2, 11, 5, 7), (17, 3, 19)], ids=str)
def test_scores_depend_on_the_gram_matrix_alone(layer_norm, residual, shape):
  x = _normal(*shape, dtype=np.float64) / shape[-1] ** 0.5
  x += 0.7 * x[..., :1, :]
  rows = x - x.mean(-1, keepdims=True) if layer_norm else x
  gram = rows @ np.swapaxes(rows, -1, -2)
  expected = recency.gram_recursion(gram, shape[-1], 8, layer_norm, residual)
  with jax.enable_x64(True):
    scores = np.asarray(_stack(x, 8, layer_norm, residual))
  assert scores.shape == (*shape[:-2], 8, shape[-2], shape[-2])
  largest = np.abs(expected).max((-1, -2), keepdims=True)
  np.testing.assert_allclose(scores / largest, expected / largest, rtol=0, atol=1e-10)


@pytest.mark.parametrize('residual', [0.0, 0.7])
@pytest.mark.parametrize('layer_norm', [True, False])
@pytest.mark.parametrize('shape', [(B, N, D), (17, 19, 3), (17, 3, 19)], ids=str)
def test_the_stack_is_that_of_numpy_for_any_batch(layer_norm, residual, shape):
  with jax.enable_x64(True):
    x = _normal(*shape, dtype=np.float64)
    results = _run(x, L, layer_norm, residual, epsilon=0.1)
  for i in (0, len(x) - 1):
    exact = _exact(x[i], L, layer_norm, residual, 0.1)
    for one, expected in zip(results, exact, strict=True):
      np.testing.assert_allclose(one[i], expected, rtol=1e-11, atol=1e-12)


def test_batch_axes_are_so_many_single_calls():
  x = _normal(2, B, N, D)
  together = _run(x, L, residual=1.0)
  for i in np.ndindex(2, B):
    alone = _run(x[i], L, residual=1.0)
    for one, expected in zip(together, alone, strict=True):
      np.testing.assert_allclose(one[i], expected, rtol=1e-5, atol=1e-6)


def test_scores_above_the_diagonal_are_0_and_weights_sum_to_1():
  scores, weights, _ = _run(_normal(B, N, D), L)
  assert scores.shape == weights.shape == (B, L, N, N)
  above = np.triu_indices(N, 1)
  assert (np.asarray(scores)[..., *above] == 0).all()
  assert (np.asarray(weights)[..., *above] == 0).all()
  assert (np.asarray(weights)[..., *np.tril_indices(N)] > 0).all()
  np.testing.assert_allclose(weights.sum(-1), np.ones((B, L, N)), rtol=1e-6)
  softmax = jax.nn.softmax(jnp.where(jnp.tri(N)[None, None] > 0, scores, -jnp.inf))
  np.testing.assert_allclose(weights, softmax, rtol=1e-6)
  np.testing.assert_allclose(scores, _stack(_normal(B, N, D), L), rtol=1e-6)


def test_a_token_alone_attends_to_itself():
  scores, weights, _ = run_stack(_normal(1, D), 3)
  np.testing.assert_allclose(scores.ravel(), np.full(3, D**0.5), rtol=1e-6)
  np.testing.assert_array_equal(weights, np.ones((3, 1, 1)))


def test_attention_takes_any_width_and_any_values_and_may_see_later_tokens():
  queries, keys, values = _normal(3, N, 2, dtype=np.float64)
  with jax.enable_x64(True):
    arguments = queries, keys, values[:, :1], 49
    seen, unseen = (self_attend(*arguments, causal) for causal in (True, False))
  products = queries @ keys.T / 7
  for layer, mask in ((seen, np.tri(N)), (unseen, np.ones((N, N)))):
    exponentials = np.exp(products) * mask
    weights = exponentials / exponentials.sum(1, keepdims=True)
    np.testing.assert_allclose(layer.weights, weights, rtol=1e-12)
    np.testing.assert_allclose(layer.output, weights @ values[:, :1], rtol=1e-12)
    np.testing.assert_allclose(layer.scores, np.tril(products), rtol=1e-12)


@pytest.mark.parametrize('layer_norm', [True, False])
def test_what_a_later_token_is_changes_no_bit(layer_norm):
  x = _normal(20, 4, 3)
  changed = x.copy()
  changed[:, 3] = 1 + x[:, 0]
  before, after = (
      _run(each, 3, layer_norm, residual=0.5)
      for each in (x, changed)
  )
  for one, two in zip(before, after, strict=True):
    np.testing.assert_array_equal(one[..., :3, :], two[..., :3, :])
    assert (np.asarray(one[..., 3, :]) != two[..., 3, :]).any()


@pytest.mark.parametrize('copies', [1, 17])
@pytest.mark.parametrize('layer_norm', [True, False])
def test_no_score_depends_on_a_later_token(layer_norm, copies):
  x = _normal(4, 3)

  def one(x):
    x = jnp.tile(x[None], (copies, 1, 1))
    return causal_stack(x, 3, layer_norm, 0.5)[-1]

  gradient = np.asarray(jax.jit(jax.jacfwd(one))(x))
  moved = np.abs(gradient).max((0, 2, 4))  # [i, k] of layer, i, j, k, :
  assert np.isfinite(gradient).all()
  assert (moved[np.triu_indices(4, 1)] == 0).all()
  assert (moved[np.tril_indices(4, -1)] > 0).all()


@pytest.mark.parametrize('layer_norm', [True, False])
def test_gradients_are_those_of_differences(layer_norm):
  x, direction = _normal(2, 3, 4, dtype=np.float64)
  loss = lambda x, c: jnp.sin(causal_stack(x, L, layer_norm, c)).sum()
  at = lambda t: loss(x + t * direction, 0.7 + t)

  @jax.jit
  def slopes(step):
    by_x, by_c = jax.grad(loss, (0, 1))(x, 0.7)
    return (by_x * direction).sum() + by_c, (at(step) - at(-step)) / (2 * step)

  with jax.enable_x64(True):
    np.testing.assert_allclose(*slopes(1e-5), rtol=1e-7)


def test_float64_stays_float64_and_all_else_is_computed_in_float32():
  numbers = np.round(20 * _normal(N, D))
  with jax.enable_x64(True):
    for dtype in ('float64', 'float32', 'int64'):
      x = jnp.asarray(numbers, dtype)
      results = jax.eval_shape(lambda x: run_stack(x, L), x)
      expected = 'float64' if dtype == 'float64' else 'float32'
      assert {x.dtype for x in results} == {jnp.dtype(expected)}
  expected = _stack(numbers, L)
  for dtype in (jnp.bfloat16, jnp.int8):
    scores = _stack(jnp.asarray(numbers, dtype), L)
    assert scores.dtype == jnp.float32
    np.testing.assert_array_equal(scores, expected)


@pytest.mark.parametrize('epsilon', [1e-5, 0.3])
def test_epsilon_takes_from_each_row_its_share_of_the_deviation(epsilon):
  x = _normal(N, D, dtype=np.float64)
  with jax.enable_x64(True):
    without, = np.asarray(_stack(x, 1))
    scores, = np.asarray(_stack(x, 1, epsilon=epsilon))
  ratio = np.sqrt(x.var(1) / (x.var(1) + epsilon))
  expected = without * np.outer(ratio, ratio)
  np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-14)


def test_the_authors_epsilon_shifts_logits_by_less_than_a_billionth():
  x = _normal(10, 64, dtype=np.float64) / 8
  with jax.enable_x64(True):
    shift = _stack(x, 4, epsilon=1e-12) - _stack(x, 4)
  assert 3e-10 < np.abs(shift).max() < 1e-9


def test_a_row_whose_entries_are_equal_needs_an_epsilon():
  x = _normal(N, D)
  x[2] = 0.0
  assert np.isnan(_stack(x, 1)[0, 2, :3]).all()
  assert np.isfinite(_stack(x, L, epsilon=1e-12)).all()
  assert np.isfinite(_stack(x, L, False)).all()


@pytest.mark.parametrize('shape', [(67, 71), (2, 67, 71), (17, 67, 71)], ids=str)
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_every_product_of_matrices_asks_for_full_precision(shape, dtype):
  # A CPU always computes in float32, an accelerator only if this is requested.
  x = jax.ShapeDtypeStruct(shape, dtype)
  stack = jax.jit(functools.partial(causal_stack, num_layers=3, residual=1.0))
  products = re.findall('.*dot_general.*', stack.lower(x).as_text())
  assert len(products) == 2  # one each for Z Zᵀ and A Z, in a loop
  assert all('[HIGHEST, HIGHEST]' in line for line in products)
  assert not any('bf16' in line for line in products)
  gradient = jax.jit(jax.grad(lambda x: stack(x).sum()))
  products = re.findall('.*dot_general.*', gradient.lower(x).as_text())
  assert len(products) >= 6
  assert all('[HIGHEST, HIGHEST]' in line for line in products)


def test_vmap_and_recomputation_change_nothing():
  x = jnp.asarray(_normal(B, N, D))
  stack = functools.partial(causal_stack, num_layers=L, residual=0.5)
  mapped = jax.jit(jax.vmap(stack))(x)
  np.testing.assert_allclose(mapped, stack(x), rtol=1e-5, atol=1e-6)
  gradient = lambda f: jax.grad(lambda x: jnp.sin(f(x)).sum())(x[0])
  plain, recomputed = jax.jit(
      lambda: (gradient(stack), gradient(jax.checkpoint(stack)))
  )()
  assert np.isfinite(plain).all() and (np.asarray(plain) != 0).all()
  np.testing.assert_allclose(recomputed, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('width', [2, 16, 17, 40])
def test_many_short_inputs_are_computed_as_each_alone(width):
  x = _normal(33, N, width)
  coefficients = _normal(L, N, N)
  assert short_inputs.suits((N, width, 33)) and not short_inputs.suits((N, width))

  def loss(x):
    scores, weights, _ = run_stack(x, L, residual=0.5)
    return jnp.einsum('lij,...lij->', coefficients, scores + weights)

  together = jax.jit(jax.value_and_grad(loss))(x)
  alone = jax.jit(jax.value_and_grad(lambda x: jax.lax.map(loss, x).sum()))(x)
  chex.assert_trees_all_close(together, alone, rtol=1e-4, atol=1e-4)


def test_the_batch_may_be_sharded_over_devices():
  x = _normal(16, N, D)
  stack = jax.jit(functools.partial(causal_stack, num_layers=3))
  placement = NamedSharding(seed_mesh(), PartitionSpec('seed'))
  scores = stack(jax.device_put(x, placement))
  assert len(scores.sharding.device_set) == 8
  assert {s.data.shape for s in scores.addressable_shards} == {(2, 3, N, N)}
  np.testing.assert_allclose(scores, stack(x), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('shape', [(32, N, 40), (4, 20, 3)], ids=str)
def test_it_works_on_a_mesh_of_explicit_axes_and_in_shard_map(shape):
  x = _normal(*shape)
  x = np.concatenate([x, x[::-1]]) if shape[0] == 32 else x
  mesh = jax.make_mesh((2,), ('batch',), axis_types=(jax.sharding.AxisType.Explicit,))

  def measure(x):
    scores = causal_stack(x, 3)
    return scores, recency_of_logits(scores)

  expected = jax.jit(measure)(x)
  with jax.set_mesh(mesh):
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec('batch')))
    explicit = jax.jit(measure)(placed)
    mapped = jax.jit(jax.shard_map(
        measure, in_specs=PartitionSpec('batch'), out_specs=PartitionSpec('batch')
    ))(placed)
  for found in (explicit, mapped):
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_stage_is_a_call_of_its_own_on_a_cpu():
  compiled = jax.jit(lambda x: stage(jnp.exp)(x) + 1).lower(jnp.ones(8)).compile()
  assert re.search(r' call\(', compiled.as_text())
  inlined = jax.jit(lambda x: jax.jit(jnp.exp)(x) + 1).lower(jnp.ones(8)).compile()
  assert not re.search(r' call\(', inlined.as_text())


def test_outside_jit_it_is_compiled_once():
  before = _run_layers._cache_size()
  for residual in (0.0, 0.3):
    causal_stack(_normal(N, 11), 2, residual=residual)
  assert _run_layers._cache_size() == before + 1


def test_another_residual_is_not_compiled_anew():
  x = _normal(N, D)
  stack = jax.jit(lambda x, residual: causal_stack(x, L, residual=residual))
  for residual in (0.0, 1.0, 0.3):
    np.testing.assert_allclose(
        stack(x, residual), _exact(x, L, residual=residual)[0], rtol=1e-4, atol=1e-5
    )
  assert stack._cache_size() == 1
  residuals = jnp.array([0.0, 1.0, 0.3])
  mapped = jax.vmap(stack, (None, 0))(x, residuals)
  np.testing.assert_allclose(mapped[1], stack(x, 1.0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('x, num_layers, words', [
    (np.array([[0.0, np.nan]]), 2, 'not finite'),
    (np.array([[0.0, -np.inf]]), 2, 'not finite'),
    (np.ones(D), 2, r'\(7,\)'),
    (1.0, 2, r'\(\)'),
    (np.ones((0, D)), 2, r'\(0, 7\)'),
    (np.ones((N, 0)), 2, r'\(5, 0\)'),
    (_normal(N, D), 0, 'num_layers must be .*positive.*: 0'),
    (_normal(N, D), -3, 'num_layers must be .*positive.*: -3'),
])
def test_bad_input_is_named_in_one_line(x, num_layers, words):
  with pytest.raises(ValueError, match=words) as error:
    causal_stack(x, num_layers)
  assert '\n' not in str(error.value)
  with pytest.raises(ValueError, match=words):
    CausalStack(num_layers).apply({}, x)


def test_the_module_has_no_parameters_and_sows_what_the_function_returns(key):
  x = _normal(B, N, D)
  module = CausalStack(L, residual=0.5, epsilon=1e-3)
  output, variables = module.init_with_output(key, x)
  assert not variables.get('params', {})
  again, sown = module.apply({}, x, mutable='intermediates')
  np.testing.assert_array_equal(again, output)
  results = _run(x, L, residual=0.5, epsilon=1e-3)
  names = ('attention_scores', 'attention_weights')
  expected = dict(zip(names, results[:2], strict=True))
  sown = {name: array for name, (array,) in sown['intermediates'].items()}
  chex.assert_trees_all_close(sown, expected, rtol=1e-5, atol=1e-6)


def test_the_module_returns_the_last_layers_output():
  # One token is its own average: with Z = ±1, X' = Z + c X, here of (2, 6): mean 4.
  output = CausalStack(1, residual=3.0).apply({}, jnp.array([[2.0, 6.0]]))
  np.testing.assert_allclose(output, [[-1 + 6, 1 + 18]], rtol=1e-6)
  # The second of two equal tokens, too. Without LayerNorm values are raw.
  output = CausalStack(1, False, 3.0).apply({}, jnp.array([[2.0, 6.0], [2.0, 6.0]]))
  np.testing.assert_allclose(output, np.tile([8.0, 24.0], (2, 1)), rtol=1e-6)
  # Layer 2 starts from there: Z is ±1 again.
  output = CausalStack(2, residual=3.0).apply({}, jnp.array([[2.0, 6.0]]))
  np.testing.assert_allclose(output, [[-1 + 15, 1 + 57]], rtol=1e-6)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16', 'float32'])
def test_the_module_keeps_the_dtype_of_its_input(dtype):
  x = jnp.asarray(_normal(N, D), dtype)
  output, sown = CausalStack(L, residual=0.5).apply({}, x, mutable='intermediates')
  assert output.dtype == x.dtype and output.shape == x.shape
  assert {s.dtype for s in jax.tree.leaves(sown)} == {jnp.dtype('float32')}
  exact = _exact(x.astype(jnp.float32), L, residual=0.5)[-1]
  # Rounded once, at the end.
  np.testing.assert_allclose(
      np.asarray(output, np.float64), exact, rtol=jnp.finfo(dtype).eps, atol=1e-5
  )


def test_integers_give_the_module_a_float32_output():
  output = CausalStack(1).apply({}, jnp.array([[2, 6]]))
  assert output.dtype == jnp.float32
  np.testing.assert_allclose(output, [[-1.0, 1.0]], rtol=1e-6)


class _Model(nn.Module):
  """A model: tokens of another width, the stack, and one number per token."""

  stack: type[nn.Module] = CausalStack

  @nn.compact
  def __call__(self, x):
    return nn.Dense(1)(self.stack(L, residual=1.0)(nn.Dense(D)(x)))


def test_the_module_is_part_of_larger_ones(key):
  x = _normal(B, N, 11)
  models = _Model(), _Model(nn.remat(CausalStack))
  variables = jax.jit(models[0].init)(key, x)
  assert set(variables['params']) == {'Dense_0', 'Dense_1'}
  apply = functools.partial(models[0].apply, mutable='intermediates')
  _, sown = jax.eval_shape(apply, variables, x)
  scores, = sown['intermediates']['CausalStack_0']['attention_scores']
  assert scores.shape == (B, L, N, N)

  @jax.jit
  def gradients(params):
    loss = lambda params, model: jnp.sin(model.apply({'params': params}, x)).sum()
    return [jax.grad(loss)(params, model) for model in models]

  plain, recomputed = gradients(variables['params'])
  for each in jax.tree.leaves(plain):
    assert np.isfinite(each).all() and (np.asarray(each) != 0).any()
  for one, two in zip(*map(jax.tree.leaves, (plain, recomputed)), strict=True):
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def test_the_module_works_in_nnx(key):
  x = jax.random.normal(key, (2, 5, 7))
  stack = nnx.bridge.ToNNX(CausalStack(3), rngs=nnx.Rngs(0))
  nnx.bridge.lazy_init(stack, x)
  np.testing.assert_array_equal(stack(x), CausalStack(3).apply({}, x))
