"""Causal attention in blocks, whose memory grows with n and not with n².

The softmax is taken online: for a block of queries, blocks of keys j come one by one,
and the largest logit m so far, the sum l of e^(s − m) and the output u are corrected by

  m' = max(m, max s_j),  l' = e^(m − m') l + Σ e^(s_j − m'),  u' = e^(m − m') u + …,

so that o = u / l (arXiv 1805.02867, 2112.05682). Only o and L = m + log l are kept. The
derivatives form the weights of a block again, a_ij = e^(s_ij − L_i), and with
δ_i = do_i·o_i (arXiv 2205.14135, 2307.08691)

  dv_j = Σ_i a_ij do_i,   ds_ij = a_ij (do_i·v_j − δ_i),
  dq_i = Σ_j ds_ij k_j / √d,   dk_j = Σ_i ds_ij q_i / √d.

Blocks above the diagonal are never computed. What is needed at the least, in terms of
B sequences, h heads, n tokens and width d: two products of half a matrix, 2 B h n² d
operations (4 n² d / 2 a head), and five, 2.5 times as many, for the derivatives; B h n²
/ 2 exponentials in each; and reading q, k, v and writing o, L: (4 d + 1) B h n numbers,
and (8 d + 1) B h n for the derivatives.

Axes: B sequences, k key heads, g query heads of a key head, n tokens, d width.
"""

import functools

import jax
import jax.numpy as jnp

# Tokens in a block. On a CPU, of two cores, 128 was the fastest or within noise of it
# at lengths of 512 to 4096; elsewhere there are more processors to keep busy.
_BLOCK_ON_CPU, _BLOCK = 128, 512


def chunked_attention(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    slopes: jax.Array | None = None,
    positions: jax.Array | None = None,
    block: int | None = None,
) -> jax.Array:
  """Attends from every token to those up to it.

  Has first derivatives in reverse mode alone; none to slopes and positions.

  Args:
    queries: [B, k, g, n, d].
    keys: [B, k, n, d].
    values: [B, k, n, d].
    slopes: [k, g], ALiBi's; None for no bias.
    positions: [1, n] or [B, n], of the keys; 0, 1, … if None.
    block: tokens in a block; None chooses. n may be any length.

  Returns:
    The output [B, k, g, n, d], of the dtype of the values. Logits, weights and sums
    are float32, or wider with the inputs.
  """
  length = queries.shape[-2]
  if block is None:
    block = _BLOCK_ON_CPU if jax.default_backend() == 'cpu' else _BLOCK
  block = min(block, length)
  if slopes is None:
    positions = None
  elif positions is None:
    positions = jnp.arange(length)[None]
  # Padding stands after all tokens, where none of them looks.
  if length % block:
    queries, keys, values = (_pad(x, -2, block) for x in (queries, keys, values))
    positions = None if positions is None else _pad(positions, -1, block)
  output = _attend(block, queries, keys, values, slopes, positions)
  return output[..., :length, :]


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
  # The derivatives need the output as it was before rounding: in bfloat16 δ would be
  # wrong by as much as the differences that it is subtracted from.
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
      # Entries above the diagonal have the lowest of all logits: e^… = 0.
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
  """Returns a function: block of queries, block of keys, whether the same -> logits."""
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
  """Returns an einsum that sums in float32 or wider, in full float32 everywhere."""
  wide = jnp.promote_types(jnp.result_type(*arrays), jnp.float32)
  return functools.partial(
      jnp.einsum, preferred_element_type=wide, precision=jax.lax.Precision.HIGHEST
  )


def _take(x, i, block, axis=-2):
  return jax.lax.dynamic_slice_in_dim(x, i * block, block, axis)


def _add(x, i, part):
  """Adds to a block of tokens of x [..., n, d]."""
  block = part.shape[-2]
  total = _take(x, i, block) + part
  return jax.lax.dynamic_update_slice_in_dim(x, total, i * block, -2)


def _join(x, axis):
  """Puts blocks, of the first axis of x, one behind the other along `axis`."""
  x = jnp.moveaxis(x, 0, axis - 1)
  shape = list(x.shape)
  shape[axis - 1 : x.ndim + axis + 1] = [-1]
  return x.reshape(shape)
