"""Everything that is measured of a block of trained seeds, in one call.

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
from vvlen.evaluation.retriever.lengths import Apply, Params, Sample
from vvlen.models import temperature

# (suffix of the arm, metric, length or None) -> one value a seed [S]
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
) -> Callable[[Params, jax.Array, jax.Array], Measured]:
  """Builds the function that measures a block of seeds of one model.

  Args:
    apply: the model.
    sample: the task.
    lengths: of the test sequences.
    num_sequences: test sequences a length.
    fit_lengths: of the validation sequences that adaptive temperature is fitted to;
      none to leave '+fitted' out.
    fit_sequences: validation sequences a length.
    trained_up_to: the longest training length, which `input_distance` starts from.
    fixed_query: for Proposition 1, without a batch axis.
    vocabulary: [M, x] all items, for Proposition 1.
    mesh: the devices, with the axis 'seed'.
    group_size: seeds run together by vmap.

  Returns:
    A function of (params, keys of the test data, keys of the validation data), each
    with a leading axis of seeds on the devices, to `Measured`: the metrics of
    `lengths.evaluate` at each length, with the suffixes '', '+adaptive' and
    '+fitted', and those of `distribution.variance_bound`. What it compiles is kept
    for the next block.
  """

  def over_seeds(function):
    return sharding.over_seeds(function, mesh, group_size)

  def betas_at(length):
    return over_seeds(lambda params, key: at_length.best_betas(
        apply, sample, params, key,
        length=length, num_sequences=fit_sequences,
    ))

  def metrics_at(length):
    return over_seeds(lambda params, key, then, *coefficients: at_length.evaluate(
        apply, sample, params, key, *(coefficients or (None,)), length=length,
        num_sequences=num_sequences, fixed_query=fixed_query, reference=then,
    ))

  best_betas = {n: betas_at(n) for n in fit_lengths}
  evaluate = {n: metrics_at(n) for n in lengths}
  # Of validation data: the test data at this length would seem to be nearer.
  reference = over_seeds(lambda params, key: distribution.moments_at(
      apply, sample, params, key, length=trained_up_to,
      num_sequences=num_sequences,
  ))
  # A seed at a time, as the vocabulary may be many times a chunk of test sequences.
  bound = sharding.over_seeds(lambda params: distribution.variance_bound(
      apply, params, vocabulary, fixed_query
  ), mesh, 1)

  def measure(
      params: Params, test_keys: jax.Array, validation_keys: jax.Array
  ) -> Measured:
    first = [*best_betas.values(), reference]
    sharding.compile_together(first, params, validation_keys)
    fitted = []
    if best_betas:
      rows = [
          sharding.fetch(best(params, validation_keys)) for best in best_betas.values()
      ]
      entropy, beta = (np.concatenate(x, axis=1) for x in zip(*rows, strict=True))
      by_seed = [temperature.fit(h, b) for h, b in zip(entropy, beta, strict=True)]
      fitted = [sharding.put(np.array(by_seed, np.float32), mesh)]
    measured: dict[tuple[str, str, int | None], Any] = {
        ('', metric, None): values
        for metric, values in sharding.fetch(bound(params)).items()
    }
    then = reference(params, validation_keys)
    sharding.compile_together(evaluate.values(), params, test_keys, then, *fitted)
    for length, function in evaluate.items():
      metrics = sharding.fetch(function(params, test_keys, then, *fitted))
      for suffix, values in metrics.items():
        measured |= {(suffix, name, length): x for name, x in values.items()}
    return measured

  return measure
