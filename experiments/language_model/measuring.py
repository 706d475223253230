"""Measures language models: log perplexity and misalignment by length of context.

L is the training length. The test data of a seed are segments of the held-out text.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp

from vvlen.models.llama.model import Llama, output_table
from vvlen.objectives.chunked import chunked_cross_entropy
from vvlen.objectives.chunked_rows import measures_of_hidden
from vvlen.reporting import results

# Fields of `vvlen.objectives.misalignment.Measures` that are written to results.csv.
MEASURES = ('sce', 'symmetric_kl', 'js', 'entropy_first', 'top1_agreement')


def longest_segment(config: Any) -> int:
  """Returns the number of tokens of a segment of the test data.

  It is config.evaluate.segment, in units of L, if a configuration has this field and it
  is not 0: then a second window of the longest length may fit. Otherwise it is the
  longest of config.evaluate.lengths.
  """
  multiple = config.evaluate.get('segment', 0) or max(config.evaluate.lengths)
  return multiple * config.train.max_length


def draw_segments(config: Any, key: jax.Array, text: jax.Array) -> jax.Array:
  """Draws the test data of a seed, [segments, longest length] int32."""
  longest = longest_segment(config)
  starts = draw_starts(config, key, len(text))
  return text[starts[:, None] + jnp.arange(longest)[None]].astype(jnp.int32)


def draw_starts(config: Any, key: jax.Array, length: int) -> jax.Array:
  """Draws where segments of the test data begin in a text of a length, [segments]."""
  return jax.random.randint(
      key, (config.evaluate.num_segments,), 0, length - longest_segment(config) + 1)


def evaluate(
    config: Any, model: Llama, params: Any, segments: jax.Array,
    counts: jax.Array | None = None, *, measures: Sequence[str] = MEASURES,
) -> dict[str, dict[int, jax.Array]]:
  """Measures a model on segments of text [K, n]; see `evaluate_hidden`."""
  read: Any = functools.partial(model.apply, {'params': params}, method='hidden')
  return evaluate_hidden(
      config, read, output_table(model, params), segments, measures, counts)


def evaluate_hidden(
    config: Any, read: Callable[[jax.Array], jax.Array], table: jax.Array,
    segments: jax.Array, measures: Sequence[str] = MEASURES,
    counts: jax.Array | None = None,
) -> dict[str, dict[int, jax.Array]]:
  """Measures a model on segments of text, in one batch.

  Args:
    config: as in configs/language_model.py.
    read: the model, tokens [B, L] -> hidden states [B, L, D].
    table: its output embedding [V, D].
    segments: [K, n].
    measures: of misalignment, fields of `vvlen.objectives.measures.Measures`.
    counts: [K] bool, at least one True: which segments enter the means; None: all.

  Returns:
    {metric: {length: []}}. `nll` is log perplexity, nats a token, in blocks of this
    length; the first token of a block is not scored. The measures of misalignment are
    of two windows of this length, means over config.evaluate.offsets; they are missing
    at lengths for which the segments are too short for the second window. The first
    window begins with the segment; with config.evaluate.all_windows, others follow it
    without a gap, as long as there is room for their second windows.
  """
  size = segments.shape[1]
  found: dict[str, dict[int, Any]] = {'nll': {}, **{name: {} for name in measures}}
  for times in config.evaluate.lengths:
    length = times * config.train.max_length
    blocks = segments[:, :size // length * length].reshape(-1, length)
    scored = jnp.broadcast_to(jnp.arange(length) < length - 1, blocks.shape)
    found['nll'][length] = chunked_cross_entropy(
        read(blocks), table, jnp.roll(blocks, -1, axis=1),
        only_counted(scored, counts))
    offsets = [int(share * length) for share in config.evaluate.offsets]
    if length + max(offsets) > size:
      continue
    several = config.evaluate.get('all_windows', False)
    windows = (size - max(offsets)) // length if several else 1
    cut = lambda e, n=length, w=windows: segments[:, e:e + w * n].reshape(-1, n)
    weights = None if counts is None else jnp.repeat(counts, windows)
    mean = functools.partial(jnp.average, weights=weights)
    first = read(cut(0))
    pairs = [measures_of_hidden(first, read(cut(e)), table, e, by_sequence=True)
             for e in offsets]
    means = jax.tree.map(
        lambda *x, of=mean: jnp.stack([*map(of, x)]).mean(), *pairs)
    for name in measures:
      found[name][length] = getattr(means, name)
  return found


def only_counted(scored: jax.Array, counts: jax.Array | None) -> jax.Array:
  """Returns which tokens of windows are scored, [W, L] bool.

  Args:
    scored: [W, L] bool. The windows of a segment follow one another, equally many.
    counts: of the segments, as in `evaluate_hidden`.
  """
  if counts is None:
    return scored
  return scored & jnp.repeat(counts, len(scored) // len(counts))[:, None]


def rows_of(
    arm: str, seed: int, measured: dict[str, dict[int, float]],
    experiment: str = 'language_model',
) -> list[results.Row]:
  """Returns the rows of measured values."""
  return [
      results.Row(experiment, arm, seed, length, metric, float(value))
      for metric, by_length in measured.items() for length, value in by_length.items()
  ]
