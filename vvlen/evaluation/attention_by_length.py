r"""Attention weights of a language model by length, and its logits by distance.

For one head, and the query of the last of N tokens,

  s_j = q_{N−1}·k_j / √w,   a = softmax(s),   H(N) = −Σ_j a_j log a_j

in nats; uniform weights have H = log N. `temperature_of_top` is the least inverse
temperature at which the top key has half of the weight
(`vvlen.evaluation.temperature_law`). With a causal model, one pass over n tokens gives
both for all N up to n. Query head i reads key head i // (h / k).

Logits are compared by distance and by order (`vvlen.evaluation.recency`), for the last
m of n tokens. Rotary positions have a bias of their own, which is measured together
with that of the tokens; to separate them, `shuffled` gives the same tokens in random
order.

Axes: S sequences, n tokens, h query heads, k key heads, w width of a head.
"""

from collections.abc import Callable, Sequence
import functools

import jax
import jax.numpy as jnp
import numpy as np

from vvlen import sharding
from vvlen.evaluation.probe import Probe
from vvlen.evaluation.programs import batches
from vvlen.evaluation.recency import recency_of_logits, RecencyOfLogits
from vvlen.evaluation.temperature_law import critical_temperature

# The approximate number of tokens that a model reads at once.
_TOKENS_AT_ONCE = 8192

# tokens [B, n] -> a Probe of each layer that was asked for
Look = Callable[[jax.Array], list[Probe]]


def logits_of_last(
    queries: jax.Array, keys: jax.Array, num_queries: int
) -> jax.Array:
  """Returns the logits of the last m queries with all keys, s [B, h, m, n].

  Args:
    queries: [B, n, h, w].
    keys: [B, n, k, w]; k divides h.
    num_queries: m, in 1..n.

  Returns:
    float32 or wider. No mask is applied: ignore entries after a query's own position.

  Raises:
    ValueError: if shapes do not fit, or m is not in 1..n.
  """
  batch, length, heads, width = queries.shape
  if keys.shape[:2] != (batch, length) or keys.shape[3] != width:
    raise ValueError(f'queries {queries.shape} do not fit keys {keys.shape}')
  if heads % keys.shape[2]:
    raise ValueError(f'{keys.shape[2]} key heads do not divide {heads} query heads')
  if not 1 <= num_queries <= length:
    raise ValueError(f'num_queries must be in 1..{length}: {num_queries}')
  last = queries[:, length - num_queries :]
  last = last.reshape(batch, num_queries, keys.shape[2], -1, width)
  logits = jnp.einsum(
      'bmkgw,bnkw->bkgmn', last, keys, precision=jax.lax.Precision.HIGHEST,
      preferred_element_type=jnp.promote_types(queries.dtype, jnp.float32),
  )
  return logits.reshape(batch, heads, num_queries, length) / width**0.5


@functools.partial(jax.jit, static_argnames='lengths')
def entropy_of_weights(
    queries: jax.Array, keys: jax.Array, lengths: tuple[int, ...]
) -> jax.Array:
  """Returns H(N) [B, h, lengths] in nats; arguments as in `logits_of_last`."""
  def at(n):
    logits = logits_of_last(queries[:, :n], keys[:, :n], 1)[:, :, 0]
    log_weights = jax.nn.log_softmax(logits)
    return -(jnp.exp(log_weights) * log_weights).sum(-1)
  return jnp.stack([at(n) for n in lengths], axis=-1)


@functools.partial(jax.jit, static_argnames='lengths')
def temperature_of_top(
    queries: jax.Array, keys: jax.Array, lengths: tuple[int, ...]
) -> jax.Array:
  """Returns the least β that gives the top key half of the weight, [B, h, lengths].

  It multiplies the logits of the last of N tokens; 1 leaves them as they are. Arguments
  as in `logits_of_last`.
  """
  return jnp.stack([
      critical_temperature(logits_of_last(queries[:, :n], keys[:, :n], 1)[:, :, 0])
      for n in lengths], axis=-1)


def entropy_by_length(
    look: Look,
    sequences: np.ndarray,
    lengths: Sequence[int],
    *,
    separately: bool = False,
    tokens_at_once: int = _TOKENS_AT_ONCE,
) -> np.ndarray:
  """Returns the entropy of the attention weights of the N-th token of each sequence.

  Args:
    look: as `vvlen.evaluation.probe.probe_layers` returns.
    sequences: [S, n] integers.
    lengths: N, each in 1..n.
    separately: makes one pass per length, for models for which
      `vvlen.evaluation.probe.reads_ahead` is true.
    tokens_at_once: approximate number of tokens read at once; at least one sequence.

  Returns:
    [S, layers, h, lengths], nats.

  Raises:
    ValueError: if a length is not in 1..n, or sequences are not [S, n].
  """
  [found] = by_length(look, sequences, lengths, (entropy_of_weights,),
                      separately=separately, tokens_at_once=tokens_at_once)
  return found


def by_length(
    look: Look,
    sequences: np.ndarray,
    lengths: Sequence[int],
    measures: Sequence[Callable[..., jax.Array]],
    *,
    separately: bool = False,
    tokens_at_once: int = _TOKENS_AT_ONCE,
) -> list[np.ndarray]:
  """Returns what several functions measure, each [S, layers, h, lengths], in one pass.

  Args:
    look: as `vvlen.evaluation.probe.probe_layers` returns.
    sequences: [S, n] integers.
    lengths: N, each in 1..n.
    measures: functions of queries, keys and lengths, such as `entropy_of_weights` and
      `temperature_of_top`.
    separately: makes one pass per length, for models for which
      `vvlen.evaluation.probe.reads_ahead` is true.
    tokens_at_once: approximate number of tokens read at once; at least one sequence.

  Raises:
    ValueError: if a length is not in 1..n, or sequences are not [S, n].
  """
  lengths = tuple(int(n) for n in lengths)
  _check(sequences, max(lengths, default=0), min(lengths, default=0))
  passes = [(n,) for n in lengths] if separately else [lengths]
  found = []
  for some in passes:
    parts = []
    for tokens, new in batches(sequences[:, : max(some)], tokens_at_once):
      layers = look(tokens)
      values = [[f(x.queries, x.keys, some) for x in layers] for f in measures]
      parts.append([np.stack(x, axis=1)[:new] for x in sharding.fetch(values)])
    found.append([np.concatenate(x) for x in zip(*parts, strict=True)])
  return [np.concatenate(x, axis=-1) for x in zip(*found, strict=True)]


def recency_by_layer(
    look: Look,
    sequences: np.ndarray,
    num_queries: int,
    *,
    tokens_at_once: int = _TOKENS_AT_ONCE,
) -> RecencyOfLogits:
  """Returns how the logits of the last m tokens fall with distance, and their order.

  There are S h m n² comparisons in each layer: choose n of a few hundred and a small m.

  Args:
    look: as `vvlen.evaluation.probe.probe_layers` returns.
    sequences: [S, n] integers.
    num_queries: m, in 1..n.
    tokens_at_once: approximate number of tokens read at once; at least one sequence.

  Returns:
    Arrays [S, layers, h, …] as in `vvlen.evaluation.recency.recency_of_logits`:
    mean_score by distance 0..n − 1.

  Raises:
    ValueError: if m is not in 1..n, or sequences are not [S, n].
  """
  _check(sequences, num_queries, num_queries)
  parts = []
  for tokens, new in batches(sequences, tokens_at_once):
    layers = [_recency(x.queries, x.keys, num_queries) for x in look(tokens)]
    joined = jax.tree.map(lambda *x: np.stack(x, axis=1), *sharding.fetch(layers))
    parts.append(jax.tree.map(lambda x, new=new: x[:new], joined))
  return jax.tree.map(lambda *x: np.concatenate(x), *parts)


@functools.partial(jax.jit, static_argnums=2)
def _recency(queries, keys, num_queries):
  return recency_of_logits(logits_of_last(queries, keys, num_queries))


def shuffled(sequences: np.ndarray, seed: int | Sequence[int]) -> np.ndarray:
  """Returns sequences [S, n] with the tokens of each in a random order of its own."""
  return np.random.default_rng(seed).permuted(np.asarray(sequences), axis=1)


def _check(sequences, most, least):
  if np.ndim(sequences) != 2:
    raise ValueError(f'sequences must be [S, n]: {np.shape(sequences)}')
  if not 1 <= least <= most <= np.shape(sequences)[1]:
    raise ValueError(f'lengths must be in 1..{np.shape(sequences)[1]}: {least}..{most}')

