"""What a run of language models has found, in sentences. Runs without JAX."""

import math

from experiments.language_model.arms import endpoint, Family, Run
from experiments.language_model.figures import times
from experiments.language_model.tables import compare, most_to_learn
from vvlen.reporting.numbers import interval_words, number, p_words
from vvlen.reporting.results import Index
from vvlen.statistics import mean_interval


def answer(family: Family, run: Run, index: Index, vocabulary: int | None) -> list[str]:
  """Says what the term changes at the primary endpoint, and how well models predict.

  Args:
    family: the one with the primary endpoint.
    run: the run.
    index: of its rows.
    vocabulary: number of bytes, of models that were trained from scratch on bytes;
      None of others.
  """
  at, control = endpoint(run), family.control
  primary = next((a for a in family.others if a.name == family.primary), None)
  losses = {
      arm.weight: mean_interval([*index[arm.name, 'nll', run.length].values()])[0]
      for arm in (control, primary) if arm
  }
  said = ', '.join(f'{math.exp(loss):#.3g}'.removesuffix('.') + f' (α = {weight:g})'
                   for weight, loss in losses.items())
  trained = f'Perplexity at the training length, {run.length} tokens: {said}'
  chance = (f'; guessing one of the {vocabulary:,} bytes has {vocabulary:,}, and '
            f'{math.sqrt(vocabulary):.3g} or less counts as learned'
            if vocabulary else '')
  if max(losses.values()) > most_to_learn(vocabulary):
    return ['No verdict: the models have learned little more than how often tokens '
            'occur.', f'{trained}{chance}.']
  test = compare(index, primary.name, control.name, at) if primary else None
  if primary is None or test is None or math.isnan(test.p):
    return ['No verdict: fewer than two pairs of seeds, or no arm with α = 0.1.',
            f'{trained}.']
  interval = interval_words(test.ci_low, test.ci_high, '+.3f')
  found = '' if test.p < 0.05 else '; no difference was found'
  return [
      f'The misalignment term with α = {primary.weight:g} changes log perplexity at '
      f'{times(at // run.length)}, {at} tokens, by '
      f'{number(test.mean_difference, "+.3f")} nats {interval}, '
      f'{p_words(test.p)}, {test.num_pairs} pairs of seeds{found}.',
      f'{trained}{chance}.']
