"""Text for language models: tokens in blocks of one length, in batches through Grain.

Axes: N blocks.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  import grain


def pack(
    documents_tokens: Sequence[np.ndarray],
    length: int,
    *,
    begin: int | None,
    within_documents: bool = False,
) -> np.ndarray:
  """Cuts documents in blocks that do not overlap.

  Args:
    documents_tokens: each [n], integers.
    length: of a block.
    begin: the token to put before each document, if any.
    within_documents: whether each document is cut by itself, so that no block has
      tokens of two, and what is left at its end is dropped. Otherwise they are joined
      and cut together, and only what is left at the end of the last one is dropped.

  Returns:
    [N, length] int32, N at least 1, in the order of the text.

  Raises:
    ValueError: if there is not a single block, or the length is not positive.
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
    blocks: np.ndarray,
    batch_size: int,
    seed: int,
    *,
    process_index: int = 0,
    process_count: int = 1,
    num_epochs: int | None = None,
) -> 'grain.DatasetIterator':
  """Returns an iterator over batches of blocks, in random order.

  Each epoch has all blocks once, in another order; a batch may begin in one and end in
  the next. The rows of a batch are the same whatever the number of processes: process
  p of n has rows p, p + n, ... of each.

  `get_state()` is a dictionary for JSON that tells how many batches were taken;
  `set_state()` of an iterator made in the same way goes on from there, as does one of
  another number of processes.

  Args:
    blocks: [N, length], the same in each process.
    batch_size: rows of a batch over all processes.
    seed: of the order, not negative.
    process_index: p, whose rows to return, as `jax.process_index()`.
    process_count: n, as `jax.process_count()`.
    num_epochs: after how many epochs to stop, leaving out a last batch that is not
      full; None goes on for ever.

  Returns:
    An iterator over [batch_size / process_count, length] arrays.

  Raises:
    ValueError: if the batch size is not a multiple of the number of processes, there
      are fewer blocks than one batch, or a number is out of its range.
  """
  import grain  # takes a second

  if not 0 <= process_index < process_count:
    raise ValueError(f'process {process_index} is not one of {process_count}')
  if batch_size < 1 or batch_size % process_count:
    raise ValueError(
        f'a batch of {batch_size} windows does not divide by {process_count} processes'
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
  # Whole batches, so that each process has as many. Sliced after they are repeated, as
  # an epoch of N rows may not divide by the number of processes.
  rows = rows[:len(rows) // batch_size * batch_size][process_index::process_count]
  batched = rows.batch(batch_size // process_count, drop_remainder=True)
  # One thread reads two batches ahead. That takes it some 50 µs a row, of which more
  # threads would only take turns.
  options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
  return iter(batched.to_iter_dataset(options))
