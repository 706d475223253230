"""Random tokens with a given cosine: two samplers that give scores of the same law.

  x_i = ε_i + √(α / (1 − α)) u,   ε_i and the shared u from N(0, I/d)

Two such tokens have the cosine α, the anisotropy, in the limit of large d (arXiv
2509.21042, section 4). `draw_tokens` draws them directly, from (n + 1)×d normals.

The stack depends on its input only through the products of its rows; with LayerNorm,
of its rows minus their means. That Gram matrix is Wishart, with d − 1 degrees of
freedom (d without LayerNorm) and scale (I + α / (1 − α) 11ᵀ) / d. `draw_factor` draws
n×n rows with such a Gram matrix: C L, where C Cᵀ is the scale and L is Bartlett's
factor, lower triangular, with standard normals below the diagonal and, on the diagonal
in row i, the root of a χ² with d − i degrees of freedom (d − i + 1 without LayerNorm).
Its cost does not depend on d, and the law of all scores is the same.

Axes: n tokens, d width; simulations are last.
"""

from collections.abc import Callable
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from vvlen.models.kernels.stages import stage

# Just above the largest number that jax.random.normal returns in float64.
_LARGEST_NORMAL = 8.3
_DEGREE = 48


def draw_tokens(
    key: jax.Array, count: int, num_tokens: int, width: int, anisotropy: jax.Array
) -> jax.Array:
  """Returns tokens [n, d, count], of the dtype of the anisotropy [], α in [0, 1)."""
  shape = num_tokens + 1, width, count
  normal = _normal(key, shape, anisotropy.dtype)
  shared = jnp.sqrt(anisotropy / (1 - anisotropy)) * normal[:1]
  return (normal[1:] + shared) / math.sqrt(width)


@functools.cache
def tokens_of(num_tokens: int, width: int) -> Callable[..., jax.Array]:
  """Returns `draw_tokens` of fixed sizes, (key, count, anisotropy) -> tokens."""
  return lambda key, count, anisotropy: draw_tokens(
      key, count, num_tokens, width, anisotropy
  )


def draw_factor(
    key: jax.Array, count: int, mixing: jax.Array, polynomials: jax.Array
) -> jax.Array:
  """Returns rows [n, n, count] with the products of n tokens.

  Args:
    key: a PRNG key.
    count: the number of simulations.
    mixing: C [n, n], from `factor_law`.
    polynomials: [n, 49], for the diagonal of L, from `factor_law`.
  """
  num_tokens = len(mixing)
  shape = num_tokens * (num_tokens + 1) // 2, count
  normal = _normal(key, shape, mixing.dtype)
  diagonal = roots_of_chi_square(normal[:num_tokens], polynomials)
  # All numbers of L, and a zero for those above its diagonal.
  numbers = jnp.concatenate([diagonal, normal[num_tokens:], jnp.zeros_like(normal[:1])])
  place = np.full((num_tokens, num_tokens), len(numbers) - 1)
  np.fill_diagonal(place, range(num_tokens))
  place[np.tril_indices(num_tokens, -1)] = np.arange(num_tokens, len(numbers) - 1)
  return jnp.einsum(
      'ij,jks->iks', mixing, numbers[place], precision=jax.lax.Precision.HIGHEST
  )


def factor_law(
    num_tokens: int, width: int, anisotropy: float, layer_norm: bool
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the arguments `mixing` and `polynomials` of `draw_factor`, float64.

  Raises:
    ValueError: if the Gram matrix of so many tokens does not have full rank.
  """
  least = num_tokens + int(layer_norm)
  if width < least:
    raise ValueError(
        f"sampler='reduced' needs a width of at least {least} for {num_tokens} tokens"
        f"{' with LayerNorm' if layer_norm else ''}: {width}; sampler='direct' "
        'supports any'
    )
  freedom = width - int(layer_norm) - np.arange(num_tokens, dtype=np.float64)
  scale = np.eye(num_tokens) + anisotropy / (1 - anisotropy)
  return np.linalg.cholesky(scale / width), polynomials_of(freedom)


def polynomials_of(freedom: np.ndarray) -> np.ndarray:
  """Returns polynomials that turn a normal variable into the root of a χ² variable.

  x ↦ F⁻¹(Φ(x)), F being the distribution function of that root, is so smooth that a
  polynomial is within 4e-7 of it with one degree of freedom, 5e-9 with two, 2e-10 with
  three and 1e-12 from five to 10⁵, at all x that a normal variable of float64 takes.
  (With one degree it may be that far below 0; the sign cancels in products of rows.)
  Unlike rejection sampling, it needs no loop.

  Args:
    freedom: [n], degrees of freedom, at least 1. From 10⁶ on, scipy's inverses are
      accurate to 4e-9 or worse.

  Returns:
    [n, 49], float64: coefficients of Chebyshev polynomials of x / 8.3.
  """
  nodes = np.polynomial.chebyshev.chebpts1(2 * _DEGREE)
  x = nodes * _LARGEST_NORMAL
  half = freedom[:, None] / 2
  # From the nearer tail, so that no digits are lost.
  square = 2 * np.where(
      x < 0, special.gammaincinv(half, special.ndtr(x)),
      special.gammainccinv(half, special.ndtr(-x)),
  )
  return np.polynomial.chebyshev.chebfit(nodes, np.sqrt(square).T, _DEGREE).T


@stage
def roots_of_chi_square(normal: jax.Array, polynomials: jax.Array) -> jax.Array:
  """Turns standard normals into roots of χ² variables.

  Args:
    normal: [n, ...], float32 or float64.
    polynomials: [n, 49], from `polynomials_of`, of that dtype; one for each row.
  """
  t = normal / _LARGEST_NORMAL
  coefficients = jnp.expand_dims(polynomials.T, (*range(2, 1 + normal.ndim),))
  last = before = jnp.zeros_like(normal)
  for c in coefficients[:0:-1]:  # Clenshaw's recurrence
    last, before = c + 2 * t * last - before, last
  return coefficients[0] + t * last - before


def _normal(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
  # A chunk is drawn on one device, so its random numbers need not be partitionable,
  # which would take twice the time. As the flag is set here, the numbers do not depend
  # on how it is set outside.
  with jax.threefry_partitionable(False):
    return stage(lambda key: jax.random.normal(key, shape, dtype))(key)
