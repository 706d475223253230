"""AdamW by its definition, and gradients in parts."""

import functools

import chex
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np
import optax
import pytest

from vvlen.training import optimizer

B, F, D = 48, 3, 5


def _params(key, dtype=jnp.float32):
  w, v = jax.random.normal(key, (F * D + D,), dtype).__getitem__, slice
  return {'w': w(v(0, F * D)).reshape(F, D), 'b': w(v(F * D, None))}


def _loss(params, batch):
  error = batch['x'] @ params['w'] * params['b'][None] - batch['y'][:, None]
  return jnp.mean(error**2), {'error': jnp.abs(error).mean(), 'rows': batch['y'].mean()}


def _batch(key, rows=B):
  x, y = jax.random.split(key)
  return {'x': jax.random.normal(x, (rows, F)), 'y': jax.random.normal(y, (rows,))}


def test_the_rate_grows_linearly_and_falls_as_a_cosine():
  rate = optimizer.warmup_cosine(0.5, 14, warmup_steps=4, final_rate=0.2)
  # A tenth of the way down at each step: 0.5 · (0.2 + 0.8 · (1 + cos(kπ/10)) / 2).
  cosines = 0.5 * (0.2 + 0.4 * (1 + np.cos(np.pi * np.arange(11) / 10)))
  expected = [0.125, 0.25, 0.375, 0.5, *cosines, 0.1, 0.1]
  np.testing.assert_allclose([rate(k) for k in range(17)], expected, rtol=1e-6)
  assert rate(jnp.int32(3)).dtype == jnp.float32
  assert rate(14) == pytest.approx(0.2 * 0.5)
  assert optimizer.warmup_cosine(0.5, 14)(0) == 0.5
  assert optimizer.warmup_cosine(0.5, 14)(14) == 0


def _reference(params, gradients, *, rate, decay, clip, b1, b2):
  """Returns the parameters after AdamW, in numpy float64."""
  params = {name: np.asarray(x, np.float64) for name, x in params.items()}
  mean = {name: 0 * x for name, x in params.items()}
  square = dict(mean)
  for k, gradient in enumerate(gradients):
    norm = np.sqrt(sum(np.sum(np.float64(g) ** 2) for g in gradient.values()))
    for name, g in gradient.items():
      g = np.float64(g) * min(1, clip / norm)
      mean[name] = b1 * mean[name] + (1 - b1) * g
      square[name] = b2 * square[name] + (1 - b2) * g**2
      update = (mean[name] / (1 - b1 ** (k + 1))) / (
          np.sqrt(square[name] / (1 - b2 ** (k + 1))) + 1e-8
      )
      if params[name].ndim >= 2:
        update = update + decay * params[name]
      params[name] = params[name] - rate(k) * update
  return params


def test_updates_are_those_of_adamw(key):
  params = _params(key)
  gradients = [
      {'w': s * jax.random.normal(jax.random.fold_in(key, k), (F, D)),
       'b': s * jax.random.normal(jax.random.fold_in(key, k + 9), (D,))}
      for k, s in enumerate([0.01, 1.0, 5.0, 0.1])
  ]
  options = dict(b1=0.8, b2=0.9)
  made = optimizer.adamw(
      0.1, 4, warmup_steps=2, weight_decay=0.3, clip_norm=2.0, final_rate=0.5, **options
  )
  rate = lambda k: [0.05, 0.1, 0.1, 0.075][k]
  expected = _reference(params, gradients, rate=rate, decay=0.3, clip=2.0, **options)
  state = made.init(params)
  for gradient in gradients:
    updates, state = made.update(gradient, state, params)
    params = optax.apply_updates(params, updates)
  chex.assert_trees_all_close(
      params, jax.tree.map(np.float32, expected), rtol=1e-5, atol=1e-6
  )


def test_matrices_and_embeddings_decay_and_vectors_do_not():
  params = {'embedding': jnp.ones((4, 2)), 'scale': jnp.ones(4), 'beta': jnp.ones(())}
  made = optimizer.adamw(0.1, 10, weight_decay=0.5)
  updates, _ = made.update(
      jax.tree.map(jnp.zeros_like, params), made.init(params), params
  )
  np.testing.assert_allclose(updates['embedding'], -0.05, rtol=1e-6)
  assert not updates['scale'].any() and not updates['beta'].any()


def test_gradients_are_not_clipped_unless_asked():
  params = {'w': jnp.zeros(2)}
  small, large = {'w': jnp.array([0.3, 0.0])}, {'w': jnp.array([3000.0, 0.0])}

  def second(clip_norm):
    made = optimizer.adamw(1.0, 10**9, clip_norm=clip_norm)
    _, state = made.update(small, made.init(params), params)
    return made.update(large, state, params)[0]['w'][0]

  # b1 = 0.9, b2 = 0.95: what Adam makes of 0.3 and then 3000, or 1.
  adam = lambda g: -((0.09 * 0.3 + 0.1 * g) / 0.19) / np.sqrt(
      (0.95 * 0.05 * 0.3**2 + 0.05 * g**2) / (1 - 0.95**2)
  )
  np.testing.assert_allclose(second(None), adam(3000), rtol=1e-5)
  np.testing.assert_allclose(second(1.0), adam(1), rtol=1e-5)


@pytest.mark.parametrize('change, message', [
    ({'learning_rate': 0.0}, 'learning_rate must be positive: 0.0'),
    ({'learning_rate': float('nan')}, 'learning_rate must be positive: nan'),
    ({'learning_rate': float('inf')}, 'learning_rate must be positive: inf'),
    ({'num_steps': 0}, 'num_steps must be positive: 0'),
    ({'warmup_steps': 10}, r'warmup_steps must be in \[0, 10\): 10'),
    ({'warmup_steps': -1}, r'warmup_steps must be in \[0, 10\): -1'),
    ({'weight_decay': -0.1}, 'weight_decay must not be negative: -0.1'),
    ({'clip_norm': 0.0}, 'clip_norm must be positive: 0.0'),
    ({'final_rate': 1.5}, r'final_rate must be in \[0, 1\]: 1.5'),
    ({'b1': 1.0}, r'b1 must be in \[0, 1\): 1.0'),
    ({'b2': -0.5}, r'b2 must be in \[0, 1\): -0.5'),
])
def test_impossible_values_are_named(change, message):
  with pytest.raises(ValueError, match=message):
    optimizer.adamw(**{'learning_rate': 0.1, 'num_steps': 10, **change})


@pytest.mark.parametrize('num_parts', [1, 2, 3, 16])
def test_parts_give_the_gradient_of_the_whole_batch(num_parts, key):
  params, batch = _params(key), _batch(key)
  expected = jax.value_and_grad(_loss, has_aux=True)(params, batch)
  actual = jax.jit(optimizer.accumulate(_loss, num_parts))(params, batch)
  chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_each_part_is_computed_alone(key):
  rows = lambda params, batch: (params['w'].sum() * len(batch['y']) * 1.0, {})
  (value, _), _ = optimizer.accumulate(rows, 6)({'w': jnp.ones(1)}, _batch(key))
  assert value == B // 6


def test_sums_are_kept_in_float32(key):
  params = _params(key, jnp.bfloat16)
  # The parts' gradients are 256 once and then 1, which a bfloat16 sum would lose.
  loss = lambda params, batch: (
      (params['b'].sum() * batch['y'].mean()).astype(jnp.bfloat16), {}
  )
  batch = {'y': jnp.ones(64, jnp.bfloat16).at[0].set(256)}
  (value, _), gradients = optimizer.accumulate(loss, 64)(params, batch)
  chex.assert_trees_all_equal_dtypes(gradients, _params(key))
  assert value.dtype == jnp.float32
  np.testing.assert_array_equal(gradients['b'], (256 + 63) / 64)
  with jax.enable_x64(True):
    wide = jax.tree.map(lambda x: np.float64(x), params)
    _, gradients = optimizer.accumulate(loss, 64)(wide, batch)
    assert gradients['w'].dtype == jnp.float64


@pytest.mark.parametrize('rows', [B, 0])
def test_parts_that_do_not_divide_the_batch_are_named(rows, key):
  if rows:
    with pytest.raises(ValueError, match=r'\(48, 3\) does not divide into 5 parts'):
      optimizer.accumulate(_loss, 5)(_params(key), _batch(key))
  else:
    with pytest.raises(ValueError, match='num_parts must be positive: 0'):
      optimizer.accumulate(_loss, 0)


def _mesh():
  return jax.make_mesh(
      (2, 4), ('data', 'fsdp'), axis_types=(AxisType.Auto,) * 2
  )


def _compiled(num_parts, key, split):
  """Returns parts on a mesh: compiled, its arguments, and their shardings."""
  place = functools.partial(NamedSharding, _mesh())
  params = {
      'w': jax.random.normal(key, (F, 64)), 'b': jax.random.normal(key, (64,))
  }
  batch = _batch(key, rows=64)
  params = jax.device_put(params, {
      'w': place(PartitionSpec(None, 'fsdp' if split else None)),
      'b': place(PartitionSpec('fsdp' if split else None)),
  })
  batch = jax.device_put(batch, place(PartitionSpec(('data', 'fsdp'))))
  run = jax.jit(
      optimizer.accumulate(_loss, num_parts),
      out_shardings=(None, jax.tree.map(lambda x: x.sharding, params)),
  )
  return run.lower(params, batch).compile(), params, batch


@pytest.mark.parametrize('num_parts', [2, 4, 8])
def test_rows_stay_on_their_devices(num_parts, key):
  compiled, params, batch = _compiled(num_parts, key, split=False)
  text = compiled.as_text()
  assert 'all-reduce' in text
  for moving in ('all-gather', 'all-to-all', 'collective-permute', 'reduce-scatter'):
    assert moving not in text
  expected = jax.value_and_grad(_loss, has_aux=True)(*map(jax.device_get, (
      params, batch
  )))
  chex.assert_trees_all_close(
      jax.device_get(compiled(params, batch)), expected, rtol=1e-5, atol=1e-5
  )


def test_sums_are_split_as_the_parameters_are(key):
  text = _compiled(4, key, split=True)[0].as_text()
  carries = [line for line in text.splitlines() if ' while(' in line]
  assert carries
  for line in carries:
    assert 'f32[3,16]' in line and 'f32[3,64]' not in line


def test_casting_leaves_what_is_not_floating():
  tree = {'w': jnp.ones(3), 'n': jnp.ones(3, jnp.int32), 'm': jnp.ones(3, bool)}
  cast = optimizer.cast_floating(tree, jnp.bfloat16)
  assert {name: str(x.dtype) for name, x in cast.items()} == {
      'w': 'bfloat16', 'n': 'int32', 'm': 'bool'
  }


def test_gradients_through_a_cast_are_those_of_the_float32_parameters(key):
  params, batch = _params(key), _batch(key)

  def loss(params, batch):
    low = optimizer.cast_floating((params, batch), jnp.bfloat16)
    value, _ = _loss(*low)
    assert value.dtype == jnp.bfloat16
    return value, {}

  _, gradients = optimizer.accumulate(loss, 3)(params, batch)
  chex.assert_trees_all_equal_dtypes(gradients, params)
  exact, _ = jax.grad(_loss, has_aux=True)(params, batch)
  for x, y in zip(jax.tree.leaves(gradients), jax.tree.leaves(exact), strict=True):
    np.testing.assert_allclose(x, y, atol=0.03 * np.abs(y).max())
