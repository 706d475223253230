"""The figures of a checkpoint's measurements. Runs without JAX."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from experiments.measure import spread, tempered_report
from experiments.measure.attention_figures import (
  checkpoint,
  entropy,
  logits,
  mark,
  temperature,
)
from experiments.measure.rows import (
  BLOCK,
  by_distance,
  curve,
  lengths_of,
  offsets_of,
  Part,
  SLIDING,
  Values,
)
from vvlen.reporting import plots
from vvlen.reporting.numbers import from_to, number
from vvlen.reporting.results import ENDS

_PIECES = ', with bands of 95 % intervals over pieces of the text'
_BANDS = '; bands: 95 % intervals over pieces of the text'
_FLAT = 0.1  # nats; up to where log perplexity rises by no more, a length is marked
_NEAR = 0.5  # nats; single positions are noisier
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
      'figure_1_components': spread.single_components(values, name),
      'figure_1_heads': spread.slopes_by_head(values, name),
      'perplexity': perplexity(values, length, name),
      'nll_by_position': by_position(values, length, name),
      'misalignment': misalignment(values, length, name),
      'logits_by_distance': logits(values, name),
      'entropy': entropy(values, length, name),
      'temperature': temperature(values, length, name),
      'tempered': tempered_report.figure(values, length, name),
  }
  return {name: figure for name, figure in made.items() if figure is not None}


def perplexity(values: Values, length: int, name: str = '') -> Figure | None:
  """Draws log perplexity by length of window, for blocks and for sliding windows."""
  if not lengths_of(values, BLOCK, 'nll'):
    return None
  kinds = {of: dict(zip(*curve(values, part, 'nll'), strict=True))
           for part, of in ((BLOCK, 'blocks'), (SLIDING, 'a sliding window'))}
  title, flat = _rise_to({of: loss for of, loss in kinds.items() if loss}, length)
  figure = plots.new(
      2.9, title,
      'Loss in nats a token, and perplexity, by number N of tokens in the window, '
      'for separate blocks and for a sliding window' + _PIECES * _has_bands(values)
      + '; dotted: the training length L, and the longest N up to which no loss is '
      f'more than {_FLAT:g} nats above that at L.',
      checkpoint(name, length) + _BANDS * _has_bands(values))
  axes = figure.subplots()
  for (part, of), (colour, marker) in zip(
      ((BLOCK, 'blocks'), (SLIDING, 'sliding window')), plots.LOOKS, strict=False):
    lengths, nll = curve(values, part, 'nll')
    axes.plot(lengths, nll, color=colour, marker=marker, label=of)
    _band(axes, [curve(values, part, f'nll{end}') for end in ENDS[1:]])
  plots.doubling_axis(axes, 10)
  mark(axes, length)
  if flat > length:
    mark(axes, flat, _in_lengths(flat, length))
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
  title, rises, known = _loss_by_position(values, length)
  figure = plots.new(
      3.1, title,
      'Loss in nats a token by number of tokens before it in its window, a line for '
      'each length of window: means over positions up to the next step, of '
      f'{_ENOUGH} tokens or more where the text has them'
      + _PIECES * _has_bands(values) + '; dotted: the training length L, and where '
      f'the loss rises {_NEAR:g} nats above its mean{" at " * bool(known)}{known}.',
      checkpoint(name, length) + _BANDS * _has_bands(values))
  axes = figure.subplots()
  for window in windows:
    axes.step(*_steps(values, 'nll_after', window), where='post', color=shades[window],
              label=_window(window, length))
    if _has_bands(values):
      ends = [_steps(values, f'nll_after{end}', window) for end in ENDS[1:]]
      _band(axes, ends, step='post')
  plots.doubling_axis(axes, 10)
  mark(axes, length)
  if rises > length:
    mark(axes, rises, _in_lengths(rises, length))
  axes.set(xlabel='tokens before the scored one',
           ylabel='log perplexity, nats a token')
  plots.legend(figure, [axes], 3)
  return figure


def _rise_to(
    kinds: Mapping[str, Mapping[int, float]], length: int
) -> tuple[str, int]:
  """Says how much perplexity rises beyond L, as a title; returns it and a length.

  That is the longest up to which no log perplexity is more than `_FLAT` above that at
  L. The title has the change from L up to there, and perplexity at the longest length.

  Args:
    kinds: {kind of windows: {length: log perplexity}}.
    length: L. The length returned is 0 if nothing is known there.
  """
  common = sorted(set.intersection(*({*loss} for loss in kinds.values())))
  longer = [n for n in common if n >= length]
  if not longer or longer[0] != length or len(longer) < 2:
    return 'Perplexity by number of tokens in the window', 0
  flat = length
  for n in longer[1:]:
    if any(loss[n] - loss[length] > _FLAT for loss in kinds.values()):
      break
    flat = n
  end = longer[-1]
  each = lambda form: ' and '.join(
      f'{form(loss)} in {of}' for of, loss in kinds.items())
  percent = lambda loss: (
      f'{number(100 * np.expm1(loss[flat] - loss[length]), "+.1f")} %')
  so_far = (f'From L to {_in_lengths(flat, length)}, perplexity changes by '
            f'{each(percent)}')
  if flat == end:
    return so_far, flat
  if flat > length:
    last = ' and '.join(f'{np.exp(loss[end]):.3g}' for loss in kinds.values())
    return f'{so_far}; at {_in_lengths(end, length)} it is {last}', flat
  ends = lambda loss: f'{np.exp(loss[length]):.3g} → {np.exp(loss[end]):.3g}'
  return f'From L to {_in_lengths(end, length)}, perplexity is {each(ends)}', flat


def _in_lengths(n: int, length: int) -> str:
  """Returns a number of tokens in units of the training length, such as '4 L'."""
  return f'{n / length:.3g} L' if n != length else 'L'


def _loss_by_position(values: Values, length: int) -> tuple[str, int, str]:
  """Says from L up to where the loss is near that before L, as a title.

  That is in the longest window. The loss is compared with its mean over the tokens
  before L of whose steps there are enough.

  Returns:
    The title; the place, 0 if nothing is known there, and L if the loss is higher from
    there on; words on the tokens of that mean.
  """
  window = lengths_of(values, BLOCK, 'nll')[-1]
  places, loss = _steps(values, 'nll_after', window)
  counts = dict(zip(*by_distance(values, BLOCK, 'scored', window), strict=True))
  steps = [*zip(places[:-1], places[1:], loss[:-1], strict=True)]
  before = [(counts[start], x) for start, end, x in steps if end <= length]
  beyond = [(start, x) for start, _, x in steps if start >= length]
  if not before or not beyond:
    return f'Loss by position in windows of up to {window:,} tokens', 0, ''
  weights, near = np.transpose(before)
  reference = float(np.average(near, weights=weights))
  rises = next((start for start, x in beyond if x > reference + _NEAR), window)
  since = beyond[0][0]
  known = f'tokens {places[0]:,} to {max(e for _, e, _ in steps if e <= length) - 1:,}'
  compared = f'{_NEAR:g} nats above that at {known}, {reference:.2f}'
  where = f'In windows of {window:,} tokens, the loss'
  known = f'{known} of windows of {window:,}'
  if rises == since:
    return (f'{where} at {_in_lengths(since, length)} is more than {compared}, and at '
            f'the end {loss[-1]:.2f}', rises, known)
  title = (f'{where} from {_in_lengths(since, length)} to {_in_lengths(rises, length)} '
           f'is at most {compared}')
  if rises < window:
    title += f'; then more, at the end {loss[-1]:.2f}'
  return title, rises, known


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
      4.7, _agreement(values, parts, windows),
      'Four measures of misalignment by offset of the two windows in tokens, a line '
      'for each length of window, L: that of training: means over sequences of the '
      'text, with bands of 95 % intervals by bootstrap over them.',
      f'{checkpoint(name, length)}; predictions of the same tokens from two windows '
      'of one length; bands: 95 % intervals')
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
    return 'How far predictions from two windows drift apart'
  first, last = (from_to([100 * x for x in each], '.0f')
                 for each in zip(*ends, strict=True))
  least = min(parts)
  return (f'Windows agree on the likeliest token in {first} % of cases at '
          f'offset {least:,}, in {last} % at the largest offset of each')


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
