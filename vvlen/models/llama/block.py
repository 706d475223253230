"""One layer of the transformer decoder of the Llama family.

  x = x + W_O norm(attention(RMSNorm(x)))
  x = x + W_D (SiLU(W_G z) ∘ W_U z),  z = RMSNorm(x)

as in `vvlen.models.llama.model`.

Axes: B sequences, n tokens, d width, h query heads, k key heads, w width of a head, T
places of a cache.
"""

from typing import Any

from flax import linen as nn
from flax.linen.dtypes import promote_dtype
import jax
import jax.numpy as jnp

from vvlen.models.kernels.causal import causal_attention
from vvlen.models.kernels.shifted import Shifted, shifted_attention
from vvlen.models.kv_cache import append, attend_cached
from vvlen.models.llama.initial_weights import init_kernel
from vvlen.models.llama.rotation import Rotation
from vvlen.models.norm import Norm, PostAttentionNorm
from vvlen.models.positions import alibi_slopes
from vvlen.sharding import platform
from vvlen.sharding.mesh import over_heads


class Block(nn.Module):
  """One layer.

  Attributes:
    rotate_late: whether the cache holds keys before their rotation.
    alibi: as in `Llama`.
    others: as in `Llama`.
  """

  width: int
  mlp_width: int
  num_heads: int
  num_key_heads: int
  head_width: int
  rotate_late: bool = False
  alibi: bool = False
  epsilon: float = 1e-5
  attention_bias: bool = False
  output_bias: bool = False
  mlp_bias: bool = False
  norm: Norm = 'none'
  implementation: str | None = None
  shifted: Shifted | None = None
  dtype: Any = None
  param_dtype: Any = jnp.float32
  precision: jax.lax.PrecisionLike = None
  kernel_init: nn.initializers.Initializer = init_kernel
  bias_init: nn.initializers.Initializer = nn.initializers.zeros

  def setup(self):
    """Creates the layers and names their parameters."""
    def project(features, bias):
      return Projection(features, bias, self.dtype, self.param_dtype, self.precision,
                        self.kernel_init, self.bias_init)

    self.attention_norm = rms_norm(self.epsilon, self.param_dtype)
    self.query = project(self.num_heads * self.head_width, self.attention_bias)
    self.key = project(self.num_key_heads * self.head_width, self.attention_bias)
    self.value = project(self.num_key_heads * self.head_width, self.attention_bias)
    self.post_attention_norm: Any = (
        PostAttentionNorm(self.norm, param_dtype=self.param_dtype)
        if isinstance(self.norm, str) else unbound(self.norm))
    self.output = project(self.width, self.output_bias)
    self.mlp_norm = rms_norm(self.epsilon, self.param_dtype)
    self.gate = project(self.mlp_width, self.mlp_bias)
    self.up = project(self.mlp_width, self.mlp_bias)
    self.down = project(self.width, self.mlp_bias)

  def __call__(self, x: jax.Array, rotation: Rotation) -> jax.Array:
    """Maps the residual stream x [B, n, d] to [B, n, d]."""
    return self._read(x, rotation, self.shifted)[0]

  def prefill(
      self, x: jax.Array, rotation: Rotation
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the residual stream, and keys and values [B, n, k, w] for a cache."""
    return self._read(x, rotation)

  def step(
      self,
      x: jax.Array,
      own: Rotation,
      held: Rotation,
      keys: jax.Array,
      values: jax.Array,
      length: jax.Array,
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Reads one more token per row.

    Args:
      x: [B, d], the residual stream at the token.
      own: of the token, with cosine and sine [B, 1, w/2].
      held: with rotate_late, of all places of the cache, with cosine and sine
        [B, T, w/2].
      keys: [B, k, T, w], the keys of earlier tokens.
      values: [B, k, T, w], the values of earlier tokens.
      length: [B], number of earlier tokens in the cache.

    Returns:
      The residual stream [B, d], and keys and values including the token's.
    """
    query, key, value = self._project(x[:, None])
    query = own.queries(query)
    if not self.rotate_late:
      key = own.keys(key)
    keys, values = append(keys, key[:, 0], length), append(values, value[:, 0], length)
    seen = keys
    if self.rotate_late:
      seen = held.keys(keys.swapaxes(1, 2)).swapaxes(1, 2)
    slopes = alibi_slopes(self.num_heads) if self.alibi else None
    output = attend_cached(query[:, 0], seen, values, length + 1, slopes)
    return self._after(x, output), keys, values

  def _read(self, x, rotation, shifted=None):
    query, key, value = self._project(x)
    rotated_query, rotated_key = rotation.queries(query), rotation.keys(key)
    slopes, positions = None, None
    if self.alibi:
      slopes, positions = jnp.asarray(alibi_slopes(self.num_heads)), rotation.positions

    def attend(query, key, value, slopes=None, positions=None):
      return causal_attention(query, key, value, slopes=slopes, positions=positions,
                              implementation=self.implementation)

    if shifted is None or self.is_initializing():
      output = over_heads(
          attend, rotated_query, rotated_key, value, slopes=slopes, positions=positions)
    else:
      output = shifted_attention(
          rotated_query, rotated_key, value, shifted.group, leaking=shifted.leaking,
          implementation=self.implementation)
    if self.is_mutable_collection('intermediates'):
      self.sow('intermediates', 'queries', rotated_query)
      self.sow('intermediates', 'keys', rotated_key)
      self.sow('intermediates', 'attention_output', output)
      if self.alibi:
        self.sow('intermediates', 'slopes', slopes)
    return self._after(x, output), key if self.rotate_late else rotated_key, value

  def _project(self, x):
    """Maps the stream x [B, n, d] to queries, keys and values [B, n, heads, w]."""
    z = self.attention_norm(x)
    heads = lambda y: y.reshape(*x.shape[:-1], -1, self.head_width)
    return heads(self.query(z)), heads(self.key(z)), heads(self.value(z))

  def _after(self, x, output):
    """Adds attention's output [..., h, w], then the MLP's, to the stream x [..., d]."""
    output = self.post_attention_norm(output).reshape(*x.shape[:-1], -1)
    x = x + self.output(output)
    z = self.mlp_norm(x)
    return x + self.down(nn.silu(self.gate(z)) * self.up(z))


class Projection(nn.Module):
  """A linear map of the last axis, with a kernel [inputs, outputs].

  Attributes:
    features: number of outputs.
    use_bias: whether there is a bias.
    dtype: of the product; None: that of the kernel.
    param_dtype: of kernel and bias.
    precision: of the product.
    kernel_init: draws the kernel.
    bias_init: draws the bias.
  """

  features: int
  use_bias: bool = False
  dtype: Any = None
  param_dtype: Any = jnp.float32
  precision: jax.lax.PrecisionLike = None
  kernel_init: nn.initializers.Initializer = init_kernel
  bias_init: nn.initializers.Initializer = nn.initializers.zeros

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [..., inputs] to [..., outputs], of the dtype of the product."""
    kernel = self.param('kernel', self.kernel_init, (x.shape[-1], self.features),
                        self.param_dtype)
    dtype = self.dtype or kernel.dtype
    rows = x.astype(dtype)
    if platform.target() == 'cpu':
      # All tokens as rows of one matrix: with two batch axes, XLA's gradient of a
      # product is many times slower on a CPU. Elsewhere the axes stay apart, so that
      # rows and tokens can be sharded over different axes of a mesh.
      rows = rows.reshape(-1, x.shape[-1])
    rows, kernel = promote_dtype(rows, kernel, dtype=dtype)
    contracted = (rows.ndim - 1,), (0,)
    y = jax.lax.dot_general(
        rows, kernel, (contracted, ((), ())), precision=self.precision).astype(dtype)
    if self.use_bias:
      bias = self.param('bias', self.bias_init, (self.features,), self.param_dtype)
      y = y + bias.astype(dtype)[(None,) * (y.ndim - 1)]
    return y.reshape(*x.shape[:-1], self.features)


def rms_norm(epsilon: float, param_dtype: Any = jnp.float32) -> nn.RMSNorm:
  """Returns RMSNorm, computed in float32 or wider."""
  return nn.RMSNorm(epsilon=epsilon, param_dtype=param_dtype)


def unbound(norm: Norm) -> Norm:
  """Returns a copy of a linen module without a parent; others as they are."""
  return norm.clone(parent=None) if isinstance(norm, nn.Module) else norm
