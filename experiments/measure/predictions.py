"""Measurements of predictions of a checkpoint: perplexity and misalignment."""

from collections.abc import Iterator
import functools
from typing import Any

import jax
import numpy as np

from experiments.measure import pieces
from experiments.measure.pieces import interval, Piece, row, Subject
from experiments.measure.rows import Part
from vvlen import sharding
from vvlen.evaluation import misalignment as evaluation
from vvlen.evaluation import perplexity as nll_of
from vvlen.evaluation import programs
from vvlen.reporting import results


def perplexity(config: Any, subject: Subject) -> Iterator[Piece]:
  """Yields two measurements for each length: blocks and sliding windows.

  Intervals are over pieces of the text that are as long as the longest window, for all
  lengths: neighbouring blocks are not independent.
  """
  own = config.perplexity
  lengths = pieces.times(subject.length, own.lengths, 'perplexity.lengths', 2)
  longest = lengths[-1]
  if len(subject.stream) < longest:
    raise ValueError(
        f'the text has {len(subject.stream):,} tokens, fewer than the longest window, '
        f'of {longest:,}: use more text, a larger config.num_characters, a smaller '
        'config.length, or other config.perplexity.lengths'
    )
  text = subject.stream[: pieces.scored(config, subject)]
  most = len(text) // longest
  begin = subject.begin if own.begin else None
  if own.begin and begin is None:
    raise ValueError('config.perplexity.begin must be False: the tokenizer has no BOS')
  options: Any = {'begin': begin, 'tokens_at_once': config.tokens_at_once}
  model_of = pieces.hidden_of(subject.model)

  def block(length, variables):
    losses = nll_of.block_losses(model_of(variables), text, length, **options)
    arm, of_text = f'block_{length}', length - (begin is not None)
    middles = of_text * (np.arange(len(losses)) + 0.5)

    def rows_of(arm, n, metric, low, high):
      """Returns rows for tokens with `low` to `high` − 1 before them in the window."""
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
    yield Piece(f'blocks of {length}', work, functools.partial(block, length))
    yield Piece(f'sliding windows of {length}', work * length // stride,
               functools.partial(sliding, length, stride))


def _of_pieces(
    arm: str, length: int, losses: np.ndarray, scored: np.ndarray
) -> Iterator[results.Row]:
  """Yields mean loss and number of scored tokens of each piece, to compare lengths."""
  for i, (loss, count) in enumerate(zip(losses, scored, strict=True)):
    yield row(f'{arm}/piece_{i}', length, 'nll', loss)
    yield row(f'{arm}/piece_{i}', length, 'scored', count)


def misalignment(config: Any, subject: Subject) -> Iterator[Piece]:
  """Yields a measurement for each length, which measures all offsets."""
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
    parts = [Part('misalignment', offset=e) for e in offsets]
    rows = [row(part, length, 'num_sequences', len(streams)) for part in parts]
    for name, values in both._asdict().items():
      for part, by_sequence in zip(parts, values, strict=True):
        rows += interval(config, part, length, name, by_sequence)
    return rows

  for length in pieces.times(subject.length, own.lengths, 'misalignment.lengths', 4):
    offsets = [e for e in own.offsets if e <= length // 2 - 1]
    if not offsets:
      raise ValueError('config.misalignment.offsets must have one below half of the '
                       f'length {length}: '
                       f'{tuple(own.offsets)}')
    pieces.spaced(subject.stream, length + max(offsets), own.num_sequences)
    work = own.num_sequences * length * (1 + len(offsets)) * subject.model.num_layers
    yield Piece(f'misalignment at {length}', work,
               functools.partial(measure, length, offsets))
