r"""Laws of temperature: β as a function of the number n of keys.

  a = softmax(β(n) z)

with n₀, the longest training length, at which every law starts with β = 1:

  log_n        β = ln n / ln n₀
  ssmax        β = s ln n               s learned, from 1 / ln n₀
  sqrt_log_n   β = s √(2 ln n)          s learned, from 1 / √(2 ln n₀)
  power        β = (n / n₀)^p           p learned, from 0, where β = 1 at every n

Each is a temperature, (logits [..., n], mask, learned scalars) -> β [..., 1], so it
may be given to a trained model as `temperature`, or be trained with, by
`vvlen.models.fixes.tempered.tempered`. n counts the keys that are not masked. Cost: a
logarithm or power for each row, and a product for each logit.

With one key, ln n and so β are 0. Softmax of one logit is still 1. For weights that do
not sum to 1, or logits that are used elsewhere, set `shift` to 1 or 2: then ln(n +
shift) takes the place of ln n, and ln(n₀ + shift) that of ln n₀.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from vvlen.models.attention import Temperature
from vvlen.models.fixes.keys import num_keys


def log_n(longest: float, least: float = 0.0, shift: float = 0.0) -> Temperature:
  """Returns β = max(ln n / ln n₀, least), without learned scalars.

  Qwen's logn attention; EABF, arXiv 2401.07004.

  Args:
    longest: n₀, more than 1.
    least: of β; with 1.0, shorter inputs are left as they are.
    shift: added to n and n₀, as above.

  Raises:
    ValueError: if ln n₀ is not positive.
  """
  scale = 1 / _log(longest, shift)

  def beta(logits: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    return jnp.maximum(scale * jnp.log(num_keys(logits, mask) + shift), least)

  return beta


def ssmax(longest: float, shift: float = 0.0) -> Temperature:
  """Returns β = s ln n, Scalable-Softmax; s is learned and starts at 1 / ln n₀.

  Nakanishi (2025), arXiv 2501.19399, where shift is 0.

  Args:
    longest: n₀, more than 1.
    shift: added to n and n₀, as above.

  Raises:
    ValueError: if ln n₀ is not positive.
  """
  start = 1 / _log(longest, shift)

  def beta(
      logits: jax.Array, mask: jax.Array | None = None, s: float = start
  ) -> jax.Array:
    return s * jnp.log(num_keys(logits, mask) + shift)

  return beta


def sqrt_log_n(longest: float, shift: float = 0.0) -> Temperature:
  """Returns β = s √(2 ln n); s is learned and starts at 1 / √(2 ln n₀).

  √(2 ln n) is, to leading order, the largest of n independent standard Gaussians
  (Leadbetter, Lindgren and Rootzén, 1983, theorem 1.5.3).

  Args:
    longest: n₀, more than 1.
    shift: added to n and n₀, as above.

  Raises:
    ValueError: if ln n₀ is not positive.
  """
  start = 1 / math.sqrt(2 * _log(longest, shift))

  def beta(
      logits: jax.Array, mask: jax.Array | None = None, s: float = start
  ) -> jax.Array:
    return s * jnp.sqrt(2 * jnp.log(num_keys(logits, mask) + shift))

  return beta


def power(longest: float) -> Temperature:
  """Returns β = (n / n₀)^p; p is learned and starts at 0, where β = 1.

  No publication uses it by default. Where the gaps between the largest logits shrink as
  1/n, as at the top of n uniform priorities, the β that keeps half the weight on the
  largest grows as n (`vvlen.evaluation.temperature_law`). To fix β ∝ n without a
  learned scalar, use `functools.partial(power(longest), p=1)`.

  Args:
    longest: n₀, positive.

  Raises:
    ValueError: if n₀ is not positive.
  """
  if not longest > 0:
    raise ValueError(f'longest must be positive: {longest}')

  def beta(
      logits: jax.Array, mask: jax.Array | None = None, p: float = 0.0
  ) -> jax.Array:
    return jnp.exp(p * jnp.log(num_keys(logits, mask) / longest))

  return beta


def log_growth(count: ArrayLike, longest: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns ln(n / n₀) and ln(ln n / ln n₀), both 0 where n is at most n₀.

  With powers p and q that were found elsewhere, such as by
  `vvlen.evaluation.temperature_law`, e^(p x) and e^(q x) are laws of temperature that
  leave inputs of up to n₀ keys as they are.

  Args:
    count: n [...], positive.
    longest: n₀, at least 2.

  Returns:
    Two arrays [...], float64.

  Raises:
    ValueError: if n₀ is less than 2.
  """
  if longest < 2:
    raise ValueError(f'longest must be at least 2: {longest}')
  logs = np.log(np.maximum(np.asarray(count, float), longest))
  of_longest = math.log(longest)
  return logs - of_longest, np.log(logs / of_longest)


def _log(longest: float, shift: float) -> float:
  """Returns ln(n₀ + shift)."""
  if not (longest + shift > 1 and shift >= 0):
    raise ValueError(f'longest + shift must be more than 1, and shift not negative: '
                     f'{longest}, {shift}')
  return math.log(longest + shift)
