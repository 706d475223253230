"""Measurements of attention outputs, weights and logits of a checkpoint."""

from collections.abc import Iterator
import functools
from typing import Any

import numpy as np

from experiments.measure import measurements
from experiments.measure.measurements import interval, Measurement, row, Subject
from experiments.measure.rows import Name, Part, READINGS, SPREAD_ARMS, spread_part
from vvlen.evaluation import attention_by_length, probe, temperature_law
from vvlen.evaluation import attention_spread as output_spread
from vvlen.reporting import results
from vvlen.statistics import percentile_interval

_RANDOM, _QUERIES, _ORDER = range(3)  # purposes of random numbers


def spread(config: Any, subject: Subject) -> Iterator[Measurement]:
  """Yields a measurement for each layer and curve of Figure 1, heads included."""
  own, model, size = config.spread, subject.model, subject.vocab_size
  lengths = measurements.octaves(own.shortest, subject.length * own.longest, 'spread')
  heads = measurements.heads_of(config, 'spread', model)
  text = measurements.spaced(subject.stream, lengths[-1], own.num_sequences)
  drawn = np.random.default_rng([config.seed, _RANDOM])
  random = drawn.integers(size, size=text.shape, dtype=np.int32)
  drawn = np.random.default_rng([config.seed, _QUERIES])
  queries = drawn.choice(size, min(size, own.num_queries), replace=False).tolist()
  conditions = {'random': (model, random), 'text': (model, text)}
  if model.rope is not None:
    # Without positions first, as in the paper.
    conditions = {'random_nope': (model.clone(rope=None), random)} | conditions

  def measure(condition, layer, reading, variables):
    model_here, sequences = conditions[condition]
    part = spread_part(condition, reading, layer)
    outputs_of = functools.partial(
        output_spread.spread_by_length, probe.probe_layer(model_here, variables, layer),
        sequences, lengths, separately=probe.reads_ahead(model_here, lengths[-1]),
        tokens_at_once=config.tokens_at_once,
    )
    tokens = queries if reading == 'fixed' else [None]
    outputs = np.stack([outputs_of(token) for token in tokens])
    rows = [row(part, None, 'num_sequences', len(sequences)),
            row(part, None, 'num_queries', len(tokens)),
            *_slopes(config, part, lengths, outputs)]
    width = outputs.shape[-1] // model.num_heads
    for head in heads:
      own_part = outputs[..., head * width : (head + 1) * width]
      rows += _slopes(config, part._replace(head=head), lengths, own_part)
    single = outputs[0].std(axis=0)
    # A few components, spread over all heads, with the first query.
    for i in np.linspace(0, single.shape[1] - 1, own.num_components).astype(int):
      rows += [row(part._replace(component=int(i)), n, 'std', x)
               for n, x in zip(lengths, single[:, i], strict=True)]
    return rows

  for layer in measurements.layers_of(config, 'spread', model):
    for condition in conditions:
      for reading in READINGS:
        passes = len(queries) * 2 if reading == 'fixed' else 1
        yield Measurement(Name('spread', SPREAD_ARMS[condition, reading], layer=layer),
                          passes * text.size * (layer + 1),
                          functools.partial(measure, condition, layer, reading))


def _slopes(
    config: Any, part: Part, lengths: list[int], outputs: np.ndarray
) -> list[results.Row]:
  """Returns rows of slope and curve of outputs [Q, S, lengths, components]."""
  of_each = [output_spread.slope(lengths, x, num_resamples=0)[0] for x in outputs]
  rows = [row(part, None, 'slope_least', min(of_each)),
          row(part, None, 'slope_most', max(of_each))]
  found = output_spread.deviations(outputs, config.num_resamples, config.seed)
  ends = percentile_interval(found[1:])
  for end, slope, curve in zip(
      results.ENDS, output_spread.fit(lengths, found), (found[0], *ends),
      strict=True):
    rows.append(row(part, None, f'slope{end}', slope))
    rows += [row(part, n, f'std{end}', x) for n, x in zip(lengths, curve, strict=True)]
  return rows


def entropy(config: Any, subject: Subject) -> Iterator[Measurement]:
  """Yields a measurement for each order of the tokens, with all layers and lengths.

  It also has the inverse temperature at which one key gets half of the weight.
  """
  own, model = config.entropy, subject.model
  layers = measurements.layers_of(config, 'entropy', model)
  lengths = measurements.octaves(own.shortest, subject.length * own.longest, 'entropy')
  orders = _orders(config, subject, lengths[-1], own.num_sequences)

  def measure(order, variables):
    found, betas = attention_by_length.by_length(
        probe.probe_layers(model, variables, layers), orders[order], lengths,
        (attention_by_length.entropy_of_weights,
         attention_by_length.temperature_of_top),
        separately=probe.reads_ahead(model, lengths[-1]),
        tokens_at_once=config.tokens_at_once,
    )
    rows = []
    for i, layer in enumerate(layers):
      for j, n in enumerate(lengths):
        part, by_head = Part('entropy', order, layer), found[:, i, :, j]
        rows += interval(config, part, n, 'entropy', by_head.mean(1))
        rows += [row(part._replace(head=h), n, 'entropy', x)
                 for h, x in enumerate(by_head.mean(0))]
      rows.append(row(part, lengths[-1], 'num_sequences', len(found)))
      for h in range(betas.shape[2]):
        rows += _temperatures(config, part._replace(head=h), lengths, betas[:, i, h])
    return rows

  for order, sequences in orders.items():
    yield Measurement(Name('entropy', order), sequences.size * (max(layers) + 1),
                      functools.partial(measure, order))


def _temperatures(
    config: Any, part: Part, lengths: list[int], betas: np.ndarray
) -> list[results.Row]:
  """Returns rows of a head's median inverse temperature by length, and of its laws.

  Args:
    config: with the fields num_resamples and seed.
    part: of the rows.
    lengths: in tokens.
    betas: [S, lengths], of each sequence.
  """
  rows = [row(part, n, 'temperature', x)
          for n, x in zip(lengths, np.median(betas, axis=0), strict=True)]
  laws = temperature_law.exponents(lengths, betas, config.num_resamples, config.seed)
  for name, values in laws._asdict().items():
    rows += [row(part, None, f'exponent_{name}{end}', x)
             for end, x in zip(results.ENDS, values, strict=True) if np.isfinite(x)]
  return rows


def recency(config: Any, subject: Subject) -> Iterator[Measurement]:
  """Yields a measurement for each order of the tokens, with all layers."""
  own, model = config.recency, subject.model
  layers = measurements.layers_of(config, 'recency', model)
  orders = _orders(config, subject, own.num_tokens, own.num_sequences)

  def measure(order, variables):
    found = attention_by_length.recency_by_layer(
        probe.probe_layers(model, variables, layers), orders[order], own.num_queries,
        tokens_at_once=config.tokens_at_once,
    )
    rows = []
    for i, layer in enumerate(layers):
      part = Part('recency', order, layer)
      for name in ('recency_probability', 'violation_rate'):
        by_head = getattr(found, name)[:, i]
        rows += interval(config, part, own.num_tokens, name, by_head.mean(1))
        rows += [row(part._replace(head=h), own.num_tokens, name, x)
                 for h, x in enumerate(by_head.mean(0))]
      for h, scores in enumerate(found.mean_score[:, i].mean(0)):
        rows += [row(part._replace(head=h, distance=low), own.num_tokens, 'logit_at',
                     scores[low:high].mean())
                 for low, high in measurements.bins(0, own.num_tokens)]
    return rows

  for order, sequences in orders.items():
    yield Measurement(Name('recency', order), sequences.size * (max(layers) + 1),
                      functools.partial(measure, order))


def _orders(
    config: Any, subject: Subject, length: int, count: int
) -> dict[str, np.ndarray]:
  """Returns sequences of the text, and the same sequences with shuffled tokens."""
  text = measurements.spaced(subject.stream, length, count)
  seed = [config.seed, _ORDER, length]
  return {'text': text, 'shuffled': attention_by_length.shuffled(text, seed)}
