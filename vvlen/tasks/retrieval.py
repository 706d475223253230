"""Argmax retrieval: name the class of the item with the highest priority.

Axes: B sequences, N items, C classes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from vvlen.tasks.lengths import uniform_length


class Batch(NamedTuple):
  """Sequences of one query and a set of items, padded to N items."""

  query: jax.Array  # [B, 1] float32, uniform on [0, 1)
  items: jax.Array  # [B, N, 1 + C] float32: priority, then the class as a one-hot
  mask: jax.Array  # [B, N] bool, True where there is an item
  target: jax.Array  # [B] int32, class of the item asked for
  target_index: jax.Array  # [B] int32, index of that item


def sample(
    key: jax.Array,
    *,
    batch_size: int,
    min_length: int,
    max_length: int,
    num_classes: int = 10,
    informative_query: bool = False,
    longest: jax.Array | int | None = None,
) -> Batch:
  """Draws sequences of argmax retrieval (arXiv 2504.02827 section 4).

  Priorities and queries are uniform on [0, 1), classes uniform on 0..C-1. Each sequence
  has its own length, uniform on min_length..max_length. The three items

    priority  .2  .9  .5
    class      7   4   1      have the target 4.

  All numbers come from a single draw of 23-bit uniforms, since drawing random numbers
  takes a tenth of a training step on a CPU. So probabilities of classes and lengths are
  right to within 2**-23, and one sequence in 16 has a tie for the highest priority at a
  length of a million (one in 1,000 at 2**14); the first of the tied items is the
  target.

  Args:
    key: a typed PRNG key.
    batch_size: B.
    min_length: the fewest items in a sequence, at least 1.
    max_length: N, the most items in a sequence and the padded size.
    num_classes: C.
    informative_query: False, as in the paper: the query carries no information, and the
      target has the highest priority. True: with a query below 1/2, the target has the
      lowest priority.
    longest: the most items in a sequence, clipped to min_length..max_length;
      max_length if None. It may be traced, so that lengths can grow during training
      without compiling again.

  Returns:
    A `Batch`.

  Raises:
    ValueError: if a size is not positive, or not min_length <= max_length < 2**30.
  """
  if batch_size < 1 or num_classes < 1:
    raise ValueError(
        f'batch_size and num_classes must be positive: {batch_size}, {num_classes}'
    )
  if not 1 <= min_length <= max_length < 2**30:
    raise ValueError(
        f'need 1 <= min_length <= max_length < 2**30: {min_length}, {max_length}'
    )
  uniform = jax.random.uniform(key, (batch_size, 2 + 2 * max_length), jnp.float32)
  query, length, priority, classes = jnp.split(
      uniform, (1, 2, 2 + max_length), axis=1
  )
  length = uniform_length(length, min_length, max_length, longest)
  classes = _uniform_integer(classes, num_classes)
  mask = jnp.arange(max_length)[None] < length
  wanted = priority
  if informative_query:
    wanted = jnp.where(query < 0.5, 1.0 - priority, priority)
  # `wanted` is at least 0, so an item always beats padding.
  best = jnp.argmax(jnp.where(mask, wanted, -1.0), axis=1)
  items = jnp.concatenate(
      [priority[..., None], jax.nn.one_hot(classes, num_classes, dtype=jnp.float32)],
      axis=-1,
  )
  target = jnp.take_along_axis(classes, best[:, None], axis=1)[:, 0]
  return Batch(query, items, mask, target, best.astype(jnp.int32))


def vocabulary(num_classes: int = 10, num_priorities: int = 257) -> jax.Array:
  """Returns every class at evenly spaced priorities on [0, 1].

  Returns:
    Items [C * num_priorities, 1 + C] float32, for bounds that hold over all items.
  """
  priority, classes = jnp.meshgrid(
      jnp.linspace(0.0, 1.0, num_priorities, dtype=jnp.float32),
      jnp.arange(num_classes), indexing='ij',
  )
  one_hot = jax.nn.one_hot(classes.ravel(), num_classes, dtype=jnp.float32)
  return jnp.concatenate([priority.reshape(-1, 1), one_hot], axis=1)


def _uniform_integer(uniform: jax.Array, count: int) -> jax.Array:
  """Maps uniforms on [0, 1) to integers 0..count-1."""
  return jnp.floor(uniform * count).astype(jnp.int32)
