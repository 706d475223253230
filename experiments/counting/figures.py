"""Figures of counting: error by length, one line per model. Runs without JAX."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from experiments.counting.cells import FigureSetups, Setup
from vvlen.reporting import plots
from vvlen.reporting.results import Index

FLOOR = 1e-12  # smaller squared errors are rounding and are raised to it
_LABELS = {
    'none': 'no positions', 'learned': 'learned', 'sinusoidal': 'sinusoidal',
    'alibi': 'ALiBi', 'rope': 'RoPE', 'identity': 'identity',
}


def label(varied: str, cell: Setup, plain: bool = True) -> str:
  """Returns the label of a line: plain text for tables, or with LaTeX for figures."""
  value = getattr(cell, varied)
  if varied == 'train_length':
    return f'1 to {value} bits'
  y, whole = ('y + 1', '(y + 1)') if cell.shifted else ('y', 'y')
  functions = {'sqrt': f'√{whole}', 'log': f'log {whole}',
               'inverse_sqrt': f'1/√{whole}'}
  if not plain:
    functions = {'sqrt': f'$\\sqrt{{{y}}}$', 'log': f'$\\log {whole}$',
                 'inverse_sqrt': f'$1/\\sqrt{{{y}}}$'}
  return (_LABELS | functions)[value]


def what(figure: FigureSetups) -> str:
  """Returns the quantity that models answer, such as 'mean of bits'."""
  cell = figure.cells[0]
  counts = ', number of ones uniform' if cell.counts == 'uniform' else ''
  name = {'mean': 'mean of bits', 'length': 'number of bits', 'sum': 'sum of bits'}
  return name[cell.task] + counts


def errors(figure: FigureSetups, indices: Mapping[str, Index], longest: int) -> Figure:
  """Draws the squared error by length; for reparameterizations its median too.

  Args:
    figure: with cells that all have results.
    indices: {experiment: its rows, by (arm, metric, length)}.
    longest: the longest test length.
  """
  metrics = {'squared_error': 'mean over strings'}
  if figure.varied == 'reparameterization':
    metrics['median_squared_error'] = 'median over strings'
  drawn = Figure(figsize=(1.2 + 3.0 * len(metrics), 3.6))
  row = drawn.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
  ends = []
  for axes, (metric, title) in zip(row, metrics.items(), strict=True):
    axes.set_yscale('log')
    looks = plots.LOOKS[: len(figure.cells)]
    for cell, (colour, marker) in zip(figure.cells, looks, strict=True):
      lengths, values = plots.values(indices[cell.experiment], cell.arm, metric)
      plots.draw(axes, lengths, np.maximum(values, FLOOR), colour, marker,
                 label(figure.varied, cell, plain=False))
      line = axes.lines[-1]
      line.set_markevery([i for i, n in enumerate(lengths) if n % 5 == 0])
      ends += [y for y in line.get_ydata() if np.isfinite(y)]
      if figure.varied == 'train_length':
        axes.axvline(cell.train_length, color=colour, linewidth=0.8, linestyle=':')
    ends += _reference(axes, figure, longest)
    if figure.varied != 'train_length':
      axes.axvspan(0, figure.cells[0].train_length, color='#f1f1f1', zorder=0,
                   linewidth=0)
    axes.set(title=f'{what(figure).capitalize()},\n{title}',
             xlabel='number of bits $l$', xlim=(0, longest + 1))
  # The limits come from the means: with few seeds, bands may be very wide.
  row[0].set(ylabel='squared error')
  if ends:
    row[0].set_ylim(min(ends) / 5, max(ends) * 5)
  drawn.legend(*row[0].get_legend_handles_labels(), ncols=3 if len(row) == 1 else 5,
               loc='outside upper center')
  seeds = max(
      len(indices[c.experiment][c.arm, 'squared_error', 1]) for c in figure.cells
  )
  grey = ('dotted: longest training length' if figure.varied == 'train_length'
          else 'grey: training lengths')
  drawn.supxlabel(
      f'geometric mean over {seeds} seeds; bands: its 95 % intervals; {grey}',
      fontsize=6.5,
  )
  return drawn


def _reference(axes: Axes, figure: FigureSetups, longest: int) -> list[float]:
  """Draws the error of always answering 1/2, if the task is the mean.

  Returns:
    Values that the vertical axis must show: that at the longest training length.
  """
  cell, n = figure.cells[0], np.arange(1, longest + 1)
  if cell.task != 'mean':
    return []
  error = 1 / (4 * n) if cell.counts == 'fair' else 1 / 12 + 1 / (6 * n)
  axes.plot(n, error, color='black', linewidth=0.9, linestyle='--',
            label='answering ½ always')
  return [error[cell.train_length - 1]]
