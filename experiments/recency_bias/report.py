"""Writes the tables and figures of recency bias. Runs without JAX."""

import math

from etils import epath
import numpy as np

from experiments.recency_bias import extensions, figures
from experiments.recency_bias.answer import answer
from experiments.recency_bias.cells import (
  GROUPS,
  make_cells,
  PAPER,
  path_of,
  PUBLISHED,
  read_arrays,
  row_name,
  setting,
  Simulated,
)
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.numbers import give_or_take, known
from vvlen.reporting.page import Report
from vvlen.reporting.tables import (
  blank_without,
  number_cell,
  pair_cell,
  Table,
  write_tables,
)
from vvlen.theory.recency import exact_mean_layer1_score, gram_recursion

_ABOUT = ('Simulated, not trained: random tokens pass through layers of causal '
          'attention without parameters, with or without LayerNorm. α is the cosine '
          'of two tokens, d their width. The recency probability is the share of '
          'pairs of keys of which the more recent one has the larger attention logit. '
          'Paper: recency bias, arXiv 2509.21042.')
# Of the published numbers; it gives their standard error.
_PUBLISHED_SIMULATIONS = 10_000_000


def write(workdir: epath.PathLike) -> Report:
  """Writes tables and figures of a run into its folder.

  Args:
    workdir: a folder with config.json, results.csv and simulations/.

  Returns:
    What the run has found.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  with run_folder.reading(folder / 'config.json') as stored:
    config = stored['config']
    cells = make_cells(config)
  numbers: dict[tuple[str, str], dict[tuple[str, int | None], float]] = {}
  for row in results.read_rows(folder / 'results.csv'):
    own = numbers.setdefault((row.experiment, row.arm), {})
    own[row.metric, row.layer] = row.value
  groups: dict[str, list[Simulated]] = {group: [] for group in GROUPS}
  for cell in cells:
    found = numbers.get((cell.group, cell.name))
    if found is not None:
      arrays = read_arrays(folder, cell)
      if cell.group in PAPER and not arrays:
        raise ValueError(f'{path_of(folder, cell)} is missing')
      groups[cell.group].append(Simulated(cell, found, arrays))
  if not any(groups.values()):
    raise ValueError(f'{folder} has no results.csv with results')
  with plots.style():
    drawn = figures.make(config, groups) | extensions.make(groups)
    paths = plots.save(folder / 'figures', drawn)
  tables = [probability_table(groups['panels']), score_table(groups['figure_1'])]
  tables = [table for table in tables if table.records]
  write_tables(folder, tables)
  missing = len(cells) - sum(map(len, groups.values()))
  said = (f'The run is not finished: {missing} of {len(cells)} simulations are '
          'missing.' if missing else '')
  panels = [table for table in tables if table.name == 'recency_probability']
  return Report(
      'Do LayerNorm and the causal mask favour recent tokens?',
      answer(panels[0].records) if panels else [], tables, paths, len(tables), said,
      _ABOUT)


def probability_table(panels: list[Simulated]) -> Table:
  """Returns recency probability and violation rate, next to the published numbers."""
  records = []
  for simulated in panels:
    cell = simulated.cell
    row = row_name(cell.anisotropy, cell.layer_norm, cell.residual)
    published = PUBLISHED.get((cell.width, row))
    measured = zip(*(
        simulated.by_layer(name + suffix)
        for name in ('recency_probability', 'violation_rate')
        for suffix in ('', '_error')
    ), strict=True)
    for layer, (rp, error, violation, violation_error) in enumerate(measured):
      theirs = published[layer] if published else math.nan
      both = math.sqrt(1 + cell.num_simulations / _PUBLISHED_SIMULATIONS) * error
      # Printed numbers are rounded to four digits.
      off = max(0.0, abs(rp - theirs) - 5e-5) / both if both else math.nan
      records.append({
          'width': cell.width, 'setting': setting(cell), 'layer': layer + 1,
          'recency_probability': float(rp), 'standard_error': float(error),
          'published': theirs, 'difference_in_errors': off if published else math.nan,
          'violation_rate': float(violation),
          'violation_rate_error': float(violation_error),
          'simulations': cell.num_simulations,
      })
  columns = {
      'd': lambda r: str(r['width']),
      'tokens': lambda r: r['setting'],
      'layer': lambda r: str(r['layer']),
      'recency probability': lambda r: give_or_take(
          r['recency_probability'], r['standard_error']),
      'published': number_cell('published', '.4f'),
      'off by, in errors': number_cell('difference_in_errors', '.1f'),
      'violation rate': lambda r: give_or_take(
          r['violation_rate'], r['violation_rate_error']),
      'simulations': lambda r: f'{r["simulations"]:,}',
  }
  note = (
      'Recency probability: of all triples of tokens k < j < i, those in which the '
      'logit of i with j is larger than that with k; one half if there is no order. '
      '±: standard error, if 1e−6 or more. Published: by the paper.'
  )
  more = (
      'Violation rate: of the triples k < j ≤ i, those in which the logit with j is '
      'not larger than that with k. 0 and 1: the same in every simulation. Published: '
      '10,000,000 simulations, printed to four digits. Off by: difference beyond that '
      'rounding, in standard errors of the difference.'
  )
  return Table('recency_probability', 'Recency probability by width, tokens and layer',
               columns, records, note, more=more)


def score_table(rows: list[Simulated]) -> Table:
  """Returns the mean logits of the last token, next to their limit for large d."""
  records = []
  for simulated in rows:
    cell, arrays = simulated.cell, simulated.arrays
    limits = gram_recursion(
        population_gram(cell.num_tokens, cell.anisotropy), cell.width, cell.num_layers,
        cell.layer_norm, cell.residual,
    )
    for layer, (mean, error, limit) in enumerate(
        zip(arrays['mean'], arrays['standard_error'], limits, strict=True), 1
    ):
      rise, both = neighbours(mean, error)
      exact = math.nan
      if layer == 1 and cell.layer_norm:
        exact = exact_mean_layer1_score(cell.width, cell.anisotropy)
      records.append({
          'setting': setting(cell), 'layer': layer,
          'oldest': float(mean[-1, 0]), 'oldest_error': float(error[-1, 0]),
          'newest': float(mean[-1, -2]), 'newest_error': float(error[-1, -2]),
          'exact': exact,
          'limit_oldest': float(limit[-1, 0]), 'limit_newest': float(limit[-1, -2]),
          'rising': int((rise > 0).sum()), 'neighbours': rise.size,
          'clearly_rising': int((rise > 2 * both).sum()),
          'clearly_falling': int((rise < -2 * both).sum()),
      })
  n = rows[0].cell.num_tokens if rows else 0
  columns = {
      'tokens': lambda r: r['setting'],
      'layer': lambda r: str(r['layer']),
      f'mean logit of token {n} with 1 → {n - 1}': pair_cell(
          'oldest', 'newest', '.5f'),
      'standard errors': lambda r: f'{r["oldest_error"]:.5f}, {r["newest_error"]:.5f}',
      'exact mean': blank_without('exact', lambda r: known(r['exact'], '.5f')),
      'limit of large d': pair_cell('limit_oldest', 'limit_newest', '.5f'),
      'neighbours that rise': lambda r: f'{r["rising"]} of {r["neighbours"]}',
      'clearly rise, fall': lambda r: f'{r["clearly_rising"]}, {r["clearly_falling"]}',
  }
  note = (
      'Neighbours: the mean logits of a token with two earlier tokens that follow each '
      'other, the later minus the earlier; clearly: by more than two standard errors.'
      + (f' d = {rows[0].cell.width}, {rows[0].cell.num_simulations:,} simulations.'
         if rows else '')
  )
  more = (
      'Two standard errors: of both logits, added up. Exact mean: of layer 1 with '
      'LayerNorm at this d, the same for all tokens. Limit: the closed forms (layers 1 '
      'and 2) and the Gram recursion for tokens whose cosine is exactly the '
      'anisotropy. It is not what a simulation has in the mean at finite d: logits of '
      'random tokens scatter, and a mean of exponentials is not the exponential of a '
      'mean. Without LayerNorm the means of layer 2 rise very slightly at finite d, '
      'and the limit is flat.'
  )
  return Table('scores', 'Mean logits of the last token with the oldest and the newest',
               columns, records, note, more=more)


def neighbours(mean: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns S_i,j+1 − S_ij for all j + 1 < i, and the two standard errors added up."""
  later = np.tri(len(mean), k=-1, dtype=bool)[:, 1:]
  rise = mean[:, 1:] - mean[:, :-1]
  both = error[:, 1:] + error[:, :-1]
  return rise[later], both[later]


def population_gram(num_tokens: int, anisotropy: float) -> np.ndarray:
  """Returns the expected Gram matrix [n, n] of tokens of this anisotropy."""
  shared = anisotropy / (1 - anisotropy)
  return np.eye(num_tokens) + shared
