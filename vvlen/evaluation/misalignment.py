"""Long-short misalignment of any model (arXiv 2506.11769, section 4).

The model reads two windows of the same stream, the second some tokens further on, and
its predictions for the same tokens are compared; see `vvlen.objectives.misalignment`.

A model is a function from tokens to logits, or `Hidden`. For a function, the float32
logits of both windows and several arrays of their size are in memory at once. For
`Hidden`, logits are computed for one chunk of positions of both windows at a time
(`vvlen.evaluation.programs.chunk_size`).
"""

from collections.abc import Sequence
import functools

import jax
import jax.numpy as jnp
import numpy as np

from vvlen.evaluation.programs import Apply, chunk_size, Hidden, Model, program_of
from vvlen.objectives.chunked_rows import measures_of_hidden
from vvlen.objectives.cross_entropy import check_tokens
from vvlen.objectives.misalignment import (
  check_two_windows,
  Measures,
  measures,
  offset_range,
  two_windows,
)

# One program for all offsets.
_measures = jax.jit(measures, static_argnames='whole_overlap')


@functools.partial(jax.jit, static_argnames='whole_overlap')
def _measures_by_sequence(first, second, offset, whole_overlap):
  one = lambda p, q: measures(p[None], q[None], offset, whole_overlap=whole_overlap)
  return jax.vmap(one)(first, second)


def misalignment(
    apply_fn: Model,
    tokens: jax.Array,
    length: int,
    offset: int,
    *,
    whole_overlap: bool = False,
) -> Measures:
  """Returns the measures of misalignment at one offset.

  Args:
    apply_fn: the model, tokens [B, L] -> logits [B, L, V], or `Hidden`, under jit or
      not. It is traced, if it can be, to check tokens against its vocabulary, and
      called twice.
    tokens: [B, T] integers, T at least L + offset; tokens beyond are not read.
    length: L.
    offset: e, in 1..L//2−1, or 1..L−1 with `whole_overlap`.
    whole_overlap: compares all rows of the same token, not only those with L//2 tokens
      or more before them in both windows.

  Returns:
    Scalars, means over batch and rows, float32 or float64.

  Raises:
    ValueError: if shapes do not fit or the offset is out of range.
  """
  _check(tokens, length, [offset], whole_overlap)
  windows = two_windows(tokens, length, offset)
  run = apply_fn.states if isinstance(apply_fn, Hidden) else apply_fn
  try:
    _check_tokens(apply_fn, windows, jax.eval_shape(run, windows[0]))
  except jax.errors.JAXTypeError:  # it cannot be traced
    pass
  first, second = (_outputs(apply_fn, run, window) for window in windows)
  check_two_windows(first.shape, second.shape, offset, whole_overlap)
  return _compare(apply_fn, first, second, offset, whole_overlap)


def misalignment_at_offsets(
    apply_fn: Model,
    tokens: jax.Array,
    length: int,
    offsets: Sequence[int],
    *,
    whole_overlap: bool = False,
    by_sequence: bool = False,
) -> Measures:
  """Returns the measures of misalignment at several offsets.

  Traces and compiles the model once, with its weights as arguments, and runs it
  len(offsets) + 1 times.

  Args:
    apply_fn: the model, tokens [B, L] -> logits [B, L, V], or `Hidden`; jit must accept
      it.
    tokens: [B, T] integers, T at least L + the largest offset.
    length: L.
    offsets: whole numbers in 1..L//2−1, or 1..L−1 with `whole_overlap`.
    whole_overlap: compares all rows of the same token.
    by_sequence: whether to return the measures of each sequence.

  Returns:
    Arrays [offsets], in their order; with `by_sequence` [offsets, B], means over rows
    only.

  Raises:
    ValueError: if there are no offsets, or as in `misalignment`.
  """
  _check(tokens, length, offsets, whole_overlap)
  first, *others = (two_windows(tokens, length, e)[1] for e in (0, *offsets))
  run = apply_fn.states if isinstance(apply_fn, Hidden) else apply_fn
  run, outputs = program_of(run, first)
  _check_tokens(apply_fn, [first, *others], outputs)
  first = _outputs(apply_fn, run, first)
  found = []
  for offset, window in zip(offsets, others, strict=True):
    second = _outputs(apply_fn, run, window)
    found.append(_compare(apply_fn, first, second, offset, whole_overlap, by_sequence))
  return jax.tree.map(lambda *x: jnp.stack(x), *found)


def misalignment_over_offsets(
    apply_fn: Model,
    tokens: jax.Array,
    length: int,
    key: jax.Array,
    num_offsets: int,
    *,
    range: tuple[float, float] = (0, 1 / 2),
) -> tuple[np.ndarray, Measures]:
  """Samples offsets and returns the measures of misalignment at each.

  Args:
    apply_fn: the model, as in `misalignment_at_offsets`.
    tokens: [B, T] integers, T at least L + the highest offset of the range.
    length: L.
    key: a typed PRNG key, for the offsets.
    num_offsets: the number of offsets, all different.
    range: of offsets; its ends as fractions of L. If the second is more than 1/2, the
      whole overlap is compared.

  Returns:
    Offsets [num_offsets], in increasing order, and their measures, arrays
    [num_offsets].

  Raises:
    ValueError: if the range has fewer offsets, or as in `misalignment`.
  """
  lowest, highest = offset_range(length, range)
  if not 1 <= num_offsets <= highest - lowest + 1:
    raise ValueError(f'num_offsets must be in 1..{highest - lowest + 1}: {num_offsets}')
  _check(tokens, length, [highest], range[1] > 1 / 2)
  drawn = jax.random.choice(
      key, jnp.arange(lowest, highest + 1), (num_offsets,), replace=False
  )
  offsets = np.sort(np.asarray(drawn))
  return offsets, misalignment_at_offsets(
      apply_fn, tokens, length, offsets.tolist(), whole_overlap=range[1] > 1 / 2
  )


def _compare(
    model: Model,
    first: jax.Array,
    second: jax.Array,
    offset: int,
    whole_overlap: bool,
    by_sequence: bool = False,
) -> Measures:
  """Returns the measures of what a model returned for two windows."""
  if not isinstance(model, Hidden):
    measure = _measures_by_sequence if by_sequence else _measures
    return measure(first, second, offset, whole_overlap=whole_overlap)
  size = chunk_size(first.shape[0], first.shape[1], len(model.embedding))
  return measures_of_hidden(
      first, second, model.embedding, offset, whole_overlap=whole_overlap,
      by_sequence=by_sequence, chunk_size=size,
  )


def _outputs(model: Model, run: Apply, tokens: jax.Array) -> jax.Array:
  """Returns logits or hidden states of a window."""
  outputs = jnp.asarray(run(tokens))
  check_tokens(tokens, _logits_shape(model, outputs.shape))
  return outputs


def _check_tokens(
    model: Model, windows: Sequence[jax.Array], outputs: jax.ShapeDtypeStruct
) -> None:
  """Checks tokens against the vocabulary of a model before the model is compiled."""
  for window in windows:
    check_tokens(window, _logits_shape(model, outputs.shape))


def _logits_shape(model: Model, shape: tuple[int, ...]) -> tuple[int, ...]:
  """Returns the shape of logits, given the shape of what a model returns."""
  if isinstance(model, Hidden):
    return (*shape[:-1], len(model.embedding))
  return shape


def _check(
    tokens: jax.Array, length: int, offsets: Sequence[int], whole_overlap: bool
) -> None:
  """Checks all that can be checked before the model runs."""
  if not len(offsets):
    raise ValueError('there are no offsets')
  if tokens.ndim != 2:
    raise ValueError(f'tokens must be [B, T]: {tokens.shape}')
  for offset in offsets:
    shape = (tokens.shape[0], length, 1)
    check_two_windows(shape, shape, offset, whole_overlap)
    if tokens.shape[1] < length + offset:
      raise ValueError(
          f'tokens {tokens.shape} are fewer than length {length} + offset {offset}'
      )
