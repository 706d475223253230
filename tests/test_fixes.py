"""Attention weights for longer inputs, against their published equations in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vvlen.models.fixes.entmax import entmax15
from vvlen.models.fixes.l2_softmax import l2_softmax
from vvlen.models.fixes.laws import log_n, power, sqrt_log_n, ssmax
from vvlen.models.fixes.learned import learned
from vvlen.models.fixes.sigmoid import sigmoid
from vvlen.models.fixes.sink import sink
from vvlen.models.fixes.tempered import softmax, tempered
from vvlen.models.temperature import adaptive_temperature

LONGEST = 16
LOGITS = np.random.default_rng(0).normal(size=(2, 4, 6))
MASK = np.arange(6) < np.array([[6, 5, 4, 3], [2, 1, 6, 0]])[..., None]


def _softmax(z):
  return np.exp(z) / np.exp(z).sum()


def _by_bisection(z):
  """Entmax-1.5 of a row, τ by 200 halvings."""
  low, high = z.max() / 2 - 1, z.max() / 2
  for _ in range(200):
    middle = (low + high) / 2
    more = (np.maximum(z / 2 - middle, 0) ** 2).sum() > 1
    low, high = (middle, high) if more else (low, middle)
  return np.maximum(z / 2 - low, 0) ** 2


# name: (function, scalars, the equation for a row z without masked keys)
ARMS = {
    'softmax': (softmax, {}, _softmax),
    'log_n': (tempered(log_n(LONGEST)), {},
              lambda z: _softmax(np.log(len(z)) / np.log(16) * z)),
    'log_n_least': (tempered(log_n(4, least=1.0)), {},
                    lambda z: _softmax(max(np.log(len(z)) / np.log(4), 1) * z)),
    'ssmax': (tempered(ssmax(LONGEST)), {'s': 0.7},
              lambda z, s: _softmax(s * np.log(len(z)) * z)),
    'ssmax_shifted': (tempered(ssmax(LONGEST, shift=2)), {'s': 0.7},
                      lambda z, s: _softmax(s * np.log(len(z) + 2) * z)),
    'sqrt_log_n': (tempered(sqrt_log_n(LONGEST)), {'s': 1.3},
                   lambda z, s: _softmax(s * np.sqrt(2 * np.log(len(z))) * z)),
    'power': (tempered(power(LONGEST)), {'p': 0.3},
              lambda z, p: _softmax((len(z) / 16) ** p * z)),
    'linear': (tempered(functools.partial(power(10.5), p=1)), {},
               lambda z: _softmax(len(z) / 10.5 * z)),
    'entmax15': (entmax15, {}, _by_bisection),
    'l2_softmax': (l2_softmax, {}, lambda z: np.exp(z) / np.linalg.norm(np.exp(z))),
    'sink': (sink, {'s': 0.4}, lambda z, s: np.exp(z) / (np.exp(s) + np.exp(z).sum())),
    'sigmoid': (sigmoid, {'b': 0.3},
                lambda z, b: 1 / (1 + np.exp(-(z + b - np.log(len(z)))))),
    'power_entmax15': (tempered(power(LONGEST), entmax15), {'p': -0.8},
                       lambda z, p: _by_bisection((len(z) / 16) ** p * z)),
    'ssmax_sigmoid': (
        tempered(ssmax(LONGEST), sigmoid), {'s': 0.7, 'b': 0.3},
        lambda z, s, b: 1 / (1 + np.exp(-(s * np.log(len(z)) * z + b)) * len(z))),
}
every_arm = pytest.mark.parametrize(
    'function, scalars, equation', ARMS.values(), ids=list(ARMS))


def _rows(equation, scalars, logits, mask):
  """The equation at the keys of each row, 0 elsewhere."""
  weights = np.zeros_like(logits)
  for place in np.ndindex(logits.shape[:-1]):
    if mask[place].any():
      weights[place][mask[place]] = equation(logits[place][mask[place]], **scalars)
  return weights


@every_arm
def test_weights_are_the_published_equation(function, scalars, equation):
  assert set(learned(function)) == set(scalars)
  with jax.enable_x64(True):
    for mask in (MASK, None, MASK[1, 0]):
      full = np.broadcast_to(True if mask is None else mask, LOGITS.shape)
      found = function(jnp.array(LOGITS), mask, **scalars)
      assert found.dtype == jnp.float64
      np.testing.assert_array_equal(np.asarray(found)[~full], 0)
      np.testing.assert_allclose(
          found, _rows(equation, scalars, LOGITS, full), rtol=1e-12, atol=1e-14)


@every_arm
def test_gradients_are_differences_of_the_equation(function, scalars, equation):
  towards = np.cos(np.arange(LOGITS.size)).reshape(LOGITS.shape)
  total = lambda scalars, logits: (
      _rows(equation, scalars, logits, MASK) * towards).sum()
  with jax.enable_x64(True):
    of_scalars, of_logits = jax.jit(jax.grad(
        lambda scalars, logits: (function(logits, MASK, **scalars) * towards).sum(),
        (0, 1)))({name: np.float64(x) for name, x in scalars.items()}, LOGITS)
  step = 1e-6
  for name, start in scalars.items():
    ends = [total(scalars | {name: start + x}, LOGITS) for x in (-step, step)]
    np.testing.assert_allclose(of_scalars[name], np.diff(ends)[0] / (2 * step),
                               rtol=1e-6, atol=1e-8)
  expected = np.zeros_like(LOGITS)
  for place in np.argwhere(MASK):
    move = np.zeros_like(LOGITS)
    move[tuple(place)] = step
    expected[tuple(place)] = total(scalars, LOGITS + move) - total(
        scalars, LOGITS - move)
  np.testing.assert_allclose(of_logits, expected / (2 * step), rtol=1e-6, atol=1e-8)


@every_arm
def test_equal_logits_have_equal_weights_and_gradients(function, scalars, equation):
  logits = jnp.array([0.3, 1.0, 0.3, 1.0, -5.0, 1.0])
  weights, pull = jax.vjp(lambda z: function(z, **scalars), logits)
  [gradient] = pull(jnp.array([1.0, 2, 1, 2, 3, 2]))
  for x in map(np.asarray, (weights, gradient)):
    assert np.isfinite(x).all() and x[0] == x[2] and x[1] == x[3] == x[5]


def test_a_single_key():
  logits = jnp.array([[-3.0], [7.0]])
  for name in ('softmax', 'log_n', 'ssmax', 'power', 'entmax15', 'l2_softmax'):
    function, scalars, _ = ARMS[name]
    np.testing.assert_allclose(function(logits, **scalars), 1.0, rtol=1e-6)
  np.testing.assert_allclose(sink(logits, s=7.0)[1], 0.5)
  np.testing.assert_allclose(sigmoid(logits, b=3.0)[0], 0.5)


@pytest.mark.slow
def test_ssmax_of_one_key_has_beta_zero_unless_n_is_shifted():
  logits, mask = jnp.array([[2.0, 9.0]]), np.array([[True, False]])
  for shift, beta in ((0, 0.0), (1, 0.5 * np.log(2)), (2, 0.5 * np.log(3))):
    np.testing.assert_allclose(ssmax(16, shift)(logits, mask, s=0.5), [[beta]], 1e-6)
  weights = lambda s: tempered(ssmax(16))(logits, mask, s=s)
  np.testing.assert_array_equal(weights(0.5), [[1.0, 0.0]])
  np.testing.assert_array_equal(jax.jacobian(weights)(0.5), [[0.0, 0.0]])


@pytest.mark.parametrize('scale, lead', [(0.03, 0), (1.0, 0), (30.0, 0), (0.02, 1.9)])
def test_entmax_of_many_keys_is_exact_in_float32(scale, lead):
  # Where one key leads all others by nearly 2, sums of squares are large and cancel.
  logits = scale * np.random.default_rng(1).normal(size=16384).astype(np.float32)
  logits[0] += lead
  found = np.asarray(entmax15(jnp.array(logits)), np.float64)
  expected = _by_bisection(logits.astype(np.float64))
  np.testing.assert_allclose(found, expected, atol=1e-6 * max(scale, 1))
  assert abs(found.sum() - 1) < 1e-5


def test_a_largest_logit_that_leads_by_two_has_all_weight():
  found = entmax15(jnp.array([5.0, 3.0, 2.9, -1e30]))
  np.testing.assert_array_equal(found, [1, 0, 0, 0])
  assert (np.asarray(entmax15(jnp.array([5.0, 3.1]))) > 0).all()


@pytest.mark.parametrize('law', [log_n(16), ssmax(16), sqrt_log_n(16), power(16),
                                 ssmax(16, 2), log_n(16, shift=1)])
def test_laws_start_with_beta_one_at_the_longest_training_length(law):
  np.testing.assert_allclose(law(jnp.ones((2, 16))), np.ones((2, 1)), rtol=1e-6)
  mask = np.arange(40) < np.array([[16], [0]])  # masked keys do not count
  beta = np.asarray(law(jnp.ones((2, 40)), mask))
  np.testing.assert_allclose(beta[0], 1, rtol=1e-6)
  assert np.isfinite(beta[1])


def test_defaults_that_are_floats_are_learned_and_others_are_not():
  assert learned(ssmax(16)) == {'s': pytest.approx(1 / np.log(16))}
  assert learned(sqrt_log_n(16)) == {'s': pytest.approx(1 / np.sqrt(2 * np.log(16)))}
  assert learned(power(16)) == {'p': 0.0}
  assert learned(sink) == {'s': 0.0} and learned(sigmoid) == {'b': 0.0}
  assert learned(softmax) == learned(entmax15) == learned(log_n(16)) == {}
  assert learned(functools.partial(sink, s=2.5)) == {'s': 2.5}
  assert learned(functools.partial(sink, s=2)) == {}
  assert learned(tempered(power(16), sink)) == {'p': 0.0, 's': 0.0}
  assert learned(tempered(adaptive_temperature)) == {}


def test_a_name_that_two_would_learn_is_refused():
  with pytest.raises(ValueError, match='both learn s'):
    tempered(ssmax(16), sink)


@pytest.mark.parametrize('make, words', [
    (lambda: ssmax(1), '1, 0'), (lambda: log_n(16, shift=-1), '16, -1'),
    (lambda: sqrt_log_n(0.5), '0.5'), (lambda: power(0), 'positive: 0'),
])
def test_impossible_lengths_are_named(make, words):
  with pytest.raises(ValueError, match=words):
    make()


def test_seeds_may_have_scalars_of_their_own():
  start = np.float32([-1.0, 0.0, 2.0])
  together = jax.vmap(lambda s: sink(jnp.float32(LOGITS), MASK, s=s))(start)
  for s, weights in zip(start, together, strict=True):
    np.testing.assert_allclose(weights, sink(jnp.float32(LOGITS), MASK, s=s), rtol=1e-5)


@pytest.mark.slow
def test_bfloat16_logits_give_float32_weights():
  narrow = jnp.array(LOGITS, jnp.bfloat16)
  for function, scalars, _ in ARMS.values():
    weights = function(narrow, MASK, **scalars)
    assert weights.dtype == jnp.float32
    exact = function(narrow.astype(jnp.float32), MASK, **scalars)
    np.testing.assert_allclose(weights, exact, rtol=1e-6)
