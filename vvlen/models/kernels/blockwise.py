"""Causal attention in blocks, with memory that grows like n, not n².

The softmax is computed online: for a block of queries, blocks of keys j are processed
one by one, and the largest logit m so far, the sum l of e^(s − m) and the unnormalized
output u are updated by

  m' = max(m, max s_j),  l' = e^(m − m') l + Σ e^(s_j − m'),
  u' = e^(m − m') u + Σ e^(s_j − m') v_j,

so that finally o = u / l (arXiv 1805.02867, 2112.05682). Only o and L = m + log l are
kept. The backward pass computes the weights of each block again, a_ij = e^(s_ij − L_i),
and with δ_i = do_i·o_i (arXiv 2205.14135, 2307.08691)

  dv_j = Σ_i a_ij do_i,   ds_ij = a_ij (do_i·v_j − δ_i),
  dq_i = Σ_j ds_ij k_j / √d,   dk_j = Σ_i ds_ij q_i / √d.

Blocks above the diagonal are never computed. Lower bounds of the cost for B sequences,
h heads, n tokens and width d, first forward, then backward:

  operations     2 B h n² d, two products of half a matrix; 5 B h n² d, five products
  exponentials   B h n² / 2; the same
  numbers moved  (4 d + 1) B h n, reading q, k, v and writing o, L; (8 d + 1) B h n

Axes: B sequences, h query heads, k key heads, g = h / k, n tokens, d width. Inside this
file heads precede tokens: [B, k, g, n, d] and [B, k, n, d].
"""

import functools

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from vvlen.sharding import platform

# Tokens per block. On a CPU with two cores, 128 was the fastest, or within noise of it,
# at lengths of 512 to 4096; accelerators have more processors to keep busy.
_BLOCK_ON_CPU, _BLOCK = 128, 512


def chunked_attention(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    slopes: ArrayLike | None = None,
    positions: ArrayLike | None = None,
    block: int | None = None,
) -> jax.Array:
  """Attends from every token to itself and all earlier ones.

  Only first derivatives in reverse mode are defined; those with respect to slopes and
  positions are zero. Arguments are not checked.

  Args:
    queries: [B, n, h, d].
    keys: [B, n, k, d]; k divides h.
    values: [B, n, k, d].
    slopes: [h], ALiBi's; None for no bias.
    positions: [n] or [B, n], of the tokens, for the bias alone; 0, 1, … if None.
    block: tokens per block, which need not divide n; None chooses by device.

  Returns:
    The output [B, n, h, d], of the dtype of the values. Logits, weights and sums are
    float32, or wider if the inputs are.
  """
  shape, key_heads = queries.shape, keys.shape[2]
  batch, length, _, width = shape
  queries = queries.reshape(batch, length, key_heads, -1, width)
  queries = queries.transpose(0, 2, 3, 1, 4)
  keys, values = keys.swapaxes(1, 2), values.swapaxes(1, 2)
  if block is None:
    block = _BLOCK_ON_CPU if platform.target() == 'cpu' else _BLOCK
  block = min(block, length)
  if slopes is None:
    positions = None
  else:
    slopes = jnp.asarray(slopes).reshape(key_heads, -1)
    positions = jnp.arange(length) if positions is None else positions
    positions = jnp.atleast_2d(jnp.asarray(positions))
  # Padding comes after all tokens, so none of them attends to it.
  if length % block:
    queries, keys, values = (_pad(x, -2, block) for x in (queries, keys, values))
    positions = None if positions is None else _pad(positions, -1, block)
  output = _attend(block, queries, keys, values, slopes, positions)
  return output[..., :length, :].transpose(0, 3, 1, 2, 4).reshape(shape)


def _pad(x, axis, block):
  width = [(0, 0)] * x.ndim
  width[axis] = (0, -x.shape[axis] % block)
  return jnp.pad(x, width)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(block, queries, keys, values, slopes, positions):
  return _forward(block, queries, keys, values, slopes, positions)[0]


def _forward(block, queries, keys, values, slopes, positions):
  logits = _logits(block, queries, keys, slopes, positions)
  product = _product(queries, keys, values)

  def of_queries(_, i):
    s = logits(i, i, True)
    largest = s.max(-1)
    powers = jnp.exp(s - largest[..., None])
    average = lambda a, j: product('bkgij,bkjd->bkgid', a, _take(values, j, block))

    def add_keys(j, state):
      largest, total, output = state
      s = logits(i, j, False)
      new = jnp.maximum(largest, s.max(-1))
      powers, shrink = jnp.exp(s - new[..., None]), jnp.exp(largest - new)
      return (
          new,
          shrink * total + powers.sum(-1),
          shrink[..., None] * output + average(powers, j),
      )

    state = largest, powers.sum(-1), average(powers, i)
    largest, total, output = jax.lax.fori_loop(0, i, add_keys, state)
    return None, (output / total[..., None], largest + jnp.log(total))

  blocks = jnp.arange(queries.shape[-2] // block)
  _, (output, log_total) = jax.lax.scan(of_queries, None, blocks)
  output = _join(output, -2)
  log_total = _join(log_total, -1)
  # The derivatives need the output before it is rounded: from a bfloat16 output, the
  # error of δ would be as large as the differences do·v − δ.
  residuals = queries, keys, values, slopes, positions, output, log_total
  return output.astype(values.dtype), residuals


def _backward(block, residuals, gradient):
  queries, keys, values, slopes, positions, output, log_total = residuals
  logits = _logits(block, queries, keys, slopes, positions)
  product = _product(queries, keys, values)
  wide = log_total.dtype
  delta = product('bkgid,bkgid->bkgi', gradient, output)

  def of_queries(gradients, i):
    q, do = _take(queries, i, block), _take(gradient, i, block)
    own_total = _take(log_total, i, block, -1)[..., None]
    own_delta = _take(delta, i, block, -1)[..., None]

    def add_keys(j, state, diagonal=False):
      dq, dk, dv = state
      # Logits above the diagonal are the lowest finite number, so their weight is 0.
      weights = jnp.exp(logits(i, j, diagonal) - own_total)
      dweights = product('bkgid,bkjd->bkgij', do, _take(values, j, block))
      ds = weights * (dweights - own_delta)
      return (
          dq + product('bkgij,bkjd->bkgid', ds, _take(keys, j, block)),
          _add(dk, j, product('bkgij,bkgid->bkjd', ds, q)),
          _add(dv, j, product('bkgij,bkgid->bkjd', weights, do)),
      )

    state = add_keys(i, (jnp.zeros(q.shape, wide), *gradients), True)
    dq, *gradients = jax.lax.fori_loop(0, i, add_keys, state)
    return tuple(gradients), dq

  nothing = jnp.zeros(keys.shape, wide)
  blocks = jnp.arange(queries.shape[-2] // block)
  (dk, dv), dq = jax.lax.scan(of_queries, (nothing, nothing), blocks)
  scale = queries.shape[-1] ** -0.5
  return (
      (scale * _join(dq, -2)).astype(queries.dtype),
      (scale * dk).astype(keys.dtype),
      dv.astype(values.dtype),
      None,
      None,
  )


_attend.defvjp(_forward, _backward)


def _logits(block, queries, keys, slopes, positions):
  """Returns a function of (query block, key block, whether both are one) -> logits."""
  product = _product(queries, keys)
  scale = queries.shape[-1] ** -0.5

  def logits(i, j, diagonal):
    q, k = _take(queries, i, block), _take(keys, j, block)
    s = product('bkgid,bkjd->bkgij', q, k) * scale
    if slopes is not None:
      own, other = (_take(positions, x, block, -1) for x in (i, j))
      distance = (own[:, :, None] - other[:, None]).astype(s.dtype)
      s = s - slopes.astype(s.dtype)[None, ..., None, None] * distance[:, None, None]
    if diagonal:
      seen = jnp.tri(block, dtype=bool)[None, None, None]
      s = jnp.where(seen, s, jnp.finfo(s.dtype).min)
    return s

  return logits


def _product(*arrays):
  """Returns an einsum that computes in full float32 on all devices, or wider."""
  wide = jnp.promote_types(jnp.result_type(*arrays), jnp.float32)
  return functools.partial(
      jnp.einsum, preferred_element_type=wide, precision=jax.lax.Precision.HIGHEST
  )


def _take(x, i, block, axis=-2):
  return jax.lax.dynamic_slice_in_dim(x, i * block, block, axis)


def _add(x, i, part):
  """Returns x [..., n, d] with `part` added to its block i of tokens."""
  block = part.shape[-2]
  total = _take(x, i, block) + part
  return jax.lax.dynamic_update_slice_in_dim(x, total, i * block, -2)


def _join(x, axis):
  """Concatenates blocks, which are the first axis of x, along `axis`."""
  x = jnp.moveaxis(x, 0, axis - 1)
  shape = list(x.shape)
  shape[axis - 1 : x.ndim + axis + 1] = [-1]
  return x.reshape(shape)
