"""Initial weights of a Llama: kernels, and embeddings that have something in common."""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

INIT = nn.initializers.normal(0.02)


def init_kernel(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
  """Draws a kernel [inputs, outputs], normal with a standard deviation of 0.02.

  Draws [outputs, inputs] and transposes it, so that a seed has the same initial weights
  as in earlier versions.
  """
  return INIT(key, shape[::-1], dtype).T


def around_common_vector(std: float, common: float) -> nn.initializers.Initializer:
  r"""Returns an initializer of vectors v_i = c + u_i, u_i ~ N(0, std² I).

  The vector c ~ N(0, (common · std)² I) is the same for all i. It is there for
  attention to distances. A logit is qᵢ · R(i − j) kⱼ with q = W_q x and k = W_k x,
  without biases: a head whose weights depend on i − j alone, whatever the tokens are,
  needs a part of x that all tokens have. Heads that attend to the token before are one
  half of the circuit that looks things up in the context (Olsson et al. (2022),
  arXiv 2209.11895). In trials of one seed with two layers of width 64, phrases that the
  context has were completed after 3,000 steps with common = 1 or 2 (57 and 76 % of the
  last words), and not after 4,000 with 0 (none); with 4, on another text, not after
  2,500.

  Args:
    std: of each component around the common vector.
    common: the standard deviation of the common vector's components, in units of std;
      0: the same as `nn.initializers.normal(std)`.
  """
  normal = nn.initializers.normal(std)
  if not common:
    return normal

  def init(key, shape, dtype=jnp.float32):
    own, shared = jax.random.split(key)
    return normal(own, shape, dtype) + common * normal(shared, (1, *shape[1:]), dtype)

  return init
