"""Multi-query associative recall: name the values of several keys among N pairs.

After arXiv 2312.04927 (Zoology), where a sequence of tokens has pairs of key and value,
then some of its keys again, and each is to be followed by its value. Here a pair is one
item, so that a single head without positions can bind a value to its key.

Axes: B sequences, Q queries, N items, K keys, C values.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from vvlen.tasks import lookup


class Batch(NamedTuple):
  """Sequences of several queries and a dictionary, padded to N items.

  The axis of size 1 stands for the queries, which share their items.
  """

  query: jax.Array  # [B, Q] int32, the keys asked for, no key twice
  items: jax.Array  # [B, 1, N, 2] int32: key, value; no key twice, padding included
  mask: jax.Array  # [B, 1, N] bool, True where there is an item
  target: jax.Array  # [B, Q] int32, values of the keys asked for
  target_index: jax.Array  # [B, Q] int32, indices of the items with these keys


def sample(
    key: jax.Array,
    *,
    batch_size: int,
    min_length: int,
    max_length: int,
    num_queries: int = 4,
    num_keys: int = 16384,
    num_values: int = 64,
    longest: jax.Array | int | None = None,
) -> Batch:
  """Draws sequences of multi-query associative recall.

  Items are those of `vvlen.tasks.lookup.sample`. The Q items whose keys are asked for
  are uniform without replacement, in random order. With three items and two queries

    key    7  2  9
    value  1  0  4    the queries 9, 7 have the targets 4, 1.

  Args:
    key: a typed PRNG key.
    batch_size: B.
    min_length: the fewest items in a sequence, at least Q.
    max_length: N, the padded size, at most K.
    num_queries: Q.
    num_keys: K.
    num_values: C.
    longest: as in `vvlen.tasks.lookup.sample`.

  Returns:
    A `Batch`.

  Raises:
    ValueError: if not 1 <= num_queries <= min_length, or as
      `vvlen.tasks.lookup.sample`.
  """
  if not 1 <= num_queries <= min_length:
    raise ValueError('need 1 <= num_queries <= min_length: '
                     f'{num_queries}, {min_length}')
  key, places_key = jax.random.split(key)
  pairs = lookup.sample(
      key, batch_size=batch_size, min_length=min_length, max_length=max_length,
      num_keys=num_keys, num_values=num_values, longest=longest)
  uniform = jax.random.uniform(places_key, (batch_size, max_length), jnp.float32)
  _, places = jax.lax.top_k(jnp.where(pairs.mask, uniform, -1.0), num_queries)
  at_places = lambda x: jnp.take_along_axis(x, places, axis=1)
  keys, values = pairs.items[..., 0], pairs.items[..., 1]
  return Batch(at_places(keys), pairs.items[:, None], pairs.mask[:, None],
               at_places(values), places.astype(jnp.int32))


vocabulary = lookup.vocabulary
