"""Positional encodings against their definitions, written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vvlen.models import positions


def test_sinusoidal_by_its_definition():
  places, width = np.array([0, 1, 7, 300]), 6
  found = positions.sinusoidal(jnp.array(places), width)
  for row, p in enumerate(places):
    for i in range(width // 2):
      angle = p / 10_000 ** (2 * i / width)
      np.testing.assert_allclose(found[row, 2 * i], np.sin(angle), atol=2e-5)
      np.testing.assert_allclose(found[row, 2 * i + 1], np.cos(angle), atol=2e-5)


@pytest.mark.parametrize('heads, expected', [
    (1, [2**-8]), (2, [2**-4, 2**-8]), (8, [2.0**-k for k in range(1, 9)]),
    # Of 12: those of 8, then every other one of 16.
    (12, [2.0**-k for k in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
])
def test_alibi_slopes(heads, expected):
  np.testing.assert_allclose(positions.alibi_slopes(heads), expected, rtol=1e-12)


def test_rope_turns_planes_by_its_definition(key):
  x = np.asarray(jax.random.normal(key, (2, 3, 1, 4)))
  places = np.array([0, 5, 11])
  found = positions.rotate(jnp.asarray(x), jnp.asarray(places))
  expected = x.copy()
  for m, p in enumerate(places):
    for i, rate in enumerate((1.0, 0.01)):
      turn = np.exp(1j * p * rate)
      plane = (x[:, m, 0, i] + 1j * x[:, m, 0, i + 2]) * turn
      expected[:, m, 0, i], expected[:, m, 0, i + 2] = plane.real, plane.imag
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_rope_products_depend_on_the_distance_alone(key):
  query, other = jax.random.normal(key, (2, 1, 1, 1, 8))

  def product(p, q):
    turned = positions.rotate(query, jnp.array([p])), positions.rotate(
        other, jnp.array([q]))
    return float((turned[0] * turned[1]).sum())

  np.testing.assert_allclose(product(7, 3), product(104, 100), rtol=1e-4)
  assert abs(product(7, 3) - product(7, 4)) > 1e-2


def test_rope_has_positions_of_each_sequence(key):
  x = jax.random.normal(key, (2, 3, 2, 4))
  places = jnp.array([[0, 1, 2], [4, 9, 30]])
  found = positions.rotate(x, places)
  for b in range(2):
    np.testing.assert_allclose(found[b], positions.rotate(x[b], places[b]), atol=1e-6)


def test_rope_of_narrow_inputs_is_computed_wide(key):
  x = jax.random.normal(key, (1, 2, 1, 4)).astype(jnp.bfloat16)
  places = jnp.array([0, 1001])
  found = positions.rotate(x, places)
  assert found.dtype == jnp.bfloat16
  wide = positions.rotate(x.astype(jnp.float32), places)
  np.testing.assert_allclose(found.astype(jnp.float32), wide, atol=0.02)


def test_rope_against_transformers(key):
  llama = pytest.importorskip(
      'transformers.models.llama.modeling_llama',
      reason="compares with transformers: pip install '.[oracle]'")
  torch = pytest.importorskip(
      'torch', reason="compares with PyTorch: pip install '.[oracle]'")
  x = np.asarray(jax.random.normal(key, (1, 5, 2, 8)))
  places = np.arange(5)
  config = llama.LlamaConfig(hidden_size=16, num_attention_heads=2)
  heads_first = torch.tensor(x).transpose(1, 2)
  embedding = llama.LlamaRotaryEmbedding(config)
  cos, sin = embedding(heads_first, torch.tensor(places)[None])
  expected, _ = llama.apply_rotary_pos_emb(heads_first, heads_first, cos, sin)
  np.testing.assert_allclose(
      positions.rotate(jnp.asarray(x), jnp.asarray(places)),
      expected.transpose(1, 2).numpy(), atol=1e-5,
  )


def test_alibi_against_transformers():
  bloom = pytest.importorskip(
      'transformers.models.bloom.modeling_bloom',
      reason="compares with transformers: pip install '.[oracle]'")
  torch = pytest.importorskip(
      'torch', reason="compares with PyTorch: pip install '.[oracle]'")
  for heads in (1, 4, 6, 12, 40):
    # Theirs is s · (place of the key): by row that of s · (difference of places).
    bias = bloom.build_alibi_tensor(torch.ones(1, 3), heads, torch.float32)[:, 0]
    np.testing.assert_allclose(
        positions.alibi_slopes(heads)[:, None] * np.arange(3), bias, rtol=1e-6)


def test_random_positions_are_a_sorted_sample(key):
  draw = jax.jit(jax.vmap(lambda k: positions.random_positions(k, 3, 6)))
  found = np.asarray(draw(jax.random.split(key, 4000)))
  assert (np.diff(found, axis=1) > 0).all()
  assert found.min() == 0 and found.max() == 5
  # Each of the 20 subsets is as likely.
  _, counts = np.unique(found, axis=0, return_counts=True)
  assert len(counts) == 20
  np.testing.assert_allclose(counts / 4000, 0.05, atol=5 * (0.05 * 0.95 / 4000) ** 0.5)


@pytest.mark.parametrize('call', [
    lambda: positions.sinusoidal(jnp.arange(3), 5),
    lambda: positions.rotate(jnp.ones((2, 1, 3)), jnp.arange(2)),
    lambda: positions.alibi_slopes(0),
    lambda: positions.random_positions(jax.random.key(0), 7, 6),
])
def test_bad_input(call):
  with pytest.raises(ValueError):
    call()
