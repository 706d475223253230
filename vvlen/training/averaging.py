"""The mean of the weights over the last steps of training.

  mean(t) = 1 / (t − s)  Σ_{i = s + 1 .. t} θ_i,      s = t − round(share · t)

where θ_i are the weights after update i. At a constant learning rate the weights keep
fluctuating, but their mean settles (Polyak and Juditsky, SIAM J. Control Optim. 30,
1992; for the last steps alone: Jain et al., JMLR 18, 2018).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

SHARE = 0.1  # the share of the last steps among all steps


class Averaged(NamedTuple):
  """The state of an optimizer that keeps the mean of the weights."""

  step: jax.Array  # [] int32, updates made
  mean: Any  # like the weights; the initial weights until the first average begins
  inner: optax.OptState


def averaged(
    optimizer: optax.GradientTransformation,
    ends: Sequence[int],
    share: float = SHARE,
) -> optax.GradientTransformation:
  """Makes an optimizer keep the mean of the weights over the last steps before `ends`.

  The updates of the weights do not change.

  Args:
    optimizer: the optimizer to extend; its updates are added to the weights.
    ends: t, increasing numbers of steps; after step t the state holds mean(t).
    share: the share of the t steps to average over; at least one step.

  Returns:
    An optimizer with the state `Averaged`. Its `update` needs the weights.

  Raises:
    ValueError: if `ends` are not positive and increasing, or the averaged steps of two
      of them overlap.
  """
  counts = [max(round(share * end), 1) for end in ends]
  firsts = [end - count for end, count in zip(ends, counts, strict=True)]
  if not ends or any(
      first < before for first, before in zip(firsts, (0, *ends[:-1]), strict=True)
  ):
    raise ValueError(
        f'weights cannot be averaged over the last {share:g} of the steps before each '
        f'of {tuple(ends)}: these must increase, and their steps must not overlap'
    )
  after, until = np.array(firsts, np.int32), np.array(ends, np.int32)

  def init(params):
    return Averaged(jnp.zeros((), jnp.int32), params, optimizer.init(params))

  def update(gradients, state, params=None):
    updates, inner = optimizer.update(gradients, state.inner, params)
    step = state.step + 1
    # The number of weights in the mean after this update; 0 outside of these steps.
    count = jnp.where((after < step) & (step <= until), step - after, 0).sum()

    weight = jnp.where(count > 0, 1 / jnp.maximum(count, 1), 0.0)
    # Not under lax.cond, with which XLA on a CPU would copy the mean in each step.
    mean = jax.tree.map(
        lambda m, new: m + weight.astype(m.dtype) * (new - m),
        state.mean, optax.apply_updates(params, updates),
    )
    return updates, Averaged(step, mean, inner)

  return optax.GradientTransformation(init, update)
