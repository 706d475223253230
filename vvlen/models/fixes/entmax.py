"""Entmax-1.5: softmax with exact zeros.

  a_i = [z_i / 2 − τ]₊²,   τ such that Σ a_i = 1

Peters, Niculae and Martins (2019), arXiv 1905.05702: the algorithm is their algorithm
2, by sorting, and the gradient that of their section 3.
"""

import jax
import jax.numpy as jnp

from vvlen.models.fixes.keys import wide, without_masked, zero_at_masked


def entmax15(logits: jax.Array, mask: jax.Array | None = None) -> jax.Array:
  """Returns the weights of entmax-1.5, [..., n]; most are exactly 0 if z is spread.

  A key whose logit is 2 or more below the largest has no weight. Cost: a sort of each
  row, n log n; the gradient needs no sort, and equal logits have equal gradients.

  Args:
    logits: [..., n]; float32 at least is used.
    mask: bool, broadcastable to [..., n], True where there is a key; None for all.

  Returns:
    Weights [..., n], float32 or wider; they sum to 1, in a row without keys to 0.
  """
  logits = wide(logits)
  return zero_at_masked(_entmax15(without_masked(logits, mask)), mask)


@jax.custom_jvp
def _entmax15(logits):
  largest = logits.max(-1, keepdims=True)
  # τ is at least x₁ − 1, so x can be cut off there: no large numbers are squared.
  x = jnp.clip((logits - largest) / 2, -1.0, 0.0)
  return jnp.square(jnp.maximum(x - _threshold(x), 0.0))


@_entmax15.defjvp
def _(primals, tangents):
  # dA = S (dZ − Σ S dZ / Σ S),  S = √A
  weights = _entmax15(*primals)
  roots = jnp.sqrt(weights)
  mean = (roots * tangents[0]).sum(-1, keepdims=True) / roots.sum(-1, keepdims=True)
  return weights, roots * (tangents[0] - mean)


def _threshold(x):
  """Returns τ [..., 1] with Σ [x − τ]₊² = 1, for x [..., n] from −1 to 0.

  Of the k largest x, with mean M and squared deviations that sum to S, it would be
  τ_k = M − √((1 − S) / k). It is τ_k for the largest k with τ_k ≤ x_k, and τ_k does not
  decrease until there.
  """
  largest_first = -jnp.sort(-x, axis=-1)
  count = jnp.broadcast_to(
      jnp.arange(1, x.shape[-1] + 1, dtype=x.dtype), x.shape)
  mean = jnp.cumsum(largest_first, -1) / count
  squares = jnp.cumsum(jnp.square(largest_first), -1) - count * jnp.square(mean)
  at = mean - jnp.sqrt(jnp.maximum(1 - squares, 0.0) / count)
  threshold = jnp.where(at <= largest_first, at, -1.0).max(-1, keepdims=True)
  # S is a small difference of large sums. One step of Newton's method for
  # Σ [x − τ]₊² = 1, which has no such difference, removes the error.
  root = jnp.maximum(x - threshold, 0.0)
  return threshold + (jnp.square(root).sum(-1, keepdims=True) - 1) / (
      2 * root.sum(-1, keepdims=True))
