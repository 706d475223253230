"""What figures draw, read from their artists."""

from typing import NamedTuple

from matplotlib.colors import to_hex
import numpy as np


class Line(NamedTuple):
  """A line as it is drawn."""

  colour: str
  x: list[float]
  y: np.ndarray


def line_of(line):
  return Line(to_hex(line.get_color()).upper(), np.asarray(line.get_xdata()).tolist(),
              np.asarray(line.get_ydata(), float))


def lines(axes):
  """Returns {label: Line} of the lines that have a name."""
  return {line.get_label(): line_of(line) for line in axes.lines
          if not line.get_label().startswith('_') and line.get_label()}


def bands(axes):
  """Returns {colour: (x, low, high)} of what `fill_between` drew."""
  every = all_bands(axes)
  found = {colour: band for colour, *band in every}
  assert len(found) == len(every)
  return found


def all_bands(axes):
  """Returns (colour, x, low, high) of each `fill_between`, in their order."""
  found = []
  for collection in axes.collections:
    if not len(collection.get_facecolor()):  # bars
      continue
    points = collection.get_paths()[0].vertices
    x = np.unique(points[:, 0])
    ends = [(points[points[:, 0] == place, 1].min(),
             points[points[:, 0] == place, 1].max()) for place in x]
    colour = to_hex(collection.get_facecolor()[0]).upper()
    found.append((colour, x.tolist(), *np.transpose(ends)))
  return found


def words(axes):
  return [text.get_text() for text in axes.texts]


def shades(axes):
  """Returns where `axvspan` shaded, from and to."""
  return [(p.get_x(), p.get_x() + p.get_width()) for p in axes.patches]
