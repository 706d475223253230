"""Sums over chunks of logits z = h Eᵀ, with their gradients in the same pass.

The logits of all rows would be the largest array in training. So the logits of a chunk,
the terms of the loss computed from them, and the gradients in h and E are computed
together, a chunk at a time; the backward pass only multiplies by a number.

Matrix products cover a whole chunk, since large products are efficient. All other
operations on logits work on one block of a chunk at a time: each block has its own
function, and is more likely to fit into the cache.

Axes: B sequences, c positions of a chunk, D width, V words, K terms.
"""

from collections.abc import Callable
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

# (tuple of logits [B, c, V], constants of a chunk) -> sums over its rows [K]
Terms = Callable[[tuple[jax.Array, ...], Any], jax.Array]
# The least number of columns of the gradient in the embedding to add at once.
_COLUMNS = 256
# The most blocks of positions that a chunk is cut into.
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
    functions: each block has one of them. They must not close over traced values.
    hidden: each [chunks, B, c, D].
    embedding: [V, D].
    constants: arrays [chunks, B, c], without gradient.
    which: [chunks, blocks] int32, the index of each block's function, with as many
      blocks as `num_blocks` returns. Without a gradient, the function of the largest
      index serves the whole chunk.
    coefficients: [K], in the dtype to sum in.
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
  both = [_with_gradients(f, coefficients, factor) for f in functions]

  def add(carry, chunk):
    total, of_embedding = carry
    rows, constant, numbers = chunk
    logits = tuple(_logits(x, embedding) for x in rows)
    terms, of_logits = _over_blocks(
        both, logits, constant, numbers, jnp.zeros_like(total), factor)
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


def _with_gradients(function, coefficients, dtype):
  """Returns a function like `function` that also returns gradients.

  They are those of coefficients · terms in the logits, each [B, c, V] of `dtype`.
  """

  def run(logits, constant):
    terms, pull = jax.vjp(lambda z: function(z, constant), logits)
    return terms, tuple(x.astype(dtype) for x in pull(coefficients)[0])

  return run


def _over_blocks(both, logits, constant, numbers, zero, dtype):
  """Returns the terms of a chunk [K], and the gradients in its logits.

  Args:
    both: functions that return both, of a block.
    logits: of the chunk, each [B, c, V].
    constant: arrays [B, c].
    numbers: [blocks], which of the functions each block has.
    zero: [K] zeros, to which terms are added.
    dtype: of the gradients.
  """
  size = logits[0].shape[1] // len(numbers)

  def block(number, carry):
    # The gradient overwrites the logits.
    terms, of_logits = carry
    cut = lambda x: jax.lax.dynamic_slice_in_dim(x, number * size, size, axis=1)
    more, new = _one_of(
        numbers[number], both, *jax.tree.map(cut, (logits, constant)))
    put = lambda x, part: jax.lax.dynamic_update_slice_in_dim(
        x, part, number * size, axis=1
    )
    return terms + more, tuple(map(put, of_logits, new))

  start = zero, tuple(x.astype(dtype) for x in logits)
  return jax.lax.fori_loop(0, len(numbers), block, start)


def _add_products(total, of_logits, rows):
  """Adds Σ gᵀ h [V, D] in blocks of columns, so that no product is as large as that."""
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
  """Returns a `which` that gives every block the first function."""
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
  """Returns the dtype to sum in: float64 if an input is float64, else float32."""
  return jnp.promote_types(jnp.result_type(hidden, embedding), jnp.float32)


def split_chunks(x: jax.Array, axis: int, chunk_size: int) -> jax.Array:
  """Cuts an axis into equal chunks along a new first axis; zeros fill up the last."""
  length = x.shape[axis]
  number = math.ceil(length / chunk_size)
  size = math.ceil(length / number)
  fill = [(0, 0)] * x.ndim
  fill[axis] = (0, number * size - length)
  shape = (*x.shape[:axis], number, size, *x.shape[axis + 1 :])
  return jnp.moveaxis(jnp.pad(x, fill).reshape(shape), axis, 0)


def check_shapes(hidden: jax.Array, embedding: jax.Array, chunk_size: int) -> None:
  """Raises ValueError unless h is [B, L, D], E [V, D] and chunk_size positive."""
  if hidden.ndim != 3 or embedding.ndim != 2 or hidden.shape[2] != embedding.shape[1]:
    raise ValueError(
        'hidden states [B, L, D] do not fit the embedding [V, D]: '
        f'{hidden.shape}, {embedding.shape}'
    )
  if 0 in hidden.shape or 0 in embedding.shape:
    raise ValueError(f'an axis has length 0: {hidden.shape}, {embedding.shape}')
  if not isinstance(chunk_size, int) or chunk_size < 1:
    raise ValueError(f'chunk_size must be a positive whole number: {chunk_size!r}')
