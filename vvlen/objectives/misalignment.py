"""Long-short misalignment: how far predictions drift apart between two contexts.

One stream of L + e tokens is read by two windows, w1 = [0, L) and w2 = [e, L + e), each
with positions from 0. Where both see more than L/2 tokens, rows that follow the same
token are compared (arXiv 2506.11769, section 4):

  w1[L//2 + e : L]  with  w2[L//2 : L − e],    e uniform on 1..L//2 − 1

With p, q the softmax over the vocabulary of rows of w1 and w2, in nats,

  SCE  = −Σ q log p − Σ p log q = H(p) + H(q) + KL(p‖q) + KL(q‖p)
  loss = (CE₁ + CE₂)/2 + α SCE,    α in [0.1, 0.3]; α = 0 is the baseline

  misalignment_loss = SCE,         two_window_loss = loss

where CE is the mean over the L − 1 next tokens inside a window. In each pair of rows,
w1 has the longer context, by e tokens. The gradient of SCE in the logits of p,

  (p − q) − p ⊙ (log q − ⟨p, log q⟩),

is not zero at p = q: the loss also lowers entropy. The symmetric KL and Jensen–Shannon
divergences do not; they and the stop-gradient on the longer context are our variants.

Errata of the paper: the code of its Appendix E has the entropy of p as the second term
of SCE, returns nothing, calls log_softmax without an axis (for logits of three axes,
this is over the batch), and allows e = L/2, which leaves no rows and gives nan. Its
text compares the whole overlap, w1[e : L] with w2[0 : L − e], but its code only the
second half, which is the default here. Uniform e gives large gaps more weight than its
Eq. 4 (a triangular law).

Any divergence may be passed: a function of logits (first [..., V], second [..., V]) ->
[...], where the first are w1's. Logits must be finite; those narrower than float32 are
computed in float32, and float64 stays float64.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from vvlen.objectives.cross_entropy import check_tokens, next_token_cross_entropy
from vvlen.objectives.divergences import (
    Divergence,
    jensen_shannon,
    of_rows,
    stop_gradient_cross_entropy,
    symmetric_cross_entropy,
    symmetric_kl,
)
from vvlen.objectives.measures import mean_over_rows, Measures, measures_of_rows
from vvlen.objectives.windows import (
    highest_offset,
    is_whole,
    offset_range,
    sample_offset,
    two_windows,
)

# Defined here, or re-exported from divergences, measures and windows.
__all__ = [
  'Divergence',
  'Measures',
  'check_two_windows',
  'check_weight',
  'compared_rows',
  'jensen_shannon',
  'measures',
  'misalignment_loss',
  'offset_range',
  'overlap_weights',
  'sample_offset',
  'stop_gradient_cross_entropy',
  'symmetric_cross_entropy',
  'symmetric_kl',
  'two_window_loss',
  'two_windows',
]


def measures(
    logits_first: jax.Array,
    logits_second: jax.Array,
    offset: int | jax.Array,
    *,
    whole_overlap: bool = False,
) -> Measures:
  """Returns all measures of misalignment, scalars, means over batch and rows.

  `vvlen.objectives.chunked_rows.measures_of_hidden` computes the same from hidden
  states, in far less memory.

  Args:
    logits_first: [B, L, V], of tokens[0 : L].
    logits_second: [B, L, V], of tokens[offset : L + offset].
    offset: e, as in `misalignment_loss`.
    whole_overlap: compares all rows of the same token, w1[e : L] with w2[0 : L−e].

  Raises:
    ValueError: if shapes do not fit, or a concrete offset is out of range.
  """
  first, second, weights = compared_rows(
      logits_first, logits_second, offset, whole_overlap)
  means = mean_over_rows(measures_of_rows(first, second), weights)
  return jax.tree.map(lambda x: x.mean(), means)


def misalignment_loss(
    logits_first: jax.Array,
    logits_second: jax.Array,
    offset: int | jax.Array,
    *,
    divergence: Divergence = symmetric_cross_entropy,
    whole_overlap: bool = False,
) -> jax.Array:
  """Returns the mean divergence over batch and compared rows.

  Shapes do not depend on the offset, so that under jit one program serves all offsets.

  Args:
    logits_first: [B, L, V], of tokens[0 : L].
    logits_second: [B, L, V], of tokens[offset : L + offset].
    offset: e, a whole number in 1..L//2−1, or 1..L−1 with `whole_overlap`. A traced
      offset outside gives nan, without a message.
    divergence: of rows, from logits [..., V] of both windows to [...].
    whole_overlap: compares w1[e : L] with w2[0 : L−e], for offsets up to L−1.

  Returns:
    A scalar, float32 or float64.

  Raises:
    ValueError: if shapes do not fit, the divergence does not map [..., V] to [...], or
      a concrete offset is out of range.
  """
  first, second, weights = compared_rows(
      logits_first, logits_second, offset, whole_overlap)
  return (of_rows(divergence, first, second) * weights[None]).sum(1).mean()


def two_window_loss(
    logits_first: jax.Array,
    logits_second: jax.Array,
    tokens_first: jax.Array,
    tokens_second: jax.Array,
    offset: int | jax.Array,
    weight: float | jax.Array,
    *,
    divergence: Divergence = symmetric_cross_entropy,
    whole_overlap: bool = False,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Returns (CE₁ + CE₂)/2 + α SCE.

  `vvlen.objectives.chunked.chunked_two_window_loss` computes the same from hidden
  states, in far less memory.

  Args:
    logits_first: [B, L, V], of `tokens_first`.
    logits_second: [B, L, V], of `tokens_second`.
    tokens_first: [B, L], integers in 0..V−1.
    tokens_second: [B, L], `offset` tokens further on in the same stream.
    offset: e, as in `misalignment_loss`.
    weight: α, at least 0; α = 0 is the baseline.
    divergence: of rows, in place of SCE.
    whole_overlap: compares all rows of the same token, w1[e : L] with w2[0 : L−e].

  Returns:
    The loss, a scalar, and scalars without gradient: 'cross_entropy_first',
    'cross_entropy_second' and 'misalignment', the mean divergence.

  Raises:
    ValueError: if shapes do not fit; or, of values that are not traced, if the offset
      is out of range, α is negative or not finite, or a token is not in the vocabulary.
  """
  check_two_windows(logits_first.shape, logits_second.shape, offset, whole_overlap)
  check_tokens(tokens_first, logits_first.shape)
  check_tokens(tokens_second, logits_second.shape)
  check_weight(weight)
  terms = {
      'cross_entropy_first': next_token_cross_entropy(logits_first, tokens_first),
      'cross_entropy_second': next_token_cross_entropy(logits_second, tokens_second),
      'misalignment': misalignment_loss(
          logits_first, logits_second, offset, divergence=divergence,
          whole_overlap=whole_overlap,
      ),
  }
  first, second, divergent = terms.values()
  loss = (first + second) / 2 + weight * divergent
  return loss, jax.lax.stop_gradient(terms)


def overlap_weights(
    rows: jax.Array,
    length: int,
    offset: jax.Array,
    whole_overlap: bool,
    dtype: jnp.dtype,
) -> jax.Array:
  """Returns the weights of rows of w1 in the mean over compared rows.

  Args:
    rows: [R], indices of rows, in 0..L−1.
    length: L.
    offset: e, int32 [], traced or not; not checked here.
    whole_overlap: as in `misalignment_loss`.
    dtype: of the weights.

  Returns:
    [R]: over rows 0..L−1 they sum to 1; 0 for rows that are not compared; all nan if
    the offset is out of range.
  """
  start = 0 if whole_overlap else length // 2
  share = 1 / jnp.asarray(length - start - offset, dtype)
  valid = (offset >= 1) & (offset <= highest_offset(length, whole_overlap))
  weights = jnp.where(rows - offset >= start, share, jnp.zeros_like(share))
  return jnp.where(valid, weights, jnp.nan)


def check_two_windows(
    first: tuple[int, ...],
    second: tuple[int, ...],
    offset: int | jax.Array,
    whole_overlap: bool,
) -> None:
  """Checks shapes [B, L, V or D] of two windows and a concrete offset.

  Args:
    first: shape of the first window's logits or hidden states.
    second: the same of the second window.
    offset: e.
    whole_overlap: as in `misalignment_loss`.

  Raises:
    ValueError: if the shapes differ, have other axes, leave no rows to compare, or the
      offset is out of range.
  """
  if len(first) != 3 or tuple(first) != tuple(second):
    raise ValueError(
        f'windows must have one shape, of three axes: {tuple(first)}, {tuple(second)}'
    )
  most = highest_offset(first[1], whole_overlap)
  if most < 1 or 0 in first:
    raise ValueError(f'windows {tuple(first)} have no rows to compare')
  if not is_whole(offset) or not (_traced(offset) or 1 <= int(offset) <= most):
    raise ValueError(
        f'offset must be a whole number in 1..{most} at length {first[1]}: {offset!r}'
    )


def check_weight(weight: float | jax.Array) -> None:
  """Raises ValueError unless α is traced, or a finite number that is not negative."""
  kinds = int, float, np.number, np.ndarray, jax.Array
  one = isinstance(weight, kinds) and not jnp.ndim(weight)
  if not one or not (_traced(weight) or 0 <= float(weight) < math.inf):
    raise ValueError(f'weight must be finite and not negative: {weight!r}')


def compared_rows(
    first: jax.Array, second: jax.Array, offset: int | jax.Array, whole_overlap: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns rows of both windows that follow the same token, and their weights.

  Args:
    first: logits [B, L, V], or hidden states [B, L, D].
    second: the same of the second window.
    offset: e.
    whole_overlap: as in `misalignment_loss`.

  Returns:
    [B, R, V or D] of each window, and weights [R] of a mean over them, which sum to 1;
    rows that are not compared have weight 0.

  Raises:
    ValueError: as in `check_two_windows`.
  """
  check_two_windows(first.shape, second.shape, offset, whole_overlap)
  length = first.shape[1]
  offset = jnp.asarray(offset, jnp.int32)
  start = 0 if whole_overlap else length // 2
  rows = jnp.arange(start, length)
  if whole_overlap:
    second = jnp.take(second, (rows - offset) % length, axis=1)
  else:
    # Rows L//2 − e to L − e. As L//2 − e >= 1, dynamic_slice never moves the slice.
    second = jax.lax.dynamic_slice_in_dim(second, start - offset, length - start, 1)
  wide = jnp.promote_types(jnp.result_type(first, second), jnp.float32)
  weights = overlap_weights(rows, length, offset, whole_overlap, wide)
  return first[:, start:], second, weights


def _traced(x: object) -> bool:
  return isinstance(x, jax.core.Tracer)
