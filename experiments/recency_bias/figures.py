"""Figures 1-5 of arXiv 2509.21042, panels of its later version. Runs without JAX."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
import numpy as np

from experiments.recency_bias.cells import PUBLISHED, row_name, setting, Simulated
from vvlen.reporting import plots
from vvlen.reporting.numbers import counted, from_to
from vvlen.theory.recency import h

_COLOURS = 'viridis'
# The colours of rows without an order; masked entries are white.
_GREYS = LinearSegmentedColormap.from_list('greys', ['#dddddd', '#555555'])
MARGIN = 0.02  # from 1/2, of a recency probability that shows no order
_ERRORS = 40  # standard errors that a colour scale spans at least


def make(
    config: Mapping[str, Any], groups: Mapping[str, Sequence[Simulated]]
) -> dict[str, Figure]:
  """Returns {name of the file: figure}."""
  figures = {
      f'figure_{number}': curves(config, residual)
      for number, residual in ((2, 0.0), (5, 1.0))
  }
  for name in ('figure_1', 'figure_3', 'figure_4'):
    if groups[name]:
      figures[name] = heat_maps(groups[name])
  for width in config['panels']['widths']:
    if rows := [s for s in groups['panels'] if s.cell.width == width]:
      figures[f'panels_d{width}'] = heat_maps(rows)
  return figures


def heat_maps(rows: Sequence[Simulated]) -> Figure:
  """Draws the mean logits of every layer, a row of panels for each setting.

  Entries above the diagonal are blank. The panels of a row share one colour scale. It
  ends at the largest mean off the diagonal, since the much larger diagonal would hide
  the differences. It spans at least `_ERRORS` standard errors, so that noise has one
  colour. Rows without an order are grey.
  """
  cell = rows[0].cell
  figure = plots.new(
      1.16 * len(rows) + 1.0, _favoured(rows), _caption(rows), _setup(rows))
  panels = figure.subplots(len(rows), cell.num_layers, squeeze=False)
  for line, row in zip(panels, rows, strict=True):
    picture = _heat_maps_of(line, row)
    what = setting(row.cell).replace(', ', '\n')
    line[0].set_ylabel(f'{what}\n\ntoken i')
    bar = figure.colorbar(picture, ax=line, extend='max', aspect=12, pad=0.02)
    bar.set_label('mean logit,\nown scale')
    bar.locator = MaxNLocator(4)
    bar.update_ticks()
  ticks = [1, cell.num_tokens // 2, cell.num_tokens]
  for axes in panels.flat:
    axes.set_xticks([])
    axes.set_yticks([])
  for axes in panels[:, 0]:
    axes.set_yticks(ticks)
  for layer, axes in enumerate(panels[0], 1):
    axes.set_title(f'layer {layer}')
  for axes in panels[-1]:
    axes.set_xticks(ticks)
    axes.set_xlabel('token j')
  return figure


def _setup(rows: Sequence[Simulated]) -> str:
  cell, known = rows[0].cell, any(map(published, rows))
  below = ['α: cosine of two tokens', *['in brackets: the paper'] * known,
           *[f'grey: RP within {MARGIN:g} of 0.5 in all layers'] * any(
               map(without_order, rows))]
  return (f'mean logit by query i and key j, width d = {cell.width:,}, '
          f'{cell.num_simulations:,} simulations\n' + '; '.join(below))


def _favoured(rows: Sequence[Simulated]) -> str:
  """Says in how many settings recent tokens are favoured, and old ones.

  That is by more than `MARGIN` and by two standard errors, in the last layer.
  """
  last, errors = ([row.by_layer(f'recency_probability{x}')[-1] for row in rows]
                  for x in ('', '_error'))
  margins = [max(MARGIN, 2 * error) for error in errors]
  recent = sum(x > 0.5 + margin for x, margin in zip(last, margins, strict=True))
  old = sum(x < 0.5 - margin for x, margin in zip(last, margins, strict=True))
  noisy = ', two standard errors from 0.5' * bool(max(margins) > MARGIN)
  return ('Recent tokens are clearly favoured '
          f'(RP > {0.5 + MARGIN:g}{noisy}) in {recent} of '
          f'{counted(len(rows), "setting")}'
          + f', old ones (RP < {0.5 - MARGIN:g}) in {old}' * bool(old)
          + f': recency probability (RP) of layer {rows[0].cell.num_layers} is '
          + from_to(last, '.2f'))


def _caption(rows: Sequence[Simulated]) -> str:
  cell = rows[0].cell
  known, grey = any(map(published, rows)), any(map(without_order, rows))
  return (
      f'Mean attention logit by query i and key j over {cell.num_simulations:,} '
      f'simulations of n = {cell.num_tokens} tokens of width d = {cell.width}, a row '
      'for each setting and a column for each layer; masked entries are blank, the '
      'colour scale of a row ends at its largest mean off the diagonal and spans at '
      f'least {_ERRORS} standard errors; '
      + (f'grey: a row whose recency probabilities are within {MARGIN:g}, or two '
         'standard errors, of one half in all layers; ' if grey else '')
      + 'in each panel the recency probability'
      + (', and in brackets what the paper prints' if known else '') + '.')


def _heat_maps_of(line: Sequence[Axes], row: Simulated) -> AxesImage:
  """Draws a row of panels, one for each layer; returns one of its pictures."""
  n, means, errors = (
      row.cell.num_tokens, row.arrays['mean'], row.arrays['standard_error'])
  probability, printed = row.by_layer('recency_probability'), published(row)
  off_diagonal = np.tri(n, k=-1, dtype=bool)
  low, high = scale(means[:, off_diagonal], errors[:, off_diagonal])
  for layer, axes in enumerate(line):
    picture = axes.imshow(
        np.where(np.tri(n, dtype=bool), means[layer], np.nan), vmin=low, vmax=high,
        cmap=_GREYS if without_order(row) else _COLOURS,
        extent=(0.5, n + 0.5, n + 0.5, 0.5),
    )
    words = f'RP {probability[layer]:.4f}'
    if layer < len(printed):
      words += f'\n({printed[layer]:.4f})'
    axes.text(n + 0.4, 0.6, words, ha='right', va='top', fontsize=plots.SMALLEST)
    axes.grid(False)
    axes.spines[['left', 'bottom']].set_visible(False)
    axes.tick_params(length=0)
  return picture


def published(row: Simulated) -> tuple[float, ...]:
  """Returns the recency probabilities by layer that the paper prints, () if none."""
  cell = row.cell
  if cell.layer != 'causal' or (cell.num_tokens, cell.num_heads) != (10, 1):
    return ()
  name = row_name(cell.anisotropy, cell.layer_norm, cell.residual)
  return PUBLISHED.get((cell.width, name), ())


def without_order(row: Simulated) -> bool:
  """Whether recency probability is about one half in every layer.

  That is within `MARGIN`, or within two standard errors.
  """
  probability, error = (
      row.by_layer(f'recency_probability{x}') for x in ('', '_error'))
  return bool((np.abs(probability - 0.5) <= np.maximum(2 * error, MARGIN)).all())


def scale(means: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
  """Returns the ends of a colour scale for all means, at least `_ERRORS` errors apart.

  If the means span less, they are in the middle of the scale.
  """
  low, high = float(np.min(means)), float(np.max(means))
  widen = max(0.0, _ERRORS * float(np.max(errors)) - (high - low)) / 2
  return low - widen, high + widen


def curves(config: Mapping[str, Any], residual: float) -> Figure:
  """Draws h(j), the dependence of layer-2 logits on the key j, for each anisotropy."""
  n, width = config['num_tokens'], config['width']
  more = unit = ''
  if residual:
    times = '' if residual == 1 else f'{residual:g} times '
    more = f'; residual: {times}the output of LayerNorm is added'
    unit = (f', with a residual that is c = {residual:g} in units of Z, the output of '
            'LayerNorm')
  every = [h(n, width, alpha, residual) for alpha in config['anisotropies']]
  most = 100 * max(curve[-1] / curve[0] - 1 for curve in every)
  rises = all((np.diff(curve) >= 0).all() for curve in every)
  figure = plots.new(
      3.2, 'The factor h(j) of the logits of layer 2 rises with the key token j, by '
      f'up to {most:.2g} %' if rises else
      'The factor h(j) of the logits of layer 2 by the key token j',
      'h(j), the factor through which the closed form of the logits of layer 2 depends '
      f'on the key token j, a line for each anisotropy α, at width {width}{unit}.',
      f'closed form for large width d, at d = {width}; α: cosine of two tokens{more}')
  axes = figure.subplots()
  shades = np.linspace(0, 0.85, len(config['anisotropies']))
  for i, (alpha, curve, shade) in enumerate(
      zip(config['anisotropies'], every, shades, strict=True)):
    axes.plot(
        range(1, n + 1), curve, label=f'α = {alpha:g}',
        marker=plots.LOOKS[i % len(plots.LOOKS)][1],
        color=ScalarMappable(cmap=_COLOURS).to_rgba(shade, norm=False),
    )
  axes.set(xlabel='key token j', ylabel='h(j), factor of the layer-2 logit')
  plots.legend(figure, [axes], 5)
  return figure
