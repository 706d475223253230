"""Figures of counting: error by length, a line a model. Runs without JAX."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from experiments.counting.cells import Cell, FigureCells
from vvlen.reporting import plots
from vvlen.reporting.results import Index

FLOOR = 1e-12  # of a squared error: below it there is but rounding
_LABELS = {
    'none': 'no positions', 'learned': 'learned', 'sinusoidal': 'sinusoidal',
    'alibi': 'ALiBi', 'rope': 'RoPE', 'identity': 'identity',
}


def label(varied: str, cell: Cell, plain: bool = True) -> str:
  """Returns what a line is called; `plain` for tables."""
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


def what(figure: FigureCells) -> str:
  """Returns what is told, such as 'mean of bits'."""
  cell = figure.cells[0]
  counts = ', number of ones uniform' if cell.counts == 'uniform' else ''
  name = {'mean': 'mean of bits', 'length': 'number of bits', 'sum': 'sum of bits'}
  return name[cell.task] + counts


def errors(figure: FigureCells, indices: Mapping[str, Index], longest: int) -> Figure:
  """Draws the squared error by length; with reparameterizations its median too.

  Args:
    figure: its cells, all with results.
    indices: of the experiments, by (arm, metric, length).
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
  # Bands of few seeds may be wider than what is to be seen.
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


def _reference(axes: Axes, figure: FigureCells, longest: int) -> list[float]:
  """Draws the error of answering 1/2 always, where the mean is asked for.

  Returns:
    What is to be seen of it: at the longest training length.
  """
  cell, n = figure.cells[0], np.arange(1, longest + 1)
  if cell.task != 'mean':
    return []
  error = 1 / (4 * n) if cell.counts == 'fair' else 1 / 12 + 1 / (6 * n)
  axes.plot(n, error, color='black', linewidth=0.9, linestyle='--',
            label='answering ½ always')
  return [error[cell.train_length - 1]]
