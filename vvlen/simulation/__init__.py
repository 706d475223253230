"""Monte Carlo simulation of the causal stack on random tokens.

It returns the mean and standard error of the scores of every layer, the mean attention
weights, and how often a more recent token has the larger score
(`vvlen.theory.ordering`), as in Figures 1, 3 and 4 of arXiv 2509.21042.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vvlen.models.causal_stack import causal_layer, Layer, self_attend
from vvlen.simulation import chunks
from vvlen.simulation.tokens import draw_factor, factor_law, tokens_of
from vvlen.theory import recency

SAMPLERS = ('reduced', 'direct')


class Recency(NamedTuple):
  """Means over simulations and their standard errors.

  All are float64. Scores are logits, 0 above the diagonal.
  """

  mean: np.ndarray  # [layers, n, n], of scores
  standard_error: np.ndarray  # [layers, n, n], of that mean
  mean_weights: np.ndarray  # [layers, n, n]
  recency_probability: np.ndarray  # [layers]
  violation_rate: np.ndarray  # [layers]
  recency_probability_error: np.ndarray  # [layers], standard error
  violation_rate_error: np.ndarray  # [layers], standard error
  num_simulations: int
  totals: chunks.Totals  # of the complete chunks, from which a longer run resumes


def simulate_recency(
    key: jax.Array,
    *,
    num_tokens: int = 10,
    width: int = 64,
    num_layers: int = 4,
    num_simulations: int = 100_000,
    anisotropy: float = 0.0,
    layer_norm: bool = True,
    residual: float = 0.0,
    sampler: str = 'reduced',
    dtype: Any = jnp.float32,
    previous: Recency | chunks.Totals | None = None,
    progress: chunks.Progress | None = None,
) -> Recency:
  """Simulates the stack on tokens of cosine α.

  Both samplers give scores of the same distribution (`vvlen.simulation.tokens`). The
  cost of 'reduced' does not depend on the width; 'direct' draws the tokens themselves
  and runs the stack on them.

  Args:
    key: a PRNG key.
    num_tokens: n.
    width: d.
    num_layers: of the stack.
    num_simulations: the number of simulations, including those of `previous`.
    anisotropy: α in [0, 1).
    layer_norm: whether layers normalize.
    residual: c, the factor of the raw stream that each layer adds.
      `vvlen.theory.recency.residual_in_units_of_z` converts it to units of Z.
    sampler: 'reduced', for n + 1 ≤ d (n ≤ d without LayerNorm), or 'direct'.
    dtype: of the computation, float32 or float64. float32 does not resolve the bias at
      α = 0 and d ≥ 256, nor logits that differ by less than 1e-6 of the largest. Such
      logits, from α close to 1 or from ten and more layers without a residual, then
      look like a bias to the oldest tokens.
    previous: a shorter run with the same arguments, or its `totals`.
    progress: called from time to time with the number of simulations done.

  Returns:
    A `Recency`.

  Raises:
    ValueError: on sizes that are not positive, α outside [0, 1), a residual that is not
      finite, an unknown sampler, more tokens than the reduced sampler supports, another
      dtype, float64 without jax_enable_x64, α that is 1 in this dtype, or `previous` of
      another run.
  """
  recency.check(num_tokens, width, anisotropy, residual)
  for name, value in (('num_layers', num_layers), ('num_simulations', num_simulations)):
    recency.check_size(name, value)
  if layer_norm and width < 2:
    raise ValueError(f'LayerNorm needs a width of at least 2: {width}')
  name = getattr(dtype, '__name__', str(dtype))  # of a type, a dtype or a string
  if name not in ('float32', 'float64'):
    raise ValueError(f'dtype must be float32 or float64: {dtype!r}')
  dtype = np.dtype(name)
  if jax.dtypes.canonicalize_dtype(dtype) != dtype:
    raise ValueError('float64 needs jax_enable_x64')
  if dtype.type(anisotropy) == 1:
    raise ValueError(f'anisotropy is 1 in {name}: {anisotropy}')
  if abs(float(residual)) > np.finfo(dtype).max:
    raise ValueError(f'residual is not finite in {name}: {residual}')
  simulation = recency_simulation(
      num_tokens=num_tokens, width=width, anisotropy=anisotropy, layer_norm=layer_norm,
      residual=residual, sampler=sampler, dtype=dtype)
  settings = dict(
      num_tokens=int(num_tokens), width=int(width), num_layers=int(num_layers),
      anisotropy=float(anisotropy), layer_norm=bool(layer_norm),
      residual=float(residual), sampler=sampler, dtype=name,
  )
  return simulate(
      key, simulation, num_layers=num_layers, num_simulations=num_simulations,
      settings=settings, previous=previous, progress=progress,
  )


def recency_simulation(
    *, num_tokens: int, width: int, anisotropy: float, layer_norm: bool,
    residual: float, sampler: str, dtype: Any = jnp.float32,
) -> chunks.Simulation:
  """Returns what `simulate_recency` simulates; checks only the sampler.

  Raises:
    ValueError: on an unknown sampler, or more tokens than the reduced one supports.
  """
  array = functools.partial(jnp.asarray, dtype=dtype)
  if sampler == 'reduced':
    law = factor_law(num_tokens, width, anisotropy, layer_norm)
    return chunks.Simulation(
        draw_factor, _reduced(layer_norm), tuple(map(array, law)),
        (array(width), array(residual)),
    )
  if sampler == 'direct':
    return chunks.Simulation(
        tokens_of(num_tokens, width), _direct(layer_norm), (array(anisotropy),),
        (array(residual),),
    )
  raise ValueError(f'sampler must be one of {", ".join(SAMPLERS)}: {sampler!r}')


def simulate(
    key: jax.Array,
    simulation: chunks.Simulation,
    *,
    num_layers: int,
    num_simulations: int,
    settings: dict[str, Any],
    previous: Recency | chunks.Totals | None = None,
    progress: chunks.Progress | None = None,
) -> Recency:
  """Simulates any stack of layers; `simulate_recency` simulates that of the paper.

  Args:
    key: a PRNG key.
    simulation: how tokens are drawn, and the layer.
    num_layers: the number of layers, all the same.
    num_simulations: the number of simulations, including those of `previous`.
    settings: plain values that, with the key, identify the run.
    previous: a shorter run, or its `totals`.
    progress: called with the number of simulations done.

  Returns:
    A `Recency`. If a layer has scores [n, n, h] per simulation, as one of h heads has,
    means are [layers, n, n, h] and shares [layers, h].

  Raises:
    ValueError: if `previous` is of another run, or longer.
  """
  if isinstance(previous, Recency):
    previous = previous.totals
  totals, whole = chunks.run(
      key, simulation, num_layers=num_layers, num_simulations=num_simulations,
      settings=settings, previous=previous, progress=progress,
  )
  mean = lambda name: totals.mean(name, num_simulations)
  error = lambda name: totals.standard_error(name, num_simulations)
  return Recency(
      mean('scores'), error('scores'), mean('weights'), mean('recency_probability'),
      mean('violation_rate'), error('recency_probability'), error('violation_rate'),
      num_simulations, whole,
  )


# Cached, because a `Simulation` with a new function would be compiled again.
@functools.cache
def _reduced(layer_norm):
  """Returns the layer for `draw_factor`'s rows, which have the tokens' products."""

  def layer(x: jax.Array, width: jax.Array, residual: jax.Array) -> Layer:
    z = x
    if layer_norm:  # the products are of tokens minus their means already
      z = x * jax.lax.rsqrt(jnp.square(x).sum(1, keepdims=True) / width)
    attended = self_attend(z, z, z, width)
    return attended._replace(output=attended.output + residual * x)

  return layer


@functools.cache
def _direct(layer_norm):
  return lambda x, residual: causal_layer(x, layer_norm, residual)
