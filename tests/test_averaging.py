"""Averaged weights are the mean of the weights that training went through."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vvlen.training.averaging import averaged


def _path(optimizer, num_steps):
  """Returns the weights after each update, and the last state, of noisy descent."""
  params = {'w': jnp.array([3.0, -2.0]), 'b': jnp.array(1.0)}
  state = optimizer.init(params)

  @jax.jit
  def update(params, state, key):
    noise = {'w': jax.random.normal(key, (2,)), 'b': jax.random.normal(key)}
    gradients = jax.tree.map(lambda x, e: x + e, params, noise)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state

  path, states = [], []
  for step in range(num_steps):
    params, state = update(params, state, jax.random.fold_in(jax.random.key(0), step))
    path.append(params)
    states.append(state)
  return path, states


def test_the_mean_is_that_of_the_saved_weights():
  path, states = _path(averaged(optax.adam(0.1), (20, 50)), 50)
  for end, first in ((20, 18), (50, 45)):
    expected = np.mean([p['w'] for p in path[first:end]], axis=0)
    np.testing.assert_allclose(states[end - 1].mean['w'], expected, rtol=1e-5)
    expected = np.mean([p['b'] for p in path[first:end]])
    np.testing.assert_allclose(states[end - 1].mean['b'], expected, rtol=1e-5)
  # It does not change until the next of these steps.
  np.testing.assert_array_equal(states[44].mean['w'], states[19].mean['w'])
  assert abs(states[45].mean['w'] - states[44].mean['w']).max() > 1e-3


def test_training_is_as_without_it():
  plain, _ = _path(optax.adam(0.1), 30)
  path, _ = _path(averaged(optax.adam(0.1), (10, 30), share=0.5), 30)
  for one, other in zip(plain, path, strict=True):
    np.testing.assert_array_equal(one['w'], other['w'])


def test_a_share_of_less_than_a_step_is_one_step():
  path, states = _path(averaged(optax.sgd(0.1), (4,)), 4)
  np.testing.assert_allclose(states[3].mean['w'], path[3]['w'], rtol=1e-6)


@pytest.mark.parametrize('ends', [(), (0,), (20, 10), (10, 10), (19, 20)])
def test_steps_that_cannot_be_averaged_are_named(ends):
  with pytest.raises(ValueError, match=re.escape(str(ends))):
    averaged(optax.sgd(0.1), ends, share=0.2)
