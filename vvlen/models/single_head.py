"""Parts shared by the modules that attend from one query.

They wrap `vvlen.models.attention.attend`, and are called in the compact method of a
linen module, to which the parameters belong.

Axes: n items, d width, x width of the items; leading axes are batch axes.
"""

from collections.abc import Callable, Mapping
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vvlen.models.fixes.key_norms import SMALLEST, squared_key_norms
from vvlen.models.fixes.learned import learned, Weights
from vvlen.models.norm import norm_within


class Scalars(nn.Module):
  """Learned scalars, in a scope of their own: other parameters are drawn as without.

  Attributes:
    initial: {name: initial value}.
    param_dtype: of all.
  """

  initial: Mapping[str, float]
  param_dtype: Any = jnp.float32

  @nn.compact
  def __call__(self) -> dict[str, jax.Array]:
    """Returns {name: value []}."""
    return {
        name: self.param(name, nn.initializers.constant(start), (), self.param_dtype)
        for name, start in self.initial.items()
    }


def weights_of(module: Any) -> Weights | None:
  """Returns the function of `module.weights` with its learned scalars, or None."""
  if module.weights is None:
    return None
  scalars = {}
  if initial := learned(module.weights):
    scalars = Scalars(initial, module.param_dtype, name='weights')()
  return functools.partial(module.weights, **scalars)


def rescoring(
    module: Any, query: jax.Array, items: jax.Array, kernel: jax.Array,
    bias: jax.Array | None = None,
) -> Callable[[jax.Array], jax.Array]:
  """Returns the function that completes logits q·(Kᵀ x_i) / √d to those of the keys.

    z_i = q·k_i / √d,   or   z_i = g q·k_i / (‖q‖ ‖k_i‖)   with `module.qk_norm`

  where k_i = Kᵀ x_i + c.

  Args:
    module: as in `projections`.
    query: q [..., d].
    items: x_i [..., n, x].
    kernel: K [x, d]; only for `module.qk_norm`.
    bias: c [d]; None for 0.

  Returns:
    A function from and to logits [..., n], for `vvlen.models.attention.attend`.
  """
  root, scale = module.features**0.5, None
  if module.qk_norm is not None:
    initial = {'g': float(module.qk_norm)}
    scale = Scalars(initial, module.param_dtype, name='qk_norm')()['g'] * root

  def rescore(logits):
    of_row = lambda x: jnp.broadcast_to(x, (*logits.shape[:-1], 1))
    wide = query.astype(logits.dtype)
    if bias is not None:
      along = jnp.matmul(wide, bias.astype(logits.dtype)[:, None],
                         precision=jax.lax.Precision.HIGHEST)
      logits = logits + of_row(along / root)
    if scale is None:
      return logits
    inverse = lambda squares: jax.lax.rsqrt(jnp.maximum(squares, SMALLEST))
    of_query = inverse(jnp.square(wide).sum(-1, keepdims=True))
    of_keys = inverse(squared_key_norms(items, kernel, bias))
    return logits * of_row(scale * of_query) * of_keys

  return rescore


def projections(
    module: Any, query_width: int, item_width: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Creates the parameters W_Q, W_K and W_V; called in the compact method of `module`.

  Args:
    module: a linen module with the fields of `SingleHeadAttention`.
    query_width: number of inputs of W_Q.
    item_width: number of inputs of W_K and W_V.

  Returns:
    The kernels of W_Q, W_K and W_V, each [inputs, d].

  Raises:
    ValueError: if d is not positive.
  """
  if module.features < 1:
    raise ValueError(f'features must be positive: {module.features}')
  return tuple(
      module.param(name, module.kernel_init, (width, module.features),
                   module.param_dtype)
      for name, width in (('query_kernel', query_width), ('key_kernel', item_width),
                          ('value_kernel', item_width))
  )


def add_value_bias(
    module: Any, output: jax.Array, weights: jax.Array
) -> jax.Array:
  """Adds the bias of the values to the output [..., d] if `module` has `value_bias`."""
  if not module.value_bias:
    return output
  bias = module.param('value_bias', module.bias_init, (module.features,),
                      module.param_dtype)
  # Softmax sums to 1, or to 0 in a row whose items are all masked; others need not.
  total = weights.sum(-1, keepdims=True)
  bias = jnp.expand_dims(bias, range(output.ndim - 1))
  return output + (total * bias).astype(output.dtype)


def finish(
    module: Any, output: jax.Array, weights: jax.Array, query: jax.Array
) -> jax.Array:
  """Sows, normalizes, gates and projects the attention output of `module`.

  Args:
    module: as in `projections`.
    output: [..., d].
    weights: of attention, [..., n].
    query: [..., inputs], what W_Q maps; for the gate.

  Returns:
    [..., d].
  """
  module.sow('intermediates', 'attention_weights', weights)
  module.sow('intermediates', 'attention_output', output)
  norm = norm_within(
      module, module.norm, epsilon=module.epsilon, param_dtype=module.param_dtype
  )
  output = norm(output)
  if module.gated:
    gate = nn.Dense(
        module.features, use_bias=False, dtype=module.dtype,
        param_dtype=module.param_dtype, precision=module.precision,
        kernel_init=module.kernel_init, name='gate',
    )(query)
    output *= jnp.broadcast_to(nn.sigmoid(gate), output.shape).astype(output.dtype)
  module.sow('intermediates', 'normalized_output', output)
  if module.output_projection:
    kernel = module.param('output_kernel', module.kernel_init,
                          (module.features, module.features), module.param_dtype)
    output = jnp.matmul(
        output, kernel.astype(output.dtype), precision=module.precision
    )
  return output
