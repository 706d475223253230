"""What a batch of argmax retrieval is, as a distribution and item by item."""

import functools

import chex
import jax
import numpy as np
import pytest
from scipy import stats

from vvlen.models.retriever import Retriever
from vvlen.tasks import retrieval

B, MIN, MAX, C = 10_007, 3, 13, 7

_sample = functools.partial(
    retrieval.sample, batch_size=B, min_length=MIN, max_length=MAX, num_classes=C
)


@pytest.fixture(scope='module')
def batch():
  return jax.tree.map(np.asarray, jax.jit(_sample)(jax.random.key(5)))


def test_shapes_and_types(batch):
  chex.assert_shape(
      tuple(batch), [(B, 1), (B, MAX, 1 + C), (B, MAX), (B,), (B,)]
  )
  types = [x.dtype for x in batch]
  assert types == [np.float32, np.float32, np.bool_, np.int32, np.int32]


def test_target_is_the_class_of_the_item_with_the_highest_priority(batch):
  for items, mask, target, index in zip(*batch[1:], strict=True):
    real = [item for item, there in zip(items, mask, strict=True) if there]
    best = max(range(len(real)), key=lambda i: real[i][0])
    assert index == best
    assert target == list(real[best][1:]).index(1.0)


def test_an_informative_query_below_one_half_asks_for_the_lowest_priority(batch):
  informed = jax.tree.map(
      np.asarray, jax.jit(functools.partial(_sample, informative_query=True))(
          jax.random.key(5)))
  chex.assert_trees_all_equal(informed[:3], batch[:3])
  for query, items, mask, target, index in zip(*informed, strict=True):
    real = [item for item, there in zip(items, mask, strict=True) if there]
    wanted = (max if query[0] >= 0.5 else min)(
        range(len(real)), key=lambda i: real[i][0])
    assert index == wanted
    assert target == list(real[wanted][1:]).index(1.0)


def test_padding_sometimes_has_the_highest_priority_and_never_wins(batch):
  anywhere = batch.items[..., 0].argmax(-1)
  assert (anywhere != batch.target_index).mean() > 0.2
  assert batch.mask[np.arange(B), batch.target_index].all()


def test_items_come_first_and_padding_last(batch):
  length = batch.mask.sum(1)
  np.testing.assert_array_equal(batch.mask, np.arange(MAX) < length[:, None])


def test_lengths_are_uniform(batch):
  length, counts = np.unique(batch.mask.sum(1), return_counts=True)
  np.testing.assert_array_equal(length, np.arange(MIN, MAX + 1))
  assert stats.chisquare(counts).pvalue > 1e-3


def test_classes_are_one_hot_and_uniform(batch):
  one_hot = batch.items[..., 1:]
  np.testing.assert_array_equal(np.sort(one_hot)[..., -2:].mean((0, 1)), [0, 1])
  np.testing.assert_array_equal(one_hot.sum(-1), np.ones((B, MAX)))
  assert stats.chisquare(one_hot.sum((0, 1))).pvalue > 1e-3
  assert stats.chisquare(np.bincount(batch.target, minlength=C)).pvalue > 1e-3


def test_priorities_and_query_are_uniform(batch):
  for x in (batch.items[..., 0].ravel(), batch.query.ravel()):
    assert x.min() >= 0 and x.max() < 1
    assert stats.kstest(x, 'uniform').pvalue > 1e-3


def test_query_length_priorities_and_classes_are_independent(batch):
  columns = np.concatenate([
      batch.query, batch.mask.sum(1, keepdims=True), batch.items[..., 0],
      batch.items[..., 1:].argmax(-1),
  ], axis=1)
  correlation = np.corrcoef(columns, rowvar=False) - np.eye(2 + 2 * MAX)
  assert np.abs(correlation).max() < 4.5 / B**0.5


def test_a_single_length_leaves_no_padding(key):
  sample = functools.partial(
      retrieval.sample, batch_size=5, min_length=7, max_length=7
  )
  batch = jax.jit(sample)(key)
  assert batch.mask.all()
  chex.assert_shape(batch.items, (5, 7, 11))


def test_a_key_gives_one_batch_and_another_key_another(batch):
  again = jax.jit(_sample)(jax.random.key(5))
  chex.assert_trees_all_equal(again, batch)
  other = jax.jit(_sample)(jax.random.key(6))
  for name in ('query', 'items', 'mask', 'target', 'target_index'):
    assert (np.asarray(getattr(other, name)) != getattr(batch, name)).any()


def test_vmap_over_keys_changes_nothing(key):
  sample = functools.partial(
      retrieval.sample, batch_size=3, min_length=2, max_length=5, num_classes=C
  )
  keys = jax.random.split(key, 7)
  together = jax.jit(jax.vmap(sample))(keys)
  alone = jax.jit(sample)
  for i, key in enumerate(keys):
    chex.assert_trees_all_equal(
        jax.tree.map(lambda x, i=i: x[i], together), alone(key)
    )


def test_vocabulary_is_every_class_at_every_priority():
  items = np.asarray(retrieval.vocabulary(num_classes=3, num_priorities=5))
  expected = [
      [priority, *np.eye(3)[c]]
      for priority in (0.0, 0.25, 0.5, 0.75, 1.0) for c in range(3)
  ]
  np.testing.assert_array_equal(items, expected)


@pytest.mark.parametrize('wrong', [
    {'batch_size': 0}, {'num_classes': 0}, {'min_length': 0}, {'batch_size': -3},
    {'min_length': 14}, {'min_length': -1, 'max_length': -1}, {'max_length': 2**31},
])
def test_impossible_sizes_are_named(key, wrong):
  (value, *_) = wrong.values()
  with pytest.raises(ValueError, match=str(value)):
    _sample(key, **wrong)


@pytest.mark.slow
def test_data_and_weights_do_not_depend_on_x64(key):
  draw = lambda: retrieval.sample(key, batch_size=3, min_length=2, max_length=5)
  model = Retriever(width=7, norm='layer_norm', output_projection=True)
  init = lambda batch: model.init(key, batch.query, batch.items, batch.mask)
  batch = draw()
  params = init(batch)
  with jax.enable_x64(True):
    chex.assert_trees_all_equal(draw(), batch)
    wide = init(draw())
  chex.assert_trees_all_equal_dtypes(wide, params)
  chex.assert_trees_all_equal(wide, params)
