"""One run of one seed, as pure functions of state and key."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Params = Any
Batch = Any
Metrics = dict[str, jax.Array]


class TrainState(NamedTuple):
  """Everything that changes during training, and nothing else."""

  step: jax.Array  # [] int32, updates made
  params: Params
  opt_state: optax.OptState


class Problem(NamedTuple):
  """What is trained: four pure functions."""

  init: Callable[[jax.Array], Params]  # key -> parameters
  sample: Callable[..., Batch]  # (key, updates made, data if there is any) -> batch
  loss: Callable[[Params, Batch], tuple[jax.Array, Metrics]]  # -> [], metrics []
  optimizer: optax.GradientTransformation


def init_state(problem: Problem, key: jax.Array) -> TrainState:
  """Returns the state before the first update, from the key of the weights."""
  params = problem.init(key)
  return TrainState(
      jnp.zeros((), jnp.int32), params, problem.optimizer.init(params)
  )


def train_step(
    problem: Problem, state: TrainState, batch: Batch
) -> tuple[TrainState, Metrics]:
  """Makes one update.

  Returns:
    The next state, and the metrics of the parameters before the update, `loss`
    among them. If no batch is repeated, they measure data not trained on.
  """
  (loss, metrics), gradients = jax.value_and_grad(problem.loss, has_aux=True)(
      state.params, batch
  )
  updates, opt_state = problem.optimizer.update(
      gradients, state.opt_state, state.params
  )
  params = optax.apply_updates(state.params, updates)
  return TrainState(state.step + 1, params, opt_state), {'loss': loss, **metrics}


def train_steps(
    problem: Problem, state: TrainState, data_key: jax.Array, num_steps: int, *data: Any
) -> tuple[TrainState, Metrics]:
  """Makes `num_steps` updates, on batches drawn from fold_in(data_key, step).

  Args:
    problem: what is trained.
    state: the state before these updates.
    data_key: the key of all batches.
    num_steps: the number of updates.
    *data: arguments of `problem.sample` after key and step, such as a text.

  Returns:
    The state after these updates, and the mean of each metric over them.
  """

  def body(state, _):
    key = jax.random.fold_in(data_key, state.step)
    batch = problem.sample(key, state.step, *data)
    return train_step(problem, state, batch)

  state, metrics = jax.lax.scan(body, state, length=num_steps)
  return state, jax.tree.map(lambda m: m.mean(axis=0), metrics)
