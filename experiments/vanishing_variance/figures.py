"""The figures of a family of runs. Runs without JAX."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
import numpy as np

from experiments.vanishing_variance import effects, parts
from experiments.vanishing_variance.effects import Claim, Effect, Setting
from experiments.vanishing_variance.tables import Effects, verdict_words
from vvlen.reporting import plots
from vvlen.reporting.endpoints import CONTROL, TREATED
from vvlen.reporting.plots import ARMS
from vvlen.reporting.results import Index
from vvlen.reporting.tables import number

_UP, _DOWN, _EQUAL, _OPEN = '#009E73', '#D55E00', '#0072B2', '#8a8a8a'
_COLOURS = {
    effects.AHEAD: _UP, effects.AHEAD_LITTLE: _UP, effects.BEHIND: _DOWN,
    effects.BEHIND_LITTLE: _DOWN, effects.EQUAL: _EQUAL,
}
_PARTS = (
    ('weights', 'no linear reader gets it back', '#4d4d4d'),
    ('rest', 'a reader fitted at N does', '#56B4E9'),
    ('scales', 'mean and variance as in training do', '#E69F00'),
)


def verdicts(cells: Mapping[str, Setting], found: Effects, claim: Claim) -> Figure:
  """Draws the effect of LN in each cell, after its last step and during training."""
  drawn = Figure(figsize=(7.0, 1.3 + 0.36 * len(cells)))
  left, right = drawn.subplots(1, 2, width_ratios=[1.25, 1])
  for axes, vertical in ((left, False), (right, True)):
    span = axes.axhspan if vertical else axes.axvspan
    span(-claim.equivalence, claim.equivalence, color='#ececec', zorder=0, linewidth=0)
    line = axes.axhline if vertical else axes.axvline
    line(0, color='black', linewidth=0.8)
  _by_cell(left, cells, found, claim)
  _along(right, cells, found)
  drawn.supxlabel(
      'mean accuracy beyond the training lengths, points, paired over seeds; left: 95 '
      f'% intervals corrected over the {claim.num_tests} settings;\n'
      f'right: uncorrected; grey: within {claim.equivalence:g} point, the smallest '
      'effect of interest',
      fontsize=7,
  )
  return drawn


def _by_cell(
    axes: Axes, cells: Mapping[str, Setting], found: Effects, claim: Claim
) -> None:
  """Draws one line per cell."""
  labels = []
  for y, cell in enumerate(cells.values()):
    steps = number(cell.steps[-1] / 1000, '.0f')
    labels.append(f'{_short(cell)}, {steps}k')
    measured = found.get((cell.name, ''), ())
    last = measured[-1] if measured and measured[-1].step == cell.steps[-1] else None
    words, colour = verdict_words(last, claim), _OPEN
    if last is not None and last.corrected is not None:
      test, colour = last.corrected, _COLOURS.get(last.verdict, _OPEN)
      axes.errorbar(  # hollow where seeds are still missing
          x=[test.mean_difference], y=[y], color=colour, marker='o', capsize=2,
          markerfacecolor=colour if last.complete else 'white',
          xerr=[[test.mean_difference - test.ci_low],
                [test.ci_high - test.mean_difference]],
      )
    axes.text(1.0, y - 0.32, words, color=colour, fontsize=6.5, ha='right', va='center',
              transform=axes.get_yaxis_transform())
  axes.set_yticks(range(len(labels)), labels, fontsize=7)
  axes.set_ylim(len(labels) - 0.5, -0.7)
  axes.grid(visible=False, axis='y')
  axes.set(xlabel='← hurts    LN − Baseline (points)    helps →',
           title='After the last step')


def _short(cell: Setting) -> str:
  """Describes the setting of a cell in words that fit into a figure."""
  where = 'all parameters' if cell.l2_on == 'all' else 'kernels'
  words = [
      cell.task, f'growing to {cell.trained_up_to}' if cell.grows else '',
      f'L2 on {where}' if cell.l2 else 'no L2',
      'decaying rate' if cell.decays else '',
      'output projection' if cell.output_projection else '',
  ]
  return ', '.join(word for word in words if word)


def _along(axes: Axes, cells: Mapping[str, Setting], found: Effects) -> None:
  """Draws the effect of LN by step, for cells that are measured at several steps."""
  followed = [cell for cell in cells.values() if len(cell.steps) > 1]
  for cell, (colour, marker) in zip(followed, plots.LOOKS, strict=False):
    points = [(e.step, e.test) for e in found.get((cell.name, ''), ())
              if e.complete and e.test]
    if not points:
      continue
    at, tests = zip(*points, strict=True)
    axes.plot(at, [t.mean_difference for t in tests], color=colour, marker=marker,
              label=_short(cell).removeprefix('retrieval, '))
    axes.fill_between(at, [t.ci_low for t in tests], [t.ci_high for t in tests],
                      color=colour, alpha=0.15, linewidth=0)
  steps = sorted({step for cell in followed for step in cell.steps})
  axes.set(xscale='log', xlabel='steps', title='Retrieval, constant rate')
  if steps:
    axes.set_xlim(steps[0] / 1.2, steps[-1] * 1.2)
  axes.set_xticks(steps, [f'{step // 1000}k' for step in steps])
  axes.minorticks_off()
  if axes.get_legend_handles_labels()[0]:
    axes.legend(fontsize=6.5, loc='best')


def where_lost(indices: Mapping[str, Index], cells: Mapping[str, Setting]) -> Figure:
  """Draws the parts of the lost accuracy by length, a bar for each of the two arms."""
  drawn = Figure(figsize=(7.0, 2.3 * -(-len(indices) // 2) + 0.9))
  panels = drawn.subplots(-(-len(indices) // 2), 2, squeeze=False, sharey=True)
  for axes in panels.flat[len(indices):]:
    axes.set_visible(False)
  for axes, (name, index) in zip(panels.flat, indices.items(), strict=False):
    for arm, shift in ((CONTROL, -0.2), (TREATED, 0.2)):
      _bars(axes, parts.parts(index, arm, cells[name].trained_up_to), shift,
            arm == TREATED)
    axes.set_title(_short(cells[name]))
    axes.grid(visible=False, axis='x')
    axes.axhline(0, color='black', linewidth=0.6)
  for axes in panels[:, 0]:
    axes.set_ylabel('accuracy lost (points)')
  handles: list[Any] = [
      Patch(color=colour, label=label) for _, label, colour in _PARTS
  ]
  drawn.legend(
      handles=handles, loc='outside lower center', ncols=3, fontsize=7,
      title=f'left bars: {ARMS[CONTROL][0]}, right bars (hatched): {ARMS[TREATED][0]}; '
            'means over seeds, and 95 % intervals of what no linear reader gets back '
            'and of all',
      title_fontsize=7,
  )
  return drawn


def _bars(axes: Axes, found: parts.Parts, shift: float, hatched: bool) -> None:
  """Draws the stacked parts of one arm, one bar per length."""
  at = np.arange(len(found.lengths))
  values = {
      'weights': found.weights, 'rest': found.readers - found.scales,
      'scales': found.scales,
  }
  bottom = np.zeros(len(at))
  for name, _, colour in _PARTS:
    mean = values[name].mean(axis=0)
    axes.bar(at + shift, mean, 0.36, bottom=bottom, color=colour,
             hatch='////' if hatched else '', edgecolor='white', linewidth=0)
    bottom = bottom + mean
  for table in (found.weights, found.lost):
    mean, low, high = plots.mean_interval(table)
    axes.errorbar(x=at + shift, y=mean, yerr=[mean - low, high - mean], color='black',
                  linestyle='', capsize=1.5, linewidth=0.8)
  axes.set_xticks(at, [f'{n:,}' for n in found.lengths])
  axes.set_xlabel('number of items N')


def averaging(found: Effects, cells: Mapping[str, Setting]) -> Figure | None:
  """Draws LN − Baseline for each seed, with weights as they are and averaged."""
  pairs: list[tuple[Setting, Effect, Effect]] = [
      (cell, plain[-1], averaged[-1])
      for cell in cells.values()
      for plain, averaged in [(found.get((cell.name, ''), ()),
                               found.get((cell.name, '+averaged'), ()))]
      if plain and averaged and plain[-1].step == averaged[-1].step
  ]
  if not pairs:
    return None
  drawn = Figure(figsize=(7.0, 1.1 + 0.36 * len(pairs)))
  axes = drawn.subplots()
  for y, (_, plain, averaged) in enumerate(pairs):
    for each, shift, colour, label in (
        (plain, -0.14, '#0072B2', 'weights as they are'),
        (averaged, 0.14, '#E69F00', 'averaged over the last tenth of steps'),
    ):
      differences = list(each.comparison.primary_differences.values())
      axes.plot(differences, np.full(len(differences), y + shift), '.', color=colour,
                alpha=0.6, label=label if y == 0 else None)
      axes.plot([np.mean(differences)], [y + shift], '|', color='black', markersize=9)
  axes.axvline(0, color='black', linewidth=0.8)
  axes.set_yticks(range(len(pairs)), [_short(cell) for cell, _, _ in pairs], fontsize=7)
  axes.set_ylim(len(pairs) - 0.5, -0.6)
  axes.grid(visible=False, axis='y')
  axes.set_xlabel('LN − Baseline (points); a dot a seed, bars: means')
  drawn.legend(loc='outside lower center', ncols=2, fontsize=7)
  return drawn
