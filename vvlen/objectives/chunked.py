"""Losses from hidden states and the output embedding, without the logits of all rows.

Logits are z = h Eᵀ, for hidden states h [rows, D] and an embedding E [V, D]. With V =
128,256 and 8,192 rows they are the largest array in training, and a loss keeps several
arrays of their size for its gradient. Here rows are taken a chunk at a time, and the
gradient g in the logits of a chunk is computed together with the loss:

  ∂loss/∂h = g E    (of the chunk),    ∂loss/∂E = Σ over chunks of gᵀ h

So nothing of a chunk is kept and nothing is computed twice: the backward pass only
multiplies by a number. The cost is three products of 2 · rows · V · D operations, as
many as the plain loss needs, and for each chunk a pass over the sum [V, D], so chunks
should not be small. The idea is known as cut or chunked cross-entropy (arXiv
2411.09009).

With two windows of one stream, [0, L) and [e, L + e), row r + e (mod L) of the first is
taken together with row r of the second, so that each row's logits are computed once.
All rows enter the cross-entropy, those without a next token with weight 0; rows
L//2 <= r < L − e are also compared (0 <= r < L − e with `whole_overlap`). Blocks of a
chunk without such rows skip the comparison.

Logits and sums are float32, also for bfloat16 inputs, or float64 for float64 inputs.
Factors of products have the dtype of h and E, so g is rounded to bfloat16 if both are.
Chunks are cut along positions, so a batch stays sharded as it is. So does a vocabulary
(E sharded along its first axis, under jit): then maxima, sums and ∂loss/∂h of rows
cross devices, but logits do not. If the axes of the mesh are Explicit, the default of
`jax.make_mesh`, call jax.sharding.auto_axes(loss, out_sharding=PartitionSpec()).

Second derivatives and forward mode are not supported. Under vmap over offsets, the
comparison is computed for all rows.
"""

import functools

import jax
import jax.numpy as jnp

from vvlen.objectives.cross_entropy import check_tokens, token_cross_entropy
from vvlen.objectives.divergences import of_rows
from vvlen.objectives.misalignment import (
  check_two_windows,
  check_weight,
  Divergence,
  overlap_weights,
  symmetric_cross_entropy,
)
from vvlen.objectives.over_chunks import (
    all_first,
    check_shapes,
    num_blocks,
    over_chunks,
    split_chunks,
    wide_dtype,
)

# In positions. On two CPU cores, chunks of 128 to 512 rows were faster than smaller
# ones and than all rows at once (V = 32,000, D = 256); at V = 128,256, D = 2,048,
# chunks of 2 x 128 rows take 4 % of the memory of the plain loss (bfloat16: 8 %). On an
# accelerator with enough memory, larger chunks save passes over [V, D]; but with two
# windows and a batch of 8, 128 positions are 2,048 rows already.
CHUNK_SIZE = 128


def chunked_cross_entropy(
    hidden: jax.Array,
    embedding: jax.Array,
    targets: jax.Array,
    mask: jax.Array | None = None,
    *,
    chunk_size: int = CHUNK_SIZE,
) -> jax.Array:
  """Returns the mean of −log softmax(h Eᵀ)[y] over rows.

  Args:
    hidden: h [B, L, D].
    embedding: E [V, D], the output embedding.
    targets: y [B, L], integers in 0..V−1, the target of each row: the caller shifts the
      tokens. A target that counts and is outside gives nan, or, outside jit, an error.
    mask: [B, L] bool, True for rows that count; None for all. If none counts, the
      result is nan.
    chunk_size: positions per chunk; logits [B, chunk_size, V] exist at once.

  Returns:
    A scalar in nats, float32 or float64, with gradients in h and E.

  Raises:
    ValueError: if shapes do not fit, the mask is not bool, chunk_size is not positive,
      or a target is not in the vocabulary.
  """
  _check(hidden, embedding, chunk_size)
  if mask is None:
    mask = jnp.ones(targets.shape, bool)
  if mask.shape != targets.shape or mask.dtype != bool:
    raise ValueError('mask must be bool, of the shape of targets: '
                     f'{mask.dtype} {mask.shape}, {targets.shape}')
  targets = jnp.where(mask, targets, 0)
  check_tokens(targets, (*hidden.shape[:2], embedding.shape[0]))
  return _cross_entropy(hidden, embedding, targets, mask, chunk_size)


def chunked_two_window_loss(
    hidden_first: jax.Array,
    hidden_second: jax.Array,
    embedding: jax.Array,
    tokens_first: jax.Array,
    tokens_second: jax.Array,
    offset: int | jax.Array,
    weight: float | jax.Array,
    *,
    chunk_size: int = CHUNK_SIZE,
    divergence: Divergence = symmetric_cross_entropy,
    whole_overlap: bool = False,
    sequence_weights: jax.Array | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Returns `two_window_loss` of the logits h Eᵀ, and its metrics.

  Args:
    hidden_first: h [B, L, D], of `tokens_first`.
    hidden_second: h [B, L, D], of `tokens_second`.
    embedding: E [V, D], the output embedding.
    tokens_first: [B, L], integers in 0..V−1.
    tokens_second: [B, L], `offset` tokens further on in the same stream.
    offset: e, in 1..L//2−1, or 1..L−1 with `whole_overlap`; a traced offset outside
      gives nan. Under jit one program serves all offsets.
    weight: α, finite and at least 0.
    chunk_size: positions per chunk; logits [2, B, chunk_size, V] exist at once.
    divergence: of rows, in place of SCE.
    whole_overlap: compares rows [e, L) of the first window with [0, L−e) of the second.
    sequence_weights: [B], by which the terms of each sequence are summed, such as 0 for
      one that only fills up the batch; None: 1/B each, for means.

  Returns:
    The loss, a scalar, float32 or float64, with gradients in both h, in E and in α; and
    the metrics of `two_window_loss`, without gradients.

  Raises:
    ValueError: as in `two_window_loss`, or if shapes of hidden states, embedding and
      sequence_weights do not fit or chunk_size is not positive.
  """
  check_two_windows(hidden_first.shape, hidden_second.shape, offset, whole_overlap)
  _check(hidden_first, embedding, chunk_size)
  logits_shape = (*hidden_first.shape[:2], embedding.shape[0])
  check_tokens(tokens_first, logits_shape)
  check_tokens(tokens_second, logits_shape)
  check_weight(weight)
  if sequence_weights is not None and sequence_weights.shape != hidden_first.shape[:1]:
    raise ValueError(f'sequence_weights must be [B], B = {len(hidden_first)}: '
                     f'{tuple(sequence_weights.shape)}')
  return _two_windows(
      (hidden_first, hidden_second), embedding, (tokens_first, tokens_second),
      jnp.asarray(offset, jnp.int32), weight, sequence_weights, chunk_size, divergence,
      whole_overlap,
  )


# Under jit, because otherwise each call would compile its scan again.
@functools.partial(jax.jit, static_argnums=4)
def _cross_entropy(hidden, embedding, targets, mask, chunk_size):
  dtype = wide_dtype(hidden, embedding)
  count = mask.sum(dtype=dtype)
  # nan is written out: XLA would turn the quotient 0 / 0 into 0.
  share = jnp.where(count > 0, 1 / count, jnp.nan)
  weights = jnp.where(mask | (count == 0), share, jnp.zeros_like(share))
  constants = tuple(split_chunks(x, 1, chunk_size) for x in (targets, weights))
  rows = (split_chunks(hidden, 1, chunk_size),)
  loss, _ = over_chunks(
      (_cross_entropy_terms,), rows, embedding, constants, all_first(rows),
      jnp.ones(1, dtype),
  )
  return loss


def _cross_entropy_terms(logits, constants):
  targets, weights = constants
  return (token_cross_entropy(logits[0], targets) * weights).sum()[None]


@functools.partial(jax.jit, static_argnums=(6, 7, 8))
def _two_windows(
    hidden, embedding, tokens, offset, weight, sequence_weights, chunk_size, divergence,
    whole_overlap,
):
  batch, length, _ = hidden[0].shape
  dtype = wide_dtype(hidden[0], embedding)
  # Moves row r + e (mod L) of the first window to row r.
  beside = lambda first, second: (jnp.roll(first, -offset, 1), second)
  split = lambda arrays: tuple(split_chunks(x, 1, chunk_size) for x in arrays)
  targets = beside(*(jnp.pad(x[:, 1:], ((0, 0), (0, 1))) for x in tokens))
  rows = jnp.arange(length)
  has_next = jnp.where(rows < length - 1, 1 / (batch * (length - 1)), 0.0)
  has_next = jnp.broadcast_to(has_next.astype(dtype), (batch, length))
  compared = overlap_weights(
      (rows + offset) % length, length, offset, whole_overlap, dtype
  ) / batch
  compared = jnp.broadcast_to(compared, (batch, length))
  if sequence_weights is not None:
    times = batch * sequence_weights.astype(dtype)[:, None]
    has_next, compared = has_next * times, compared * times
  [compared] = split([compared])
  # Blocks whose weights are all 0 skip the comparison; weights of nan do not.
  blocks = num_blocks(compared.shape[-1])
  which = compared.reshape(*compared.shape[:2], blocks, -1)
  which = (which != 0).any(axis=(1, 3)).astype(jnp.int32)
  half = jnp.asarray(0.5, dtype)
  loss, terms = over_chunks(
      (_next_token_terms, functools.partial(_two_window_terms, divergence)),
      split(beside(*hidden)), embedding,
      (split(targets), split(beside(has_next, has_next)), compared), which,
      jnp.stack([half, half, jnp.asarray(weight, dtype)]),
  )
  names = 'cross_entropy_first', 'cross_entropy_second', 'misalignment'
  return loss, dict(zip(names, terms, strict=True))


def _next_token_terms(logits, constants):
  targets, has_next, _ = constants
  terms = [
      (token_cross_entropy(z, y) * share).sum()
      for z, y, share in zip(logits, targets, has_next, strict=True)
  ]
  return jnp.stack([*terms, jnp.zeros_like(terms[0])])


def _two_window_terms(divergence, logits, constants):
  divergent = (of_rows(divergence, *logits) * constants[2]).sum()
  return _next_token_terms(logits, constants).at[2].set(divergent)


def _check(hidden: jax.Array, embedding: jax.Array, chunk_size: int) -> None:
  if jnp.float16 in (hidden.dtype, embedding.dtype):
    raise ValueError('gradients in the logits of many rows are too small for float16: '
                     'use bfloat16')
  check_shapes(hidden, embedding, chunk_size)
