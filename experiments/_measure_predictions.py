"""What `experiments.measure` measures of predictions: perplexity and misalignment."""

from collections.abc import Iterator
import functools
from typing import Any

import jax
import numpy as np

from experiments import _measure
from experiments._measure import Cell, interval, row, Subject
from vvlen import sharding
from vvlen.evaluation import misalignment as evaluation
from vvlen.evaluation import perplexity as nll_of
from vvlen.evaluation import programs


def perplexity(config: Any, subject: Subject) -> Iterator[Cell]:
  """Yields a cell for the blocks, and one for the sliding windows, of each length."""
  own = config.perplexity
  lengths = _measure.times(subject.length, own.lengths, 'perplexity.lengths', 2)
  longest = lengths[-1]
  if len(subject.stream) < longest:
    raise ValueError(
        f'the text has {len(subject.stream):,} tokens, fewer than the longest window, '
        f'of {longest:,}: give more text, a larger config.num_characters, or other '
        'config.perplexity.lengths'
    )
  most = min(own.num_windows, len(subject.stream) // longest)
  text = subject.stream[: most * longest]
  begin = subject.begin if own.begin else None
  if own.begin and begin is None:
    raise ValueError('config.perplexity.begin: the tokenizer has no BOS')
  options: Any = {'begin': begin, 'tokens_at_once': config.tokens_at_once}
  model_of = _measure.hidden_of(subject.model)

  def block(length, variables):
    model = model_of(variables)
    nll = nll_of.nll_by_position(model, text, length, **options)
    arm = f'block_{length}'
    windows = len(text) // (length - (begin is not None))
    rows = [row('block', length, 'nll', nll.mean()),
            row('block', length, 'scored', windows * len(nll))]
    for low, high in _measure.bins(1, length):
      rows += [row(arm, low, 'nll_after', nll[low - 1 : high - 1].mean()),
               row(arm, low, 'scored', windows * (high - low))]
    return rows

  def sliding(length, stride, variables):
    model = model_of(variables)
    nll = nll_of.sliding_nll(model, text, length, stride, **options)
    return [row('sliding', length, 'nll', nll),
            row('sliding', length, 'stride', stride)]

  for length in lengths:
    stride = min(length - 1, max(1, round(own.stride * length)))
    work = len(text) * subject.model.num_layers
    yield Cell(f'blocks of {length}', work, functools.partial(block, length))
    yield Cell(f'sliding windows of {length}', work * length // stride,
               functools.partial(sliding, length, stride))


def misalignment(config: Any, subject: Subject) -> Iterator[Cell]:
  """Yields a cell for each length, with all offsets."""
  own = config.misalignment
  model_of = _measure.hidden_of(subject.model)

  def measure(length, offsets, variables):
    streams = _measure.spaced(subject.stream, length + max(offsets), own.num_sequences)
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

  for length in _measure.times(subject.length, own.lengths, 'misalignment.lengths', 4):
    offsets = [e for e in own.offsets if e <= length // 2 - 1]
    if not offsets:
      raise ValueError(f'config.misalignment.offsets has none below half of {length}: '
                       f'{tuple(own.offsets)}')
    _measure.spaced(subject.stream, length + max(offsets), own.num_sequences)
    work = own.num_sequences * length * (1 + len(offsets)) * subject.model.num_layers
    yield Cell(f'misalignment at {length}', work,
               functools.partial(measure, length, offsets))
