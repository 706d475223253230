"""Causal attention of many heads, in the form that is fastest where it runs.

  o_i = Σ_{j ≤ i} a_ij v_j,   a_i = softmax over j ≤ i of q_i·k_j / √d − m (p_i − p_j)

The last term is ALiBi's (arXiv 2108.12409): m is the slope of a head, p are positions.
Queries may have more heads than keys and values: query head h then reads the key head
h // (h's per key head), as in grouped-query attention (arXiv 2305.13245).

Implementations:

  plain    forms all logits at once; the only one that has second derivatives, or takes
           some queries only
  chunked  `vvlen.models.chunked_attention`: memory grows with n
  cudnn    NVIDIA's, of float16 and bfloat16
  splash   JAX's for TPUs; on a CPU it is interpreted, which is for tests alone. What it
           multiplies in float32 the TPU rounds to bfloat16

Axes: B sequences, n tokens, h query heads, k key heads, d width of a head.
"""

import functools

import jax
import jax.numpy as jnp

from vvlen.models.chunked_attention import chunked_attention

IMPLEMENTATIONS = ('plain', 'chunked', 'cudnn', 'splash')

# From so many tokens on all logits at once are slower than blocks of them. Measured on
# a busy CPU, 4 heads, with gradients: 8 sequences of 256 take 53 ms against 59, 8 of
# 512 195 against 106, one of 2048 1670 against 310.
_LONG = 512
# Tokens in a block of the splash kernel, the first that divides the padded length.
_SPLASH_BLOCKS = (512, 256, 128)


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
    implementation: one of `IMPLEMENTATIONS`; None chooses by length, dtype and device:
      plain below 512 tokens and with `query_index`, above cudnn or splash for bfloat16
      where they run, else chunked.

  Returns:
    The output [B, n, h, d], of the dtype of the values where that is a float.

  Raises:
    ValueError: if shapes do not fit, or the implementation is unknown or cannot do
      what is asked.
  """
  queries, keys, values, slopes, positions, query_index = _check(
      queries, keys, values, slopes, positions, query_index
  )
  if implementation is None:
    implementation = _choose(queries, keys, values, slopes, query_index)
  elif implementation not in IMPLEMENTATIONS:
    raise ValueError(
        f'implementation must be one of {", ".join(IMPLEMENTATIONS)}: '
        f'{implementation!r}'
    )
  refused = _refusal(implementation, queries, keys, values, slopes, query_index)
  if refused is not None:
    raise ValueError(f'implementation {implementation!r} {refused}')
  if implementation == 'cudnn':
    return jax.nn.dot_product_attention(
        queries, keys, values, is_causal=True, implementation='cudnn'
    )
  if implementation == 'splash':
    return _splash(queries, keys, values)
  if implementation == 'chunked':
    return _chunked(queries, keys, values, slopes, positions)
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


def _choose(queries, keys, values, slopes, query_index):
  """Returns the name of the implementation that is fastest."""
  if query_index is not None or queries.shape[1] < _LONG:
    return 'plain'
  kernel = {'gpu': 'cudnn', 'tpu': 'splash'}.get(jax.default_backend())
  narrow = jnp.result_type(queries, keys, values).itemsize == 2
  if kernel is None or not narrow:
    return 'chunked'
  refused = _refusal(kernel, queries, keys, values, slopes, query_index)
  return kernel if refused is None else 'chunked'


def _refusal(implementation, queries, keys, values, slopes, query_index):
  """Returns why an implementation cannot do it, None if it can."""
  if implementation == 'plain':
    return None
  if query_index is not None:
    return 'takes no query_index'
  if implementation == 'chunked':
    return None
  backend, width = jax.default_backend(), queries.shape[-1]
  dtypes = {str(x.dtype) for x in (queries, keys, values)}
  if implementation == 'cudnn' and backend != 'gpu':
    return f'needs a GPU: {backend}'
  if implementation == 'splash' and backend == 'gpu':
    return f'needs a TPU, or a CPU to be interpreted on: {backend}'
  if slopes is not None:
    return 'has no ALiBi: slopes must be None'
  known = {'float16', 'bfloat16'} if implementation == 'cudnn' else {
      'float16', 'bfloat16', 'float32'}
  if len(dtypes) > 1 or not dtypes <= known:
    return f'needs one dtype of {", ".join(sorted(known))}: {", ".join(sorted(dtypes))}'
  if implementation == 'cudnn' and (width % 8 or width > 128):
    return f'needs a width that is a multiple of 8, up to 128: {width}'
  return None


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


def _chunked(queries, keys, values, slopes, positions):
  batch, length, _, width = queries.shape
  groups = (keys.shape[2], queries.shape[2] // keys.shape[2])
  output = chunked_attention(
      queries.reshape(batch, length, *groups, width).transpose(0, 2, 3, 1, 4),
      keys.swapaxes(1, 2),
      values.swapaxes(1, 2),
      None if slopes is None else slopes.reshape(groups),
      None if positions is None else jnp.atleast_2d(positions),
  )
  return output.transpose(0, 3, 1, 2, 4).reshape(queries.shape)


def _splash(queries, keys, values):
  # Imported here, where it is needed: it takes a while.
  from jax.experimental.pallas.ops.tpu import splash_attention

  length, heads, width = queries.shape[1:]
  # Padding stands after all tokens, where none of them looks.
  padding = (0, -length % _SPLASH_BLOCKS[-1])
  whole = length + padding[1]
  block = next(x for x in _SPLASH_BLOCKS if whole % x == 0)
  mask = splash_attention.CausalMask((whole, whole))
  kernel = splash_attention.make_splash_mha_single_device(
      splash_attention.MultiHeadMask([mask] * heads),
      block_sizes=splash_attention.BlockSizes(
          block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block,
          block_q_dq=block, block_kv_dq=block,
      ),
      interpret=jax.default_backend() == 'cpu',
  )
  heads_first = lambda x: jnp.pad(x.swapaxes(1, 2), [(0, 0), (0, 0), padding, (0, 0)])
  scaled = queries * jnp.asarray(width**-0.5, queries.dtype)
  output = jax.vmap(kernel)(*map(heads_first, (scaled, keys, values)))
  return output[:, :, :length].swapaxes(1, 2)
