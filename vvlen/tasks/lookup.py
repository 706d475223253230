"""Dictionary lookup: name the value of one key among N (key, value) items.

Axes: B sequences, N items, K keys, C values.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from vvlen.tasks.lengths import uniform_length


class Batch(NamedTuple):
  """Sequences of one query and a dictionary, padded to N items."""

  query: jax.Array  # [B] int32, the key asked for
  items: jax.Array  # [B, N, 2] int32: key, value; no key twice, padding included
  mask: jax.Array  # [B, N] bool, True where there is an item
  target: jax.Array  # [B] int32, value of the key asked for
  target_index: jax.Array  # [B] int32, index of the item with that key


def sample(
    key: jax.Array,
    *,
    batch_size: int,
    min_length: int,
    max_length: int,
    num_keys: int = 16384,
    num_values: int = 10,
    longest: jax.Array | int | None = None,
) -> Batch:
  """Draws sequences of dictionary lookup (arXiv 2504.02827 section 4).

  Within a sequence, keys are drawn without replacement; values, and the item whose key
  is asked for, are uniform. Each sequence has its own length, uniform on
  min_length..max_length. With three items

    key    7  2  9
    value  1  0  4    the query 2 has the target 0.

  Lengths, places and values come from a single draw of 23-bit uniforms, keys from
  separate draws (`distinct`). So each probability is right to within 2**-23, and exact
  where the number of outcomes is a power of 2.

  Args:
    key: a typed PRNG key.
    batch_size: B.
    min_length: the fewest items in a sequence, at least 1.
    max_length: N, the padded size, at most K.
    num_keys: K.
    num_values: C.
    longest: the most items in a sequence, clipped to min_length..max_length;
      max_length if None. It may be traced, so that lengths can grow during training
      without compiling again.

  Returns:
    A `Batch`.

  Raises:
    ValueError: if a size is not positive, or not min_length <= max_length <= num_keys.
  """
  if batch_size < 1 or num_values < 1:
    raise ValueError(
        f'batch_size and num_values must be positive: {batch_size}, {num_values}'
    )
  if not 1 <= min_length <= max_length <= num_keys:
    raise ValueError(
        'need 1 <= min_length <= max_length <= num_keys: '
        f'{min_length}, {max_length}, {num_keys}'
    )
  key, keys_key = jax.random.split(key)
  uniform = jax.random.uniform(key, (batch_size, 2 + max_length), jnp.float32)
  length, place, values = jnp.split(uniform, (1, 2), axis=1)
  length = uniform_length(length, min_length, max_length, longest)
  place = jnp.floor(place * length).astype(jnp.int32)
  keys = distinct(keys_key, batch_size, max_length, num_keys)
  values = jnp.floor(values * num_values).astype(jnp.int32)
  mask = jnp.arange(max_length)[None] < length
  at_place = lambda x: jnp.take_along_axis(x, place, axis=1)[:, 0]
  items = jnp.stack([keys, values], axis=-1)
  return Batch(at_place(keys), items, mask, at_place(values), place[:, 0])


def distinct(key: jax.Array, batch_size: int, count: int, num_keys: int) -> jax.Array:
  """Draws `count` distinct keys of 0..num_keys-1, uniformly, for each sequence.

  Keys are drawn independently; those that an earlier place of the sequence already has
  are drawn again, until all are distinct. The procedure treats all keys alike (renaming
  the keys only renames its outcome), so all tuples of distinct keys are equally likely,
  as far as a single draw is uniform. The number of rounds grows with `count`; above
  num_keys / 2, the first `count` entries of a random permutation are taken instead.

  Args:
    key: a typed PRNG key, for all sequences.
    batch_size: B, the number of sequences.
    count: N, keys per sequence, at most `num_keys`.
    num_keys: K, the number of keys to choose from.

  Returns:
    Keys [B, N] int32, in random order.

  Raises:
    ValueError: if `count` is not in 0..num_keys.
  """
  if not 0 <= count <= num_keys:
    raise ValueError(f'cannot draw {count} distinct keys from {num_keys}')
  if 2 * count > num_keys:
    keys = jax.random.split(key, batch_size)
    return jax.vmap(lambda key: _permutation(key, num_keys)[:count])(keys)
  # Comparing all pairs takes N² operations; a table of the first place of each key
  # takes K + N slower ones (on a CPU, K = 2**14: equally fast at N = 80).
  repeated = _repeated_pairs
  if 4 * count**2 > num_keys:
    repeated = functools.partial(_repeated_table, num_keys=num_keys)

  def draw(number):
    uniform = jax.random.uniform(
        jax.random.fold_in(key, number), (batch_size, count), jnp.float32
    )
    return jnp.floor(uniform * num_keys).astype(jnp.int32)

  def again(state):
    number, keys, wrong = state
    keys = jnp.where(wrong, draw(number), keys)
    return number + 1, keys, repeated(keys)

  keys = draw(0)
  state = (1, keys, repeated(keys))
  return jax.lax.while_loop(lambda state: state[2].any(), again, state)[1]


def _repeated_pairs(keys: jax.Array) -> jax.Array:
  """Returns which keys [B, N] occur earlier in their sequence too, [B, N] bool."""
  earlier = jnp.tril(jnp.ones(2 * keys.shape[1:], bool), -1)
  return ((keys[:, :, None] == keys[:, None, :]) & earlier[None]).any(-1)


def _repeated_table(keys: jax.Array, num_keys: int) -> jax.Array:
  """As `_repeated_pairs`, by a table of the first place of each key."""
  places = jnp.arange(keys.shape[1])

  def repeated(keys):
    first = jnp.full(num_keys, keys.size).at[keys].min(places)
    return first[keys] != places

  return jax.vmap(repeated)(keys)


def _permutation(key: jax.Array, count: int) -> jax.Array:
  """Returns a random permutation of 0..count-1, int32.

  Sorts by random bits: each 32-bit word holds a place and, in front of it, as many
  random bits as fit, so the sort is repeated with new bits until each place has had
  2 * place_bits + 23 of them. There are fewer than 2**(2 * place_bits - 1) pairs, so
  the probability that any two places tie is below 2**-24. Sorting plain words is
  fourteen times faster on a CPU than jax.random.permutation.
  """
  place_bits = max(1, (count - 1).bit_length())
  rounds = -(-(2 * place_bits + 23) // (32 - place_bits))
  places = jnp.arange(count, dtype=jnp.uint32)
  low = jnp.uint32((1 << place_bits) - 1)
  order = places
  for bits in jax.random.bits(key, (rounds, count), jnp.uint32):
    order = order[jnp.sort((bits & ~low) | places) & low]
  return order.astype(jnp.int32)


def vocabulary(num_keys: int = 16384, num_values: int = 10) -> jax.Array:
  """Returns every pair of key and value, [num_keys * num_values, 2] int32."""
  keys, values = jnp.meshgrid(
      jnp.arange(num_keys), jnp.arange(num_values), indexing='ij'
  )
  return jnp.stack([keys.ravel(), values.ravel()], axis=-1)
