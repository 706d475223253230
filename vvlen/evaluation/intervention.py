"""Interventions on the attention output of a trained model, at test time.

Accuracy falls with length N for one of two reasons, or for both: the attention
output o leaves the range that the layers after it were trained on (its variance
vanishes, its mean shifts), or attention no longer finds the item (its weights
disperse). Changing o alone tells them apart:

  rescaled      o ← o · r₀ / |o|                          the norm as in training
  recentred     o ← o − μ_N + μ₀                          the mean as in training
  standardized  o ← (o − μ_N) / σ_N · σ₀ + μ₀             mean and variance of each
                                                          component as in training
  one_hot       o ← the value of the item asked for       all weight on the target

μ, σ: mean and standard deviation of each component over sequences; r₀: the mean norm;
₀: at the longest training length. The first three leave the weights as they are and
would restore accuracy if vanishing variance or the shift were to blame; the last
shows what the layers after attention do with an item that stands out alone: it is the
accuracy at N = 1, and does not tell whether they could read a dispersed output. All
are applied before the norm of the model.

Axes: S sequences, N items, d width of the attention output.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from vvlen.evaluation import distribution
from vvlen.evaluation.lengths import Apply, in_chunks, Metrics, Params, Sample
from vvlen.evaluation.moments import Moments

NAMES = ('rescaled', 'recentred', 'standardized', 'one_hot')


def rescale(output: jax.Array, norm: jax.Array) -> jax.Array:
  """Returns rows [..., d] of the given norm; a row of zeros stays as it is."""
  length = jnp.linalg.norm(output, axis=-1, keepdims=True)
  return jnp.where(length > 0, output * norm / jnp.where(length > 0, length, 1), output)


def recentre(output: jax.Array, now: Moments, then: Moments) -> jax.Array:
  """Returns o − μ_now + μ_then, [..., d]."""
  return output + _row(then.mean - now.mean, output)


def match(output: jax.Array, now: Moments, then: Moments) -> jax.Array:
  """Returns (o − μ_now) / σ_now · σ_then + μ_then, [..., d].

  A component that does not vary now keeps its deviation from the mean.
  """
  constant = now.deviation <= 0
  scale = jnp.where(
      constant, 1.0, then.deviation / jnp.where(constant, 1.0, now.deviation)
  )
  centred = output - _row(now.mean, output)
  return centred * _row(scale, output) + _row(then.mean, output)


def _row(vector: jax.Array, like: jax.Array) -> jax.Array:
  return jnp.expand_dims(vector, range(like.ndim - 1))


def intervene(
    apply: Apply, sample: Sample, params: Params, test_key: jax.Array,
    validation_key: jax.Array, *, length: int, trained_up_to: int,
    num_sequences: int, moment_sequences: int,
) -> dict[str, Metrics]:
  """Measures one model on one length, as it is and under each intervention.

  Args:
    apply: the model.
    sample: the task.
    params: of one seed.
    test_key: the same as for `lengths.evaluate`, for the same sequences.
    validation_key: for moments; at a length, other sequences than those tested.
    length: N.
    trained_up_to: the length to whose moments the output is brought.
    num_sequences: S.
    moment_sequences: sequences that moments are measured on.

  Returns:
    {'': metrics, '+rescaled': metrics, …}, each the means over sequences of
    `accuracy` and `loss`, nats, and '' also of `output_norm`, the norm of the
    attention output.
  """
  at = lambda n: distribution.moments_at(
      apply, sample, params, validation_key, length=n,
      num_sequences=moment_sequences, of='attention_output',
  )
  now, then = at(length), at(trained_up_to)
  changes: dict[str, Callable[[jax.Array], jax.Array] | None] = {
      '': None,
      '+rescaled': lambda o: rescale(o, then.norm),
      '+recentred': lambda o: recentre(o, now, then),
      '+standardized': lambda o: match(o, now, then),
  }

  def answers(batch, logits):
    log_probability = jax.nn.log_softmax(logits)
    picked = jnp.take_along_axis(log_probability, batch.target[:, None], axis=1)[:, 0]
    right = logits.argmax(-1) == batch.target
    # Without this, a model of nan would seem to answer class 0.
    finite = jnp.isfinite(logits).all(-1)
    return {'accuracy': jnp.where(finite, right, jnp.nan), 'loss': -picked}

  def measure(batch):
    rows = {}
    for suffix, change in changes.items():
      logits, sown = apply(params, batch.query, batch.items, None, change)
      rows[suffix] = answers(batch, logits)
      if not suffix:
        norm = jnp.linalg.norm(sown['attention_output'], axis=-1)
        rows[suffix]['output_norm'] = norm
    # Attention to a single item returns its value.
    place = batch.target_index.reshape(-1, *[1] * (batch.items.ndim - 1))
    target = jnp.take_along_axis(batch.items, place, axis=1)
    logits, _ = apply(params, batch.query, target)
    rows['+one_hot'] = answers(batch, logits)
    return rows

  rows = in_chunks(measure, sample, test_key, length, num_sequences)
  return jax.tree.map(lambda x: x.mean(axis=0), rows)
