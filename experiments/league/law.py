"""The temperature that softmax needs on a task, and what it gains at inference.

With β(N) the median, over sequences and items asked for, of the least inverse
temperature that gives the item half of the weight, of one trained model:

  p: slope of log β against log N        + 'power':        logits × (N / n₀)^p
  q: slope of log β against log log N    + 'power_of_log': logits × (ln N / ln n₀)^q

n₀ is the longest training length, up to which nothing is changed. p and q are fitted
over the test lengths from n₀ on at which the model's own median is neither 0 nor
infinite, to validation sequences with known answers: they say what the model needs, and
are not a method. Models differ in these lengths, so tables have powers at lengths that
all models share (`needs`). '+trained_power' has the p that is fitted at three training
lengths, so it needs no longer inputs. '+fitted' is adaptive temperature (arXiv
2410.01104) with the polynomial fitted to the model, at n₀, 4 n₀ and 16 n₀. The models
are not trained any further.
"""

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any

import jax
import numpy as np

from experiments.league.names import LAWS
from experiments.length_generalization.tasks import Task
from vvlen import sharding
from vvlen.evaluation.retriever import lengths
from vvlen.evaluation.retriever.needed_temperature import (
    metrics_under,
    needed_temperature,
)
from vvlen.evaluation.temperature_law import powers_of
from vvlen.models.temperature import adaptive_temperature, constant, fit

# (suffix of the arm, metric, length or None) -> one value per seed [S]
Measured = dict[tuple[str, str, int | None], np.ndarray]


def has_targets(task: Task, length: int) -> bool:
  """Returns whether a task asks for single items, so that it needs a temperature."""
  draw = lambda key: task.sample_at(key, 1, length)
  return hasattr(jax.eval_shape(draw, jax.random.key(0)), 'target_index')


def make_law(
    config: Any, task: Task, mesh: jax.sharding.Mesh
) -> Callable[[Any, jax.Array, jax.Array], Measured]:
  """Returns the function that measures a block of seeds.

  Args:
    config: of the task, from `family.task_configs`.
    task: whose model has softmax attention, and which `has_targets`.
    mesh: the devices, with the axis 'seed'.

  Returns:
    A function of (variables, keys of the test data, keys of the validation data), each
    with a leading axis of seeds. Of each seed: `needed_temperature`, β(N), and `found`,
    the share of items for which there is such a β, at each length; `needed_power`, p;
    `needed_power_of_log`, q; `needed_power_in_training`; and loss and accuracy at each
    test length under the four laws, nan where the exponent is not known.
  """
  evaluate, train = config.evaluate, config.train
  apply = lengths.make_apply(task.model('none'))
  longest = train.max_length
  beyond = [n for n in evaluate.lengths if n >= longest]
  short = training_lengths(train.min_length, longest)

  def over_seeds(function):
    return sharding.over_seeds(function, mesh, train.group_size)

  needed = {n: over_seeds(lambda variables, key, n=n: needed_temperature(
      apply, task.sample_at, variables, key, length=n,
      num_sequences=evaluate.num_sequences)) for n in {*beyond, *short}}
  best = {n: over_seeds(lambda variables, key, n=n: lengths.best_betas(
      apply, task.sample_at, variables, key, length=n,
      num_sequences=evaluate.num_sequences))
      for n in (longest, 4 * longest, 16 * longest) if n <= max(evaluate.lengths)}
  under = {n: over_seeds(lambda variables, key, betas, polynomial, n=n: metrics_under(
      apply, task.sample_at, variables, key, _temperatures(betas, polynomial), length=n,
      num_sequences=evaluate.num_sequences)) for n in evaluate.lengths}

  def measure(variables, test_keys, validation_keys):
    sharding.compile_together(
        [*needed.values(), *best.values()], variables, validation_keys)
    betas = {n: function(variables, validation_keys) for n, function in needed.items()}
    betas = {n: x.reshape(len(x), -1) for n, x in sharding.fetch(betas).items()}
    measured = {}
    for n in sorted(betas):
      measured['', 'needed_temperature', n] = np.median(betas[n], axis=1)
      measured['', 'found', n] = np.isfinite(betas[n]).mean(axis=1)
    far, near = _exponents(betas, beyond), _exponents(betas, short)
    measured['', 'needed_power', None] = far[:, 0]
    measured['', 'needed_power_of_log', None] = far[:, 1]
    measured['', 'needed_power_in_training', None] = near[:, 0]
    put = lambda x: sharding.put(x.astype(np.float32), mesh, train.group_size)
    factors = {n: put(_factors(far, near, n, longest)) for n in under}
    polynomials = put(_polynomials(
        [sharding.fetch(f(variables, validation_keys)) for f in best.values()]))
    # Programs differ in their length alone, not in the shape of their arguments.
    shape = next(iter(factors.values()))
    sharding.compile_together(
        under.values(), variables, test_keys, shape, polynomials)
    for n, function in under.items():
      metrics = sharding.fetch(
          function(variables, test_keys, factors[n], polynomials))
      measured |= {(f'+{law}', name, n): values[:, i]
                   for name, values in metrics.items() for i, law in enumerate(LAWS)}
    return measured

  return measure


def training_lengths(least: int, most: int) -> Sequence[int]:
  """Returns the training lengths that a law is fitted to: ends and geometric mean."""
  least = max(least, 2)  # one item has all weight at any temperature
  return sorted({least, round(math.sqrt(least * most)), most})


def _exponents(betas, some):
  """Returns p and q [S, 2] fitted to β [S, sequences] at some lengths."""
  return powers_of(some, np.stack([betas[n] for n in some], axis=-1))


def _factors(far, near, length, longest):
  """Returns what logits are multiplied by [S, laws], 1 up to n₀."""
  length = max(length, longest)
  of_n = length / longest
  of_log = math.log(length) / math.log(longest)
  return np.stack(
      [of_n ** far[:, 0], of_log ** far[:, 1], of_n ** near[:, 0]], axis=-1)


def _temperatures(betas, polynomial):
  """Returns the temperatures of all laws: numbers [K], and of a polynomial."""
  return [*map(constant, betas),
          functools.partial(adaptive_temperature, coefficients=polynomial)]


def _polynomials(found):
  """Returns the fitted polynomial of each seed, of entropies and best β by length."""
  entropy, beta = (np.concatenate([y.reshape(len(y), -1) for y in x], axis=1)
                   for x in zip(*found, strict=True))
  return np.array([fit(h, b) for h, b in zip(entropy, beta, strict=True)])
