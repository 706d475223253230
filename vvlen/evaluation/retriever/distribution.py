"""Distribution of the attention output: components, moments, weights, and the bound.

Axes: S sequences, N items, M items of the vocabulary, d width.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from vvlen.evaluation.retriever.lengths import (
  Apply,
  attention_logits,
  in_chunks,
  Sample,
  Variables,
)
from vvlen.evaluation.retriever.moments import Moments, moments


def components(
    apply: Apply,
    sample: Sample,
    variables: Variables,
    key: jax.Array,
    *,
    length: int,
    num_sequences: int,
    num_components: int,
) -> jax.Array:
  """Returns the first components of the normalized attention output.

  Args:
    apply: the model, as `vvlen.evaluation.retriever.lengths.make_apply` returns it.
    sample: the task.
    variables: of one seed.
    key: of the test data.
    length: N.
    num_sequences: S.
    num_components: how many of the d components.

  Returns:
    [S, num_components]. Their spread over sequences is what Figure 2 of
    arXiv 2504.02827 shows.
  """

  def measure(batch):
    _, sown = apply(variables, batch.query, batch.items)
    return sown['normalized_output'][:, :num_components]

  return in_chunks(measure, sample, key, length, num_sequences)


def moments_at(
    apply: Apply,
    sample: Sample,
    variables: Variables,
    key: jax.Array,
    *,
    length: int,
    num_sequences: int,
) -> Moments:
  """Returns the moments, over sequences, of the normalized output at one length.

  Args:
    apply: the model, as in `components`.
    sample: the task.
    variables: of one seed.
    key: of validation data, not of the test data.
    length: N.
    num_sequences: S.

  Returns:
    `Moments`.
  """

  def measure(batch):
    _, sown = apply(variables, batch.query, batch.items)
    return sown['normalized_output']

  return moments(in_chunks(measure, sample, key, length, num_sequences))


def top_weights(
    apply: Apply,
    sample: Sample,
    variables: Variables,
    key: jax.Array,
    *,
    length: int,
    num_sequences: int,
    num_items: int,
    order: Callable[[Any, jax.Array], jax.Array],
) -> jax.Array:
  """Returns the attention weights on the items that come first in some order.

  Args:
    apply: the model, as in `components`.
    sample: the task.
    variables: of one seed.
    key: of the test data.
    length: N.
    num_sequences: S.
    num_items: how many of the N items.
    order: (batch, weights [S, N]) -> [S, N], values by which to sort the items, largest
      first, such as their priorities.

  Returns:
    [S, num_items] (Figure 4 of arXiv 2504.02827).
  """

  def measure(batch):
    _, sown = apply(variables, batch.query, batch.items)
    weights = sown['attention_weights']
    _, places = jax.lax.top_k(order(batch, weights), num_items)
    return jnp.take_along_axis(weights, places, axis=1)

  return in_chunks(measure, sample, key, length, num_sequences)


def variance_bound(
    apply: Apply, variables: Variables, vocabulary: jax.Array, fixed_query: jax.Array
) -> dict[str, jax.Array]:
  """Measures the two constants of Proposition 1 of arXiv 2504.02827.

    Var(o_j) <= exp(2 δ) σ_j² / N

  for one fixed query, items drawn independently and uniformly from a vocabulary,
  logits in an interval of width δ, and σ_j² the variance of component j of a value.
  (The paper assumes values of zero mean. Weights sum to 1, so subtracting the mean
  value changes no variance. Keys of dictionary lookup are drawn without replacement, so
  items are not independent if N is close to the number of keys.)

  Args:
    apply: the model.
    variables: of one seed.
    vocabulary: [M, x], all items.
    fixed_query: the query, without a batch axis.

  Returns:
    `logit_range`, δ, and `value_variance`, the mean over j of σ_j².
  """
  logits = attention_logits(apply, variables, fixed_query[None], vocabulary[None])
  # Attention to a single item returns its value.
  queries = jnp.broadcast_to(fixed_query, (len(vocabulary), *fixed_query.shape))
  _, single = apply(variables, queries, vocabulary[:, None])
  return {
      'logit_range': logits.max() - logits.min(),
      'value_variance': single['attention_output'].var(axis=0).mean(),
  }
