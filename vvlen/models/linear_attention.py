"""Causal linear attention on bits, with its output divided by the position.

Bits x_1..x_k are one-hot vectors, queries and keys have a few dimensions, values are
scalars, and there is no softmax (arXiv 2506.11769, section 3):

  g(x_1..x_k) = (1/k) Σ_{i ≤ k} (q_{x_k} · k_{x_i}) v_{x_i} = (1/k) Σ_i A[x_k, x_i]
  A[a, b] = (q_a · k_b) v_b

g depends on A alone. With two dimensions or more, A can be any 2 × 2 table; with one, A
has rank 1. `vvlen.theory.linear_attention` computes the best A.

Axes: B strings, N bits at most, d width.
"""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp


class LinearAttention(nn.Module):
  """One layer of linear attention, read at the last bit of each string."""

  width: int = 2  # d, of queries and keys
  dtype: Any = jnp.float32  # of products, sums and the answer
  param_dtype: Any = jnp.float32
  precision: Any = jax.lax.Precision.HIGHEST  # the sums are compared with float64

  @nn.compact
  def __call__(self, bits: jax.Array, length: jax.Array) -> jax.Array:
    """Returns the answer for each string.

    Args:
      bits: [B, N] int32, 0 or 1; bits after the first k are ignored.
      length: k [B] int32, 1..N.

    Returns:
      g [B], of `dtype`, in units of the target.
    """
    dense = lambda features, name: nn.Dense(
        features, use_bias=False, dtype=self.dtype, param_dtype=self.param_dtype,
        precision=self.precision, name=name,
    )
    one_hot = jax.nn.one_hot(bits, 2, dtype=self.dtype)  # [B, N, 2]
    last = jnp.take_along_axis(one_hot, (length - 1)[:, None, None], axis=1)[:, 0]
    query = dense(self.width, 'query')(last)
    # A zero vector has the key 0 and the value 0, so it adds nothing to the sum.
    kept = jnp.arange(bits.shape[1])[None] < length[:, None]
    one_hot = jnp.where(kept[..., None], one_hot, 0.0)
    keys, values = dense(self.width, 'key')(one_hot), dense(1, 'value')(one_hot)[..., 0]
    total = jnp.einsum(
        'bd,bnd,bn->b', query, keys, values, precision=self.precision
    )
    return total / length.astype(self.dtype)


def table(params: Any) -> jax.Array:
  """Returns the table A [2, 2] of a `LinearAttention`, of the dtype of its parameters.

  Args:
    params: of one model, without the outer key 'params'.

  Returns:
    A; A[a, b] is what a bit b adds to the sum over i if the last bit is a.
  """
  query, key = params['query']['kernel'], params['key']['kernel']
  scores = jnp.matmul(query, key.T, precision=jax.lax.Precision.HIGHEST)
  return scores * params['value']['kernel'].T


def from_table(table: jax.Array) -> Any:
  """Returns parameters of a `LinearAttention(width=2)` that has this table.

  The queries are the rows of A, the keys the unit vectors, both values 1.

  Args:
    table: A [2, 2], a float.

  Returns:
    The parameters, of the dtype of the table.

  Raises:
    ValueError: if the table has another shape.
  """
  table = jnp.asarray(table)
  if table.shape != (2, 2):
    raise ValueError(f'table must be [2, 2]: {table.shape}')
  return {
      'query': {'kernel': table},
      'key': {'kernel': jnp.eye(2, dtype=table.dtype)},
      'value': {'kernel': jnp.ones((2, 1), table.dtype)},
  }
