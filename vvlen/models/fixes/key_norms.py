"""Norms of keys that are never formed, for QK-norm.

  k_i = Kᵀ x_i + c,   ‖k_i‖² = x_iᵀ G x_i + 2 x_i·(K c) + ‖c‖²,   G = K Kᵀ

G [x, x] does not depend on the items. The norms cost a product [n, x] × [x, x] for each
row of attention, as many operations as forming the keys if d = x. Their gradient costs
one more product instead of two, since G x_i is already known. This is most of the cost
of an item: 2 x² operations, beside 2 x for its logit and its term of the output.
"""

import functools

import jax
import jax.numpy as jnp

# A vector of a smaller squared norm is divided by √SMALLEST, as in PyTorch's normalize.
SMALLEST = 1e-24


def squared_key_norms(
    items: jax.Array, kernel: jax.Array, bias: jax.Array | None = None
) -> jax.Array:
  """Returns ‖Kᵀ x_i + c‖², [..., n].

  Args:
    items: x_i [..., n, x].
    kernel: K [x, d].
    bias: c [d], or None for 0.

  Returns:
    [..., n], float32 or wider. Rounding is relative to ‖K‖² ‖x_i‖², so keys that nearly
    vanish may have a norm slightly below 0.
  """
  wide = jnp.promote_types(jnp.result_type(items, kernel), jnp.float32)
  items, kernel = items.astype(wide), kernel.astype(wide)
  rows = items.reshape(-1, items.shape[-1])  # as in `vvlen.models.retriever`
  squares = _quadratic(rows, _dot(kernel, kernel.T))
  if bias is not None:
    bias = bias.astype(wide)
    squares += 2 * _dot(rows, _dot(kernel, bias)) + _dot(bias, bias)
  return squares.reshape(items.shape[:-1])


_dot = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


@jax.custom_jvp
def _quadratic(rows, gram):
  """Returns x·(G x) [r] of rows x [r, x] and a symmetric G [x, x]."""
  return (rows * _dot(rows, gram)).sum(-1)


@_quadratic.defjvp
def _(primals, tangents):
  # d(x·Gx) = 2 (Gx)·dx + x·(dG x): nothing of the size of Gx is computed twice.
  rows, gram = primals
  change_of_rows, change_of_gram = tangents
  product = _dot(rows, gram)
  change = 2 * (product * change_of_rows).sum(-1)
  change += (rows * _dot(rows, change_of_gram)).sum(-1)
  return (rows * product).sum(-1), change
