"""Figures of recency bias that extend the paper. Runs without JAX."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
import numpy as np

from experiments.recency_bias.cells import POSITIONS, Simulated
from experiments.recency_bias.figures import published
from vvlen.reporting import plots
from vvlen.reporting.numbers import counted

_LABEL = 'recency probability'
_SETUP = 'LayerNorm and causal mask'


def make(groups: Mapping[str, Sequence[Simulated]]) -> dict[str, Figure]:
  """Returns {name: figure} for the groups that have results."""
  drawn = {'depth': depth, 'norms': norms, 'heads': heads, 'positions': positions,
           'map': over_anisotropy_and_width}
  return {name: draw(groups[name]) for name, draw in drawn.items() if groups[name]}


def depth(found: Sequence[Simulated]) -> Figure:
  """Draws recency probability by layer and length, and mean logits by token."""
  counts = dict(sorted((s.cell.num_tokens, s.cell.num_simulations) for s in found))
  each = ', '.join(f'{count:,} (n = {n})' for n, count in counts.items())
  longest = max((s for s in found if not s.cell.residual),
                key=lambda s: s.cell.num_tokens)
  n = longest.cell.num_tokens
  figure = plots.new(
      5.2, f'Recency probability in layer {longest.cell.num_layers}: {_halves(found)}',
      'Above, recency probability by layer, a line for each number n of tokens, '
      'without and with the residual; below, mean logit of the last of '
      f'{n} tokens by key token j, a line for each of some layers; {each} simulations, '
      'bands of two standard errors; dotted: no order.',
      f'{_SETUP}, {_common(found)}; n: tokens; bands: two standard errors')
  halves: Any = figure.subfigures(2, 1, height_ratios=[1.1, 1])
  upper, lower = halves
  panels = upper.subplots(1, 2, sharey=True)
  for axes, residual in zip(panels, (0.0, 1.0), strict=True):
    own = [s for s in found if s.cell.residual == residual]
    for i, s in enumerate(own):
      _by_layer(axes, s, i, f'n = {s.cell.num_tokens}',
                markevery=_doublings(s.cell.num_layers))
    axes.set(title='residual' if residual else 'no residual', ylim=(0.48, 1.01))
    plots.doubling_axis(axes)
    plots.chance(axes, 0.5, 'no order')
  panels[0].set_ylabel(_LABEL)
  plots.legend(upper, panels[:1], 5)
  last = lower.subplots()
  layers = plots.spread_out([i + 1 for i in _doublings(longest.cell.num_layers)])
  # Other colours and markers than those of n.
  shades = matplotlib.colormaps['viridis'](np.linspace(0, 0.9, len(layers)))
  markers = [marker for _, marker in plots.LOOKS[:-len(layers) - 1:-1]]
  for layer, shade, marker in zip(layers, shades, markers, strict=True):
    mean, error = (longest.arrays[name][layer - 1, :-1]
                   for name in ('last_row', 'last_row_error'))
    j = np.arange(1, n)
    last.plot(j, mean, color=shade, label=f'layer {layer}', linewidth=0.9,
              marker=marker, markevery=_doublings(n - 1))
    last.fill_between(j, mean - 2 * error, mean + 2 * error, color=shade,
                      alpha=0.18, linewidth=0)
  last.set(title=f'query token {n}, no residual', xlabel='key token j',
           ylabel='mean logit')
  plots.doubling_axis(last, 10)
  plots.legend(lower, [last], 5)
  return figure


def _halves(found: Sequence[Simulated]) -> str:
  """Says what it is for the fewest and the most tokens, without and with residual."""
  said = []
  for residual in (False, True):
    own = sorted((s for s in found if bool(s.cell.residual) == residual),
                 key=lambda s: s.cell.num_tokens)
    if own:
      few, many = own[0], own[-1]
      said.append(f'{"with" if residual else "without"} residual '
                  + ' to '.join(dict.fromkeys((_at_end(few), _at_end(many)))))
      counts = dict.fromkeys(f'{s.cell.num_tokens}' for s in (few, many))
  return f'{", ".join(said)} (n = {" to ".join(counts)})'


def norms(found: Sequence[Simulated]) -> Figure:
  """Draws RMSNorm and LayerNorm, and their difference."""
  pairs: dict[tuple[int, float], list[Simulated]] = {}
  for s in found:
    pairs.setdefault((s.cell.width, s.cell.residual), []).append(s)
  most = max((np.abs(np.subtract(*(s.by_layer('recency_probability') for s in pair)))
              .max() for pair in pairs.values() if len(pair) == 2), default=np.nan)
  figure = plots.new(
      3.5, 'RMSNorm and LayerNorm differ by at most '
      f'{np.ceil(1e4 * most) / 10:g} thousandths in recency probability',
      'On the left, recency probability by layer, a colour for each width d, with and '
      'without the residual, full lines for LayerNorm and dotted ones for RMSNorm, '
      'with bands of two standard errors, crosses what the paper prints for LayerNorm; '
      'on the right, RMSNorm minus LayerNorm in thousandths, with bars of two standard '
      'errors.',
      f'causal mask, width d, {_common(found)}; bands and bars: two standard errors')
  left, right = figure.subplots(1, 2)
  settings = list(dict.fromkeys((s.cell.width, s.cell.residual) for s in found))
  for i, (width, residual) in enumerate(settings):
    pair = {s.cell.layer: s for s in found
            if (s.cell.width, s.cell.residual) == (width, residual)}
    label = f'd = {width}' + (', residual' if residual else '')
    for layer, s in pair.items():
      _by_layer(left, s, i, label if layer == 'causal' else '',
                linestyle='-' if layer == 'causal' else ':')
      if printed := published(s):
        left.plot(range(1, len(printed) + 1), printed, color='black', marker='x',
                  linestyle='', zorder=3, label='paper' if i == 0 else '_paper')
    if len(pair) == 2:
      values, errors = (
          [s.by_layer(f'recency_probability{suffix}') for s in pair.values()]
          for suffix in ('', '_error')
      )
      layers = 1 + np.arange(len(values[0]))
      # As if the two were independent; they share tokens, so the bars are too wide.
      aside = 0.06 * (i - (len(settings) - 1) / 2)
      colour, marker = plots.LOOKS[i % len(plots.LOOKS)]
      right.errorbar(layers + aside, 1e3 * (values[1] - values[0]),
                     2e3 * np.hypot(*errors), color=colour, fmt=marker)
  left.plot([], [], color='black', label='LayerNorm')
  left.plot([], [], color='black', linestyle=':', label='RMSNorm')
  left.set(title=_LABEL)
  right.axhline(0, color='black', linewidth=0.8)
  right.set(xlabel='layer', title='RMSNorm − LayerNorm, thousandths')
  right.xaxis.set_major_locator(MaxNLocator(integer=True))
  plots.legend(figure, [left], 4)
  return figure


def heads(found: Sequence[Simulated]) -> Figure:
  """Draws recency probability by layer and number of heads."""
  figure = plots.new(
      3.0, _by_heads(found),
      'Recency probability by layer, a line for each number of heads, whose queries '
      'and keys share a projection (left) or have one each (right), with bands of two '
      'standard errors; dotted: no order.',
      f'{_SETUP}, {_common(found)}; bands: two standard errors')
  panels = figure.subplots(1, 2, sharey=True)
  for axes, tied in zip(panels, (True, False), strict=True):
    for i, s in enumerate(s for s in found if s.cell.tied == tied):
      _by_layer(axes, s, i, counted(s.cell.num_heads, 'head'))
    axes.set_title('shared projection for queries and keys' if tied
                   else 'separate projections for queries and keys')
    plots.chance(axes, 0.5, 'no order')
  panels[0].set_ylabel(_LABEL)
  plots.legend(figure, panels[:1], 6)
  return figure


def _by_heads(found: Sequence[Simulated]) -> str:
  """Says with how many heads recency probability is highest in the last layer."""
  each = []
  for tied, words in ((True, 'shared'), (False, 'separate')):
    own = [s for s in found if s.cell.tied == tied]
    if own:
      best = max(own, key=lambda s: s.by_layer('recency_probability')[-1])
      each.append(f'{counted(best.cell.num_heads, "head")} with {words} projections '
                  f'({_at_end(best)})')
  return (f'Recency probability in layer {found[0].cell.num_layers} is highest for '
          f'{", ".join(each)}')


def positions(found: Sequence[Simulated]) -> Figure:
  """Draws the biases of the mask and of rotary positions, alone and together."""
  alphas = sorted({s.cell.anisotropy for s in found})
  n, num_layers = found[0].cell.num_tokens, found[0].cell.num_layers
  ends = {s.cell.layer: _at_end(s) for s in found if s.cell.anisotropy == alphas[-1]}
  short = {'causal': 'the causal mask', 'rotary_unmasked': 'rotary positions',
           'rotary': 'both', 'unmasked': 'neither'}
  first, *others = (
      f'{ends[kind]} by {name}' for kind, name in short.items() if kind in ends)
  figure = plots.new(
      4.6, f'Recency probability in layer {num_layers} at α = {alphas[-1]:g}: '
      f'{", ".join((first, *others))}',
      'Above, recency probability by layer, a line for each combination of causal '
      'mask and rotary positions, a panel for each anisotropy α, with bands of two '
      f'standard errors; below, mean logit of the last of {n} tokens by key token j in '
      f'the first and in the last layer, at α = {alphas[-1]:g}; dotted: no order.',
      f'LayerNorm, {_common(found)}; α: cosine of two tokens; bands: two standard '
      'errors')
  grid = figure.subplots(2, max(2, len(alphas)), sharey='row', squeeze=False)
  for axes, alpha in zip(grid[0], alphas, strict=False):
    for i, layer in enumerate(POSITIONS):
      for s in found:
        if (s.cell.layer, s.cell.anisotropy) == (layer, alpha):
          _by_layer(axes, s, i, POSITIONS[layer],
                    linestyle='--' if 'unmasked' in layer else '-')
    axes.set(title=f'α = {alpha:g}')
    plots.chance(axes, 0.5, 'no order')
  grid[0, 0].set_ylabel(_LABEL)
  for axes, at in zip(grid[1], (1, num_layers), strict=False):
    for i, kind in enumerate(POSITIONS):
      for s in found:
        if (s.cell.layer, s.cell.anisotropy) == (kind, alphas[-1]):
          row = s.arrays['last_row'][at - 1, :-1]
          axes.plot(np.arange(1, len(row) + 1), row, color=plots.LOOKS[i][0],
                    marker=plots.LOOKS[i][1], markevery=(3 * i, 12),
                    label=POSITIONS[kind],
                    linestyle='--' if 'unmasked' in kind else '-')
    axes.set(title=f'query token {n}, layer {at}, α = {alphas[-1]:g}',
             xlabel='key token j')
  grid[1, 0].set_ylabel('mean logit')
  plots.legend(figure, grid[0, :1], 3)
  return figure


def over_anisotropy_and_width(found: Sequence[Simulated]) -> Figure:
  """Draws recency probability over (α, d), with lines of equal e^{−(1−α)√d}."""
  title, bound = _favoured_where(found)
  figure = plots.new(
      3.3, title,
      'Recency probability over anisotropy α and width d, as colour, in layer 2 and in '
      'the last layer; white: lines of equal exp(−(1−α)√d)'
      + ', dashed that of the title' * bool(bound) + '.',
      f'{_SETUP}, {_common(found)}; 0.5 is no order')
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
    axes.yaxis.set_major_formatter('{x:,g}')
    fine = np.linspace(min(alphas), max(alphas), 200)[None]
    high = np.geomspace(min(widths), max(widths), 200)[:, None]
    decades = (-8, -6, -4, -3, -2, -1)
    lines = axes.contour(
        fine[0], high[:, 0], -(1 - fine) * np.sqrt(high) / np.log(10), levels=decades,
        colors='white', linewidths=0.8, linestyles='-',
    )
    written = lambda x: plots.short_number(float(f'{10**x:.1g}'))
    every = [(lines, _label(axes, lines, widths, alphas, written))]
    if bound:
      line = axes.contour(
          fine[0], high[:, 0], -(1 - fine) * np.sqrt(high) / np.log(10),
          levels=[np.log10(bound)], colors='white', linewidths=1.4, linestyles='--')
      every.append((line, _label(axes, line, widths, alphas, written)))
    for drawn in (artist for line, labels in every for artist in (line, *labels)):
      drawn.set_path_effects([patheffects.withStroke(linewidth=1.6, foreground='0.3')])
    axes.grid(False)
    axes.set(xlabel='anisotropy α: cosine of two tokens', title=f'layer {layer}')
  panels[0].set_ylabel('width d')
  figure.colorbar(mesh, ax=panels, label=_LABEL)
  line = Line2D([], [], color='white', linewidth=0.8, path_effects=[
      patheffects.withStroke(linewidth=1.6, foreground='0.3')])
  figure.legend([line], ['lines of equal exp(−(1−α)√d), with its value'],
                loc='outside lower center')
  return figure


def _label(
    axes: Axes, lines: ContourSet, widths: Sequence[int], alphas: Sequence[float],
    form: Callable[[float], str],
) -> list[Text]:
  """Writes on each line of equal log10 exp(−(1−α)√d) its value, near its lower end."""
  places = []
  for log in lines.levels * np.log(10):  # −(1−α)√d
    # The line begins at the least α, or at the bottom.
    low = max((log / (1 - alphas[0])) ** 2, widths[0])
    width = (low * min(2 * low, widths[-1])) ** 0.5
    alpha = 1 + log / width**0.5
    if low < widths[-1] and alpha < alphas[-1]:
      places.append((alpha, width))
  return axes.clabel(lines, fontsize=plots.SMALLEST, fmt=form, manual=places)


def _favoured_where(found: Sequence[Simulated]) -> tuple[str, float]:
  """Says above which exp(−(1−α)√d) all recency probabilities are above 0.6.

  Returns:
    The title, and that number; 0 if there is none.
  """
  terms = np.exp([-(1 - s.cell.anisotropy) * s.cell.width**0.5 for s in found])
  clear = np.array([s.by_layer('recency_probability')[-1] > 0.6 for s in found])
  bound = terms[~clear].max(initial=0)
  if not (terms > bound).any() or not bound:
    return 'Recency probability by anisotropy and width', 0.0
  power = 10 ** np.floor(np.log10(bound))
  rounded = float(f'{np.ceil(bound / power) * power:.1g}')
  return (f'Where exp(−(1−α)√d) is above {rounded:g} (dashed), recency probability '
          f'is above 0.6 in layer {found[0].cell.num_layers}', rounded)


def _at_end(s: Simulated) -> str:
  """Returns recency probability in the last layer, in words."""
  return f'{s.by_layer("recency_probability")[-1]:.2f}'


def _common(found: Sequence[Simulated]) -> str:
  """Returns the settings that all simulations of a figure share."""
  facts = (
      ('n = {} tokens', lambda c: c.num_tokens), ('width d = {}', lambda c: c.width),
      ('cosine α = {:g} of two tokens', lambda c: c.anisotropy),
      ('{:,} simulations', lambda c: c.num_simulations),
  )
  values = [(words, {of(s.cell) for s in found}) for words, of in facts]
  return ', '.join(words.format(*own) for words, own in values if len(own) == 1)


def _doublings(count: int) -> list[int]:
  """Returns the indices of 1, 2, 4, 8 and so on in 1 to `count`."""
  return [2**k - 1 for k in range(count.bit_length())]


def _by_layer(
    axes: Axes, s: Simulated, i: int, label: str, linestyle: str = '-',
    markevery: Any = None,
) -> None:
  """Draws recency probability by layer, with a band of two standard errors."""
  values, error = (s.by_layer(f'recency_probability{x}') for x in ('', '_error'))
  layers = np.arange(1, len(values) + 1)
  colour, symbol = plots.LOOKS[i % len(plots.LOOKS)]
  axes.plot(layers, values, color=colour, linestyle=linestyle, label=label,
            marker=symbol, markevery=markevery)
  axes.fill_between(layers, values - 2 * error, values + 2 * error, color=colour,
                    alpha=0.18, linewidth=0)
  axes.set_xlabel('layer')
  axes.xaxis.set_major_locator(MaxNLocator(integer=True))
