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
lengths, so it needs no longer inputs. '+adaptive' is adaptive temperature (arXiv
2410.01104) with the published polynomial, '+fitted' with one that is fitted to the
model, at n₀, 4 n₀ and 16 n₀. The models are not trained any further.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.league.names import AT_INFERENCE
from experiments.length_generalization.tasks import Task
from vvlen import sharding
from vvlen.evaluation.retriever import lengths
from vvlen.evaluation.retriever.needed_temperature import (
    metrics_under,
    needed_temperature,
)
from vvlen.evaluation.temperature_law import powers_of
from vvlen.models.fixes.laws import log_growth
from vvlen.models.temperature import adaptive_temperature, constant, fit

# (suffix of the arm, metric, length or None) -> one value per seed [S]
Measured = dict[tuple[str, str, int | None], np.ndarray]


class _Programs(NamedTuple):
  """Functions over a block of seeds, by length."""

  needed: dict[int, Callable[..., Any]]  # β of each sequence and item asked for
  best: dict[int, Callable[..., Any]]  # entropy and best β, to fit a polynomial to
  under: dict[int, Callable[..., Any]]  # loss and accuracy under the laws


def has_targets(task: Task, length: int) -> bool:
  """Returns whether a task asks for single items, so that it needs a temperature."""
  draw = lambda key: task.sample_at(key, 1, length)
  return hasattr(jax.eval_shape(draw, jax.random.key(0)), 'target_index')


def make_measure(
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
    test length under the laws of `names.AT_INFERENCE`, nan where the power is not
    known.
  """
  longest = config.train.max_length
  beyond = [n for n in config.evaluate.lengths if n >= longest]
  short = training_lengths(config.train.min_length, longest)
  programs = _make_programs(config, task, mesh, {*beyond, *short})
  put = lambda x: sharding.put(x.astype(np.float32), mesh, config.train.group_size)

  def measure(variables, test_keys, validation_keys):
    both = *programs.needed.values(), *programs.best.values()
    sharding.compile_together(both, variables, validation_keys)
    fetch = lambda program: sharding.fetch(program(variables, validation_keys))
    betas = {n: x.reshape(len(x), -1) for n, program in programs.needed.items()
             for x in [fetch(program)]}
    far, near = _powers(betas, beyond), _powers(betas, short)
    factors = {n: put(_factors(far, near, n, longest)) for n in programs.under}
    polynomials = put(_polynomials([fetch(x) for x in programs.best.values()]))
    return {
        **_of_lengths(betas),
        ('', 'needed_power', None): far[:, 0],
        ('', 'needed_power_of_log', None): far[:, 1],
        ('', 'needed_power_in_training', None): near[:, 0],
        **_under_laws(programs.under, variables, test_keys, factors, polynomials)}

  return measure


def _make_programs(
    config: Any, task: Task, mesh: jax.sharding.Mesh, needed_at: set[int]
) -> _Programs:
  """Returns what is to be compiled."""
  evaluate, train = config.evaluate, config.train
  apply, longest = lengths.make_apply(task.model('none')), train.max_length
  over_seeds = lambda function: sharding.over_seeds(function, mesh, train.group_size)
  needed = {n: over_seeds(lambda variables, key, n=n: needed_temperature(
      apply, task.sample_at, variables, key, length=n,
      num_sequences=evaluate.num_sequences)) for n in sorted(needed_at)}
  best = {n: over_seeds(lambda variables, key, n=n: lengths.best_betas(
      apply, task.sample_at, variables, key, length=n,
      num_sequences=evaluate.num_sequences))
      for n in (longest, 4 * longest, 16 * longest) if n <= max(evaluate.lengths)}
  under = {n: over_seeds(lambda variables, key, factors, polynomial, n=n: metrics_under(
      apply, task.sample_at, variables, key, _temperatures(factors, polynomial),
      length=n, num_sequences=evaluate.num_sequences)) for n in evaluate.lengths}
  return _Programs(needed, best, under)


def training_lengths(least: int, most: int) -> Sequence[int]:
  """Returns the training lengths that a law is fitted to: ends and geometric mean."""
  least = max(least, 2)  # one item has all weight at any temperature
  return sorted({least, round(math.sqrt(least * most)), most})


def _of_lengths(betas: Mapping[int, np.ndarray]) -> Measured:
  """Returns the median β of each model [S], and the share of finite ones, by length."""
  return {('', name, n): values for n, own in betas.items() for name, values in (
      ('needed_temperature', np.median(own, axis=1)),
      ('found', np.isfinite(own).mean(axis=1)))}


def _powers(betas: Mapping[int, np.ndarray], at: Sequence[int]) -> np.ndarray:
  """Returns p and q [S, 2] fitted to β [S, sequences] at some lengths."""
  return powers_of(at, np.stack([betas[n] for n in at], axis=-1))


def _factors(
    far: np.ndarray, near: np.ndarray, length: int, longest: int
) -> np.ndarray:
  """Returns what the laws with powers multiply logits by [S, 3], 1 up to n₀."""
  of_n, of_log = log_growth(length, longest)
  return np.exp(np.stack(
      [of_n * far[:, 0], of_log * far[:, 1], of_n * near[:, 0]], axis=-1))


def _temperatures(factors, polynomial):
  """Returns the temperatures in the order of `names.AT_INFERENCE`."""
  return [*map(constant, factors),
          functools.partial(adaptive_temperature, coefficients=polynomial),
          adaptive_temperature]


def _polynomials(found: Sequence[Any]) -> np.ndarray:
  """Returns the fitted polynomial of each seed, of entropies and best β by length."""
  entropy, beta = (np.concatenate([y.reshape(len(y), -1) for y in x], axis=1)
                   for x in zip(*found, strict=True))
  return np.array([fit(h, b) for h, b in zip(entropy, beta, strict=True)])


def _under_laws(
    programs: Mapping[int, Callable[..., Any]], variables: Any, test_keys: jax.Array,
    factors: Mapping[int, jax.Array], polynomials: jax.Array,
) -> Measured:
  """Returns loss and accuracy at each test length under each law."""
  # Programs differ in their length alone, not in the shape of their arguments.
  shape = next(iter(factors.values()))
  sharding.compile_together(
      programs.values(), variables, test_keys, shape, polynomials)
  measured: Measured = {}
  for n, program in programs.items():
    metrics = sharding.fetch(program(variables, test_keys, factors[n], polynomials))
    measured |= {(f'+{law}', name, n): values[:, i]
                 for name, values in metrics.items()
                 for i, law in enumerate(AT_INFERENCE)}
  return measured
