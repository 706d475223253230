r"""Which temperature does attention need, so that its weight stays on one key?

For a query with logits z, key t has the weight

  w(β) = 1 / (1 + Σ_{j≠t} exp(β d_j)),   d_j = z_j − z_t

at inverse temperature β. With g(β) = log Σ_{j≠t} exp(β d_j), w(β) ≥ w₀ where
g(β) ≤ log(1/w₀ − 1). g is convex, so these β form an interval. Newton's method on g,
started at β = 0, never passes its lower end: tangents lie below a convex function.

A task, or an attention head, needs a temperature that grows with the number n of keys
as this lower end does. For half of the weight, with L = log n, of many keys:

  n equal gaps Δ                                     β = L / Δ
  the top of n uniform priorities                    β ∝ n
  one match of logit m among n Gaussians N(0, σ²)    β = (m − √(m² − 2σ²L)) / σ²
  the top of n standard Gaussians, median, n → ∞     β = 1.66 √(2L)

Log n: Nakanishi (2025), arXiv 2501.19399; gaps: arXiv 2605.12697. One match among
Gaussians needs between 1 and 2 times L / m, since Σ exp(β z_j) is close to
n exp(β²σ²/2). That is ∝ L if σ² falls as 1/L, and nearly so if 2σ²L is small beside m².
With fixed m and σ no β is enough once L > m²/2σ², as the largest Gaussian is about
σ√(2L); with m ∝ √L, β grows as √L. At the top of Gaussians, β grows as √L, slower than
log n: the gaps, times √(2L), become those of a Poisson process of density e^−x, whose
first point has more than half of the weight at β = b√(2L) with probability
b sin(π/b)/π, one half at b = 1.66. At a thousand keys this is a fifth too high; 1.66
times the level that one of n Gaussians exceeds is 3 % off.

`exponents` fits β ∝ n^p and β ∝ (log n)^q: a task whose q is 1 needs log n.
"""

from collections.abc import Sequence
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
import numpy as np
from numpy.typing import ArrayLike

from vvlen.evaluation.attention_spread import fit, Slope
from vvlen.statistics import resamples

_MOST_STEPS = 200
_MOST_UNKNOWN = 0.01  # share of bootstrap samples without a slope


def critical_temperature(
    logits: jax.Array,
    target: jax.Array | None = None,
    weight: float = 0.5,
    mask: jax.Array | None = None,
) -> jax.Array:
  """Returns the least inverse temperature at which a key has a given weight.

  Args:
    logits: z [..., n], already scaled, for example by 1/√d.
    target: t [...], integers in 0..n−1; None: the key with the largest logit.
    weight: w₀, in (0, 1).
    mask: bool, True where there is a key, of a shape that broadcasts to [..., n]; None:
      everywhere.

  Returns:
    β [...], float32, or float64 where the logits are; at least 0. It is 0 where uniform
    weights are enough, because there are few keys, and inf where no β is enough:
    another key has a larger logit, or too many have an equal one.

  Raises:
    ValueError: if shapes or dtypes do not fit or the weight is not in (0, 1); and,
      outside jit, if a logit that counts is not finite, or a target is no key.
  """
  logits = jnp.asarray(logits)
  if logits.ndim < 1 or not logits.size or not jnp.issubdtype(
      logits.dtype, jnp.floating):
    raise ValueError(f'logits must be real, [..., n]: {logits.dtype}{logits.shape}')
  if not 0 < weight < 1:
    raise ValueError(f'the weight must be between 0 and 1: {weight}')
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  there = _keys(logits, mask)
  if target is None:
    target = jnp.where(there, logits, -jnp.inf).argmax(-1)
  target = jnp.asarray(target)
  if target.shape != logits.shape[:-1] or not jnp.issubdtype(
      target.dtype, jnp.integer):
    raise ValueError(f'target must be integers, {logits.shape[:-1]}: '
                     f'{target.dtype}{target.shape}')
  places = jax.lax.broadcasted_iota(target.dtype, logits.shape, logits.ndim - 1)
  own = places == target[..., None]
  if not isinstance(own, jax.core.Tracer) and not isinstance(there, jax.core.Tracer):
    if not (own & there).any(-1).all():
      raise ValueError(f'target is no key in 0..{logits.shape[-1] - 1}, or is masked')
    if not jnp.isfinite(jnp.where(there, logits, 0.0)).all():
      raise ValueError('logits has entries that are not finite')
  gaps = jnp.where(there, logits, 0.0)
  gaps -= jnp.where(own, gaps, 0.0).sum(-1, keepdims=True)
  return _least(gaps, there & ~own, math.log(1 / weight - 1))


class Exponents(NamedTuple):
  """Exponents of β ∝ n^p and β ∝ (log n)^q, each with its 95 % interval."""

  of_n: Slope
  of_log_n: Slope


def exponents(
    lengths: Sequence[int], temperatures: ArrayLike, num_resamples: int = 1000,
    seed: int = 0,
) -> Exponents:
  """Fits the growth of the median inverse temperature with the number of keys.

  p is the slope of log median β against log n, and q that against log log n, both by
  least squares. Lengths where the median is 0 or infinite have no logarithm and are
  left out. Intervals are percentiles of a bootstrap over sequences, the same ones at
  all lengths. In a bootstrap sample, a median may be 0 or infinite at a length that is
  used; then its slope is unknown, and ends are nan if that is so in more than one of
  a hundred samples, which would have to be left out.

  Args:
    lengths: n [N], at least 2, each once.
    temperatures: β [S, N] of S sequences, as `critical_temperature` returns; at least
      0, may be infinite.
    num_resamples: of the bootstrap; 0: ends are nan.
    seed: of the bootstrap.

  Returns:
    nan where fewer than two lengths are left.

  Raises:
    ValueError: if shapes do not fit, or a length is below 2 or there twice.
  """
  sizes, beta = np.asarray(lengths, float), np.asarray(temperatures, float)
  if beta.ndim != 2 or sizes.shape != beta.shape[1:] or not len(beta):
    raise ValueError(f'temperatures must be [S, {len(sizes)}]: {beta.shape}')
  if (sizes < 2).any() or len({*sizes.tolist()}) < len(sizes):
    raise ValueError(f'lengths must be at least 2, each once: {list(lengths)}')
  medians = np.median(beta[resamples.places(len(beta), num_resamples, seed)], axis=1)
  there = (medians[0] > 0) & np.isfinite(medians[0])
  if there.sum() < 2:
    unknown = Slope(math.nan, math.nan, math.nan)
    return Exponents(unknown, unknown)
  sizes, medians = sizes[there], medians[:, there]
  known = ((medians > 0) & np.isfinite(medians)).all(axis=1)
  if known.mean() < 1 - _MOST_UNKNOWN:
    known[1:] = False  # the first row is of all sequences
  kept = medians[known]
  return Exponents(fit(sizes, kept), fit(np.log(sizes), kept))


def powers_of(lengths: Sequence[int], temperatures: ArrayLike) -> np.ndarray:
  """Returns p and q of several models, [M, 2], by `exponents`, without intervals.

  Args:
    lengths: n [N], as in `exponents`.
    temperatures: β [M, S, N] of S sequences.
  """
  laws = [exponents(lengths, own, num_resamples=0) for own in np.asarray(temperatures)]
  return np.array([[law.of_n.slope, law.of_log_n.slope] for law in laws])


def _keys(logits, mask):
  """Returns where there is a key, [..., n] bool."""
  if mask is None:
    return jnp.ones(logits.shape, bool)
  mask = jnp.asarray(mask)
  fits = jnp.broadcast_shapes(mask.shape, logits.shape) == logits.shape
  if mask.dtype != bool or not fits:
    raise ValueError(f'mask must be bool and broadcast to {logits.shape}: '
                     f'{mask.dtype}{mask.shape}')
  return jnp.broadcast_to(mask, logits.shape)


@jax.jit
def _least(gaps, others, level):
  """Returns the least β with log Σ exp(β gaps) ≤ level, over the others [..., n]."""
  count = others.sum(-1)
  # A key with the target's own logit adds exp(0) = 1 to the sum at any β, so g stays
  # above the log of their number, and reaches it only if there are no other keys.
  ties = (others & (gaps == 0)).sum(-1)
  larger = (others & (gaps > 0)).any(-1)
  least = jnp.log(jnp.maximum(ties, 1).astype(gaps.dtype))
  never = ~larger & (ties > 0) & (least >= level)

  def at(beta):
    exponents = jnp.where(others, beta[..., None] * gaps, -jnp.inf)
    total = logsumexp(exponents, axis=-1)
    shares = jnp.exp(exponents - total[..., None])
    return total - level, jnp.where(others, shares * gaps, 0.0).sum(-1)

  def is_under_way(carry):
    step, _, moves = carry
    return (step < _MOST_STEPS) & moves.any()

  def newton(carry):
    step, beta, moves = carry
    above, slope = at(beta)
    falls = slope < 0
    # Where g no longer falls it never comes down to the level: β is infinite.
    new = jnp.where(falls, beta - above / jnp.where(falls, slope, -1.0), jnp.inf)
    moves &= (above > 0) & (new > beta)
    beta = jnp.where(moves, new, beta)
    return step + 1, beta, moves & jnp.isfinite(beta)

  begins = jnp.log(jnp.maximum(count, 1).astype(gaps.dtype)) > level
  moves = (count > 0) & begins
  beta = jnp.zeros(gaps.shape[:-1], gaps.dtype)
  _, beta, _ = jax.lax.while_loop(is_under_way, newton, (0, beta, moves & ~never))
  return jnp.where(moves & never, jnp.inf, beta)
