"""The retriever with learned embeddings, for dictionary lookup (arXiv 2504.02827).

  x_i = [E_k(key_i), E_v(value_i)],   q = E_k(key asked for)

and then as in `vvlen.models.retriever`. ψ_x's first layer is linear, so it is a sum
of one row a key and one row a value:

  W x_i + b = (E_k W_k)(key_i) + (E_v W_v + b)(value_i),   W = [W_k; W_v]

The table of values is always made. That of keys is made where a call has more items
than there are keys, as has a training batch of up to 256 items; else the keys'
embeddings are looked up first. To measure one model on many chunks of sequences, it is
made once, by `with_key_rows`. Embeddings are trained by the
same dense Adam as all else, though a batch touches an eighth of the keys: to keep the
gradient as rows is three times slower, and to update these rows alone is another
algorithm that would save 4 % of a step (`experiments.benchmarks.embedding_updates`).

Axes: n items; leading axes are batch axes.
"""

from collections.abc import Mapping
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vvlen.models.attention import Intervention, Temperature
from vvlen.models.retriever import retrieve

_KEY_ROWS = 'key_rows'  # beside the parameters


class DictionaryRetriever(nn.Module):
  """Reads a dictionary of (key, value) items and names the value of one key.

  Attributes:
    num_keys: how many keys there are.
    embedding_width: of keys and of values.
    table: whether ψ_x's first layer is made of tables, as above; False applies it
      to every item, as papers write it. Equal to rounding.

  The others, and what the models of several norms share, are as in
  `vvlen.models.retriever.Retriever`; `num_classes` is the number of values.
  """

  num_keys: int = 16384
  num_classes: int = 10
  embedding_width: int = 64
  width: int = 128
  norm: str = 'none'
  output_projection: bool = False
  value_bias: bool = False
  epsilon: float = 1e-5
  item_encoder: str = 'mlp'
  fold: bool = True
  table: bool = True
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
    """Maps query [...] and items [..., n, 2] to float32 logits [..., C].

    Args:
      query: [...] int, the key asked for.
      items: [..., n, 2] int, key and value of each.
      mask: [..., n] bool, True where there is an item; None for all.
      temperature: as in `vvlen.models.attention.attend`.
      intervention: as in `vvlen.models.attention.SingleHeadAttention`.

    Returns:
      Class logits [..., C], float32 or wider.

    Raises:
      ValueError: on an unknown `item_encoder` or `norm`.
    """
    embedding = lambda name, count: self.param(
        name, nn.initializers.normal(1.0), (count, self.embedding_width), jnp.float32
    ).astype(self.dtype or jnp.float32)
    keys = embedding('key_embedding', self.num_keys)
    values = embedding('value_embedding', self.num_classes)
    key, value = items[..., 0], items[..., 1]
    if self.item_encoder == 'mlp':
      kernel = self.param(
          'item_hidden_kernel', self.kernel_init,
          (2 * self.embedding_width, self.width), jnp.float32,
      ).astype(keys.dtype)
      bias = self.param(
          'item_hidden_bias', nn.initializers.zeros, (self.width,), jnp.float32
      ).astype(keys.dtype)
      of_key, of_value = jnp.split(kernel, 2)
      if self.table:
        if self.has_variable('params', _KEY_ROWS):
          key_rows: jax.Array = self.get_variable('params', _KEY_ROWS)
          rows = key_rows.astype(keys.dtype)[key.ravel()]
        elif key.size > self.num_keys:
          rows = (keys @ of_key)[key.ravel()]
        else:
          rows = keys[key.ravel()] @ of_key
        # As a product: the gradient of a look-up adds row by row.
        one_hot = jax.nn.one_hot(value.ravel(), self.num_classes, dtype=rows.dtype)
        rows = rows + one_hot @ (values @ of_value + bias[None])
      else:
        rows = _embed(keys, values, items) @ kernel + bias[None]
      rows = nn.gelu(rows)
    else:
      rows = _embed(keys, values, items)
    # Up to here one matrix of all items: XLA's gradient of a product over two batch
    # axes is twenty times slower on a CPU.
    items = rows.reshape(*key.shape, -1)
    return retrieve(self, keys[query], items, mask, temperature, intervention)


def with_key_rows(params: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
  """Adds E_k W_k, [num_keys, width], which the model then looks up.

  The model gives the same logits, to rounding, without this product in every call:
  measuring takes less than half the time. Not for training, where W_k would have no
  gradient.

  Args:
    params: of a `DictionaryRetriever`.

  Returns:
    The same and the product; where ψ_x is linear, which has no such layer, the same.
  """
  if 'item_hidden_kernel' not in params:
    return dict(params)
  of_key, _ = jnp.split(params['item_hidden_kernel'], 2)
  return {**params, _KEY_ROWS: params['key_embedding'] @ of_key}


def _embed(keys: jax.Array, values: jax.Array, items: jax.Array) -> jax.Array:
  """Returns [E_k(key_i), E_v(value_i)] of all items, one row each."""
  key, value = items[..., 0].ravel(), items[..., 1].ravel()
  return jnp.concatenate([keys[key], values[value]], -1)
