"""The figure of linear attention: loss by length and task. Runs without JAX."""

from collections.abc import Mapping
import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from vvlen.reporting import plots
from vvlen.reporting.numbers import from_to
from vvlen.reporting.results import Index

_LOOKS = {  # label, colour, line
    'exact': ('exact optimum', '#0072B2', '-'),
    'single': ("the paper's single number Γ", '#56B4E9', '--'),
    # The colours that these have in the figures of counting.
    'sqrt': ('exact on $\\sqrt{y}$', '#E69F00', '-.'),
    'log': ('exact on $\\log y$', '#009E73', (0, (4, 1, 1, 1, 1, 1))),
    'inverse_sqrt': ('exact on $1/\\sqrt{y}$', '#CC79A7', ':'),
}
_FITTED = ('sqrt', 'log', 'inverse_sqrt')
_ZERO = 1e-20  # smaller losses are 0 up to rounding


def losses(
    n: int, indices: Mapping[str, Index], highest: float | None = None
) -> Figure:
  """Draws loss against length, a panel for each task.

  The task 'length' has a second panel: losses beyond n divided by the exact optimum's.

  Args:
    n: the training length that is shown.
    indices: {task: its rows, by (arm, metric, length)}.
    highest: the upper end of the axis of that panel, so that several figures can share
      it; None: as matplotlib chooses.
  """
  count = len(indices) + ('length' in indices)
  rows = -(-count // 2)
  seeds = max(len(plots.values(x, 'trained', 'loss')[1]) for x in indices.values())
  figure = plots.new(
      1.2 + 1.9 * rows,
      _headline(indices, n),
      'Mean squared error of linear attention by length, a panel for each task: '
      "that of the optimum in training, that of the paper's single number Γ, and "
      f'circles for {seeds} seeds that were trained; in words, losses in training of '
      'the first two'
      + ('; the last panel is what the optima for √y, log y and 1/√y make of the '
         'number of bits, their answers decoded, divided by the error of the optimum'
         if 'length' in indices else '') + '; training lengths grey.',
      f'linear attention, trained on 1 to n = {n} bits, {seeds} seeds; '
      'Γ: the best single number in place of the 2 × 2 table of the optimum')
  grid = figure.subplots(rows, 2, squeeze=False)
  panels = grid.flat
  for axes in panels[count:]:
    axes.remove()
  drawn = dict(zip(indices, panels, strict=False))
  for task, axes in drawn.items():
    lengths = _panel(axes, indices[task])
    axes.axvspan(0, n, color=plots.GREY, zorder=0, linewidth=0)
    axes.set(title='number of bits' if task == 'length' else f'{task} of bits',
             xlabel='number of bits $l$', xlim=(0, lengths[-1] + 1),
             ylabel='mean squared error')
    if task == 'length':
      _ratios(panels[count - 1], indices[task], n, highest)
  together = [drawn[task] for task in ('length', 'sum') if task in drawn]
  ends = [axes.get_ylim() for axes in together]
  for axes in together:
    axes.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
  plots.legend(figure, list(panels[:count]), 3)
  return figure


def _headline(indices: Mapping[str, Index], n: int) -> str:
  """Says for which tasks the optimum has no error at any length, and for which some.

  And what the optima for √y, log y and 1/√y make of the error of the number of bits.
  """
  words = {'length': 'number'}
  exact, inexact = ([
      words.get(task, task) for task, index in indices.items()
      if (plots.values(index, 'exact', 'loss')[1].max() < _ZERO) == is_exact
  ] for is_exact in (True, False))
  parts = [f'exact at all lengths for the {" and ".join(exact)}'] * bool(exact)
  parts += [f'not for the {" and ".join(inexact)}' if exact else
            f'not exact for the {" and ".join(inexact)}'] * bool(inexact)
  title = f'{", ".join(parts)} of bits'.capitalize()
  if 'length' in indices:
    _, found = ratios(indices['length'], n)
    ends = from_to(np.concatenate([found[x] for x in _FITTED]), '.2f')
    title += ('; last panel: fits to √y, log y, 1/√y have '
              f'{ends} × the error of the optimum')
  return title


def _panel(axes: Axes, index: Index) -> list[int]:
  """Draws the losses of a task, with a note if they are 0; returns the lengths."""
  plots.log_axis(axes)
  lengths, exact = plots.values(index, 'exact', 'loss')
  trained = plots.values(index, 'trained', 'loss')[1]
  for arm in ('exact', 'single'):
    label, colour, line = _LOOKS[arm]
    values = plots.values(index, arm, 'loss')[1][0]
    if values.max() > _ZERO:
      axes.plot(lengths, values, color=colour, linestyle=line, label=label)
      for k in np.array(lengths)[values < _ZERO]:
        axes.annotate(
            '0 here', (k, 0), (k + 5, 0.07), ('data', 'axes fraction'), va='center',
            fontsize=plots.SMALLEST, arrowprops={
                'arrowstyle': '->', 'color': colour, 'shrinkA': 0, 'shrinkB': 0})
  if exact.max() < _ZERO:
    words = 'exact optimum and Γ = 1:\nno loss at any length'
    if trained.max(initial=0) > 0:
      words += '\ntrained: not exactly 0'
    axes.text(0.97, 0.97, words, transform=axes.transAxes, ha='right', va='top')
    axes.set_ylim(1e-18, 1)
  elif training := _training_losses(index):
    axes.text(0.97, 0.05, training, transform=axes.transAxes, ha='right', va='bottom',
              fontsize=plots.SMALLEST)
  for seed, losses in enumerate(trained):
    at = [i for i, k in enumerate(lengths) if k == 1 or k % 5 == 0]
    axes.plot(np.array(lengths)[at], np.maximum(losses[at], _ZERO), 'o', color='black',
              markerfacecolor='none', markersize=4, markeredgewidth=0.7,
              label='' if seed else 'trained by gradient descent')
  return lengths


def _training_losses(index: Index) -> str:
  """Returns the training losses of the optimum and of Γ in words, '' if unknown."""
  found = [index.get((arm, 'training_loss', None)) for arm in ('exact', 'single')]
  if not all(found):
    return ''
  best, single = (
      f'{x[0]:,.{max(0, 3 - math.floor(math.log10(x[0])))}f}' for x in found if x)
  return f'loss in training:\nexact optimum {best}\nsingle number Γ {single}'


def ratios(index: Index, n: int) -> tuple[list[int], dict[str, np.ndarray]]:
  """Returns lengths beyond n, and losses divided by that of the exact optimum.

  Args:
    index: the rows of the task 'length'.
    n: the training length.

  Returns:
    Lengths, and {arm: [lengths]}.
  """
  lengths = [k for k in plots.values(index, 'exact', 'loss')[0] if k > n]
  at = lambda arm: np.array([index[arm, 'loss', k][0] for k in lengths])
  return lengths, {arm: at(arm) / at('exact') for arm in _LOOKS}


def _ratios(axes: Axes, index: Index, n: int, highest: float | None) -> None:
  """Draws the losses of the task 'length', divided by that of the exact optimum."""
  lengths, found = ratios(index, n)
  for arm, (label, colour, line) in _LOOKS.items():
    axes.plot(lengths, found[arm], color=colour, linestyle=line, label=label)
  axes.set(title='number of bits, beyond training', xlabel='number of bits $l$',
           ylabel='error / error of the optimum', ylim=(0.9, highest))
