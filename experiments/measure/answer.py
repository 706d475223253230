"""What measurements of a checkpoint have found, in sentences. Runs without JAX."""

from collections.abc import Sequence
import math
import statistics

from vvlen.reporting.numbers import counted, interval_words, number
from vvlen.reporting.tables import Record


def answer(
    perplexity: Sequence[Record], recency: Sequence[Record],
    temperature: Sequence[Record] = (),
) -> list[str]:
  """Says how perplexity, recency and the temperature that heads need come out.

  Args:
    perplexity: the records of the table `perplexity`.
    recency: those of the table `recency`.
    temperature: those of the table `temperature`.
  """
  said = []
  own = [r for r in perplexity if r['times_trained'] == 1]
  if own:
    said.append(f'Perplexity is {number(own[0]["block_perplexity"], ".3g")} in blocks '
                f'of L = {own[0]["tokens"]:,} tokens')
  longest = max(perplexity, key=lambda r: r['tokens'], default=None)
  if longest and longest['times_trained'] > 1 and longest['block_ratio'] > 0:
    low, high = (longest[f'block_ratio{end}'] for end in ('_low', '_high'))
    interval = '' if math.isnan(low) else f' {interval_words(low, high, ".3g")}'
    said.append(f'{number(longest["block_ratio"], ".3g")} times as high{interval} at '
                f'{longest["times_trained"]:g} L')
  said = [f'{", and ".join(said)}.'] if said else []
  shuffled = [r for r in recency if not math.isnan(r['shuffled_recency_probability'])]
  if shuffled:
    values = [r['shuffled_recency_probability'] for r in shuffled]
    low, high = (number(x, '.2f') for x in (min(values), max(values)))
    said.append('Recency probability of shuffled text, where 0.5 is no order: from '
                f'{low} to {high} over {counted(len(values), "layer")}.')
  fitted = [r for r in temperature if not math.isnan(r['text_of_n_low'])]
  if fitted:
    grows = sum(r['text_of_n_low'] > 0 for r in fitted)
    falls = sum(r['text_of_n_high'] < 0 for r in fitted)
    of_n, of_log_n = (number(statistics.median(r[f'text_{x}'] for r in fitted), '+.2f')
                      for x in ('of_n', 'of_log_n'))
    said.append('The inverse temperature that gives the top key half of the weight '
                f'grows with N in {grows} of {counted(len(fitted), "head")} and falls '
                f'in {falls}; in the median head as N to the power {of_n}, or as log N '
                f'to the power {of_log_n}.')
  return said
