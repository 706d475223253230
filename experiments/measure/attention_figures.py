"""Figures of a checkpoint's attention, a panel for each layer. Runs without JAX."""

from collections.abc import Iterator, Mapping, Sequence
import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
import numpy as np

from experiments.measure.rows import (
  by_distance,
  curve,
  heads_of,
  lengths_of,
  ORDERS,
  Part,
  parts_of,
  Values,
)
from vvlen.reporting import plots
from vvlen.reporting.numbers import counted, from_to
from vvlen.reporting.results import ENDS

# Text has the colour that it has in `spread`.
_ORDER_LOOKS = {'text': ('#009E73', '-'), 'shuffled': ('#CC79A7', (0, (2, 1)))}


def logits(values: Values, name: str = '') -> Figure | None:
  """Draws attention logits by distance, a panel for each layer."""
  figure, panels = _panels(values, 'logit_at')
  found: list[dict[str, float]] = []
  for layer, axes in panels.items():
    shares = {}
    for part, heads in _by_order(values, 'recency', layer, 'logit_at'):
      n, = lengths_of(values, part, 'recency_probability')
      distance = np.array([*by_distance(values, heads[0], 'logit_at', n)[0], n])
      middle = (distance[:-1] + distance[1:] - 1) / 2
      of_heads = np.array([by_distance(values, x, 'logit_at', n)[1] for x in heads])
      # The distance of a token to itself, 0, is drawn at 0.5 on the logarithmic axis.
      _heads(axes, np.maximum(middle, 0.5), of_heads, of_heads.mean(0), part.arm)
      shares[part.arm] = values[part, 'recency_probability', n]
    found.append(shares)
    ends = [4**i for i in range(10) if 4**i <= distance[-1]][::2]
    axes.set_xscale('log', base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks([0.5, *ends], ['self', *map(str, ends)])
    words = ', '.join(f'{x:.3f}' for x in shares.values())
    axes.set_title(f'layer {layer}: RP {words}')
  return _finish(
      figure, panels, _favoured(found), f'{name}; RP: recency probability in text and '
      'in shuffled text, 0.5 is no order',
      'mean attention logit', 'distance, tokens',
      'Attention logit by distance of the key in tokens, a panel for each layer, of '
      'text and of the same tokens shuffled: means over heads, with bands from the '
      'lowest to the highest head; RP: recency probability of text, of shuffled.')


def _favoured(found: Sequence[Mapping[str, float]]) -> str:
  """Says in how many layers near keys are favoured, of {order: recency probability}."""
  of_text = [x for layer in found for order, x in layer.items() if order == 'text']
  if not of_text:
    return 'Attention logits by distance of the key'
  return (f'Near keys have higher logits in {sum(x > 0.5 for x in of_text)} of '
          f'{counted(len(of_text), "layer")}: recency probability '
          f'{from_to(of_text, ".2f")} in text')


def entropy(values: Values, length: int, name: str = '') -> Figure | None:
  """Draws the entropy of attention weights by length, a panel for each layer."""
  figure, panels = _panels(values, 'entropy')
  ends: list[list[float]] = []  # of text, in each layer
  for layer, axes in panels.items():
    for part, heads in _by_order(values, 'entropy', layer, 'entropy'):
      lengths = lengths_of(values, part, 'entropy')
      of_heads = np.array([curve(values, head, 'entropy')[1] for head in heads])
      _heads(axes, lengths, of_heads, of_heads.mean(0), part.arm)
      mean, low, high = (curve(values, part, f'entropy{end}')[1] for end in ENDS)
      ends += [[mean[0], mean[-1]]] * (part.arm == 'text')
      axes.errorbar(
          lengths, mean, [np.maximum(mean - low, 0), np.maximum(high - mean, 0)],
          color=_ORDER_LOOKS[part.arm][0], linestyle='', capsize=1.5, linewidth=0.8)
    axes.plot(lengths, np.log(lengths), color='black', linestyle=(0, (1, 1.5)),
              linewidth=1.0, label='uniform weights, log N')
    plots.doubling_axis(axes)
    mark(axes, length)
    axes.set_title(f'layer {layer}')
  title = 'Entropy of attention by length'
  if ends:
    first, last = np.mean(ends, axis=0)
    title = (f'Entropy of attention, mean over layers: {first:.1f} → {last:.1f} nats '
             f'from N = {lengths[0]:,} to {lengths[-1]:,}, of uniform weights '
             f'{math.log(lengths[0]):.1f} → {math.log(lengths[-1]):.1f}')
  return _finish(
      figure, panels, title, f'{checkpoint(name, length)}; bars: 95 % intervals',
      'entropy of attention weights, nats', 'tokens N',
      'Entropy of the attention weights of the last of N tokens, a panel for each '
      'layer, of text and of the same tokens shuffled: means over heads, with bars of '
      '95 % intervals by bootstrap over sequences and bands from the lowest to the '
      'highest head; L: the training length.')


def temperature(values: Values, length: int, name: str = '') -> Figure | None:
  """Draws the inverse temperature that heads need by length, a panel for each layer."""
  figure, panels = _panels(values, 'temperature')
  growth, of_log = [], 1.0  # of text, from the shortest to the longest N
  for layer, axes in panels.items():
    plots.log_axis(axes)
    for part, heads in _by_order(values, 'entropy', layer, 'temperature'):
      lengths = lengths_of(values, heads[0], 'temperature')
      of_heads = np.array([curve(values, head, 'temperature')[1] for head in heads])
      of_heads[(of_heads == 0) | ~np.isfinite(of_heads)] = np.nan
      shown = np.isfinite(of_heads).any(0)
      x, drawn = np.array(lengths)[shown], of_heads[:, shown]
      middle = np.nanmedian(drawn, 0)
      _heads(axes, x, drawn, middle, part.arm)
      if part.arm == 'text' and len(x):
        growth.append(middle[-1] / middle[0])
        of_log = np.log(x[-1]) / np.log(x[0])
        where = f'from N = {x[0]:,} to {x[-1]:,}'
        axes.plot(x, middle[0] * np.log(x) / np.log(x[0]), color='black',
                  linestyle=(0, (1, 1.5)), linewidth=1.0, label='proportional to log N')
    plots.doubling_axis(axes)
    mark(axes, length)
    axes.set_title(f'layer {layer}')
  title = 'The factor that gives one key half of the weight'
  if growth:
    title = ('The factor that gives one key half of the weight changes × '
             f'{from_to(growth, ".2g")} (median head in text, by layer) {where}; log N '
             f'grows × {of_log:.2g}')
  return _finish(
      figure, panels, title,
      f'{checkpoint(name, length)}; factor: the least one by which all logits are '
      'multiplied for that', 'factor of the logits', 'tokens N',
      'Least factor of the attention logits that gives the top key of the last of N '
      'tokens half of the weight, medians over sequences, a panel for each layer, of '
      'text and of the same tokens shuffled: the median head, and bands from the '
      'lowest to the highest; L: the training length.')


def _panels(values: Values, metric: str) -> tuple[Figure, dict[int, Axes]]:
  """Returns a figure, and {layer: panel} for layers whose heads have the metric."""
  layers = sorted({part.layer for part in parts_of(values, metric)
                   if part.layer is not None and part.head is not None})
  columns = 3 if len(layers) in (5, 6, 9) else min(max(len(layers), 2), 4)
  lines = max(1, math.ceil(len(layers) / columns))
  figure = plots.new(1.2 + 1.55 * lines, '', '')
  grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flat
  for axes in grid[len(layers):]:
    axes.remove()
  for axes in grid[max(0, len(layers) - columns):]:  # nothing is below
    axes.tick_params(labelbottom=True)
  return figure, dict(zip(layers, grid, strict=False))


def _heads(
    axes: Axes, x: Any, of_heads: np.ndarray, middle: np.ndarray, order: str
) -> None:
  """Draws a line for the middle of heads, and a band for their range.

  Args:
    axes: the panel.
    x: [points].
    of_heads: [heads, points].
    middle: [points], the mean or median of heads.
    order: of the tokens, a key of `ORDERS`.
  """
  colour, line = _ORDER_LOOKS[order]
  axes.fill_between(x, np.nanmin(of_heads, 0), np.nanmax(of_heads, 0), color=colour,
                    alpha=0.15, linewidth=0)
  axes.plot(x, middle, color=colour, linewidth=2.2 if line == '-' else 1.2,
            linestyle=line, label=ORDERS[order])


def _finish(
    figure: Figure, panels: dict[int, Axes], title: str, setup: str, y: str, x: str,
    caption: str,
) -> Figure | None:
  """Adds title, caption, legend and labels; returns None if there are no panels."""
  if not panels:
    return None
  plots.set_title(figure, title, setup)
  figure.set_label(caption)
  *_, last = panels.values()
  below = last.get_subplotspec()
  assert below is not None
  for axes in [*panels.values()][-below.get_gridspec().ncols:]:  # nothing is below
    axes.set_xlabel(x)
  plots.legend(figure, [next(iter(panels.values()))], 3,
               title='bands: from the lowest to the highest head')
  figure.supylabel(y, fontsize=7.5)
  return figure


def _by_order(
    values: Values, experiment: str, layer: int, metric: str
) -> Iterator[tuple[Part, list[Part]]]:
  """Yields (a layer in one order of the tokens, its heads that have the metric)."""
  for order in ORDERS:
    part = Part(experiment, order, layer)
    heads = heads_of(values, part, metric)
    if heads:
      yield part, [part._replace(head=h) for h in heads]


def checkpoint(name: str, length: int) -> str:
  """Returns words on a checkpoint, for titles."""
  return f'{name}, trained on L = {length:,} tokens'


def mark(axes: Axes, length: int, words: str = 'L') -> None:
  """Marks a length, such as L, with a vertical line."""
  axes.axvline(length, color='#777777', linewidth=0.9, linestyle=':')
  axes.annotate(words, (length, 1), xycoords=('data', 'axes fraction'), xytext=(2, -8),
                textcoords='offset points', fontsize=plots.SMALLEST, color='#555555')
