"""Causal attention of many heads, in the form that is fastest where it runs.

  o_i = Σ_{j ≤ i} a_ij v_j,   a_i = softmax over j ≤ i of q_i·k_j / √d − m (p_i − p_j)

The last term is ALiBi's (arXiv 2108.12409): m is the slope of a head, p are positions.
Queries may have more heads than keys and values: query head h then reads the key head
h // (h's per key head), as in grouped-query attention (arXiv 2305.13245).

Axes: B sequences, n tokens, h query heads, k key heads, d width of a head.
"""

import functools

import jax
import jax.numpy as jnp

IMPLEMENTATIONS = ('plain',)


def causal_attention(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    slopes: jax.Array | None = None,
    positions: jax.Array | None = None,
    query_index: jax.Array | None = None,
    implementation: str | None = None,
) -> jax.Array:
  """Attends from every query to the keys up to its own place.

  Logits, weights and sums are float32 for narrower inputs.

  Args:
    queries: [B, n, h, d], or [B, m, h, d] with `query_index`.
    keys: [B, n, k, d]; k divides h.
    values: [B, n, k, d].
    slopes: [h], ALiBi's, positive for a bias to near keys; None for no bias. They are
      constants: no gradient reaches them.
    positions: [n] or [B, n], of the keys, in tokens, for the bias alone; 0, 1, … if
      None. Which keys are seen depends on their places, not on positions.
    query_index: [B, m] int, the place of each query among the keys, where only some
      are asked for; a query sees the keys j ≤ its place. None if there is one query for
      each key.
    implementation: one of `IMPLEMENTATIONS`; None chooses.

  Returns:
    The output [B, n, h, d], of the dtype of the values where that is a float.

  Raises:
    ValueError: if shapes do not fit, or the implementation is unknown or cannot do
      what is asked.
  """
  queries, keys, values, slopes, positions, query_index = _check(
      queries, keys, values, slopes, positions, query_index
  )
  if implementation not in (None, *IMPLEMENTATIONS):
    raise ValueError(
        f'implementation must be one of {", ".join(IMPLEMENTATIONS)}: '
        f'{implementation!r}'
    )
  return _plain(queries, keys, values, slopes, positions, query_index)


def attention_logits_and_weights(
    queries: jax.Array,
    keys: jax.Array,
    *,
    slopes: jax.Array | None = None,
    positions: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Returns what the softmax takes and gives, for probes. Memory grows with n².

  Args:
    queries: [B, n, h, d].
    keys: [B, n, k, d]; k divides h.
    slopes: as in `causal_attention`, as are positions.
    positions: [n] or [B, n].

  Returns:
    The logits, with ALiBi's bias, and the weights, both [B, h, n, n], 0 above the
    diagonal, float32 or wider.

  Raises:
    ValueError: if shapes do not fit.
  """
  queries, keys, _, slopes, positions, _ = _check(
      queries, keys, keys, slopes, positions, None
  )
  logits, weights, seen = _logits_and_weights(queries, keys, slopes, positions, None)
  whole = (queries.shape[0], queries.shape[2], *logits.shape[-2:])
  return jnp.where(seen, logits, 0.0).reshape(whole), weights.reshape(whole)


def _check(queries, keys, values, slopes, positions, query_index):
  """Returns the arguments as arrays, in floats where they are to be."""
  queries, keys, values = map(_floating, (queries, keys, values))
  for name, x in (('queries', queries), ('keys', keys), ('values', values)):
    if x.ndim != 4 or 0 in x.shape:
      raise ValueError(f'{name} must be [B, n, heads, d], none of them 0: {x.shape}')
  if keys.shape != values.shape:
    raise ValueError(f'keys {keys.shape} and values {values.shape} differ in shape')
  batch, num_keys, key_heads, width = keys.shape
  if (queries.shape[0], queries.shape[3]) != (batch, width) or (
      query_index is None and queries.shape[1] != num_keys
  ):
    raise ValueError(f'queries {queries.shape} do not fit keys {keys.shape}')
  if queries.shape[2] % key_heads:
    raise ValueError(
        f'{queries.shape[2]} query heads are no multiple of {key_heads} key heads'
    )
  if slopes is not None:
    slopes = jax.lax.stop_gradient(jnp.asarray(slopes))
    if slopes.shape != queries.shape[2:3]:
      raise ValueError(f'slopes must be [{queries.shape[2]}]: {slopes.shape}')
  if positions is not None:
    positions = jax.lax.stop_gradient(jnp.asarray(positions))
    if positions.shape not in ((num_keys,), (batch, num_keys)):
      raise ValueError(
          f'positions must be [{num_keys}] or [{batch}, {num_keys}]: {positions.shape}'
      )
  if query_index is not None:
    query_index = jnp.asarray(query_index)
    whole = jnp.issubdtype(query_index.dtype, jnp.integer)
    if query_index.shape != queries.shape[:2] or not whole:
      raise ValueError(
          f'query_index must be int [{batch}, {queries.shape[1]}]: '
          f'{query_index.dtype} {query_index.shape}'
      )
  return queries, keys, values, slopes, positions, query_index


def _floating(x):
  x = jnp.asarray(x)
  if jnp.issubdtype(x.dtype, jnp.complexfloating):
    raise ValueError(f'attention needs real numbers: {x.dtype}')
  return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


def _product(dtype):
  """Returns an einsum that sums in `dtype`, in full float32 on accelerators too."""
  return functools.partial(
      jnp.einsum, preferred_element_type=dtype, precision=jax.lax.Precision.HIGHEST
  )


def _logits_and_weights(queries, keys, slopes, positions, query_index):
  """Returns logits and weights [B, k, g, m, n], and which keys are seen [·, m, n].

  g are the query heads of a key head.
  """
  batch, num_queries, num_heads, width = queries.shape
  num_keys, key_heads = keys.shape[1:3]
  wide = jnp.promote_types(jnp.result_type(queries, keys), jnp.float32)
  groups = (key_heads, num_heads // key_heads)
  # Heads first: XLA on CPU is faster by a fifth than with tokens first.
  queries = queries.reshape(batch, num_queries, *groups, width).transpose(0, 2, 3, 1, 4)
  logits = _product(wide)('bkgid,bkjd->bkgij', queries, keys.swapaxes(1, 2))
  logits = logits / width**0.5
  places = jnp.arange(num_keys)
  own = places[None] if query_index is None else query_index  # [1 or B, m]
  if slopes is not None:
    positions = jnp.atleast_2d(places if positions is None else positions)
    if query_index is None:
      from_positions = positions
    else:
      whole = jnp.broadcast_to(positions, (batch, num_keys))
      from_positions = jnp.take_along_axis(whole, query_index, axis=1)
    distance = (from_positions[:, :, None] - positions[:, None]).astype(wide)
    slopes = slopes.astype(wide).reshape(1, *groups, 1, 1)
    logits = logits - slopes * distance[:, None, None]
  seen = (places[None, None] <= own[..., None])[:, None, None]
  lowest = jnp.finfo(wide).min  # not −inf, which is NaN in a row that sees no key
  weights = jax.nn.softmax(jnp.where(seen, logits, lowest))
  return logits, jnp.where(seen, weights, 0.0), seen


def _plain(queries, keys, values, slopes, positions, query_index):
  _, weights, _ = _logits_and_weights(queries, keys, slopes, positions, query_index)
  wide = jnp.promote_types(weights.dtype, values.dtype)
  output = _product(wide)('bkgij,bkjd->bkgid', weights, values.swapaxes(1, 2))
  output = output.transpose(0, 3, 1, 2, 4).reshape(queries.shape)
  return output.astype(values.dtype)
