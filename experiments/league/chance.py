"""The accuracy of guessing on each task. Runs without JAX."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Chance(NamedTuple):
  """Accuracy without any information on the items, in percent: `at_zero` + `slope` · N.

  Where one class is right, it is 1 / classes at all numbers of items N. In set
  complement it is 1 − N / symbols: what all of the symbols, equally probable, have in
  common with those that are absent.
  """

  at_zero: float
  slope: float
  trained_on: float  # the mean N at the training lengths

  def at(self, num_items: Any) -> Any:
    """Returns the accuracy in percent, of a number or an array of N."""
    return self.at_zero + self.slope * num_items

  def __str__(self) -> str:
    """Says what it is at the training lengths."""
    level = f'{self.at(self.trained_on):.3g} %'
    return (f'as one minus the total variation, which is {level} if the set is ignored'
            if self.slope else f'chance {level}')


def chance_of(task: Mapping[str, Any], train: Mapping[str, Any]) -> Chance | None:
  """Returns the chance of a task, of which each length is equally frequent.

  Args:
    task: the fields `task` of its configuration.
    train: the fields `train`.

  Returns:
    None if it is not known, as of a task of the user's.
  """
  name, classes = task.get('name'), task.get('num_classes')
  if not classes:
    return None
  items = (train['min_length'] + train['max_length']) / 2
  if name in ('retrieval', 'lookup', 'associative_recall'):
    return Chance(100 / classes, 0, items)
  return Chance(100, -100 / classes, items) if name == 'set_complement' else None
