"""Random tokens with a given cosine between them: two samplers of one law.

  x_i = ε_i + √(α / (1 − α)) u,   ε_i and the shared u from N(0, I/d)

Two such tokens have the cosine α, the anisotropy, in the limit of large d (arXiv
2509.21042, section 4). `draw_tokens` draws them as they are, n×d normals.

The stack sees its input through the products of its rows alone, with LayerNorm through
those of its rows minus their means. That Gram matrix is Wishart, with d − 1 degrees of
freedom (d without LayerNorm) and scale (I + α / (1 − α) 11ᵀ) / d. `draw_factor` draws
n×n rows that have it: C L, where C Cᵀ is the scale and L is Bartlett's factor, lower
triangular, with standard normals below the diagonal and, on it in row i, the root of a
χ² with d − i degrees of freedom (d − i + 1 without LayerNorm). Its cost does not depend
on d, and the law of all scores is the same.

Axes: n tokens, d width; simulations are last.
"""

from collections.abc import Callable
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np


def draw_tokens(
    key: jax.Array, count: int, num_tokens: int, width: int, anisotropy: jax.Array
) -> jax.Array:
  """Returns tokens [n, d, count], of the dtype of the anisotropy [], α in [0, 1)."""
  own_key, shared_key = jax.random.split(key)
  dtype = anisotropy.dtype
  own = jax.random.normal(own_key, (num_tokens, width, count), dtype)
  shared = jax.random.normal(shared_key, (1, width, count), dtype)
  mixed = own + jnp.sqrt(anisotropy / (1 - anisotropy)) * shared
  return mixed / math.sqrt(width)


@functools.cache
def tokens_of(num_tokens: int, width: int) -> Callable[..., jax.Array]:
  """Returns `draw_tokens` of fixed sizes, (key, count, anisotropy) -> tokens."""
  return lambda key, count, anisotropy: draw_tokens(
      key, count, num_tokens, width, anisotropy
  )


def draw_factor(
    key: jax.Array, count: int, mixing: jax.Array, freedom: jax.Array
) -> jax.Array:
  """Returns rows [n, n, count] with the products of n tokens.

  Args:
    key: a PRNG key.
    count: of simulations.
    mixing: C [n, n], from `factor_law`.
    freedom: [n], the degrees of freedom of each row, at least 1, falling by 1.
  """
  normal_key, chi_key = jax.random.split(key)
  num_tokens = len(freedom)
  normal = jax.random.normal(
      normal_key, (num_tokens * (num_tokens - 1) // 2, count), mixing.dtype
  )
  diagonal = draw_chi(chi_key, count, freedom)
  rows = []
  for i in range(num_tokens):
    start = i * (i - 1) // 2
    zeros = jnp.zeros((num_tokens - i - 1, count), mixing.dtype)
    below = normal[start : start + i]
    rows.append(jnp.concatenate([below, diagonal[i : i + 1], zeros]))
  return jnp.einsum(
      'ij,jks->iks', mixing, jnp.stack(rows), precision=jax.lax.Precision.HIGHEST
  )


def factor_law(
    num_tokens: int, width: int, anisotropy: float, layer_norm: bool
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the arguments `mixing` and `freedom` of `draw_factor`, float64.

  Raises:
    ValueError: if the Gram matrix of so many tokens has no full rank.
  """
  freedom = width - int(layer_norm) - np.arange(num_tokens, dtype=np.float64)
  if freedom[-1] < 1:
    least = num_tokens + int(layer_norm)
    raise ValueError(
        f"sampler='reduced' needs a width of at least {least} for {num_tokens} tokens"
        f"{' with LayerNorm' if layer_norm else ''}: {width}; sampler='direct' serves "
        'any'
    )
  scale = np.eye(num_tokens) + anisotropy / (1 - anisotropy)
  return np.linalg.cholesky(scale / width), freedom


def draw_chi(key: jax.Array, count: int, freedom: jax.Array) -> jax.Array:
  """Returns roots of χ² variables [n, count], one row for each of `freedom` [n].

  By the rejection method of Marsaglia and Tsang (2000), for all at once until none is
  rejected, which is twice or thrice: some 20 times as fast as `jax.random.chisquare`,
  which has a loop and a key for each.

  Args:
    key: a PRNG key.
    count: of variables a row.
    freedom: [n], different whole numbers of at least 1, float32 or float64.
  """
  shape = (len(freedom), count)
  try_key, uniform_key = jax.random.split(key)
  # χ₁ = χ₃ U, as the method needs at least two degrees of freedom.
  one = freedom[:, None] == 1
  third = jnp.where(one, 1.5, freedom[:, None] / 2) - 1 / 3

  def attempt(state):
    number, root, accepted = state
    normal_key, accept_key = jax.random.split(jax.random.fold_in(try_key, number))
    t = jax.random.normal(normal_key, shape, freedom.dtype) / jnp.sqrt(9 * third)
    uniform = jax.random.uniform(accept_key, shape, freedom.dtype)
    # In this form nothing large cancels, at any number of degrees of freedom.
    log_ratio = third * (1.5 * t**2 - t**3 - 3 * (t - jnp.log1p(t)))
    accept = (t > -1) & (jnp.log(uniform) < log_ratio)
    root = jnp.where(accepted, root, jnp.sqrt(2 * third * (1 + t) ** 3))
    return number + 1, root, accepted | accept

  start = (0, jnp.zeros(shape, freedom.dtype), jnp.zeros(shape, bool))
  _, root, _ = jax.lax.while_loop(lambda state: ~state[2].all(), attempt, start)
  uniform = 1 - jax.random.uniform(uniform_key, (1, count), freedom.dtype)  # not 0
  return root * jnp.where(one, uniform, 1.0)
