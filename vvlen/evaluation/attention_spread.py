"""How the attention output of a language model spreads over sequences, by length.

Proposition 1 of arXiv 2504.02827: for a fixed query and tokens drawn independently, the
variance over sequences of a component of the attention output falls at least as 1/N,
its standard deviation as N^−½. Figure 1 there shows a trained model, whose query is
that of the last token, and so differs between sequences. Both can be measured here:
with the last token as it is, or replaced by the same token in all sequences.

Axes: S sequences, N tokens, D components: heads times their width.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from vvlen import sharding
from vvlen.evaluation.probe import Probe
from vvlen.evaluation.programs import batches
from vvlen.statistics import percentile_interval, resamples

# The approximate number of tokens that a model reads at once.
_TOKENS_AT_ONCE = 16_384
# Standard deviations of bootstrap samples that are computed at once.
_VALUES_AT_ONCE = 2**23


def spread_by_length(
    probe: Callable[[jax.Array], Probe],
    sequences: np.ndarray,
    lengths: Sequence[int],
    last_token: int | None = None,
    *,
    separately: bool = False,
    tokens_at_once: int = _TOKENS_AT_ONCE,
) -> np.ndarray:
  """Returns the attention output at the last token of sequences of several lengths.

  Args:
    probe: as `vvlen.evaluation.probe.probe_layer` returns, of a causal model.
    sequences: [S, n] integers; length N uses the first N tokens of each.
    lengths: N, each in 1..n.
    last_token: replaces the N-th token, so that all sequences have the same query. None
      keeps the tokens, so that one pass over the longest length gives all lengths.
    separately: makes one pass per length even without `last_token`. Models that read
      ahead need this (`vvlen.evaluation.probe.reads_ahead`).
    tokens_at_once: approximate number of tokens read at once; at least one sequence.

  Returns:
    [S, lengths, D], float32 or wider, heads one after the other, before the output
    projection.

  Raises:
    ValueError: if a length is not in 1..n, or sequences are not [S, n].
  """
  sequences = np.asarray(sequences)
  if sequences.ndim != 2:
    raise ValueError(f'sequences must be [S, n]: {sequences.shape}')
  lengths = [int(n) for n in lengths]
  if not lengths or not 1 <= min(lengths) <= max(lengths) <= sequences.shape[1]:
    raise ValueError(f'lengths must be in 1..{sequences.shape[1]}: {lengths}')
  if last_token is None and not separately:
    return _at_ends(probe, sequences[:, : max(lengths)], lengths, tokens_at_once)
  found = []
  for n in lengths:
    cut = sequences[:, :n].copy()
    if last_token is not None:
      cut[:, -1] = last_token
    found.append(_at_ends(probe, cut, [n], tokens_at_once))
  return np.concatenate(found, axis=1)


def _at_ends(probe, sequences, lengths, tokens_at_once):
  """Returns outputs at places N − 1, [S, lengths, D]."""
  ends, found = np.array(lengths) - 1, []
  for tokens, new in batches(sequences, tokens_at_once):
    output = probe(tokens).output[:, ends]
    found.append(sharding.fetch(output.reshape(*output.shape[:2], -1))[:new])
  both = np.concatenate(found)
  return both.astype(np.promote_types(both.dtype, np.float32), copy=False)


class Slope(NamedTuple):
  """The exponent of a power law: a quantity, such as a deviation, grows as N^slope."""

  slope: float
  low: float  # 95 % interval, by bootstrap over sequences, and last tokens
  high: float


def slope(
    lengths: Sequence[int],
    outputs: np.ndarray,
    *,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Slope:
  """Returns the slope of log standard deviation against log N.

    σ(N) = mean over components of the standard deviation over sequences
    slope: of the line through (log N, log σ(N)) by least squares

  Args:
    lengths: [K] N, at least two different ones.
    outputs: [S, K, D], from `spread_by_length`; or [Q, S, K, D], from Q last tokens and
      the same sequences, for which the mean of the Q slopes is returned.
    num_resamples: the number of bootstrap samples of S sequences (each with all its
      lengths) and Q last tokens. The interval runs from percentile 2.5 to 97.5 of their
      slopes. 0 gives no interval: its ends are nan.
    seed: of the samples.

  Returns:
    A `Slope`; nan where a standard deviation is 0.

  Raises:
    ValueError: if shapes do not fit, or there are fewer than two lengths or sequences.
  """
  if np.ndim(outputs) not in (3, 4) or np.shape(outputs)[-2] != len(lengths):
    raise ValueError(
        f'outputs must be [S, {len(lengths)}, D]: {np.shape(outputs)}'
    )
  if len(set(lengths)) < 2 or np.shape(outputs)[-3] < 2:
    raise ValueError('a slope needs two lengths and two sequences: '
                     f'{len(set(lengths))}, {np.shape(outputs)[-3]}')
  return fit(lengths, deviations(outputs, num_resamples, seed))


def fit(lengths: Sequence[int], found: np.ndarray) -> Slope:
  """Returns the slope of log σ(N) against log N by least squares, with its interval.

  Args:
    lengths: [K] N, at least two different ones.
    found: [1 + R, K], σ(N) as `deviations` returns it: row 0 from all sequences, the
      other rows from R bootstrap samples of them. With R = 0 the interval is nan.
  """
  log_length = np.log(np.asarray(lengths, np.float64))
  centred = log_length - log_length.mean()
  with np.errstate(divide='ignore', invalid='ignore'):
    slopes = np.log(found) @ centred
  slopes = np.where(np.isfinite(slopes), slopes / (centred**2).sum(), np.nan)
  if len(slopes) == 1:
    return Slope(float(slopes[0]), np.nan, np.nan)
  low, high = percentile_interval(slopes[1:])
  return Slope(float(slopes[0]), float(low), float(high))


def deviations(outputs: np.ndarray, num_resamples: int, seed: int) -> np.ndarray:
  """Returns σ(N) of all sequences, and of bootstrap samples of them and of last tokens.

  Args:
    outputs: [S, K, D], or [Q, S, K, D], for which the geometric mean of σ over Q is
      returned: its slope is the mean of the Q slopes.
    num_resamples: R, the number of samples of S sequences, drawn with replacement, the
      same for all Q last tokens. Each sample draws Q last tokens too, so that intervals
      also hold for other last tokens.
    seed: of the samples, which do not depend on the values of `outputs`.

  Returns:
    [1 + R, K] float64; all sequences first.
  """
  outputs = np.asarray(outputs)
  if outputs.ndim == 3:
    outputs = outputs[None]
  num_queries, count = outputs.shape[:2]
  shares = resamples.counts(count, num_resamples, seed) / count
  of_queries = resamples.counts(num_queries, num_resamples, [seed, 1]) / num_queries
  logs = np.zeros((len(shares), outputs.shape[2]))
  with np.errstate(divide='ignore', invalid='ignore'):
    for x, share in zip(outputs, of_queries.T[..., None], strict=True):
      # 0 times the logarithm of 0 would be nan.
      logs += np.where(share > 0, share * np.log(_deviations(x, shares)), 0)
  return np.exp(logs)


def _deviations(outputs, shares):
  """Returns σ(N) [R, K] of sequences weighted by shares [R, S]."""
  count, num_lengths, width = outputs.shape
  outputs = np.asarray(outputs, np.float64)
  # Centred, so that the difference of squares below loses no digits.
  values = (outputs - outputs.mean(0)).reshape(count, -1)
  squares, found = values**2, []
  step = max(1, _VALUES_AT_ONCE // values.shape[1])
  for share in np.split(shares, range(step, len(shares), step)):
    variance = np.maximum(share @ squares - (share @ values) ** 2, 0)
    found.append(np.sqrt(variance).reshape(-1, num_lengths, width).mean(-1))
  return np.concatenate(found)
