"""Measures of how the predictions of two windows differ: of rows, and their means.

Axes: B sequences, R rows, V words.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from vvlen.objectives.divergences import (
    jensen_shannon,
    log_softmax,
    symmetric_cross_entropy,
    symmetric_kl,
)


class Measures(NamedTuple):
  """Measures of two windows; several, since the paper does not specify its scale.

  Means over rows, of the batch or of each sequence; in nats, except `top1_agreement`.
  In float32, with a large vocabulary, KL and Jensen–Shannon have errors of about 1e-7;
  `symmetric_kl` is accurate far below that.
  """

  sce: jax.Array  # symmetric cross-entropy
  half_sce: jax.Array
  kl_first_second: jax.Array  # KL(p‖q)
  kl_second_first: jax.Array  # KL(q‖p)
  js: jax.Array  # Jensen–Shannon divergence
  symmetric_kl: jax.Array  # KL(p‖q) + KL(q‖p) = SCE − H(p) − H(q)
  entropy_first: jax.Array
  entropy_second: jax.Array
  top1_agreement: jax.Array  # share of rows with the same likeliest token

  @property
  def excess(self) -> jax.Array:
    """The symmetric KL divergence under its former name."""
    return self.symmetric_kl


def measures_of_rows(first: jax.Array, second: jax.Array) -> Measures:
  """Returns the measures of each row of logits [B, R, V], each [B, R].

  All are float except `top1_agreement`, which is bool: whether both rows have the same
  likeliest token.
  """
  log_p, log_q = log_softmax(first), log_softmax(second)
  p, q = jnp.exp(log_p), jnp.exp(log_q)
  sce = symmetric_cross_entropy(first, second)
  return Measures(
      sce=sce,
      half_sce=sce / 2,
      kl_first_second=(p * (log_p - log_q)).sum(-1),
      kl_second_first=(q * (log_q - log_p)).sum(-1),
      js=jensen_shannon(first, second),
      # Not by subtraction: it is the small difference of large numbers.
      symmetric_kl=symmetric_kl(first, second),
      entropy_first=-(p * log_p).sum(-1),
      entropy_second=-(q * log_q).sum(-1),
      top1_agreement=first.argmax(-1) == second.argmax(-1),
  )


def mean_over_rows(rows: Measures, weights: jax.Array) -> Measures:
  """Returns means [B] of `measures_of_rows` [B, R], by weights [R]."""
  mean = lambda x: (x * weights[None]).sum(1)
  # From the share of rows that differ, so that full agreement is 1 without rounding.
  agreement = jnp.maximum(1 - mean(~rows.top1_agreement), 0.0)
  return jax.tree.map(mean, rows)._replace(top1_agreement=agreement)
