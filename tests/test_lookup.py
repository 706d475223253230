"""Dictionary lookup, and the retriever with learned embeddings."""

import functools
import itertools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.cases import mostly_slow
from vvlen.models.dictionary import DictionaryRetriever, with_key_rows
from vvlen.models.norm import KINDS
from vvlen.tasks import lookup

K, C = 64, 5


@functools.cache
def _sampler(batch_size, min_length, max_length, num_keys=K):
  return jax.jit(functools.partial(
      lookup.sample, batch_size=batch_size, min_length=min_length,
      max_length=max_length, num_keys=num_keys, num_values=C))


@pytest.mark.parametrize('length, num_keys', [
    (4, K), (32, K), (K, K), (1, 1), (16, 16384), (2048, 16384), (16384, 16384),
])
def test_no_key_comes_twice(key, length, num_keys):
  keys = np.asarray(_sampler(16, 1, length, num_keys)(key).items[..., 0])
  assert keys.shape == (16, length)
  assert all(len(set(row)) == length for row in keys.tolist())
  assert 0 <= keys.min() and keys.max() < num_keys


# The first two draw repeated keys again, found by pairs or by a table; the others
# permute.
@pytest.mark.parametrize('length, num_keys', [(2, 32), (8, 16), (3, 5), (9, 16)])
def test_every_ordered_pair_of_keys_is_equally_likely(length, num_keys):
  keys = np.asarray(
      lookup.distinct(jax.random.key(3), 30_000, length, num_keys))
  for i, j in ((0, 1), (length - 1, 0)):
    pairs = np.bincount(num_keys * keys[:, i] + keys[:, j], minlength=num_keys**2)
    counts = pairs.reshape(num_keys, num_keys)
    assert (np.diag(counts) == 0).all()
    different = counts[~np.eye(num_keys, dtype=bool)]
    assert stats.chisquare(different).pvalue > 1e-3


@pytest.mark.parametrize('length, batch_size', mostly_slow(
    [(16, 40_000), (2048, 4_000)], 0))
def test_pairs_of_many_keys_fall_into_all_ranges_alike(length, batch_size):
  num_keys, ranges = 16384, 16
  keys = np.asarray(lookup.distinct(jax.random.key(4), batch_size, length, num_keys))
  size = num_keys // ranges
  counts = np.bincount(ranges * (keys[:, 0] // size) + keys[:, -1] // size,
                       minlength=ranges**2)
  share = np.full((ranges, ranges), size**2) - size * np.eye(ranges)
  expected = batch_size * share / (num_keys * (num_keys - 1))
  assert stats.chisquare(counts, expected.ravel()).pvalue > 1e-3


@pytest.mark.parametrize('count, num_keys', [(3, 6), (4, 6)])
def test_redrawing_and_permuting_draw_every_set_and_order_alike(count, num_keys):
  keys = np.asarray(lookup.distinct(jax.random.key(5), 60_000, count, num_keys))
  _, counts = np.unique(keys @ num_keys ** np.arange(count), return_counts=True)
  assert counts.size == math.perm(num_keys, count)
  assert stats.chisquare(counts).pvalue > 1e-3


def test_a_permutation_of_many_keys_keeps_no_order():
  # With too few random bits, keys with equal bits would stay in order.
  count = 16384
  keys = np.asarray(lookup.distinct(jax.random.key(6), 16, count, count))
  ascents = (np.diff(keys, axis=1) > 0).sum(axis=1)
  # Of a random permutation (count − 1) / 2, with variance (count + 1) / 12.
  error = ((count + 1) / 12 / len(ascents)) ** 0.5
  assert abs(ascents.mean() - (count - 1) / 2) < 4 * error


def test_a_table_finds_the_repetitions_that_pairs_find():
  keys = jnp.asarray(np.random.default_rng(0).integers(0, 9, (50, 6)), jnp.int32)
  by_hand = [[x in row[:i] for i, x in enumerate(row)] for row in keys.tolist()]
  np.testing.assert_array_equal(lookup._repeated_pairs(keys), by_hand)
  np.testing.assert_array_equal(lookup._repeated_table(keys, 9), by_hand)


def test_the_target_is_the_value_of_the_key_asked_for(key):
  batch = jax.device_get(_sampler(512, 5, 16)(key))
  rows = np.arange(512)
  asked = batch.items[rows, batch.target_index]
  np.testing.assert_array_equal(asked[:, 0], batch.query)
  np.testing.assert_array_equal(asked[:, 1], batch.target)
  lengths = batch.mask.sum(1)
  assert batch.mask[rows, batch.target_index].all()
  assert (batch.mask == (np.arange(16) < lengths[:, None])).all()
  assert set(lengths.tolist()) == set(range(5, 17))
  assert batch.items[..., 1].min() == 0 and batch.items[..., 1].max() == C - 1


def test_lengths_places_and_values_are_uniform():
  batch = jax.device_get(_sampler(20_000, 3, 4)(jax.random.key(1)))
  lengths = batch.mask.sum(1)
  cells = np.bincount(lengths * 4 + batch.target_index, minlength=20)
  expected = np.r_[np.full(3, 1 / 6), np.full(4, 1 / 8)] * 20_000
  assert stats.chisquare(np.r_[cells[12:15], cells[16:20]], expected).pvalue > 1e-3
  assert stats.chisquare(np.bincount(batch.target)).pvalue > 1e-3


@pytest.mark.parametrize('sizes, words', [
    (dict(max_length=65), '3, 65, 64'), (dict(min_length=0), '0, 8, 64'),
    (dict(min_length=9), '9, 8, 64'), (dict(batch_size=0), 'positive: 0, 5'),
    (dict(num_values=0), 'positive: 2, 0'),
])
def test_sizes_that_cannot_be_are_named(key, sizes, words):
  good = dict(batch_size=2, min_length=3, max_length=8, num_keys=K, num_values=C)
  with pytest.raises(ValueError, match=words):
    lookup.sample(key, **good | sizes)
  with pytest.raises(ValueError, match='20 distinct keys from 8'):
    lookup.distinct(key, 2, 20, 8)


def test_the_vocabulary_is_every_pair_once():
  pairs = np.asarray(lookup.vocabulary(4, 3))
  assert sorted(map(tuple, pairs.tolist())) == [(k, v) for k in range(4)
                                                for v in range(3)]


def _model(**fields):
  return DictionaryRetriever(num_keys=K, num_classes=C, embedding_width=6, width=7,
                             **fields)


def _params(model, batch):
  params = jax.jit(model.init)(jax.random.key(0), batch.query, batch.items)['params']
  rng = np.random.default_rng(0)
  return jax.tree.map(  # biases too
      lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32), params)


# With fewer items than keys, embeddings are looked up; with more, tables are made.
@pytest.mark.slow
@pytest.mark.parametrize(
    'item_encoder, batch_size', [*itertools.product(['mlp', 'linear'], [2, 16])])
def test_tables_equal_the_plain_path(key, batch_size, item_encoder):
  batch = _sampler(batch_size, 5, 16)(key)
  model = _model(norm='layer_norm', item_encoder=item_encoder)
  plain = _model(norm='layer_norm', item_encoder=item_encoder, table=False)
  params = _params(model, batch)

  def loss(params, model):
    logits = model.apply({'params': params}, batch.query, batch.items, batch.mask)
    return -jax.nn.log_softmax(logits)[jnp.arange(batch_size), batch.target].mean()

  step = jax.jit(jax.value_and_grad(loss), static_argnums=1)
  value, gradient = step(params, model)
  expected, expected_gradient = step(params, plain)
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  chex.assert_trees_all_close(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('item_encoder', ['mlp', 'linear'])
def test_rows_of_keys_may_be_made_once(key, item_encoder):
  batch = _sampler(3, 5, 16)(key)
  model = _model(item_encoder=item_encoder)
  params = _params(model, batch)
  prepared = with_key_rows(params)
  chex.assert_trees_all_equal(prepared['params'], params)
  assert prepared.keys() - {'params'} == (
      {'tables'} if item_encoder == 'mlp' else set())
  logits = lambda variables: model.apply(
      variables, batch.query, batch.items, batch.mask)
  plain = logits({'params': params})
  np.testing.assert_allclose(logits(prepared), plain, rtol=1e-4, atol=1e-5)
  if item_encoder == 'mlp':  # they are what is read
    twice = {'key_rows': 2 * prepared['tables']['key_rows']}
    assert np.abs(logits({**prepared, 'tables': twice}) - plain).max() > 1e-3


@pytest.mark.slow
def test_gradients_pass_through_the_rows_of_keys(key):
  batch = _sampler(3, 5, 16)(key)
  model = _model()
  params = _params(model, batch)

  def gradient(prepare):
    return jax.jit(jax.grad(lambda params: jnp.sin(model.apply(
        prepare(params), batch.query, batch.items, batch.mask)).sum()))(params)

  found = gradient(with_key_rows)
  expected = gradient(lambda params: {'params': params})
  chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-5)
  of_key, _ = jnp.split(found['item_hidden_kernel'], 2)
  assert (of_key != 0).all()


@pytest.mark.slow
def test_order_and_padding_change_nothing_and_the_query_does(key):
  batch = _sampler(8, 5, 16)(key)
  model = _model()
  params = _params(model, batch)
  apply = jax.jit(lambda *inputs: model.apply({'params': params}, *inputs))
  logits = apply(batch.query, batch.items, batch.mask)
  order = np.random.default_rng(0).permutation(16)
  np.testing.assert_allclose(
      apply(batch.query, batch.items[:, order], batch.mask[:, order]), logits,
      rtol=1e-4, atol=1e-5)
  other = jnp.where(batch.mask[..., None], batch.items, 0)
  np.testing.assert_array_equal(apply(batch.query, other, batch.mask), logits)
  assert abs(apply(batch.query[::-1], batch.items, batch.mask) - logits).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize('item_encoder', ['mlp', 'linear'])
def test_a_model_reads_the_embeddings_of_its_keys_values_and_query_alone(item_encoder):
  query, items = jnp.array([9]), jnp.array([[[3, 1], [5, 4]]])
  model = _model(item_encoder=item_encoder)
  params = model.init(jax.random.key(0), query, items)['params']

  def logit(params):
    return model.apply({'params': params}, query, items)[0, 0]

  gradient = jax.jit(jax.grad(logit))(params)
  for name, read in (('key_embedding', [3, 5, 9]), ('value_embedding', [1, 4])):
    rows = np.flatnonzero(np.abs(gradient[name]).max(axis=1))
    assert rows.tolist() == read, name


@pytest.mark.slow
def test_norms_share_their_initial_weights(key):
  batch = _sampler(2, 5, 16)(key)
  params = [_model(norm=norm).init(key, batch.query, batch.items)['params']
            for norm in KINDS]
  del params[2]['attention']['norm']
  chex.assert_trees_all_equal(params[0], params[1], params[2])


def test_embeddings_begin_as_standard_normal(key):
  batch = _sampler(2, 5, 16)(key)
  model = DictionaryRetriever(num_keys=1024, num_classes=256)
  params = model.init(key, batch.query, batch.items)['params']
  for name in ('key_embedding', 'value_embedding'):
    assert stats.kstest(np.asarray(params[name]).ravel(), 'norm').pvalue > 1e-3, name
