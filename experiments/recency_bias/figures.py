"""Figures 1-5 of arXiv 2509.21042, panels of its later version. Runs without JAX."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
import numpy as np

from experiments.recency_bias.cells import setting, Simulated
from vvlen.theory.recency import h

_COLOURS = 'viridis'


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

  Entries above the diagonal are blank. The colour scale of a panel ends at the largest
  mean off the diagonal: the diagonal is much larger and would hide the differences.
  """
  cell = rows[0].cell
  figure = Figure(figsize=(1.55 * cell.num_layers + 1.1, 1.5 * len(rows) + 0.9))
  panels = figure.subplots(len(rows), cell.num_layers, squeeze=False)
  n = cell.num_tokens
  off_diagonal = np.tri(n, k=-1, dtype=bool)
  for line, row in zip(panels, rows, strict=True):
    probability = row.by_layer('recency_probability')
    for layer, axes in enumerate(line):
      mean = row.arrays['mean'][layer]
      error = row.arrays['standard_error'][layer][off_diagonal].max()
      low, high = mean[off_diagonal].min(), mean[off_diagonal].max()
      axes.imshow(
          np.where(np.tri(n, dtype=bool), mean, np.nan), cmap=_COLOURS, vmin=low,
          vmax=high, extent=(0.5, n + 0.5, n + 0.5, 0.5),
      )
      digits = int(np.clip(np.ceil(1 - np.log10(max(high - low, 1e-9))), 1, 6))
      error_digits = int(np.clip(np.ceil(-np.log10(max(error, 1e-9))), 1, 9))
      axes.text(
          n + 0.4, 0.6,
          f'RP {probability[layer]:.4f}\n{low:.{digits}f} to {high:.{digits}f}\n'
          f'± {error:.{error_digits}f}'.replace('-', '−'),
          ha='right', va='top', fontsize=5.6,
      )
      axes.grid(False)
      axes.spines[['left', 'bottom']].set_visible(False)
      axes.set_xticks([1, n // 2, n])
      axes.set_yticks([1, n // 2, n])
      axes.tick_params(length=0, labelsize=6.5)
      if row is rows[0]:
        axes.set_title(f'layer {layer + 1}')
    what = setting(row.cell).replace(', ', '\n')
    line[0].set_ylabel(f'{what}\n\ntoken i', fontsize=7)
  for axes in panels[-1]:
    axes.set_xlabel('token j', fontsize=7)
  bar = figure.colorbar(
      ScalarMappable(Normalize(0, 1), _COLOURS), ax=panels, shrink=0.5, aspect=30,
      ticks=[0, 1],
  )
  bar.ax.set_yticklabels(['lowest', 'highest\noff the\ndiagonal'], fontsize=6.5)
  figure.supxlabel(
      f'Mean logit $S_{{ij}}$ of {cell.num_simulations:,} simulations, n = {n}, '
      f'd = {cell.width}; masked entries blank.\nIn each panel: recency probability, '
      'range off the diagonal, largest standard error there.',
      fontsize=6.5,
  )
  return figure


def curves(config: Mapping[str, Any], residual: float) -> Figure:
  """Draws h(j), the dependence of layer-2 logits on the key j, for each anisotropy."""
  figure = Figure(figsize=(4.2, 3.0))
  axes = figure.subplots()
  n, width = config['num_tokens'], config['width']
  shades = np.linspace(0, 0.85, len(config['anisotropies']))
  for alpha, shade in zip(config['anisotropies'], shades, strict=True):
    axes.plot(
        range(1, n + 1), h(n, width, alpha, residual), marker='o',
        color=ScalarMappable(cmap=_COLOURS).to_rgba(shade, norm=False),
        label=f'α = {alpha:g}',
    )
  axes.set(
      xlabel='token j', ylabel='h(j)',
      title=f'closed form, layer 2, d = {width}'
            + (f', residual {residual:g} in units of Z' if residual else ''),
  )
  axes.legend()
  return figure
