"""Orders of scores, counted one triple at a time, and statistics of logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vvlen.evaluation.recency import recency_of_logits
from vvlen.theory.ordering import order

_order, _of_logits = jax.jit(order), jax.jit(recency_of_logits)
# Shares are float32.
_CLOSE = dict(rtol=1e-6, atol=1e-7)


def _exact(scores, seen=None):
  """Counts the triples k < j ≤ i of one matrix [m, n]: the two shares."""
  num_queries, n = scores.shape
  seen = np.ones((num_queries, n), bool) if seen is None else seen
  rising, triples, violations, all_triples = 0, 0, 0, 0
  for row in range(num_queries):
    i = n - num_queries + row
    for j in range(i + 1):
      for k in range(j):
        if seen[row, j] and seen[row, k]:
          violations += scores[row, k] >= scores[row, j]
          all_triples += 1
          if j < i:
            rising += scores[row, j] > scores[row, k]
            triples += 1
  share = lambda count, of: count / of if of else np.nan
  return share(rising, triples), share(violations, all_triples)


def _scores(*shape, ties):
  rng = np.random.default_rng([*shape, ties])
  # Of four values many are equal.
  scores = rng.integers(4, size=shape) if ties else rng.normal(size=shape)
  return scores.astype(np.float32)


# Up to 16 tokens comparisons are written out, beyond and with masks they are a loop.
@pytest.mark.parametrize('ties', [False, True], ids=['distinct', 'ties'])
@pytest.mark.parametrize('n', [2, 3, 7, 16, 17, 24])
def test_shares_are_those_of_a_count_of_all_triples(n, ties):
  scores = _scores(n, n, 3, ties=ties)
  expected = np.transpose([_exact(scores[..., b]) for b in range(3)])
  np.testing.assert_allclose(_order(scores), expected, **_CLOSE)
  if n in (2, 7):
    seen = np.ones_like(scores, bool)
    np.testing.assert_allclose(_order(scores, seen), expected, **_CLOSE)


@pytest.mark.parametrize('ties', [False, True], ids=['distinct', 'ties'])
@pytest.mark.parametrize('m, n', [(1, 1), (3, 7), (7, 7), (5, 19)])
def test_masked_keys_are_in_no_triple(m, n, ties):
  scores = _scores(m, n, 2, 5, ties=ties)
  seen = np.random.default_rng(n).random(scores.shape) < 0.6
  seen[..., 0, 0] = False
  result = _order(scores, seen)
  assert result.recency_probability.shape == result.violation_rate.shape == (2, 5)
  assert {x.dtype for x in result} == {jnp.dtype('float32')}
  for b in np.ndindex(2, 5):
    expected = _exact(scores[:, :, *b], seen[:, :, *b])
    found = [share[b] for share in result]
    np.testing.assert_allclose(found, expected, **_CLOSE)


@pytest.mark.parametrize('m, n', [(1, 2), (3, 7), (2, 19)])
def test_fewer_queries_are_the_last(m, n):
  scores = _scores(m, n, ties=False)
  np.testing.assert_allclose(_order(scores), _exact(scores), **_CLOSE)
  whole = np.concatenate([_scores(n - m, n, ties=True), scores])
  seen = np.broadcast_to(np.arange(n)[:, None] >= n - m, (n, n))
  np.testing.assert_array_equal(_order(whole, seen), _order(scores))


@pytest.mark.parametrize('n', [3, 29])
def test_perfect_reversed_and_absent_order(n):
  rising = np.broadcast_to(np.arange(n, dtype=np.float32), (n, n))
  np.testing.assert_allclose(_order(rising), (1, 0), **_CLOSE)
  np.testing.assert_array_equal(_order(-rising), (0, 1))
  np.testing.assert_array_equal(_order(0 * rising), (0, 1))


def test_the_diagonal_is_in_the_violation_rate_alone():
  scores = np.array([[9, 0, 0], [1, 0, 0], [1, 2, 0]], np.float32)
  # k < j < i: (1, 2, 3) rises. k < j = i: all three violate.
  np.testing.assert_allclose(_order(scores), (1, 0.75), **_CLOSE)


def test_what_stands_after_the_query_does_not_count():
  for n in (7, 19):
    scores = _scores(n, n, ties=False)
    after = np.triu(np.full((n, n), 1e9, np.float32), 1)
    np.testing.assert_array_equal(_order(scores + after), _order(scores))
    scores[np.triu_indices(n, 1)] = np.nan
    np.testing.assert_allclose(_order(scores), _exact(scores), **_CLOSE)


def test_where_there_is_no_triple_there_is_no_share():
  alone = np.zeros((1, 1), np.float32)
  for run in (order, _order):
    assert np.isnan(run(alone)).all()
  np.testing.assert_array_equal(_order(np.eye(2, dtype=np.float32)), (np.nan, 0))
  nothing = _order(np.zeros((5, 5), np.float32), np.zeros((5, 5), bool))
  assert np.isnan(nothing).all()


def test_without_any_order_the_recency_probability_is_one_half():
  scores = _scores(7, 7, 5000, ties=False)
  mean = _order(scores).recency_probability
  np.testing.assert_allclose(mean.mean(), 0.5, atol=5 * mean.std() / 5000**0.5)


def test_more_queries_than_keys_are_refused():
  with pytest.raises(ValueError, match=r'more queries than keys: \(3, 2\)'):
    order(jnp.zeros((3, 2)))


def _by_distance(logits, seen=None):
  """The mean score by distance of one matrix [m, n]."""
  m, n = logits.shape
  at = [[] for _ in range(n)]
  for row in range(m):
    position = n - m + row
    for j in range(position + 1):
      if seen is None or seen[row, j]:
        at[position - j].append(logits[row, j])
  return [np.mean(each) if each else np.nan for each in at]


def test_of_logits_by_distance_the_mean_is_that_of_each_distance():
  n = 11
  distance = np.arange(n)[:, None] - np.arange(n)
  logits = 3.0 - distance**2
  found = _of_logits(logits)
  np.testing.assert_allclose(found.mean_score, 3.0 - np.arange(n) ** 2, rtol=1e-6)
  np.testing.assert_allclose(found[1:], (1, 0), **_CLOSE)
  np.testing.assert_array_equal(_of_logits(-logits)[1:], (0, 1))


@pytest.mark.slow
def test_without_jit_logits_are_checked_and_the_numbers_are_the_same():
  logits = _scores(3, 3, ties=False)
  logits[0, 1:] = np.nan  # after the query
  logits[2, 0] = -np.inf  # masked
  mask = np.arange(3) + np.zeros((3, 1)) > [[-1], [-1], [0]]
  found, expected = recency_of_logits(logits, mask), _of_logits(logits, mask)
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a, b, **_CLOSE)
  assert np.isfinite(found.mean_score[:2]).all() and np.isnan(found.mean_score[2])
  with pytest.raises(ValueError, match='not finite'):
    recency_of_logits(logits)


@pytest.mark.parametrize('masked', [False, True], ids=['all', 'masked'])
@pytest.mark.parametrize('m, n', [(7, 7), (3, 7), (19, 19)])
def test_logits_with_leading_axes_are_so_many_matrices(m, n, masked):
  logits = _scores(2, 3, m, n, ties=False)
  mask = np.random.default_rng(m).random(logits.shape) < 0.7 if masked else None
  found = _of_logits(logits, mask)
  assert found.mean_score.shape == (2, 3, n)
  assert found.recency_probability.shape == found.violation_rate.shape == (2, 3)
  for b in np.ndindex(2, 3):
    seen = mask[b] if masked else None
    mean = _by_distance(logits[b], seen)
    np.testing.assert_allclose(found.mean_score[b], mean, rtol=1e-5, atol=1e-6)
    shares = found.recency_probability[b], found.violation_rate[b]
    expected = _exact(logits[b], seen)
    np.testing.assert_allclose(shares, expected, **_CLOSE)


def test_one_mask_may_serve_all_leading_axes():
  logits = _scores(2, 3, 5, 7, ties=False)
  mask = np.random.default_rng(0).random((5, 7)) < 0.7
  one = _of_logits(logits, mask)
  each = _of_logits(logits, np.broadcast_to(mask, logits.shape))
  for a, b in zip(one, each, strict=True):
    np.testing.assert_allclose(a, b, **_CLOSE)


@pytest.mark.parametrize('rubbish', [np.nan, np.inf, -np.inf, -1e30])
def test_what_is_not_seen_does_not_matter(rubbish):
  logits = _scores(2, 7, 7, ties=False)
  mask = np.random.default_rng(0).random((7, 7)) < 0.7
  seen = mask & np.tri(7, dtype=bool)
  expected = _of_logits(logits, mask)
  found = _of_logits(np.where(seen, logits, np.float32(rubbish)), mask)
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_array_equal(a, b)
  causal = np.where(np.tri(7, dtype=bool), logits, np.float32(rubbish))
  for a, b in zip(_of_logits(causal), _of_logits(logits), strict=True):
    np.testing.assert_array_equal(a, b)


def test_queries_at_the_end_are_the_last_rows_of_the_square():
  logits = _scores(2, 7, 7, ties=False)
  last = _of_logits(logits[:, -3:])
  rows = np.broadcast_to(np.arange(7)[:, None] >= 4, (7, 7))
  for a, b in zip(last, _of_logits(logits, rows), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6)
  # The first of three queries is the fifth of seven: distances 0 to 6 all occur.
  assert np.isfinite(last.mean_score).all()
  nearest = np.zeros((7, 7), bool) | np.eye(7, dtype=bool)
  mean_score, *_ = _of_logits(logits, nearest)
  assert np.isnan(mean_score[:, 1:]).all()
  diagonal = np.trace(logits, axis1=1, axis2=2) / 7
  np.testing.assert_allclose(mean_score[:, 0], diagonal, rtol=1e-6)


def test_integers_and_bfloat16_are_read_as_float32():
  logits = np.round(20 * _scores(7, 7, ties=False))
  expected = _of_logits(logits)
  for dtype in (jnp.bfloat16, jnp.int32):
    found = _of_logits(logits.astype(dtype))
    for a, b in zip(found, expected, strict=True):
      assert a.dtype == jnp.float32
      np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('logits, words', [
    (np.zeros(3), r'\(3,\)'),
    (1.0, r'\(\)'),
    (np.zeros((2, 4, 3)), r'no more queries than keys: .*\(2, 4, 3\)'),
    (np.array([[0.0, 9.0], [np.nan, 0.0]]), 'not finite'),
    (np.array([[0.0, 9.0], [0.0, np.inf]]), 'not finite'),
    (np.array([[-np.inf, 9.0], [0.0, 0.0]]), 'not finite'),
])
def test_bad_logits_are_named_in_one_line(logits, words):
  with pytest.raises(ValueError, match=words) as error:
    recency_of_logits(logits)
  assert '\n' not in str(error.value)


@pytest.mark.slow
def test_differences_of_float64_are_told(key):
  with jax.enable_x64(True):
    row = jnp.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1 + 1e-12, 3.0]])
    found = recency_of_logits(row)
    assert found.recency_probability == 1 and found.mean_score.dtype == jnp.float64


@pytest.mark.parametrize('mask', [
    np.ones((3, 3), np.float32), np.ones((3, 2), bool), np.ones((5, 3, 3), bool)])
def test_masks_of_another_kind_are_named(mask):
  with pytest.raises(ValueError, match=r'mask must be bool, \(2, 3, 3\) or \(3, 3\)'):
    recency_of_logits(jnp.ones((2, 3, 3)), mask)
