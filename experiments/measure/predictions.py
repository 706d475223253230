"""Measurements of predictions of a checkpoint: perplexity and misalignment."""

from collections.abc import Iterator
import functools
from typing import Any

import jax
import numpy as np

from experiments.measure import measurements
from experiments.measure.measurements import interval, Measurement, row, Subject
from experiments.measure.rows import BLOCK, Name, Part, SLIDING
from vvlen import sharding
from vvlen.evaluation import misalignment as evaluation
from vvlen.evaluation import perplexity as nll_of
from vvlen.evaluation import programs
from vvlen.reporting import results


def perplexity(config: Any, subject: Subject) -> Iterator[Measurement]:
  """Yields two measurements for each length: blocks and sliding windows.

  Intervals are over pieces of the text that are as long as the longest window, for all
  lengths: neighbouring blocks are not independent.
  """
  own = config.perplexity
  lengths = measurements.times(subject.length, own.lengths, 'perplexity.lengths', 2)
  longest = lengths[-1]
  if len(subject.stream) < longest:
    raise ValueError(
        f'the text has {len(subject.stream):,} tokens, fewer than the longest window, '
        f'of {longest:,}: use more text, a larger config.num_characters, a smaller '
        'config.length, or other config.perplexity.lengths'
    )
  text = subject.stream[: measurements.scored(config, subject)]
  most = len(text) // longest
  begin = subject.begin if own.begin else None
  if own.begin and begin is None:
    raise ValueError('config.perplexity.begin must be False: the tokenizer has no BOS')
  options: Any = {'begin': begin, 'tokens_at_once': config.tokens_at_once}
  model_of = measurements.hidden_of(subject.model)

  def block(length, variables):
    losses = nll_of.block_losses(model_of(variables), text, length, **options)
    in_pieces = functools.partial(
        measurements.of_blocks, losses, length, begin, longest, most)

    def rows_of(part, metric, means, scored):
      return [*interval(config, part, length, metric, means, scored),
              row(part, length, 'scored', scored.sum())]

    found = in_pieces()
    rows = [*rows_of(BLOCK, 'nll', *found), *_of_pieces(BLOCK, length, *found),
            row(BLOCK, length, 'pieces', most)]
    for low, high in measurements.bins(1, length):
      rows += rows_of(BLOCK._replace(distance=low), 'nll_after', *in_pieces(low, high))
    return rows

  def sliding(length, stride, variables):
    sums, counts = nll_of.sliding_sums(
        model_of(variables), text, length, stride, **options)
    ends = length - (begin is not None) + stride * np.arange(len(sums))
    found = measurements.by_piece(sums, counts, ends - counts / 2, longest, most)
    return [*interval(config, SLIDING, length, 'nll', *found),
            *_of_pieces(SLIDING, length, *found),
            row(SLIDING, length, 'stride', stride)]

  for length in lengths:
    stride = min(length - 1, max(1, round(own.stride * length)))
    work = len(text) * subject.model.num_layers
    yield Measurement(Name('perplexity', 'block', length=length), work,
                      functools.partial(block, length))
    yield Measurement(Name('perplexity', 'sliding', length=length),
                      work * length // stride,
                      functools.partial(sliding, length, stride))


def _of_pieces(
    part: Part, length: int, losses: np.ndarray, scored: np.ndarray
) -> Iterator[results.Row]:
  """Yields mean loss and number of scored tokens of each piece, to compare lengths."""
  for i, (loss, count) in enumerate(zip(losses, scored, strict=True)):
    yield row(part._replace(piece=i), length, 'nll', loss)
    yield row(part._replace(piece=i), length, 'scored', count)


def misalignment(config: Any, subject: Subject) -> Iterator[Measurement]:
  """Yields a measurement for each length, which measures all offsets."""
  own = config.misalignment
  model_of = measurements.hidden_of(subject.model)

  def measure(length, offsets, variables):
    streams = measurements.spaced(
        subject.stream, length + max(offsets), own.num_sequences)
    model, found = model_of(variables), []
    for tokens, new in programs.batches(streams, config.tokens_at_once):
      one = evaluation.misalignment_at_offsets(
          model, tokens, length, offsets, by_sequence=True
      )
      found.append(jax.tree.map(lambda x, new=new: x[:, :new], sharding.fetch(one)))
    both = jax.tree.map(lambda *x: np.concatenate(x, axis=1), *found)
    parts = [Part('misalignment', 'text', offset=e) for e in offsets]
    rows = [row(part, length, 'num_sequences', len(streams)) for part in parts]
    for name, values in both._asdict().items():
      for part, by_sequence in zip(parts, values, strict=True):
        rows += interval(config, part, length, name, by_sequence)
    return rows

  for length in measurements.times(
      subject.length, own.lengths, 'misalignment.lengths', 4):
    offsets = [e for e in own.offsets if e <= length // 2 - 1]
    if not offsets:
      raise ValueError('config.misalignment.offsets must have one below half of the '
                       f'length {length}: '
                       f'{tuple(own.offsets)}')
    measurements.spaced(subject.stream, length + max(offsets), own.num_sequences)
    work = own.num_sequences * length * (1 + len(offsets)) * subject.model.num_layers
    yield Measurement(Name('misalignment', 'text', length=length), work,
                      functools.partial(measure, length, offsets))
