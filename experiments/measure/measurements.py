"""What the measurements of a checkpoint share: lengths, bins, intervals and rows."""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.measure.rows import Name, Part
from vvlen import sharding
from vvlen.evaluation import programs
from vvlen.evaluation.programs import Hidden
from vvlen.models.llama.model import Llama, output_table
from vvlen.reporting import results
from vvlen.statistics import percentile_interval, resampled_means
from vvlen.training import finite

_FIRST = 32  # tokens that are read to check that logits are finite


class Subject(NamedTuple):
  """The model and the text that are measured."""

  model: Llama
  stream: np.ndarray  # tokens of the text [N] int32
  vocab_size: int  # of the tokenizer
  begin: int | None  # its BOS
  length: int  # L


class Measurement(NamedTuple):
  """One measurement, whose rows are written together."""

  name: Name  # unique
  work: int  # tokens times layers
  rows: Callable[[dict[str, Any]], list[results.Row]]  # variables -> rows


def row(part: Part, length: int | None, metric: str, value: Any) -> results.Row:
  """Returns a row, with seed 0."""
  return results.Row(
      seed=0, length=length, metric=metric, value=float(value), **part._asdict())


def check_finite(
    checkpoint: str, subject: Subject, variables: dict[str, Any]
) -> None:
  """Raises ValueError if weights, or logits of the text's first tokens, are not finite.

  The weights are checked too, because the first tokens do not use all of them.
  """
  bad = finite.bad_weights(variables['params'])
  (tokens, _), = programs.batches(subject.stream[None, :_FIRST], _FIRST)
  logits = jax.jit(lambda v, x: jnp.isfinite(subject.model.apply(v, x)).all())
  fine = bool(sharding.fetch(logits(variables, tokens)))
  if not fine:
    raise ValueError(f'{checkpoint}: the model\'s logits are not finite'
                     + (f', nor are its weights: {bad}' if bad else ''))
  if bad:
    raise ValueError(f'{checkpoint}: weights of the model are not finite: {bad}')


def interval(
    config: Any,
    part: Part,
    length: int | None,
    metric: str,
    values: np.ndarray,
    weights: np.ndarray | None = None,
) -> list[results.Row]:
  """Returns rows of a mean over sequences, and of its 95 % interval.

  The interval is from percentiles of a bootstrap, so it stays within the range of the
  values. The bootstrap draws the same samples for equally many values. A single value
  has no interval.

  Args:
    config: with the fields num_resamples and seed.
    part: of the rows.
    length: of the rows.
    metric: of the mean. Those of the ends of the interval have the suffixes _low and
      _high.
    values: [S].
    weights: [S], such as numbers of tokens; None: equal weights.
  """
  if weights is None:
    weights = np.ones(len(values))
  mean, *means = resampled_means(values, weights, config.num_resamples, config.seed)
  rows = [row(part, length, metric, mean)]
  if len(values) < 2:
    return rows
  low, high = percentile_interval(means, skip_nan=True)
  return [*rows, row(part, length, metric + '_low', low),
          row(part, length, metric + '_high', high)]


def by_piece(
    sums: np.ndarray, counts: np.ndarray, places: np.ndarray, size: int, pieces: int
) -> tuple[np.ndarray, np.ndarray]:
  """Joins windows of a text that are in the same piece of the text.

  Args:
    sums: [W], the summed loss of the scored tokens in each window.
    counts: [W], how many tokens these are.
    places: [W], the middle of these tokens in the text, which determines the piece of
      a window.
    size: tokens per piece.
    pieces: P, the number of pieces.

  Returns:
    Mean losses [P], 0 if no token is scored, and numbers of scored tokens [P].
  """
  piece = np.minimum(places // size, pieces - 1).astype(int)
  total = np.bincount(piece, sums, pieces)
  scored = np.bincount(piece, counts, pieces)
  return total / np.maximum(scored, 1), scored


def of_blocks(
    losses: np.ndarray, length: int, begin: int | None, size: int, pieces: int,
    first: int = 1, end: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Joins the losses of blocks that are in the same piece of a text; see `by_piece`.

  Args:
    losses: [W, length − 1], of the tokens after the first of each block.
    length: of a block, in tokens.
    begin: the token that each block begins with besides its text; None: none.
    size: tokens of a piece.
    pieces: their number.
    first: how many tokens of its block are before the first token that counts.
    end: the same of the first that does not count any more; None: all of them count.
  """
  end = length if end is None else end
  of_text = length - (begin is not None)
  middles = of_text * (np.arange(len(losses)) + 0.5)
  return by_piece(losses[:, first - 1 : end - 1].sum(1),
                  np.full(len(losses), end - first), middles, size, pieces)


def spaced(stream: np.ndarray, length: int, count: int) -> np.ndarray:
  """Returns sequences [S, length] that are spread over a text and do not overlap.

  S is `count`, or as many as fit into the text.
  """
  count = min(count, len(stream) // length)
  if count < 2:
    raise ValueError(
        f'the text has {len(stream):,} tokens, fewer than two sequences of {length:,}: '
        'use more text, a larger config.num_characters, or a smaller config.length'
    )
  starts = np.linspace(0, len(stream) - length, count).astype(int)
  return stream[starts[:, None] + np.arange(length)]


def octaves(shortest: int, longest: float, section: str) -> list[int]:
  """Returns the lengths shortest, 2 · shortest, 4 · shortest … up to `longest`."""
  lengths = [shortest * 2**i for i in range(64) if shortest * 2**i <= longest]
  if len(lengths) < 2:
    raise ValueError(f'config.{section}.shortest and longest allow fewer than two '
                     f'lengths: {shortest} up to {longest:g} tokens')
  return lengths


def bins(first: int, end: int) -> list[tuple[int, int]]:
  """Divides first..end − 1 into bins: single numbers below 8, then two per octave.

  Returns:
    (first number, last number + 1) of each bin.
  """
  wide = (x << i for i in range(64) for x in (8, 12))
  edges = [*range(first, 8), *wide]
  edges = sorted(x for x in edges if first <= x < end)
  return list(zip(edges, [*edges[1:], end], strict=True))


def times(length: int, factors: Sequence[float], name: str, least: int) -> list[int]:
  """Returns multiples of L as whole numbers in ascending order."""
  lengths = sorted({round(factor * length) for factor in factors})
  if not lengths or lengths[0] < least:
    raise ValueError(f'config.{name} must give windows of at least {least} tokens: '
                     f'{tuple(factors)} x {length}')
  return lengths


def layers_of(config: Any, section: str, model: Llama) -> list[int]:
  """Returns the layers that a section of a configuration chooses."""
  return _chosen(config, section, 'layers', model.num_layers)


def heads_of(config: Any, section: str, model: Llama) -> list[int]:
  """Returns the heads that a section of a configuration chooses."""
  return _chosen(config, section, 'heads', model.num_heads)


def _chosen(config: Any, section: str, name: str, count: int) -> list[int]:
  """Returns the chosen ones of `count` layers or heads; all if none are given."""
  chosen = list(config[section][name]) or list(range(count))
  for one in chosen:
    if one >= count:
      raise ValueError(f'config.{section}.{name}: the model has {name} 0 to '
                       f'{count - 1}, not {one!r}')
  return chosen


def longest_window(config: Any, length: int) -> int:
  """Returns the number of tokens in the longest window of a configuration."""
  factors = (*config.perplexity.lengths, *config.misalignment.lengths,
             config.spread.longest, config.entropy.longest)
  return max(round(max(factors) * length), config.recency.num_tokens)


def scored(config: Any, subject: Subject) -> int:
  """Returns how many tokens perplexity reads: the first whole windows."""
  longest = round(max(config.perplexity.lengths) * subject.length)
  return min(config.perplexity.num_windows, len(subject.stream) // longest) * longest


def hidden_of(model: Llama) -> Callable[[dict[str, Any]], Hidden]:
  """Returns a function variables -> `Hidden`, compiled once for all calls."""
  states = jax.jit(functools.partial(model.apply, method='hidden'))
  return lambda variables: Hidden(
      functools.partial(states, variables), output_table(model, variables['params'])
  )
