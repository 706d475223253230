"""How the figures of a grid mark and name its cells. Runs without JAX."""

from collections.abc import Mapping
import math
from typing import Any

from matplotlib.axes import Axes

from experiments.sensitivity.cells import Cell, CellSetting
from vvlen.reporting import plots
from vvlen.reporting.plots import ARMS

FOUND, NOT_FOUND, UNTESTED = 'p < .05, corrected', 'p ≥ .05, corrected', 'not tested'


def look_of(cell: Cell) -> str:
  """Returns how a cell is marked: difference found, not found, or not tested."""
  if not cell.in_family:
    return UNTESTED
  return FOUND if cell.found else NOT_FOUND


def marks_of(look: str, arm: str) -> dict[str, Any]:
  """Returns colour and marker of an arm's points that are marked so; black for ''."""
  _, colour, marker = ARMS.get(arm, ('', 'black', ''))
  if look == UNTESTED:
    return {'color': colour, 'marker': 'x', 'markersize': 3.8}
  return {'color': colour, 'marker': marker,
          'markerfacecolor': colour if look == FOUND else 'white'}


def write_heading(axes: Axes, words: str) -> None:
  """Writes a heading above the labels on the left."""
  axes.annotate(words, (0, 1), xycoords='axes fraction', xytext=(-8, 4), ha='right',
                textcoords='offset points', fontsize=plots.SMALLEST, style='italic')


def words_of(settings: Mapping[str, CellSetting], name: str) -> str:
  return settings.get(name, CellSetting()).words or name


def task_of(settings: Mapping[str, CellSetting], name: str) -> str:
  return settings.get(name, CellSetting()).task


def gain_of(cell: Cell) -> float:
  test = cell.comparison.primary
  return test.mean_difference if test else math.nan
