"""Bootstrap samples: of S items, S are drawn with replacement, R times.

The draws depend on S, R and the seed alone, so that statistics of the same items can be
compared sample by sample. The first sample is not drawn: it is the items themselves.
"""

from collections.abc import Sequence

import numpy as np


def places(count: int, num_resamples: int, seed: int) -> np.ndarray:
  """Returns which of S = `count` items each sample has, [1 + R, S], in 0..S − 1."""
  drawn = np.random.default_rng(seed).integers(count, size=(num_resamples, count))
  return np.concatenate([[np.arange(count)], drawn])


def counts(count: int, num_resamples: int, seed: int | Sequence[int]) -> np.ndarray:
  """Returns how often each sample has each of S = `count` items, [1 + R, S]."""
  alike = np.full(count, 1 / count)
  drawn = np.random.default_rng(seed).multinomial(count, alike, num_resamples)
  return np.concatenate([np.ones((1, count), drawn.dtype), drawn])
