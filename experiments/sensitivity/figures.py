"""The figures of a grid of settings. Runs without JAX."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
import numpy as np

from experiments.sensitivity.cells import Cell, MECHANISM, Setting
from experiments.sensitivity.tuned import Tuned
from vvlen.reporting.endpoints import CONTROL, TREATED
from vvlen.reporting.plots import ARMS
from vvlen.reporting.tables import number
from vvlen.statistics import PairedTest, rank_correlation

TITLES = dict(zip(MECHANISM, (
    'weight of the target', 'norm of the attention output',
    'distance of the normalized\noutput from training',
), strict=True))
_LINES: Any = ('-', '--', ':', '-.')
_LOOK: Any = {
    'color': ARMS[TREATED][1], 'marker': ARMS[TREATED][2], 'linestyle': '',
}


def gains(
    cells: Sequence[Cell], settings: Mapping[str, Setting],
    tuned: Mapping[str, Tuned] | None = None,
) -> Figure:
  """Draws the gain in each cell, after equally many steps and during training.

  Args:
    cells: of all arms.
    settings: {name of a cell: setting}; each task has a row of panels.
    tuned: {name of a cell: the gain if each arm has its best learning rate}.

  Returns:
    The figure.
  """
  family = [cell for cell in cells if cell.in_family]
  tasks = list(dict.fromkeys(_task(settings, c.name) for c in family))
  counts = [
      len({name for name in (*(c.name for c in family), *(tuned or ()))
           if _task(settings, name) == task}) + 1
      for task in tasks
  ]
  drawn = Figure(figsize=(7.0, 1.3 + 0.26 * sum(counts) + 0.5 * len(tasks)))
  panels = drawn.subplots(
      len(tasks), 2, squeeze=False, width_ratios=[1.2, 1],
      height_ratios=[n + 1 for n in counts],
  )
  names: list[str] = []
  for task, (left, right) in zip(tasks, panels, strict=True):
    own = [cell for cell in cells if _task(settings, cell.name) == task]
    best = {name: each for name, each in (tuned or {}).items()
            if _task(settings, name) == task}
    _by_cell(left, own, best, task)
    names += _along_training(right, own, len(names))
  arms = [arm for arm in ARMS if any(c.comparison.treated == arm for c in cells)]
  handles = [
      Line2D([], [], color=ARMS[arm][1], marker=ARMS[arm][2], label=ARMS[arm][0],
             markerfacecolor='white', linestyle='')
      for arm in arms
  ] + [
      Line2D([], [], color='black', linestyle=_LINES[i % len(_LINES)], label=name)
      for i, name in enumerate(names)
  ]
  legend = drawn.legend(
      handles=handles, fontsize=7, ncols=6, loc='outside lower center',
      title_fontsize=7.5,
      title='mean accuracy beyond the training lengths, of the Baseline in %; 95 % '
            f'intervals, of {ARMS[TREATED][0]} on the left\ncorrected by Holm over the '
            'cells, others uncorrected; filled, and it helps (green) or hurts (red): '
            'p Holm < .05;\n'
            'std. and what stands below a line are not tested',
  )
  legend.get_title().set_multialignment('center')
  return drawn


def _by_cell(
    axes: Axes, cells: Sequence[Cell], tuned: Mapping[str, Tuned], task: str
) -> None:
  """Draws one line per cell, in descending order of gain, then those of tuned rates."""
  family = [c for c in cells if c.in_family and c.comparison.primary]
  order = sorted(family, key=lambda c: -_gain(c))
  names = [cell.name for cell in order]
  steps = {cell.name: cell.step for cell in family}
  labels = [f'{c.name}   {number(c.comparison.primary_means[1], ".0f")}' for c in order]
  for name, each in tuned.items():
    _interval(axes, len(labels), each, markerfacecolor='white', **_LOOK)
    labels.append(f'{name}, best rates   {number(each.means[1], ".0f")}')
  if tuned:
    axes.axhline(len(names) - 0.5, color='black', linewidth=0.5)
  for cell in cells:
    test, arm = cell.comparison.primary, cell.comparison.treated
    if test is None or steps.get(cell.name) != cell.step:
      continue
    y, found = names.index(cell.name), cell.found
    _interval(
        axes, y + (0 if arm == TREATED else 0.3), cell.holm or test,
        color=ARMS[arm][1], marker=ARMS[arm][2], linestyle='',
        markerfacecolor=ARMS[arm][1] if found else 'white',
    )
    if found:
      helps = test.mean_difference > 0
      axes.axhspan(y - 0.5, y + 0.5, color='#d4efe3' if helps else '#fadfd0', zorder=0)
  axes.axvline(0, color='black', linewidth=0.8)
  axes.set_yticks(range(len(labels)), labels)
  axes.set_ylim(len(labels) - 0.4, -0.6)
  axes.grid(visible=False, axis='y')
  after = ' or '.join(f'{step:,}' for step in sorted(set(steps.values())))
  axes.set(xlabel='← hurts    arm − Baseline (points)    helps →',
           title=f'{task}, after {after} steps' if task else f'After {after} steps')


def _interval(axes: Axes, y: float, of: PairedTest | Tuned, **look: Any) -> None:
  """Draws a difference with its interval."""
  middle = of.mean_difference
  axes.errorbar(
      x=[middle], y=[y], xerr=[[middle - of.ci_low], [of.ci_high - middle]], capsize=2,
      **look,
  )


def _along_training(axes: Axes, cells: Sequence[Cell], seen: int) -> list[str]:
  """Draws the cells that are measured at many steps, and returns their names."""
  steps_of = {c.name: {d.step for d in cells if d.name == c.name} for c in cells}
  # All cells share a few steps; those that have more are drawn.
  most = min(3, max(map(len, steps_of.values()), default=0))
  names = [name for name, steps in steps_of.items() if len(steps) >= most]
  ticks = set()
  for i, name in enumerate(names):
    for arm in ARMS:
      points = [
          (c.step, c.comparison.primary, c.found) for c in cells
          if c.name == name and c.comparison.treated == arm and c.comparison.primary
      ]
      if not points:
        continue
      at, tests, found = zip(*points, strict=True)
      ticks |= set(at)
      look: Any = {'color': ARMS[arm][1], 'marker': ARMS[arm][2]}
      gains = [test.mean_difference for test in tests]
      axes.plot(at, gains, linestyle=_LINES[(seen + i) % len(_LINES)],
                markerfacecolor='white', **look)
      axes.plot(at, np.where(found, gains, np.nan), linestyle='', **look)
      axes.fill_between(
          at, [test.ci_low for test in tests], [test.ci_high for test in tests],
          color=ARMS[arm][1], alpha=0.12, linewidth=0,
      )
  axes.axhline(0, color='black', linewidth=0.8)
  axes.set(xscale='log', xlabel='steps', ylabel='arm − Baseline\n(points)',
           title='Along training')
  axes.set_xticks(sorted(ticks), [f'{tick:,}' for tick in sorted(ticks)], rotation=30)
  axes.minorticks_off()
  return names


def mechanism(cells: Sequence[Cell], settings: Mapping[str, Setting]) -> Figure:
  """Draws the gain of LN against what LN changes, over cells and over seeds.

  Args:
    cells: of all arms.
    settings: {name of a cell: setting}; the upper row shows the task of base.

  Returns:
    The figure: above, a point per cell, numbered if p Holm < .05; below, for each
    cell, the rank correlation over its seeds.
  """
  family = sorted((
      cell for cell in cells if cell.in_family
      and cell.comparison.treated == TREATED and cell.comparison.primary
  ), key=lambda cell: -_gain(cell))
  task = _task(settings, 'base')
  same = {str(i): cell for i, cell in enumerate(family, 1)
          if _task(settings, cell.name) == task}
  drawn = Figure(figsize=(7.0, 3.9 + 0.19 * len(family)))
  panels = drawn.subplots(2, len(TITLES), sharey='row',
                          height_ratios=[2.2, 0.6 + 0.19 * len(family)])
  for (above, below), (metric, title) in zip(panels.T, TITLES.items(), strict=True):
    _over_cells(above, same, metric)
    _over_seeds(below, family, metric)
    above.set_title(title, pad=14)
  names = [f'{cell.name}  {number(_gain(cell), "+.1f")}  {i}'
           for i, cell in enumerate(family, 1)]
  panels[1, 0].set_yticks(range(len(names)), names)
  panels[1, 0].set_ylim(len(names) - 0.4, -0.6)
  panels[0, 0].set_ylabel('gain of LN (points)')
  drawn.supxlabel(
      f'above: a point a cell of {task}, filled where p Holm < .05; below: a cell, its '
      'gain and its number, and over its seeds,\nof the change with the gain, 95 % '
      'intervals. Cells share their seeds: this describes and tests nothing.',
      fontsize=7,
  )
  return drawn


def _over_cells(axes: Axes, cells: Mapping[str, Cell], metric: str) -> None:
  """Draws the gain of each cell, with its number, against the change by LN."""
  relative = metric == 'output_norm'  # its scale differs between cells
  changes = []
  for cell in cells.values():
    treated, control = (cell.mechanism[metric, arm] for arm in (TREATED, CONTROL))
    changes.append(np.log2(treated / control) if relative else treated - control)
  rank = rank_correlation(changes, [_gain(cell) for cell in cells.values()]).rank
  if np.isfinite(rank):
    axes.text(0.5, 1.02, f'rank correlation {number(rank, ".2f")}', fontsize=7,
              ha='center', transform=axes.transAxes)
  for (label, cell), x in zip(cells.items(), changes, strict=True):
    found = cell.found
    axes.plot([x], [_gain(cell)], **_LOOK,
              markerfacecolor=_LOOK['color'] if found else 'white')
    if found and np.isfinite(x):
      # Cells of similar gain get their numbers on different sides.
      right, above = int(label) % 2 > 0, int(label) % 4 < 2
      axes.annotate(label, (x, _gain(cell)), fontsize=6.5, textcoords='offset points',
                    xytext=(4 if right else -4, 0 if above else -7),
                    ha='left' if right else 'right')
  axes.set(xlabel='log2(LN / Baseline)' if relative else 'LN − Baseline')
  axes.margins(0.2, 0.15)
  axes.axhline(0, color='black', linewidth=0.8)
  axes.axvline(0, color='black', linewidth=0.8)
  axes.locator_params(axis='x', nbins=3)


def _over_seeds(axes: Axes, cells: Sequence[Cell], metric: str) -> None:
  """Draws, per cell, the correlation over seeds of a metric's change with the gain."""
  ranks = np.array([cell.explained[metric] for cell in cells]).reshape(-1, 3)
  axes.errorbar(
      ranks[:, 0], np.arange(len(cells)), capsize=2, **_LOOK,
      xerr=np.array([ranks[:, 0] - ranks[:, 1], ranks[:, 2] - ranks[:, 0]]),
      markerfacecolor='white',
  )
  axes.axvline(0, color='black', linewidth=0.8)
  axes.set(xlim=(-1.05, 1.05), xticks=(-1, 0, 1), xlabel='rank correlation')


def _task(settings: Mapping[str, Setting], name: str) -> str:
  return settings.get(name, Setting()).task


def _gain(cell: Cell) -> float:
  test = cell.comparison.primary
  return test.mean_difference if test else float('nan')
