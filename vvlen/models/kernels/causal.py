"""Causal attention with many heads, by the fastest implementation for the device.

  o_i = Σ_{j ≤ i} a_ij v_j,   a_i = softmax over j ≤ i of q_i·k_j / √d − m (p_i − p_j)

The last term is ALiBi's (arXiv 2108.12409): m is the slope of a head, p are positions.
As in grouped-query attention (arXiv 2305.13245), queries may have more heads than keys
and values: then consecutive groups of h/k query heads share one key head.

Implementations:

  plain    `vvlen.models.kernels.dense`: computes all logits at once; the only one with
           second derivatives
  chunked  `vvlen.models.kernels.blockwise`: memory grows like n
  cudnn    NVIDIA's kernel, for float16 and bfloat16
  splash   JAX's kernel for TPUs; on a CPU it is interpreted, for tests only. The TPU
           rounds the factors of its float32 products to bfloat16. XLA cannot partition
           it: on several devices, call it inside jax.shard_map

Axes: B sequences, n tokens, h query heads, k key heads, d width of a head.
"""

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from vvlen.models.kernels.blockwise import chunked_attention
from vvlen.models.kernels.dense import Alibi, floating, masked_attention
from vvlen.sharding import platform

IMPLEMENTATIONS = ('plain', 'chunked', 'cudnn', 'splash')

# From this length on, 'chunked' is faster than 'plain'. On a busy CPU, with 4 heads and
# gradients, 'plain' and 'chunked' took 53 and 59 ms for 8 sequences of 256 tokens, 195
# and 106 ms for 8 of 512, and 1670 and 310 ms for one of 2048.
_LONG = 512
# Tokens per block of the splash kernel; the first that divides the padded length.
_SPLASH_BLOCKS = (512, 256, 128)


def causal_attention(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    slopes: ArrayLike | None = None,
    positions: ArrayLike | None = None,
    implementation: str | None = None,
) -> jax.Array:
  """Attends from every token to itself and all earlier ones.

  Logits, weights and sums are float32 for narrower inputs.

  Args:
    queries: [B, n, h, d].
    keys: [B, n, k, d]; k divides h.
    values: [B, n, k, d].
    slopes: [h], ALiBi's, positive for a bias to near keys; None for no bias. They are
      constants: their gradient is zero.
    positions: [n] or [B, n], of the tokens, for the bias alone; 0, 1, … if None. The
      causal mask depends on the order of tokens in the array, not on positions.
    implementation: one of `IMPLEMENTATIONS`; None chooses by length, dtype and device:
      'plain' below 512 tokens; from 512 on 'cudnn' or 'splash' for 16-bit floats where
      they run ('splash' on one device, or inside shard_map over all axes of a mesh),
      otherwise 'chunked'.

  Returns:
    The output [B, n, h, d], of the dtype of the values if that is a float.

  Raises:
    ValueError: if shapes do not fit, the inputs are complex, or the implementation is
      unknown or does not support these inputs or this device.
  """
  queries, keys, values, slopes, positions = check_inputs(
      queries, keys, values, slopes, positions
  )
  if implementation is None:
    implementation = _choose(queries, keys, values, slopes)
  elif implementation not in IMPLEMENTATIONS:
    raise ValueError(
        f'implementation must be one of {", ".join(IMPLEMENTATIONS)}: '
        f'{implementation!r}'
    )
  refused = _refusal(implementation, queries, keys, values, slopes)
  if refused is not None:
    raise ValueError(f'implementation {implementation!r} {refused}')
  if implementation == 'cudnn':
    return jax.nn.dot_product_attention(
        queries, keys, values, is_causal=True, implementation='cudnn'
    )
  if implementation == 'splash':
    return _splash(queries, keys, values)
  if implementation == 'chunked':
    return chunked_attention(queries, keys, values, slopes, positions)
  return _plain(queries, keys, values, slopes, positions)


def check_inputs(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    slopes: ArrayLike | None = None,
    positions: ArrayLike | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None, jax.Array | None]:
  """Returns the arguments as arrays; queries, keys and values as floats.

  Raises:
    ValueError: if shapes do not fit or the inputs are complex.
  """
  queries, keys, values = map(floating, (queries, keys, values))
  for name, x in (('queries', queries), ('keys', keys), ('values', values)):
    if x.ndim != 4 or 0 in x.shape:
      raise ValueError(f'{name} must be [B, n, heads, d], all positive: {x.shape}')
  if keys.shape != values.shape:
    raise ValueError(f'keys {keys.shape} and values {values.shape} differ in shape')
  batch, num_keys, key_heads, width = keys.shape
  if (*queries.shape[:2], queries.shape[3]) != (batch, num_keys, width):
    raise ValueError(f'queries {queries.shape} do not fit keys {keys.shape}')
  if queries.shape[2] % key_heads:
    raise ValueError(
        f'{queries.shape[2]} query heads are not a multiple of {key_heads} key heads'
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
  return queries, keys, values, slopes, positions


def _choose(queries, keys, values, slopes):
  """Returns the name of the implementation that is fastest."""
  if queries.shape[1] < _LONG:
    return 'plain'
  kernel = {'gpu': 'cudnn', 'tpu': 'splash'}.get(platform.target())
  narrow = jnp.result_type(queries, keys, values).itemsize == 2
  if kernel is None or not narrow:
    return 'chunked'
  if kernel == 'splash' and not _on_one_device():
    return 'chunked'
  refused = _refusal(kernel, queries, keys, values, slopes)
  return kernel if refused is None else 'chunked'


def _on_one_device():
  """Whether there is one device, or this runs inside a shard_map over all axes."""
  mesh = jax.sharding.get_abstract_mesh()
  inside = bool(mesh.axis_names) and set(mesh.axis_names) == set(mesh.manual_axes)
  return platform.num_devices() == 1 or inside


def _refusal(implementation, queries, keys, values, slopes):
  """Returns why an implementation does not support the inputs; None if it does."""
  if implementation in ('plain', 'chunked'):
    return None
  backend, width = platform.target(), queries.shape[-1]
  dtypes = {str(x.dtype) for x in (queries, keys, values)}
  if implementation == 'cudnn' and backend != 'gpu':
    return f'needs a GPU: {backend}'
  if implementation == 'splash' and backend == 'gpu':
    return f'needs a TPU, or a CPU, where it is interpreted: {backend}'
  if slopes is not None:
    return 'does not support ALiBi: slopes must be None'
  known = {'float16', 'bfloat16'} if implementation == 'cudnn' else {
      'float16', 'bfloat16', 'float32'}
  if len(dtypes) > 1 or not dtypes <= known:
    return (f'needs one dtype, {" or ".join(sorted(known))}: '
            f'{", ".join(sorted(dtypes))}')
  if implementation == 'cudnn' and (width % 8 or width > 128):
    return f'needs a width that is a multiple of 8, up to 128: {width}'
  return None


def _plain(queries, keys, values, slopes, positions):
  places = jnp.arange(queries.shape[1])
  if positions is None:
    positions = places
  bias = None if slopes is None else Alibi(slopes, positions, positions)
  mask = places[:, None] >= places[None]
  return masked_attention(queries, keys, values, mask, bias).output


def _splash(queries, keys, values):
  # Imported only when needed, since the import is slow.
  from jax.experimental.pallas.ops.tpu import splash_attention

  length, heads, width = queries.shape[1:]
  # Padding comes after all tokens, so none of them attends to it.
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
      interpret=platform.target() == 'cpu',
  )
  heads_first = lambda x: jnp.pad(x.swapaxes(1, 2), [(0, 0), (0, 0), padding, (0, 0)])
  scaled = queries * jnp.asarray(width**-0.5, queries.dtype)
  attend = jax.vmap(kernel)
  if queries.dtype.itemsize == 2:
    attend = _in_one_pass(attend)
  output = attend(*map(heads_first, (scaled, keys, values)))
  return output[:, :, :length].swapaxes(1, 2)


def _in_one_pass(function):
  """Returns the function with jax_default_matmul_precision unset, and its gradient too.

  TPU kernels refuse products of 16-bit floats where this setting asks for more than one
  pass, as it does in experiments.
  """
  once = lambda: jax.default_matmul_precision('default')

  @jax.custom_vjp
  def run(*arrays):
    with once():
      return function(*arrays)

  def forward(*arrays):
    with once():
      return jax.vjp(function, *arrays)

  def backward(pull, gradient):
    with once():
      return pull(gradient)

  run.defvjp(forward, backward)
  return run
