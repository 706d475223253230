"""Lengths of sequences: uniform ones, and a limit that grows during training."""

import jax
import jax.numpy as jnp


def uniform_length(
    uniform: jax.Array, shortest: int, padded: int, longest: jax.Array | int | None
) -> jax.Array:
  """Maps uniforms on [0, 1) to lengths shortest..longest.

  Args:
    uniform: any shape, float32.
    shortest: the least length.
    padded: the size that batches are padded to.
    longest: the greatest length, clipped to shortest..padded; `padded` if None. It may
      be traced.

  Returns:
    An int32 array of the shape of `uniform`.
  """
  longest = padded if longest is None else jnp.clip(longest, shortest, padded)
  return shortest + jnp.floor(uniform * (longest - shortest + 1)).astype(jnp.int32)


def growing_length(
    step: jax.Array | int, *, first: int, last: int, num_steps: int
) -> jax.Array:
  """Returns the greatest length at a step: linear from `first` to `last`, then `last`.

  In Tables 4 and 5 of arXiv 2504.02827, lengths grow gradually during training.

  Args:
    step: [] int, updates made.
    first: the greatest length at step 0.
    last: the greatest length from step `num_steps` on.
    num_steps: updates during which it grows.

  Returns:
    [] int32.
  """
  share = jnp.minimum(jnp.asarray(step, jnp.float32) / max(num_steps, 1), 1.0)
  return first + jnp.floor(share * (last - first)).astype(jnp.int32)
