"""Two windows of one stream, the second some tokens further on (arXiv 2506.11769)."""

import jax
import jax.numpy as jnp
import numpy as np


def two_windows(
    tokens: jax.Array, length: int, offset: int | jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns the windows tokens[:, 0 : L] and tokens[:, offset : L + offset].

  Args:
    tokens: [B, T] integers, T at least L + offset. Where a traced offset goes beyond,
      the second window holds the smallest int32, for which the losses here and
      embeddings (`nn.Embed`, `vvlen.models.decoder`) give nan.
    length: L.
    offset: e, traced or not; under jit one program serves all offsets.

  Returns:
    Two arrays [B, L], int32 or wider.

  Raises:
    ValueError: if tokens are not integers [B, T], T is less than L, the offset is not a
      whole number, or a concrete offset is negative or more than T − L.
  """
  if not is_whole(offset):
    raise ValueError(f'offset must be a whole number: {offset!r}')
  tokens = jnp.asarray(tokens)
  if not jnp.issubdtype(tokens.dtype, jnp.integer):
    raise ValueError(f'tokens must be integers: {tokens.dtype}')
  tokens = tokens.astype(jnp.promote_types(tokens.dtype, jnp.int32))
  end = length + (0 if isinstance(offset, jax.core.Tracer) else int(offset))
  if tokens.ndim != 2 or not 0 < length <= end <= tokens.shape[1]:
    raise ValueError(
        f'tokens {tokens.shape} are not [B, T >= {length} + offset]: offset {offset}'
    )
  offset = jnp.asarray(offset, jnp.int32)
  # Negative places would count from the end.
  places = jnp.arange(length) + jnp.where(offset < 0, tokens.shape[1], offset)
  second = jnp.take(
      tokens, places, axis=1, mode='fill', fill_value=jnp.iinfo(jnp.int32).min
  )
  return tokens[:, :length], second


def sample_offset(
    key: jax.Array, length: int, range: tuple[float, float] = (0, 1 / 2)
) -> jax.Array:
  """Draws an offset e, uniform on the whole numbers of `offset_range`.

  Args:
    key: a typed PRNG key.
    length: L.
    range: the ends as fractions of L. The paper's ablation has (0, 1/2), (0, 1/4),
      (1/4, 1/2) and (0, 1). Beyond 1/2 the losses need `whole_overlap`, and are nan
      without it.

  Returns:
    int32 [].

  Raises:
    ValueError: as in `offset_range`.
  """
  lowest, highest = offset_range(length, range)
  return jax.random.randint(key, (), lowest, highest + 1, jnp.int32)


def offset_range(
    length: int, range: tuple[float, float] = (0, 1 / 2)
) -> tuple[int, int]:
  """Returns the lowest and the highest offset of a range.

  Args:
    length: L.
    range: the ends as fractions of L, rounded down to whole numbers and kept within
      1..L//2−1, or within 1..L−1 if the second end is more than 1/2.

  Returns:
    (lowest, highest), both included.

  Raises:
    ValueError: if the ends are not 0 <= low < high <= 1, no offset is left, or the
      length is not whole.
  """
  if not is_whole(length):
    raise ValueError(f'length must be a whole number: {length!r}')
  low, high = range
  if not 0 <= low < high <= 1:
    raise ValueError(f'range must be two increasing fractions in 0..1: {range}')
  most = highest_offset(length, whole_overlap=high > 1 / 2)
  lowest, highest = max(1, int(low * length)), min(most, int(high * length))
  if lowest > highest:
    raise ValueError(f'length {length} has no offset in the range {range}')
  return lowest, highest


def is_whole(x: object) -> bool:
  """Whether x is one whole number, of Python, numpy or JAX, traced or not."""
  if isinstance(x, np.ndarray | np.generic | jax.Array):
    return jnp.issubdtype(x.dtype, jnp.integer) and not x.ndim
  return isinstance(x, int) and not isinstance(x, bool)


def highest_offset(length: int, whole_overlap: bool) -> int:
  """Returns the highest offset that leaves rows to compare."""
  return length - 1 if whole_overlap else length // 2 - 1
