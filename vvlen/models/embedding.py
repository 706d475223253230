"""Rows of an embedding table, where tokens or positions outside are an error or nan."""

import jax
import jax.numpy as jnp
import numpy as np


def rows_of(table: jax.Array, places: jax.Array) -> jax.Array:
  """Returns rows [..., d] of a table [V, d] at places [...]; nan where none is."""
  # Indices would be moved into the table.
  return table.at[places].get(
      mode='fill', fill_value=jnp.nan, wrap_negative_indices=False
  )


def check_places(name: str, places: jax.Array, size: int) -> None:
  """Raises ValueError on places outside 0..size − 1, where they can be known."""
  known = not isinstance(places, jax.core.Tracer)
  if known and getattr(places, 'is_fully_addressable', True) and np.size(places):
    values = np.asarray(places)
    lowest, highest = values.min(), values.max()
    if lowest < 0 or highest >= size:
      raise ValueError(f'{name} {lowest}..{highest} are not in 0..{size - 1}')
