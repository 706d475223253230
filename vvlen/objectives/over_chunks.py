"""Sums over chunks of logits z = h Eᵀ, whose gradients are formed with them.

`vvlen.objectives.chunked` tells what this is for: a chunk's logits, the terms of the
loss that are made of them, and the gradient in h and E are computed together, a chunk
at a time; the backward pass multiplies by a number.

What is done with logits but products, which want to be large, is done by blocks of a
chunk: a block has its own function, and is more likely to fit into a cache.

Axes: B sequences, c positions of a chunk, D width, V words, K terms.
"""

from collections.abc import Callable
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

# Of a tuple of logits [B, c, V] and constants of a chunk, sums over its rows [K].
Terms = Callable[[tuple[jax.Array, ...], Any], jax.Array]
# Columns of the gradient in the embedding that are added at once, at the least.
_COLUMNS = 256
# Into so many blocks of positions a chunk is cut for what is done with its logits.
_BLOCKS = 8


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def over_chunks(
    functions: tuple[Terms, ...],
    hidden: tuple[jax.Array, ...],
    embedding: jax.Array,
    constants: Any,
    which: jax.Array,
    coefficients: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Sums terms over chunks; returns coefficients · terms, and terms without gradient.

  Args:
    functions: of which each chunk has one. They close over nothing that is traced.
    hidden: each [chunks, B, c, D].
    embedding: [V, D].
    constants: arrays [chunks, B, c], without gradient.
    which: [chunks, blocks] int32, the places of its blocks' functions; `num_blocks`.
    coefficients: [K], of the type to sum in.
  """

  def add(total, chunk):
    rows, constant, numbers = chunk
    logits = tuple(_logits(x, embedding) for x in rows)
    last = numbers.max()
    return total + _one_of(last, functions, logits, constant), None

  start = jnp.zeros_like(coefficients)
  terms, _ = jax.lax.scan(add, start, (hidden, constants, which))
  return coefficients @ terms, terms


def _forward(functions, hidden, embedding, constants, which, coefficients):
  """Computes the gradients along with the terms."""
  factor = jnp.result_type(*hidden, embedding)
  product = functools.partial(jnp.einsum, preferred_element_type=coefficients.dtype)

  def add(carry, chunk):
    total, of_embedding = carry
    rows, constant, numbers = chunk

    def gradients(function):
      def run(logits, constant):
        terms, pull = jax.vjp(lambda z: function(z, constant), logits)
        return terms, tuple(x.astype(factor) for x in pull(coefficients)[0])

      return run

    logits = tuple(_logits(x, embedding) for x in rows)
    size = logits[0].shape[1] // len(numbers)

    def block(number, carry):
      # The gradient takes the place of the logits.
      terms, of_logits = carry
      cut = lambda x: jax.lax.dynamic_slice_in_dim(x, number * size, size, axis=1)
      more, new = _one_of(
          numbers[number], [gradients(f) for f in functions],
          *jax.tree.map(cut, (logits, constant)),
      )
      put = lambda x, part: jax.lax.dynamic_update_slice_in_dim(
          x, part, number * size, axis=1
      )
      return terms + more, tuple(map(put, of_logits, new))

    terms, of_logits = jax.lax.fori_loop(
        0, len(numbers), block,
        (jnp.zeros_like(total), tuple(x.astype(factor) for x in logits)),
    )
    of_rows = tuple(
        product('bcv,vd->bcd', x, embedding).astype(r.dtype)
        for x, r in zip(of_logits, rows, strict=True)
    )
    return (total + terms, _add_products(of_embedding, of_logits, rows)), of_rows

  zeros = jnp.zeros(embedding.shape, coefficients.dtype)
  start = jnp.zeros_like(coefficients), zeros
  (terms, of_embedding), of_hidden = jax.lax.scan(
      add, start, (hidden, constants, which)
  )
  gradients = of_hidden, of_embedding.astype(embedding.dtype), terms
  return (coefficients @ terms, terms), gradients


def _add_products(total, of_logits, rows):
  """Adds Σ gᵀ h [V, D] by blocks of columns: a product is as large as its block."""
  blocks = math.gcd(total.shape[1], max(1, total.shape[1] // _COLUMNS))
  size = total.shape[1] // blocks

  def add(block, total):
    cut = lambda x: jax.lax.dynamic_slice_in_dim(x, block * size, size, axis=-1)
    part = cut(total)
    for x, r in zip(of_logits, rows, strict=True):
      part += jnp.einsum('bcv,bcd->vd', x, cut(r), preferred_element_type=total.dtype)
    return jax.lax.dynamic_update_slice_in_dim(total, part, block * size, axis=1)

  return add(0, total) if blocks == 1 else jax.lax.fori_loop(0, blocks, add, total)


def _one_of(number, functions, *arguments):
  if len(functions) == 1:
    return functions[0](*arguments)
  return jax.lax.switch(number, functions, *arguments)


def num_blocks(chunk_size: int) -> int:
  """Returns how many blocks a chunk is cut into."""
  return math.gcd(chunk_size, _BLOCKS)


def all_first(rows: tuple[jax.Array, ...]) -> jax.Array:
  """Returns `which` of chunks that all have the first function."""
  chunks, _, size, _ = rows[0].shape
  return jnp.zeros((chunks, num_blocks(size)), jnp.int32)


def _backward(functions, gradients, cotangents):
  del functions
  cotangent, _ = cotangents
  scale = lambda x: (cotangent * x).astype(x.dtype)
  of_hidden, of_embedding, terms = jax.tree.map(scale, gradients)
  return of_hidden, of_embedding, None, None, terms


over_chunks.defvjp(_forward, _backward)


def _logits(rows: jax.Array, embedding: jax.Array) -> jax.Array:
  wide = wide_dtype(rows, embedding)
  return jnp.einsum('...d,vd->...v', rows, embedding, preferred_element_type=wide)


def wide_dtype(hidden: jax.Array, embedding: jax.Array) -> jnp.dtype:
  """Returns the type to sum in: float32, or float64 with the inputs."""
  return jnp.promote_types(jnp.result_type(hidden, embedding), jnp.float32)


def split_chunks(x: jax.Array, axis: int, chunk_size: int) -> jax.Array:
  """Cuts an axis into equal chunks, a new first axis, the last filled up with zeros."""
  length = x.shape[axis]
  number = math.ceil(length / chunk_size)
  size = math.ceil(length / number)
  fill = [(0, 0)] * x.ndim
  fill[axis] = (0, number * size - length)
  shape = (*x.shape[:axis], number, size, *x.shape[axis + 1 :])
  return jnp.moveaxis(jnp.pad(x, fill).reshape(shape), axis, 0)
