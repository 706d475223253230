"""The retriever of arXiv 2504.02827: one attention head between three small MLPs.

  h_i = ψ_x(x_i),  h_q = ψ_q(q),  ô = norm(attention(h_q, h)),  y = φ(ô)

Axes: n items, x features of an item, C classes; leading axes are batch axes.
"""

from collections.abc import Callable
import functools
from typing import Any

from flax import linen as nn
from flax.linen.dtypes import promote_dtype
import jax
import jax.numpy as jnp

from vvlen.models.attention import attend, Temperature
from vvlen.models.fixes.learned import Weights
from vvlen.models.norm import Norm
from vvlen.models.single_head import (
    add_value_bias,
    finish,
    projections,
    rescoring,
    weights_of,
)

ITEM_ENCODERS = ('mlp', 'linear')
# attention output [..., d], before the norm -> what to put in its place
Intervention = Callable[[jax.Array], jax.Array]


class Retriever(nn.Module):
  """Classifies a set of items given one query.

  ψ_x, ψ_q and φ are Linear-GELU-Linear (with the tanh form of GELU). There are no
  positions and no residual. Every parameter has a name of its own, so models that
  differ in `norm` draw the same initial weights from the same key, and comparisons are
  paired.

  Attributes:
    num_classes: C.
    width: of every layer.
    norm: right after attention: 'none', 'standardize', 'layer_norm', a linen module
      or a function.
    output_projection: whether a projection W_O follows the norm.
    value_bias: whether the values of attention have a bias.
    epsilon: of a norm given by name.
    item_encoder: ψ_x, 'mlp' or 'linear'.
    dtype: of the matrix products; None follows the inputs.
    param_dtype: of the parameters.
    precision: of the matrix products, except those of `attend`, which always uses the
      highest.
    kernel_init: of every kernel.
    bias_init: of every bias.
    weights: from logits to attention weights in place of softmax, as in
      `vvlen.models.attention.SingleHeadAttention`.
    qk_norm: the initial g of QK-norm, or None, as there.
    gated: whether the output is gated by the features of the query, as there.
  """

  num_classes: int = 10
  width: int = 128
  norm: Norm = 'none'
  output_projection: bool = False
  value_bias: bool = False
  epsilon: float = 1e-5
  item_encoder: str = 'mlp'
  dtype: Any = None
  param_dtype: Any = jnp.float32
  precision: jax.lax.PrecisionLike = None
  kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()
  bias_init: nn.initializers.Initializer = nn.initializers.zeros
  weights: Weights | None = None
  qk_norm: float | None = None
  gated: bool = False

  @nn.compact
  def __call__(
      self,
      query: jax.Array,
      items: jax.Array,
      mask: jax.Array | None = None,
      temperature: Temperature | None = None,
      intervention: Intervention | None = None,
  ) -> jax.Array:
    """Maps query [..., d_q] and items [..., n, x] to class logits [..., C].

    Args:
      query: [..., d_q].
      items: [..., n, x].
      mask: [..., n] bool, True where there is an item; None for all.
      temperature: as in `vvlen.models.attention.attend`.
      intervention: maps the attention output [..., d], before the norm, to an array
        that replaces it; for experiments on trained models.

    Returns:
      Class logits [..., C], float32 or wider.

    Raises:
      ValueError: if `item_encoder` or `norm` is unknown.
    """
    if self.item_encoder == 'mlp':
      # All items as rows of one matrix: with two batch axes, XLA's gradient of a
      # product is twenty times slower on a CPU.
      rows = _dense(self, self.width, 'item_hidden')(
          items.reshape(-1, items.shape[-1])
      )
      items = nn.gelu(rows).reshape(*items.shape[:-1], self.width)
    return retrieve(self, query, items, mask, temperature, intervention)


def retrieve(
    module: Any,
    query: jax.Array,
    items: jax.Array,
    mask: jax.Array | None,
    temperature: Temperature | None,
    intervention: Intervention | None,
) -> jax.Array:
  """Computes all layers after ψ_x's first; called in the compact method of `module`.

  Args:
    module: a linen module with the fields of `Retriever`, which gets the parameters.
    query: features [..., d_q].
    items: [..., n, x], ψ_x's hidden layer, or the features if ψ_x is linear.
    mask: as in `Retriever`.
    temperature: as in `Retriever`.
    intervention: as in `Retriever`.

  Returns:
    Class logits [..., C], float32 or wider.

  Raises:
    ValueError: if `item_encoder` or `norm` is unknown.
  """
  if module.item_encoder not in ITEM_ENCODERS:
    raise ValueError(
        f'item_encoder must be one of mlp, linear: {module.item_encoder!r}')
  kernel = module.param('item_output_kernel', module.kernel_init,
                        (items.shape[-1], module.width), module.param_dtype)
  bias = module.param('item_output_bias', module.bias_init, (module.width,),
                      module.param_dtype)
  query = nn.gelu(_dense(module, module.width, 'query_hidden')(query))
  query = _dense(module, module.width, 'query_output')(query)
  output = RetrieverAttention(
      module.width, norm=module.norm, output_projection=module.output_projection,
      value_bias=module.value_bias, epsilon=module.epsilon, dtype=module.dtype,
      param_dtype=module.param_dtype, precision=module.precision,
      kernel_init=module.kernel_init, bias_init=module.bias_init,
      weights=module.weights, qk_norm=module.qk_norm, gated=module.gated,
      name='attention',
  )(query, items, kernel, bias, mask, temperature, intervention)
  hidden = nn.gelu(_dense(module, module.width, 'head_hidden')(output))
  wide = jnp.promote_types(hidden.dtype, jnp.float32)
  # float32 or wider whatever `dtype` is, since the loss exponentiates logits.
  return _dense(module, module.num_classes, 'head_output', wide)(hidden)


class RetrieverAttention(nn.Module):
  """`vvlen.models.attention.SingleHeadAttention` over the items h_i = A x_i + b.

  Like keys and values, the h_i are never computed:

    q·(A x_i) = (Aᵀ q)·x_i   and   Σ a_i (A x_i + b) = A Σ a_i x_i + (Σ a_i) b.

  b adds the same number to all logits of a row. Softmax does not depend on it, so it is
  added only for other `weights` or `qk_norm`.

  Attributes are as in `SingleHeadAttention`.
  """

  features: int
  norm: Norm = 'none'
  output_projection: bool = False
  value_bias: bool = False
  epsilon: float = 1e-5
  dtype: Any = None
  param_dtype: Any = jnp.float32
  precision: jax.lax.PrecisionLike = None
  kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()
  bias_init: nn.initializers.Initializer = nn.initializers.zeros
  weights: Weights | None = None
  qk_norm: float | None = None
  gated: bool = False

  @nn.compact
  def __call__(
      self,
      query: jax.Array,
      items: jax.Array,
      kernel: jax.Array,
      bias: jax.Array,
      mask: jax.Array | None = None,
      temperature: Temperature | None = None,
      intervention: Intervention | None = None,
  ) -> jax.Array:
    """Returns the normalized output [..., d].

    Args:
      query: [..., d_q].
      items: x_i [..., n, x].
      kernel: Aᵀ [x, h], h the width of the h_i.
      bias: b [h].
      mask: as in `Retriever`.
      temperature: as in `Retriever`.
      intervention: as in `Retriever`.
    """
    kernels = projections(self, query.shape[-1], bias.shape[-1])
    query, items, w_q, w_k, w_v, kernel, bias = promote_dtype(
        query, items, *kernels, kernel, bias, dtype=self.dtype
    )
    dot = functools.partial(jnp.matmul, precision=self.precision)
    projected = dot(query, w_q)
    across = dot(dot(projected, w_k.T), kernel.T)
    # `attend` divides by the root of this query's width; it should be the root of d.
    across = across * (across.shape[-1] / self.features) ** 0.5
    rescore = None
    if self.weights is not None or self.qk_norm is not None:
      rescore = rescoring(self, projected, items, dot(kernel, w_k), dot(bias, w_k))
    output, weights = attend(
        across, items, items, mask, temperature, weights_of(self), rescore
    )
    # Softmax sums to 1, or to 0 in a row whose items are all masked; others need not.
    total = weights.sum(-1, keepdims=True).astype(output.dtype)
    bias = jnp.expand_dims(bias, range(output.ndim - 1))
    output = dot(dot(output, kernel) + total * bias, w_v)
    output = add_value_bias(self, output, weights)
    if intervention is not None:
      output = intervention(output)
    return finish(self, output, weights, query)


def _dense(module: Any, features: int, name: str, dtype: Any = None) -> nn.Dense:
  return nn.Dense(
      features, dtype=dtype or module.dtype, param_dtype=module.param_dtype,
      precision=module.precision, kernel_init=module.kernel_init,
      bias_init=module.bias_init, name=name,
  )
