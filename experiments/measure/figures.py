"""The figures of a checkpoint's measurements. Runs without JAX."""

from collections.abc import Iterator, Mapping, Sequence
import math
from typing import Any, Literal

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
import numpy as np

from experiments.measure import spread
from experiments.measure.rows import (
  BLOCK,
  by_distance,
  curve,
  heads_of,
  lengths_of,
  offsets_of,
  ORDERS,
  Part,
  parts_of,
  SLIDING,
  Values,
)
from vvlen.reporting import plots
from vvlen.reporting.numbers import counted
from vvlen.reporting.results import ENDS

# Text has the colour that it has in `spread`.
_ORDER_LOOKS = {'text': ('#009E73', '-'), 'shuffled': ('#CC79A7', (0, (2, 1)))}
_PIECES = ', with bands of 95 % intervals over pieces of the text'
_ENOUGH = 300  # tokens; means over fewer are not drawn
_MISALIGNMENT = {
    'sce': 'symmetric cross-entropy, nats', 'symmetric_kl': 'symmetric KL, nats',
    'js': 'Jensen–Shannon, nats', 'top1_agreement': 'top-1 agreement',
}


def make(
    values: Values, length: int, name: str = 'a checkpoint'
) -> dict[str, Figure]:
  """Returns {name of the file: figure} for all measurements that have results.

  Args:
    values: the values of the run.
    length: L, which is marked.
    name: of the checkpoint, for titles.
  """
  made = {
      'figure_1': spread.curves(values, name),
      'figure_1_heads': spread.slopes_by_head(values, name),
      'perplexity': perplexity(values, length, name),
      'nll_by_position': by_position(values, length, name),
      'misalignment': misalignment(values, length, name),
      'logits_by_distance': logits(values, name),
      'entropy': entropy(values, length, name),
      'temperature': temperature(values, length, name),
  }
  return {name: figure for name, figure in made.items() if figure is not None}


def perplexity(values: Values, length: int, name: str = '') -> Figure | None:
  """Draws log perplexity by length of window, for blocks and for sliding windows."""
  if not lengths_of(values, BLOCK, 'nll'):
    return None
  lengths, loss = curve(values, BLOCK, 'nll')
  at = dict(zip(lengths, loss, strict=True))
  ends = ', '.join(f'{np.exp(at[n]):.3g} at {n:,}'
                   for n in dict.fromkeys((length, lengths[-1])) if n in at)
  figure = plots.new(
      2.9, f'Perplexity in blocks of N tokens: {ends}\n{_checkpoint(name, length)}',
      'Loss in nats a token, and perplexity, by number N of tokens in the window, '
      'for separate blocks and for a sliding window' + _PIECES * _has_bands(values)
      + '; dotted: the training length L.')
  axes = figure.subplots()
  for (part, of), (colour, marker) in zip(
      ((BLOCK, 'blocks'), (SLIDING, 'sliding window')), plots.LOOKS, strict=False):
    lengths, nll = curve(values, part, 'nll')
    axes.plot(lengths, nll, color=colour, marker=marker, label=of)
    _band(axes, [curve(values, part, f'nll{end}') for end in ENDS[1:]])
  plots.doubling_axis(axes, 10)
  _mark(axes, length)
  axes.set(xlabel='tokens in the window N', ylabel='log perplexity, nats a token')
  log = lambda x: np.log(np.maximum(x, 1e-9))  # matplotlib tries 0 too
  other = axes.secondary_yaxis('right', functions=(np.exp, log))
  other.set_ylabel('perplexity')
  plots.legend(figure, [axes], 2)
  return figure


def by_position(values: Values, length: int, name: str = '') -> Figure | None:
  """Draws log perplexity by position, a line for each length of window."""
  windows = lengths_of(values, BLOCK, 'nll')
  if not windows:
    return None
  shades = _shades(values)
  windows = plots.spread_out(windows)
  figure = plots.new(
      3.1, f'{_loss_by_position(values, length)}\n{_checkpoint(name, length)}',
      'Loss in nats a token by number of tokens before it in its window, a line for '
      'each length of window: means over positions up to the next step, of '
      f'{_ENOUGH} tokens or more where the text has them'
      + _PIECES * _has_bands(values) + '; dotted: the training length L.')
  axes = figure.subplots()
  for window in windows:
    axes.step(*_steps(values, 'nll_after', window), where='post', color=shades[window],
              label=_window(window, length))
    if _has_bands(values):
      ends = [_steps(values, f'nll_after{end}', window) for end in ENDS[1:]]
      _band(axes, ends, step='post')
  plots.doubling_axis(axes, 10)
  _mark(axes, length)
  axes.set(xlabel='tokens before the scored one',
           ylabel='log perplexity, nats a token')
  plots.legend(figure, [axes], 3)
  return figure


def _loss_by_position(values: Values, length: int) -> str:
  """Says what the loss is up to L and at the end of the longest window, as a title."""
  window = lengths_of(values, BLOCK, 'nll')[-1]
  places, loss = _steps(values, 'nll_after', window)
  before = [x for place, x in zip(places[:-1], loss, strict=False) if place < length]
  if window <= length or not before:
    return f'Loss by position in windows of up to {window:,} tokens'
  return (f'Loss by position, in windows of {window:,} tokens:\n{before[-1]:.2f} nats '
          f'just before token {length:,}, {loss[-1]:.2f} at the end')


def _checkpoint(name: str, length: int) -> str:
  return f'{name}, trained on L = {length:,} tokens'


def _window(window: int, length: int) -> str:
  """Returns the label of a window, with '= L' if it has the training length."""
  return f'window of {window:,}' + ' = L' * (window == length)


def _has_bands(values: Values) -> bool:
  return bool(lengths_of(values, BLOCK, 'nll_low'))


def _steps(values: Values, metric: str, window: int) -> tuple[list[int], np.ndarray]:
  """Returns the steps of a metric by distance, from the first with enough tokens on.

  The last value is repeated at the end of the window, where its step ends.
  """
  first = int((by_distance(values, BLOCK, 'scored', window)[1] >= _ENOUGH).argmax())
  distances, found = by_distance(values, BLOCK, metric, window)
  return [*distances[first:], window], np.append(found[first:], found[-1])


def _band(
    axes: Axes, ends: list[tuple[list[int], np.ndarray]],
    step: Literal['post'] | None = None,
) -> None:
  """Fills the interval around the last line, given both ends as (places, values)."""
  (places, low), (_, high) = ends
  axes.fill_between(places, low, high, color=axes.lines[-1].get_color(), alpha=0.12,
                    linewidth=0, step=step)


def misalignment(values: Values, length: int, name: str = '') -> Figure | None:
  """Draws measures of misalignment by offset, a line for each length."""
  offsets = offsets_of(values)
  if not offsets:
    return None
  parts, shades = _of_offsets(values), _shades(values)
  windows = plots.spread_out(_windows(values, parts))
  figure = plots.new(
      4.7, f'{_agreement(values, parts, windows)}\n'
      f'{name}, predictions of the same tokens from two windows, by their offset',
      'Four measures of misalignment by offset of the two windows in tokens, a line '
      'for each length of window, L: that of training: means over sequences of the '
      'text, with bands of 95 % intervals by bootstrap over them.')
  grid = figure.subplots(2, 2, sharex=True)
  for axes, (metric, title) in zip(grid.flat, _MISALIGNMENT.items(), strict=True):
    if metric in ('symmetric_kl', 'js'):
      plots.log_axis(axes)
    for i, window in enumerate(windows):
      colour = shades[window]
      there = [e for e in offsets if (parts[e], metric, window) in values]
      mean, low, high = (
          [values[parts[e], metric + end, window] for e in there]
          for end in ENDS)
      axes.plot(there, mean, color=colour, marker=plots.LOOKS[i][1],
                label=_window(window, length))
      axes.fill_between(there, low, high, color=colour, alpha=0.15, linewidth=0)
    plots.doubling_axis(axes)
    axes.set(title=title)
  for axes in grid[1]:
    axes.set_xlabel('offset of the windows, tokens')
  plots.legend(figure, [grid[0, 0]], 4)
  return figure


def _agreement(
    values: Values, parts: dict[int, Part], windows: Sequence[int]
) -> str:
  """Says how often both windows predict one token, at the ends of their offsets."""
  metric, ends = 'top1_agreement', []
  for window in windows:
    of_window = [values[part, metric, window] for part in parts.values()
                 if (part, metric, window) in values]
    ends += [(of_window[0], of_window[-1])] if of_window else []
  if not ends:
    return 'How far predictions for long and short contexts drift apart'
  first, last = ([f'{100 * x:.0f}' for x in (min(each), max(each))]
                 for each in zip(*ends, strict=True))
  least = min(parts)
  return ('Long and short contexts agree on the likeliest token in '
          f'{_span(first)} % of cases\nat offset {least:,}, in {_span(last)} % at the '
          'largest offset of each window')


def _span(ends: Sequence[str]) -> str:
  """Returns '2 to 3', or '2' if both ends are alike."""
  return ' to '.join(dict.fromkeys(ends))


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
      figure, panels, f'{_favoured(found)}\n{name}, attention logits by distance of '
      'the key; RP of text, of shuffled',
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
          f'{counted(len(of_text), "layer")}:\nrecency probability (RP) '
          f'{_span([f"{x:.2f}" for x in (min(of_text), max(of_text))])} in text, '
          '0.5 is no order')


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
    _mark(axes, length)
    axes.set_title(f'layer {layer}')
  title = 'Entropy of attention by length'
  if ends:
    first, last = np.mean(ends, axis=0)
    title = (f'Entropy of attention, mean over layers: {first:.1f} → {last:.1f} nats '
             f'from N = {lengths[0]:,} to {lengths[-1]:,},\nof uniform weights '
             f'{math.log(lengths[0]):.1f} → {math.log(lengths[-1]):.1f}')
  return _finish(
      figure, panels, f'{title}\n{_checkpoint(name, length)}',
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
        span = f'from N = {x[0]:,} to {x[-1]:,}'
        axes.plot(x, middle[0] * np.log(x) / np.log(x[0]), color='black',
                  linestyle=(0, (1, 1.5)), linewidth=1.0, label='proportional to log N')
    plots.doubling_axis(axes)
    _mark(axes, length)
    axes.set_title(f'layer {layer}')
  title = 'Factor of the logits that gives one key half of the weight'
  if growth:
    factors = _span([f'× {x:.2g}' for x in (min(growth), max(growth))])
    title += (f',\n{span}: {factors} in {counted(len(growth), "layer")}, '
              f'log N × {of_log:.2g}')
  return _finish(
      figure, panels, f'{title}\n{_checkpoint(name, length)}',
      'factor of the logits needed', 'tokens N',
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
    figure: Figure, panels: dict[int, Axes], title: str, y: str, x: str, caption: str
) -> Figure | None:
  """Adds title, caption, legend and labels; returns None if there are no panels."""
  if not panels:
    return None
  plots.set_title(figure, title)
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


def _mark(axes: Axes, length: int) -> None:
  """Marks L with a vertical line."""
  axes.axvline(length, color='#777777', linewidth=0.9, linestyle=':')
  axes.annotate('L', (length, 1), xycoords=('data', 'axes fraction'), xytext=(2, -8),
                textcoords='offset points', fontsize=plots.SMALLEST, color='#555555')


def _of_offsets(values: Values) -> dict[int, Part]:
  return {e: Part('misalignment', 'text', offset=e) for e in offsets_of(values)}


def _windows(values: Values, parts: dict[int, Part]) -> list[int]:
  """Returns the lengths of windows whose misalignment was measured."""
  return sorted({n for part in parts.values() for n in lengths_of(values, part, 'sce')})


def _shades(values: Values) -> dict[int, Any]:
  """Returns {length of windows: its colour in all figures}, lighter for longer ones."""
  windows = {*lengths_of(values, BLOCK, 'nll'), *_windows(values, _of_offsets(values))}
  logs = np.log([*windows])
  share = (logs - logs.min()) / max(float(np.ptp(logs)), 1e-9)
  return dict(zip(windows, colormaps['viridis'](0.88 * share), strict=True))
