"""The figure of linear attention: loss by length and task. Runs without JAX."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from vvlen.reporting import plots
from vvlen.reporting.results import Index

_LOOKS = {  # label, colour, line
    'exact': ('exact optimum', '#0072B2', '-'),
    'single': ("paper's single Γ", '#E69F00', '--'),
    'sqrt': ('exact on $\\sqrt{y}$', '#CC79A7', '-.'),
    'log': ('exact on $\\log y$', '#56B4E9', (0, (4, 1, 1, 1, 1, 1))),
    'inverse_sqrt': ('exact on $1/\\sqrt{y}$', '#777777', ':'),
}
_ZERO = 1e-20  # smaller losses are 0 up to rounding


def losses(n: int, indices: Mapping[str, Index]) -> Figure:
  """Draws loss against length, a panel for each task.

  The task 'length' has a second panel: losses beyond n divided by the exact optimum's.

  Args:
    n: the training length that is shown.
    indices: {task: its rows, by (arm, metric, length)}.
  """
  count = len(indices) + ('length' in indices)
  figure = Figure(figsize=(0.8 + 2.3 * max(count, 2), 3.5))
  panels = figure.subplots(1, count, squeeze=False)[0]
  entries: dict[str, Any] = {}
  for axes, (task, index) in zip(panels, indices.items(), strict=False):
    lengths = _panel(axes, index)
    axes.axvspan(0, n, color='#f1f1f1', zorder=0, linewidth=0)
    axes.set(title='number of bits' if task == 'length' else f'{task} of bits',
             xlabel='number of bits l', xlim=(0, lengths[-1] + 1))
    entries |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if task == 'length':
      _ratios(panels[-1], index, lengths[n:])
  panels[0].set_ylabel('mean squared error')
  figure.legend(
      [*entries.values()], [*entries], ncols=6 if count > 2 else 2,
      loc='outside upper center',
      title=f'Linear attention trained on 1 to n = {n} bits',
  )
  seeds = max(len(plots.values(x, 'trained', 'loss')[1]) for x in indices.values())
  figure.supxlabel(
      f'grey: training lengths; circles: each of {seeds} seeds; √y, log y, 1/√y: the '
      'exact optimum for this target, its answers decoded', fontsize=7)
  return figure


def _panel(axes: Axes, index: Index) -> list[int]:
  """Draws the losses of a task, with a note if they are 0; returns the lengths."""
  axes.set_yscale('log')
  lengths, exact = plots.values(index, 'exact', 'loss')
  for arm, (label, colour, line) in _LOOKS.items():
    if (arm, 'loss', 1) in index:
      values = plots.values(index, arm, 'loss')[1][0]
      if values.max() > _ZERO:
        axes.plot(lengths, values, color=colour, linestyle=line, label=label)
  if exact.max() < _ZERO:
    axes.text(0.97, 0.97, 'exact optimum and Γ = 1:\nno loss at any length',
              transform=axes.transAxes, ha='right', va='top', fontsize=7.5)
    axes.set_ylim(1e-18, 1)
  for seed, losses in enumerate(plots.values(index, 'trained', 'loss')[1]):
    at = [i for i, k in enumerate(lengths) if k == 1 or k % 5 == 0]
    axes.plot(np.array(lengths)[at], np.maximum(losses[at], _ZERO), 'o', color='black',
              markerfacecolor='none', markersize=4, markeredgewidth=0.7,
              label='' if seed else 'trained by gradient descent')
  return lengths


def _ratios(axes: Axes, index: Index, lengths: Sequence[int]) -> None:
  """Draws the losses of the task 'length', divided by that of the exact optimum."""
  at = lambda arm: np.array([index[arm, 'loss', k][0] for k in lengths])
  for arm, (_, colour, line) in _LOOKS.items():
    axes.plot(lengths, at(arm) / at('exact'), color=colour, linestyle=line)
  axes.set(title='number of bits, beyond training', xlabel='number of bits l',
           ylabel='error / error of the optimum', ylim=(0.9, None))
