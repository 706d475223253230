"""Variants of the causal stack's layer, each with one change.

The changes, which arXiv 2509.21042 does not study, are RMSNorm, several heads, rotary
positions, and attention without the mask. Each variant returns a `Layer` of
`vvlen.models.causal_stack`, with batch axes last, and can be simulated by
`vvlen.simulation.simulate`.

Axes: n tokens, d width, h heads.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vvlen.models.causal_stack import Layer, self_attend
from vvlen.models.norm import standardize

_HIGHEST = jax.lax.Precision.HIGHEST


def rms_norm_layer(x: jax.Array, residual: jax.Array) -> Layer:
  """One layer with RMSNorm (arXiv 1910.07467), Z = X / √(mean of X² over a row).

  Args:
    x: [n, d, ...], float32 or float64; a row of zeros gives nan.
    residual: c [].
  """
  z = x * jax.lax.rsqrt(jnp.square(x).mean(1, keepdims=True))
  return _add_residual(self_attend(z, z, z), residual, x)


def unmasked_layer(x: jax.Array, residual: jax.Array) -> Layer:
  """One layer with LayerNorm in which every token attends to all tokens.

  Args:
    x: [n, d, ...], float32 or float64; a row of equal entries gives nan.
    residual: c [].
  """
  z = standardize(x, axis=1, epsilon=0.0)
  return _add_residual(self_attend(z, z, z, causal=False), residual, x)


class Heads(NamedTuple):
  """Projections of h heads, each [d, h, d/h], orthogonal as [d, d] matrices."""

  query: jax.Array
  key: jax.Array
  value: jax.Array


def random_heads(
    key: jax.Array, width: int, num_heads: int, tied: bool, dtype: Any = jnp.float32
) -> Heads:
  """Returns random orthogonal projections.

  Args:
    key: a PRNG key.
    width: d, a multiple of the number of heads.
    num_heads: h.
    tied: whether the queries and keys of a head share one projection, so that a token's
      query is most similar to its own key. With one head this is the paper's stack:
      the orthogonal projections cancel.
    dtype: float32 or float64.

  Raises:
    ValueError: if the number of heads does not divide the width.
  """
  if num_heads < 1 or width % num_heads:
    raise ValueError(f'{num_heads} heads do not divide a width of {width}')
  query, other, value = (
      jax.random.orthogonal(k, width, dtype=dtype).reshape(width, num_heads, -1)
      for k in jax.random.split(key, 3)
  )
  return Heads(query, query if tied else other, value)


def heads_layer(x: jax.Array, residual: jax.Array, heads: Heads) -> Layer:
  """One layer of h heads: Σ_h softmax(Z Q_h (Z K_h)ᵀ / √(d/h)) Z V_h V_hᵀ + c X.

  The heads are those of arXiv 1706.03762. The output projection is the transposed value
  projection, so that a token that attends to itself alone gets its own row of Z.

  Args:
    x: [n, d, ...], float32 or float64.
    residual: c [].
    heads: the projections, of the width d.

  Returns:
    A `Layer` whose scores and weights are [n, n, h, ...].
  """
  z = standardize(x, axis=1, epsilon=0.0)
  query, key, value = (
      jnp.einsum('dhk,nd...->nkh...', w, z, precision=_HIGHEST) for w in heads
  )
  attended = self_attend(query, key, value)
  output = jnp.einsum(
      'dhk,nkh...->nd...', heads.value, attended.output, precision=_HIGHEST
  )
  return _add_residual(attended._replace(output=output), residual, x)


def rotary_layer(
    x: jax.Array, residual: jax.Array, base: jax.Array, causal: bool = True
) -> Layer:
  """One layer with rotary positions (arXiv 2104.09864).

  Queries and keys are rotated, values are not.

  Args:
    x: [n, d, ...], d even, float32 or float64.
    residual: c [].
    base: [], positive; the k-th pair is rotated by base^{−2k/d} per position.
    causal: False attends to all tokens.

  Raises:
    ValueError: if d is odd.
  """
  z = standardize(x, axis=1, epsilon=0.0)
  turned = rotate(z, base)
  return _add_residual(self_attend(turned, turned, z, causal=causal), residual, x)


def _add_residual(attended: Layer, residual: jax.Array, x: jax.Array) -> Layer:
  return attended._replace(output=attended.output + residual * x)


def rotate(x: jax.Array, base: jax.Array) -> jax.Array:
  """Rotates features k and k + d/2 of the row at position i by i · base^{−2k/d}.

  Args:
    x: [n, d, ...], d even.
    base: [], positive.

  Returns:
    [n, d, ...]. The product of two rows depends on their positions only through the
    difference.

  Raises:
    ValueError: if d is odd.
  """
  num_tokens, width = x.shape[:2]
  if width % 2:
    raise ValueError(f'rotary positions need an even width: {width}')
  half = width // 2
  rate = jnp.asarray(base, x.dtype) ** (-jnp.arange(half, dtype=x.dtype) / half)
  angle = jnp.arange(num_tokens, dtype=x.dtype)[:, None] * rate[None]
  angle = jnp.expand_dims(angle, (*range(2, x.ndim),))
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  left, right = x[:, :half], x[:, half:]
  return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=1)
