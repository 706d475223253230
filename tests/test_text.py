"""Blocks hold the text in order; batches hold each block once an epoch."""

import itertools
import json

import numpy as np
import pytest

from vvlen.tasks.text import batches, pack

BEGIN = 999


def _documents(*sizes, dtype=np.int32):
  """Returns documents of which token t of document d is 100 d + t."""
  return [100 * d + np.arange(n, dtype=dtype) for d, n in enumerate(sizes)]


def test_packing_by_hand():
  documents = _documents(4, 1, 6)
  np.testing.assert_array_equal(pack(documents, 3, begin=BEGIN), [
      [BEGIN, 0, 1], [2, 3, BEGIN], [100, BEGIN, 200], [201, 202, 203]])
  np.testing.assert_array_equal(
      pack(documents, 3, begin=None), [[0, 1, 2], [3, 100, 200], [201, 202, 203]])
  np.testing.assert_array_equal(
      pack(documents, 3, begin=BEGIN, within_documents=True),
      [[BEGIN, 0, 1], [BEGIN, 200, 201], [202, 203, 204]])
  np.testing.assert_array_equal(
      pack(documents, 3, begin=None, within_documents=True),
      [[0, 1, 2], [200, 201, 202], [203, 204, 205]])


@pytest.mark.parametrize('begin', [None, 0, BEGIN])
@pytest.mark.parametrize('length', [1, 2, 7, 32])
@pytest.mark.parametrize('dtype', [np.int32, np.int64, np.uint8])
def test_packing_of_any_documents(begin, length, dtype):
  rng = np.random.default_rng(length)
  documents = [rng.integers(1, 256, n).astype(dtype) for n in rng.integers(0, 40, 30)]
  whole = [[*([] if begin is None else [begin]), *x.tolist()] for x in documents]
  joined = pack(documents, length, begin=begin)
  stream = [*itertools.chain(*whole)]
  assert joined.dtype == np.int32 and joined.shape == (len(stream) // length, length)
  assert joined.reshape(-1).tolist() == stream[:joined.size]
  alone = pack(documents, length, begin=begin, within_documents=True)
  expected = [
      x[i:i + length] for x in whole for i in range(0, len(x) - length + 1, length)]
  assert alone.dtype == np.int32 and alone.tolist() == expected


def test_blocks_within_documents_never_have_two():
  blocks = pack(_documents(*range(40, 60)), 6, begin=None, within_documents=True)
  of = blocks // 100
  assert (of == of[:, :1]).all() and len(set(of[:, 0])) == 20
  assert len({*pack(_documents(40, 40), 6, begin=None)[6] // 100}) == 2


@pytest.mark.parametrize(('sizes', 'length', 'fields', 'says'), [
    ((60, 40), 191, {}, 'the text has 100 tokens, fewer than one window of 191'),
    ((60, 40), 103, {'begin': BEGIN}, 'the text has 102 tokens, .* window of 103'),
    ((), 5, {}, 'the text has 0 tokens, fewer than one window of 5'),
    ((9, 7), 10, {'within_documents': True}, 'the longest document has 9 tokens'),
    ((), 10, {'within_documents': True}, 'the longest document has 0 tokens'),
    ((9, 7), 0, {}, 'must be positive: 0'),
    ((9, 7), -1, {}, 'must be positive: -1'),
])
def test_texts_that_are_too_short(sizes, length, fields, says):
  with pytest.raises(ValueError, match=says):
    pack(_documents(*sizes), length, **{'begin': None, **fields})


def test_the_shortest_texts():
  assert pack(_documents(5), 5, begin=None).shape == (1, 5)
  assert pack(_documents(4), 5, begin=BEGIN, within_documents=True).shape == (1, 5)


def _blocks(number):
  return 10 * np.arange(number, dtype=np.int32)[:, None] + np.arange(3, dtype=np.int32)


def _rows(number, batch_size, seed=0, take=None, **fields):
  """Returns which blocks the batches have, [batches, rows of a process]."""
  iterator = batches(_blocks(number), batch_size, seed, **fields)
  taken = [*itertools.islice(iterator, take)]
  for batch in taken:
    assert batch.dtype == np.int32
    np.testing.assert_array_equal(batch, _blocks(number)[batch[:, 0] // 10])
  return np.array([batch[:, 0] // 10 for batch in taken])


@pytest.mark.parametrize('number', [8, 9, 11, 50])
def test_each_epoch_has_each_block_once_in_another_order(number):
  rows = _rows(number, 4, take=3 * number)  # 12 epochs
  assert rows.shape == (3 * number, 4)
  epochs = rows.reshape(12, number)
  np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(number), (12, 1)))
  assert len({tuple(x) for x in epochs.tolist()}) == 12


def test_the_order_is_the_seeds():
  one = _rows(30, 5, seed=3, take=24).reshape(4, 30)
  np.testing.assert_array_equal(_rows(30, 5, seed=3, take=24).reshape(4, 30), one)
  # Epochs of two seeds differ too.
  epochs = np.concatenate([_rows(30, 5, seed=x, take=24).reshape(4, 30)
                           for x in range(5)])
  assert len({tuple(x) for x in epochs.tolist()}) == 20


@pytest.mark.parametrize('num_epochs', [1, 3])
@pytest.mark.parametrize('number', [12, 17, 23])
@pytest.mark.parametrize('process_count', [2, 4, 12])
def test_processes_share_the_same_batches(number, process_count, num_epochs):
  whole = _rows(number, 12, num_epochs=num_epochs)
  assert whole.shape == (number * num_epochs // 12, 12)
  forever = _rows(number, 12, take=len(whole))
  np.testing.assert_array_equal(whole, forever)
  for p in range(process_count):
    rows = _rows(number, 12, num_epochs=num_epochs, process_index=p,
                 process_count=process_count)
    np.testing.assert_array_equal(rows, whole[:, p::process_count])


@pytest.mark.parametrize('num_epochs', [2, None])
@pytest.mark.parametrize('process_count', [1, 2, 3])
def test_a_batch_is_filled_up_with_its_last_row(process_count, num_epochs):
  fields = dict(seed=1, num_epochs=num_epochs)
  whole = [*itertools.islice(batches(_blocks(11), 4, **fields), 5)]
  for p in range(process_count):
    filled = batches(_blocks(11), 4, filled_to=6, process_index=p,
                     process_count=process_count, **fields)
    for batch in whole:
      expected = np.concatenate([batch, batch[-1:], batch[-1:]])
      np.testing.assert_array_equal(next(filled), expected[p::process_count])


@pytest.mark.parametrize('taken', [0, 1, 7, 30])
@pytest.mark.parametrize('process_count', [1, 2])
def test_a_saved_state_goes_on_exactly(taken, process_count):
  fields = {'process_index': process_count - 1, 'process_count': process_count}
  iterator = batches(_blocks(11), 4, 5, **fields)
  for _ in range(taken):
    next(iterator)
  saved = json.dumps(iterator.get_state())
  expected = [next(iterator) for _ in range(9)]
  again = batches(_blocks(11), 4, 5, **fields)
  next(again)  # It may have been used.
  again.set_state(json.loads(saved))
  assert json.dumps(again.get_state()) == saved
  np.testing.assert_array_equal([next(again) for _ in range(9)], expected)
  # Any number of processes can resume from there.
  one = batches(_blocks(11), 4, 5)
  one.set_state(json.loads(saved))
  rows = np.array([next(one) for _ in range(9)])
  np.testing.assert_array_equal(rows[:, process_count - 1::process_count], expected)


def test_a_state_counts_what_was_taken_and_not_what_was_read_ahead():
  iterator = batches(_blocks(8), 4, 0, num_epochs=1)
  states = [iterator.get_state()]
  states += [iterator.get_state() for _ in iterator]
  assert len(states) == 3
  again = batches(_blocks(8), 4, 0, num_epochs=1)
  for left, state in zip((2, 1, 0), states, strict=True):
    again.set_state(state)
    assert len([*again]) == left


@pytest.mark.parametrize(('number', 'batch_size', 'fields', 'says'), [
    (7, 8, {}, 'has 7 windows, fewer than one batch of 8'),
    (7, 8, {'process_count': 2}, 'has 7 windows, fewer than one batch of 8'),
    (0, 1, {}, 'has 0 windows'),
    (20, 9, {'process_count': 2}, '9 windows cannot be shared equally by 2 processes'),
    (20, 1, {'process_count': 2}, '1 windows cannot be shared equally by 2 processes'),
    (20, 4, {'filled_to': 3}, 'batch of 3'),
    (20, 4, {'filled_to': 5, 'process_count': 2}, '5 windows cannot be shared equally'),
    (20, 0, {}, 'batch of 0'),
    (20, -4, {}, 'batch of -4'),
    (20, 4, {'process_count': 2, 'process_index': 2}, 'process 2 is not one of 2'),
    (20, 4, {'process_index': -1}, 'process -1 is not one of 1'),
    (20, 4, {'process_count': 0}, 'process 0 is not one of 0'),
    (20, 4, {'seed': -1}, 'seed must not be negative: -1'),
    (20, 4, {'num_epochs': 0}, 'epochs must be positive: 0'),
])
def test_bad_batches(number, batch_size, fields, says):
  with pytest.raises(ValueError, match=says):
    batches(_blocks(number), batch_size, **{'seed': 0, **fields})
