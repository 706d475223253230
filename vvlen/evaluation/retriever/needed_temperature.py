"""The inverse temperature that a trained retriever needs at some length.

  β = least β at which softmax(β z) gives half of the weight to the item asked for

(`vvlen.evaluation.temperature_law`), where z are the logits of its attention. β uses
the item asked for, which a model would have to find first.

Axes: S sequences, Q items asked for in each (no axis in tasks that ask for one).
"""

from collections.abc import Sequence

import jax

from vvlen.evaluation.retriever.lengths import (
  answers,
  Apply,
  attention_logits,
  in_chunks,
  Metrics,
  Sample,
  under_each,
  Variables,
)
from vvlen.evaluation.temperature_law import critical_temperature
from vvlen.models.attention import Temperature


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
    temperatures: Sequence[Temperature], *, length: int, num_sequences: int,
) -> Metrics:
  """Returns loss and accuracy under each of K temperatures of the attention.

  Args:
    apply: as in `needed_temperature`.
    sample: the task.
    variables: of one seed.
    key: of the test data; that of `lengths.evaluate` gives the same sequences.
    temperatures: as in `vvlen.models.attention.attend`.
    length: N.
    num_sequences: S.

  Returns:
    {metric: [K]}, means over sequences; nan where a temperature is nan.
  """

  def measure(batch):
    def under(temperature):
      logits, _ = apply(variables, batch.query, batch.items, temperature)
      return answers(batch, logits)

    every = under_each(temperatures, under)
    return {name: x.T for name, x in every.items()}  # [S, K]

  rows = in_chunks(measure, sample, key, length, num_sequences)
  return {name: x.mean(axis=0) for name, x in rows.items()}
