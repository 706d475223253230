"""The mean, length or sum of a string of bits: one real number to predict.

The input of a model is BOS, l bits, EOS; its output is read at EOS (arXiv 2506.11769,
section 3).

Axes: B sequences, N bits at most.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from vvlen.tasks.lengths import uniform_length

TASKS = ('mean', 'length', 'sum')
COUNTS = ('fair', 'uniform')
# Tokens 0 and 1 are the bits.
BOS, EOS = 2, 3
VOCAB_SIZE = 4


class Batch(NamedTuple):
  """Strings of bits, padded with EOS to N bits."""

  tokens: jax.Array  # [B, N + 2] int32
  end: jax.Array  # [B] int32, position of EOS, l + 1: `read_at` is end[:, None]
  mask: jax.Array  # [B, N + 2] bool, True up to EOS; one per token, not per pair
  target: jax.Array  # [B] float32


def sample(
    key: jax.Array,
    *,
    batch_size: int,
    min_length: int,
    max_length: int,
    task: str,
    counts: str = 'fair',
) -> Batch:
  """Draws strings of bits whose lengths are uniform on min_length..max_length.

  Args:
    key: a typed PRNG key.
    batch_size: B.
    min_length: the fewest bits, at least 1.
    max_length: N, the most bits and the padded size.
    task: the target: 'mean', 'length' or 'sum' of the bits.
    counts: 'fair': bits are independent, 0 or 1 with equal probability. 'uniform': the
      number c of ones is uniform on 0..l, and all orders are equally likely. This
      equals drawing θ uniformly and then each bit as 1 with probability θ, since
      ∫ θ^c (1 − θ)^{l−c} dθ = 1 / ((l + 1) C(l, c)).

  Returns:
    A `Batch`. Lengths and bits are computed from 23-bit uniforms.

  Raises:
    ValueError: on an unknown task or counts, sizes that are not positive or lengths out
      of order.
  """
  _check(task, counts)
  _check_sizes(batch_size, min_length, max_length)
  uniform = jax.random.uniform(key, (batch_size, 2 + max_length), jnp.float32)
  length, share, bits = jnp.split(uniform, (1, 2), axis=1)
  length = uniform_length(length, min_length, max_length, None)
  bits = (bits < (share if counts == 'uniform' else 0.5)).astype(jnp.int32)
  return make_batch(bits, length[:, 0], task)


class Packed(NamedTuple):
  """Two strings of bits per row, without padding: inputs of `vvlen.models.decoder`."""

  tokens: jax.Array  # [R, n] int32
  positions: jax.Array  # [R, n] int32, from 0 in each string
  mask: jax.Array  # [R, n, n] bool, causal within a string
  read_at: jax.Array  # [R, 2] int32, columns of `tokens` that hold EOS
  target: jax.Array  # [R, 2] float32


def sample_packed(
    key: jax.Array,
    *,
    num_rows: int,
    min_length: int,
    max_length: int,
    task: str,
    counts: str = 'fair',
) -> Packed:
  """Draws pairs of strings of bits; each pair fills one row.

  A string of l bits shares its row with one of min_length + max_length − l bits, so a
  row has n = min_length + max_length + 4 tokens. Each string has the distribution of
  `sample`; of a pair, only the lengths depend on each other. For lengths 1..N, a pair
  has N + 5 tokens, where two padded strings have 2N + 4: 5/8 as many at N = 10.

  Args:
    key: a typed PRNG key.
    num_rows: R, half the number of strings.
    min_length: the fewest bits, at least 1.
    max_length: the most bits.
    task: as in `sample`.
    counts: as in `sample`.

  Returns:
    A `Packed`.

  Raises:
    ValueError: as in `sample`.
  """
  _check(task, counts)
  _check_sizes(num_rows, min_length, max_length)
  both = min_length + max_length
  uniform = jax.random.uniform(key, (num_rows, 3 + both + 4), jnp.float32)
  length, shares, bits = jnp.split(uniform, (1, 3), axis=1)
  length = uniform_length(length, min_length, max_length, None)
  place = jnp.arange(both + 4)[None]
  second = place >= length + 2
  positions = jnp.where(second, place - length - 2, place)
  lengths = jnp.concatenate([length, both - length], axis=1)
  last = jnp.where(second, lengths[:, 1:], lengths[:, :1]) + 1
  share = jnp.where(second, shares[:, 1:], shares[:, :1])
  bits = (bits < (share if counts == 'uniform' else 0.5)).astype(jnp.int32)
  is_bit = (positions > 0) & (positions < last)
  tokens = jnp.where(is_bit, bits, jnp.where(positions == 0, BOS, EOS))
  same = second[:, :, None] == second[:, None]
  mask = same & (place[:, :, None] >= place[:, None])
  one = jnp.where(is_bit, bits, 0)
  ones = jnp.stack(
      [jnp.where(second, 0, one).sum(axis=1), jnp.where(second, one, 0).sum(axis=1)],
      axis=1,
  ).astype(jnp.float32)
  read_at = jnp.concatenate([length + 1, jnp.full_like(length, both + 3)], axis=1)
  return Packed(tokens, positions, mask, read_at, target_of(ones, lengths, task))


def make_batch(bits: jax.Array, length: jax.Array, task: str) -> Batch:
  """Makes a batch from the first l bits of each row.

  Args:
    bits: [B, N] int32, 0 or 1; those after the first l are ignored.
    length: l [B] int32, in 1..N (not checked).
    task: 'mean', 'length' or 'sum'.

  Raises:
    ValueError: on an unknown task.
  """
  place = jnp.arange(bits.shape[1])[None]
  kept = place < length[:, None]
  tokens = jnp.where(kept, bits, EOS)
  edge = lambda token: jnp.full((len(bits), 1), token, jnp.int32)
  tokens = jnp.concatenate([edge(BOS), tokens, edge(EOS)], axis=1)
  mask = jnp.arange(tokens.shape[1])[None] <= length[:, None] + 1
  ones = jnp.where(kept, bits, 0).sum(axis=1).astype(jnp.float32)
  return Batch(tokens, length + 1, mask, target_of(ones, length, task))


def target_of(ones: jax.Array, length: jax.Array, task: str) -> jax.Array:
  """Returns the mean, length or sum of strings, float32, in the shape of `ones`.

  Args:
    ones: [...], the number of ones.
    length: l, an array that broadcasts to [...].
    task: 'mean', 'length' or 'sum'.

  Raises:
    ValueError: on an unknown task.
  """
  _check(task)
  length = length.astype(jnp.float32)
  if task == 'mean':
    return ones / length
  return jnp.broadcast_to(length, ones.shape) if task == 'length' else ones


def all_strings(length: int) -> np.ndarray:
  """Returns all strings of `length` bits, [2^length, length] int32."""
  return np.array([*itertools.product((0, 1), repeat=length)], np.int32)


def string_probability(bits: np.ndarray, counts: str) -> np.ndarray:
  """Returns the probability of strings among those of length l, [...] float64.

  Args:
    bits: [..., l], 0 or 1.
    counts: 'fair' or 'uniform', as in `sample`.

  Raises:
    ValueError: on unknown counts.
  """
  _check(counts=counts)
  length = bits.shape[-1]
  if counts == 'fair':
    return np.full(bits.shape[:-1], 0.5**length)
  return 1 / (length + 1) / special.comb(length, bits.sum(axis=-1))


def _check(task: str = 'mean', counts: str = 'fair') -> None:
  if task not in TASKS:
    raise ValueError(f'task must be one of {", ".join(TASKS)}: {task!r}')
  if counts not in COUNTS:
    raise ValueError(f'counts must be one of {", ".join(COUNTS)}: {counts!r}')


def _check_sizes(count: int, min_length: int, max_length: int) -> None:
  if count < 1:
    raise ValueError(f'batch_size or num_rows must be positive: {count}')
  if not 1 <= min_length <= max_length:
    raise ValueError(
        f'need 1 <= min_length <= max_length: {min_length}, {max_length}'
    )
