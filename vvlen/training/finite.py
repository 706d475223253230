"""Checks that the weights of a model are finite."""

from typing import Any

import jax
import jax.numpy as jnp

from vvlen import sharding


def bad_weights(params: Any) -> str:
  """Returns the names of the arrays in a pytree that are not finite, '' if all are.

  Names are like 'layer_0/mlp/up/kernel'; after three, only the number of others is
  given. If there are several processes, all must call it.
  """
  paths, leaves = zip(*jax.tree_util.tree_leaves_with_path(params), strict=True)
  fine = _are_finite(leaves)
  bad = [jax.tree_util.keystr(path, simple=True, separator='/')
         for path, ok in zip(paths, sharding.fetch(fine), strict=True) if not ok]
  return ', '.join(bad[:3]) + (f' and {len(bad) - 3} more' if bad[3:] else '')


@jax.jit
def _are_finite(leaves: tuple[jax.Array, ...]) -> jax.Array:
  """Returns [leaves] bool; numbers that are not floats are finite."""
  return jnp.stack([jnp.isfinite(x).all() for x in leaves])
