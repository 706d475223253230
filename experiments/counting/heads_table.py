"""The table of the temperature that heads of counting models need. Runs without JAX."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

import numpy as np

from experiments.counting import figures
from experiments.counting.cells import Setup
from vvlen.reporting import results
from vvlen.reporting.numbers import number
from vvlen.reporting.results import Row
from vvlen.reporting.tables import interval_cell, pair_cell, Table
from vvlen.statistics import mean_interval

# Laws of the temperature, as `tempered` applies them -> in words.
LAWS = {
    'none': 'nothing',
    'power': 'own power of n',
    'power_of_log': 'own power of log n',
    'log_n': 'log n',
    'inverse_log_n': '1 / log n',
}


def heads_table(rows: Sequence[Row], cells: Sequence[Setup]) -> Table | None:
  """Makes the table, a row for each layer of a model; None if no head was measured.

  Args:
    rows: of heads, as `experiments.counting.heads` measures them.
    cells: the models, in the order of the table.
  """
  if not rows:
    return None
  # (experiment, arm, layer) -> {(metric, length): {(seed, head): value}}
  found: dict[Any, dict[Any, dict[Any, float]]] = {}
  for row in rows:
    of_layer = found.setdefault((row.experiment, row.arm, row.layer), {})
    of_layer.setdefault((row.metric, row.length), {})[row.seed, row.head] = row.value
  lengths = sorted({row.length for row in rows if row.length is not None})
  shortest, longest = lengths[0], lengths[-1]
  records = []
  for cell in cells:
    layers = sorted(layer for *names, layer in found
                    if names == [cell.experiment, cell.arm])
    for layer in layers:
      of_layer = found[cell.experiment, cell.arm, layer]
      records.append({'model': label(cell), 'layer': layer}
                     | _record(of_layer, shortest, longest))
  columns = {
      'model': lambda r: r['model'],
      'layer': lambda r: str(r['layer']),
      'largest weight': pair_cell('weight_shortest', 'weight_longest', '.2f'),
      'heads that can': lambda r: f'{number(r["can"], ".0f")} %',
      'β': pair_cell('temperature_shortest', 'temperature_longest', '.3g'),
      'power of n [95 %]': interval_cell('power', '+.2f'),
      'power of log n [95 %]': interval_cell('power_of_log', '+.2f'),
      'heads': lambda r: str(r['heads']),
  }
  note = (
      f'Of the last token, at {shortest} → {longest} bits. Largest weight: what a head '
      'gives to one key, mean over heads, seeds and strings. Heads that can: those to '
      f'which some factor β of the logits gives half of the weight to one key at '
      f'{longest} bits; β: its median over these heads. Power: of β, over them.')
  more = (
      'Counting asks for no single item: the key is that with the largest logit. β is '
      'the least such factor, median over strings; above 1,000, where keys differ by '
      'rounding alone, it counts as infinite. Powers: slopes of log β against log n '
      'and log log n, n keys, mean over heads; intervals over seeds, uncorrected.')
  return Table('temperature', 'Temperature that heads need', columns, records, note,
               more=more)


def tempered_table(
    indices: Mapping[str, results.Index], cells: Sequence[Setup]
) -> Table | None:
  """Makes the table of what laws of temperature change; None if none was measured.

  Args:
    indices: of the rows that are of no head, for each experiment.
    cells: the models, in the order of the table.
  """
  records = []
  for cell in cells:
    index = indices[cell.experiment]
    lengths = [n for arm, metric, n in index
               if (arm, metric) == (cell.arm, 'squared_error_none') and n is not None]
    if not lengths:
      continue
    plain = index[cell.arm, 'squared_error_none', max(lengths)]
    record: dict[str, Any] = {
        'model': label(cell), 'bits': max(lengths), 'seeds': len(plain),
        'error': float(np.exp(_mean_log([*plain.values()])[0]))}
    for law in [*LAWS][1:]:
      errors = index[cell.arm, f'squared_error_{law}', max(lengths)]
      ratios = [errors.get(seed, math.nan) / plain[seed] if plain[seed] else math.nan
                for seed in plain]
      record |= {f'{law}{end}': float(np.exp(x)) for end, x in zip(
          results.ENDS, _mean_log(ratios), strict=True)}
    records.append(record)
  if not records:
    return None
  columns = {
      'model': lambda r: r['model'],
      'bits': lambda r: str(r['bits']),
      'squared error': lambda r: number(r['error'], '.2g'),
      **{f'× with {words} [95 %]': interval_cell(law, '.2f')
         for law, words in LAWS.items() if law != 'none'},
      'seeds': lambda r: str(r['seeds']),
  }
  note = (
      'Squared error at the longest length, geometric mean over seeds, and by how much '
      'it is multiplied if the logits of heads are, at inference, by a power of the '
      'number n of keys beyond training [95 %: over seeds].')
  more = (
      'Below 1: better. Nothing is trained, and up to the longest training length '
      'nothing changes. Own powers are those of each head at the lengths of the table '
      '`temperature`, so they say what heads need and are no method; heads without '
      'such a power keep their logits. Strings are others than those that '
      'powers are fitted to. Models with ALiBi are left out: it adds to the logits. '
      'Intervals are uncorrected.')
  return Table('tempered', 'What these temperatures change', columns, records, note,
               more=more)


def _mean_log(values: Sequence[float]) -> Any:
  """Returns the mean logarithm of those that have one, and its 95 % interval."""
  with np.errstate(divide='ignore'):
    return mean_interval(np.log(values))


def _record(
    of_layer: dict[Any, dict[Any, float]], shortest: int, longest: int
) -> dict[str, Any]:
  at_longest = of_layer['needed_temperature', longest]
  can = [head for head, beta in at_longest.items() if math.isfinite(beta)]
  record: dict[str, Any] = {
      'shortest': shortest, 'longest': longest, 'heads': len(at_longest),
      'can': 100 * len(can) / len(at_longest)}
  for name, n in (('shortest', shortest), ('longest', longest)):
    weights = [*of_layer['largest_weight', n].values()]
    betas = [of_layer['needed_temperature', n][head] for head in can]
    record[f'weight_{name}'] = float(np.mean(weights))
    record[f'temperature_{name}'] = float(np.median(betas)) if can else math.nan
  for name in ('power', 'power_of_log'):
    slopes: dict[int, list[float]] = {}
    for (seed, head), slope in of_layer[f'needed_{name}', None].items():
      if (seed, head) in can and math.isfinite(slope):
        slopes.setdefault(seed, []).append(slope)
    means = [float(np.mean(x)) for x in slopes.values()]
    ends: Any = mean_interval(means) if means else (math.nan,) * 3
    record |= {f'{name}{end}': float(x)
               for end, x in zip(results.ENDS, ends, strict=True)}
  return record


def label(cell: Setup) -> str:
  parts = [cell.task, figures.label('positions', cell)]
  if cell.counts == 'uniform':
    parts[0] += ', number of ones uniform'
  if cell.reparameterization != 'identity':
    parts.append(figures.label('reparameterization', cell))
  if cell.train_length != 10:
    parts.append(figures.label('train_length', cell))
  return ', '.join(parts)
