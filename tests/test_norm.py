"""Properties of normalization, far from zero and in every float type."""

import chex
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vvlen.models.norm import PostAttentionNorm, standardize

R, D = 5, 11


def _exact(x, axis=-1, epsilon=1e-5):
  """Standardizes in numpy, float64."""
  x = np.asarray(x, np.float64)
  centred = x - x.mean(axis, keepdims=True)
  variance = (centred**2).mean(axis, keepdims=True)
  return centred / np.sqrt(variance + epsilon)


# Far from zero the float32 mean of 11 numbers is off by up to 1e-3. The one-pass
# variance is off by its whole size there: 1e8 has a spacing of 8.
@pytest.mark.parametrize('centre, atol', [(0.0, 1e-6), (1e4, 3e-3)])
@pytest.mark.parametrize('epsilon', [1e-5, 0.3])
def test_rows_have_mean_0_and_variance_v_over_v_plus_epsilon(
    key, centre, atol, epsilon
):
  x = centre + jax.random.normal(key, (R, D))
  y = np.asarray(standardize(x, epsilon=epsilon), np.float64)
  v = np.asarray(x, np.float64).var(-1)
  np.testing.assert_allclose(y.mean(-1), 0.0, atol=atol)
  np.testing.assert_allclose(y.var(-1), v / (v + epsilon), rtol=1e-4)
  np.testing.assert_allclose(y, _exact(x, epsilon=epsilon), rtol=1e-4, atol=atol)


def test_a_row_with_known_moments():
  # Mean 4, biased variance 4: (2, 6) -> (-1, 1).
  y = standardize(jnp.array([2.0, 6.0, 2.0, 6.0]), epsilon=0.0)
  np.testing.assert_allclose(y, [-1.0, 1.0, -1.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize('kind', ['standardize', 'layer_norm'])
def test_bfloat16_is_computed_in_float32_and_rounded_once(key, kind):
  # At 100 the spacing of bfloat16 is 0.5, so a mean in bfloat16 would be off by
  # up to 0.25, a twelfth of the spread.
  x = (100 + 3 * jax.random.normal(key, (R, D))).astype(jnp.bfloat16)
  y, _ = PostAttentionNorm(kind).init_with_output(key, x)
  assert y.dtype == jnp.bfloat16
  y, exact = np.asarray(y, np.float64), _exact(x.astype(jnp.float32))
  np.testing.assert_allclose(y, exact, rtol=2**-8, atol=1e-4)


def test_any_axis_may_hold_the_features(key):
  x = jax.random.normal(key, (3, R, D))
  results = jax.jit(lambda x: [standardize(x, axis) for axis in (0, 1, -1)])(x)
  for axis, result in zip((0, 1, -1), results, strict=True):
    np.testing.assert_allclose(result, _exact(x, axis), atol=1e-5)


def test_shift_and_scale_change_nothing(key):
  x = jax.random.normal(key, (R, D))
  moved = standardize(7 - 3 * x, epsilon=0.0)
  np.testing.assert_allclose(moved, -standardize(x, epsilon=0.0), atol=1e-5)


@pytest.mark.parametrize('kind', ['standardize', 'layer_norm'])
def test_float64_stays_float64(key, kind):
  with jax.enable_x64(True):
    x = 1e4 + jax.random.normal(key, (R, D), jnp.float64)
    y, _ = PostAttentionNorm(kind).init_with_output(key, x)
    assert y.dtype == jnp.float64
    np.testing.assert_allclose(y, _exact(x), atol=1e-10)


def test_integers_are_read_as_float32():
  y = standardize(jnp.array([2, 6]), epsilon=0.0)
  assert y.dtype == jnp.float32
  np.testing.assert_allclose(y, [-1.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize('kind', ['standardize', 'layer_norm'])
def test_constant_rows_give_zeros_with_finite_gradients(key, kind):
  x = jnp.full((R, D), 3.0)
  y, variables = PostAttentionNorm(kind).init_with_output(key, x)
  np.testing.assert_array_equal(y, np.zeros((R, D)))
  gradient = jax.grad(
      lambda x: jnp.sum(PostAttentionNorm(kind).apply(variables, x)[:, 0])
  )(x)
  # d standardize_j / d x_i = (δ_ij − 1/D) / sqrt(ε) where the variance is 0.
  row = (np.eye(D)[0] - 1 / D) / np.sqrt(1e-5)
  np.testing.assert_allclose(gradient, np.tile(row, (R, 1)), rtol=1e-5)


def _scale_and_bias(key):
  scale, bias = jax.random.normal(key, (2, D))
  return {'params': {'scale': scale, 'bias': bias}}


def test_layer_norm_is_flax_layer_norm_in_two_passes(key):
  x, variables = 3 + jax.random.normal(key, (R, D)), _scale_and_bias(key)
  oracle = nn.LayerNorm(epsilon=1e-5, use_fast_variance=False)
  np.testing.assert_allclose(
      PostAttentionNorm('layer_norm').apply(variables, x),
      oracle.apply(variables, x), rtol=1e-5, atol=1e-6,
  )


def test_layer_norm_is_torch_layer_norm(key):
  torch = pytest.importorskip(
      'torch', reason="compares with PyTorch: pip install '.[oracle]'")
  x, variables = 3 + jax.random.normal(key, (R, D)), _scale_and_bias(key)
  oracle = torch.nn.functional.layer_norm(
      torch.tensor(np.asarray(x)), (D,),
      torch.tensor(np.asarray(variables['params']['scale'])),
      torch.tensor(np.asarray(variables['params']['bias'])), 1e-5,
  )
  np.testing.assert_allclose(
      PostAttentionNorm('layer_norm').apply(variables, x), oracle.numpy(),
      rtol=1e-5, atol=1e-6,
  )


def test_arms_differ_in_scale_and_bias_alone(key):
  x = jax.random.normal(key, (R, D))
  outputs, parameters = {}, {}
  for kind in ('none', 'standardize', 'layer_norm'):
    outputs[kind], variables = PostAttentionNorm(kind).init_with_output(key, x)
    parameters[kind] = variables.get('params', {})
  assert parameters['none'] == parameters['standardize'] == {}
  chex.assert_trees_all_equal(
      parameters['layer_norm'], {'scale': np.ones(D), 'bias': np.zeros(D)}
  )
  np.testing.assert_array_equal(outputs['none'], x)
  np.testing.assert_array_equal(outputs['standardize'], standardize(x))
  # Before any update the learned scale and bias do nothing.
  np.testing.assert_array_equal(outputs['layer_norm'], outputs['standardize'])


def test_an_unknown_kind_is_named(key):
  with pytest.raises(ValueError, match="'rms'"):
    PostAttentionNorm('rms').init(key, jnp.ones((R, D)))
