"""Loss by length of context, the logarithm of perplexity, of any language model.

A text of N tokens is read in windows of L, each with positions from 0. Scored is what a
window tells of its own tokens, −log p(x_i | x_0 … x_{i−1}) in nats:

  blocks    windows that do not overlap; every token but the first is scored
  sliding   a window every s tokens, of which the last s are scored, and of the first
            one every token but its first: each has at least L − s tokens before it

What is left at the end of the text, shorter than a window or than s, is dropped. With
`begin`, such as BOS, each window is that token and L − 1 of the text, all of which may
be scored: a window never holds more than L. Means are over tokens, in float64 of
float32 losses. State L, s and `begin` with every number.

A model is a function from tokens to logits, or `Hidden`: of that no more logits exist
at once than `vvlen.evaluation.programs.chunk_size` says, however long a window is.

Axes: W windows, L tokens of a window, V words.
"""

from collections.abc import Iterator
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vvlen import sharding
from vvlen.evaluation.programs import (
  Apply,
  batches,
  chunk_size,
  Hidden,
  Model,
  program_of,
)
from vvlen.objectives.chunked_rows import token_losses
from vvlen.objectives.cross_entropy import check_tokens, token_cross_entropy

# Tokens of the windows that a model reads at once.
_TOKENS_AT_ONCE = 8192


def block_nll(
    apply_fn: Model,
    tokens: np.ndarray | jax.Array,
    length: int,
    *,
    begin: int | None = None,
    tokens_at_once: int = _TOKENS_AT_ONCE,
) -> float:
  """Returns the mean loss of blocks of one length.

  Args:
    apply_fn: the model, tokens [B, L] -> logits [B, L, V], or `Hidden`, under jit or
      not. It is compiled once for a length, its weights as arguments; see
      `vvlen.evaluation.programs.program_of` for how to compile it once for all calls.
    tokens: [N] integers, N at least L, or L − 1 with `begin`.
    length: L, at least 2.
    begin: the token to put before each block; None for none.
    tokens_at_once: about so many tokens are read at once, at least a window. What takes
      the most memory is their logits, float32, but of `Hidden` at most 512 MiB of them,
      or those of a position, and some arrays of that size to compute their losses.

  Returns:
    Nats per scored token; perplexity is its exponential.

  Raises:
    ValueError: if tokens are not integers [N] of the vocabulary, are fewer than one
      window, or the length is less than 2.
  """
  by_position = nll_by_position(
      apply_fn, tokens, length, begin=begin, tokens_at_once=tokens_at_once
  )
  return float(by_position.mean())


def nll_by_position(
    apply_fn: Model,
    tokens: np.ndarray | jax.Array,
    length: int,
    *,
    begin: int | None = None,
    tokens_at_once: int = _TOKENS_AT_ONCE,
) -> np.ndarray:
  """Returns the mean loss of blocks by position; arguments as in `block_nll`.

  Returns:
    [L − 1] float64, of tokens that have 1, 2, … L − 1 before them in their window.
    Their mean is `block_nll`.
  """
  losses = _losses(apply_fn, tokens, length, None, begin, tokens_at_once)
  total: Any = 0.0
  count = 0
  for some in losses:
    total, count = total + some.sum(0), count + len(some)
  return total / count


def block_losses(
    apply_fn: Model,
    tokens: np.ndarray | jax.Array,
    length: int,
    *,
    begin: int | None = None,
    tokens_at_once: int = _TOKENS_AT_ONCE,
) -> np.ndarray:
  """Returns the losses of all scored tokens of blocks; arguments as in `block_nll`.

  Returns:
    [W, L − 1] float64. The mean over windows is `nll_by_position`.
  """
  losses = _losses(apply_fn, tokens, length, None, begin, tokens_at_once)
  return np.concatenate([*losses])


def sliding_nll(
    apply_fn: Model,
    tokens: np.ndarray | jax.Array,
    window: int,
    stride: int,
    *,
    begin: int | None = None,
    tokens_at_once: int = _TOKENS_AT_ONCE,
) -> float:
  """Returns the mean loss of a sliding window.

  Args:
    apply_fn: as all that is not told of here, as in `block_nll`.
    tokens: [N] integers.
    window: L.
    stride: s, in 1..L − 1.
    begin: the token to put before each window.
    tokens_at_once: tokens that are read at once.

  Returns:
    Nats per scored token: there are (L − 1) + (W − 1) s of them in W windows.

  Raises:
    ValueError: if the stride is outside, or as `block_nll`.
  """
  total, count = sliding_sums(
      apply_fn, tokens, window, stride, begin=begin, tokens_at_once=tokens_at_once
  )
  return float(total.sum() / count.sum())


def sliding_sums(
    apply_fn: Model,
    tokens: np.ndarray | jax.Array,
    window: int,
    stride: int,
    *,
    begin: int | None = None,
    tokens_at_once: int = _TOKENS_AT_ONCE,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns what each sliding window adds to `sliding_nll`; arguments as there.

  Returns:
    The sum of the losses of its scored tokens, [W] float64, and their number, [W].
  """
  if not 1 <= stride < window:
    raise ValueError(f'stride must be in 1..{window - 1}: {stride}')
  losses = _losses(apply_fn, tokens, window, stride, begin, tokens_at_once)
  sums: list[float] = []
  for some in losses:
    if not sums:  # of the first window the others too
      sums.append(some[0].sum())
      some = some[1:]
    sums += some[:, -stride:].sum(1).tolist()
  counts = np.full(len(sums), stride)
  counts[0] = window - 1
  return np.array(sums), counts


def _losses(
    apply_fn: Model,
    tokens: np.ndarray | jax.Array,
    length: int,
    stride: int | None,
    begin: int | None,
    tokens_at_once: int,
) -> Iterator[np.ndarray]:
  """Yields losses of all but the first token of windows, [some, L − 1] float64.

  Windows come one every `stride` tokens of the text; None: without overlap.
  """
  tokens = np.asarray(tokens)
  if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
    raise ValueError(f'tokens must be integers [N]: {tokens.dtype} {tokens.shape}')
  if length < 2:
    raise ValueError(f'the length of a window must be at least 2: {length}')
  of_text = length - (begin is not None)
  if tokens.size < of_text:
    raise ValueError(f'the text has {tokens.size} tokens, fewer than the {of_text} of '
                     'a window')
  # A view: windows that overlap take no memory.
  windows = np.lib.stride_tricks.sliding_window_view(tokens, of_text)
  windows = windows[::stride or of_text]
  losses_of = None
  for some, new in batches(windows, tokens_at_once, begin):
    if losses_of is None:
      losses_of, logits_shape = _program(apply_fn, some)
      known: Any = np.append(tokens, tokens[:1] if begin is None else begin)[None]
      check_tokens(known, (*known.shape, logits_shape[-1]))
      check_tokens(some, logits_shape)
    yield sharding.fetch(losses_of(some))[:new].astype(np.float64)


def _program(model: Model, windows: jax.Array) -> tuple[Apply, tuple[int, ...]]:
  """Returns the losses of windows as a program, and the shape of the logits."""
  if not isinstance(model, Hidden):
    apply, shape = _outputs(model, windows)
    return lambda x: _of_logits(jnp.asarray(apply(x)), x), shape
  states, shape = _outputs(model.states, windows)
  embedding = model.embedding
  size = chunk_size(windows.shape[0], windows.shape[1], len(embedding))
  losses_of = lambda x: _of_hidden(jnp.asarray(states(x)), embedding, x, size)
  return losses_of, (*shape[:-1], len(embedding))


def _outputs(apply_fn: Apply, windows: jax.Array) -> tuple[Apply, tuple[int, ...]]:
  """Returns a function, under jit where it can be, and the shape of what it returns."""
  try:
    apply, outputs = program_of(apply_fn, windows)
    return apply, outputs.shape
  except jax.errors.JAXTypeError:  # it cannot be traced
    return apply_fn, np.shape(apply_fn(windows))


@jax.jit
def _of_logits(logits, windows):
  return token_cross_entropy(logits[:, :-1], windows[:, 1:])


@functools.partial(jax.jit, static_argnums=3)
def _of_hidden(hidden, embedding, windows, size):
  return token_losses(hidden[:, :-1], embedding, windows[:, 1:], chunk_size=size)
