"""The simulation of `vvlen.simulation` in plain numpy, as a reference for its speed.

Computes the same as `simulate_recency` with LayerNorm and without residual, for many
simulations per numpy call. Three variants were tried and were slower: counting orders
by comparing chosen triples; sums of outer products instead of matrix products; and
Z @ Zᵀ with both factors the same array, for which numpy calls BLAS's syrk, which has
half the speed at such sizes.
"""

from collections.abc import Callable
import itertools
import math
import time
from typing import Any, NamedTuple

import numpy as np

# `fastest` tries each combination TRIALS times.
CHUNKS = (200, 500, 1000, 2000, 5000, 20_000)
DTYPES = ('float64', 'float32')
TRIALS = 3


class Recency(NamedTuple):
  """Some fields of `vvlen.simulation.Recency`. Scores above the diagonal are 0."""

  mean: np.ndarray  # [layers, n, n], of scores
  standard_error: np.ndarray  # [layers, n, n], of that mean
  mean_weights: np.ndarray  # [layers, n, n]
  recency_probability: np.ndarray  # [layers]
  violation_rate: np.ndarray  # [layers]


def simulate(
    rng: np.random.Generator,
    *,
    num_tokens: int,
    width: int,
    num_layers: int,
    num_simulations: int,
    anisotropy: float,
    sampler: str,
    chunk: int,
    dtype: str = 'float64',
) -> Recency:
  """Simulates the stack, `chunk` simulations at once; adds up chunks in float64."""
  n, dtype = num_tokens, np.dtype(dtype).type
  draw = {'reduced': draw_factor, 'direct': draw_tokens}[sampler]
  causal = np.tri(n, dtype=dtype)
  first, second, weight = np.zeros((3, num_layers, n, n))
  own, earlier = np.zeros((2, num_layers))
  for start in range(0, num_simulations, chunk):
    count = min(chunk, num_simulations - start)
    x = draw(rng, count, n, width, anisotropy, dtype)
    ones = np.ones(count, dtype)
    total = lambda values, ones=ones: (ones @ values.reshape(len(values), -1)).reshape(
        n, n
    )
    for layer in range(num_layers):
      z = x
      if sampler == 'direct':  # the factor is already centred
        z = z - z.mean(2, keepdims=True)
      norm = np.sqrt(np.einsum('sik,sik->si', z, z) / dtype(width))
      z = z / norm[..., None]
      # The copy keeps numpy from calling syrk, which is slower.
      scores = z @ z.copy().swapaxes(1, 2)
      scores *= causal / dtype(math.sqrt(width))
      # Scores are at most √d, so exp does not overflow.
      weights = np.exp(scores)
      weights *= causal
      weights /= weights.sum(2, keepdims=True)
      x = weights @ z
      first[layer] += total(scores)
      second[layer] += total(np.square(scores))
      weight[layer] += total(weights)
      counts = count_rises(scores)
      own[layer] += counts[0]
      earlier[layer] += counts[1]
  mean = first / num_simulations
  variance = np.maximum(second / num_simulations - mean**2, 0)
  own_pairs, pairs = (math.comb(n, k) * num_simulations for k in (2, 3))
  return Recency(
      mean, np.sqrt(variance / num_simulations), weight / num_simulations,
      earlier / pairs, 1 - (own + earlier) / (own_pairs + pairs),
  )


def fastest(simulate: Callable[..., Recency]) -> dict[str, Any]:
  """Returns the fastest chunk and dtype on this machine, and the times of all."""
  count = max(CHUNKS)

  def seconds(chunk, dtype):
    start = time.perf_counter()
    simulate(num_simulations=count, chunk=chunk, dtype=dtype)
    return time.perf_counter() - start

  tried = {
      setting: min(seconds(*setting) for _ in range(TRIALS))
      for setting in itertools.product(CHUNKS, DTYPES)
  }
  microseconds = {
      dtype: {
          str(chunk): round(tried[chunk, dtype] / count * 1e6, 2) for chunk in CHUNKS
      }
      for dtype in DTYPES
  }
  chunk, dtype = min(tried, key=tried.get)
  return {'chunk': chunk, 'dtype': dtype, 'microseconds_per_simulation': microseconds}


def draw_tokens(
    rng: np.random.Generator, count: int, n: int, width: int, anisotropy: float,
    dtype: Any,
) -> np.ndarray:
  """Draws tokens [count, n, width] of the given anisotropy."""
  own = rng.standard_normal((count, n, width), dtype)
  shared = rng.standard_normal((count, 1, width), dtype)
  own += dtype(math.sqrt(anisotropy / (1 - anisotropy))) * shared
  own /= dtype(math.sqrt(width))
  return own


def draw_factor(
    rng: np.random.Generator, count: int, n: int, width: int, anisotropy: float,
    dtype: Any,
) -> np.ndarray:
  """Draws rows [count, n, n] with the Gram matrix of n centred tokens, by Bartlett."""
  factor = np.zeros((count, n, n), dtype)
  below = np.tril_indices(n, -1)
  factor[:, *below] = rng.standard_normal((count, len(below[0])), dtype)
  freedom = width - 1 - np.arange(n)
  diagonal = np.arange(n)
  # As rng.chisquare, which does not support float32.
  chi_square = 2 * rng.standard_gamma(freedom / 2, (count, n), dtype)
  factor[:, diagonal, diagonal] = np.sqrt(chi_square)
  scale = (np.eye(n) + anisotropy / (1 - anisotropy)) / width
  return np.linalg.cholesky(scale).astype(dtype) @ factor


def count_rises(scores: np.ndarray) -> tuple[int, int]:
  """Counts S_ij > S_ik with k < j over all simulations: for j = i, and for j < i."""
  count, n, _ = scores.shape
  # With simulations last, the numbers that are compared are contiguous.
  scores = np.ascontiguousarray(scores.reshape(count, -1).T).reshape(n, n, count)
  own = both = 0
  for j in range(1, n):
    rises = scores[j:, j : j + 1] > scores[j:, :j]
    own += np.count_nonzero(rises[0])
    both += np.count_nonzero(rises)
  return own, both - own
