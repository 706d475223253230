"""The optimizer of language models, gradient accumulation, and compute dtypes."""

from collections.abc import Callable
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from vvlen.training.step import Batch, Metrics, Params

Loss = Callable[[Params, Batch], tuple[jax.Array, Metrics]]


def warmup_cosine(
    learning_rate: float,
    num_steps: int,
    *,
    warmup_steps: int = 0,
    final_rate: float = 0.0,
) -> optax.Schedule:
  """Returns a learning rate as a function of c, the number of updates made before.

    rate(c) = learning_rate · (c + 1) / warmup_steps        for c < warmup_steps, then
    rate(c) = learning_rate · (f + (1 − f) · (1 + cos πx) / 2),
      x = (c − warmup_steps) / (num_steps − warmup_steps), f = final_rate.

  So the last update of the warm-up, and the one after it, have the full rate. The rate
  falls to f · learning_rate at c = num_steps and then stays; with num_steps updates,
  none has a rate of 0. (`optax.warmup_cosine_decay_schedule` starts at a given rate and
  reaches the full one an update later.)

  Args:
    learning_rate: the largest rate.
    num_steps: updates in all.
    warmup_steps: fewer than num_steps.
    final_rate: as a fraction of learning_rate.

  Returns:
    A function from [] int32 to [] float32.

  Raises:
    ValueError: for impossible values.
  """
  _require(learning_rate > 0, 'learning_rate must be positive', learning_rate)
  _require(num_steps >= 1, 'num_steps must be positive', num_steps)
  _require(
      0 <= warmup_steps < num_steps, f'warmup_steps must be in [0, {num_steps})',
      warmup_steps,
  )
  _require(0 <= final_rate <= 1, 'final_rate must be in [0, 1]', final_rate)

  warm = max(warmup_steps, 1)
  rising = optax.linear_schedule(learning_rate / warm, learning_rate, warm - 1)
  falling = optax.cosine_decay_schedule(
      learning_rate, num_steps - warmup_steps, alpha=final_rate)
  return optax.join_schedules((rising, falling), (warmup_steps,))


def adamw(
    learning_rate: float,
    num_steps: int,
    *,
    warmup_steps: int = 0,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    final_rate: float = 0.0,
    b1: float = 0.9,
    b2: float = 0.95,
) -> optax.GradientTransformation:
  """Returns AdamW in the form used to train language models.

  In this order: the gradient is scaled down to `clip_norm`; Adam turns it into a step;
  weight_decay times the parameter is added if the parameter has two axes or more; and
  the sum is scaled by the rate of `warmup_cosine`. So kernels and embeddings decay;
  biases, the scales of norms and other vectors do not. Below a key `layers`, where a
  Llama with `scan_layers` has the parameters of all layers, the first axis, that of
  layers, does not count.

  Args:
    learning_rate: the largest rate.
    num_steps: updates in all.
    warmup_steps: the number of first updates, over which the rate grows linearly.
    weight_decay: decoupled: per update, a parameter shrinks by weight_decay · rate.
    clip_norm: the largest norm of all gradients together; None to clip nothing.
    final_rate: the fraction of learning_rate that the cosine ends at.
    b1: decay of the mean of gradients.
    b2: decay of the mean of their squares.

  Returns:
    An optax.GradientTransformation, whose update needs the parameters.

  Raises:
    ValueError: for impossible values.
  """
  rate = warmup_cosine(
      learning_rate, num_steps, warmup_steps=warmup_steps, final_rate=final_rate
  )
  _require(weight_decay >= 0, 'weight_decay must not be negative', weight_decay)
  _require(clip_norm is None or clip_norm > 0, 'clip_norm must be positive', clip_norm)
  _require(0 <= b1 < 1, 'b1 must be in [0, 1)', b1)
  _require(0 <= b2 < 1, 'b2 must be in [0, 1)', b2)
  axes = lambda path, x: x.ndim - ('layers' in [getattr(k, 'key', None) for k in path])
  matrices = lambda params: jax.tree_util.tree_map_with_path(
      lambda path, x: axes(path, x) >= 2, params)
  clip = () if clip_norm is None else (optax.clip_by_global_norm(clip_norm),)
  adam = optax.adamw(rate, b1, b2, weight_decay=weight_decay, mask=matrices)
  return optax.chain(*clip, adam)


def accumulate(
    loss: Loss, num_parts: int
) -> Callable[[Params, Batch], tuple[tuple[jax.Array, Metrics], Params]]:
  """Returns a function for the gradient of `loss`, one equal part of a batch at a time.

  Activations take the memory of one part. If the loss and the metrics are means over
  the rows of the batch, all results are those of the whole batch, up to rounding.
  Otherwise results are means over the parts: for instance, if the loss is a mean over
  tokens and rows have different numbers of tokens.

  Part i consists of the rows i, i + num_parts, i + 2·num_parts, ..., so that rows
  sharded over devices stay where they are.

  Args:
    loss: (params, batch) -> ([], metrics {name: []}).
    num_parts: the number of parts; it should divide the number of rows on each device.

  Returns:
    A function (params, batch of arrays [B, ...]) -> ((loss, metrics), gradients), as
    jax.value_and_grad(loss, has_aux=True) returns, but in float32 or wider, whatever
    the dtype of params. It raises ValueError where num_parts does not divide B.

  Raises:
    ValueError: if num_parts is not positive.
  """
  _require(num_parts >= 1, 'num_parts must be positive', num_parts)
  value_and_grad = jax.value_and_grad(loss, has_aux=True)

  def cut(x):
    if x.ndim == 0 or x.shape[0] % num_parts:
      raise ValueError(f'A batch of {x.shape} does not divide into {num_parts} parts')
    return jnp.moveaxis(x.reshape(-1, num_parts, *x.shape[1:]), 1, 0)

  def of(params, batch):
    parts = jax.tree.map(cut, batch)
    shapes = jax.eval_shape(value_and_grad, params, jax.tree.map(_first, parts))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, _wide(x)), shapes)

    def body(total, part):
      new = value_and_grad(params, part)
      return jax.tree.map(lambda t, x: t + x.astype(t.dtype), total, new), None

    total, _ = jax.lax.scan(body, zeros, parts)
    return jax.tree.map(lambda t: t / num_parts, total)

  return of


def cast_floating(tree: Any, dtype: jax.typing.DTypeLike) -> Any:
  """Returns a pytree with its floating arrays cast and the others unchanged.

  loss(cast_floating(params, jnp.bfloat16), batch) computes in bfloat16, but its
  gradient with respect to float32 `params` is float32.
  """
  cast = lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x
  return jax.tree.map(cast, tree)


def _first(x):
  return x[0]


def _wide(x):
  return jnp.promote_types(x.dtype, jnp.float32)


def _require(holds: bool, what: str, value: Any) -> None:
  if not (holds and (value is None or math.isfinite(value))):
    raise ValueError(f'{what}: {value}')
