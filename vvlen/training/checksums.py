"""Checksums of arrays, computed where the arrays are."""

from typing import Any

import jax
import jax.numpy as jnp

from vvlen import sharding


def of_arrays(tree: Any) -> list[int]:
  """Returns a 32-bit checksum of each array in a pytree, in order of the leaves.

  It does not depend on how an array is divided among devices. It differs if one element
  differs in any bit; if several do, it is equal with probability 2⁻³². If there are
  several processes, all must call it.
  """
  return [int(x) for x in sharding.fetch(_sums(jax.tree.leaves(tree)))]


@jax.jit
def _sums(leaves: list[jax.Array]) -> jax.Array:
  """Returns [leaves] uint32."""
  return jnp.stack([_sum(x) for x in leaves])


def _sum(x: jax.Array) -> jax.Array:
  """Returns Σ_i mix(bits of x_i, i) mod 2³², which needs no order of the elements."""
  bits = _bits(x)
  place, stride = jnp.zeros((), jnp.uint32), 1
  for axis in reversed(range(bits.ndim)):
    place += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(
        stride % 2**32)
    stride *= bits.shape[axis]
  # The finalizer of MurmurHash3: one-to-one, and each bit affects all others.
  mixed = bits + place * jnp.uint32(0x9E3779B9)
  for multiplier, shift in ((0x85EBCA6B, 16), (0xC2B2AE35, 13)):
    mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(multiplier)
  return (mixed ^ (mixed >> 16)).sum(dtype=jnp.uint32)


def _bits(x: jax.Array) -> jax.Array:
  """Returns the bits of an array as uint32; of 8 bytes, in a last axis of two."""
  if jnp.iscomplexobj(x):
    x = jnp.stack([x.real, x.imag])
  if x.dtype == bool:
    return x.astype(jnp.uint32)
  kind = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
  return jax.lax.bitcast_convert_type(x, kind).astype(jnp.uint32)
