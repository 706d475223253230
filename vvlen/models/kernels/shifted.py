"""Shifted sparse attention of LongLoRA (arXiv 2309.12307), for training on long inputs.

Tokens attend within groups of G, and the groups of half of the heads are shifted by
G / 2, so that layers carry information from group to group:

  o_i = Σ_j a_ij v_j over j ≤ i in the group of i,   a_i = softmax of q_i·k_j / √d

  heads 1 .. h/2      borders of groups 0, G, 2 G, ..., n
  heads h/2 + 1 .. h  borders of groups 0, G/2, 3 G/2, ..., n − G/2, n

LongLoRA's code instead rolls the tokens of the second half of the heads by G / 2. Their
last group then holds the last G / 2 tokens followed by the first G / 2, which thus
attend to the end of the sequence: the future leaks into the first G / 2 tokens.

A product of queries and keys needs 2 d operations for each pair of tokens. All heads
have h n² / 2 pairs with full attention, and h (n G / 2 − G² / 8) with groups: with
G = n / 4, 4.27 times fewer.

Axes: B sequences, n tokens, h query heads, k key heads, d width of a head.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from vvlen.models.kernels.causal import causal_attention, check_inputs
from vvlen.sharding.mesh import over_heads


class Shifted(NamedTuple):
  """Shifted sparse attention in a model."""

  group: int  # G, even; LongLoRA trains with a quarter of the length
  leaking: bool = False  # as in LongLoRA's code; the first G / 2 tokens see the last


def shifted_attention(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    group: int,
    *,
    leaking: bool = False,
    implementation: str | None = None,
) -> jax.Array:
  """Attends from every token to itself and all earlier ones of its group.

  Under a mesh, the rows and heads of each half of the heads are sharded by
  `vvlen.sharding.mesh.over_heads`.

  Args:
    queries: [B, n, h, d], with rotary positions already applied.
    keys: [B, n, k, d]; k divides h. Query heads read the same key heads as in
      `causal_attention`.
    values: [B, n, k, d].
    group: G, even; it divides n.
    leaking: whether the groups of the second half of the heads are LongLoRA's, in which
      the first G / 2 tokens attend to the last G / 2.
    implementation: as in `causal_attention`, of inputs with G tokens.

  Returns:
    The output [B, n, h, d], of the dtype of the values if that is a float.

  Raises:
    ValueError: if h or G is odd, G does not divide n, or as `causal_attention`.
  """
  queries, keys, values, *_ = check_inputs(queries, keys, values)
  length, heads = queries.shape[1:3]
  if heads % 2:
    raise ValueError(f'shifted attention needs an even number of heads: {heads}')
  if group < 2 or group % 2 or length % group:
    raise ValueError(
        f'the group must be even and divide the {length} tokens: {group}')
  attend = functools.partial(
      over_heads, functools.partial(causal_attention, implementation=implementation))
  first, second = _halves(queries, keys, values)
  join = _rolled if leaking else _shifted
  outputs = _within(attend, group, *first), join(attend, group, *second)
  return jnp.stack(outputs, axis=2).reshape(queries.shape)


def _halves(queries, keys, values):
  """Returns the inputs of the first half of the query heads, and of the second."""
  if keys.shape[2] % 2:
    # The middle key head serves both halves. As h is even, so is h/k, and each key head
    # can be repeated, to serve half of its query heads each time.
    keys, values = (jnp.repeat(x, 2, axis=2) for x in (keys, values))
  # Not by jnp.split, nor joined by jnp.concatenate: on eight CPUs with four key heads,
  # the gradients of XLA's partitioned program were wrong then (jax 0.10.2).
  apart = [x.reshape(*x.shape[:2], 2, -1, x.shape[3]) for x in (queries, keys, values)]
  return [x[:, :, 0] for x in apart], [x[:, :, 1] for x in apart]


def _within(attend, group, *inputs):
  """Attends within consecutive groups of tokens of inputs [B, n, heads, d]."""
  rows = [x.reshape(-1, group, *x.shape[2:]) for x in inputs]
  return attend(*rows).reshape(inputs[0].shape)


def _shifted(attend, group, *inputs):
  """Attends within the first half of a group, whole groups, and a last half."""
  half = group // 2
  ends = _within(
      attend, half, *(jnp.concatenate([x[:, :half], x[:, -half:]], 1) for x in inputs))
  if inputs[0].shape[1] == group:
    return ends
  middle = _within(attend, group, *(x[:, half:-half] for x in inputs))
  return jnp.concatenate([ends[:, :half], middle, ends[:, half:]], axis=1)


def _rolled(attend, group, *inputs):
  """Attends within groups that begin at G / 2; the last ends with the first tokens."""
  half = group // 2
  output = _within(attend, group, *(jnp.roll(x, -half, axis=1) for x in inputs))
  return jnp.roll(output, half, axis=1)
