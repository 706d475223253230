"""What a checkpoint's own temperatures change in its predictions beyond L.

Each head gets the law that is fitted to its logits on text, or all heads get log N
(`vvlen.evaluation.tempered_heads`). Weights stay as they are, and so do predictions up
to L. The sequences are those of the table `temperature`, after BOS if windows of
perplexity begin with it.
"""

from collections.abc import Iterator, Sequence
import functools
from typing import Any

import jax
import numpy as np

from experiments.harness.temperatures import factors, with_controls
from experiments.measure import measurements
from experiments.measure.measurements import interval, Measurement, row, Subject
from experiments.measure.rows import LAWS, Name, TEMPERED
from vvlen.evaluation import attention_by_length, perplexity, probe
from vvlen.evaluation.programs import Hidden
from vvlen.evaluation.temperature_law import powers_of
from vvlen.evaluation.tempered_heads import apply_tempered
from vvlen.models.llama.model import Llama, output_table


def tempered(config: Any, subject: Subject) -> Iterator[Measurement]:
  """Yields one measurement: log perplexity in blocks longer than L, under each law.

  It yields none with ALiBi, whose bias no temperature of the queries changes.
  """
  own, model, trained = config.perplexity, subject.model, subject.length
  every = measurements.times(trained, own.lengths, 'perplexity.lengths', 2)
  lengths = [n for n in every if n > trained]
  if not lengths or trained < 2 or model.alibi:
    return
  layers = measurements.layers_of(config, 'entropy', model)
  fitted_at = measurements.octaves(
      config.entropy.shortest, trained * config.entropy.longest, 'entropy')
  sequences = measurements.spaced(
      subject.stream, fitted_at[-1], config.entropy.num_sequences)
  begin = subject.begin if own.begin else None
  if begin is not None:  # as in the blocks that are measured
    sequences = np.insert(sequences, 0, begin, axis=1)[:, :-1]
  text = subject.stream[: measurements.scored(config, subject)]
  options: Any = {'begin': begin, 'tokens_at_once': config.tokens_at_once}
  model_of = measurements.hidden_of(model)

  def measure(variables):
    betas = attention_by_length.by_length(
        probe.probe_layers(model, variables, layers), sequences, fitted_at,
        (attention_by_length.temperature_of_top,),
        separately=probe.reads_ahead(model, fitted_at[-1]),
        tokens_at_once=config.tokens_at_once)[0]
    powers = fit(betas, fitted_at, trained, layers, model.num_layers)
    rows = [row(TEMPERED, None, f'heads_{law}', np.isfinite(powers[law]).sum())
            for law in LAWS]
    for n in lengths:
      of_blocks = lambda model, n=n: measurements.of_blocks(
          perplexity.block_losses(model, text, n, **options), n, begin, every[-1],
          len(text) // every[-1])
      plain, scored = of_blocks(model_of(variables))
      for law in LAWS:
        of_heads = factors(law, powers[law], n, trained)
        losses, _ = of_blocks(_hidden(model, variables, of_heads))
        rows += interval(config, TEMPERED, n, f'change_{law}', losses - plain, scored)
      rows.append(row(TEMPERED, n, 'pieces', len(plain)))
    return rows

  work = len(text) * len(lengths) * (1 + len(LAWS)) + sequences.size
  yield Measurement(Name(TEMPERED.experiment, TEMPERED.arm), work * model.num_layers,
                    measure)


def fit(
    betas: np.ndarray, lengths: list[int], longest: int, layers: Sequence[int],
    num_layers: int,
) -> dict[str, np.ndarray]:
  """Returns the powers of each law, [num_layers, heads], nan where there is none.

  Args:
    betas: β [S, layers, heads, lengths] of S sequences.
    lengths: N, in tokens.
    longest: L; the law `power_in_training` is fitted up to it.
    layers: those that were measured; the others have no powers of their own.
    num_layers: of the model.
  """
  heads = betas.shape[2]

  def of(some, which):
    found = np.full((num_layers, heads), np.nan)
    if len(some) > 1:
      for i, layer in enumerate(layers):
        by_head = np.moveaxis(betas[:, i], 1, 0)[..., some]  # [heads, S, lengths]
        found[layer] = powers_of([lengths[n] for n in some], by_head)[:, which]
    return found

  everywhere = [*range(len(lengths))]
  found = with_controls(of(everywhere, 0), of(everywhere, 1))
  short = [i for i, n in enumerate(lengths) if n <= longest]
  return found | {'power_in_training': of(short, 0)}


@functools.partial(jax.jit, static_argnums=0)
def _states(model, of_heads, variables, tokens):
  return apply_tempered(model, of_heads, variables, tokens, method='hidden')


def _hidden(model: Llama, variables: dict[str, Any], of_heads: jax.Array) -> Hidden:
  return Hidden(functools.partial(_states, model, of_heads, variables),
                output_table(model, variables['params']))
