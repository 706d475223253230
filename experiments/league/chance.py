"""The accuracy of guessing, by task, number of items and in words. Runs without JAX."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from matplotlib.axes import Axes
import numpy as np

from experiments.league.names import CONTROL
from vvlen.reporting import plots
from vvlen.reporting.results import Index


class Chance(NamedTuple):
  """Accuracy without any information on the items, in percent: `first` + `slope` · N.

  Where one class is right, it is 1 / classes at all numbers of items N. In set
  complement it is 1 − N / symbols: what all of the symbols, equally probable, have in
  common with those that are absent.
  """

  first: float
  slope: float
  trained_on: float  # the mean N at the training lengths

  def at(self, num_items: Any) -> Any:
    """Returns the accuracy in percent, of a number or an array of N."""
    return self.first + self.slope * num_items

  def __str__(self) -> str:
    """Says what it is at the training lengths."""
    level = f'{self.at(self.trained_on):.3g} %'
    return (f'as one minus the total variation, which is {level} if the set is ignored'
            if self.slope else f'chance {level}')


def of_task(task: Mapping[str, Any], train: Mapping[str, Any]) -> Chance | None:
  """Returns the chance of a task, of which each length is equally frequent.

  Args:
    task: the fields `task` of its configuration.
    train: the fields `train`.

  Returns:
    None if it is not known, as of a task of the user's.
  """
  name, classes = task.get('name'), task.get('num_classes')
  items = (train['min_length'] + train['max_length']) / 2
  if not classes:
    return None
  if name in ('retrieval', 'lookup', 'associative_recall'):
    return Chance(100 / classes, 0, items)
  return Chance(100, -100 / classes, items) if name == 'set_complement' else None


def draw(axes: Axes, chance: Chance, index: Index) -> None:
  """Draws it as a dotted line, from the first to the last length of softmax."""
  lengths, _ = plots.values(index, CONTROL, 'accuracy')
  if not chance.slope:
    plots.chance(axes, chance.first)
  elif lengths:
    grid = np.geomspace(lengths[0], lengths[-1], 64)
    axes.plot(grid, chance.at(grid), label='set ignored', marker='', **plots.CHANCE)
  axes.set_ylim(bottom=0)
