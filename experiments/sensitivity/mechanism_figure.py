"""The figure of what a gain goes with, over settings and seeds. Runs without JAX."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
import numpy as np

from experiments.sensitivity.cells import Cell, CellSetting, in_words, MECHANISM
from experiments.sensitivity.marks import (
  FOUND,
  gain_of,
  look_of,
  marks_of,
  NOT_FOUND,
  task_of,
  UNTESTED,
  write_heading,
)
from vvlen.reporting import plots
from vvlen.reporting.endpoints import CONTROL, TREATED
from vvlen.reporting.numbers import counted, number
from vvlen.statistics import rank_correlation

TITLES = dict(zip(MECHANISM, (
    'weight of the target', 'norm of the output',
    'distance of the\nnormalized output\nfrom training',
), strict=True))
_SHORT = ('weight', 'norm of the output', 'distance')  # in the title
_STRONG = 0.5  # a rank correlation


def mechanism(cells: Sequence[Cell], settings: Mapping[str, CellSetting]) -> Figure:
  """Draws the gain of LN against what LN changes, over cells and over seeds.

  Args:
    cells: of all arms.
    settings: {name of a cell: setting}; the upper row shows the task of base.

  Returns:
    The figure: above, a point per cell, filled if p Holm < .05; below, for each cell,
    the rank correlation over its seeds.
  """
  family = sorted((
      cell for cell in cells if cell.in_family
      and cell.comparison.treated == TREATED and cell.comparison.primary
  ), key=lambda cell: -gain_of(cell))
  task = task_of(settings, 'base')
  same = [cell for cell in family if task_of(settings, cell.name) == task]
  drawn = plots.new(
      3.5 + 0.17 * len(family), '',
      'Gain of LN in accuracy beyond the training lengths against what LN changes in '
      f'weight of the target, norm of the output and its distance from training: above '
      f'a point for each setting{" of " * bool(task)}{task}, filled where p Holm is '
      'below .05; below, for each setting, with its gain in points, the rank '
      'correlation of both over its seeds, with 95 % intervals, and how many of these '
      'are above and below 0; settings share their seeds, so this describes and tests '
      f'nothing. The title names rank correlations over settings of {_STRONG} or more, '
      'of either sign, and in how many settings the interval over seeds is on that '
      'side of 0, also where that is so in most settings.')
  ranks = {}
  panels = drawn.subplots(2, len(TITLES), sharey='row',
                          height_ratios=[1.6, 0.5 + 0.17 * len(family)])
  for (above, below), (metric, title) in zip(panels.T, TITLES.items(), strict=True):
    ranks[metric] = rank = _over_cells(above, same, metric)
    _over_seeds(below, family, metric)
    above.set_title(title + f'\nrank correlation\n{number(rank, ".2f")}'
                    * bool(np.isfinite(rank)))
  above_all = f'above: {len(same)} settings of {task}, a point each; ' if task else ''
  plots.set_title(
      drawn, _headline(ranks, family),
      f'{above_all}below: {len(family)} settings, over their seeds; bars: 95 % '
      'intervals')
  looks = {'above': [look for look in (FOUND, NOT_FOUND)
                     if look in map(look_of, same)], 'below': [UNTESTED]}
  drawn.legend(
      handles=[Line2D([], [], linestyle='', label=f'{where}: {look}',
                      **marks_of(look, TREATED))
               for where, drawn_there in looks.items() for look in drawn_there],
      ncols=3, loc='outside lower center')
  names = [f'{in_words(settings, cell.name)}  {number(gain_of(cell), "+.1f")}'
           for cell in family]
  panels[1, 0].set_yticks(range(len(names)), names)
  panels[1, 0].set_ylim(len(names) - 0.4, -0.6)
  write_heading(panels[1, 0], 'setting, gain (points)')
  panels[0, 0].set_ylabel('gain of LN (points)')
  return drawn


def _headline(ranks: Mapping[str, float], cells: Sequence[Cell]) -> str:
  """Says which changes the gain rises or falls with, over settings and over seeds.

  Args:
    ranks: {metric: the rank correlation of its change with the gain over settings}.
    cells: those with a correlation over seeds.
  """
  if not any(map(np.isfinite, ranks.values())):
    return 'Does the gain of LN go with what LN changes?'
  names = dict(zip(ranks, _SHORT, strict=True))
  strong = {names[x]: rank > 0 for x, rank in ranks.items() if abs(rank) >= _STRONG}
  over = ' and '.join(_rises(strong)) or 'goes with none of these'
  signs, counts = {}, {}  # over seeds
  for x, name in names.items():
    above, below = _sides(cells, x)
    if name in strong or 2 * max(above, below) > len(cells):
      signs[name] = strong.get(name, above > below)
      counts[name] = above if signs[name] else below
  seeds = ', '.join(_rises(signs, counts))
  return (f"Over settings, LN's gain {over}"
          + f'; over the seeds of {counted(len(cells), "setting")}, it {seeds}'
          * bool(seeds))


def _rises(
    signs: Mapping[str, bool], counts: Mapping[str, int] | None = None
) -> list[str]:
  """Returns what a gain rises with and what it falls with, in words.

  Args:
    signs: {what: whether the gain rises with it}.
    counts: {what: in how many settings}, added to the words.
  """
  found = []
  for verb, sign in (('rises', True), ('falls', False)):
    if own := [name + (f' in {counts[name]}' if counts else '')
               for name, positive in signs.items() if positive == sign]:
      found.append(f'{verb} with {(", with " if counts else " and ").join(own)}')
  return found


def _sides(cells: Sequence[Cell], metric: str) -> tuple[int, int]:
  """Returns how many correlations over seeds have intervals above 0, and below 0."""
  found = [cell.explained[metric] for cell in cells]
  return sum(x.ci_low > 0 for x in found), sum(x.ci_high < 0 for x in found)


def _over_cells(axes: Axes, cells: Sequence[Cell], metric: str) -> float:
  """Draws the gain of each cell against the change by LN; returns their correlation."""
  relative = metric == 'output_norm'  # its scale differs between cells
  changes = []
  for cell in cells:
    treated, control = (cell.mechanism[metric, arm] for arm in (TREATED, CONTROL))
    changes.append(np.log2(treated / control) if relative else treated - control)
  for cell, x in zip(cells, changes, strict=True):
    axes.plot([x], [gain_of(cell)], linestyle='', **marks_of(look_of(cell), TREATED))
  axes.set(xlabel='log2(LN / Baseline)' if relative else 'LN − Baseline')
  axes.margins(0.2, 0.15)
  axes.axhline(0, color='black', linewidth=0.8)
  axes.axvline(0, color='black', linewidth=0.8)
  axes.locator_params(axis='x', nbins=3)
  return rank_correlation(changes, [gain_of(cell) for cell in cells]).rank


def _over_seeds(axes: Axes, cells: Sequence[Cell], metric: str) -> None:
  """Draws, per cell, the correlation over seeds of a metric's change with the gain."""
  ranks = np.array([cell.explained[metric] for cell in cells]).reshape(-1, 3)
  axes.errorbar(
      ranks[:, 0], np.arange(len(cells)), capsize=1.5, linestyle='',
      xerr=np.array([ranks[:, 0] - ranks[:, 1], ranks[:, 2] - ranks[:, 0]]),
      **marks_of(UNTESTED, TREATED),
  )
  axes.axvline(0, color='black', linewidth=0.8)
  above, below = _sides(cells, metric)
  axes.set(xlim=(-1.05, 1.05), xticks=(-1, 0, 1))
  axes.set_xlabel(f'rank correlation,\n{above} above 0, {below} below',
                  fontsize=plots.SMALLEST)
