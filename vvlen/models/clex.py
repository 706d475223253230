"""CLEX: rotary positions whose rates are learned for every length (arXiv 2310.16450).

An input of n tokens is t = ⌈n / L₀⌉ times as long as the L₀ tokens of the model's first
training, t at most 16. The logarithm z of the rates changes with t by

  dz/dt = tanh((z + ζ(t)) W_up) W_down + dζ/dt,   z(1) = ζ(1),
  ζ_i(t) = −(2i/d) ln b − (2i/(d−2)) ln(2t − 1),   i = 0..d/2 − 1,

where ζ are the log rates of NTK with the factor 2t − 1, and ζ(1) those of the model.
One pair W_up [d/2, λd], W_down [λd, d/2] serves all layers. W_up is drawn uniformly
from ±1/√(λd) and W_down is zero, so that training begins with z = ζ.

The code integrates u = z − ζ, for which du/dt = tanh((u + 2 ζ(t)) W_up) W_down and
u(1) = 0, by the classical Runge-Kutta method of order 4 with steps of 0.01. This agrees
with integrating z itself to about 1e-10, the error of the method, and z is exactly ζ
where W_down is zero.

Cost, as multiplications, counted and not timed: 4 λ d² a step, 1e8 for all 1,500 steps
to t = 16 with d = 128 and λ = 1, once for all layers, sequences and tokens of a forward
pass. A forward pass of Llama-2-7B over one sequence of 4,096 tokens has 3e13. The steps
are sequential, so their share of the time is larger than that of the multiplications;
those beyond the largest requested t are skipped. Generation takes them once.

Axes: L tokens, d width of a head, i = 0..d/2 − 1 its planes; leading axes are those of
t or of lengths.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Clex(NamedTuple):
  """Learned rates; the field `stretched` of `vvlen.models.rope.Rope`.

  In the published training script queries are not scaled: log_scale=False. With inputs
  of L₀ tokens, as there, the factor would be 1.
  """

  original_length: int  # L₀
  largest: int = 16  # largest t
  width_factor: int = 1  # λ
  steps: int = 100  # of the Runge-Kutta method, from t to t + 1
  # Whether all queries are multiplied by ln(number of keys) / ln L₀, also below 1.
  log_scale: bool = True


def init_up(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
  """Draws W_up [d/2, λd], uniform in ±1/√(λd)."""
  bound = shape[-1] ** -0.5
  return jax.random.uniform(key, shape, dtype, -bound, bound)


def init_params(key: jax.Array, clex: Clex, width: int) -> dict[str, jax.Array]:
  """Returns new parameters clex_up and clex_down, to be added to those of a Llama.

  Args:
    key: a typed PRNG key.
    clex: the fields.
    width: d.
  """
  half, hidden = shape_of(clex, width)
  return {'clex_up': init_up(key, (half, hidden), jnp.float32),
          'clex_down': jnp.zeros((hidden, half), jnp.float32)}


def shape_of(clex: Clex, width: int) -> tuple[int, int]:
  """Returns the shape of W_up, (d/2, λd); that of W_down is the reverse."""
  return width // 2, clex.width_factor * width


def time_of(clex: Clex, length: int | jax.Array) -> int | jax.Array:
  """Returns t = ⌈length / L₀⌉ in 1..largest, of a number or an array of lengths."""
  original = clex.original_length
  if isinstance(length, int):
    return min(max(-(-length // original), 1), clex.largest)
  length = jnp.ceil(jnp.asarray(length)).astype(jnp.int32)
  return jnp.clip((length + original - 1) // original, 1, clex.largest)


def ntk_log_rates(width: int, base: float, t: jax.Array) -> jax.Array:
  """Returns ζ(t), [..., d/2], for t [...] of float32 or float64."""
  plane = jnp.arange(width // 2, dtype=t.dtype)
  plane = jnp.expand_dims(plane, range(t.ndim))
  growth = jnp.log(2 * t - 1)[..., None]
  return -plane * (2 / width * math.log(base)) - plane * (2 / (width - 2)) * growth


def log_rates(
    clex: Clex, base: float, up: jax.Array, down: jax.Array, last: int | jax.Array
) -> jax.Array:
  """Returns z(1), z(2), …, z(last).

  Args:
    clex: the fields.
    base: b.
    up: W_up [d/2, λd].
    down: W_down [λd, d/2].
    last: the largest requested t, in 1..largest; a number, or traced.

  Returns:
    [last, d/2], float32 or wider; [largest, d/2] if last is traced, of which the rows
    after z(last) mean nothing.
  """
  dtype = jnp.promote_types(jnp.result_type(up, down), jnp.float32)
  up, down, width = up.astype(dtype), down.astype(dtype), 2 * up.shape[0]
  largest = last if isinstance(last, int) else clex.largest
  step = 1 / clex.steps
  matmul = lambda x, y: jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)

  def slope(t, u):
    zeta = ntk_log_rates(width, base, t)
    return matmul(jnp.tanh(matmul(u + 2 * zeta, up)), down)

  def one_step(u, start):
    middle = start + step / 2
    first = slope(start, u)
    second = slope(middle, u + step / 2 * first)
    third = slope(middle, u + step / 2 * second)
    fourth = slope(start + step, u + step * third)
    return u + step / 6 * (first + 2 * second + 2 * third + fourth), None

  def to_next(u, whole):
    starts = whole.astype(dtype) + step * jnp.arange(clex.steps, dtype=dtype)
    return jax.lax.scan(one_step, u, starts)[0]

  def if_needed(u, whole):
    u = jax.lax.cond(whole < last, to_next, lambda u, _: u, u, whole)
    return u, u

  start = jnp.zeros(width // 2, dtype)
  _, later = jax.lax.scan(if_needed, start, jnp.arange(1, largest))
  at_whole = jnp.concatenate([start[None], later])  # u(1), u(2), …
  times = jnp.arange(1, largest + 1, dtype=dtype)
  return ntk_log_rates(width, base, times) + at_whole


def log_rates_up_to(
    clex: Clex, base: float, up: jax.Array, down: jax.Array, length: int | jax.Array
) -> jax.Array:
  """Returns `log_rates` for inputs of at most `length` tokens, a number or [...]."""
  last = time_of(clex, length)
  last = last if isinstance(last, int) else last.max()
  return log_rates(clex, base, up, down, last)


def rates(clex: Clex, learned: jax.Array, length: int | jax.Array) -> jax.Array:
  """Returns the rates exp z(t), [..., d/2], for inputs of lengths [...].

  Args:
    clex: the fields.
    learned: from `log_rates_up_to`, of these or longer inputs.
    length: numbers of tokens, [...].
  """
  return jnp.exp(learned[time_of(clex, length) - 1])


def scale(clex: Clex, num_keys: int | jax.Array) -> jax.Array:
  """Returns the factor of queries, ln(num_keys) / ln L₀, for numbers of keys [...]."""
  wide = jnp.promote_types(jnp.result_type(float), jnp.float32)
  return jnp.log(jnp.asarray(num_keys, wide)) / math.log(clex.original_length)


def sample(
    key: jax.Array, num_tokens: int, original_length: int, largest: int = 16
) -> tuple[jax.Array, jax.Array]:
  """Draws t and the positions of L tokens for one forward pass of training.

  t is uniform on 1..largest. The first position is 0. Those between are a sorted sample
  without replacement of 1..Lt − 2, divided by S = max(1, ⌊L / L₀⌋), and the last is
  ⌊Lt / S⌋ − 1. For S = 1, that is, L < 2 L₀, all are distinct and in order. For S = 2
  the last two may be equal; for larger S the last may be up to 1 below the one before
  it. The published code does the same.

  Both windows of the misalignment loss need the same t and positions: draw once, and
  call `model.apply(variables, window, positions, t * original_length)` for each.

  Args:
    key: a typed PRNG key.
    num_tokens: L, at least 2.
    original_length: L₀.
    largest: the largest t.

  Returns:
    t, int32, and positions [L], float32.

  Raises:
    ValueError: if there are fewer than 2 tokens, or L₀ or `largest` is not positive.
  """
  if num_tokens < 2 or original_length < 1 or largest < 1:
    raise ValueError('CLEX needs at least 2 tokens, and a positive original length and '
                     f'largest t: {num_tokens}, {original_length}, {largest}')
  time_key, position_key = jax.random.split(key)
  t = jax.random.randint(time_key, (), 1, largest + 1, jnp.int32)
  # A random order of all places, those from Lt − 2 on last.
  places = num_tokens * largest - 2
  order = jax.random.uniform(position_key, (places,))
  order = jnp.where(jnp.arange(places) < num_tokens * t - 2, order, 2.0)
  chosen = jnp.sort(jnp.argsort(order)[:num_tokens - 2]) + 1
  divisor = max(1, num_tokens // original_length)
  ends = jnp.stack([jnp.zeros_like(t), num_tokens * t // divisor - 1])
  between = chosen.astype(jnp.float32) / divisor
  ends = ends.astype(jnp.float32)
  return t, jnp.concatenate([ends[:1], between, ends[1:]])
