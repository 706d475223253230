"""The retriever of arXiv 2504.02827: one attention head between three small MLPs.

  h_i = ψ_x(x_i),  h_q = ψ_q(q),  ô = norm(attention(h_q, h)),  y = φ(ô)

Axes: n items, x features of an item, C classes; leading axes are batch axes.
"""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vvlen.models.attention import (
    Affine,
    Intervention,
    SingleHeadAttention,
    Temperature,
)

ITEM_ENCODERS = ('mlp', 'linear')


class Retriever(nn.Module):
  """Reads a set of items with one query and names a class.

  ψ_x, ψ_q and φ are Linear-GELU-Linear (the tanh form of GELU). No positions, no
  residual. Every parameter has a name of its own, so models that differ in `norm`
  draw the same initial weights from the same key: comparisons are paired.

  Attributes:
    num_classes: C.
    width: of every layer.
    norm: 'none', 'standardize' or 'layer_norm', right after attention.
    output_projection: whether a projection W_O follows the norm.
    value_bias: whether the values of attention have a bias.
    epsilon: of the norm.
    item_encoder: ψ_x: 'mlp' or 'linear'.
    fold: False applies ψ_x's last layer, W_K and W_V to every item. Equal to
      rounding, and many times the work.
    dtype: of the matrix products; None follows the inputs.
    kernel_init: of every kernel.
  """

  num_classes: int = 10
  width: int = 128
  norm: str = 'none'
  output_projection: bool = False
  value_bias: bool = False
  epsilon: float = 1e-5
  item_encoder: str = 'mlp'
  fold: bool = True
  dtype: Any = None
  kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()

  @nn.compact
  def __call__(
      self,
      query: jax.Array,
      items: jax.Array,
      mask: jax.Array | None = None,
      temperature: Temperature | None = None,
      intervention: Intervention | None = None,
  ) -> jax.Array:
    """Maps query [..., d_q] and items [..., n, x] to float32 logits [..., C].

    Args:
      query: [..., d_q].
      items: [..., n, x].
      mask: [..., n] bool, True where there is an item; None for all.
      temperature: as in `vvlen.models.attention.attend`.
      intervention: as in `vvlen.models.attention.SingleHeadAttention`.

    Returns:
      Class logits [..., C], float32 or wider.

    Raises:
      ValueError: on an unknown `item_encoder` or `norm`.
    """
    if self.item_encoder == 'mlp':
      # One matrix of all items: XLA's gradient of a product over two batch axes is
      # twenty times slower on a CPU.
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
  """Makes, within the compact method of `module`, all after ψ_x's first layer.

  Args:
    module: a linen module with the fields of `Retriever`; its parameters these
      become.
    query: features [..., d_q].
    items: [..., n, x], ψ_x's hidden layer, or the features where ψ_x is linear.
    mask: as all that follows, as in `Retriever`.
    temperature: as above.
    intervention: as above.

  Returns:
    Class logits [..., C], float32 or wider.

  Raises:
    ValueError: on an unknown `item_encoder` or `norm`.
  """
  if module.item_encoder not in ITEM_ENCODERS:
    raise ValueError(f'item_encoder must be mlp or linear: {module.item_encoder!r}')
  items_map = Affine(
      module.param('item_output_kernel', module.kernel_init,
                   (items.shape[-1], module.width), jnp.float32),
      module.param('item_output_bias', nn.initializers.zeros, (module.width,),
                   jnp.float32),
  )
  query = nn.gelu(_dense(module, module.width, 'query_hidden')(query))
  query = _dense(module, module.width, 'query_output')(query)
  output = SingleHeadAttention(
      module.width, norm=module.norm, output_projection=module.output_projection,
      value_bias=module.value_bias, epsilon=module.epsilon, fold=module.fold,
      dtype=module.dtype, kernel_init=module.kernel_init, name='attention',
  )(query, items, mask, temperature, items_map, intervention)
  hidden = nn.gelu(_dense(module, module.width, 'head_hidden')(output))
  wide = jnp.promote_types(hidden.dtype, jnp.float32)
  # float32 whatever `dtype`, since the loss exponentiates these.
  return _dense(module, module.num_classes, 'head_output', wide)(hidden)


def _dense(module: Any, features: int, name: str, dtype: Any = None) -> nn.Dense:
  return nn.Dense(
      features, dtype=dtype or module.dtype, kernel_init=module.kernel_init, name=name
  )
