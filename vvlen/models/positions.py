"""Positional encodings of the decoder.

Token m has the position p_m, by default p_m = m = 0, 1, 2, …

  none        only the causal mask (NoPE)
  learned     row p_m of a trained table is added to the embedding
  sinusoidal  PE(p, 2i) = sin(p / b^{2i/d}), PE(p, 2i + 1) = cos(p / b^{2i/d}) is added
              (arXiv 1706.03762, section 3.5)
  alibi       −s_h (p_i − p_j) is added to the logits of head h (arXiv 2108.12409)
  rope        queries and keys are rotated by p_m b^{−2i/d} in the plane of features i
              and i + d/2, paired as in Llama (arXiv 2104.09864), so that positions
              affect their product through p_i − p_j alone
  random      rope at sorted positions drawn without replacement from 0..max − 1 for
              each forward pass, in training and test (RandomPos, arXiv 2305.16843)

Axes: n tokens, h heads, d width (of a head, for rope); leading axes are batch axes.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vvlen.models.rope import rotate_by

KINDS = ('none', 'learned', 'sinusoidal', 'alibi', 'rope', 'random')
BASE = 10_000.0


def sinusoidal(
    positions: jax.Array, width: int, base: float = BASE, dtype: Any = jnp.float32
) -> jax.Array:
  """Returns sine and cosine features of positions.

  Args:
    positions: [..., n].
    width: d, even.
    base: b.
    dtype: float32 or float64.

  Returns:
    [..., n, d].

  Raises:
    ValueError: if d is odd.
  """
  angles = _angles(positions, width, base, dtype)
  pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
  return pairs.reshape(*angles.shape[:-1], width)


def alibi_slopes(num_heads: int) -> np.ndarray:
  """Returns the slopes s_h of ALiBi, [h] float64.

  They are 2^{−8k/h}, k = 1..h, if h is a power of two. Otherwise they are the slopes of
  the power of two below h, followed by every other slope of the power of two above.

  Raises:
    ValueError: if num_heads is not positive.
  """
  if num_heads < 1:
    raise ValueError(f'num_heads must be positive: {num_heads}')
  geometric = lambda count: 2.0 ** (-8 * np.arange(1, count + 1) / count)
  below = 2 ** int(math.log2(num_heads))
  return np.concatenate([geometric(below), geometric(2 * below)[::2]])[:num_heads]


def rotate(x: jax.Array, positions: jax.Array, base: float = BASE) -> jax.Array:
  """Rotates queries or keys by their positions (RoPE).

  Args:
    x: [..., n, h, d], d even.
    positions: [n], or [..., n] with the batch axes of x.
    base: b.

  Returns:
    An array of the shape and dtype of x, computed in float32 or wider.

  Raises:
    ValueError: if d is odd.
  """
  wide = jnp.promote_types(x.dtype, jnp.float32)
  angles = _angles(positions, x.shape[-1], base, wide)
  return rotate_by(x, jnp.cos(angles), jnp.sin(angles))


def random_positions(key: jax.Array, num_tokens: int, highest: int) -> jax.Array:
  """Draws sorted positions without replacement from 0..highest − 1.

  Args:
    key: a typed PRNG key.
    num_tokens: n.
    highest: number of positions, at least the longest length of any test.

  Returns:
    [n] int32, increasing.

  Raises:
    ValueError: if there are fewer positions than tokens.
  """
  if not 0 < num_tokens <= highest:
    raise ValueError(f'cannot draw {num_tokens} positions from {highest}')
  return jnp.sort(jax.random.permutation(key, highest)[:num_tokens])


def _angles(positions, width, base, dtype):
  """Returns p b^{−2i/d}, [..., n, d/2]."""
  if width % 2:
    raise ValueError(f'these positions need an even width: {width}')
  positions = jnp.asarray(positions).astype(dtype)[..., None]
  rates = jnp.asarray(base ** (-np.arange(0, width, 2) / width), dtype)
  return positions * jnp.expand_dims(rates, range(positions.ndim - 1))
