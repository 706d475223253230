"""What temperatures change beyond L: table, figure and sentence. Runs without JAX."""

from collections.abc import Sequence
import math
from typing import Any

from matplotlib.figure import Figure

from experiments.measure.attention_figures import checkpoint
from experiments.measure.rows import LAWS, lengths_of, TEMPERED, Values
from vvlen.reporting import plots
from vvlen.reporting.numbers import counted, interval_words, number
from vvlen.reporting.results import ENDS
from vvlen.reporting.tables import interval_cell, Record, Table


def table(values: Values, length: int) -> Table:
  """Makes the table of what each law changes, a row for each law.

  Args:
    values: the values of the run.
    length: L.
  """
  lengths = lengths_of(values, TEMPERED, 'nll')
  records: list[dict[str, Any]] = []
  for law in LAWS if lengths else ():
    record: dict[str, Any] = {
        'law': law, 'heads': int(values[TEMPERED, f'heads_{law}', None])}
    for n in lengths:
      record[f'nll_{n}'] = values[TEMPERED, 'nll', n]
      for end in ENDS:
        record[f'change_{n}{end}'] = values.get(
            (TEMPERED, f'change_{law}{end}', n), math.nan)
    records.append(record)
  columns: dict[str, Any] = {
      'factor of the logits': lambda r: LAWS[r['law']],
      'heads': lambda r: str(r['heads']),
      **{f'{n:,} tokens [95 %]': interval_cell(f'change_{n}', '+.3f') for n in lengths},
  }
  plain = ', '.join(
      f'{number(values[TEMPERED, "nll", n], ".3f")} at {n:,}' for n in lengths)
  note = (
      'Change of log perplexity in blocks, nats a token, if the logits of heads are '
      f'multiplied beyond L = {length:,} tokens [95 %: bootstrap over pieces of the '
      f'text]. Without: {plain}.')
  more = (
      'Nothing is trained, and up to L nothing changes. A power of N multiplies the '
      'logits of a token that attends to N keys by (N / L)^p, one of log N by '
      '(log N / log L)^q. Powers are those of the table `temperature`, of text: with '
      'them the top key keeps its share of the weight. Fitted up to L, they need no '
      'longer input; fitted at all lengths, they say what the model needs, and are no '
      'method. The same text is measured. Heads: with such a power; the others stay as '
      'they are.')
  return Table('tempered', 'What these temperatures change', columns, records, note,
               more=more)


def figure(values: Values, length: int, name: str = '') -> Figure | None:
  """Draws what each law changes by length."""
  lengths = lengths_of(values, TEMPERED, 'nll')
  if not lengths:
    return None
  made = plots.new(
      2.9, _title(values, lengths),
      'Change of log perplexity in blocks, nats a token, if the logits of heads are '
      'multiplied beyond the training length, by length and by law; bars: 95 % '
      'intervals over pieces of the text.',
      f'{checkpoint(name, length)}; bars: 95 % intervals over pieces of the text')
  axes = made.subplots()
  for i, (law, (colour, marker)) in enumerate(zip(LAWS, plots.LOOKS, strict=False)):
    middle, low, high = ([values.get((TEMPERED, f'change_{law}{end}', n), math.nan)
                          for n in lengths] for end in ENDS)
    apart = [n * 1.03 ** (i - (len(LAWS) - 1) / 2) for n in lengths]
    axes.plot(apart, middle, color=colour, marker=marker, label=LAWS[law])
    axes.vlines(apart, low, high, color=colour)
  axes.axhline(0, color='black', linewidth=0.8)
  plots.doubling_axis(axes)
  axes.set(xlabel='tokens in the window N',
           ylabel='change of log perplexity,\nnats a token')
  plots.legend(made, [axes], 2, title='factor of the logits')
  return made


def _title(values: Values, lengths: Sequence[int]) -> str:
  """Says what the laws change at the longest length, and which is best."""
  changes = {law: values[TEMPERED, f'change_{law}', lengths[-1]] for law in LAWS}
  ends = min(changes.values()), max(changes.values())
  low, high = (number(x, '+.2f') for x in ends)
  best = min(changes, key=lambda law: changes[law])
  return (f'Factors of the logits change log perplexity at {lengths[-1]:,} tokens by '
          f'{low} ({LAWS[best]}) to {high} nats')


def sentence(records: Sequence[Record]) -> list[str]:
  """Says what temperatures change at the longest length.

  Args:
    records: those of the table `tempered`.
  """
  if not records:
    return []
  longest = max(int(key.removeprefix('nll_')) for key in records[0]
                if key.startswith('nll_'))
  said = []
  for record in records:
    middle, low, high = (record[f'change_{longest}{end}'] for end in ENDS)
    interval = '' if math.isnan(low) else f' {interval_words(low, high, "+.3f")}'
    said.append(f'{number(middle, "+.3f")}{interval} ({LAWS[record["law"]]})')
  return [f'Multiplying logits of heads at inference changes log perplexity at '
          f'{counted(longest, "token")}, nats: {", ".join(said)}.']
