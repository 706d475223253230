"""Figures of counting: error by length, one line per model. Runs without JAX."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from experiments.counting.answer import best_constant, has_learned, short
from experiments.counting.cells import FigureSetups, IDENTITY, NO_POSITIONS, Setup
from vvlen.reporting import plots
from vvlen.reporting.results import Index
from vvlen.reporting.tables import Record

FLOOR = 1e-12  # smaller squared errors are rounding and are raised to it
# The model whose error the paper shows, and (length, error), read off its figure.
PUBLISHED = (Setup('mean', 'fair', 10, NO_POSITIONS, IDENTITY), (50, 1e-5))
_TITLES = {
    'positions': 'by kind of positions', 'train_length': 'by training length',
    'reparameterization': 'by training target f(y)',
}
_LEGENDS = {
    'positions': 'encoding of positions', 'train_length': 'trained on',
    'reparameterization': 'trained on f(y), the answer computed back',
}
_NAMES = {'mean': 'mean of bits', 'length': 'number of bits', 'sum': 'sum of bits'}
# What is varied -> its place among `plots.LOOKS`, the same in all figures and runs.
_PLACES = {name: place for names in (
    ('identity', 'sqrt', 'log', 'inverse_sqrt'),
    ('none', 'learned', 'alibi', 'rope', 'sinusoidal'),
) for place, name in enumerate(names)}
_DASHED: Any = {'linewidth': 0.9, 'linestyle': '--'}  # the best constant answer
_RING: Any = {'marker': 'o', 'markersize': 7, 'markerfacecolor': 'none',
              'linestyle': ''}  # around the last length that is right
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
  return _NAMES[cell.task] + counts


def errors(
    figure: FigureSetups, indices: Mapping[str, Index], longest: int, setting: str = '',
    records: Sequence[Record] = (),
) -> Figure:
  """Draws the squared error by length; for reparameterizations its median too.

  Args:
    figure: with cells that all have results.
    indices: {experiment: its rows, by (arm, metric, length)}.
    longest: the longest test length.
    setting: words on the models, for the title.
    records: of the figure's table, for the finding in the title.
  """
  metrics = {'squared_error': 'mean over strings'}
  if figure.varied == 'reparameterization':
    metrics['median_squared_error'] = 'median over strings'
  trained = ('transformers' if figure.varied == 'train_length' else
             f'transformers trained on 1 to {figure.cells[0].train_length} bits')
  counts = ('each number of ones equally likely'
            if figure.cells[0].counts == 'uniform' else '')
  title = _headline(figure, records, longest)
  below = ', '.join(filter(None, (trained, _positions(figure), counts, setting)))
  if ': right up to' in title:
    below += '; right: 95 % of answers of all seeds together round to the target'
  right = {cell: int(record['right_up_to'])
           for cell, record in _learned(figure, records) if record.get('right_up_to')}
  seeds = _seeds(figure, indices)
  drawn = plots.new(3.4, title, _caption(figure, indices),
                    plots.with_bands(below, seeds))
  row = drawn.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
  ends = []
  for axes, (metric, title) in zip(row, metrics.items(), strict=True):
    plots.log_axis(axes)
    for place, cell in enumerate(figure.cells):
      colour, marker = plots.LOOKS[_PLACES.get(getattr(cell, figure.varied), place)]
      lengths, values = plots.values(indices[cell.experiment], cell.arm, metric)
      plots.draw(axes, lengths, np.maximum(values, FLOOR), colour, marker,
                 label(figure.varied, cell, plain=False))
      line = axes.lines[-1]
      line.set_markevery([i for i, n in enumerate(lengths) if n % 5 == 0])
      ends += [y for y in line.get_ydata() if np.isfinite(y)]
      if (end := right.get(cell)) in lengths:
        axes.plot([end], [line.get_ydata()[lengths.index(end)]], color=colour, **_RING)
      if figure.varied == 'train_length':
        axes.axvline(cell.train_length, color=colour, linewidth=0.8, linestyle=':')
        ends += _constant(axes, cell, longest, colour, cell.train_length)
    if figure.varied == 'train_length':
      axes.plot([], [], **_DASHED, color='black',
                label='answering the mean of training always')
    else:
      ends += _constant(axes, figure.cells[0], longest, 'black')
      axes.lines[-1].set_label(_always(figure.cells[0]))
      axes.axvspan(0, figure.cells[0].train_length, color=plots.GREY, zorder=0,
                   linewidth=0, label='training lengths')
    if right:
      axes.plot([], [], color='black', **_RING, label='right up to here')
    if PUBLISHED[0] in figure.cells and longest >= PUBLISHED[1][0]:
      axes.plot(*PUBLISHED[1], color='black', marker='x', linestyle='', markersize=5,
                label='paper, no positions', zorder=3)
    axes.set(title=title if len(row) > 1 else '', xlabel='number of bits $l$',
             xlim=(0, longest + 1))
  # The limits come from the means: with few seeds, bands may be very wide.
  row[0].set(ylabel='squared error' if len(row) > 1 else
             'squared error, mean over strings')
  if ends:
    row[0].set_ylim(min(ends) / 5, max(ends) * 5)
  plots.legend(drawn, row, 3 if figure.varied == 'train_length' else 4,
               title=_LEGENDS[figure.varied])
  return drawn


def _headline(
    figure: FigureSetups, records: Sequence[Record], longest: int
) -> str:
  """Says how far the models that have learned generalize.

  That is up to which length answers are right, or, for the mean of bits, how much less
  the least error at the longest length is than that of the best constant answer.
  """
  what_is = _NAMES[figure.cells[0].task].capitalize()
  known = _learned(figure, records)
  if not known:
    by = (_TITLES[figure.varied] if len(figure.cells) > 1 else
          label(figure.varied, figure.cells[0]))
    return f'{what_is}, {by}'
  if 'right_up_to' in known[0][1]:
    ends = [str(record['right_up_to']) for _, record in known]
    if figure.varied == 'train_length':
      trained = ', '.join(str(cell.train_length) for cell, _ in known)
      return (f'{what_is}: right up to {", ".join(ends)} bits '
              f'when trained up to {trained} bits')
    by_end: dict[str, list[str]] = {}
    for end, (cell, _) in zip(ends, known, strict=True):
      by_end.setdefault(end, []).append(label(figure.varied, cell))
    (end, names), *others = by_end.items()
    each = [f'{end} bits ({", ".join(names)})',
            *(f'{end} ({", ".join(names)})' for end, names in others)]
    return f'{what_is}: right up to {", ".join(each)}'
  cell, best = min(known, key=lambda pair: pair[1][f'error_{longest}'])
  constant = constant_error(cell.task, cell.counts, cell.train_length, longest)[-1]
  ratio = best[f'error_{longest}'] / constant
  times = (f'{short(ratio)} times that' if ratio >= 1 else
           f'{short(1 / ratio)} times less than that')
  least = 'the least error' if len(known) > 1 else 'an error'
  return (f'{what_is}: at {longest} bits, {label(figure.varied, cell)} has {least}, '
          f'{times} of {_always(cell)}')


def _learned(
    figure: FigureSetups, records: Sequence[Record]
) -> list[tuple[Setup, Record]]:
  """Returns the cells that have learned, each with its record of the table."""
  return [(cell, record) for cell, record in zip(figure.cells, records, strict=False)
          if has_learned(record)]


def _positions(figure: FigureSetups) -> str:
  """Returns the encoding of positions of all models of a figure, '' if they differ."""
  if figure.varied == 'positions':
    return ''
  kind = label('positions', figure.cells[0])
  return kind if kind.endswith('positions') else f'{kind} positions'


def _seeds(figure: FigureSetups, indices: Mapping[str, Index]) -> int:
  return max(
      len(indices[c.experiment][c.arm, 'squared_error', 1]) for c in figure.cells)


def _caption(figure: FigureSetups, indices: Mapping[str, Index]) -> str:
  """Returns a sentence on axes, lines and bands."""
  seeds = _seeds(figure, indices)
  lines = {'positions': 'kind of positions', 'reparameterization': 'function of the '
           'target that is trained on', 'train_length': 'longest training length'}
  marks = ('dotted: longest training lengths; dashed, in the same colours: the best '
           'constant answer in training, at longer inputs'
           if figure.varied == 'train_length' else
           'training lengths grey; dashed: the best constant answer in training')
  published = '; cross: read off the paper' if PUBLISHED[0] in figure.cells else ''
  return (f'Squared error of the {what(figure)} by length, a line for each '
          f'{lines[figure.varied]}: '
          f'{plots.over_seeds(seeds, "geometric mean")}; {marks}{published}.')


def constant_error(task: str, counts: str, train_length: int, longest: int) -> Any:
  """Returns the error of the best constant answer in training, [longest].

  Args:
    task: 'mean', 'sum' or 'length' of l bits.
    counts: 'fair', the bits are drawn singly; 'uniform': each number of ones is
      equally likely.
    train_length: training lengths are uniform from 1 to it.
    longest: the longest l.

  Returns:
    For l = 1, 2, …: the variance of the target, plus the squared distance of its mean
    from the mean over training.
  """
  n: Any = np.arange(1, longest + 1)
  if task == 'length':
    return (n - (train_length + 1) / 2) ** 2
  far = n / 2 - (train_length + 1) / 4 if task == 'sum' else 0
  return best_constant(task, counts, n) + far**2


def _constant(
    axes: Axes, cell: Setup, longest: int, colour: str, first: int = 1
) -> list[float]:
  """Draws the error of the best constant answer from length `first` on.

  Returns:
    Values that the vertical axis must show: the largest, and that at the longest
    training length.
  """
  error = constant_error(cell.task, cell.counts, cell.train_length, longest)
  axes.plot(np.arange(first, longest + 1), np.maximum(error, FLOOR)[first - 1:],
            color=colour, **_DASHED)
  return [error[first - 1:].max(), error[cell.train_length - 1]]


def _always(cell: Setup) -> str:
  """Returns words on the best constant answer."""
  value = {'mean': '½', 'length': f'{(cell.train_length + 1) / 2:g}',
           'sum': f'{(cell.train_length + 1) / 4:g}'}[cell.task]
  return f'answering {value} always'
