"""Log perplexity of any language model by length of context.

A text of N tokens is read in windows of L tokens, each with positions from 0. The loss
of a token is −log p(x_i | x_0 … x_{i−1}) in nats, given the tokens before it in its
window. Log perplexity is the mean loss of the scored tokens:

  blocks    windows that do not overlap; every token but the first is scored
  sliding   a window every s tokens; its last s tokens are scored, each with at least
            L − s tokens before it; in the first window all tokens but the first are
            scored

Tokens left over at the end of the text, too few for a window or for s, are dropped.
With `begin`, such as BOS, each window is that token and L − 1 tokens of the text, all
of which may be scored: a window never has more than L tokens. Losses are float32, means
float64. Report L, s and `begin` with every number.

A model is a function from tokens to logits, or `Hidden`, whose logits are computed for
only `vvlen.evaluation.programs.chunk_size` positions at once, however long a window is.

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

# The approximate number of tokens that a model reads at once.
_TOKENS_AT_ONCE = 8192


def block_nll(
    apply_fn: Model,
    tokens: np.ndarray | jax.Array,
    length: int,
    *,
    begin: int | None = None,
    tokens_at_once: int = _TOKENS_AT_ONCE,
) -> float:
  """Returns log perplexity in blocks of one length.

  Args:
    apply_fn: the model, tokens [B, L] -> logits [B, L, V], or `Hidden`. It is compiled
      once per call, with its weights as arguments; a function that is already under
      jit is compiled only once for all calls of one length.
    tokens: [N] integers, N at least L, or L − 1 with `begin`.
    length: L, at least 2.
    begin: the token to put before each block; None for none.
    tokens_at_once: approximate number of tokens read at once; at least one window.
      Memory: the float32 logits of these tokens, and a few arrays of that size. With
      `Hidden`: at most 512 MiB of logits, or those of one position.

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
  """Returns log perplexity in blocks by position; arguments as in `block_nll`.

  Returns:
    [L − 1] float64, of tokens with 1, 2, … L − 1 tokens before them in their window.
    The mean is `block_nll`.
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
  """Returns log perplexity in a sliding window.

  Args:
    apply_fn: the model, as in `block_nll`.
    tokens: [N] integers, as in `block_nll`.
    window: L.
    stride: s, in 1..L − 1.
    begin: the token to put before each window; None for none.
    tokens_at_once: as in `block_nll`.

  Returns:
    Nats per scored token; W windows have (L − 1) + (W − 1) s scored tokens.

  Raises:
    ValueError: if the stride is not in 1..L − 1, or as in `block_nll`.
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
  """Returns what each sliding window adds to `sliding_nll`, for the same arguments.

  Returns:
    The sum of the losses of its scored tokens, [W] float64, and their number, [W].
  """
  if not 1 <= stride < window:
    raise ValueError(f'stride must be in 1..{window - 1}: {stride}')
  losses = _losses(apply_fn, tokens, window, stride, begin, tokens_at_once)
  sums: list[float] = []
  for some in losses:
    if not sums:  # of the first window, all losses count
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

  A window begins every `stride` tokens of the text; None: windows do not overlap.
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
  """Returns a function from windows to their losses, and the shape of the logits."""
  if not isinstance(model, Hidden):
    apply, shape = _outputs(model, windows)
    return lambda x: _of_logits(jnp.asarray(apply(x)), x), shape
  states, shape = _outputs(model.states, windows)
  embedding = model.embedding
  size = chunk_size(windows.shape[0], windows.shape[1], len(embedding))
  losses_of = lambda x: _of_hidden(jnp.asarray(states(x)), embedding, x, size)
  return losses_of, (*shape[:-1], len(embedding))


def _outputs(apply_fn: Apply, windows: jax.Array) -> tuple[Apply, tuple[int, ...]]:
  """Returns a function, under jit if it can be, and the shape of what it returns."""
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
