"""Attention with a norm for `flax.nnx`, in its own file since that import is slow."""

from collections.abc import Callable
from typing import Any

from flax import nnx
import jax


class PostNormAttention(nnx.Module):
  """The result of `vvlen.models.attention.post_norm_attention` for an NNX norm.

  It is a module, not a function, so that NNX finds the norm's parameters in the
  attention module, under `attention_fn/norm`.

  Attributes:
    norm: maps each head's output [..., d] to the same shape.
  """

  def __init__(self, norm: Callable[[jax.Array], jax.Array]):
    self.norm = norm

  def __call__(self, *arrays: Any, **options: Any) -> jax.Array:
    """Returns the normalized output of `nnx.dot_product_attention`.

    Args:
      *arrays: as in `nnx.dot_product_attention`.
      **options: as in `nnx.dot_product_attention`.

    Raises:
      ValueError: if called by linen, which would not train the norm.
    """
    if 'is_causal' not in options:  # NNX always passes it, linen never
      raise ValueError(f'an NNX norm is for nnx.MultiHeadAttention: {self.norm}')
    return self.norm(nnx.dot_product_attention(*arrays, **options))
