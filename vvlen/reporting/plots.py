"""The look of all figures, and the pieces they share. Runs without JAX.

An arm has one colour and one marker everywhere; bands are 95 % intervals of the mean
over seeds; the axis of lengths is logarithmic. Figures are as wide as the text of a
paper, and nothing in them is smaller than 7 points.
"""

from collections.abc import Iterable, Mapping, Sequence
import io
import math
from typing import Any

from etils import epath
import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
import numpy as np

from vvlen.reporting import results
from vvlen.reporting.results import Index
from vvlen.reporting.ticks import Alike, Doublings, Logarithmic
from vvlen.reporting.ticks import log_ticks as log_ticks
from vvlen.reporting.ticks import short_number as short_number
from vvlen.reporting.titles import set_title as set_title
from vvlen.statistics import mean_interval

# Okabe and Ito's colours, which readers with any colour vision can tell apart.
ARMS = {
    'none': ('Baseline', '#0072B2', 'o'),
    'standardize': ('std.', '#E69F00', 's'),
    'layer_norm': ('LN', '#009E73', '^'),
}
# Their names in legends and above panels, where there is room.
SPELLED = {arm: name for arm, (name, _, _) in ARMS.items()} | {
    'standardize': 'standardized', 'layer_norm': 'LayerNorm',
}
# Colours and markers of other lines, in their order.
LOOKS = (('#0072B2', 'o'), ('#E69F00', 's'), ('#009E73', '^'), ('#CC79A7', 'D'),
         ('#56B4E9', 'v'), ('#D55E00', 'P'), ('#000000', 'X'), ('#AA3377', '*'),
         ('#999933', 'h'))
# Suffixes of an arm's name, by the temperature of its attention.
ADAPTATIONS = ('', '+adaptive', '+fitted')
WIDTH = 5.5  # inches, of every figure
SMALLEST = 7  # points, of any text
MOST_LINES = 5  # in a panel
GREY = '#f1f1f1'  # of training lengths
# The line of guessing, above the grid.
CHANCE: Any = {'color': '#444444', 'linewidth': 1.2, 'linestyle': (0, (1, 1.5)),
               'zorder': 1.9}
STYLE: Any = {  # matplotlib's rcParams
    'font.size': 7.5,
    'axes.titlesize': 7.5,
    'xtick.labelsize': SMALLEST,
    'ytick.labelsize': SMALLEST,
    'legend.fontsize': 7.5,
    'legend.title_fontsize': 7.5,
    'figure.titlesize': 8.5,
    'figure.titleweight': 'bold',
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.grid': True,
    'grid.color': '#e6e6e6',
    'grid.linewidth': 0.6,
    'lines.linewidth': 1.3,
    'lines.markersize': 3.2,
    'legend.frameon': False,
    'pdf.fonttype': 42,  # text stays text
    'figure.constrained_layout.use': True,
}


def new(height: float, title: str, caption: str, setup: str = '') -> Figure:
  """Returns an empty figure.

  Args:
    height: in inches.
    title: what it shows; stands above it, see `vvlen.reporting.titles.set_title`.
    caption: a sentence on axes, lines, bands and seeds, in plain text; stands below it
      on pages.
    setup: the task and the setting, in smaller type below the title.
  """
  figure = Figure(figsize=(WIDTH, height))
  set_title(figure, title, setup)
  figure.set_label(caption)
  return figure


def save(
    folder: epath.PathLike, figures: Mapping[str, Figure]
) -> dict[epath.Path, str]:
  """Writes each figure as PNG and PDF; returns {path: caption}."""
  paths = {}
  for name, figure in figures.items():
    # No date, so that the same rows give the same file.
    for kind, metadata in (('png', {}), ('pdf', {'CreationDate': None})):
      buffer = io.BytesIO()
      figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
      figure.set_layout_engine('none')  # everything has its place
      path = epath.Path(folder) / f'{name}.{kind}'
      results.write_bytes(path, buffer.getvalue())
      paths[path] = str(figure.get_label())
  return paths


def style() -> Any:
  """Returns the context in which figures are drawn and saved."""
  return matplotlib.rc_context(STYLE)


def values(index: Index, arm: str, metric: str) -> tuple[list[int], np.ndarray]:
  """Returns the lengths of a metric, and its values [seeds, lengths]."""
  lengths = sorted(n for a, m, n in index if (a, m) == (arm, metric) and n is not None)
  rows = [*results.by_seed(index, arm, metric, lengths).values()]
  return lengths, np.array(rows).reshape(len(rows), len(lengths))


def gain(
    index: Index, treated: str, control: str, metric: str
) -> tuple[list[int], np.ndarray]:
  """Returns lengths, and treated − control [seeds that both have, lengths]."""
  lengths = [
      n for n in values(index, treated, metric)[0] if (control, metric, n) in index
  ]
  pairs = [(index[treated, metric, n], index[control, metric, n]) for n in lengths]
  seeds = sorted(set.intersection(*({*a} & {*b} for a, b in pairs)) if pairs else ())
  table = [[a[seed] - b[seed] for a, b in pairs] for seed in seeds]
  return lengths, np.array(table).reshape(len(seeds), len(lengths))


def band(axes: Axes, lengths: Sequence[int], table: np.ndarray, arm: str) -> None:
  """Draws an arm in its own look; nothing where it has no values."""
  if not lengths:
    return
  _, colour, marker = ARMS[arm]
  draw(axes, lengths, table, colour, marker, SPELLED[arm])


def draw(
    axes: Axes, lengths: Sequence[float], table: np.ndarray, colour: str, marker: str,
    label: str, linestyle: Any = '-', geometric: bool = True,
) -> None:
  """Draws the mean of [seeds, lengths] over seeds, with a band for its interval.

  On an axis that is already logarithmic, the mean is geometric unless `geometric` is
  False, and a band that reaches 0 or below ends at the edge of the axis.
  """
  if geometric and axes.get_yscale() == 'log':
    with np.errstate(divide='ignore'):
      mean, low, high = np.exp(mean_interval(np.log(table)))
  else:
    mean, low, high = mean_interval(table)
  axes.plot(lengths, mean, color=colour, marker=marker, linestyle=linestyle,
            label=label)
  axes.fill_between(lengths, low, high, color=colour, alpha=0.18, linewidth=0)


def bars(
    axes: Axes, lengths: Sequence[int], table: np.ndarray, colour: str, marker: str,
    label: str, linestyle: Any = '-', aside: float = 0.0,
) -> None:
  """Draws the mean of [seeds, lengths] over seeds, with bars for its interval.

  Other than bands, bars of several arms can be told apart, and on a logarithmic axis
  those that reach 0 end at its edge without covering the panel.

  Args:
    axes: the panel.
    lengths: the places.
    table: the values.
    colour: of line and bars.
    marker: of the means.
    label: in the legend.
    linestyle: of the line.
    aside: how far to the right all is, in doublings of the length.
  """
  at = 2**aside * np.array(lengths, float)
  mean, low, high = mean_interval(table)
  axes.plot(at, mean, color=colour, marker=marker, linestyle=linestyle, label=label)
  axes.vlines(at, np.maximum(low, 1e-9) if axes.get_yscale() == 'log' else low, high,
              color=colour, linewidth=1.0)


def legend(figure: Any, panels: Iterable[Axes], ncols: int, **options: Any) -> None:
  """Writes all names of lines of the panels, each once, below a (sub)figure.

  No row has more than `ncols` names.
  """
  named = {
      label: handle for axes in panels for handle, label in
      zip(*axes.get_legend_handles_labels(), strict=True)
  }
  if named:
    rows = math.ceil(len(named) / ncols)  # as even as possible
    figure.legend(named.values(), named, ncols=math.ceil(len(named) / rows),
                  loc='outside lower center', **options)


def seeds_of(index: Index, metric: str) -> int:
  """Returns the number of seeds that have a metric."""
  return len({seed for (_, name, _), values in index.items() if name == metric
              for seed in values})


def over_seeds(count: int, mean: str = 'mean') -> str:
  """Returns words for lines and bands over seeds."""
  if count == 1:
    return 'one seed, so without intervals'
  return f'{mean} over {count} seeds, with bands of 95 % intervals'


def with_bands(setup: str, count: int, marks: str = 'bands') -> str:
  """Returns a setup with words on the bands of a figure, which are over seeds."""
  bands = f'{marks}: 95 % intervals over {count} seeds' if count > 1 else 'one seed'
  return f'{setup}; {bands}' if setup else bands


def chance(axes: Axes, value: float, label: str = 'chance') -> None:
  """Draws the value of guessing as a horizontal line."""
  axes.axhline(value, label=label, **CHANCE)


def spread_out(items: Sequence[Any], most: int = MOST_LINES) -> list[Any]:
  """Returns at most `most` items, evenly from the first to the last."""
  if len(items) <= most:
    return list(items)
  return [items[round(i)] for i in np.linspace(0, len(items) - 1, most)]


def length_axis(axes: Axes, trained_up_to: int, most: int = 4) -> None:
  """Makes the axis of N logarithmic and shades the training lengths."""
  doubling_axis(axes, most)
  axes.set_xlabel('number of items N')
  low, high = axes.get_xlim()
  axes.axvspan(low, trained_up_to, color=GREY, zorder=0, linewidth=0,
               label='training lengths')
  axes.set_xlim(low, high)


def doubling_axis(axes: Axes, most: int = 4) -> None:
  """Makes the horizontal axis logarithmic, with at most `most` powers of two."""
  axes.set_xscale('log', base=2)
  axes.xaxis.set_major_locator(Doublings(most))
  axes.xaxis.set_major_formatter('{x:,g}')
  axes.xaxis.set_minor_locator(NullLocator())


def log_axis(axes: Axes) -> None:
  """Makes a vertical axis logarithmic, with four labels or more."""
  axes.set_yscale('log')
  axes.yaxis.set_major_locator(Logarithmic())
  axes.yaxis.set_major_formatter(Alike())
  axes.yaxis.set_minor_locator(LogLocator(subs=range(2, 10)))
  axes.yaxis.set_minor_formatter('')
