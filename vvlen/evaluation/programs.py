"""Compiles a model once, and cuts rows of tokens into batches for it."""

from collections.abc import Callable, Iterator
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vvlen.sharding import mesh as partition

# tokens [B, L] -> logits [B, L, V]
Apply = Callable[[jax.Array], jax.Array]
# The most logits that exist at once if a model is given by its hidden states: 512 MiB.
_LOGITS_AT_ONCE = 2**27


class Hidden(NamedTuple):
  """A model given by its hidden states, so that not all logits h Eᵀ exist at once.

  For a model of `vvlen.models` with variables {'params': params}:

    states = jax.jit(functools.partial(model.apply, method='hidden'))
    Hidden(functools.partial(states, variables), output_table(model, params))
  """

  states: Apply  # tokens [B, L] -> h [B, L, D]
  embedding: jax.Array  # E [V, D], the output embedding


Model = Apply | Hidden


def chunk_size(batch: int, length: int, vocab_size: int) -> int:
  """Returns the number of positions whose logits to compute at once, a chunk.

  It is the largest for which logits [B, chunk, V] are at most 2²⁷ numbers, but not 0.
  """
  return min(length, max(1, _LOGITS_AT_ONCE // (batch * vocab_size)))


def program_of(
    apply_fn: Apply, tokens: jax.Array
) -> tuple[Apply, jax.ShapeDtypeStruct]:
  """Returns a model under jit, and the shape of what it returns.

  Args:
    apply_fn: tokens [B, L] -> logits [B, L, V], or hidden states; jit must accept it.
      A function that is under jit already, such as functools.partial(jax.jit(
      model.apply), variables), is returned as it is, and compiled once for all callers.
      The weights that other functions close over become arguments of the program;
      otherwise they would be compiled into it as constants.
    tokens: an example of the tokens that it will be called with.

  Returns:
    The program, and what it returns, as jax.ShapeDtypeStruct.
  """
  inner = apply_fn.func if isinstance(apply_fn, functools.partial) else apply_fn
  if hasattr(inner, 'lower'):
    return apply_fn, jax.eval_shape(apply_fn, tokens)
  program, logits = jax.make_jaxpr(apply_fn, return_shape=True)(tokens)
  run = jax.jit(lambda weights, x: jax.core.eval_jaxpr(program.jaxpr, weights, x)[0])
  return functools.partial(run, program.consts), logits


def batches(
    rows: np.ndarray, tokens_at_once: int, begin: int | None = None
) -> Iterator[tuple[jax.Array, int]]:
  """Yields rows of tokens in batches of equal size.

  With a mesh of `vvlen.sharding.mesh` (jax.set_mesh), the size is a multiple of the
  number of devices that rows are sharded over.

  Args:
    rows: [W, n] integers, W at least 1; may be a view of windows that overlap.
    tokens_at_once: the approximate number of tokens per batch; at least one row.
    begin: a token to put before each row; None for none.

  Yields:
    Tokens [B, n], or [B, n + 1] with `begin`, int32, and the number of rows that are
    new: the last batch is filled up with copies of the last row.

  Raises:
    ValueError: if `tokens_at_once` is not positive.
  """
  if tokens_at_once < 1:
    raise ValueError(f'tokens_at_once must be positive: {tokens_at_once}')
  first = np.array([] if begin is None else [begin], np.int32)
  count, length = rows.shape
  size = min(count, max(1, tokens_at_once // (length + first.size)))
  size = partition.filled(size, jax.sharding.get_abstract_mesh())
  for start in range(0, count, size):
    some = rows[np.minimum(np.arange(start, start + size), count - 1)]
    before = np.broadcast_to(first, (size, first.size))
    tokens = np.concatenate([before, some], axis=1)
    yield jnp.asarray(tokens, jnp.int32), min(size, count - start)
