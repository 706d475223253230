"""Normalization right after attention.

  standardize(x) = (x − mean(x)) / sqrt(var(x) + ε)
  layer_norm(x)  = scale ⊙ standardize(x) + bias

over the features of each row, var being the biased variance. Attention output
averages over items, so its variance falls as the sequence grows; normalizing it
gives what follows inputs of one scale at every length (arXiv 2504.02827 section 3).
"""

from flax import linen as nn
import jax
import jax.numpy as jnp

KINDS = ('none', 'standardize', 'layer_norm')


def standardize(x: jax.Array, axis: int = -1, epsilon: float = 1e-5) -> jax.Array:
  """Returns (x − mean) / sqrt(var + epsilon) along `axis`.

  The variance is biased and taken in two passes, as the mean of (x − mean)²: the
  one-pass form E[x²] − E[x]² cancels where the mean is large against the spread.
  Inputs narrower than float32 are computed in float32.

  Args:
    x: any shape; integers are read as float32.
    axis: the axis of the features.
    epsilon: added to the variance, inside the root.

  Returns:
    An array of the shape of x, and of its dtype where that is a float.
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
    kind: 'none' (identity, the Baseline), 'standardize' (no parameters) or
      'layer_norm' (standardize, then the learned `scale` and `bias`, float32).
    epsilon: added to the variance, inside the root.

  Raises:
    ValueError: on an unknown kind.
  """

  kind: str = 'none'
  epsilon: float = 1e-5

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
    scale = self.param('scale', nn.initializers.ones, features, jnp.float32)
    bias = self.param('bias', nn.initializers.zeros, features, jnp.float32)
    if not jnp.issubdtype(x.dtype, jnp.floating):
      x = x.astype(jnp.float32)
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    normalized = standardize(wide, epsilon=self.epsilon)
    scale, bias = (jnp.expand_dims(v, range(x.ndim - 1)) for v in (scale, bias))
    return (normalized * scale + bias).astype(x.dtype)
