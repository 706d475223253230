"""What a checkpoint's own temperatures change in its predictions beyond L.

Each head gets the law that is fitted to its logits on text, as the table `temperature`
has it, or all heads get log N (`vvlen.evaluation.tempered_heads`). Weights stay as they
are, and so do predictions up to L.
"""

from collections.abc import Iterator, Mapping
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.measure import measurements
from experiments.measure.measurements import interval, Measurement, row, Subject
from experiments.measure.rows import LAWS, Name, TEMPERED
from vvlen.evaluation import attention_by_length, perplexity, probe
from vvlen.evaluation.programs import Hidden
from vvlen.evaluation.temperature_law import powers_of
from vvlen.evaluation.tempered_heads import (
  apply_tempered,
  power_of_log_n,
  power_of_n,
)
from vvlen.models.llama.model import Llama, output_table


def tempered(config: Any, subject: Subject) -> Iterator[Measurement]:
  """Yields one measurement: log perplexity in blocks longer than L, under each law."""
  own, model, trained = config.perplexity, subject.model, subject.length
  every = measurements.times(trained, own.lengths, 'perplexity.lengths', 2)
  lengths = [n for n in every if n > trained]
  if not lengths or trained < 2:
    return
  fitted_at = measurements.octaves(
      config.entropy.shortest, trained * config.entropy.longest, 'entropy')
  sequences = measurements.spaced(
      subject.stream, fitted_at[-1], config.entropy.num_sequences)
  text = subject.stream[: measurements.scored(config, subject)]
  begin = subject.begin if own.begin else None
  options: Any = {'begin': begin, 'tokens_at_once': config.tokens_at_once}
  model_of = measurements.hidden_of(model)

  def measure(variables):
    layers = range(model.num_layers)
    betas = attention_by_length.by_length(
        probe.probe_layers(model, variables, [*layers]), sequences, fitted_at,
        (attention_by_length.temperature_of_top,),
        separately=probe.reads_ahead(model, fitted_at[-1]),
        tokens_at_once=config.tokens_at_once)[0]
    powers = fit(betas, fitted_at, trained)
    rows = [row(TEMPERED, None, f'heads_{law}', np.isfinite(x).sum())
            for law, x in powers.items()]
    for n in lengths:
      plain = _by_piece(config, subject, model_of(variables), text, n, options)
      rows += interval(config, TEMPERED, n, 'nll', *plain)
      for law, power in powers.items():
        losses, scored = _by_piece(
            config, subject, _hidden(model, variables, factors(law, power, n, trained)),
            text, n, options)
        rows += interval(
            config, TEMPERED, n, f'change_{law}', losses - plain[0], scored)
      rows.append(row(TEMPERED, n, 'pieces', len(plain[0])))
    return rows

  work = len(text) * len(lengths) * (1 + len(LAWS)) + sequences.size
  yield Measurement(Name(TEMPERED.experiment, TEMPERED.arm), work * model.num_layers,
                    measure)


def fit(
    betas: np.ndarray, lengths: list[int], longest: int
) -> Mapping[str, np.ndarray]:
  """Returns the exponent of each law, [layers, heads], nan where there is none.

  Args:
    betas: β [S, layers, heads, lengths] of S sequences.
    lengths: N, in tokens.
    longest: L; the law `power_in_training` is fitted up to it.
  """
  shape = betas.shape[1:3]
  # [layers x heads, S, lengths]
  of_heads = np.moveaxis(betas, 0, 2).reshape(-1, len(betas), len(lengths))
  short = [i for i, n in enumerate(lengths) if n <= longest]
  near = (powers_of([lengths[i] for i in short], of_heads[..., short])[:, 0]
          if len(short) > 1 else np.full(len(of_heads), np.nan))
  of_n, of_log_n = powers_of(lengths, of_heads).T
  found = {'power_in_training': near, 'power': of_n, 'power_of_log': of_log_n,
           'log_n': np.ones(len(of_heads)), 'inverse_log_n': -np.ones(len(of_heads))}
  return {law: found[law].reshape(shape) for law in LAWS}


def factors(law: str, powers: np.ndarray, length: int, longest: int) -> jax.Array:
  """Returns the factors of the logits by a law, [layers, length, heads].

  It is 1 for a head without an exponent.
  """
  grows = power_of_n if law in ('power_in_training', 'power') else power_of_log_n
  return grows(jnp.nan_to_num(jnp.asarray(powers, jnp.float32)), length, longest)


@functools.partial(jax.jit, static_argnums=0)
def _states(model, of_heads, variables, tokens):
  return apply_tempered(model, of_heads, variables, tokens, method='hidden')


def _hidden(model: Llama, variables: dict[str, Any], of_heads: jax.Array) -> Hidden:
  return Hidden(functools.partial(_states, model, of_heads, variables),
                output_table(model, variables['params']))


def _by_piece(
    config: Any, subject: Subject, model: Hidden, text: np.ndarray, length: int,
    options: Any,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns mean losses of pieces of the text, in blocks, and how many are scored."""
  losses = perplexity.block_losses(model, text, length, **options)
  of_text = length - (options['begin'] is not None)
  longest = round(max(config.perplexity.lengths) * subject.length)  # of a piece
  return measurements.by_piece(
      losses.sum(1), np.full(len(losses), losses.shape[1]),
      of_text * (np.arange(len(losses)) + 0.5), longest, len(text) // longest)
