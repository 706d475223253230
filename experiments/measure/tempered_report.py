"""What temperatures change beyond L: table, figure and sentence. Runs without JAX."""

from collections.abc import Sequence
import math
import re
from typing import Any

from matplotlib.figure import Figure

from experiments.measure.attention_figures import checkpoint
from experiments.measure.rows import LAWS, lengths_of, TEMPERED, Values
from vvlen.reporting import plots
from vvlen.reporting.numbers import counted, interval_words, number
from vvlen.reporting.results import ENDS
from vvlen.reporting.tables import interval_cell, interval_fields, Record, Table

# Powers of log N are near those of N.
_DRAWN = tuple(law for law in LAWS if law != 'power_of_log')


def table(values: Values, length: int) -> Table:
  """Makes the table of what each law changes, a row for each law.

  Args:
    values: the values of the run.
    length: L.
  """
  lengths = lengths_of(values, TEMPERED, 'pieces')
  records: list[dict[str, Any]] = []
  for law in LAWS if lengths else ():
    record: dict[str, Any] = {
        'law': law, 'heads': int(values[TEMPERED, f'heads_{law}', None])}
    for n in lengths:
      record |= interval_fields(
          f'change_{n}', [_change(values, law, n, end) for end in ENDS])
    records.append(record)
  columns: dict[str, Any] = {
      'factor of the logits': lambda r: LAWS[r['law']],
      'heads': lambda r: str(r['heads']),
      **{f'{n:,} tokens [95 %]': interval_cell(f'change_{n}', '+.3f') for n in lengths},
  }
  pieces = _pieces(values, lengths)
  note = (
      'Change of log perplexity in blocks, nats a token, if logits of heads are '
      f'multiplied beyond L = {length:,} tokens. '
      + (f'[95 %]: bootstrap over {pieces} pieces of the text.' if pieces > 1 else
         'The text has too few windows for intervals.'))
  more = (
      'Below 0: better. Nothing is trained, and up to L nothing changes. A power of N '
      'multiplies the logits of a token that attends to N keys by (N / L)^p, one of '
      'log N by (log N / log L)^q. p and q are fitted as in the table `temperature`, '
      'of text, to all its lengths, or for the first row to those up to L; beyond '
      'these lengths they are extrapolated. Fitted up to L, they need no longer input;'
      ' else they say what the model needs, and are no method. The text from which '
      'they are fitted may be the one that is measured. Heads: with such a power; the '
      'others keep their logits. Controls: the same powers, but each for another head,'
      ' and flatter weights instead of sharper ones. Intervals hold the powers fixed '
      'and are uncorrected. The loss without is in the table `perplexity`.')
  return Table('tempered', 'What these temperatures change', columns, records, note,
               more=more)


def figure(values: Values, length: int, name: str = '') -> Figure | None:
  """Draws what each law changes by length."""
  lengths = lengths_of(values, TEMPERED, 'pieces')
  if not lengths:
    return None
  bars = '; bars: 95 % intervals over pieces of the text' * (
      _pieces(values, lengths) > 1)
  made = plots.new(
      2.9, _title(values, lengths),
      'Change of log perplexity in blocks, nats a token, if the logits of heads are '
      f'multiplied beyond the training length, by length and by law{bars}.',
      f'{checkpoint(name, length)}{bars}')
  axes = made.subplots()
  for i, (law, (colour, marker)) in enumerate(zip(_DRAWN, plots.LOOKS, strict=False)):
    middle, low, high = ([_change(values, law, n, end) for n in lengths]
                         for end in ENDS)
    apart = [n * 1.03 ** (i - (len(_DRAWN) - 1) / 2) for n in lengths]
    axes.plot(apart, middle, color=colour, marker=marker, label=LAWS[law])
    axes.vlines(apart, low, high, color=colour)
  axes.axhline(0, color='black', linewidth=0.8)
  plots.doubling_axis(axes)
  axes.set(xlabel='tokens in the window N',
           ylabel='change of log perplexity,\nnats a token')
  plots.legend(made, [axes], 2, title='factor of the logits')
  return made


def _change(values: Values, law: str, length: int, end: str = '') -> float:
  return values.get((TEMPERED, f'change_{law}{end}', length), math.nan)


def _pieces(values: Values, lengths: Sequence[int]) -> int:
  return int(values[TEMPERED, 'pieces', lengths[-1]]) if lengths else 0


def _title(values: Values, lengths: Sequence[int]) -> str:
  """Says what the laws change at the longest length, and which is best."""
  changes = {law: _change(values, law, lengths[-1]) for law in _DRAWN}
  known = {law: x for law, x in changes.items() if math.isfinite(x)}
  if not known:
    return 'Factors of the logits, and predictions of longer inputs'
  best = min(known, key=lambda law: known[law])
  low, high = (number(x, '+.2f') for x in (known[best], max(known.values())))
  return (f'Factors of the logits change log perplexity at {lengths[-1]:,} tokens by '
          f'{low} ({LAWS[best]}) to {high} nats')


def sentence(records: Sequence[Record]) -> list[str]:
  """Says what temperatures change at the longest length.

  Args:
    records: those of the table `tempered`.
  """
  if not records:
    return []
  longest = max(int(x[1]) for key in records[0]
                if (x := re.fullmatch(r'change_(\d+)', key)))
  said = []
  for record in records:
    middle, low, high = (record[f'change_{longest}{end}'] for end in ENDS)
    interval = '' if math.isnan(low) else f' {interval_words(low, high, "+.3f")}'
    said.append(f'{number(middle, "+.3f")}{interval} ({LAWS[record["law"]]})')
  return [f'Multiplying logits of heads at inference changes log perplexity at '
          f'{counted(longest, "token")}, nats: {", ".join(said)}.']
