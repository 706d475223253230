"""Causal attention, against numpy, PyTorch and its own rows."""

import jax
import numpy as np
import pytest

from vvlen.models.causal_attention import attention_logits_and_weights, causal_attention

# Sequences; tokens; query heads, key heads; width of a head.
B, N, H, K, D = 2, 7, 6, 3, 5
SLOPES = 2.0 ** -np.arange(1, H + 1)


def _exact(queries, keys, values, slopes=None, positions=None):
  """Attention in numpy, float64, one query at a time: logits, weights, output."""
  queries, keys, values = (np.asarray(x, np.float64) for x in (queries, keys, values))
  batch, n, heads, width = queries.shape
  slopes = np.zeros(heads) if slopes is None else np.asarray(slopes, np.float64)
  positions = np.broadcast_to(np.arange(n) if positions is None else positions,
                              (batch, n))
  logits, weights = np.zeros((2, batch, heads, n, n))
  output = np.zeros(queries.shape)
  for b, h, i in np.ndindex(batch, heads, n):
    key_head = h // (heads // keys.shape[2])
    row = keys[b, : i + 1, key_head] @ queries[b, i, h] / np.sqrt(width)
    row -= slopes[h] * (positions[b, i] - positions[b, : i + 1])
    powers = np.exp(row - row.max())
    logits[b, h, i, : i + 1] = row
    weights[b, h, i, : i + 1] = powers / powers.sum()
    output[b, i, h] = weights[b, h, i, : i + 1] @ values[b, : i + 1, key_head]
  return logits, weights, output


def _normal(*shape, dtype=np.float32, seed=0):
  return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def _inputs(n=N, heads=H, key_heads=K, width=D, batch=B, dtype=np.float32):
  """Returns queries, keys and values."""
  return (
      _normal(batch, n, heads, width, dtype=dtype),
      _normal(batch, n, key_heads, width, dtype=dtype, seed=1),
      _normal(batch, n, key_heads, width, dtype=dtype, seed=2),
  )


POSITIONS = {
    'none': None,
    'one_for_all': np.array([0, 1, 2, 10, 11, 12, 13]),
    'of_each': np.array([[0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 2, 3, 4]]),
}


@pytest.mark.parametrize('slopes', [None, SLOPES], ids=['no_bias', 'alibi'])
@pytest.mark.parametrize('positions', POSITIONS)
def test_plain_is_numpy(slopes, positions):
  inputs, positions = _inputs(), POSITIONS[positions]
  bias = dict(slopes=slopes, positions=positions)
  logits, weights, output = _exact(*inputs, **bias)
  found = causal_attention(*inputs, implementation='plain', **bias)
  np.testing.assert_allclose(found, output, rtol=1e-5, atol=1e-6)
  found_logits, found_weights = attention_logits_and_weights(*inputs[:2], **bias)
  np.testing.assert_allclose(found_logits, logits, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(found_weights, weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize('slopes', [None, SLOPES], ids=['no_bias', 'alibi'])
@pytest.mark.parametrize('positions', POSITIONS)
def test_some_queries_give_the_rows_of_all(slopes, positions):
  queries, keys, values = _inputs()
  bias = dict(slopes=slopes, positions=POSITIONS[positions])
  index = np.array([[6, 0, 3], [2, 2, 6]])
  some = np.take_along_axis(queries, index[..., None, None], axis=1)
  found = jax.jit(causal_attention)(some, keys, values, query_index=index, **bias)
  rows = causal_attention(queries, keys, values, **bias)
  rows = np.take_along_axis(np.asarray(rows), index[..., None, None], axis=1)
  np.testing.assert_allclose(found, rows, rtol=1e-5, atol=1e-6)
