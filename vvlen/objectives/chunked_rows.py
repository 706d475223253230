"""Losses and measures of each row from hidden states, without the logits of all rows.

Logits are z = h Eᵀ. Training needs a loss summed over rows, which is in
`vvlen.objectives.chunked`; evaluation needs the loss of each row, and the measures of
two windows. Positions are taken a chunk at a time: only the logits [B, chunk_size, V]
of one chunk (two with two windows) and arrays computed from them exist at once; of the
other positions, only results [B, L] are kept.

Not for training: a gradient would keep what each chunk computes. Chunks are cut along
positions, so a batch stays sharded as it is, and so does a vocabulary (E sharded along
its first axis, under jit).

Axes: B sequences, L positions, D width, V words.
"""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vvlen.objectives.chunked import CHUNK_SIZE
from vvlen.objectives.cross_entropy import check_tokens, token_cross_entropy
from vvlen.objectives.measures import mean_over_rows, Measures, measures_of_rows
from vvlen.objectives.misalignment import check_two_windows, compared_rows
from vvlen.objectives.over_chunks import check_shapes, split_chunks


def token_losses(
    hidden: jax.Array,
    embedding: jax.Array,
    targets: jax.Array,
    *,
    chunk_size: int = CHUNK_SIZE,
) -> jax.Array:
  """Returns −log softmax(h Eᵀ)[y] of each row.

  Args:
    hidden: h [B, L, D].
    embedding: E [V, D], the output embedding, cast to the dtype of h; logits and sums
      are float32 or wider.
    targets: y [B, L], integers in 0..V−1, the target of each row: the caller shifts the
      tokens. A target outside gives nan, or, outside jit, an error.
    chunk_size: positions per chunk; logits [B, chunk_size, V] exist at once.

  Returns:
    [B, L] in nats, float32 or float64.

  Raises:
    ValueError: if shapes do not fit, chunk_size is not positive, or a target is not in
      the vocabulary.
  """
  check_shapes(hidden, embedding, chunk_size)
  check_tokens(targets, (*hidden.shape[:2], embedding.shape[0]))
  return _token_losses(hidden, embedding, targets, chunk_size)


class Scores(NamedTuple):
  """How the logits score the target of each row, each [B, L]."""

  losses: jax.Array  # −log softmax(h Eᵀ)[y] in nats, float32 or float64
  is_best: jax.Array  # bool, whether y is the most probable word, the first of equals


def token_scores(
    hidden: jax.Array,
    embedding: jax.Array,
    targets: jax.Array,
    *,
    chunk_size: int = CHUNK_SIZE,
) -> Scores:
  """Returns the losses of targets, and which of them are the most probable word.

  Arguments and errors are those of `token_losses`, which returns the same losses.
  """
  check_shapes(hidden, embedding, chunk_size)
  check_tokens(targets, (*hidden.shape[:2], embedding.shape[0]))
  return _token_scores(hidden, embedding, targets, chunk_size)


def measures_of_hidden(
    hidden_first: jax.Array,
    hidden_second: jax.Array,
    embedding: jax.Array,
    offset: int | jax.Array,
    *,
    whole_overlap: bool = False,
    by_sequence: bool = False,
    chunk_size: int = CHUNK_SIZE,
) -> Measures:
  """Returns `vvlen.objectives.misalignment.measures` of the logits h Eᵀ.

  Args:
    hidden_first: h [B, L, D], of tokens[0 : L].
    hidden_second: h [B, L, D], of tokens[offset : L + offset].
    embedding: E [V, D], the output embedding, as in `token_losses`.
    offset: e, in 1..L//2−1, or 1..L−1 with `whole_overlap`; a traced offset outside
      gives nan.
    whole_overlap: compares rows [e, L) of the first window with [0, L−e) of the second.
    by_sequence: whether to return the measures of each sequence, not their means.
    chunk_size: positions per chunk; logits [2, B, chunk_size, V] exist at once.

  Returns:
    Scalars, or [B] with `by_sequence`, float32 or float64.

  Raises:
    ValueError: if shapes do not fit, chunk_size is not positive, or a concrete offset
      is out of range.
  """
  check_two_windows(hidden_first.shape, hidden_second.shape, offset, whole_overlap)
  check_shapes(hidden_first, embedding, chunk_size)
  offset = jnp.asarray(offset, jnp.int32)
  found = _measures(
      hidden_first, hidden_second, embedding, offset, whole_overlap, chunk_size)
  return found if by_sequence else jax.tree.map(lambda x: x.mean(), found)


# Under jit, because otherwise each call would compile its loop again.
@functools.partial(jax.jit, static_argnums=3)
def _token_losses(hidden, embedding, targets, chunk_size):
  return _over_chunks(token_cross_entropy, (hidden,), embedding, (targets,), chunk_size)


@functools.partial(jax.jit, static_argnums=3)
def _token_scores(hidden, embedding, targets, chunk_size):

  def scores(logits, targets):
    return Scores(token_cross_entropy(logits, targets), logits.argmax(-1) == targets)

  return _over_chunks(scores, (hidden,), embedding, (targets,), chunk_size)


@functools.partial(jax.jit, static_argnums=(4, 5))
def _measures(first, second, embedding, offset, whole_overlap, chunk_size):
  first, second, weights = compared_rows(first, second, offset, whole_overlap)
  rows = _over_chunks(measures_of_rows, (first, second), embedding, (), chunk_size)
  return mean_over_rows(rows, weights)


def _over_chunks(
    function: Callable[..., Any],
    hidden: tuple[jax.Array, ...],
    embedding: jax.Array,
    others: tuple[jax.Array, ...],
    chunk_size: int,
) -> Any:
  """Applies a function to rows, chunk by chunk; returns its pytree, of [B, R].

  Args:
    function: (*logits [B, c, V], *others [B, c]) -> a pytree of [B, c].
    hidden: each [B, R, D].
    embedding: [V, D].
    others: each [B, R].
    chunk_size: c.
  """
  table = embedding.astype(hidden[0].dtype)
  wide = jnp.promote_types(table.dtype, jnp.float32)
  logits = functools.partial(jnp.einsum, 'bcd,vd->bcv', preferred_element_type=wide)

  def chunk(rows):
    of_hidden, of_others = rows
    return function(*(logits(x, table) for x in of_hidden), *of_others)

  split = lambda arrays: tuple(split_chunks(x, 1, chunk_size) for x in arrays)
  found = jax.lax.map(chunk, (split(hidden), split(others)))
  size = hidden[0].shape[1]
  join = lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)[:, :size]
  return jax.tree.map(join, found)
