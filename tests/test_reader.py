"""Readers of outputs whose readable information is known; covariances that match."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, optimize

from vvlen.evaluation.retriever.axes import (
    match_covariance,
    principal_axes,
    WEAKEST,
    whiten,
)
from vvlen.evaluation.retriever.reader import read, refit

_CLASSES = 4


def _outputs(count, seed, told=3.0, scales=(1.0, 1.0), rotation=None, width=12):
  """Draws outputs of `width` components, and classes that the first two tell of.

  Args:
    count: how many.
    seed: of the draw.
    told: distance of the classes' means from the middle, in deviations; 0: nothing.
    scales: of the components that tell of the class, and of the others.
    rotation: what the components are turned by.
    width: d.
  """
  rng = np.random.default_rng(seed)
  target = rng.integers(_CLASSES, size=count)
  angle = 2 * np.pi * target / _CLASSES
  output = rng.normal(size=(count, width))
  output[:, :2] += told * np.stack([np.cos(angle), np.sin(angle)], axis=1)
  output[:, :2] *= scales[0]
  output[:, 2:] *= scales[1]
  if rotation is not None:
    output = output @ rotation
  return jnp.asarray(output + 5.0, jnp.float32), jnp.asarray(target)


@functools.partial(jax.jit, static_argnames='weakest')
def _refit(fit, select, weakest=WEAKEST):
  return refit(*fit, *select, _CLASSES, weakest)


def _accuracy(weakest=WEAKEST, **how):
  reader = _refit(_outputs(2048, 0, **how), _outputs(512, 1, **how), weakest=weakest)
  output, target = _outputs(4096, 2, **how)
  return float((read(reader, output).argmax(-1) == target).mean())


# That of the best reader: nearer to the mean of the class than to its two neighbours.
_BEST = 0.966


def test_all_that_can_be_read_is_read():
  assert _accuracy() == pytest.approx(_BEST, abs=0.01)
  assert _accuracy(told=8.0) == 1.0


def test_where_nothing_can_be_read_the_reader_guesses():
  assert _accuracy(told=0.0) == pytest.approx(1 / _CLASSES, abs=0.03)


@pytest.mark.slow
def test_what_is_turned_or_scaled_is_read_as_well():
  rotation = linalg.qr(np.random.default_rng(3).normal(size=(12, 12)))[0]
  assert _accuracy(rotation=rotation) == pytest.approx(_BEST, abs=0.01)
  # What tells of the class varies 3,000 times less than what does not.
  weak = dict(rotation=rotation, scales=(3e-4, 1.0))
  assert _accuracy(**weak) == pytest.approx(_BEST, abs=0.01)
  # Strong axes alone tell nothing then.
  assert _accuracy(weakest=1e-2, **weak) == pytest.approx(1 / _CLASSES, abs=0.03)


@pytest.mark.slow
def test_the_reader_has_the_least_penalized_loss():
  fit, select = _outputs(600, 0), _outputs(200, 1)
  penalty = 1e-2
  reader = jax.jit(lambda: refit(*fit, *select, _CLASSES, WEAKEST, (penalty,)))()
  output, target = (np.asarray(x) for x in fit)
  centred = output.astype(float) - output.mean(0)
  _, s, axes = linalg.svd(centred, full_matrices=False)
  white = centred @ axes.T / s * len(output) ** 0.5

  def objective(weights):
    kernel = weights[:-_CLASSES].reshape(-1, _CLASSES)
    logits = white @ kernel + weights[-_CLASSES:]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(target)), target]
    return losses.mean() + penalty / 2 * (kernel**2).sum()

  found = optimize.minimize(objective, np.zeros(13 * _CLASSES), method='BFGS')
  logits = np.asarray(read(reader, jnp.asarray(output)), float)
  kernel = found.x[:-_CLASSES].reshape(-1, _CLASSES)
  expected = white @ kernel + found.x[-_CLASSES:]
  centre = lambda x: x - x.mean(1, keepdims=True)
  np.testing.assert_allclose(centre(logits), centre(expected), atol=5e-3)


@pytest.mark.slow
def test_the_penalty_is_chosen_on_other_sequences():
  """With few sequences to fit to, the largest penalty reads best elsewhere."""
  fit, select = _outputs(40, 0, told=1.0), _outputs(4096, 1, told=1.0)
  penalties = (1e-6, 1.0)
  chosen = refit(*fit, *select, _CLASSES, WEAKEST, penalties)
  own = refit(*fit, *fit, _CLASSES, WEAKEST, penalties)
  size = lambda reader: float(jnp.linalg.norm(reader.kernel))
  assert size(own) > 10 * size(chosen)


def test_whitened_outputs_are_uncorrelated():
  rotation = linalg.qr(np.random.default_rng(3).normal(size=(12, 12)))[0]
  output, _ = _outputs(2048, 0, scales=(1e-3, 1.0), rotation=rotation)
  white = np.asarray(whiten(output, principal_axes(output)), float)
  np.testing.assert_allclose(np.cov(white.T, ddof=0), np.eye(12), atol=2e-3)
  np.testing.assert_allclose(white.mean(0), 0, atol=1e-3)
  strong = principal_axes(output, 1e-2)
  assert int((strong.deviation > 0).sum()) == 10
  assert float(abs(whiten(output, strong)[:, 10:]).max()) == 0


def test_the_covariance_becomes_that_of_training():
  rng = np.random.default_rng(0)
  draw = lambda count: rng.normal(size=(count, 6)) @ rng.normal(size=(6, 6))
  now = jnp.asarray(draw(500) + 3, jnp.float32)
  then = jnp.asarray(draw(400), jnp.float32)
  changed = match_covariance(now, principal_axes(now), principal_axes(then))
  np.testing.assert_allclose(changed.mean(0), then.mean(0), atol=1e-4)
  np.testing.assert_allclose(np.cov(changed.T, ddof=0), np.cov(then.T, ddof=0),
                             rtol=1e-3, atol=1e-3)
  root = lambda x: linalg.sqrtm(np.cov(np.asarray(x, float).T, ddof=0)).real
  centred = np.asarray(now) - np.asarray(now).mean(0)
  expected = centred @ linalg.inv(root(now)) @ root(then) + np.asarray(then).mean(0)
  np.testing.assert_allclose(changed, expected, rtol=1e-2, atol=1e-2)
  same = match_covariance(now, principal_axes(now), principal_axes(now))
  np.testing.assert_allclose(same, now, rtol=1e-3, atol=1e-3)
