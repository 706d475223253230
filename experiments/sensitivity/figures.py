"""The figure of gains in a grid of settings. Runs without JAX."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
import numpy as np

from experiments.sensitivity.cells import Cell, CellSetting
from experiments.sensitivity.marks import (
  FOUND,
  gain_of,
  look_of,
  marks_of,
  NOT_FOUND,
  task_of,
  UNTESTED,
  words_of,
  write_heading,
)
from experiments.sensitivity.tuned import Tuned
from vvlen.reporting import plots
from vvlen.reporting.endpoints import TREATED
from vvlen.reporting.numbers import number
from vvlen.reporting.plots import ARMS, SPELLED
from vvlen.statistics import PairedTest

_LINES: Any = ('-', '--', ':', '-.')
_HELPS, _HURTS = '#d6e6f4', '#fce3cf'  # blue and orange, behind significant differences


def gains(
    cells: Sequence[Cell], settings: Mapping[str, CellSetting],
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
  tuned = tuned or {}
  family = [cell for cell in cells if cell.in_family]
  tasks = list(dict.fromkeys(task_of(settings, c.name) for c in family))
  names = {*(c.name for c in family), *tuned}
  counts = [max(5, sum(task_of(settings, name) == task for name in names) + 1)
            for task in tasks]
  drawn = plots.new(1.5 + 0.2 * sum(counts) + 0.5 * len(tasks),
                    _title(family), _caption(family),
                    f'{", ".join(filter(None, tasks))}: accuracy beyond the training '
                    'lengths; the name of a setting says what differs from the plain '
                    'one; left bars: corrected 95 % intervals, right bands: '
                    'uncorrected')
  panels = drawn.subplots(
      len(tasks), 2, squeeze=False, sharex='col', width_ratios=[1.25, 1],
      height_ratios=[n + 1 for n in counts])
  styles: dict[str, Any] = {}
  for task, (left, right) in zip(tasks, panels, strict=True):
    own = [cell for cell in cells if task_of(settings, cell.name) == task]
    best = {name: each for name, each in tuned.items()
            if task_of(settings, name) == task}
    _by_cell(left, own, best, settings)
    left.set_title(f'{task}, after {_steps(own)} steps'.removeprefix(', '), loc='right')
    _along_training(right, own, settings, styles)
    right.set_title(f'{task}, during training'.removeprefix(', '))
    for axes in (left, right):
      axes.tick_params(labelbottom=True)
  _show_steps(panels[:, 1])
  panels[-1, 0].set_xlabel('norm − Baseline (points)\n← hurts    helps →')
  panels[-1, 1].set_xlabel('steps')
  drawn.legend(handles=_handles(cells, styles, bool(tuned)), ncols=4,
               loc='outside lower center')
  return drawn


def _title(family: Sequence[Cell]) -> str:
  gain = [gain_of(cell) for cell in family if cell.comparison.primary]
  span = ' to '.join(number(x, '+.1f') for x in (min(gain), max(gain))) if gain else ''
  ahead, behind = (
      sum(cell.found and sign * gain_of(cell) > 0 for cell in family
          if cell.comparison.treated == TREATED) for sign in (1, -1))
  after = f'After {_steps(family)} steps, ' if gain else ''
  return (f'{after}{ARMS[TREATED][0]} is ahead in {ahead} and behind in {behind} of '
          f'{len(gain)} tested settings ({span} points)')


def _caption(family: Sequence[Cell]) -> str:
  treated = ARMS[TREATED][0]
  seeds = max((cell.comparison.primary.num_pairs for cell in family
               if cell.comparison.primary), default=0)
  return (
      f'Accuracy beyond the training lengths of {treated} and of std. minus that of '
      'the Baseline, paired over seeds: on the left a setting a line, beside its name '
      'the accuracy of the Baseline in %, on the right by training step: mean over '
      f'{seeds} seeds with 95 % intervals, of {treated} on the left corrected by Holm '
      f'over all settings; filled and shaded where {treated} is ahead (blue) or behind '
      '(orange) with p Holm below .05, hollow where p is not; crosses, std. and what '
      'stands below a line among them, are not tested. A decaying rate ends at 0; the '
      'decay of decoupled L2 is multiplied by the rate.')


def _show_steps(column: np.ndarray) -> None:
  """Gives the panels by training step their axes, with a tick at each step measured."""
  ticks = sorted({tick for axes in column for line in axes.lines
                  if line.get_linestyle() == 'None' for tick in line.get_xdata()})
  for axes in column:
    axes.set_ylabel('norm − Baseline\n(points)')
    axes.locator_params(axis='y', steps=[1, 2, 5, 10])
    axes.set_xscale('log')
    axes.set_xticks(ticks, [f'{tick:,}' for tick in ticks], rotation=30)
    axes.minorticks_off()


def _handles(
    cells: Sequence[Cell], styles: Mapping[str, Any], tuned: bool
) -> list[Artist]:
  """Returns the entries of the legend, only for what is drawn."""
  looks = {look_of(cell) for cell in cells if cell.comparison.primary}
  looks |= {UNTESTED} if tuned else set()
  arms = [arm for arm in ARMS if any(c.comparison.treated == arm for c in cells)]
  gains = [gain_of(cell) for cell in cells if cell.found]
  shades = {'ahead': (_HELPS, max(gains, default=0) > 0),
            'behind': (_HURTS, min(gains, default=0) < 0)}
  return [
      *(Line2D([], [], linestyle='', label=look, **marks_of(
          look, '' if look == UNTESTED else TREATED))
        for look in (FOUND, NOT_FOUND, UNTESTED) if look in looks),
      *(Line2D([], [], color=ARMS[arm][1], linewidth=2.5,
               label=f'{ARMS[arm][0]} ({SPELLED[arm]})')
        for arm in arms),
      *(Line2D([], [], color='black', linestyle=style, label=words)
        for words, style in styles.items()),
      *(Patch(color=colour, label=f'{ARMS[TREATED][0]} {where}')
        for where, (colour, there) in shades.items() if there),
  ]


def _steps(cells: Sequence[Cell]) -> str:
  """Returns the steps at which cells are tested, such as '2,000 or 4,000'."""
  steps = sorted({c.step for c in cells if c.in_family and c.comparison.primary})
  return ' or '.join(f'{step:,}' for step in steps)


def _by_cell(
    axes: Axes, cells: Sequence[Cell], tuned: Mapping[str, Tuned],
    settings: Mapping[str, CellSetting],
) -> None:
  """Draws one line per cell, in descending order of gain, then those of tuned rates."""
  family = [c for c in cells if c.in_family and c.comparison.primary]
  order = sorted(family, key=lambda c: -gain_of(c))
  names = [cell.name for cell in order]
  steps = {cell.name: cell.step for cell in family}
  labels = [f'{words_of(settings, c.name)}   '
            f'{number(c.comparison.primary_means[1], ".0f")}' for c in order]
  for name, each in tuned.items():
    _interval(axes, len(labels), each, marks_of(UNTESTED, TREATED))
    labels.append(f'{words_of(settings, name)}, best rates   '
                  f'{number(each.means[1], ".0f")}')
  if tuned:
    axes.axhline(len(names) - 0.5, color='black', linewidth=0.5)
    right = next(iter(tuned.values())).mean_difference < 0  # where there is room
    axes.annotate(
        UNTESTED, (right, len(names) - 0.5), xycoords=('axes fraction', 'data'),
        xytext=(-2 if right else 2, -2), textcoords='offset points', va='top',
        ha='right' if right else 'left', fontsize=plots.SMALLEST, style='italic')
  for cell in cells:
    test, arm = cell.comparison.primary, cell.comparison.treated
    if test is None or steps.get(cell.name) != cell.step:
      continue
    y = names.index(cell.name)
    _interval(axes, y + (0 if arm == TREATED else 0.3), cell.holm or test,
              marks_of(look_of(cell), arm))
    if cell.found:
      axes.axhspan(y - 0.5, y + 0.5, zorder=0, linewidth=0,
                   color=_HELPS if test.mean_difference > 0 else _HURTS)
  axes.axvline(0, color='black', linewidth=0.8)
  axes.set_yticks(range(len(labels)), labels)
  write_heading(axes, 'setting, Baseline (%)')
  axes.set_ylim(len(labels) - 0.4, -0.6)
  axes.grid(visible=False, axis='y')


def _interval(
    axes: Axes, y: float, of: PairedTest | Tuned, marks: Mapping[str, Any]
) -> None:
  """Draws a difference with its interval."""
  middle = of.mean_difference
  axes.errorbar(
      x=[middle], y=[y], xerr=[[middle - of.ci_low], [of.ci_high - middle]], capsize=2,
      linestyle='', **marks,
  )


def _along_training(
    axes: Axes, cells: Sequence[Cell], settings: Mapping[str, CellSetting],
    styles: dict[str, Any],
) -> None:
  """Draws the cells that are measured at many steps; adds their lines to `styles`."""
  steps_of = {c.name: {d.step for d in cells if d.name == c.name} for c in cells}
  # All cells share a few steps; those that have more are drawn.
  most = min(3, max(map(len, steps_of.values()), default=0))
  names = [name for name, steps in steps_of.items() if len(steps) >= most]
  for name in names:
    words = words_of(settings, name)
    styles.setdefault(words, _LINES[len(styles) % len(_LINES)])
    for arm in ARMS:
      points = [
          (c.step, c.comparison.primary, look_of(c)) for c in cells
          if c.name == name and c.comparison.treated == arm and c.comparison.primary
      ]
      if not points:
        continue
      at, tests, looks = zip(*points, strict=True)
      gains = [test.mean_difference for test in tests]
      axes.plot(at, gains, linestyle=styles[words], color=ARMS[arm][1])
      for look in sorted({*looks}):
        of_look = [x == look for x in looks]
        axes.plot(np.array(at)[of_look], np.array(gains)[of_look], linestyle='',
                  **marks_of(look, arm))
      axes.fill_between(
          at, [test.ci_low for test in tests], [test.ci_high for test in tests],
          color=ARMS[arm][1], alpha=0.12, linewidth=0,
      )
  axes.axhline(0, color='black', linewidth=0.8)


