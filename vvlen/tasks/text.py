"""Text for language models: tokens cut into blocks of one length, batched by Grain.

Axes: N blocks.
"""

from collections.abc import Sequence
import sys
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  import grain

  from vvlen.tasks.tokens import Blocks


def pack(
    documents_tokens: Sequence[np.ndarray],
    length: int,
    *,
    begin: int | None,
    within_documents: bool = False,
) -> np.ndarray:
  """Cuts documents into blocks that do not overlap.

  Args:
    documents_tokens: tokens of each document, [n] integers.
    length: tokens per block.
    begin: the token to put before each document, if any.
    within_documents: True: each document is cut by itself, so no block has tokens of
      two documents, and the tokens left over at the end of each are dropped. False:
      documents are joined and then cut, and tokens are left over only at the very end.

  Returns:
    [N, length] int32, N at least 1, in the order of the text.

  Raises:
    ValueError: if there are too few tokens for one block, or the length is not
      positive.
  """
  if length < 1:
    raise ValueError(f'the length of a window must be positive: {length}')
  first = np.array([] if begin is None else [begin], np.int32)
  parts = [np.concatenate([first, x], dtype=np.int32) for x in documents_tokens]
  if not within_documents:
    parts = [np.concatenate([first[:0], *parts])]
  blocks = [x[:len(x) // length * length].reshape(-1, length) for x in parts]
  packed = np.concatenate([np.empty((0, length), np.int32), *blocks])
  if not len(packed):
    most = max(map(len, parts), default=0)
    what = 'the longest document' if within_documents else 'the text'
    raise ValueError(f'{what} has {most} tokens, fewer than one window of {length}')
  return packed


def batches(
    blocks: 'np.ndarray | Blocks',
    batch_size: int,
    seed: int,
    *,
    process_index: int = 0,
    process_count: int = 1,
    num_epochs: int | None = None,
    filled_to: int | None = None,
) -> 'grain.DatasetIterator':
  """Returns an iterator over batches of blocks, in random order.

  Each epoch has every block once, in a new order; a batch may begin in one epoch and
  end in the next. The rows of a batch do not depend on the number of processes: process
  p of n has rows p, p + n, ... of each batch.

  `get_state()` of the iterator returns a dictionary, which JSON can hold, with the
  number of batches taken. `set_state()` resumes there, in an iterator made with the
  same arguments, or for another number of processes.

  Args:
    blocks: N blocks [length], the same in each process; an array, or any source of
      Grain, such as `tokens.Blocks`, which reads them when they are asked for.
    batch_size: rows of a batch over all processes.
    seed: of the random order, not negative.
    process_index: p, the process whose rows to return, such as `jax.process_index()`.
    process_count: n, such as `jax.process_count()`.
    num_epochs: the number of epochs; a last batch that is not full is dropped. None
      repeats epochs without end.
    filled_to: the number of rows to which each batch is filled up, over all processes,
      with copies of its last row; None: batch_size, so that nothing is added.

  Returns:
    An iterator over [filled_to / process_count, length] arrays.

  Raises:
    ValueError: if the batch, filled up, is not a multiple of the number of processes,
      there are fewer blocks than one batch, or a number is out of its range.
  """
  import grain  # takes a second

  if not 0 <= process_index < process_count:
    raise ValueError(f'process {process_index} is not one of {process_count}')
  size = batch_size if filled_to is None else filled_to
  if not 1 <= batch_size <= size or size % process_count:
    raise ValueError(
        f'a batch of {size} windows cannot be shared equally by '
        f'{process_count} processes'
    )
  if len(blocks) < batch_size:
    raise ValueError(
        f'the text has {len(blocks)} windows, fewer than one batch of {batch_size}'
    )
  if seed < 0:
    raise ValueError(f'the seed must not be negative: {seed}')
  if num_epochs is not None and num_epochs < 1:
    raise ValueError(f'the number of epochs must be positive: {num_epochs}')
  rows = grain.MapDataset.source(blocks).seed(seed).shuffle().repeat(num_epochs)
  # Whole batches, so that all processes have equally many. Sliced after repeating,
  # because the rows of one epoch need not be a multiple of the number of processes.
  rows = rows[:len(rows) // batch_size * batch_size]
  if size > batch_size:
    rows = grain.MapDataset.source(_Filled(rows, batch_size, size))
  rows = rows[process_index::process_count]
  batched = rows.batch(size // process_count, drop_remainder=True)
  # One thread reads two batches ahead, at some 50 µs per row; more threads would only
  # take turns.
  options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
  return iter(batched.to_iter_dataset(options))


class _Filled:
  """Rows of batches, each of which is followed by copies of its last row."""

  def __init__(self, rows: Sequence[np.ndarray], batch_size: int, filled_to: int):
    self._rows, self._from, self._to = rows, batch_size, filled_to

  def __len__(self) -> int:
    return min(len(self._rows) // self._from, sys.maxsize // self._to) * self._to

  def __getitem__(self, index: int) -> np.ndarray:
    batch, row = divmod(index, self._to)
    return self._rows[batch * self._from + min(row, self._from - 1)]
