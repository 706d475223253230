"""The look of all figures, and the pieces they share. Runs without JAX.

An arm has one colour and one marker everywhere; bands are 95 % intervals of the mean
over seeds; the axis of lengths is logarithmic.
"""

from collections.abc import Mapping, Sequence
import io
import math
from typing import Any

from etils import epath
import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import Locator, LogLocator, MaxNLocator
import numpy as np

from vvlen.reporting import results
from vvlen.reporting.results import Index
from vvlen.statistics import mean_interval

# Okabe and Ito's colours, told apart by readers with any colour vision.
ARMS = {
    'none': ('Baseline', '#0072B2', 'o'),
    'standardize': ('std.', '#E69F00', 's'),
    'layer_norm': ('LN', '#009E73', '^'),
}
# Colours and markers of other lines, in their order.
LOOKS = (('#0072B2', 'o'), ('#E69F00', 's'), ('#009E73', '^'), ('#CC79A7', 'D'),
         ('#56B4E9', 'v'), ('#D55E00', 'P'), ('#000000', 'X'), ('#F0E442', '*'))
# Suffixes of an arm's name, by the temperature of its attention.
ADAPTATIONS = ('', '+adaptive', '+fitted')
STYLE: Any = {  # matplotlib's rcParams
    'font.size': 8.5,
    'axes.titlesize': 8.5,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.grid': True,
    'grid.color': '#e6e6e6',
    'grid.linewidth': 0.6,
    'lines.linewidth': 1.3,
    'lines.markersize': 3.5,
    'legend.frameon': False,
    'pdf.fonttype': 42,  # text stays text
    'figure.constrained_layout.use': True,
}


def save(folder: epath.PathLike, figures: Mapping[str, Figure]) -> list[epath.Path]:
  """Writes each figure as PNG and PDF, and returns the paths."""
  paths = []
  for name, figure in figures.items():
    # No date, so that the same rows give the same file.
    for kind, metadata in (('png', {}), ('pdf', {'CreationDate': None})):
      buffer = io.BytesIO()
      figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
      paths.append(epath.Path(folder) / f'{name}.{kind}')
      results.write_bytes(paths[-1], buffer.getvalue())
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
  name, colour, marker = ARMS[arm]
  draw(axes, lengths, table, colour, marker, name)


def draw(
    axes: Axes, lengths: Sequence[int], table: np.ndarray, colour: str, marker: str,
    label: str, linestyle: Any = '-',
) -> None:
  """Draws the mean of [seeds, lengths] over seeds, with a band for its interval.

  If the axis is logarithmic already, the mean is geometric.
  """
  if axes.get_yscale() == 'log':
    with np.errstate(divide='ignore'):
      mean, low, high = np.exp(mean_interval(np.log(table)))
  else:
    mean, low, high = mean_interval(table)
  axes.plot(lengths, mean, color=colour, marker=marker, linestyle=linestyle,
            label=label)
  axes.fill_between(lengths, low, high, color=colour, alpha=0.18, linewidth=0)


def caption(index: Index) -> str:
  """Returns text that says what lines and bands are."""
  seeds = {s for (_, metric, _), v in index.items() if metric == 'accuracy' for s in v}
  return (f'lines: mean over {len(seeds)} seeds; bands: its 95 % intervals; '
          'grey: training lengths')


def length_axis(axes: Axes, trained_up_to: int) -> None:
  """Makes the axis of N logarithmic and shades the training lengths."""
  axes.set_xscale('log', base=2)
  axes.set_xlabel('number of items N')
  low, high = axes.get_xlim()
  axes.axvspan(low, trained_up_to, color='#f1f1f1', zorder=0, linewidth=0)
  axes.set_xlim(low, high)


def log_axis(axes: Axes) -> None:
  """Makes a vertical axis logarithmic, with four labels or more."""
  axes.set_yscale('log')
  axes.yaxis.set_major_locator(_Logarithmic())
  axes.yaxis.set_major_formatter('{x:g}')
  axes.yaxis.set_minor_locator(LogLocator(subs=range(2, 10)))
  axes.yaxis.set_minor_formatter('')


class _Logarithmic(Locator):
  """Ticks at 1, 2 and 5 times powers of ten, fewer or more where that suits better."""

  def __call__(self) -> list[float]:
    assert self.axis is not None
    return log_ticks(*sorted(self.axis.get_view_interval()))


def log_ticks(low: float, high: float) -> list[float]:
  """Returns four to ten round numbers from `low` to `high`, both positive."""
  first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
  for digits in ((1, 2, 5), (1, 3), (1,), (1, 1.5, 2, 3, 5, 7)):
    ticks = [float(f'{digit}e{power}') for power in range(first, last + 1)
             for digit in digits]
    ticks = [x for x in ticks if low <= x <= high]
    if 4 <= len(ticks) <= 10:
      return ticks
  if high / low < 10:  # nearly linear
    locator = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], min_n_ticks=4)
    return [float(f'{x:.6g}') for x in locator.tick_values(low, high)
            if low <= x <= high]
  step = -(-(last - first) // 8)
  return [float(f'1e{power}') for power in range(first, last + 1, step)
          if low <= float(f'1e{power}') <= high]
