"""All measurements of a block of trained seeds, in one call.

Axes: S seeds, R validation rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh
import numpy as np

from vvlen import sharding
from vvlen.evaluation.retriever import distribution
from vvlen.evaluation.retriever import lengths as at_length
from vvlen.evaluation.retriever.lengths import Apply, Sample, Variables
from vvlen.models import temperature

# (suffix of the arm, metric, length or None) -> one value per seed [S]
Measured = dict[tuple[str, str, int | None], np.ndarray]


def make_measure(
    apply: Apply,
    sample: Sample,
    *,
    lengths: Sequence[int],
    num_sequences: int,
    fit_lengths: Sequence[int],
    fit_sequences: int,
    trained_up_to: int,
    fixed_query: jax.Array,
    vocabulary: jax.Array,
    mesh: Mesh,
    group_size: int = 1,
) -> Callable[[Variables, jax.Array, jax.Array], Measured]:
  """Builds the function that measures a block of seeds of one model.

  Args:
    apply: the model.
    sample: the task.
    lengths: of the test sequences.
    num_sequences: test sequences per length.
    fit_lengths: of the validation sequences that adaptive temperature is fitted to;
      if empty, '+fitted' is left out.
    fit_sequences: validation sequences per length.
    trained_up_to: the longest training length, the reference of `input_distance`.
    fixed_query: for Proposition 1, without a batch axis.
    vocabulary: [M, x] all items, for Proposition 1.
    mesh: the devices, with the axis 'seed'.
    group_size: the most seeds run together by vmap.

  Returns:
    A function of (variables, keys of the test data, keys of the validation data), each
    with a leading axis of seeds on the devices (`sharding.put`), to `Measured`: the
    metrics of `lengths.evaluate` at each length, with the suffixes '', '+adaptive' and
    '+fitted', and those of `distribution.variance_bound`. Its compiled programs are
    kept for the next block.
  """

  def over_seeds(function):
    return sharding.over_seeds(function, mesh, group_size)

  def betas_at(length):
    return over_seeds(lambda variables, key: at_length.best_betas(
        apply, sample, variables, key,
        length=length, num_sequences=fit_sequences,
    ))

  def metrics_at(length):
    return over_seeds(lambda variables, key, then, *coefficients: at_length.evaluate(
        apply, sample, variables, key, *(coefficients or (None,)), length=length,
        num_sequences=num_sequences, fixed_query=fixed_query, reference=then,
    ))

  best_betas = {n: betas_at(n) for n in fit_lengths}
  evaluate = {n: metrics_at(n) for n in lengths}
  # From validation data: on the test data, the distance at this length would be 0.
  reference = over_seeds(lambda variables, key: distribution.moments_at(
      apply, sample, variables, key, length=trained_up_to,
      num_sequences=num_sequences,
  ))
  # One seed at a time: the vocabulary may be far larger than a chunk of test sequences.
  bound = sharding.over_seeds(lambda variables: distribution.variance_bound(
      apply, variables, vocabulary, fixed_query
  ), mesh, 1)

  def measure(
      variables: Variables, test_keys: jax.Array, validation_keys: jax.Array
  ) -> Measured:
    first = [*best_betas.values(), reference]
    sharding.compile_together(first, variables, validation_keys)
    fitted = []
    if best_betas:
      rows = [
          sharding.fetch(best(variables, validation_keys))
          for best in best_betas.values()
      ]
      entropy, beta = (np.concatenate(x, axis=1) for x in zip(*rows, strict=True))
      by_seed = [temperature.fit(h, b) for h, b in zip(entropy, beta, strict=True)]
      fitted = [sharding.put(np.array(by_seed, np.float32), mesh, group_size)]
    measured: dict[tuple[str, str, int | None], Any] = {
        ('', metric, None): values
        for metric, values in sharding.fetch(bound(variables)).items()
    }
    then = reference(variables, validation_keys)
    sharding.compile_together(evaluate.values(), variables, test_keys, then, *fitted)
    for length, function in evaluate.items():
      metrics = sharding.fetch(function(variables, test_keys, then, *fitted))
      for suffix, values in metrics.items():
        measured |= {(suffix, name, length): x for name, x in values.items()}
    return measured

  return measure
