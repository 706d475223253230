"""The retriever with learned embeddings, for dictionary lookup (arXiv 2504.02827).

  x_i = [E_k(key_i), E_v(value_i)],   q = E_k(queried key)

and then as in `vvlen.models.retriever`. ψ_x's first layer is linear, so it is the sum
of one row per key and one row per value:

  W x_i + b = (E_k W_k)(key_i) + (E_v W_v + b)(value_i),   W = [W_k; W_v]

The table of values, E_v W_v + b, is always computed. That of keys, E_k W_k, is computed
if a call has more items than there are keys, as in training with up to 256 items per
sequence; otherwise the keys' embeddings are looked up first. To measure one model on
many chunks of sequences, `with_key_rows` computes the table of keys once and passes it
beside the parameters. Embeddings are trained by the same dense Adam as all other
parameters, though a batch uses only an eighth of the keys: a gradient kept as a list of
rows is three times slower, and updating these rows alone is another algorithm that
would save 4 % of a step (`experiments.benchmarks.embedding_updates`).

Axes: n items; leading axes are batch axes.
"""

from collections.abc import Mapping
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vvlen.models.attention import Temperature
from vvlen.models.fixes.learned import Weights
from vvlen.models.norm import Norm
from vvlen.models.retriever import Intervention, retrieve

_TABLES = 'tables'  # the collection of arrays that are computed from parameters


class DictionaryRetriever(nn.Module):
  """Classifies which value belongs to a queried key in a set of (key, value) items.

  As in `vvlen.models.retriever.Retriever`, models that differ in `norm` draw the same
  initial weights from the same key.

  Attributes:
    num_keys: number of keys in the vocabulary.
    num_classes: number of values.
    embedding_width: of keys and of values.
    table: whether ψ_x's first layer is computed from tables, as above; False applies it
      to every item. Results differ by rounding only.
    others: as in `Retriever`.
  """

  num_keys: int = 16384
  num_classes: int = 10
  embedding_width: int = 64
  width: int = 128
  norm: Norm = 'none'
  output_projection: bool = False
  value_bias: bool = False
  epsilon: float = 1e-5
  item_encoder: str = 'mlp'
  table: bool = True
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
    """Maps query [...] and items [..., n, 2] to class logits [..., C].

    Args:
      query: [...] int, the queried key.
      items: [..., n, 2] int, key and value of each item.
      mask: [..., n] bool, True where there is an item; None for all.
      temperature: as in `vvlen.models.attention.attend`.
      intervention: as in `vvlen.models.retriever.Retriever`.

    Returns:
      Class logits [..., C], float32 or wider.

    Raises:
      ValueError: if `item_encoder` or `norm` is unknown.
    """
    parameter = lambda name, initializer, *shape: self.param(
        name, initializer, shape, self.param_dtype
    ).astype(self.dtype or self.param_dtype)
    dot = functools.partial(jnp.matmul, precision=self.precision)
    embed = nn.initializers.normal(1.0)
    width = self.embedding_width
    keys = parameter('key_embedding', embed, self.num_keys, width)
    values = parameter('value_embedding', embed, self.num_classes, width)
    key, value = items[..., 0], items[..., 1]
    if self.item_encoder == 'mlp':
      kernel = parameter('item_hidden_kernel', self.kernel_init, 2 * width, self.width)
      bias = parameter('item_hidden_bias', self.bias_init, self.width)
      of_key, of_value = jnp.split(kernel, 2)
      if self.table:
        if self.has_variable(_TABLES, 'key_rows'):
          key_rows: jax.Array = self.get_variable(_TABLES, 'key_rows')
          rows = key_rows.astype(keys.dtype)[key.ravel()]
        elif key.size > self.num_keys:
          rows = dot(keys, of_key)[key.ravel()]
        else:
          rows = dot(keys[key.ravel()], of_key)
        # A product, since the gradient of a look-up is added row by row, which is slow.
        one_hot = jax.nn.one_hot(value.ravel(), self.num_classes, dtype=rows.dtype)
        rows = rows + dot(one_hot, dot(values, of_value) + bias[None])
      else:
        rows = dot(_embed(keys, values, items), kernel) + bias[None]
      rows = nn.gelu(rows)
    else:
      rows = _embed(keys, values, items)
    # All items are rows of one matrix up to here: with two batch axes, XLA's gradient
    # of a product is twenty times slower on a CPU.
    items = rows.reshape(*key.shape, -1)
    return retrieve(self, keys[query], items, mask, temperature, intervention)


def with_key_rows(
    params: Mapping[str, jax.Array], precision: jax.lax.PrecisionLike = None
) -> dict[str, Any]:
  """Computes E_k W_k, [num_keys, width], once, so that the model looks up its rows.

  The model then does not compute this product in every call, and measuring takes less
  than half the time; logits differ by rounding only. For gradients, call this inside
  the differentiated function: the gradients of E_k and W_k pass through the product.

  Args:
    params: of a `DictionaryRetriever`.
    precision: of the product; give the `precision` of the model.

  Returns:
    Variables for the model: `params`, unchanged, and the product in the collection
    `tables`. If ψ_x is linear, it has no such layer, and only `params` are returned.
  """
  variables: dict[str, Any] = {'params': params}
  if 'item_hidden_kernel' in params:
    of_key, _ = jnp.split(params['item_hidden_kernel'], 2)
    product = jnp.matmul(params['key_embedding'], of_key, precision=precision)
    variables[_TABLES] = {'key_rows': product}
  return variables


def _embed(keys: jax.Array, values: jax.Array, items: jax.Array) -> jax.Array:
  """Returns [E_k(key_i), E_v(value_i)] of all items, one row each."""
  key, value = items[..., 0].ravel(), items[..., 1].ravel()
  return jnp.concatenate([keys[key], values[value]], -1)
