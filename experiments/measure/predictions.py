"""What `experiments.measure` measures of predictions: perplexity and misalignment."""

from collections.abc import Iterator
import functools
from typing import Any

import jax
import numpy as np

from experiments.measure import pieces
from experiments.measure.pieces import Cell, interval, row, Subject
from vvlen import sharding
from vvlen.evaluation import misalignment as evaluation
from vvlen.evaluation import perplexity as nll_of
from vvlen.evaluation import programs
from vvlen.reporting import results


def perplexity(config: Any, subject: Subject) -> Iterator[Cell]:
  """Yields a cell for the blocks, and one for the sliding windows, of each length.

  Intervals are over pieces of the text as long as the longest window, which are the
  same for all: blocks next to each other are not independent.
  """
  own = config.perplexity
  lengths = pieces.times(subject.length, own.lengths, 'perplexity.lengths', 2)
  longest = lengths[-1]
  if len(subject.stream) < longest:
    raise ValueError(
        f'the text has {len(subject.stream):,} tokens, fewer than the longest window, '
        f'of {longest:,}: give more text, a larger config.num_characters, a smaller '
        'config.length, or other config.perplexity.lengths'
    )
  text = subject.stream[: pieces.scored(config, subject)]
  most = len(text) // longest
  begin = subject.begin if own.begin else None
  if own.begin and begin is None:
    raise ValueError('config.perplexity.begin: the tokenizer has no BOS')
  options: Any = {'begin': begin, 'tokens_at_once': config.tokens_at_once}
  model_of = pieces.hidden_of(subject.model)

  def block(length, variables):
    losses = nll_of.block_losses(model_of(variables), text, length, **options)
    arm, of_text = f'block_{length}', length - (begin is not None)
    middles = of_text * (np.arange(len(losses)) + 0.5)

    def rows_of(arm, n, metric, low, high):
      """Returns rows of tokens with `low` to `high` − 1 before them in the window."""
      some = losses[:, low - 1 : high - 1]
      counts = np.full(len(some), high - low)
      parts = pieces.by_piece(some.sum(1), counts, middles, longest, most)
      return [*interval(config, arm, n, metric, *parts),
              row(arm, n, 'scored', some.size),
              *(_of_pieces(arm, n, *parts) if arm == 'block' else ())]

    rows = [*rows_of('block', length, 'nll', 1, length),
            row('block', length, 'pieces', most)]
    for low, high in pieces.bins(1, length):
      rows += rows_of(arm, low, 'nll_after', low, high)
    return rows

  def sliding(length, stride, variables):
    sums, counts = nll_of.sliding_sums(
        model_of(variables), text, length, stride, **options)
    ends = length - (begin is not None) + stride * np.arange(len(sums))
    parts = pieces.by_piece(sums, counts, ends - counts / 2, longest, most)
    return [*interval(config, 'sliding', length, 'nll', *parts),
            row('sliding', length, 'stride', stride),
            *_of_pieces('sliding', length, *parts)]

  for length in lengths:
    stride = min(length - 1, max(1, round(own.stride * length)))
    work = len(text) * subject.model.num_layers
    yield Cell(f'blocks of {length}', work, functools.partial(block, length))
    yield Cell(f'sliding windows of {length}', work * length // stride,
               functools.partial(sliding, length, stride))


def _of_pieces(
    arm: str, length: int, losses: np.ndarray, scored: np.ndarray
) -> Iterator[results.Row]:
  """Yields mean loss and scored tokens of each piece, to compare lengths by."""
  for i, (loss, count) in enumerate(zip(losses, scored, strict=True)):
    yield row(f'{arm}/piece_{i}', length, 'nll', loss)
    yield row(f'{arm}/piece_{i}', length, 'scored', count)


def misalignment(config: Any, subject: Subject) -> Iterator[Cell]:
  """Yields a cell for each length, with all offsets."""
  own = config.misalignment
  model_of = pieces.hidden_of(subject.model)

  def measure(length, offsets, variables):
    streams = pieces.spaced(subject.stream, length + max(offsets), own.num_sequences)
    model, found = model_of(variables), []
    for tokens, new in programs.batches(streams, config.tokens_at_once):
      one = evaluation.misalignment_at_offsets(
          model, tokens, length, offsets, by_sequence=True
      )
      found.append(jax.tree.map(lambda x, new=new: x[:, :new], sharding.fetch(one)))
    both = jax.tree.map(lambda *x: np.concatenate(x, axis=1), *found)
    rows = [row(f'offset_{e}', length, 'num_sequences', len(streams)) for e in offsets]
    for name, values in both._asdict().items():
      for e, by_sequence in zip(offsets, values, strict=True):
        rows += interval(config, f'offset_{e}', length, name, by_sequence)
    return rows

  for length in pieces.times(subject.length, own.lengths, 'misalignment.lengths', 4):
    offsets = [e for e in own.offsets if e <= length // 2 - 1]
    if not offsets:
      raise ValueError(f'config.misalignment.offsets has none below half of {length}: '
                       f'{tuple(own.offsets)}')
    pieces.spaced(subject.stream, length + max(offsets), own.num_sequences)
    work = own.num_sequences * length * (1 + len(offsets)) * subject.model.num_layers
    yield Cell(f'misalignment at {length}', work,
               functools.partial(measure, length, offsets))
