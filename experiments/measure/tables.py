"""The tables of a checkpoint's measurements but Figure 1's. Runs without JAX.

`spread` has those of Figure 1.
"""

import math
from typing import Any

import numpy as np

from experiments.harness.scales import SCALES
from experiments.measure.rows import (
  BLOCK,
  heads_of,
  layers_of,
  lengths_of,
  offsets_of,
  ORDERS,
  Part,
  SLIDING,
  Values,
)
from vvlen.reporting.numbers import give_or_take
from vvlen.reporting.results import ENDS
from vvlen.reporting.tables import (
  blank_without,
  CellText,
  interval_cell,
  pair_cell,
  Record,
  Table,
)
from vvlen.statistics import percentile_interval, percentiles_cover, resampled_means

_SHOWN = ('sce', 'symmetric_kl', 'kl_first_second', 'kl_second_first', 'js',
          'top1_agreement')


def perplexity(
    values: Values, length: int, begin: bool, samples: tuple[int, int]
) -> Table:
  """Makes the table of perplexity and its logarithm by length of window.

  Args:
    values: the values of the run.
    length: L.
    begin: whether each window began with BOS.
    samples: (number of bootstrap samples, seed) for the intervals of perplexity at a
      length divided by that at L.
  """
  records = []
  for n in lengths_of(values, BLOCK, 'nll'):
    record: dict[str, Any] = {'tokens': n, 'times_trained': n / length}
    for part in (BLOCK, SLIDING):
      arm, ratios = part.arm, _ratio(values, part, n, length, samples)
      for end in ENDS:
        loss = values.get((part, f'nll{end}', n), math.nan)
        record |= {f'{arm}_nll{end}': loss, f'{arm}_perplexity{end}': math.exp(loss)}
      for end, ratio in zip(ENDS, ratios, strict=True):
        record[f'{arm}_ratio{end}'] = ratio
    records.append(record | {
        'stride': values.get((SLIDING, 'stride', n), math.nan),
        'scored_in_blocks': values[BLOCK, 'scored', n],
        'pieces': values.get((BLOCK, 'pieces', n), math.nan),
    })
  columns = {
      'window': lambda r: f'{r["tokens"]:,}',
      'times L': lambda r: f'{r["times_trained"]:g}',
      'log perplexity, blocks [95 %]': interval_cell('block_nll', '.4f'),
      'perplexity, blocks [95 %]': interval_cell('block_perplexity', '.3f'),
      'stride': lambda r: _count(r['stride']),
      'log perplexity, sliding [95 %]': interval_cell('sliding_nll', '.4f'),
      'perplexity, sliding [95 %]': interval_cell('sliding_perplexity', '.3f'),
      'tokens scored in blocks': lambda r: _count(r['scored_in_blocks']),
  }
  for name in ('blocks', 'sliding'):
    arm = name.removesuffix('s')
    cell = blank_without(f'{arm}_ratio', interval_cell(f'{arm}_ratio', '.3f'))
    columns[f'÷ perplexity at L, {name} [95 %]'] = cell
  pieces = max((r['pieces'] for r in records), default=math.nan)
  note = (
      'Log perplexity: mean −log p over tokens, in nats, of the same text in all rows. '
      f'Blocks do not overlap; sliding: a window every stride tokens. L = {length:,}. '
      + (f'[95 %]: bootstrap over {pieces:.0f} pieces of the text.' if pieces > 1 else
         'The text has too few windows for intervals.')
  )
  more = (
      'Logarithms are natural; perplexity is the exponential of the mean. Positions '
      'begin at 0 in each window. Blocks: the first token of each is not scored. '
      'Sliding: the last stride tokens of a window are scored, so that each has at '
      'least window − stride before it. Each window begins with '
      f'{"BOS, which is one of its tokens" if begin else "text, without BOS"}.'
      f'{_of_pieces(pieces)}'
  )
  return Table('perplexity', 'Perplexity and its logarithm by length of context',
               columns, records, note, more=more)


def _of_pieces(pieces: float) -> str:
  """Returns sentences on the intervals over pieces, '' if there is only one piece."""
  if not pieces > 1:
    return ''
  return (' [95 %]: percentiles of the bootstrap. A piece is as long as the longest '
          'window, and a sample has the same pieces at all lengths, so what two '
          'lengths have in common cancels in the interval of their quotient. Such an '
          f'interval of {pieces:.0f} normal values covers their mean in '
          f'{percentiles_cover(pieces):.0%} of cases.')


def _ratio(
    values: Values, part: Part, n: int, length: int, samples: tuple[int, int]
) -> tuple[float, float, float]:
  """Returns perplexity at n divided by that at L, and its interval; nan if unknown."""
  nan = math.nan
  if not {(part, 'nll', n), (part, 'nll', length)} <= values.keys():
    return nan, nan, nan
  ratio = math.exp(values[part, 'nll', n] - values[part, 'nll', length])
  found = []
  for there in (n, length):
    pieces = [part._replace(piece=i) for i in range(int(values[BLOCK, 'pieces', n]))]
    keys = [[(x, name, there) for x in pieces] for name in ('nll', 'scored')]
    if n == length or len(pieces) < 2 or not {*keys[0], *keys[1]} <= values.keys():
      return ratio, nan, nan
    losses, scored = ([values[key] for key in one] for one in keys)
    found.append(resampled_means(losses, scored, *samples)[1:])
  low, high = np.exp(percentile_interval(found[0] - found[1], skip_nan=True))
  return ratio, float(low), float(high)


def misalignment(values: Values) -> Table:
  """Makes the table of all measures of misalignment, by length and offset."""
  records = []
  for offset in offsets_of(values):
    part = Part('misalignment', 'text', offset=offset)
    for n in lengths_of(values, part, 'sce'):
      record: dict[str, Any] = {'length': n, 'offset': offset}
      for name in SCALES:
        for end in ENDS:
          record[name + end] = values[part, name + end, n]
      records.append(record | {'sequences': values[part, 'num_sequences', n]})
  records.sort(key=lambda r: (r['length'], r['offset']))
  columns = {
      'window': lambda r: f'{r["length"]:,}', 'offset': lambda r: str(r['offset']),
      **{SCALES[name]: interval_cell(name, '.4f' if name != 'top1_agreement' else
                                       '.3f') for name in _SHOWN},
  }
  sequences = ' or '.join(sorted({f'{r["sequences"]:.0f}' for r in records}))
  note = (
      'Two windows of one text, the second by the offset further on, compared where '
      f'they predict the same token. In nats, except the last. Mean over {sequences} '
      'sequences [95 %: bootstrap over them]. SCE: symmetric cross-entropy.'
  )
  more = (
      'Windows are compared where that token has more than half a window before it '
      '(arXiv 2506.11769, section 4). Long: the first, with more before that token. '
      'SCE = −Σ q log p − Σ p log q = both entropies + symmetric KL; symmetric KL = '
      'KL(long‖short) + KL(short‖long). Top-1 agreement: share of tokens of which both '
      'have the same likeliest. Intervals: percentiles of the bootstrap. The CSV has '
      'SCE/2 and both entropies too.'
  )
  return Table('misalignment', 'Long-short misalignment', columns, records, note,
               more=more)


def recency(values: Values) -> Table:
  """Makes the table of recency probabilities of text and of shuffled text."""
  records = []
  for layer in layers_of(values, 'recency_probability'):
    record: dict[str, Any] = {'layer': layer}
    for order in ORDERS:
      part, name = Part('recency', order, layer), 'recency_probability'
      lengths = lengths_of(values, part, name)
      n = lengths[0] if lengths else None
      heads = [values[part._replace(head=h), name, n]
               for h in heads_of(values, part, name)]
      record |= {
          f'{order}_{name}{end}': values.get((part, name + end, n), math.nan)
          for name in ('recency_probability', 'violation_rate')
          for end in ENDS
      }
      record |= {f'{order}_lowest_head': min(heads, default=math.nan),
                 f'{order}_highest_head': max(heads, default=math.nan)}
    records.append(record)
  columns = {'layer': lambda r: str(r['layer'])}
  for order, name in ORDERS.items():
    columns |= {
        f'recency probability, {name}': interval_cell(
            f'{order}_recency_probability', '.3f'),
        f'heads, {name}': pair_cell(
            f'{order}_lowest_head', f'{order}_highest_head', '.3f', 'to'),
        f'violation rate, {name}': interval_cell(f'{order}_violation_rate', '.3f'),
    }
  note = (
      'Recency probability: of pairs of earlier tokens, those of which the more recent '
      'has the larger logit; one half without any order. Mean over heads [95 %: '
      'bootstrap over sequences], and the range of heads.'
  )
  more = (
      'Of attention logits, the last tokens of a sequence with all before them. '
      'Violation rate: of pairs up to the token itself, those of which the more recent '
      'has not the larger logit. Intervals: percentiles of the bootstrap. Shuffled: '
      'the same tokens in random order. What differs is of the text; what both have is '
      'of the rotary positions, which have a bias of their own, and from layer 1 on of '
      'the causal mask as well.'
  )
  return Table('recency', 'Recency of attention logits', columns, records, note,
               more=more)


def entropy(values: Values) -> Table:
  """Makes the table of the entropy of attention weights, by length."""
  layers = layers_of(values, 'entropy')
  lengths = sorted({n for (a, metric, n) in values if metric == 'entropy' and n})
  records: list[dict[str, Any]] = []
  for layer in layers:
    for order in ORDERS:
      record: dict[str, Any] = {'layer': layer, 'order': order}
      for n in lengths:
        for end in ENDS:
          key = (Part('entropy', order, layer), f'entropy{end}', n)
          record[f'entropy{end}_{n}'] = values.get(key, math.nan)
      records.append(record)
  columns: dict[str, Any] = {
      'layer': lambda r: str(r['layer']), 'tokens': lambda r: ORDERS[r['order']],
      **{f'N = {n:,} ({math.log(n):.2f})': _give_or_take(n)
         for n in lengths},
  }
  note = (
      'Entropy in nats of the attention weights of the last of N tokens, in brackets '
      'log N, which uniform weights have. Mean over heads and sequences ± half of the '
      '95 % interval.'
  )
  more = ('Intervals: bootstrap over sequences. Shuffled: the same tokens in random '
          'order.')
  return Table('entropy', 'Entropy of attention weights by length', columns, records,
               note, more=more)


def temperature(values: Values) -> Table:
  """Makes the table of the inverse temperatures that heads need, and how they grow."""
  records: list[dict[str, Any]] = []
  for layer in layers_of(values, 'temperature'):
    of_text = Part('entropy', 'text', layer)
    for head in heads_of(values, of_text, 'temperature'):
      part = of_text._replace(head=head)
      lengths = lengths_of(values, part, 'temperature')
      record: dict[str, Any] = {
          'layer': layer, 'head': head, 'shortest': lengths[0], 'longest': lengths[-1]}
      for order in ORDERS:
        own = part._replace(arm=order)
        record |= {f'{order}_{name}{end}': values.get(
            (own, f'exponent_{name}{end}', None), math.nan)
            for name in ('of_n', 'of_log_n') for end in ENDS}
        for name in ('shortest', 'longest'):
          record[f'{order}_{name}'] = values.get(
              (own, 'temperature', record[name]), math.nan)
      records.append(record)
  ends = ' and '.join(f'{n:,}' for n in sorted(
      {r[name] for r in records for name in ('shortest', 'longest')}))
  columns: dict[str, Any] = {
      'layer': lambda r: str(r['layer']), 'head': lambda r: str(r['head']),
      'β, text': pair_cell('text_shortest', 'text_longest', '.3g'),
      'power of N, text [95 %]': interval_cell('text_of_n', '+.2f'),
      'power of log N, text [95 %]': interval_cell('text_of_log_n', '+.2f'),
      'β, shuffled': pair_cell('shuffled_shortest', 'shuffled_longest', '.3g'),
      'power of N, shuffled [95 %]': interval_cell('shuffled_of_n', '+.2f'),
  }
  note = (
      'β: least factor of the logits that gives the top key of the last of N tokens '
      f'half of the weight, median over sequences, at N = {ends}. Power: p if it '
      'grows as N to the power p, or as log N to the power p [95 %: bootstrap].'
  )
  more = ('β = 1 leaves the logits as they are. The powers are slopes of log median β '
          'against log N and log log N over all lengths where it is neither 0 nor '
          'infinite. Equal gaps between logits need log N, the top of N uniform '
          'priorities needs N. '
          'The bootstrap is over sequences. Shuffled: the same tokens in random order.')
  return Table('temperature', 'Temperature that each head needs', columns, records,
               note, more=more)


def _give_or_take(n: int) -> CellText:
  """Returns a cell function: the entropy at N ± half of its interval."""

  def cell(record: Record) -> str:
    half = (record[f'entropy_high_{n}'] - record[f'entropy_low_{n}']) / 2
    return give_or_take(record[f'entropy_{n}'], half)

  return cell


def _count(value: float) -> str:
  return '' if math.isnan(value) else f'{value:,.0f}'
