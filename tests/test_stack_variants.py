"""Layers with one change, against numpy and against the layer without it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from vvlen.models.causal_stack import causal_layer
from vvlen.models.stack_variants import (
    Heads,
    heads_layer,
    random_heads,
    rms_norm_layer,
    rotary_layer,
    rotate,
    unmasked_layer,
)

N, D, B = 5, 12, 3


@pytest.fixture
def x():
  return np.random.default_rng(0).normal(1.0, 2.0, (N, D, B))


@pytest.fixture(autouse=True)
def _float64():
  with jax.enable_x64(True):
    yield


def _standardized(x):
  return (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)


def _attend(q, k, v, causal=True):
  """Attention of one input in numpy: output, scores, weights."""
  scores = q @ k.T / np.sqrt(q.shape[1])
  seen = np.tri(N, dtype=bool)
  weights = special.softmax(np.where(seen, scores, -np.inf) if causal else scores, 1)
  return weights @ v, np.where(seen, scores, 0), weights


def _agree(layer, expected):
  """Compares a layer with [(output, scores, weights)] of each input of the batch."""
  for found, each in zip(layer, zip(*expected, strict=True), strict=True):
    np.testing.assert_allclose(found, np.stack(each, axis=-1), rtol=1e-12, atol=1e-12)


def _with_residual(x, residual, attended):
  return [
      (out + residual * x[..., b], *rest) for b, (out, *rest) in enumerate(attended)
  ]


def test_rms_norm_is_layer_norm_of_rows_without_mean_and_keeps_the_mean_of_others(x):
  centred = x - x.mean(1, keepdims=True)
  for found, expected in zip(
      rms_norm_layer(jnp.asarray(centred), 0.5), causal_layer(centred, residual=0.5),
      strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
  z = x / np.sqrt((x**2).mean(1, keepdims=True))
  _agree(rms_norm_layer(jnp.asarray(x), 0.5), _with_residual(
      x, 0.5, [_attend(*3 * [z[..., b]]) for b in range(B)]))


def test_unmasked_attends_to_later_tokens_too(x):
  z = _standardized(x)
  layer = unmasked_layer(jnp.asarray(x), 0.5)
  _agree(layer, _with_residual(
      x, 0.5, [_attend(*3 * [z[..., b]], causal=False) for b in range(B)]))
  assert (np.asarray(layer.weights) > 0).all()


def test_unmasked_treats_tokens_alike_in_any_order(x):
  order = np.array([3, 0, 4, 1, 2])
  output = np.asarray(unmasked_layer(jnp.asarray(x), 0.5).output)
  permuted = unmasked_layer(jnp.asarray(x[order]), 0.5).output
  np.testing.assert_allclose(permuted, output[order], rtol=1e-12)


@pytest.mark.parametrize('tied', [True, False])
def test_heads_are_projections_apart_that_are_added_up(key, x, tied):
  heads = random_heads(key, D, 3, tied, jnp.float64)
  assert {w.shape for w in heads} == {(D, 3, 4)}
  for w in heads:
    flat = np.asarray(w).reshape(D, D)
    np.testing.assert_allclose(flat @ flat.T, np.eye(D), atol=1e-12)
  assert np.array_equal(heads.query, heads.key) == tied
  z = _standardized(x)
  layer = heads_layer(jnp.asarray(x), 0.5, heads)
  assert layer.scores.shape == (N, N, 3, B)
  for b in range(B):
    output = 0.5 * x[..., b]
    for h in range(3):
      query, key_, value = (np.asarray(w)[:, h] for w in heads)
      row = z[..., b]
      out, scores, weights = _attend(row @ query, row @ key_, row @ value)
      output = output + out @ value.T
      np.testing.assert_allclose(layer.scores[:, :, h, b], scores, atol=1e-12)
      np.testing.assert_allclose(layer.weights[:, :, h, b], weights, atol=1e-12)
    np.testing.assert_allclose(layer.output[..., b], output, atol=1e-12)


def test_one_tied_head_is_the_papers_layer(key, x):
  layer = heads_layer(jnp.asarray(x), 0.5, random_heads(key, D, 1, True, jnp.float64))
  # Its values are turned with it, back to where they were.
  query, _, _ = random_heads(key, D, 1, True, jnp.float64)
  turned = heads_layer(jnp.asarray(x), 0.5, Heads(query, query, query))
  plain = causal_layer(jnp.asarray(x), residual=0.5)
  for found in (layer, turned):
    np.testing.assert_allclose(found.output, plain.output, atol=1e-12)
    np.testing.assert_allclose(found.scores[:, :, 0], plain.scores, atol=1e-12)


def test_rotation_keeps_norms_and_tells_distances_alone(x):
  same = np.repeat(x[:1], N, axis=0)
  turned = np.asarray(rotate(jnp.asarray(same), 100.0))
  np.testing.assert_allclose(
      np.linalg.norm(turned, axis=1), np.linalg.norm(same, axis=1), rtol=1e-12)
  products = np.einsum('idb,jdb->ijb', turned, turned)
  for distance in range(N):
    along = np.stack([products[i, i - distance] for i in range(distance, N)])
    np.testing.assert_allclose(along, along[:1].repeat(len(along), 0), rtol=1e-10)
  # Written out: features k and k + d/2 of position i, by i · 100^(−2k/d).
  angle = np.arange(N)[:, None] * 100.0 ** (-np.arange(D // 2) / (D // 2))
  pair = (x[:, : D // 2] + 1j * x[:, D // 2 :]) * np.exp(1j * angle)[..., None]
  np.testing.assert_allclose(
      rotate(jnp.asarray(x), 100.0), np.concatenate([pair.real, pair.imag], 1),
      rtol=1e-12)


@pytest.mark.parametrize('causal', [True, False])
def test_rotary_positions_turn_queries_and_keys_but_not_values(x, causal):
  z = _standardized(x)
  turned = np.asarray(rotate(jnp.asarray(z), 100.0))
  _agree(
      rotary_layer(jnp.asarray(x), 0.5, 100.0, causal), _with_residual(x, 0.5, [
          _attend(turned[..., b], turned[..., b], z[..., b], causal)
          for b in range(B)]))


def test_bad_sizes_are_named(key, x):
  with pytest.raises(ValueError, match='5 heads do not divide a width of 12'):
    random_heads(key, D, 5, True)
  with pytest.raises(ValueError, match='need an even width: 11'):
    rotary_layer(jnp.asarray(x[:, :11]), 0.0, 100.0)
