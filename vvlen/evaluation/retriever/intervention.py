"""Interventions on the attention output of a trained model, at test time.

Accuracy may fall with length N for three reasons: the attention output o leaves the
distribution that the layers after it were trained on (its variance vanishes, its mean
shifts, its axes turn); those layers read o in a way that no longer fits; or attention
no longer finds the item (its weights disperse), so that o has less information on it,
however it is read. Each intervention undoes, or causes, one of these alone:

  rescaled      o ← o · r₀ / |o|                          the norm as in training
  recentred     o ← o − μ_N + μ₀                          the mean as in training
  standardized  o ← (o − μ_N) / σ_N · σ₀ + μ₀             mean and variance of each
                                                          component as in training
  covariance    o ← Σ₀^½ Σ_N^−½ (o − μ_N) + μ₀            mean and covariance as in
                                                          training
  shifted       o ← o₀ − μ₀ + μ_N                         o₀ with the mean at N
  shrunk        o ← (o₀ − μ₀) / σ₀ · σ_N + μ₀             o₀ with the variance at N
  vanished      o ← (o₀ − μ₀) / σ₀ · σ_N + μ_N            o₀ with both
  reweighted    o ← (o + (e^c − 1) a v) / (1 + (e^c − 1) a)  the target's weight as in
                c = λ₀ − λ_N                              training: c added to its logit
  one_hot       o ← v                                     all weight on the target

μ, σ, Σ: mean and standard deviation of each component, and covariance, over sequences;
r₀: the mean norm; a, v: weight and value of the item asked for; λ: the median over
sequences of its log-odds ln a / (1 − a); ₀: at the longest training length. The first
four leave the attention weights as they are, and restore the accuracy that was lost to
a changed scale, mean or spread of o. The next three are their counterparts: z-scores
(o − μ) / σ of the components are those of training, so any loss of accuracy comes from
the mean, from the variance, or from both. The last two use the label, and by changing
the weight of the target they also bring back variance. With `reweighted` the other
items are as many as before and keep their proportions; `one_hot` is the accuracy at
N = 1. All are applied before the norm of the model, and read by the model's own trained
layers. Three others do not use these layers:

  refit           a linear reader of o, fitted at N (in `reader.py` beside this file):
                  what a reader trained at N can read from o
  refit_strong    the same, from only those principal axes whose deviation is at least a
                  hundredth of the largest
  attended_class  argmax_c of the sum of a_i over items i of class c: the answer of the
                  attention weights alone, without values

Accuracy that `refit` has and the model lacks is lost by its layers, not by attention.

Axes: S sequences, N items, d width of the attention output.
"""

from collections.abc import Callable, Mapping
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vvlen.evaluation.retriever.axes import (
  match_covariance,
  principal_axes,
  PrincipalAxes,
  WEAKEST,
)
from vvlen.evaluation.retriever.changes import (
  log_odds,
  match,
  recentre,
  rescale,
  reweight,
)
from vvlen.evaluation.retriever.lengths import (
  answers,
  Apply,
  in_chunks,
  Metrics,
  pick,
  Sample,
  Variables,
)
from vvlen.evaluation.retriever.moments import Moments, moments
from vvlen.evaluation.retriever.reader import read, Reader, refit

# `refit_strong` reads axes whose deviation is at least this share of the largest.
STRONG = 1e-2

# suffix of an intervention -> a function of o [..., d]
Changes = Mapping[str, Callable[[jax.Array], jax.Array]]
# batch -> class of each item [S, N] int
ItemClass = Callable[[Any], jax.Array]
# suffix of an intervention -> `accuracy` and `loss` [S] and `output` [S, d]
Rows = dict[str, Metrics]


class Outputs(NamedTuple):
  """What a model makes of S sequences."""

  output: jax.Array  # o [S, d]
  log_odds: jax.Array  # ln a / (1 − a) [S], of the item asked for
  target: jax.Array  # [S] int
  logits: jax.Array  # [S, C]


class Distribution(NamedTuple):
  """Of the attention output over sequences of one length."""

  moments: Moments  # μ, σ, r
  axes: PrincipalAxes  # of Σ
  log_odds: jax.Array  # λ, []


def intervene(
    apply: Apply, sample: Sample, variables: Variables, test_key: jax.Array,
    validation_key: jax.Array, *, length: int, trained_up_to: int,
    num_sequences: int, moment_sequences: int, select_sequences: int,
    item_class: ItemClass,
) -> dict[str, Metrics]:
  """Measures one model at one length, as it is and under each intervention.

  Args:
    apply: the model.
    sample: the task.
    variables: of one seed.
    test_key: of the test data; that of `lengths.evaluate` gives the same sequences.
    validation_key: of the sequences for moments and readers, other than those tested.
    length: N.
    trained_up_to: the longest training length, ₀.
    num_sequences: S.
    moment_sequences: the number of sequences that moments are measured on, and readers
      fitted to; many times d.
    select_sequences: the number of further sequences on which the penalty of readers is
      chosen.
    item_class: the class that each item stands for.

  Returns:
    {'': metrics, '+rescaled': metrics, …}, each the means over sequences of
    `accuracy` and `loss`, nats, and `total_variance`, Σ_j σ_j² of the attention output
    as changed.
  """
  on_validation = functools.partial(
      _draw_outputs, apply, sample, variables, count=moment_sequences)
  output_now = on_validation(validation_key, length=length)
  now = _distribution(output_now)
  then = _distribution(on_validation(validation_key, length=trained_up_to))
  apart = on_validation(
      jax.random.fold_in(validation_key, 1), length=length, count=select_sequences)
  readers = _fit_readers(output_now, apart)

  at_length = functools.partial(
      _restored, apply, variables, now, then, readers, item_class)
  in_training = functools.partial(_imposed, apply, variables, now, then)
  rows = in_chunks(at_length, sample, test_key, length, num_sequences)
  rows |= in_chunks(in_training, sample, test_key, trained_up_to, num_sequences)
  return _over_sequences(rows)


def _draw_outputs(
    apply: Apply, sample: Sample, variables: Variables, key: jax.Array, length: int,
    count: int,
) -> Outputs:
  """Draws `count` sequences and applies the model to them."""

  def outputs(batch: Any) -> Outputs:
    logits, sown = apply(variables, batch.query, batch.items)
    weight = pick(sown['attention_weights'], batch.target_index)
    return Outputs(sown['attention_output'], log_odds(weight), batch.target, logits)

  return in_chunks(outputs, sample, key, length, count)


def _distribution(outputs: Outputs) -> Distribution:
  return Distribution(
      moments(outputs.output), principal_axes(outputs.output),
      jnp.median(outputs.log_odds))


def _fit_readers(outputs: Outputs, apart: Outputs) -> dict[str, Reader]:
  """Returns the two readers fitted to `outputs`, whose penalty `apart` chooses."""
  num_classes = apart.logits.shape[-1]
  return {
      suffix: refit(outputs.output, outputs.target, apart.output, apart.target,
                    num_classes, weakest)
      for suffix, weakest in (('+refit', WEAKEST), ('+refit_strong', STRONG))
  }


def _restored(
    apply: Apply, variables: Variables, now: Distribution, then: Distribution,
    readers: Mapping[str, Reader], item_class: ItemClass, batch: Any,
) -> Rows:
  """Returns the rows at N: as it is, with a property of training, and read otherwise.

  Args:
    apply: the model.
    variables: of one seed.
    now: the distribution at N.
    then: at the longest training length, ₀.
    readers: linear readers of o, by their suffix.
    item_class: the class that each item stands for.
    batch: S sequences of N items.
  """
  logits, sown = apply(variables, batch.query, batch.items)
  output, weights = sown['attention_output'], sown['attention_weights']
  weight = pick(weights, batch.target_index)
  value_logits, value = _target_alone(apply, variables, batch)
  votes = class_weights(weights, item_class(batch), logits.shape[-1])
  rows = {
      '': _row_of(batch, logits, output),
      '+one_hot': _row_of(batch, value_logits, value),
      '+attended_class': _row_of(batch, votes, output),
  }
  rows |= {suffix: _row_of(batch, read(reader, output), output)
           for suffix, reader in readers.items()}
  return rows | _changed(apply, variables, batch, output, {
      '+rescaled': lambda o: rescale(o, then.moments.norm),
      '+recentred': lambda o: recentre(o, now.moments, then.moments),
      '+standardized': lambda o: match(o, now.moments, then.moments),
      '+covariance': lambda o: match_covariance(o, now.axes, then.axes),
      '+reweighted': lambda o: reweight(
          o, weight, value, then.log_odds - now.log_odds),
  })


def _imposed(
    apply: Apply, variables: Variables, now: Distribution, then: Distribution,
    batch: Any,
) -> Rows:
  """Returns the rows at the training length, with the mean, the variance, or both of N.

  Args: as of `_restored`, but sequences of `batch` have the longest training length.
  """
  _, sown = apply(variables, batch.query, batch.items)
  spread = now.moments._replace(mean=then.moments.mean)
  return _changed(apply, variables, batch, sown['attention_output'], {
      '+shifted': lambda o: recentre(o, then.moments, now.moments),
      '+shrunk': lambda o: match(o, then.moments, spread),
      '+vanished': lambda o: match(o, then.moments, now.moments),
  })


def _target_alone(
    apply: Apply, variables: Variables, batch: Any
) -> tuple[jax.Array, jax.Array]:
  """Returns logits [S, C] and output v [S, d] of attention to the target alone.

  Attention to a single item returns its value.
  """
  place = batch.target_index.reshape(-1, *[1] * (batch.items.ndim - 1))
  target = jnp.take_along_axis(batch.items, place, axis=1)
  logits, sown = apply(variables, batch.query, target)
  return logits, sown['attention_output']


def class_weights(
    weights: jax.Array, classes: jax.Array, num_classes: int
) -> jax.Array:
  """Returns ln Σ_i a_i over the items i of class c: the weight on each class.

  Args:
    weights: [S, N].
    classes: [S, N] int, of each item.
    num_classes: C.

  Returns:
    [S, C], finite even if a class has no weight.
  """
  one_hot = jax.nn.one_hot(classes, num_classes, dtype=weights.dtype)
  votes = jnp.einsum(
      'sn,snc->sc', weights, one_hot, precision=jax.lax.Precision.HIGHEST
  )
  return jnp.log(jnp.maximum(votes, jnp.finfo(votes.dtype).tiny))


def _changed(
    apply: Apply, variables: Variables, batch: Any, output: jax.Array, changes: Changes
) -> Rows:
  """Returns the rows of each change of the output o ← change(o), by its suffix.

  With the changed output given, attention is not computed again: a compiled program
  leaves it out, as nothing depends on it.
  """
  rows = {}
  for suffix, change in changes.items():
    changed = change(output)
    logits, _ = apply(
        variables, batch.query, batch.items, None, lambda _, changed=changed: changed)
    rows[suffix] = _row_of(batch, logits, changed)
  return rows


def _row_of(batch: Any, logits: jax.Array, output: jax.Array) -> Metrics:
  """Returns `accuracy` and `loss` [S] of the logits, and the `output` [S, d]."""
  return answers(batch, logits) | {'output': output}


def _over_sequences(rows: Rows) -> dict[str, Metrics]:
  """Returns means over sequences, and total_variance = Σ_j σ_j² of the outputs."""
  variances = {suffix: row['output'].var(axis=0).sum() for suffix, row in rows.items()}
  return {
      suffix: {name: x.mean(axis=0) for name, x in row.items() if name != 'output'}
              | {'total_variance': variances[suffix]}
      for suffix, row in rows.items()
  }
