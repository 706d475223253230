"""Where LayerNorm helps: the primary endpoint in every cell of a grid.

A row's experiment is named 'cell@step': one setting, after so many steps. Runs
without JAX.
"""

from collections.abc import Iterable, Sequence
import json
from typing import NamedTuple

from etils import epath
from matplotlib.figure import Figure
import numpy as np

from vvlen import plots, results
from vvlen.comparison import compare, Comparison
from vvlen.report import (
    difference_cell,
    markdown,
    number,
    p_value,
    Table,
    write_table,
)
from vvlen.statistics import holm

# What may explain a gain.
MECHANISM = ('target_weight', 'attention_entropy', 'output_variance')


class Cell(NamedTuple):
  """One setting after so many steps."""

  name: str
  step: int
  comparison: Comparison
  holm_p: float  # over the cells at their last step; nan before
  values: results.Index


def write(workdir: epath.PathLike) -> tuple[str, list[epath.Path]]:
  """Writes table and figure of a grid into its folder.

  Args:
    workdir: a folder with the config.json and results.csv of a grid.

  Returns:
    The table as Markdown, and the paths written.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  rows = results.read_rows(folder / 'results.csv')
  if not rows:
    raise ValueError(f'{folder} has no results.csv with results')
  config = json.loads((folder / 'config.json').read_text())['config']
  cells = read_cells(rows, config['base']['train']['max_length'])
  made = table(cells)
  with plots.style():
    paths = plots.save(folder / 'figures', {made.name: figure(cells)})
  return markdown(made), [*write_table(folder, made), *paths]


def read_cells(
    rows: Iterable[results.Row],
    trained_up_to: int,
    treated: str = 'layer_norm',
    control: str = 'none',
) -> list[Cell]:
  """Compares two arms in each cell, at each step.

  Args:
    rows: of all cells.
    trained_up_to: the longest training length.
    treated: an arm.
    control: an arm.

  Returns:
    Cells by name, 'base' first, each from its first to its last step; p-values are
    corrected by Holm over the cells, each at its last step.
  """
  grouped: dict[tuple[str, int], list[results.Row]] = {}
  for row in rows:
    name, _, at_step = row.experiment.rpartition('@')
    grouped.setdefault((name, int(at_step)), []).append(row)
  cells = []
  for name, step in sorted(grouped, key=lambda k: (k[0] != 'base', k)):
    index = results.index(grouped[name, step])
    if (treated, 'training_loss', None) in index:
      comparison = compare(index, treated, control, trained_up_to=trained_up_to)
      cells.append(Cell(name, step, comparison, np.nan, index))
  last = {cell.name: i for i, cell in enumerate(cells)}
  tests = [cells[i].comparison.primary for i in last.values()]
  adjusted = holm([np.nan if test is None else test.p for test in tests])
  for i, p in zip(last.values(), adjusted, strict=True):
    cells[i] = cells[i]._replace(holm_p=float(p))
  return cells


def table(cells: Sequence[Cell]) -> Table:
  """Returns one row a cell and step: the primary endpoint and what goes with it."""
  records = []
  for cell in cells:
    c, test = cell.comparison, cell.comparison.primary
    treated, control = c.primary_means
    nan = float('nan')
    record = {
        'cell': cell.name, 'step': cell.step, 'control': control, 'treated': treated,
        'difference': test.mean_difference if test else nan,
        'ci_low': test.ci_low if test else nan,
        'ci_high': test.ci_high if test else nan,
        'p': test.p if test else nan, 'p_holm': cell.holm_p,
        'pairs': test.num_pairs if test else 0,
        'smallest_detectable': c.detectable,
    }
    middle = c.lengths[len(c.lengths) // 2]
    for metric in MECHANISM:
      for arm in (c.control, c.treated):
        values = list(cell.values.get((arm, metric, middle), {}).values())
        record[f'{metric}_{arm}_{middle}'] = float(np.nanmean(values or [nan]))
    records.append(record)
  columns = {
      'cell': lambda r: r['cell'],
      'steps': lambda r: f'{r["step"]:,}',
      'Baseline': lambda r: number(r['control'], '.1f'),
      'LN': lambda r: number(r['treated'], '.1f'),
      'LN − Baseline [95 %]': difference_cell('.2f'),
      'p': lambda r: p_value(r['p']),
      'p Holm': lambda r: p_value(r['p_holm']) if r['p_holm'] == r['p_holm'] else '',
      'pairs': lambda r: str(r['pairs']),
      'smallest detectable': lambda r: number(r['smallest_detectable'], '.1f'),
  }
  note = (
      'Mean accuracy in % beyond the training lengths, paired over seeds. p Holm: over '
      'the cells, each after its last step. The CSV also has, at the middle length, '
      'the mean of what may explain a gain: weight of the target, entropy, output '
      'variance.'
  )
  return Table('sensitivity', 'LayerNorm − Baseline in every cell', columns, records,
               note)


def figure(cells: Sequence[Cell]) -> Figure:
  """Draws the gain in each cell after its last step, and along training."""
  last: dict[str, Cell] = {cell.name: cell for cell in cells}
  drawn = Figure(figsize=(7.0, 1.6 + 0.32 * len(last)))
  left, right = drawn.subplots(1, 2, width_ratios=[1, 1.1])
  colours = {'helps': plots.ARMS['layer_norm'][1], 'hurts': '#D55E00', '': '#777777'}
  for place, cell in enumerate(last.values()):
    test = cell.comparison.primary
    if test is None:
      continue
    found, mean = cell.holm_p < 0.05, test.mean_difference
    verdict = ('helps' if mean > 0 else 'hurts') if found else ''
    reach = [[mean - test.ci_low], [test.ci_high - mean]]
    left.errorbar([mean], [place], xerr=reach, fmt='o', capsize=2,
                  color=colours[verdict])
  left.axvline(0, color='black', linewidth=0.8)
  left.set(yticks=range(len(last)), xlabel='LN − Baseline (points)',
           title='After the last step')
  left.set_yticklabels([f'{c.name}, {c.step:,}' for c in last.values()])
  left.invert_yaxis()
  for name in last:
    own = [c for c in cells if c.name == name and c.comparison.primary is not None]
    gains = [c.comparison.primary.mean_difference for c in own if c.comparison.primary]
    right.plot([c.step for c in own], gains, marker='o', label=name)
  right.axhline(0, color='black', linewidth=0.8)
  right.set(xscale='log', xlabel='steps', ylabel='points', title='Along training')
  right.legend(fontsize=7)
  drawn.supxlabel(
      'lengths beyond training; left: 95 % intervals; green: LN helps, '
      'red: hurts (p Holm < .05), grey: not found', fontsize=7.5,
  )
  return drawn
