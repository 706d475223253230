"""After which steps arms are measured. Runs without JAX."""

from collections.abc import Mapping
import math
from typing import Any


def measured_steps(config: Mapping[str, Any], share: float) -> dict[int, int]:
  """Returns after which of its steps an arm is measured.

  All arms are measured after the same shares of their steps, so that an arm of 190
  steps has been trained for 0.95 of the steps of one of 200 at each comparison.

  Args:
    config: as in configs/adapt.py.
    share: the steps of the arm, as a share of train.num_steps.

  Returns:
    {step of an arm with share 1: step of this arm, rounded down, but for the last,
    which is rounded to the nearest}.
  """
  every = int(config['evaluate']['every_steps'])
  last = int(config['train']['num_steps'])
  # In floating point 0.29 * 100 is below 29.
  found = {step: math.floor(round(step * share, 6))
           for step in range(every, last, every)}
  return found | {last: max(1, round(share * last))}
