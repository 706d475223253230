"""Attention of one query over n items.

  a = softmax(β q·Kᵀ / √d),   o = a V

Axes: n items, d width, v width of the values, x width of the items; leading axes
are batch axes.
"""

from collections.abc import Callable
import functools
import sys
from typing import Any

from flax import linen as nn
from flax.linen.dtypes import promote_dtype
import jax
import jax.numpy as jnp
import numpy as np

from vvlen.models.fixes.learned import Weights
from vvlen.models.masked_softmax import broadcast_mask, masked_softmax
from vvlen.models.norm import Norm
from vvlen.models.single_head import (
    add_value_bias,
    finish,
    projections,
    rescoring,
    weights_of,
)

# (logits [..., n], mask [..., n] or None) -> β [..., 1]
Temperature = Callable[[jax.Array, jax.Array | None], jax.Array]


def attend(
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array | None = None,
    temperature: Temperature | None = None,
    weights: Weights | None = None,
    rescore: Callable[[jax.Array], jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Softmax attention of one query over n items.

  Logits, weights and sums are float32 for narrower inputs.

  Args:
    query: [..., d].
    keys: [..., n, d].
    values: [..., n, v].
    mask: bool, True to attend, broadcastable to [..., n]; None attends to all items.
    temperature: maps the scaled logits and the mask, both [..., n], to β [..., 1], by
      which the logits are multiplied; None for β = 1. See `vvlen.models.temperature`.
    weights: maps the logits, multiplied by β, and the mask, both [..., n], to the
      weights [..., n], as in `vvlen.models.fixes`; None for softmax.
    rescore: maps the scaled logits [..., n] to those that take their place, before
      temperature and weights see them; None for no change.

  Returns:
    The output [..., v], of the dtype of the values if that is a float, and the
    attention weights [..., n], both zero in rows whose items are all masked. Masked
    items do not affect the result as long as they are finite.

  Raises:
    ValueError: if shapes do not fit, for example because there are several queries, or
      the temperature or the weights have other axes than the logits, or if the mask is
      not bool.
  """
  query, keys, values = map(jnp.asarray, (query, keys, values))
  check_axes(query=query, keys=keys, values=values)
  if query.shape[-1] != keys.shape[-1]:
    raise ValueError(
        f'query {query.shape} and keys {keys.shape} differ in their last axis'
    )
  wide = jnp.promote_types(jnp.result_type(query, keys, values), jnp.float32)
  # Full float32 on accelerators too: among 2**14 items, adjacent priorities differ by
  # less than TF32 resolves, and memory limits the speed of these sums anyway.
  einsum = functools.partial(
      jnp.einsum, preferred_element_type=wide, precision=jax.lax.Precision.HIGHEST
  )
  logits = einsum('...d,...nd->...n', query, keys) / query.shape[-1] ** 0.5
  if rescore is not None:
    logits = rescore(logits)
  if mask is not None:
    mask = broadcast_mask(mask, logits.shape)
  if temperature is not None:
    beta = temperature(logits, mask)
    if jnp.broadcast_shapes(jnp.shape(beta), logits.shape) != logits.shape:
      raise ValueError(f'temperature must give β {[*logits.shape[:-1], 1]}: '
                       f'{[*jnp.shape(beta)]}')
    logits = logits * beta
  attended = masked_softmax(logits, mask) if weights is None else weights(logits, mask)
  if jnp.shape(attended) != logits.shape:
    raise ValueError(f'weights must give {[*logits.shape]}: {[*jnp.shape(attended)]}')
  output = einsum('...n,...nv->...v', attended, values)
  if jnp.issubdtype(values.dtype, jnp.floating):
    output = output.astype(values.dtype)
  return output, attended


def check_axes(query: jax.Array, **items: jax.Array) -> None:
  """Raises ValueError if a query [..., d] and arrays [..., n, ·] do not fit."""
  shapes = {name: x.shape for name, x in items.items()}
  for name, shape in shapes.items():
    if not query.ndim or len(shape) < 2:
      raise ValueError(f'query must be [..., d] and {name} [..., n, d]: '
                       f'{query.shape}, {shape}')
    if query.ndim >= len(shape):
      raise ValueError(
          f'query {query.shape} has too many axes for {name} {shape}: it must be '
          'one query, [..., d]. For several, use jax.vmap or '
          'vvlen.models.kernels.dense.masked_attention'
      )
  if len({shape[-2] for shape in shapes.values()}) > 1:
    raise ValueError(f'{" and ".join(shapes)} differ in the number of items: '
                     f'{", ".join(map(str, shapes.values()))}')
  try:
    np.broadcast_shapes(query.shape[:-1], *(shape[:-2] for shape in shapes.values()))
  except ValueError:
    raise ValueError(
        f'leading axes of query and {", ".join(shapes)} do not fit: '
        f'{", ".join(map(str, (query.shape, *shapes.values())))}'
    ) from None


class SingleHeadAttention(nn.Module):
  """One head, one query: o = norm(softmax(W_Q q · W_K h / √d) W_V h) [W_O].

  Because there is a single query, keys and values are never computed:

    q·(W_K h_i) = (W_Kᵀ q)·h_i   and   Σ a_i W_V h_i = W_V Σ a_i h_i,

  so each item costs one dot product and one term of a weighted sum; computing its key
  and value would cost d times as much. Results differ by rounding only.

  Sows `attention_weights` [..., n], `attention_output` [..., d] (before the norm)
  and `normalized_output` [..., d] (after it and the gate) into `intermediates`.

  Attributes:
    features: d, the width of queries, keys, values and output.
    norm: applied to the output, before W_O if there is one: 'none', 'standardize',
      'layer_norm', a linen module or a function.
    output_projection: whether a projection W_O follows the norm.
    value_bias: whether the values have a bias; no other projection has one.
    epsilon: of a norm given by name.
    dtype: of the matrix products; None follows inputs and parameters. Logits, softmax
      and norm are float32, or wider if the inputs are.
    param_dtype: of the parameters, except those of a norm given as a module.
    precision: of the projections; None is JAX's default. `attend` always uses the
      highest.
    kernel_init: of all projections.
    bias_init: of the bias of the values.
    weights: maps logits and mask to the attention weights, as in `vvlen.models.fixes`;
      its learned scalars are parameters, named `weights`. None: softmax.
    qk_norm: if not None, logits are g q·k / (‖q‖ ‖k‖) (arXiv 2010.04245), and this is
      the initial value of the learned g; there log₂(L² − L), L being nearly the longest
      training length. Each item then costs a product [x] × [x, x]
      (`vvlen.models.fixes.key_norms`).
    gated: whether o ⊙ σ(W q), q the query as given, takes the place of the normalized
      output o (arXiv 2505.06708). It costs as much as W_Q.
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
      mask: jax.Array | None = None,
      temperature: Temperature | None = None,
  ) -> jax.Array:
    """Attends from the query to the items.

    Args:
      query: [..., d_q].
      items: [..., n, x].
      mask: bool, True to attend, broadcastable to [..., n]; None attends to all items.
      temperature: as in `attend`.

    Returns:
      The normalized output [..., d].

    Raises:
      ValueError: as `attend`, or if the norm is unknown.
    """
    check_axes(query=query, items=items)
    kernels = projections(self, query.shape[-1], items.shape[-1])
    query, items, w_q, w_k, w_v = promote_dtype(
        query, items, *kernels, dtype=self.dtype
    )
    dot = functools.partial(jnp.matmul, precision=self.precision)
    projected = dot(query, w_q)
    rescore = None
    if self.qk_norm is not None:
      rescore = rescoring(self, projected, items, w_k)
    across = dot(projected, w_k.T)
    # `attend` divides by the root of this query's width; it should be the root of d.
    across = across * (across.shape[-1] / self.features) ** 0.5
    output, weights = attend(
        across, items, items, mask, temperature, weights_of(self), rescore
    )
    output = add_value_bias(self, dot(output, w_v), weights)
    return finish(self, output, weights, query)


def post_norm_attention(
    norm: Callable[[jax.Array], jax.Array]
) -> Callable[..., jax.Array]:
  """Returns an `attention_fn` that normalizes each head's output, before W_O.

    nn.MultiHeadDotProductAttention(
        num_heads, attention_fn=post_norm_attention(PostAttentionNorm('layer_norm')))

  computes o = norm(softmax(q·Kᵀ / √d) V) for each head, between its projections, as in
  arXiv 2504.02827 and `vvlen.models.decoder`. Masks, dropout, dtype, precision and all
  other options work as in `nn.dot_product_attention` or, inside
  `nnx.MultiHeadAttention`, as in `nnx.dot_product_attention`.

  Args:
    norm: maps [..., n, h, d] to the same shape, over the last axis; one of

      - for `nn.MultiHeadDotProductAttention`, a linen module such as
        `PostAttentionNorm`. Each attention module gets its own copy, whose parameters
        are named `norm`.
      - for `nnx.MultiHeadAttention`, an NNX module such as `nnx.LayerNorm` of d
        features. Its parameters are under `attention_fn/norm`.
      - for both, a function without parameters, such as
        `vvlen.models.norm.standardize`.

  Returns:
    A function that maps queries [..., n, h, d], keys [..., m, h, d], values
    [..., m, h, d] and the options of `nn.dot_product_attention` to [..., n, h, d].

  Raises:
    TypeError: if the norm is neither a module nor a function.
    ValueError: when the returned function is called, if NNX calls it and the norm is a
      linen module, or the reverse: the norm's parameters would not be trained.
  """
  if not callable(norm):
    kind = norm if isinstance(norm, str) else 'layer_norm'
    raise TypeError(f'norm must be a module or a function, such as '
                    f'PostAttentionNorm({kind!r}): {norm!r}')
  # If flax.nnx was never imported, the norm cannot be one of its modules.
  nnx = sys.modules.get('flax.nnx')
  if nnx is not None and isinstance(norm, nnx.Module):
    from vvlen.models.nnx_attention import PostNormAttention
    return PostNormAttention(norm)

  # linen passes only the options that are in the signature.
  @functools.wraps(nn.dot_product_attention)
  def attention_fn(*arrays, **options):
    if 'is_causal' in options:  # NNX always passes it, linen never
      if isinstance(norm, nn.Module):
        raise ValueError('nnx.MultiHeadAttention needs an NNX norm, such as '
                         f'nnx.LayerNorm: {norm}')
      from flax import nnx
      return norm(nnx.dot_product_attention(*arrays, **options))
    output = nn.dot_product_attention(*arrays, **options)
    # A copy made here belongs to the attention module, wherever the norm was created.
    own = norm.copy(name='norm') if isinstance(norm, nn.Module) else norm
    return own(output)

  return attention_fn
