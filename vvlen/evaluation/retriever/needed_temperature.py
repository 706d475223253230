"""The inverse temperature that a trained retriever needs at some length.

  β = least β at which softmax(β z) gives half of the weight to the item asked for

(`vvlen.evaluation.temperature_law`), z the logits of its attention. What it needs is
not what a model could know: the item asked for is told.

Axes: S sequences, Q items asked for in each (no axis in tasks that ask for one).
"""

import jax
import jax.numpy as jnp

from vvlen.evaluation.retriever.lengths import (
  answers,
  Apply,
  attention_logits,
  in_chunks,
  Metrics,
  Sample,
  Variables,
)
from vvlen.evaluation.temperature_law import critical_temperature


def needed_temperature(
    apply: Apply, sample: Sample, variables: Variables, key: jax.Array, *,
    length: int, num_sequences: int,
) -> jax.Array:
  """Returns β of each sequence and item asked for; inf where no β suffices.

  Args:
    apply: the model, as `vvlen.evaluation.retriever.lengths.make_apply` returns it,
      whose attention has softmax.
    sample: the task; its batches have `target_index`, [S] or [S, Q].
    variables: of one seed.
    key: of the data.
    length: N.
    num_sequences: S.

  Returns:
    [S] or [S, Q], at least 0.
  """

  def measure(batch):
    logits = attention_logits(apply, variables, batch.query, batch.items)
    return critical_temperature(logits, batch.target_index)

  return in_chunks(measure, sample, key, length, num_sequences)


def metrics_under(
    apply: Apply, sample: Sample, variables: Variables, key: jax.Array,
    betas: jax.Array, *, length: int, num_sequences: int,
) -> Metrics:
  """Returns loss and accuracy where the logits are multiplied by each of some β.

  Args:
    apply: as in `needed_temperature`.
    sample: the task.
    variables: of one seed.
    key: of the test data; that of `lengths.evaluate` gives the same sequences.
    betas: [K].
    length: N.
    num_sequences: S.

  Returns:
    {metric: [K]}, means over sequences; nan where β is nan.
  """

  def under(batch, beta):
    constant = lambda logits, mask: jnp.full((*logits.shape[:-1], 1), beta)
    logits, _ = apply(variables, batch.query, batch.items, constant)
    return answers(batch, logits)

  def measure(batch):
    every = [under(batch, beta) for beta in betas]
    return jax.tree.map(lambda *x: jnp.stack(x, axis=-1), *every)

  rows = in_chunks(measure, sample, key, length, num_sequences)
  return {name: x.mean(axis=0) for name, x in rows.items()}
