"""Rows of an embedding table; an index outside the table is an error or gives nan."""

import jax
import jax.numpy as jnp
import numpy as np


def rows_of(table: jax.Array, places: jax.Array) -> jax.Array:
  """Returns rows [..., d] of a table [V, d] at indices [...]; nan outside 0..V − 1."""
  # Plain indexing would clip indices or count them from the end.
  return table.at[places].get(
      mode='fill', fill_value=jnp.nan, wrap_negative_indices=False
  )


def check_places(name: str, places: jax.Array, size: int) -> None:
  """Raises ValueError if indices are outside 0..size − 1; not checked under jit.

  Not checked either: arrays of which other processes hold parts.
  """
  known = not isinstance(places, jax.core.Tracer)
  if known and getattr(places, 'is_fully_addressable', True) and np.size(places):
    values = np.asarray(places)
    lowest, highest = values.min(), values.max()
    if lowest < 0 or highest >= size:
      raise ValueError(f'{name} {lowest}..{highest} are not in 0..{size - 1}')
