"""Accuracy and attention of a trained model at any length, in bounded memory.

The functions here are for one seed; `vvlen.sharding.over_seeds` maps them over seeds. A
chunk of test sequences is drawn, run and reduced before the next is drawn. It holds
2**14 items, or one sequence where that is longer, so a device needs about
1.2 * group_size * max(2**14, N) * width * 4 bytes (as measured): for a width of 128 and
groups of one, 10 MB up to N = 2**14 and 0.6 GB at N = 2**20.

Axes: S sequences, N items, C classes, d width of the attention output, K betas.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from vvlen.evaluation.retriever.moments import distance, Moments, moments
from vvlen.models.attention import Temperature
from vvlen.models.temperature import (
  adaptive_temperature,
  attention_entropy,
  constant,
)
from vvlen.objectives.targets import score

ITEMS_PER_CHUNK = 2**14
# The inverse temperatures among which `best_betas` finds the best for each sequence.
BETAS = tuple(2.0 ** (k / 8) for k in range(33))  # 1 to 16
# The changes of the attention weights at test time, as suffixes of an arm's name.
ADAPTATIONS = ('', '+adaptive', '+fitted')

Variables = Any  # of a linen module: its parameters, and tables made of them
Metrics = dict[str, jax.Array]


class Batch(Protocol):
  """The fields of a task's batch that are used here."""

  query: jax.Array  # [S, ...]
  items: jax.Array  # [S, N, ...]
  target: jax.Array  # [S] int32
  target_index: jax.Array  # [S] int32


# (key, number of sequences, length) -> batch, every sequence of that length
Sample = Callable[[jax.Array, int, int], Batch]
# (variables, query, items, temperature, intervention) -> logits [S, C] and what
# attention sowed: attention_weights [S, N], attention_output and normalized_output,
# both [S, d]
Apply = Callable[..., tuple[jax.Array, dict[str, jax.Array]]]


def make_apply(model: Any) -> Apply:
  """Returns the `Apply` of a linen model with a submodule `attention`.

  Args:
    model: a linen module of (query, items, mask, temperature, intervention), such
      as `vvlen.models.retriever.Retriever`.
  """

  def apply(variables, query, items, temperature=None, intervention=None):
    logits, state = model.apply(
        variables, query, items, None, temperature, intervention,
        mutable='intermediates',
    )
    sown = state['intermediates']['attention']
    return logits, {name: value[0] for name, value in sown.items()}

  return apply


def under_each(
    temperatures: Sequence[Temperature], forward: Callable[[Temperature], Any]
) -> Any:
  """Returns what a model gives under each of K temperatures of its attention.

  In a model with one attention, what comes before the temperature is computed once, and
  what comes after it K times, all in memory.

  Args:
    temperatures: K, at least one, as in `vvlen.models.attention.attend`; their β have
      the same shape.
    forward: maps a temperature to a pytree of arrays.

  Returns:
    The pytree, each array with a leading axis of K.
  """

  def at(index):
    return forward(lambda logits, mask: jnp.stack(
        [temperature(logits, mask) for temperature in temperatures])[index])

  return jax.vmap(at)(jnp.arange(len(temperatures)))


def attention_logits(
    apply: Apply, variables: Variables, query: jax.Array, items: jax.Array
) -> jax.Array:
  """Returns the logits of softmax attention [..., N], up to a constant in each row.

  They are computed from the weights of logits divided by 64, so that none underflows.
  """
  _, sown = apply(variables, query, items, constant(1 / 64))
  return 64 * jnp.log(sown['attention_weights'])


def chunk_size(num_sequences: int, length: int) -> int:
  """Returns how many sequences of a length are drawn and measured at once.

  That is the largest divisor of num_sequences with at most 2**14 items, or 1.
  """
  most = max(1, min(num_sequences, ITEMS_PER_CHUNK // length))
  return next(size for size in range(most, 0, -1) if num_sequences % size == 0)


def in_chunks(
    measure: Callable[[Batch], Any],
    sample: Sample,
    key: jax.Array,
    length: int,
    num_sequences: int,
) -> Any:
  """Draws sequences chunk by chunk and collects what `measure` returns for each.

  Args:
    measure: of a batch; returns a pytree of arrays [S, ...], one row a sequence.
    sample: draws a batch.
    key: chunk c is drawn from fold_in(fold_in(key, length), c).
    length: N.
    num_sequences: preferably a power of two, which divides into large chunks.

  Returns:
    The rows of all chunks, [num_sequences, ...].
  """
  per_chunk = chunk_size(num_sequences, length)
  key = jax.random.fold_in(key, length)

  def chunk(index):
    return measure(sample(jax.random.fold_in(key, index), per_chunk, length))

  rows = jax.lax.map(chunk, jnp.arange(num_sequences // per_chunk))
  return jax.tree.map(lambda x: x.reshape(num_sequences, *x.shape[2:]), rows)


def evaluate(
    apply: Apply,
    sample: Sample,
    variables: Variables,
    key: jax.Array,
    coefficients: jax.Array | None,
    *,
    length: int,
    num_sequences: int,
    fixed_query: jax.Array,
    reference: Moments | None = None,
) -> dict[str, Metrics]:
  """Measures one model on sequences of one length.

  Args:
    apply: the model.
    sample: the task.
    variables: of one seed.
    key: of the test data; models given the same key see the same sequences.
    coefficients: [5] of the fitted adaptive temperature, or None to leave it out.
    length: N.
    num_sequences: S.
    fixed_query: the query for `component_variance`, without a batch axis.
    reference: moments of the normalized output at the longest training length, from
      other sequences, or None to leave `input_distance` out.

  Returns:
    For each of `ADAPTATIONS`, means over sequences of: `accuracy`; `loss`, nats;
    `attention_entropy`, nats; `target_weight`, the attention weight on the item
    asked for; `output_norm`, the norm of the attention output; `output_mean` and
    `output_variance`, the mean and variance over the d features of the normalized
    output (arXiv 2504.02827, Figure 3). Without adaptation also
    `component_variance`, the variance over sequences of each component of the
    attention output under one fixed query, averaged over the components
    (Proposition 1), and `input_distance`, how far the normalized output, which is
    the input of φ or of W_O before it, has moved from `reference`
    (`vvlen.evaluation.retriever.moments.distance`; about 3 / S if nothing moved).
  """
  temperatures: dict[str, Temperature] = {
      '': lambda logits, mask: jnp.ones((*logits.shape[:-1], 1), logits.dtype),
      '+adaptive': adaptive_temperature,
  }
  if coefficients is not None:
    temperatures['+fitted'] = functools.partial(
        adaptive_temperature, coefficients=coefficients
    )

  def measure(batch):
    forward = functools.partial(apply, variables, batch.query, batch.items)
    logits, sown = under_each([*temperatures.values()], forward)
    every = jax.vmap(_measure_rows, (None, 0, 0))(batch, logits, sown)
    rows = {
        suffix: {name: values[i] for name, values in every.items()}
        for i, suffix in enumerate(temperatures)
    }
    fixed = jnp.broadcast_to(fixed_query, batch.query.shape)
    _, under_fixed = apply(variables, fixed, batch.items)
    return rows, sown['normalized_output'][0], under_fixed['attention_output']

  rows, inputs, outputs = in_chunks(measure, sample, key, length, num_sequences)
  metrics = jax.tree.map(lambda x: x.mean(axis=0), rows)
  metrics['']['component_variance'] = outputs.var(axis=0, ddof=1).mean()
  if reference is not None:
    metrics['']['input_distance'] = distance(moments(inputs), reference)
  return metrics


def _measure_rows(
    batch: Batch, logits: jax.Array, sown: dict[str, jax.Array]
) -> Metrics:
  """Returns the metrics of each sequence, [S]."""
  weights, output = sown['attention_weights'], sown['normalized_output']
  return {
      **answers(batch, logits),
      'attention_entropy': attention_entropy(weights),
      'target_weight': pick(weights, batch.target_index),
      'output_norm': jnp.linalg.norm(sown['attention_output'], axis=-1),
      'output_mean': output.mean(-1),
      'output_variance': output.var(-1),
  }


def answers(batch: Batch, logits: jax.Array) -> Metrics:
  """Returns how well each sequence is answered, and its loss.

  Args:
    batch: S sequences, whose target is a class [S], a class for each of several
      queries [S, Q], or a distribution over classes [S, C] float.
    logits: [S, C], or [S, Q, C].

  Returns:
    `accuracy` [S], nan where a logit is not finite, and `loss` [S], nats, as in
    `vvlen.objectives.targets.score`; means over the queries.
  """
  # Without this, a model whose logits are nan would seem to answer class 0.
  finite = jnp.isfinite(logits).all(-1)
  loss, right = score(logits, batch.target)
  rows = {'accuracy': jnp.where(finite, right, jnp.nan), 'loss': loss}
  return {name: x.reshape(len(x), -1).mean(-1) if x.ndim > 1 else x
          for name, x in rows.items()}


def best_betas(
    apply: Apply,
    sample: Sample,
    variables: Variables,
    key: jax.Array,
    *,
    length: int,
    num_sequences: int,
) -> tuple[jax.Array, jax.Array]:
  """Finds the inverse temperature that is best for each validation sequence.

  Args:
    apply: the model.
    sample: the task.
    variables: of one seed.
    key: of the validation data, different from that of the test data.
    length: N.
    num_sequences: S.

  Returns:
    The entropy of each row's attention [S], nats, and the β among `BETAS` that
    maximizes the probability of its target [S]: the arguments of
    `vvlen.models.temperature.fit`.
  """

  def measure(batch):
    def log_probability(beta):
      logits, sown = apply(variables, batch.query, batch.items, constant(beta))
      picked = pick(jax.nn.log_softmax(logits), batch.target)
      return picked, attention_entropy(sown['attention_weights'])

    betas = jnp.array(BETAS)
    picked, entropies = jax.vmap(log_probability)(betas)  # [K, S]
    # The first of BETAS is 1: that row's entropy is the model's own.
    return entropies[0], betas[picked.argmax(axis=0)]

  return in_chunks(measure, sample, key, length, num_sequences)


def pick(table: jax.Array, index: jax.Array) -> jax.Array:
  """Returns table[..., index]: [..., n], [...] -> [...]."""
  return jnp.take_along_axis(table, index[..., None], axis=-1)[..., 0]
