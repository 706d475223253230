"""Normalization right after attention.

  standardize(x) = (x − mean(x)) / sqrt(var(x) + ε)
  layer_norm(x)  = scale ⊙ standardize(x) + bias

over the features of each row, where var is the biased variance. Attention output is an
average over items, so its variance decreases as the sequence grows; the norm gives the
layers after it inputs of the same scale at every length (arXiv 2504.02827, section 3).
"""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

KINDS = ('none', 'standardize', 'layer_norm')
# One of KINDS, or a linen module or function that maps [..., d] to the same shape.
Norm = str | Callable[[jax.Array], jax.Array]


def standardize(x: jax.Array, axis: int = -1, epsilon: float = 1e-5) -> jax.Array:
  """Returns (x − mean) / sqrt(var + epsilon) along `axis`.

  The variance is biased and computed in two passes, as the mean of (x − mean)²: the
  one-pass form E[x²] − E[x]² loses precision if the mean is much larger than the
  standard deviation. Inputs narrower than float32 are computed in float32.

  Args:
    x: any shape; integers are cast to float32.
    axis: the axis of the features.
    epsilon: added to the variance, inside the root.

  Returns:
    An array of the shape of x, and of its dtype if that is a float.
  """
  x = jnp.asarray(x)
  if not jnp.issubdtype(x.dtype, jnp.floating):
    x = x.astype(jnp.float32)
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  centred = wide - wide.mean(axis, keepdims=True)
  variance = jnp.square(centred).mean(axis, keepdims=True)
  return (centred * jax.lax.rsqrt(variance + epsilon)).astype(x.dtype)


class PostAttentionNorm(nn.Module):
  """Normalizes attention output over its last axis.

  Attributes:
    kind: 'none' (the identity), 'standardize' (no parameters) or 'layer_norm'
      (standardize, then the learned `scale` and `bias`).
    epsilon: added to the variance, inside the root.
    param_dtype: of `scale` and `bias`.

  Raises:
    ValueError: when called, if the kind is unknown.
  """

  kind: str = 'none'
  epsilon: float = 1e-5
  param_dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps x [..., d] to an array of the same shape and dtype."""
    if self.kind not in KINDS:
      raise ValueError(f'norm must be one of {", ".join(KINDS)}: {self.kind!r}')
    if self.kind == 'none':
      return x
    if self.kind == 'standardize':
      return standardize(x, epsilon=self.epsilon)
    features = x.shape[-1:]
    scale = self.param('scale', nn.initializers.ones, features, self.param_dtype)
    bias = self.param('bias', nn.initializers.zeros, features, self.param_dtype)
    if not jnp.issubdtype(x.dtype, jnp.floating):
      x = x.astype(jnp.float32)
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    normalized = standardize(wide, epsilon=self.epsilon)
    scale, bias = (jnp.expand_dims(v, range(x.ndim - 1)) for v in (scale, bias))
    return (normalized * scale + bias).astype(x.dtype)


def norm_within(
    module: nn.Module, norm: Norm, **fields: Any
) -> Callable[[jax.Array], jax.Array]:
  """Returns a norm that belongs to a module; called in the module's compact method.

  Its parameters are named `norm`. If several modules are given the same linen module,
  each has its own copy with its own parameters.

  Args:
    module: to which the norm belongs.
    norm: one of KINDS, a linen module, or a function, which is returned unchanged.
    **fields: of `PostAttentionNorm`, used only if `norm` is one of KINDS.
  """
  if isinstance(norm, str):
    return PostAttentionNorm(norm, **fields, name='norm')
  # A norm that is a field of this module belongs to it already, named as the field.
  if isinstance(norm, nn.Module) and norm.parent is not module:
    return norm.copy(name='norm')
  return norm
