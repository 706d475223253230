"""CLEX: its differential equation, and the positions that it is trained on."""

import math

import jax
from jax.extend import core
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from vvlen.models import clex
from vvlen.models.clex import Clex

D, BASE = 8, 10_000.0


def _params(key, width=D, scale=0.3, dtype=jnp.float64):
  """Returns W_up and W_down, both far from zero."""
  half, hidden = clex.shape_of(Clex(512), width)
  up, down = jax.random.split(key)
  return (scale * jax.random.normal(up, (half, hidden), dtype),
          scale * jax.random.normal(down, (hidden, half), dtype))


def _closed_form(t, width):
  i = np.arange(width // 2)
  return -2 * i / width * np.log(BASE) - 2 * i / (width - 2) * np.log(2 * t - 1)


@pytest.mark.parametrize('dtype, error', [(jnp.float32, 1e-6), (jnp.float64, 3e-10)])
@pytest.mark.parametrize('width', [8, 128])
def test_new_rates_are_those_of_the_closed_form(key, width, dtype, error):
  with jax.enable_x64(dtype == jnp.float64):
    fresh = clex.init_params(key, Clex(4096), width)
    up, down = (fresh[name].astype(dtype) for name in ('clex_up', 'clex_down'))
    found = clex.log_rates(Clex(4096), BASE, up, down, 16)
    assert found.dtype == dtype
    expected = _closed_form(np.arange(1, 17)[:, None], width)
    np.testing.assert_allclose(found, expected, rtol=error, atol=error)
    # The same of the rates: θ_i (2t − 1)^{−2i/(d−2)}.
    rates = clex.rates(Clex(4096), found, 16 * 4096)
    np.testing.assert_allclose(rates, np.exp(expected[-1]), rtol=20 * error)


def test_rates_solve_the_equation_as_it_is_published(key):
  with jax.enable_x64(True):
    up, down = _params(key)
    i = np.arange(D // 2)

    def slope(t, z):
      xi = -4 * i / (D - 2) / (2 * t - 1)
      return np.tanh((z + _closed_form(t, D)) @ up) @ down + xi

    solved = integrate.solve_ivp(
        slope, (1, 16), _closed_form(1, D), t_eval=range(1, 17), rtol=1e-11, atol=1e-11)
    found = clex.log_rates(Clex(512), BASE, up, down, 16)
    np.testing.assert_allclose(found, solved.y.T, rtol=0, atol=1e-8)
    # They are not those of NTK.
    assert np.abs(found[-1] - _closed_form(16, D)).max() > 1


def test_the_method_is_of_order_4(key):
  with jax.enable_x64(True):
    up, down = _params(key)
    at = lambda steps: np.asarray(clex.log_rates(
        Clex(512, steps=steps), BASE, up, down, 3))
    exact = at(1000)
    errors = [np.abs(at(steps) - exact).max() for steps in (10, 20, 40)]
    ratios = np.divide(errors[:-1], errors[1:])
    np.testing.assert_allclose(ratios, 16, rtol=0.15)


@pytest.mark.slow
def test_gradients_are_finite_differences(key):
  with jax.enable_x64(True):
    params = _params(key)
    fields = Clex(512, largest=4)
    weights = jnp.arange(1.0, 1 + D // 2)
    loss = lambda up, down: (
        weights * clex.log_rates(fields, BASE, up, down, jnp.int32(3))[2]).sum()
    found = jax.grad(loss, (0, 1))(*params)
    for number, (gradient, place) in enumerate(zip(
        found, [(2, 5), (5, 2)], strict=True)):
      moved = lambda by, n=number, at=place: [
          x.at[at].add(by) if n == m else x for m, x in enumerate(params)]
      numeric = (loss(*moved(1e-5)) - loss(*moved(-1e-5))) / 2e-5
      assert abs(numeric) > 1e-2
      np.testing.assert_allclose(gradient[place], numeric, rtol=1e-6)
    # At t = 1 the rates are those of the model, whatever the parameters.
    still = jax.grad(lambda up, down: clex.log_rates(
        fields, BASE, up, down, jnp.int32(1))[0].sum(), (0, 1))(*params)
    assert not any(x.any() for x in still)


def test_training_reaches_new_parameters(key):
  fresh = clex.init_params(key, Clex(512), D)
  up, down = fresh['clex_up'], fresh['clex_down']
  assert up.shape == (D // 2, D) and down.shape == (D, D // 2)
  gradient = jax.grad(lambda down: clex.log_rates(
      Clex(512), BASE, up, down, jnp.int32(3))[2].sum())(down)
  assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0.1


def test_new_matrices_are_uniform_and_zero(key):
  fresh = clex.init_params(key, Clex(512, width_factor=2), 128)
  up = np.asarray(fresh['clex_up'])
  assert up.shape == (64, 256) and not fresh['clex_down'].any()
  bound = 1 / math.sqrt(2 * 128)
  assert 0.99 * bound < np.abs(up).max() <= bound
  np.testing.assert_allclose(up.std(), bound / math.sqrt(3), rtol=0.02)
  assert abs(up.mean()) < 0.02 * bound


@pytest.mark.slow
def test_a_traced_time_and_several_lengths_are_those_of_a_number(key):
  up, down = _params(key, dtype=jnp.float32)
  fields = Clex(512, largest=5, steps=20)
  whole = clex.log_rates(fields, BASE, up, down, 5)
  assert whole.shape == (5, D // 2)
  traced = jax.jit(lambda t: clex.log_rates(fields, BASE, up, down, t))
  for t in range(1, 6):
    for found in (traced(t), clex.log_rates(fields, BASE, up, down, t)):
      np.testing.assert_allclose(found[:t], whole[:t], rtol=1e-5, atol=1e-5)

  def rates(lengths):
    learned = clex.log_rates_up_to(fields, BASE, up, down, lengths)
    return clex.rates(fields, learned, lengths)

  lengths = jnp.array([[2000, 3], [4 * 512 + 1, 513]])  # t: 4, 1, 5 and 2
  expected = np.exp(whole[np.array([[3, 0], [4, 1]])])
  for found in (rates(lengths), jax.jit(rates)(lengths)):
    np.testing.assert_allclose(found, expected, rtol=1e-4)
  np.testing.assert_allclose(rates(2000), expected[0, 0], rtol=1e-4)


@pytest.mark.parametrize('length, t', [
    (1, 1), (4096, 1), (4097, 2), (8192, 2), (65536, 16), (65537, 16), (10**6, 16)])
def test_the_time_is_the_length_rounded_up(length, t):
  fields = Clex(4096)
  assert clex.time_of(fields, length) == t
  assert jax.jit(lambda n: clex.time_of(fields, n))(length) == t
  assert clex.time_of(fields, jnp.float32(length)) == t


def test_queries_grow_with_the_logarithm_of_the_number_of_keys():
  found = clex.scale(Clex(4096), jnp.array([1, 64, 4096, 65536]))
  np.testing.assert_allclose(found, [0, 0.5, 1, 4 / 3], atol=1e-6)


def _products(jaxpr, times=1):
  """Returns the multiplications of all matrix products, loops counted in full."""
  total = 0
  for op in jaxpr.eqns:
    if op.primitive.name == 'dot_general':
      [(contracted, _), _] = op.params['dimension_numbers']
      left, right = (x.aval for x in op.invars)
      shared = math.prod(left.shape[axis] for axis in contracted)
      total += times * left.size * right.size // shared
    inner = times * op.params.get('length', 1)
    for value in jax.tree.leaves(op.params, is_leaf=lambda x: isinstance(
        x, (core.Jaxpr, core.ClosedJaxpr))):
      if isinstance(value, core.ClosedJaxpr):
        total += _products(value.jaxpr, inner)
  return total


def test_the_equation_has_few_of_the_multiplications_of_a_step_of_llama_2_7b():
  # Less than 0.01 % of those of training. Time is not measured here.
  shape = jax.ShapeDtypeStruct((64, 128), jnp.float32)
  solve = lambda up, down, t: clex.log_rates(Clex(4096), BASE, up, down, t).sum()
  shapes = shape, jax.ShapeDtypeStruct((128, 64), jnp.float32), jax.ShapeDtypeStruct(
      (), jnp.int32)
  forward = _products(jax.make_jaxpr(solve)(*shapes).jaxpr)
  assert forward == 4 * 128**2 * 1500
  both = _products(jax.make_jaxpr(jax.grad(solve, (0, 1)))(*shapes).jaxpr)
  # One sequence of 4,096 tokens, without the products of attention.
  step = 3 * 6.7e9 * 4096
  assert forward < both < 0.0001 * step


def test_positions_of_training_are_a_sorted_sample(key):
  length, largest = 6, 3
  draw = jax.jit(jax.vmap(lambda k: clex.sample(k, length, 6, largest)))
  times, found = map(np.asarray, draw(jax.random.split(key, 6000)))
  assert found.dtype == np.float32 and times.dtype == np.int32
  assert (np.diff(found, axis=1) > 0).all()  # in order, none twice
  np.testing.assert_array_equal(found[:, 0], 0)
  np.testing.assert_array_equal(found[:, -1], length * times - 1)
  np.testing.assert_array_equal(found, np.round(found))
  _, counts = np.unique(times, return_counts=True)
  spread = 5 * math.sqrt(6000 * 1 / 3 * 2 / 3)
  np.testing.assert_allclose(counts, 2000, atol=spread)
  # With t = 1, all places; with t = 2, each of the 210 choices of 4 of 1..10 as likely.
  np.testing.assert_array_equal(found[times == 1], np.tile(
      np.arange(6.0), (counts[0], 1)))
  kinds, often = np.unique(found[times == 2], axis=0, return_counts=True)
  assert len(kinds) == math.comb(10, 4)
  rate = counts[1] / 210
  assert np.square(often - rate).sum() / rate < 210 + 5 * math.sqrt(2 * 210)


def test_positions_beyond_the_original_length_are_divided(key):
  # L = 2 L₀: between the ends, multiples of a half; the largest position is L₀ t − 1.
  for number in range(20):
    t, found = clex.sample(jax.random.fold_in(key, number), 16, 8)
    assert (np.diff(found) >= 0).all() and (np.diff(found[:-1]) > 0).all()
    assert found[0] == 0 and found[-1] == 8 * t - 1
    np.testing.assert_array_equal(2 * found[1:-1], np.round(2 * found[1:-1]))
    assert found[1] >= 0.5 and found[-2] <= 8 * t - 1


def test_positions_of_real_lengths_are_exact(key):
  t, found = clex.sample(key, 4096, 4096)
  assert found.shape == (4096,) and found[-1] == 4096 * t - 1
  assert (np.diff(found) >= 1).all()


@pytest.mark.parametrize('arguments', [(1, 8), (8, 0), (8, 8, 0)])
def test_impossible_samples_are_refused(key, arguments):
  with pytest.raises(ValueError, match='CLEX needs at least 2 tokens'):
    clex.sample(key, *arguments)
