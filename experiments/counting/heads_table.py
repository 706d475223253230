"""The table of the temperature that heads of counting models need. Runs without JAX."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

import numpy as np

from experiments.counting import figures
from experiments.counting.answer import best_constant, has_learned
from experiments.counting.cells import Setup
from vvlen.reporting import results
from vvlen.reporting.numbers import number
from vvlen.reporting.results import Row
from vvlen.reporting.tables import interval_cell, interval_fields, pair_cell, Table
from vvlen.statistics import mean_interval

# Laws of the temperature, as `tempered` applies them -> in words.
LAWS = {
    'none': 'nothing',
    'power': 'own power of n',
    'power_of_log': 'own power of log n',
    'log_n': 'log n',
    'power_of_others': "another head's power of n, a control",
    'inverse_log_n': '1 / log n, a control',
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
      f'Of the last token, at {shortest} → {longest} bits. Largest weight: that of one '
      'key, mean. Heads that can: that give one key half of the weight at '
      f'{longest} bits with some factor β of the logits; β: their median. Power: '
      'of β, their mean; intervals over seeds.')
  more = (
      'Largest weights are means over heads, seeds and strings. '
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
    if lengths := [n for arm, metric, n in index if n is not None
                   and (arm, metric) == (cell.arm, 'squared_error_none')]:
      records.append(_tempered(index, cell, max(lengths)))
  if not records:
    return None
  columns = {
      'model': lambda r: r['model'],
      'bits': lambda r: str(r['bits']),
      'squared error': lambda r: number(r['error'], '.2g'),
      **{f'× with {words} [95 %]': interval_cell(law, '.2f')
         for law, words in LAWS.items() if law != 'none'},
      'seeds': lambda r: (str(r['all']) if r['seeds'] == r['all'] else
                          f'{r["seeds"]} of {r["all"]}'),
  }
  note = (
      'Squared error at the longest length, geometric mean over seeds, and by how much '
      'it is multiplied if the logits of heads are, at inference, by a law of the '
      'number n of keys [95 %: over seeds].')
  more = (
      'Below 1: better. Nothing is trained. Up to n₀, the keys of the longest training '
      'length, nothing changes; beyond, a power of n multiplies the logits by '
      '(n / n₀)^p, one of log n by (log n / log n₀)^q. Own powers are those of each '
      'head at the lengths of the table `temperature`, so they say what heads need and '
      'are no method; heads without such a power keep their logits. Controls: the same '
      'powers, but each for another head, and flatter weights instead of sharper ones. '
      'Strings are others than those that powers are fitted to. Models with ALiBi are '
      'left out: it adds to the logits. A model that has not learned its training '
      'lengths has no intervals. Errors are raised to 1e−12. Seeds with an error that '
      'is not finite are left out of all columns. Intervals are uncorrected.')
  return Table('tempered', 'What these temperatures change', columns, records, note,
               more=more)


def _tempered(index: results.Index, cell: Setup, bits: int) -> dict[str, Any]:
  """Returns the row of a model, of the seeds whose errors are finite in all columns."""
  metrics = [f'squared_error_{law}' for law in LAWS]
  found = [index.get((cell.arm, metric, bits), {}) for metric in metrics]
  errors = {seed: [of_law.get(seed, math.nan) for of_law in found] for seed in found[0]}
  kept = np.array([x for x in errors.values() if np.isfinite(x).all()])
  logs = np.log(np.maximum(kept.reshape(-1, len(LAWS)), figures.FLOOR))
  training = np.array([*index[cell.arm, 'squared_error', cell.train_length].values()])
  record: dict[str, Any] = {
      'model': label(cell), 'bits': bits, 'seeds': len(kept), 'all': len(errors),
      'error': float(np.exp(mean_interval(logs[:, 0])[0])),
      'training_error': 10 ** float(
          mean_interval(np.log10(np.maximum(training, figures.FLOOR)))[0]),
      'constant_error': best_constant(cell.task, cell.counts, cell.train_length)}
  for i, law in enumerate(LAWS):
    if law != 'none':
      mean, *ends = np.exp(mean_interval(logs[:, i] - logs[:, 0]))
      if not has_learned(record):
        ends = [math.nan] * 2
      record |= interval_fields(law, [mean, *ends])
  return record


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
