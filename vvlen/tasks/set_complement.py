"""Set complement: give equal probability to all symbols that are not in a set of N.

The task of arXiv 2510.08341, "output a uniform distribution over tokens not in the
input". All N items matter alike, where retrieval and lookup ask for one of them. The
accuracy is one minus the total variation (`vvlen.objectives.targets`); the uniform
distribution over all C symbols has 1 − N / C.

Axes: B sequences, N items, C symbols.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from vvlen.tasks.lengths import uniform_length
from vvlen.tasks.lookup import distinct


class Batch(NamedTuple):
  """Sets of symbols, padded to N items."""

  query: jax.Array  # [B, 1] float32, 1: there is one question only
  items: jax.Array  # [B, N, C] float32, symbols as one-hots, no symbol twice
  mask: jax.Array  # [B, N] bool, True where there is an item
  target: jax.Array  # [B, C] float32, uniform over the symbols that are absent


def sample(
    key: jax.Array,
    *,
    batch_size: int,
    min_length: int,
    max_length: int,
    num_symbols: int = 64,
    longest: jax.Array | int | None = None,
) -> Batch:
  """Draws sets of symbols.

  Each set has its own size, uniform on min_length..max_length, and its symbols are
  drawn without replacement. Of four symbols, the set {2, 0} has the target
  0, ½, 0, ½.

  Args:
    key: a typed PRNG key.
    batch_size: B.
    min_length: the fewest symbols in a set, at least 1.
    max_length: N, the padded size, less than C.
    num_symbols: C.
    longest: as in `vvlen.tasks.lookup.sample`.

  Returns:
    A `Batch`.

  Raises:
    ValueError: if batch_size is not positive, or not
      1 <= min_length <= max_length < num_symbols.
  """
  if batch_size < 1:
    raise ValueError(f'batch_size must be positive: {batch_size}')
  if not 1 <= min_length <= max_length < num_symbols:
    raise ValueError('need 1 <= min_length <= max_length < num_symbols: '
                     f'{min_length}, {max_length}, {num_symbols}')
  length_key, symbols_key = jax.random.split(key)
  length = uniform_length(
      jax.random.uniform(length_key, (batch_size, 1), jnp.float32), min_length,
      max_length, longest)
  mask = jnp.arange(max_length)[None] < length
  symbols = distinct(symbols_key, batch_size, max_length, num_symbols)
  items = jax.nn.one_hot(symbols, num_symbols, dtype=jnp.float32)
  absent = 1.0 - (items * mask[..., None]).sum(axis=1)
  query = jnp.ones((batch_size, 1), jnp.float32)
  return Batch(query, items, mask, absent / absent.sum(axis=-1, keepdims=True))


def vocabulary(num_symbols: int = 64) -> jax.Array:
  """Returns every symbol, [C, C] float32."""
  return jnp.eye(num_symbols, dtype=jnp.float32)
