"""Adaptive temperature against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vvlen.models import temperature
from vvlen.models.attention import attend
from vvlen.models.temperature import adaptive_temperature, PUBLISHED


@jax.jit
def _jitted(num_items, coefficients):
  mask = jnp.arange(2**14) < num_items
  return adaptive_temperature(jnp.zeros(2**14), mask, coefficients)[0]


def _beta(num_items, coefficients=PUBLISHED):
  """Returns β of equal attention to some items, the rest being padding."""
  return float(_jitted(num_items, coefficients))


# n equal logits have the entropy ln n. For n = 16, H = 2.772589:
#   −.037·59.093790 + .481·21.313577 − 2.3·7.687248 + 4.917·2.772589 − 1.791
#   = −2.186470 + 10.251831 − 17.680671 + 13.632819 − 1.791 = 2.226509
# For n = 3, H = 1.098612:
#   −.053899 + .637791 − 2.775983 + 5.401877 − 1.791 = 1.418786
# For n = 2, H = 0.693147 the polynomial is 0.663801, which is below 1.
@pytest.mark.parametrize('num_items, beta', [(2, 1.0), (3, 1.418786), (16, 2.226509)])
def test_beta_of_equally_attended_items(num_items, beta):
  np.testing.assert_allclose(_beta(num_items), beta, atol=1e-5)


def test_beta_peaks_where_82_items_are_attended():
  # H = 4.412; the polynomial is 2.421 there.
  np.testing.assert_allclose(_beta(82), 2.421, atol=5e-4)
  assert _beta(70) < _beta(82) > _beta(96)


def test_beyond_382_equally_attended_items_beta_is_1():
  assert _beta(381) > 1
  assert [_beta(n) for n in (384, 2**10, 2**14)] == [1.0, 1.0, 1.0]


def test_below_half_a_nat_beta_is_1():
  # H(.19) = .486 and H(.21) = .514; the polynomial is 3 everywhere.
  logits = jnp.log(jnp.array([[0.19, 0.81], [0.21, 0.79]]))
  beta = adaptive_temperature(logits, coefficients=(0, 0, 0, 0, 3))
  np.testing.assert_array_equal(beta, [[1.0], [3.0]])


def test_coefficients_are_those_of_the_entropy_highest_degree_first():
  # With 5 equal items the entropy is ln 5 = 1.609438.
  beta = _beta(5, coefficients=(2.0, 0.0, 1.0))
  np.testing.assert_allclose(beta, 2 * 1.609438**2 + 1, rtol=1e-5)


def test_padding_does_not_enter():
  logits = jnp.array([0.3, -0.2, 1.1, 0.0, 0.7])
  alone = adaptive_temperature(logits)
  assert alone > 1
  for rubbish in (0.0, 50.0, -1e30):
    padded = jnp.concatenate([logits, jnp.full(8, rubbish)])
    np.testing.assert_allclose(
        adaptive_temperature(padded, jnp.arange(13) < 5), alone, rtol=1e-6
    )


def test_a_row_without_keys_has_beta_1_and_attends_to_nothing():
  logits = jnp.zeros((2, 7))
  mask = jnp.array([[True] * 7, [False] * 7])
  beta = adaptive_temperature(logits, mask)
  assert beta.shape == (2, 1)
  assert beta[0, 0] > 1 and beta[1, 0] == 1
  output, weights = attend(
      jnp.ones((2, 3)), jnp.ones((2, 7, 3)), jnp.ones((2, 7, 5)), mask,
      adaptive_temperature,
  )
  np.testing.assert_allclose(output, [[1.0] * 5, [0.0] * 5], rtol=1e-6)
  np.testing.assert_array_equal(weights[1], np.zeros(7))


def test_attention_is_sharpened_by_beta():
  # Scaled logits (1, 0, 0): weights e^β / (e^β + 2), β from the plain entropy.
  keys = jnp.eye(3)
  _, weights = attend(3**0.5 * keys[0], keys, keys, None, adaptive_temperature)
  p = np.exp([1.0, 0.0, 0.0]) / (np.e + 2)
  beta = np.polyval(PUBLISHED, -np.sum(p * np.log(p)))
  assert beta > 1
  np.testing.assert_allclose(weights[0], 1 / (1 + 2 * np.exp(-beta)), rtol=1e-5)


def test_entropy_of_certain_and_of_equal_weights():
  weights = jnp.array([[1.0, 0.0, 0.0, 0.0], [0.25] * 4, [0.0] * 4])
  np.testing.assert_allclose(
      temperature.attention_entropy(weights), [0.0, np.log(4), 0.0], atol=1e-6
  )


def test_fit_recovers_a_quartic():
  entropy = np.linspace(0.6, 6.0, 53)
  fitted = temperature.fit(entropy, np.polyval(PUBLISHED, entropy))
  assert fitted.dtype == np.float64
  np.testing.assert_allclose(fitted, PUBLISHED, rtol=1e-8)


def test_fit_leaves_out_rows_where_beta_is_1_anyway():
  entropy = np.linspace(0.6, 6.0, 53)
  beta = np.polyval(PUBLISHED, entropy)
  fitted = temperature.fit(
      np.append(entropy, [0.0, 0.3, 0.5, 3.0]), np.append(beta, [16, 9, 8, np.nan])
  )
  np.testing.assert_allclose(fitted, PUBLISHED, rtol=1e-8)


@pytest.mark.parametrize('entropy', [
    [], [2.0, 3.0, 4.0, 5.0], [3.0] * 11, [0.1, 0.2, 0.3, 0.4, 0.45, 0.5],
])
def test_fit_of_too_little_is_the_constant_1(entropy):
  beta = np.linspace(2.0, 3.0, len(entropy))
  np.testing.assert_array_equal(temperature.fit(entropy, beta), [0, 0, 0, 0, 1])


def test_fit_is_least_squares():
  # Of a constant, the least-squares fit is the mean.
  fitted = temperature.fit([1.0, 2.0, 3.0], [2.0, 3.0, 7.0], degree=0)
  np.testing.assert_allclose(fitted, [4.0], rtol=1e-12)


def test_bfloat16_logits_are_computed_in_float32():
  logits = jnp.linspace(0.0, 8.0, 512).astype(jnp.bfloat16)
  beta = adaptive_temperature(logits)
  assert beta.dtype == jnp.float32
  np.testing.assert_allclose(beta, adaptive_temperature(logits.astype(jnp.float32)))
