"""Figure 1 of arXiv 2504.02827 for a checkpoint: tables and figures. Runs without JAX.

They show the standard deviation of the attention output over sequences, by length: the
mean over all components, and over those of each head.
"""

from collections.abc import Callable, Mapping, Sequence
import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
import numpy as np

from experiments.measure.rows import (
  components_of,
  CONDITIONS,
  curve,
  heads_of,
  lengths_of,
  READINGS,
  spread_arms,
  spread_part,
  Values,
)
from vvlen.reporting import plots
from vvlen.reporting.numbers import counted, from_to, number
from vvlen.reporting.results import ENDS
from vvlen.reporting.tables import cell_if, interval_cell, pair_cell, Table
from vvlen.statistics import percentiles_cover

_OF_HEADS = ('slope', 'slope_low', 'slope_high', 'slope_least', 'slope_most',
             'std_shortest', 'std_longest')
_GUIDE = '1/√N, slope −0.5'


def slopes(values: Values) -> Table:
  """Makes the table of slopes of the mean over all components."""
  records: list[dict[str, Any]] = []
  for condition, reading, layer in spread_arms(values):
    part = spread_part(condition, reading, layer)
    lengths = lengths_of(values, part, 'std')
    at = lambda metric, n=None, part=part: values[part, metric, n]
    records.append({
        'layer': layer, 'condition': condition, 'last_token': reading,
        'slope': at('slope'), 'slope_low': at('slope_low'),
        'slope_high': at('slope_high'), 'slope_least': at('slope_least'),
        'slope_most': at('slope_most'), 'shortest': lengths[0], 'longest': lengths[-1],
        'std_shortest': at('std', lengths[0]), 'std_longest': at('std', lengths[-1]),
        'sequences': at('num_sequences'), 'queries': at('num_queries'),
    })
  columns: dict[str, Any] = {
      'layer': lambda r: str(r['layer']),
      'sequences of': lambda r: CONDITIONS[r['condition']],
      'last token': lambda r: READINGS[r['last_token']],
      'slope [95 %]': interval_cell('slope', '.3f'),
      'single tokens': cell_if(
          lambda r: r['last_token'] == 'fixed',
          pair_cell('slope_least', 'slope_most', '.3f', 'to')),
      'standard deviation': pair_cell('std_shortest', 'std_longest', '.4f'),
      'N': lambda r: f'{r["shortest"]} → {r["longest"]:,}',
  }
  note = (
      'Standard deviation over sequences of the attention output at the last of N '
      'tokens, mean over its components. Slope: of its logarithm against log N, with a '
      f'bootstrap interval. {_sizes(records)}'
  )
  more = (
      'Standard deviations (divisor: the number of sequences) are of each component, '
      'heads side by side, before the output projection. Slope: by least squares; '
      'interval: percentiles of a bootstrap over sequences. Proposition 1 of '
      'arXiv 2504.02827 says that the standard deviation falls at least as fast as '
      'N^−½ for large N, if tokens are independent and all sequences have the same '
      'query. To have that, the last token is held fixed, to one token after another: '
      'shown are the mean and the range of their slopes and the geometric mean of '
      'their standard deviations, and the bootstrap is over these tokens too. Random '
      f'tokens: uniform over the vocabulary.{_cover(records)}'
  )
  return Table('figure_1', 'Spread of the attention output by length', columns, records,
               note, more=more)


def _sizes(records: list[dict[str, Any]]) -> str:
  """Returns a sentence on the numbers of sequences and of fixed last tokens."""
  counts = {(int(r['sequences']), int(r['queries'])) for r in records}
  sizes = ', '.join(
      f'{a} sequences' + (f', {b} last tokens held fixed' if b > 1 else '')
      for a, b in sorted(counts) if b > 1 or len(counts) == 1)
  return f'{sizes}.'


def _cover(records: list[dict[str, Any]]) -> str:
  """Returns a sentence on intervals over fixed last tokens, '' without these."""
  queries = max((int(r['queries']) for r in records), default=0)
  return (f' An interval over {queries} normal values covers their mean in '
          f'{percentiles_cover(queries):.0%} of cases.' if queries > 1 else '')


def by_head(values: Values) -> Table:
  """Makes the table of slopes by head, a row per layer, last token and head."""
  found: dict[tuple[int, str, int], dict[str, Any]] = {}
  shown = [x for x in CONDITIONS if any(x == arm[0] for arm in spread_arms(values))]
  for condition, reading, layer in spread_arms(values):
    of_all = spread_part(condition, reading, layer)
    for head in heads_of(values, of_all, 'slope'):
      part = of_all._replace(head=head)
      lengths = lengths_of(values, part, 'std')
      record = found.setdefault((layer, reading, head), {
          'layer': layer, 'last_token': reading, 'head': head,
          'shortest': lengths[0], 'longest': lengths[-1],
          **{f'{x}_{name}': math.nan for x in shown for name in _OF_HEADS},
      })
      own = {name: values[part, name, None] for name in _OF_HEADS[:-2]}
      own |= {'std_shortest': values[part, 'std', lengths[0]],
              'std_longest': values[part, 'std', lengths[-1]]}
      record |= {f'{condition}_{name}': value for name, value in own.items()}
  order = lambda key: (key[0], [*READINGS].index(key[1]), key[2])
  records = [found[key] for key in sorted(found, key=order)]
  columns: dict[str, Any] = {
      'layer': lambda r: str(r['layer']),
      'last token': lambda r: READINGS[r['last_token']],
      'head': lambda r: str(r['head']),
  }
  for x in shown:
    columns[f'slope, {CONDITIONS[x]} [95 %]'] = interval_cell(f'{x}_slope', '.2f')
    columns[f'std, {CONDITIONS[x]}'] = pair_cell(
        f'{x}_std_shortest', f'{x}_std_longest', '#.2g')
  ends = ' or '.join(sorted({f'{r["shortest"]} → {r["longest"]:,}' for r in records}))
  note = (
      'std: standard deviation over sequences of each component of a head, mean over '
      f'components, at the shortest and the longest N, {ends}. Slope: of its logarithm '
      'against log N. Intervals: bootstrap.'
  )
  more = ('The bootstrap is over sequences, and over last tokens where these were held '
          'fixed. The CSV has the range of single tokens too.')
  return Table('figure_1_heads', 'Spread of the attention output by head', columns,
               records, note, more=more)


def curves(values: Values, name: str = '') -> Figure | None:
  """Draws Figure 1: standard deviation by length, for each layer.

  It is the mean over components, with the last token as it is and held fixed.
  """
  arms = spread_arms(values)
  if not arms:
    return None
  layers = sorted({layer for *_, layer in arms})
  queries = {int(values[spread_part(*arm), 'num_queries', None]) for arm in arms
             if arm[1] == 'fixed'}
  held = ''.join(f'mean of {counted(count, "token")}' for count in [*queries][:1])
  figure = plots.new(
      0.7 + 2.9 * len(layers),
      _slopes_of_means(values, arms),
      'Standard deviation over sequences of the attention output of the last of N '
      'tokens, mean over components: a line for each kind of sequence with its slope '
      'in the logarithms and bands of 95 % intervals, with the last token as it is and '
      f'held fixed{f" ({held}, one after another)" * bool(held)}.',
      f'{_layers_of(name, layers)}; spread of the attention output; '
      + f'held fixed: {held}; ' * bool(held) + 'bands: 95 % intervals')
  parts: Any = figure.subfigures(len(layers), 1, squeeze=False)[:, 0]
  grids = [part.subplots(1, 2, sharey=True) for part in parts]
  slopes: dict[tuple[int, str], dict[str, str]] = {}  # of a layer and condition
  seen: list[float] = []
  for condition, reading, layer in arms:
    axes = grids[layers.index(layer)][[*READINGS].index(reading)]
    part = spread_part(condition, reading, layer)
    colour, marker = plots.LOOKS[[*CONDITIONS].index(condition)]
    lengths, deviation = curve(values, part, 'std')
    slope, low, high = (
        number(values[part, f'slope{end}', None], '+.3f') for end in ENDS)
    axes.plot(lengths, deviation, color=colour, marker=marker,
              label=CONDITIONS[condition])
    slopes.setdefault((layer, condition), {})[reading] = f'{slope} [{low}, {high}]'
    axes.fill_between(lengths, curve(values, part, 'std_low')[1],
                      curve(values, part, 'std_high')[1], color=colour, alpha=0.18,
                      linewidth=0)
    seen += [deviation.min(), deviation.max()]
  for layer, line in zip(layers, grids, strict=True):
    for axes, reading in zip(line, READINGS.values(), strict=True):
      _guide(axes)
      plots.doubling_axis(axes)
      plots.log_axis(axes)
      axes.set_title(f'layer {layer}, last token {reading}')
      axes.set(xlabel='tokens N', ylim=(min(seen) / 3, max(seen) * 2.5))
    line[0].set_ylabel('standard deviation')
    _legend_of_slopes(parts[layers.index(layer)], line,
                      {x: found for (i, x), found in slopes.items() if i == layer})
  return figure


def _layers_of(name: str, layers: Sequence[int]) -> str:
  return f'{name}, layer {" and ".join(map(str, layers))}'


def _slopes_of_means(values: Values, arms: Sequence[tuple[str, str, int]]) -> str:
  """Says how the spread falls with the last token held fixed, else as it is."""
  reading = 'fixed' if any(reading == 'fixed' for _, reading, _ in arms) else arms[0][1]
  found: dict[str, list[float]] = {}
  for condition, of, layer in arms:
    if of == reading:
      part = spread_part(condition, of, layer)
      found.setdefault(CONDITIONS[condition], []).append(values[part, 'slope', None])
  each = [f'{_range(slopes)} ({words})' for words, slopes in found.items()]
  return (f'Last token {READINGS[reading]}: log-log slope of the spread is '
          + ', '.join(each))


def _slopes_of_heads(
    values: Values, arms: Sequence[tuple[tuple[str, str, int], Sequence[int]]]
) -> str:
  """Says between which slopes the heads are, with the last token held fixed."""
  held = [(arm, heads) for arm, heads in arms if arm[1] == 'fixed'] or arms
  found = [(condition, values[spread_part(condition, reading, layer, head=h), 'slope',
                              None])
           for (condition, reading, layer), heads in held for h in heads]
  return (f'Last token {READINGS[held[0][0][1]]}: log-log slopes of heads are '
          + _random_and_text(found, _range))


def _random_and_text(
    found: Sequence[tuple[str, float]], form: Callable[[Sequence[float]], str]
) -> str:
  """Returns the range of numbers with random tokens, and of those in text.

  Args:
    found: each number with its condition before it.
    form: writes some of them as a range.
  """
  groups = {words: [x for condition, x in found if (condition == 'text') == of_text]
            for of_text, words in (
                (False, 'with random tokens of both kinds'), (True, 'in text'))}
  return ', '.join(f'{form(own)} {words}' for words, own in groups.items() if own)


def _range(slopes: Sequence[float]) -> str:
  return from_to(slopes, '.2f')


def _legend_of_slopes(
    figure: Any, panels: Sequence[Axes], slopes: Mapping[str, Mapping[str, str]]
) -> None:
  """Writes a legend below the panels, with the slopes {condition: {reading: slope}}."""
  handles = {label: handle for axes in panels for handle, label in
             zip(*axes.get_legend_handles_labels(), strict=True)}
  figure.legend(
      [*(handles[CONDITIONS[condition]] for condition in slopes), handles[_GUIDE]],
      [*(f'{CONDITIONS[condition]}: {", ".join(of.get(x, "none") for x in READINGS)}'
         for condition, of in slopes.items()), _GUIDE],
      title=f'slope [95 %] with the last token {", ".join(READINGS.values())}',
      loc='outside lower center')


def single_components(values: Values, name: str = '') -> Figure | None:
  """Draws the standard deviation of single components, for each layer."""
  arms, names = spread_arms(values), plots.spread_out(components_of(values))
  if not arms or not names:
    return None
  layers = sorted({layer for *_, layer in arms})
  figure = plots.new(
      0.8 + 2.4 * len(layers),
      _fall_of_components(values, arms, names),
      'Standard deviation over sequences of single components of the attention output '
      'of the last of N tokens, a panel for each kind of sequence, with the last token '
      'as it is and with the first of those that are held fixed.',
      f'{_layers_of(name, layers)}; standard deviation of components of the attention '
      'output')
  parts: Any = figure.subfigures(len(layers), 1, squeeze=False)[:, 0]
  for layer, part in zip(layers, parts, strict=True):
    _components(part, values, layer, names)
  return figure


def _fall_of_components(
    values: Values, arms: Sequence[tuple[str, str, int]], names: Sequence[int]
) -> str:
  """Says by what the spread of components is multiplied, from the shortest length on.

  That is with the last token held fixed, if it was measured so.
  """
  held = [arm for arm in arms if arm[1] == 'fixed'] or arms
  found = []
  for condition, reading, layer in held:
    for component in names:
      part = spread_part(condition, reading, layer)._replace(component=component)
      lengths, deviation = curve(values, part, 'std')
      if lengths and deviation[0] > 0:
        found.append((condition, float(deviation[-1] / deviation[0])))
  if not found:
    return 'Spread of single components of the attention output'
  times = lambda factors: f'× {from_to(factors, ".2g")}'
  one = 'One last token' if held[0][1] == 'fixed' else 'Last token'
  return (f'{one} {READINGS[held[0][1]]}, N = {lengths[0]:,} → {lengths[-1]:,}: '
          f'{counted(len(names), "component")} have spread '
          + _random_and_text(found, times))


def _components(
    figure: Any, values: Values, layer: int, names: Sequence[int]
) -> None:
  """Draws single components, a row for each reading, a column for each condition."""
  arms = spread_arms(values)
  shown = [x for x in CONDITIONS if any(x == condition for condition, *_ in arms)]
  grid = figure.subplots(
      len(READINGS), len(shown), sharex=True, sharey=True, squeeze=False)
  for row, (line, (reading, words)) in enumerate(
      zip(grid, READINGS.items(), strict=True)):
    for axes, condition in zip(line, shown, strict=True):
      colour = plots.LOOKS[[*CONDITIONS].index(condition)][0]
      part = spread_part(condition, reading, layer)
      plots.log_axis(axes)
      for i, component in enumerate(names):
        lengths, deviation = curve(values, part._replace(component=component), 'std')
        axes.plot(lengths, np.where(np.array(deviation) > 0, deviation, np.nan),
                  color=colour, marker=plots.LOOKS[i + 3][1], linewidth=0.9,
                  label=f'component {component}')
      plots.doubling_axis(axes)
      axes.set(title=CONDITIONS[condition] if row == 0 else '',
               xlabel='' if row == 0 else 'tokens N')
    line[0].set_ylabel(f'last token\n{words}')
  handles, labels = grid[0, 0].get_legend_handles_labels()
  figure.legend([Line2D([], [], color='black', marker=handle.get_marker())
                 for handle in handles], labels, ncols=4, loc='outside lower center')


def slopes_by_head(values: Values, name: str = '') -> Figure | None:
  """Draws the slope of each head with its interval, a row of panels for each layer."""
  arms = [(arm, heads) for arm in spread_arms(values)
          if (heads := heads_of(values, spread_part(*arm), 'slope'))]
  if not arms:
    return None
  layers = sorted({layer for (*_, layer), _ in arms})
  figure = plots.new(
      1.1 + 2.0 * len(layers),
      _slopes_of_heads(values, arms),
      'Slope of the logarithm of the standard deviation over sequences of a head\'s '
      'output against log N, by head, a marker for each kind of sequence, with the '
      'last token as it is (left) and held fixed (right); bars are 95 % intervals, '
      'dotted is the slope −½ of 1/√N.',
      f'{name}, slope of log standard deviation against log N; bars: 95 % intervals')
  grid = figure.subplots(len(layers), 2, squeeze=False, sharey='row')
  for (condition, reading, layer), heads in arms:
    axes = grid[layers.index(layer)][[*READINGS].index(reading)]
    place = [*CONDITIONS].index(condition)
    mean, low, high = (
        np.array([values[spread_part(condition, reading, layer, head=h),
                         f'slope{end}', None] for h in heads]) for end in ENDS)
    colour, marker = plots.LOOKS[place]
    x = np.arange(len(heads)) + 0.22 * (place - 1)
    axes.vlines(x, low, high, color=colour, linewidth=1.2)
    axes.plot(x, mean, color=colour, marker=marker, linestyle='none',
              label=CONDITIONS[condition])
    some = np.arange(0, len(heads), 1 + len(heads) // 17)
    axes.set_xticks(some, [str(heads[i]) for i in some])
  for layer, line in zip(layers, grid, strict=True):
    for axes, reading in zip(line, READINGS.values(), strict=True):
      plots.chance(axes, -0.5, '1/√N')
      axes.axhline(0, color='#777777', linewidth=0.6)
      axes.grid(axis='x', visible=False)
      axes.set_title(f'layer {layer}, last token {reading}')
      axes.set_xlabel('head')
    line[0].set_ylabel('slope')
  plots.legend(figure, grid.flat, 4)
  return figure


def _guide(axes: Axes) -> None:
  """Draws the N^−½ of Proposition 1, starting at the highest mean."""
  lines = [line for line in axes.lines if line.get_marker() != 'None']
  x = np.asarray(lines[0].get_xdata(), float)
  top = max(float(np.asarray(line.get_ydata())[0]) for line in lines)
  axes.plot(x, top * (x / x[0]) ** -0.5, color='black', linewidth=0.9, linestyle=':',
            label=_GUIDE)
