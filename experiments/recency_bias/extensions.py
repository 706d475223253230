"""Figures of recency bias that extend the paper. Runs without JAX."""

from collections.abc import Mapping, Sequence

from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
import numpy as np

from experiments.recency_bias.cells import POSITIONS, Simulated

# Okabe and Ito's colours.
_COLOURS = ('#0072B2', '#E69F00', '#009E73', '#D55E00', '#CC79A7', '#56B4E9')
_MARKERS = 'os^Dv<'
_LABEL = 'recency probability'


def make(groups: Mapping[str, Sequence[Simulated]]) -> dict[str, Figure]:
  """Returns {name: figure} for the groups that have results."""
  drawn = {'depth': depth, 'norms': norms, 'heads': heads, 'positions': positions,
           'map': over_anisotropy_and_width}
  return {name: draw(groups[name]) for name, draw in drawn.items() if groups[name]}


def depth(found: Sequence[Simulated]) -> Figure:
  """Draws recency probability by layer and length, and mean logits by token."""
  figure = Figure(figsize=(7.4, 3.1))
  *panels, last = figure.subplots(1, 3)
  for axes, residual in zip(panels, (0.0, 1.0), strict=True):
    own = [s for s in found if s.cell.residual == residual]
    for i, s in enumerate(own):
      _by_layer(axes, s, i, f'n = {s.cell.num_tokens}', marker=False)
    axes.set(title='residual' if residual else 'no residual', ylim=(0.48, 1.01))
    axes.set_xscale('log', base=2)
    axes.xaxis.set_major_formatter('{x:g}')
  panels[0].set_ylabel(_LABEL)
  panels[0].legend()
  longest = max((s for s in found if not s.cell.residual),
                key=lambda s: s.cell.num_tokens)
  n = longest.cell.num_tokens
  layers = [2**k for k in range(12) if 2**k <= longest.cell.num_layers]
  for i, layer in enumerate(layers):
    last.plot(np.arange(1, n), longest.arrays['last_row'][layer - 1, :-1],
              color=_COLOURS[i % 6], label=f'layer {layer}')
  last.set(title=f'token {n}, no residual', xlabel='token j', ylabel='mean logit')
  last.set_xscale('log', base=2)
  last.xaxis.set_major_formatter('{x:g}')
  last.legend(fontsize=6.5)
  counts = dict(sorted((s.cell.num_tokens, s.cell.num_simulations) for s in found))
  each = ', '.join(f'{count:,} (n = {n})' for n, count in counts.items())
  _describe(figure, found, f'simulations: {each}')
  return figure


def norms(found: Sequence[Simulated]) -> Figure:
  """Draws RMSNorm and LayerNorm, and their difference."""
  figure = Figure(figsize=(6.4, 2.9))
  left, right = figure.subplots(1, 2)
  settings = list(dict.fromkeys((s.cell.width, s.cell.residual) for s in found))
  for i, (width, residual) in enumerate(settings):
    pair = {s.cell.layer: s for s in found
            if (s.cell.width, s.cell.residual) == (width, residual)}
    label = f'd = {width}' + (', residual' if residual else '')
    for layer, s in pair.items():
      _by_layer(left, s, i, label if layer == 'causal' else '',
                linestyle='-' if layer == 'causal' else ':')
    if len(pair) == 2:
      values, errors = (
          [s.by_layer(f'recency_probability{suffix}') for s in pair.values()]
          for suffix in ('', '_error')
      )
      layers = 1 + np.arange(len(values[0]))
      # As if the two were independent; they share tokens, so the bars are too wide.
      aside = 0.06 * (i - (len(settings) - 1) / 2)
      right.errorbar(
          layers + aside, 1e3 * (values[1] - values[0]), 2e3 * np.hypot(*errors),
          color=_COLOURS[i % 6], fmt=_MARKERS[i % 6],
      )
  left.plot([], [], color='black', label='LayerNorm')
  left.plot([], [], color='black', linestyle=':', label='RMSNorm')
  left.set(ylabel=_LABEL)
  left.legend(fontsize=6.5)
  right.axhline(0, color='black', linewidth=0.8)
  right.set(xlabel='layer', ylabel='difference, thousandths',
            title='RMSNorm − LayerNorm')
  right.xaxis.set_major_locator(MaxNLocator(integer=True))
  _describe(figure, found)
  return figure


def heads(found: Sequence[Simulated]) -> Figure:
  """Draws recency probability by layer and number of heads."""
  figure = Figure(figsize=(6.0, 2.9))
  panels = figure.subplots(1, 2, sharey=True)
  for axes, tied in zip(panels, (True, False), strict=True):
    for i, s in enumerate(s for s in found if s.cell.tied == tied):
      _by_layer(axes, s, i, f'h = {s.cell.num_heads}')
    axes.set_title('queries and keys have one projection' if tied
                   else 'queries and keys have two')
  panels[0].set_ylabel(_LABEL)
  panels[0].legend()
  _describe(figure, found, 'h heads')
  return figure


def positions(found: Sequence[Simulated]) -> Figure:
  """Draws the biases of the mask and of rotary positions, alone and together."""
  figure = Figure(figsize=(7.0, 3.1))
  left, *rows = figure.subplots(1, 3)
  for i, (layer, label) in enumerate(POSITIONS.items()):
    for s in (s for s in found if s.cell.layer == layer):
      isotropic = s.cell.anisotropy == 0
      _by_layer(left, s, i, '' if isotropic else label,
                linestyle=':' if isotropic else '-')
      if not isotropic:
        for axes, at in zip(rows, (0, -1), strict=True):
          row = s.arrays['last_row'][at, :-1]
          # Wide and pale, as the line with the mask may cover it.
          style = {'linewidth': 4, 'alpha': 0.4} if 'unmasked' in layer else {}
          axes.plot(np.arange(1, len(row) + 1), row, color=_COLOURS[i], label=label,
                    **style)
  anisotropy = max(s.cell.anisotropy for s in found)
  left.set(ylabel=_LABEL, title=f'α = {anisotropy:g}; dotted: α = 0')
  n, num_layers = found[0].cell.num_tokens, found[0].cell.num_layers
  for axes, at in zip(rows, (1, num_layers), strict=True):
    axes.set(title=f'last token of {n}, layer {at}', xlabel='token j',
             ylabel='mean logit')
  figure.legend(*rows[0].get_legend_handles_labels(), loc='outside upper center',
                ncols=4)
  _describe(figure, found)
  return figure


def over_anisotropy_and_width(found: Sequence[Simulated]) -> Figure:
  """Draws recency probability over (α, d), with lines of equal e^{−(1−α)√d}."""
  figure = Figure(figsize=(6.6, 3.1))
  widths = sorted({s.cell.width for s in found})
  alphas = sorted({s.cell.anisotropy for s in found})
  at = {(s.cell.width, s.cell.anisotropy): s.by_layer('recency_probability')
        for s in found}
  last = found[0].cell.num_layers
  layers = sorted({min(2, last), last})
  panels = figure.subplots(1, len(layers), sharey=True, squeeze=False)[0]
  for axes, layer in zip(panels, layers, strict=True):
    nothing = np.full(last, np.nan)
    grid = [[at.get((d, a), nothing)[layer - 1] for a in alphas] for d in widths]
    mesh = axes.pcolormesh(alphas, widths, grid, vmin=0.5, vmax=1, cmap='viridis',
                           shading='nearest')
    axes.set_yscale('log', base=2)
    axes.yaxis.set_major_formatter('{x:g}')
    fine = np.linspace(min(alphas), max(alphas), 200)[None]
    high = np.geomspace(min(widths), max(widths), 200)[:, None]
    decades = (-10, -8, -6, -4, -3, -2, -1)
    lines = axes.contour(
        fine[0], high[:, 0], -(1 - fine) * np.sqrt(high) / np.log(10), levels=decades,
        colors='white', linewidths=0.8, linestyles='-',
    )
    labels = axes.clabel(lines, fontsize=6.5, fmt=lambda x: f'$10^{{{x:.0f}}}$')
    for drawn in (lines, *labels):
      drawn.set_path_effects([patheffects.withStroke(linewidth=1.6, foreground='0.3')])
    axes.grid(False)
    axes.set(xlabel='anisotropy α', title=f'layer {layer}')
  panels[0].set_ylabel('width d')
  figure.colorbar(mesh, ax=panels, label=_LABEL)
  lines = 'white: lines of equal $e^{-(1-\\alpha)\\sqrt{d}}$'
  _describe(figure, found, lines, bands='')
  return figure


def _describe(
    figure: Figure, found: Sequence[Simulated], *more: str,
    bands: str = 'bands and bars: two standard errors',
) -> None:
  """Writes the settings that all simulations of a figure share below it."""
  common = lambda name, of, form='': [
      f'{name}{value:{form}}' for value in {of(s.cell) for s in found}
  ]
  facts = [x for x in (
      common('n = ', lambda c: c.num_tokens), common('d = ', lambda c: c.width),
      common('α = ', lambda c: c.anisotropy, 'g'),
      common('simulations: ', lambda c: c.num_simulations, ','),
  ) if len(x) == 1]
  text = '; '.join([', '.join(x for x, in facts), *more, *([bands] if bands else [])])
  figure.supxlabel(text, fontsize=7)


def _by_layer(
    axes: Axes, s: Simulated, i: int, label: str, linestyle: str = '-',
    marker: bool = True,
) -> None:
  """Draws recency probability by layer, with a band of two standard errors."""
  values, error = (s.by_layer(f'recency_probability{x}') for x in ('', '_error'))
  layers = np.arange(1, len(values) + 1)
  axes.plot(layers, values, color=_COLOURS[i % 6], linestyle=linestyle, label=label,
            marker=_MARKERS[i % 6] if marker else '')
  axes.fill_between(layers, values - 2 * error, values + 2 * error,
                    color=_COLOURS[i % 6], alpha=0.18, linewidth=0)
  axes.set_xlabel('layer')
  axes.xaxis.set_major_locator(MaxNLocator(integer=True))
