"""Interventions on the attention output of a trained model, at test time.

Accuracy falls with length N for one of two reasons, or for both: the attention
output o leaves the distribution that the layers after it were trained on (its variance
vanishes, its mean shifts), or attention no longer finds the item (its weights
disperse), and o tells less of it. Each is undone, or done, without the other:

  rescaled      o ← o · r₀ / |o|                          the norm as in training
  recentred     o ← o − μ_N + μ₀                          the mean as in training
  standardized  o ← (o − μ_N) / σ_N · σ₀ + μ₀             mean and variance of each
                                                          component as in training
  shifted       o ← o₀ − μ₀ + μ_N                         outputs o₀ of the longest
                                                          training length, with the mean
  shrunk        o ← (o₀ − μ₀) / σ₀ · σ_N + μ₀             as at N, with the variance
  vanished      o ← (o₀ − μ₀) / σ₀ · σ_N + μ_N             as at N, with both
  reweighted    o ← (o + (e^c − 1) a v) / (1 + (e^c − 1) a)  the target's weight as in
                c = λ₀ − λ_N                              training: c more in its logit
  one_hot       o ← v                                     all weight on the target

μ, σ: mean and standard deviation of each component over sequences; r₀: the mean norm;
a, v: weight and value of the item asked for; λ: the median over sequences of its
log-odds ln a / (1 − a); ₀: at the longest training length. The first three leave the
weights as they are, and restore what is lost to a changed scale, mean or spread of o,
though no signal that has gone. The next three are their counterparts: the signal is
that of training, and what is lost is lost to the mean, to the variance, or to both. The
last two use the label, and with the weight of the target they bring back variance as
well. With `reweighted` the other items are as many as before and keep their
proportions; `one_hot` is the accuracy at N = 1. All are applied before the norm of the
model.

Axes: S sequences, N items, d width of the attention output.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from vvlen.evaluation.lengths import (
  answers,
  Apply,
  in_chunks,
  Metrics,
  Params,
  pick,
  Sample,
)
from vvlen.evaluation.moments import Moments, moments

Changes = Mapping[str, Callable[[jax.Array], jax.Array]]


def rescale(output: jax.Array, norm: jax.Array) -> jax.Array:
  """Returns rows [..., d] of the given norm; a row of zeros stays as it is."""
  length = jnp.linalg.norm(output, axis=-1, keepdims=True)
  return output * jnp.where(length > 0, norm / jnp.where(length > 0, length, 1), 1.0)


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
  # As a change of o, which is exactly none where the moments are equal.
  centred = output - _row(now.mean, output)
  return recentre(output, now, then) + centred * _row(scale - 1.0, output)


def reweight(
    output: jax.Array, weight: jax.Array, value: jax.Array, shift: jax.Array
) -> jax.Array:
  """Returns the output with more, or less, weight on one item.

  Args:
    output: [..., d], the mean of all values, by the attention weights.
    weight: [...], a, of the item, between 0 and 1.
    value: [..., d], of the item.
    shift: [], what is added to its logit.

  Returns:
    The output with that item's weight b, ln b / (1 − b) = ln a / (1 − a) + shift, and
    1 − b shared by the others as they share 1 − a.
  """
  # e^shift times a, all else as it is: the weights then sum to 1 + (e^shift − 1) a.
  more = (jnp.expm1(shift) * weight)[..., None]
  return (output + more * value) / (1 + more)


def log_odds(weight: jax.Array) -> jax.Array:
  """Returns ln a / (1 − a) of weights a between 0 and 1, finite at both ends."""
  info = jnp.finfo(weight.dtype)
  weight = weight.clip(info.tiny, 1 - info.eps)
  return jnp.log(weight) - jnp.log1p(-weight)


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
    `accuracy` and `loss`, nats, and `total_variance`, Σ_j σ_j² of the attention output
    as changed.
  """

  def at(n):
    def measure(batch):
      _, sown = apply(params, batch.query, batch.items)
      weight = pick(sown['attention_weights'], batch.target_index)
      return sown['attention_output'], log_odds(weight)

    outputs, odds = in_chunks(measure, sample, validation_key, n, moment_sequences)
    return moments(outputs), jnp.median(odds)

  (now, odds_now), (then, odds_then) = at(length), at(trained_up_to)

  def row(batch, logits, output):
    return answers(batch, logits) | {'output': output}

  def changed(batch, output, changes: Changes):
    rows = {}
    for suffix, change in changes.items():
      logits, _ = apply(params, batch.query, batch.items, None, change)
      rows[suffix] = row(batch, logits, change(output))
    return rows

  def measure(batch):
    as_it_is, sown = apply(params, batch.query, batch.items)
    output = sown['attention_output']
    weight = pick(sown['attention_weights'], batch.target_index)
    # Attention to a single item returns its value.
    place = batch.target_index.reshape(-1, *[1] * (batch.items.ndim - 1))
    target = jnp.take_along_axis(batch.items, place, axis=1)
    one_hot, alone = apply(params, batch.query, target)
    value = alone['attention_output']
    rows = {'': row(batch, as_it_is, output), '+one_hot': row(batch, one_hot, value)}
    return rows | changed(batch, output, {
        '+rescaled': lambda o: rescale(o, then.norm),
        '+recentred': lambda o: recentre(o, now, then),
        '+standardized': lambda o: match(o, now, then),
        '+reweighted': lambda o: reweight(o, weight, value, odds_then - odds_now),
    })

  def impose(batch):
    _, sown = apply(params, batch.query, batch.items)
    spread = now._replace(mean=then.mean)
    return changed(batch, sown['attention_output'], {
        '+shifted': lambda o: recentre(o, then, now),
        '+shrunk': lambda o: match(o, then, spread),
        '+vanished': lambda o: match(o, then, now),
    })

  rows = in_chunks(measure, sample, test_key, length, num_sequences)
  rows |= in_chunks(impose, sample, test_key, trained_up_to, num_sequences)
  variances = {s: {'total_variance': x.pop('output').var(axis=0).sum()}
               for s, x in rows.items()}
  return {s: {name: x.mean(axis=0) for name, x in metrics.items()} | variances[s]
          for s, metrics in rows.items()}
