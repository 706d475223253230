"""What is refused before a function from logits to weights is trained with."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.test_fixes import ARMS
from vvlen.models.fixes.check import check_weights
from vvlen.models.fixes.tempered import softmax, tempered
from vvlen.models.temperature import adaptive_temperature


@pytest.mark.parametrize('name', ARMS)
def test_those_of_vvlen_pass(name):
  check_weights(ARMS[name][0])


def test_a_temperature_of_attention_passes():
  check_weights(tempered(adaptive_temperature))


def _masked(weights, mask):
  return weights if mask is None else jnp.where(mask, weights, 0.0)


def _one_weight_a_row(logits, mask=None):
  return softmax(logits, mask).sum(-1, keepdims=True)


def _without_the_first_row(logits, mask=None):
  return softmax(logits, mask)[..., 1:, :]


def _without_a_batch_axis(logits, mask=None):
  return softmax(logits, mask)[0]


def _over_rows(logits, mask=None):
  return _masked(jax.nn.softmax(logits, axis=-2), mask)


def _half(logits, mask=None):
  return softmax(logits, mask).astype(jnp.float16)


def _ignoring_the_mask(logits, mask=None):
  return jax.nn.softmax(logits)


def _adding_to_masked_logits(logits, mask=None):
  return _masked(jax.nn.softmax(_masked(logits, mask)), mask)


def _counting_masked_keys(logits, mask=None):
  return _masked(jax.nn.sigmoid(logits - np.log(logits.shape[-1])), mask)


def _overflowing(logits, mask=None):
  powers = _masked(jnp.exp(logits), mask)
  return powers / (1 + powers.sum(-1, keepdims=True))


def _dividing_by_nothing(logits, mask=None):
  count = logits.shape[-1] if mask is None else mask.sum(-1, keepdims=True)
  return _masked(jax.nn.sigmoid(logits) / count, mask)


def _steep_at_zero(logits, mask=None):
  return _masked(jnp.sqrt(jnp.square(logits)), mask)


def _steep_in_its_scalar(logits, mask=None, power=0.0):
  return softmax(logits, mask) + 0 * jnp.sqrt(power)


def _branching(logits, mask=None):
  return softmax(logits, mask) if logits.sum() > 0 else 2 * softmax(logits, mask)


def _needing_a_mask(logits, mask):
  return softmax(logits, mask) * mask.any()


def _of_three(logits, mask, length):
  return softmax(logits, mask)


def _of_one_key(logits, mask=None):
  return softmax(logits, mask) / (logits.shape[-1] - 1)


def _looping(logits, mask=None):
  largest = jax.lax.while_loop(
      lambda x: (x > 1).any(), lambda x: x / 2, jnp.abs(logits))
  return softmax(largest, mask)


def _calling_numpy(logits, mask=None):
  shape = jax.ShapeDtypeStruct(logits.shape, logits.dtype)
  return softmax(jax.pure_callback(np.tanh, shape, logits), mask)


def _of_three_axes(logits, mask=None):
  return softmax(logits - logits.max(2, keepdims=True), mask)


def _by_the_number_of_axes(logits, mask=None):
  return softmax(logits, mask) * logits.ndim


def _by_the_shape_of_the_mask(logits, mask=None):
  whole = mask is None or mask.shape == logits.shape
  return softmax(logits, mask) * (1 if whole else 2)


REFUSED = [
    (_of_three_axes, r'fails under jax.jit for logits .3, 5. and a mask: ValueError'),
    (_by_the_number_of_axes, r'of logits .2, 3, 5. change if they are given as .3, 5.'),
    (_by_the_shape_of_the_mask, r'same for all rows is given as .1, 1, 5.'),
    (_one_weight_a_row, r'axis -1, the keys, has size 1 with a mask, must be 5'),
    (_without_the_first_row, r'axis -2, the second batch axis, has size 2'),
    (_without_a_batch_axis, r'2 axes with a mask, must be the 3'),
    (_over_rows, 'weights depend on other rows'),
    (_half, 'dtype float16'),
    (_ignoring_the_mask, 'masked keys are not exactly 0'),
    (_adding_to_masked_logits, 'depend on how many keys are masked'),
    (_counting_masked_keys, 'depend on how many keys are masked'),
    (_overflowing, 'weights not finite for logits of ±10000'),
    (_dividing_by_nothing, 'gradients of logits not finite for ordinary logits, rows'),
    (_steep_at_zero, 'gradients of logits not finite for equal logits'),
    (_steep_in_its_scalar, 'the gradient of power not finite'),
    (_branching, 'fails under jax.jit for logits .2, 3, 5.* TracerBoolConversionError'),
    (_needing_a_mask, "fails under jax.jit .* no mask: AttributeError"),
    (_of_three, 'must take two arguments'),
    (_of_one_key, 'not finite for a single key|fails under jax.jit .* ZeroDivision'),
    (_looping, 'its gradient fails for ordinary logits: ValueError: Reverse-mode diff'),
    (_calling_numpy, 'its gradient fails for ordinary logits: ValueError: Pure callba'),
]


@pytest.mark.parametrize('function, words', REFUSED, ids=lambda x: getattr(
    x, '__name__', ''))
def test_what_is_refused_is_named_in_one_line(function, words):
  with pytest.raises(ValueError, match=f'weights {function.__name__}: .*{words}') as e:
    check_weights(function)
  assert '\n' not in str(e.value)


@pytest.mark.slow
def test_logits_of_masked_keys_that_leak_are_named():
  def leaking(logits, mask=None):
    weights = softmax(logits, mask)
    if mask is None:
      return weights
    least = jnp.where(mask, 0.0, logits).sum(-1, keepdims=True)
    return weights * jax.nn.sigmoid(least)

  with pytest.raises(ValueError, match='depend on the logits of masked keys'):
    check_weights(leaking)


def test_what_is_no_function_is_refused():
  with pytest.raises(ValueError, match="weights 'sink': not a function"):
    check_weights('sink')
  with pytest.raises(ValueError, match='must take two arguments'):
    check_weights(functools.partial(softmax, mask=None, bias=1.0))
