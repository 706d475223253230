"""Attention of one query over n items.

  a = softmax(β q·Kᵀ / √d),   o = a V

Axes: n items, d width, v width of the values, x width of the items; leading axes
are batch axes.
"""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

from flax import linen as nn
from flax.linen.dtypes import promote_dtype
import jax
import jax.numpy as jnp

from vvlen.models.norm import PostAttentionNorm

# (logits [..., n], mask [..., n] or None) -> β [..., 1]
Temperature = Callable[[jax.Array, jax.Array | None], jax.Array]
# attention output [..., d], before the norm -> what to put in its place
Intervention = Callable[[jax.Array], jax.Array]


def masked_softmax(logits: jax.Array, mask: jax.Array | None = None) -> jax.Array:
  """Softmax over the last axis; masked entries, and rows without any, are 0.

  Args:
    logits: [..., n], float32 or wider.
    mask: [..., n] bool, True where there is an item; None for all.

  Returns:
    Weights [..., n]. Values and gradients are finite in every row.
  """
  return jax.nn.softmax(logits) if mask is None else _masked_softmax(logits, mask)


@jax.custom_jvp
def _masked_softmax(logits, mask):
  # The lowest finite number, not −inf, which is NaN in a row that is all masked.
  logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
  return jnp.where(mask, jax.nn.softmax(logits), 0.0)


@_masked_softmax.defjvp
def _(primals, tangents):
  # dA = A (dS − Σ A dS). XLA on a CPU takes 25 µs for this sum, derived from the
  # quotient 600, for [32, 4, 15, 15].
  weights = _masked_softmax(*primals)
  mean = (weights * tangents[0]).sum(axis=-1, keepdims=True)
  return weights, weights * (tangents[0] - mean)


def attend(
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array | None = None,
    temperature: Temperature | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Softmax attention of one query over n items.

  Logits, weights and sums are float32 for narrower inputs.

  Args:
    query: [..., d].
    keys: [..., n, d].
    values: [..., n, v].
    mask: [..., n] bool, True to attend; None for all.
    temperature: maps the scaled logits and the mask to β [..., 1], by which the
      logits are multiplied; None for 1. See `vvlen.models.temperature`.

  Returns:
    The output [..., v], of the dtype of the values where that is a float, and the
    attention weights [..., n]. A row with no key attended gives zeros. What stands
    in masked places does not matter as long as it is finite.
  """
  query, keys, values = map(jnp.asarray, (query, keys, values))
  wide = jnp.promote_types(jnp.result_type(query, keys, values), jnp.float32)
  # Full float32 on accelerators too: at a length of 2**14 neighbours in priority
  # differ by less than TF32 resolves, and these sums are bound by memory anyway.
  einsum = functools.partial(
      jnp.einsum, preferred_element_type=wide, precision=jax.lax.Precision.HIGHEST
  )
  logits = einsum('...d,...nd->...n', query, keys) / query.shape[-1] ** 0.5
  if temperature is not None:
    logits = logits * temperature(logits, mask)
  weights = masked_softmax(logits, mask)
  output = einsum('...n,...nv->...v', weights, values)
  if jnp.issubdtype(values.dtype, jnp.floating):
    output = output.astype(values.dtype)
  return output, weights


class Affine(NamedTuple):
  """The map x -> x @ kernel + bias."""

  kernel: jax.Array  # [x, h]
  bias: jax.Array  # [h]


class SingleHeadAttention(nn.Module):
  """One head, one query: o = norm(softmax(W_Q q · W_K h / √d) W_V h) [W_O].

  Because there is a single query, no key and no value is ever formed:

    q·(W_K h_i) = (W_Kᵀ q)·h_i   and   Σ a_i W_V h_i = W_V Σ a_i h_i,

  so the work over the n items is one dot product and one weighted sum. Where the
  items are themselves h_i = A x_i + b, the same holds of A, and b, which shifts
  all logits of a row alike, drops out of the weights.

  Sows `attention_weights` [..., n], `attention_output` [..., d] (before the norm)
  and `normalized_output` [..., d] (after it) into `intermediates`.

  Attributes:
    features: d, the width of queries, keys, values and output.
    norm: 'none', 'standardize' or 'layer_norm', applied to the output, before any
      output projection.
    output_projection: whether W_O follows the norm.
    value_bias: whether the values have a bias.
    epsilon: of the norm.
    fold: False forms all keys and values, as papers write it; for comparison, the
      result is equal to rounding.
    dtype: of the matrix products; None follows inputs and parameters. Parameters,
      logits, softmax and norm are float32, or wider with the inputs.
    kernel_init: of all projections, which have no other biases.
  """

  features: int
  norm: str = 'none'
  output_projection: bool = False
  value_bias: bool = False
  epsilon: float = 1e-5
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
      items_map: Affine | None = None,
      intervention: Intervention | None = None,
  ) -> jax.Array:
    """Attends from the query to the items.

    Args:
      query: [..., d_q].
      items: [..., n, x].
      mask: [..., n] bool, True to attend; None for all.
      temperature: as in `attend`.
      items_map: an affine map that the items still have to pass through, given
        here so that it is applied once a row and not once an item.
      intervention: replaces the attention output, before the norm; for
        experiments on trained models.

    Returns:
      The normalized output [..., d].
    """
    d = self.features
    item_width = items.shape[-1] if items_map is None else items_map.bias.shape[-1]
    kernel = lambda name, width: self.param(
        name, self.kernel_init, (width, d), jnp.float32
    )
    w_q = kernel('query_kernel', query.shape[-1])
    w_k = kernel('key_kernel', item_width)
    w_v = kernel('value_kernel', item_width)
    query, items, w_q, w_k, w_v, items_map = _promote(
        (query, items, w_q, w_k, w_v, items_map), self.dtype
    )

    query = query @ w_q
    if self.fold:
      query = query @ w_k.T
      if items_map is not None:
        query = query @ items_map.kernel.T
      # `attend` divides by the root of this query's width; the root of d is meant.
      query = query * (query.shape[-1] / d) ** 0.5
      output, weights = attend(query, items, items, mask, temperature)
      if items_map is not None:
        # Weights sum to 1, or to 0 in a row with nothing to attend to.
        total = weights.sum(-1, keepdims=True).astype(output.dtype)
        output = _affine(output, items_map, total)
      output = output @ w_v
    else:
      if items_map is not None:
        items = _affine(items, items_map)
      output, weights = attend(query, items @ w_k, items @ w_v, mask, temperature)

    if self.value_bias:
      bias = self.param('value_bias', nn.initializers.zeros, (d,), jnp.float32)
      # Weights sum to 1, or to 0 in a row with nothing to attend to.
      total = weights.sum(-1, keepdims=True)
      output = output + (total * jnp.expand_dims(bias, range(query.ndim - 1))).astype(
          output.dtype
      )
    if intervention is not None:
      output = intervention(output)
    self.sow('intermediates', 'attention_weights', weights)
    self.sow('intermediates', 'attention_output', output)
    output = PostAttentionNorm(self.norm, self.epsilon, name='norm')(output)
    self.sow('intermediates', 'normalized_output', output)
    if self.output_projection:
      output = output @ kernel('output_kernel', d).astype(output.dtype)
    return output


def _affine(x: jax.Array, to: Affine, share: jax.Array | float = 1.0) -> jax.Array:
  """Returns x @ kernel + share * bias."""
  bias = jnp.expand_dims(to.bias, range(x.ndim - 1))
  return x @ to.kernel + share * bias


def _promote(tree: Any, dtype: Any) -> Any:
  """Casts all arrays of a tree to `dtype`, or to their common one if None."""
  leaves, structure = jax.tree.flatten(tree)
  return jax.tree.unflatten(structure, promote_dtype(*leaves, dtype=dtype))
