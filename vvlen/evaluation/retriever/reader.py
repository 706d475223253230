"""A linear reader, fitted to the outputs of a frozen model: what can be read from them.

  p(c | o) = softmax(Wᵀ w + b)_c,   w = the outputs o, whitened (`axes.whiten`)
  W, b minimize   − mean ln p(target | o)  +  λ/2 ‖W‖²

by limited-memory BFGS, until the gradient has vanished: the loss is convex. λ is chosen
among several by the loss on other sequences. Outputs of attention over a set of items
lie in few directions, whose deviations differ by a factor of a thousand or more.
Whitening lets the reader find information in the weak directions too.

Axes: S sequences, d width of the output, k principal axes, C classes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from vvlen.evaluation.retriever.axes import principal_axes, PrincipalAxes, whiten

PENALTIES = tuple(10.0**k for k in range(-6, -1))
_MOST_STEPS = 200
_SMALL = 1e-4  # a gradient of smaller norm counts as vanished


class Reader(NamedTuple):
  """A multinomial logistic regression on whitened outputs."""

  axes: PrincipalAxes
  kernel: jax.Array  # [k, C], W
  bias: jax.Array  # [C], b


def read(reader: Reader, output: jax.Array) -> jax.Array:
  """Maps outputs [S, d] to logits [S, C]."""
  return _logits(reader.kernel, reader.bias, whiten(output, reader.axes))


def refit(
    output: jax.Array, target: jax.Array, select_output: jax.Array,
    select_target: jax.Array, num_classes: int,
    weakest: float, penalties: Sequence[float] = PENALTIES,
) -> Reader:
  """Fits a reader under each penalty and returns the best.

  Args:
    output: [S, d] float32 or wider, to fit to.
    target: [S] int, classes.
    select_output: [S', d], of other sequences, to choose the penalty by.
    select_target: [S'] int.
    num_classes: C.
    weakest: the least deviation of a principal axis that is read, as a share of the
      largest.
    penalties: λ.

  Returns:
    The `Reader` with the least cross-entropy on the sequences of `select_output`.
  """
  axes = principal_axes(output, weakest)
  white, select = whiten(output, axes), whiten(select_output, axes)

  def under(penalty):
    kernel, bias = _fit(white, target, num_classes, penalty)
    logits = _logits(kernel, bias, select)
    return kernel, bias, _cross_entropy(logits, select_target)

  kernels, biases, losses = jax.lax.map(under, jnp.asarray(penalties, output.dtype))
  best = losses.argmin()
  return Reader(axes, kernels[best], biases[best])


def _fit(
    white: jax.Array, target: jax.Array, num_classes: int, penalty: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns W [k, C] and b [C] of whitened outputs [S, k]."""

  def objective(weights):
    kernel, bias = weights
    loss = _cross_entropy(_logits(kernel, bias, white), target)
    return loss + penalty / 2 * (kernel**2).sum()

  solver = optax.lbfgs(memory_size=20)
  value_and_grad = optax.value_and_grad_from_state(objective)

  def step(carry):
    weights, state, _ = carry
    value, gradient = value_and_grad(weights, state=state)
    updates, state = solver.update(
        gradient, state, weights, value=value, grad=gradient, value_fn=objective
    )
    return optax.apply_updates(weights, updates), state, optax.tree.norm(gradient)

  def unfinished(carry):
    _, state, size = carry
    return (optax.tree.get(state, 'count') < _MOST_STEPS) & (size > _SMALL)

  weights = (
      jnp.zeros((white.shape[1], num_classes), white.dtype),
      jnp.zeros(num_classes, white.dtype),
  )
  carry = weights, solver.init(weights), jnp.asarray(jnp.inf, white.dtype)
  (kernel, bias), *_ = jax.lax.while_loop(unfinished, step, carry)
  return kernel, bias


def _logits(kernel: jax.Array, bias: jax.Array, white: jax.Array) -> jax.Array:
  return jnp.matmul(white, kernel, precision=jax.lax.Precision.HIGHEST) + bias[None]


def _cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
  return optax.softmax_cross_entropy_with_integer_labels(logits, target).mean()
