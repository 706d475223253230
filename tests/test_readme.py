"""The Python examples of the README, run as they stand there."""

import re

import jax
import numpy as np
import pytest

from tests.conftest import ROOT
from vvlen.training import ensemble

_EXAMPLES = re.findall(r'```python\n(.*?)```', (ROOT / 'README.md').read_text(), re.S)


@pytest.mark.parametrize('number, name, shape', [
    (0, 'logits', (2, 10)), (0, 'sharper', (2, 10)), (1, 'y', (2, 16, 64)),
])
def test_modules_in_ones_own_code(number, name, shape):
  with jax.numpy_rank_promotion('allow'):  # nnx promotes ranks
    scope = {}
    exec(compile(_EXAMPLES[number], 'README.md', 'exec'), scope)
  assert scope[name].shape == shape
  assert jax.numpy.isfinite(scope[name]).all()


def test_any_problem_with_many_seeds():
  scope = {}
  exec(compile(_EXAMPLES[2], 'README.md', 'exec'), scope)
  # The faster of the two ends nearer, on every seed alike.
  assert scope['test'].num_pairs == 8 * jax.device_count()
  assert scope['test'].ci_high < 0
  # Gradient descent on E[x²] = 1: each step takes 2 · rate off the error.
  start = abs(jax.vmap(lambda key: jax.random.normal(
      ensemble.purpose_key(key, ensemble.INIT)))(scope['keys']) - 2)
  for rate, error in scope['error'].items():
    np.testing.assert_allclose(error, start * (1 - 2 * rate) ** 50, rtol=0.5)


def test_every_example_is_tested():
  assert len(_EXAMPLES) == 3
