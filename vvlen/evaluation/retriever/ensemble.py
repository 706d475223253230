"""All measurements of a block of trained seeds, in one call.

Axes: S seeds, R validation rows.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
import numpy as np

from vvlen import sharding
from vvlen.evaluation.retriever import distribution
from vvlen.evaluation.retriever import lengths as at_length
from vvlen.evaluation.retriever.lengths import Apply, Sample, Variables
from vvlen.evaluation.retriever.moments import Moments
from vvlen.models import temperature

# (suffix of the arm, metric, length or None) -> one value per seed [S]
Measured = dict[tuple[str, str, int | None], np.ndarray]


class _Programs(NamedTuple):
  """Programs over the seeds of a block, each compiled when first called."""

  # length -> (variables, validation keys) -> entropy and best β, each [S, R]
  best_betas: dict[int, Callable[..., Any]]
  # (variables, validation keys) -> moments at the longest training length. From
  # validation data: on the test data, the distance at this length would be 0.
  reference: Callable[..., Any]
  bound: Callable[..., Any]  # variables -> {metric: [S]}
  # length -> (variables, test keys, moments, fitted coefficients if any) -> metrics
  evaluate: dict[int, Callable[..., Any]]


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
) -> Callable[..., Measured]:
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
    kept for the next block. A fourth argument, if given, is a function that is called
    with the share of the test items that are measured, after each length.
  """
  over_seeds = functools.partial(
      sharding.over_seeds, mesh=mesh, group_size=group_size)
  programs = _Programs(
      best_betas={n: over_seeds(functools.partial(
          at_length.best_betas, apply, sample, length=n, num_sequences=fit_sequences,
      )) for n in fit_lengths},
      reference=over_seeds(functools.partial(
          distribution.moments_at, apply, sample, length=trained_up_to,
          num_sequences=num_sequences)),
      # One seed at a time: the vocabulary may be far larger than a chunk of sequences.
      bound=sharding.over_seeds(lambda variables: distribution.variance_bound(
          apply, variables, vocabulary, fixed_query), mesh, 1),
      evaluate={n: over_seeds(functools.partial(
          _evaluate, apply, sample, n, num_sequences, fixed_query)) for n in lengths},
  )
  put = functools.partial(sharding.put, mesh=mesh, group_size=group_size)
  return functools.partial(_measure, programs, put)


def _evaluate(
    apply: Apply, sample: Sample, length: int, num_sequences: int,
    fixed_query: jax.Array, variables: Variables, key: jax.Array, reference: Moments,
    coefficients: jax.Array | None = None,
) -> dict[str, at_length.Metrics]:
  """As `lengths.evaluate`, of one seed."""
  return at_length.evaluate(
      apply, sample, variables, key, coefficients, length=length,
      num_sequences=num_sequences, fixed_query=fixed_query, reference=reference)


def _measure(
    programs: _Programs, put: Callable[[np.ndarray], Any], variables: Variables,
    test_keys: jax.Array, validation_keys: jax.Array,
    done: Callable[[float], None] = lambda share: None,
) -> Measured:
  """Measures a block of seeds.

  Args:
    programs: from `make_measure`.
    put: puts an array with a leading axis of seeds on the devices.
    variables: of each seed, on the devices, as are the keys.
    test_keys: of the test data.
    validation_keys: of the validation data.
    done: called with the share of the test items that are measured.
  """
  first = [*programs.best_betas.values(), programs.reference]
  sharding.compile_together(first, variables, validation_keys)
  fitted = []  # no argument, or one: the coefficients
  if programs.best_betas:
    fitted = [put(_fit(programs, variables, validation_keys))]
  bound = sharding.fetch(programs.bound(variables))
  measured: Measured = {('', metric, None): x for metric, x in bound.items()}
  then = programs.reference(variables, validation_keys)
  evaluate = programs.evaluate
  sharding.compile_together(evaluate.values(), variables, test_keys, then, *fitted)
  items, done_items = sum(evaluate), 0
  done(0.0)
  for length, function in evaluate.items():
    metrics = sharding.fetch(function(variables, test_keys, then, *fitted))
    for suffix, values in metrics.items():
      measured |= {(suffix, name, length): x for name, x in values.items()}
    done_items += length
    done(done_items / items)
  return measured


def _fit(
    programs: _Programs, variables: Variables, validation_keys: jax.Array
) -> np.ndarray:
  """Fits the adaptive temperature of each seed; returns its coefficients [S, 5]."""
  found = [sharding.fetch(best(variables, validation_keys))
           for best in programs.best_betas.values()]
  entropy, beta = (np.concatenate(x, axis=1) for x in zip(*found, strict=True))
  by_seed = [temperature.fit(h, b) for h, b in zip(entropy, beta, strict=True)]
  return np.array(by_seed, np.float32)
