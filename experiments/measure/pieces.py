"""Parts of what `experiments.measure` measures, and lengths, bins and rows of them."""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vvlen import sharding
from vvlen.evaluation import programs
from vvlen.evaluation.programs import Hidden
from vvlen.models.llama.model import Llama, output_table
from vvlen.reporting import results
from vvlen.statistics import resampled_means

_FIRST = 32  # tokens that are read to see whether a model works


class Subject(NamedTuple):
  """What is measured."""

  model: Llama
  stream: np.ndarray  # tokens of the text [N] int32
  vocab_size: int  # of the tokenizer
  begin: int | None  # its BOS
  length: int  # L


class Cell(NamedTuple):
  """A part of the measurements."""

  name: str  # another one for each
  work: int  # tokens times layers
  rows: Callable[[dict[str, Any]], list[results.Row]]  # of the variables


def row(arm: str, length: int | None, metric: str, value: Any) -> results.Row:
  """Returns a row; there is one seed."""
  return results.Row('measure', arm, 0, length, metric, float(value))


def check_finite(
    checkpoint: str, subject: Subject, variables: dict[str, Any]
) -> None:
  """Raises ValueError if weights, or logits of the text's first tokens, are not finite.

  Weights too: the first tokens do not use all of them.
  """
  paths, leaves = zip(*jax.tree_util.tree_leaves_with_path(variables['params']),
                      strict=True)
  ok = jax.jit(lambda xs: jnp.stack([jnp.isfinite(x).all() for x in xs]))
  bad = [jax.tree_util.keystr(path, simple=True, separator='/') for path, fine in
         zip(paths, sharding.fetch(ok(leaves)), strict=True) if not fine]
  (tokens, _), = programs.batches(subject.stream[None, :_FIRST], _FIRST)
  logits = jax.jit(lambda v, x: jnp.isfinite(subject.model.apply(v, x)).all())
  fine = bool(sharding.fetch(logits(variables, tokens)))
  weights = ', '.join(bad[:3]) + (f' and {len(bad) - 3} more' if bad[3:] else '')
  if not fine:
    raise ValueError(f'{checkpoint}: the model\'s logits are not finite'
                     + (f', nor are its weights: {weights}' if bad else ''))
  if bad:
    raise ValueError(f'{checkpoint}: weights of the model are not finite: {weights}')


def interval(
    config: Any,
    arm: str,
    length: int | None,
    metric: str,
    values: np.ndarray,
    weights: np.ndarray | None = None,
) -> list[results.Row]:
  """Returns rows of the mean over sequences, and of its 95 % interval.

  That is of percentiles, by bootstrap: it stays where values can be. As many values are
  always drawn alike. One alone has no interval.

  Args:
    config: says how many samples of sequences, and their seed.
    arm: of the rows.
    length: of the rows.
    metric: of the mean; those of the interval end in _low and _high.
    values: [S].
    weights: [S], of values in the mean, such as how many tokens they are of; None: all
      alike.
  """
  if weights is None:
    weights = np.ones(len(values))
  mean, *means = resampled_means(values, weights, config.num_resamples, config.seed)
  rows = [row(arm, length, metric, mean)]
  if len(values) < 2:
    return rows
  low, high = np.nanquantile(means, (0.025, 0.975))
  return [*rows, row(arm, length, metric + '_low', low),
          row(arm, length, metric + '_high', high)]


def by_piece(
    sums: np.ndarray, counts: np.ndarray, places: np.ndarray, size: int, pieces: int
) -> tuple[np.ndarray, np.ndarray]:
  """Joins windows of a text that are in the same piece of it.

  Args:
    sums: of losses of the scored tokens of each window, [W].
    counts: of these tokens, [W].
    places: of the middle of them in the text, [W], which says to which piece a window
      belongs that is in two.
    size: tokens of a piece.
    pieces: P, how many there are.

  Returns:
    Mean losses [P], 0 where nothing is scored, and tokens that are scored [P].
  """
  piece = np.minimum(places // size, pieces - 1).astype(int)
  total = np.bincount(piece, sums, pieces)
  scored = np.bincount(piece, counts, pieces)
  return total / np.maximum(scored, 1), scored


def spaced(stream: np.ndarray, length: int, count: int) -> np.ndarray:
  """Returns sequences [S, length] that are spread over a text and do not overlap.

  S is `count`, or as many as there are.
  """
  count = min(count, len(stream) // length)
  if count < 2:
    raise ValueError(
        f'the text has {len(stream):,} tokens, fewer than two sequences of {length:,}: '
        'give more text, a larger config.num_characters, or a smaller config.length'
    )
  starts = np.linspace(0, len(stream) - length, count).astype(int)
  return stream[starts[:, None] + np.arange(length)]


def octaves(shortest: int, longest: float, section: str) -> list[int]:
  """Returns shortest, 2 shortest, 4 shortest … up to `longest`."""
  lengths = [shortest * 2**i for i in range(64) if shortest * 2**i <= longest]
  if len(lengths) < 2:
    raise ValueError(f'config.{section}.shortest and longest leave fewer than two '
                     f'lengths: {shortest} up to {longest:g} tokens')
  return lengths


def bins(first: int, end: int) -> list[tuple[int, int]]:
  """Cuts first..end − 1 at each number up to 8, then twice in an octave.

  Returns:
    For each bin its first number, and the one after its last.
  """
  wide = (x << i for i in range(64) for x in (8, 12))
  edges = [*range(first, 8), *wide]
  edges = sorted(x for x in edges if first <= x < end)
  return list(zip(edges, [*edges[1:], end], strict=True))


def times(length: int, factors: Sequence[float], name: str, least: int) -> list[int]:
  """Returns multiples of L as whole numbers, rising."""
  lengths = sorted({round(factor * length) for factor in factors})
  if not lengths or lengths[0] < least:
    raise ValueError(f'config.{name} must make windows of at least {least} tokens: '
                     f'{tuple(factors)} x {length}')
  return lengths


def layers_of(config: Any, section: str, model: Llama) -> list[int]:
  return _chosen(config, section, 'layers', model.num_layers)


def heads_of(config: Any, section: str, model: Llama) -> list[int]:
  return _chosen(config, section, 'heads', model.num_heads)


def _chosen(config: Any, section: str, name: str, count: int) -> list[int]:
  """Returns what is asked for of `count` layers or heads, all where nothing is."""
  chosen = list(config[section][name]) or list(range(count))
  for one in chosen:
    if type(one) is not int or not 0 <= one < count:
      raise ValueError(f'config.{section}.{name}: the model has {name} 0 to '
                       f'{count - 1}, not {one!r}')
  return chosen


def longest_window(config: Any, length: int) -> int:
  """Returns how many tokens the longest window of a configuration has at L."""
  factors = (*config.perplexity.lengths, *config.misalignment.lengths,
             config.spread.longest, config.entropy.longest)
  return max(round(max(factors) * length), config.recency.num_tokens)


def scored(config: Any, subject: Subject) -> int:
  """Returns how many tokens perplexity reads: whole windows, from the first on."""
  longest = round(max(config.perplexity.lengths) * subject.length)
  return min(config.perplexity.num_windows, len(subject.stream) // longest) * longest


def hidden_of(model: Llama) -> Callable[[dict[str, Any]], Hidden]:
  """Returns what makes `Hidden` of variables, compiled once for all calls."""
  states = jax.jit(functools.partial(model.apply, method='hidden'))
  return lambda variables: Hidden(
      functools.partial(states, variables), output_table(model, variables['params'])
  )
