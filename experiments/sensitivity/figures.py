"""The figures of a grid of settings. Runs without JAX."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
import numpy as np

from experiments.sensitivity.cells import Cell, in_words, MECHANISM, Setting
from experiments.sensitivity.tuned import Tuned
from vvlen.reporting import plots
from vvlen.reporting.endpoints import CONTROL, TREATED
from vvlen.reporting.numbers import number
from vvlen.reporting.plots import ARMS
from vvlen.statistics import PairedTest, rank_correlation

TITLES = dict(zip(MECHANISM, (
    'weight of the target', 'norm of the output',
    'distance of the\nnormalized output\nfrom training',
), strict=True))
_SHORT = ('weight of the target', 'norm of the output', 'distance')
_STRONG = 0.5  # a rank correlation
_FOUND, _NOT_FOUND, _UNTESTED = 'p < .05, corrected', 'p ≥ .05, corrected', 'not tested'
_LINES: Any = ('-', '--', ':', '-.')
_HELPS, _HURTS = '#d6e6f4', '#fce3cf'  # blue and orange, behind significant differences


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
      max(5, len({name for name in (*(c.name for c in family), *(tuned or ()))
                  if _task(settings, name) == task}) + 1)
      for task in tasks
  ]
  gain = [_gain(cell) for cell in family if cell.comparison.primary]
  span = ' to '.join(number(x, '+.1f') for x in (min(gain), max(gain))) if gain else ''
  ahead, behind = (
      sum(cell.found and sign * _gain(cell) > 0 for cell in family
          if cell.comparison.treated == TREATED) for sign in (1, -1))
  seeds = max((cell.comparison.primary.num_pairs for cell in family
               if cell.comparison.primary), default=0)
  treated = ARMS[TREATED][0]
  drawn = plots.new(
      1.5 + 0.2 * sum(counts) + 0.5 * len(tasks),
      f'{treated} is ahead in {ahead} and behind in {behind} of {len(gain)} tested '
      f'settings ({span} points)'
      f'\n{", ".join(filter(None, tasks))}: accuracy beyond the training lengths',
      f'Accuracy beyond the training lengths of {treated} and of std. minus that of '
      'the Baseline, paired over seeds: on the left a setting a line, beside its name '
      'the accuracy of the Baseline in %, on the right by training step: mean over '
      f'{seeds} seeds with 95 % intervals, of {treated} on the left corrected by Holm '
      f'over all settings; filled and shaded where {treated} is ahead (blue) or behind '
      '(orange) with p Holm below .05, hollow where p is not; crosses, std. and what '
      'stands below a line among them, are not tested. A decaying rate ends at 0; the '
      'decay of decoupled L2 is multiplied by the rate.')
  panels = drawn.subplots(
      len(tasks), 2, squeeze=False, sharex='col', width_ratios=[1.25, 1],
      height_ratios=[n + 1 for n in counts])
  styles: dict[str, Any] = {}
  for task, (left, right) in zip(tasks, panels, strict=True):
    own = [cell for cell in cells if _task(settings, cell.name) == task]
    best = {name: each for name, each in (tuned or {}).items()
            if _task(settings, name) == task}
    _by_cell(left, own, best, settings)
    left.set_title(f'{task}, after {_steps(own)} steps'.removeprefix(', '), loc='right')
    _along_training(right, own, settings, styles)
    right.set_title(f'{task}, during training'.removeprefix(', '))
    for axes in (left, right):
      axes.tick_params(labelbottom=True)
  ticks = sorted({tick for axes in panels[:, 1] for line in axes.lines
                  if line.get_linestyle() == 'None' for tick in line.get_xdata()})
  for axes in panels[:, 1]:
    axes.set_ylabel('norm − Baseline\n(points)')
    axes.locator_params(axis='y', steps=[1, 2, 5, 10])
    axes.set_xscale('log')
    axes.set_xticks(ticks, [f'{tick:,}' for tick in ticks], rotation=30)
    axes.minorticks_off()
  panels[-1, 0].set_xlabel('norm − Baseline (points)\n← hurts    helps →')
  panels[-1, 1].set_xlabel('steps')
  drawn.legend(handles=_handles(cells, styles, bool(tuned)), ncols=4,
               loc='outside lower center')
  return drawn


def _handles(
    cells: Sequence[Cell], styles: Mapping[str, Any], tuned: bool
) -> list[Artist]:
  """Returns the entries of the legend, only for what is drawn."""
  looks = {_look_of(cell) for cell in cells if cell.comparison.primary}
  looks |= {_UNTESTED} if tuned else set()
  arms = [arm for arm in ARMS if any(c.comparison.treated == arm for c in cells)]
  gains = [_gain(cell) for cell in cells if cell.found]
  shades = {'ahead': (_HELPS, max(gains, default=0) > 0),
            'behind': (_HURTS, min(gains, default=0) < 0)}
  return [
      *(Line2D([], [], linestyle='', label=look, **_marks(
          look, '' if look == _UNTESTED else TREATED))
        for look in (_FOUND, _NOT_FOUND, _UNTESTED) if look in looks),
      *(Line2D([], [], color=ARMS[arm][1], linewidth=2.5, label=ARMS[arm][0])
        for arm in arms),
      *(Line2D([], [], color='black', linestyle=style, label=words)
        for words, style in styles.items()),
      *(Patch(color=colour, label=f'{ARMS[TREATED][0]} {where}')
        for where, (colour, there) in shades.items() if there),
  ]


def _look_of(cell: Cell) -> str:
  """Returns how a cell is marked: difference found, not found, or not tested."""
  if not cell.in_family:
    return _UNTESTED
  return _FOUND if cell.found else _NOT_FOUND


def _marks(look: str, arm: str) -> dict[str, Any]:
  """Returns colour and marker of an arm's points that are marked so; black for ''."""
  _, colour, marker = ARMS.get(arm, ('', 'black', ''))
  if look == _UNTESTED:
    return {'color': colour, 'marker': 'x', 'markersize': 3.8}
  return {'color': colour, 'marker': marker,
          'markerfacecolor': colour if look == _FOUND else 'white'}


def _steps(cells: Sequence[Cell]) -> str:
  """Returns the steps at which cells are tested, such as '2,000 or 4,000'."""
  steps = sorted({c.step for c in cells if c.in_family and c.comparison.primary})
  return ' or '.join(f'{step:,}' for step in steps)


def _by_cell(
    axes: Axes, cells: Sequence[Cell], tuned: Mapping[str, Tuned],
    settings: Mapping[str, Setting],
) -> None:
  """Draws one line per cell, in descending order of gain, then those of tuned rates."""
  family = [c for c in cells if c.in_family and c.comparison.primary]
  order = sorted(family, key=lambda c: -_gain(c))
  names = [cell.name for cell in order]
  steps = {cell.name: cell.step for cell in family}
  labels = [f'{_words(settings, c.name)}   '
            f'{number(c.comparison.primary_means[1], ".0f")}' for c in order]
  for name, each in tuned.items():
    _interval(axes, len(labels), each, _marks(_UNTESTED, TREATED))
    labels.append(f'{_words(settings, name)}, best rates   '
                  f'{number(each.means[1], ".0f")}')
  if tuned:
    axes.axhline(len(names) - 0.5, color='black', linewidth=0.5)
    right = next(iter(tuned.values())).mean_difference < 0  # where there is room
    axes.annotate(
        _UNTESTED, (right, len(names) - 0.5), xycoords=('axes fraction', 'data'),
        xytext=(-2 if right else 2, -2), textcoords='offset points', va='top',
        ha='right' if right else 'left', fontsize=plots.SMALLEST, style='italic')
  for cell in cells:
    test, arm = cell.comparison.primary, cell.comparison.treated
    if test is None or steps.get(cell.name) != cell.step:
      continue
    y = names.index(cell.name)
    _interval(axes, y + (0 if arm == TREATED else 0.3), cell.holm or test,
              _marks(_look_of(cell), arm))
    if cell.found:
      axes.axhspan(y - 0.5, y + 0.5, zorder=0, linewidth=0,
                   color=_HELPS if test.mean_difference > 0 else _HURTS)
  axes.axvline(0, color='black', linewidth=0.8)
  axes.set_yticks(range(len(labels)), labels)
  _head(axes, 'setting, Baseline (%)')
  axes.set_ylim(len(labels) - 0.4, -0.6)
  axes.grid(visible=False, axis='y')


def _head(axes: Axes, words: str) -> None:
  """Writes a heading above the labels on the left."""
  axes.annotate(words, (0, 1), xycoords='axes fraction', xytext=(-8, 4), ha='right',
                textcoords='offset points', fontsize=plots.SMALLEST, style='italic')


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
    axes: Axes, cells: Sequence[Cell], settings: Mapping[str, Setting],
    styles: dict[str, Any],
) -> None:
  """Draws the cells that are measured at many steps; adds their lines to `styles`."""
  steps_of = {c.name: {d.step for d in cells if d.name == c.name} for c in cells}
  # All cells share a few steps; those that have more are drawn.
  most = min(3, max(map(len, steps_of.values()), default=0))
  names = [name for name, steps in steps_of.items() if len(steps) >= most]
  for name in names:
    words = _words(settings, name)
    styles.setdefault(words, _LINES[len(styles) % len(_LINES)])
    for arm in ARMS:
      points = [
          (c.step, c.comparison.primary, _look_of(c)) for c in cells
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
                  **_marks(look, arm))
      axes.fill_between(
          at, [test.ci_low for test in tests], [test.ci_high for test in tests],
          color=ARMS[arm][1], alpha=0.12, linewidth=0,
      )
  axes.axhline(0, color='black', linewidth=0.8)


def mechanism(cells: Sequence[Cell], settings: Mapping[str, Setting]) -> Figure:
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
  ), key=lambda cell: -_gain(cell))
  task = _task(settings, 'base')
  same = [cell for cell in family if _task(settings, cell.name) == task]
  drawn = plots.new(
      3.2 + 0.17 * len(family), '',
      'Gain of LN in accuracy beyond the training lengths against what LN changes in '
      f'weight of the target, norm of the output and its distance from training: above '
      f'a point for each setting{" of " * bool(task)}{task}, filled where p Holm is '
      'below .05; below, for each setting, with its gain in points, the rank '
      'correlation of both over its seeds, with 95 % intervals, and how many of these '
      'are above and below 0; settings share their seeds, so this describes and tests '
      f'nothing. The title names correlations over settings of {_STRONG} or more, of '
      'either sign, and over seeds those with intervals on one side of 0 in most '
      'settings.')
  ranks = {}
  panels = drawn.subplots(2, len(TITLES), sharey='row',
                          height_ratios=[1.6, 0.5 + 0.17 * len(family)])
  for (above, below), (metric, title) in zip(panels.T, TITLES.items(), strict=True):
    ranks[metric] = rank = _over_cells(above, same, metric)
    _over_seeds(below, family, metric)
    above.set_title(title + f'\ncorrelation {number(rank, ".2f")}'
                    * bool(np.isfinite(rank)))
  drawn.suptitle('\n'.join((
      _headline(ranks, family), *(
          (f'above: {len(same)} settings of {task}, a point each',
           f'below: {len(family)} settings, over their seeds') if task else ()))))
  looks = {'above': [look for look in (_FOUND, _NOT_FOUND)
                     if look in map(_look_of, same)], 'below': [_UNTESTED]}
  drawn.legend(
      handles=[Line2D([], [], linestyle='', label=f'{where}: {look}',
                      **_marks(look, TREATED))
               for where, drawn_there in looks.items() for look in drawn_there],
      ncols=3, loc='outside lower center')
  names = [f'{in_words(settings, cell.name)}  {number(_gain(cell), "+.1f")}'
           for cell in family]
  panels[1, 0].set_yticks(range(len(names)), names)
  panels[1, 0].set_ylim(len(names) - 0.4, -0.6)
  _head(panels[1, 0], 'setting, gain (points)')
  panels[0, 0].set_ylabel('gain of LN (points)')
  return drawn


def _headline(ranks: Mapping[str, float], cells: Sequence[Cell]) -> str:
  """Says which changes the gain correlates with, over settings and over seeds.

  Args:
    ranks: {metric: the rank correlation of its change with the gain over settings}.
    cells: those with a correlation over seeds.
  """
  if not any(map(np.isfinite, ranks.values())):
    return 'Does the gain of LN go with what LN changes?'
  names = dict(zip(ranks, _SHORT, strict=True))
  strong = [names[x] for x, rank in ranks.items() if abs(rank) >= _STRONG]
  most = [name for x, name in names.items()
          if 2 * max(_sides(cells, x)) > len(cells)]
  less = [name for name in strong if name not in most]
  seeds = ([f'with {" and ".join(most)}'] * bool(most)
           + [f'not with {" and ".join(less)}'] * bool(less))
  over = ' and '.join(strong) or 'none of these'
  return (f"Over settings, LN's gain goes with {over}"
          + (f';\nover seeds, {", ".join(seeds)}' if seeds else ''))


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
    axes.plot([x], [_gain(cell)], linestyle='', **_marks(_look_of(cell), TREATED))
  axes.set(xlabel='log2(LN / Baseline)' if relative else 'LN − Baseline')
  axes.margins(0.2, 0.15)
  axes.axhline(0, color='black', linewidth=0.8)
  axes.axvline(0, color='black', linewidth=0.8)
  axes.locator_params(axis='x', nbins=3)
  return rank_correlation(changes, [_gain(cell) for cell in cells]).rank


def _over_seeds(axes: Axes, cells: Sequence[Cell], metric: str) -> None:
  """Draws, per cell, the correlation over seeds of a metric's change with the gain."""
  ranks = np.array([cell.explained[metric] for cell in cells]).reshape(-1, 3)
  axes.errorbar(
      ranks[:, 0], np.arange(len(cells)), capsize=1.5, linestyle='',
      xerr=np.array([ranks[:, 0] - ranks[:, 1], ranks[:, 2] - ranks[:, 0]]),
      **_marks(_UNTESTED, TREATED),
  )
  axes.axvline(0, color='black', linewidth=0.8)
  above, below = _sides(cells, metric)
  axes.set(xlim=(-1.05, 1.05), xticks=(-1, 0, 1))
  axes.set_xlabel(f'rank correlation,\n{above} above 0, {below} below',
                  fontsize=plots.SMALLEST)


def _words(settings: Mapping[str, Setting], name: str) -> str:
  return settings.get(name, Setting()).words or name


def _task(settings: Mapping[str, Setting], name: str) -> str:
  return settings.get(name, Setting()).task


def _gain(cell: Cell) -> float:
  test = cell.comparison.primary
  return test.mean_difference if test else float('nan')
