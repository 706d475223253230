"""Which arms come first, over all tasks and on each. Runs without JAX."""

from collections.abc import Mapping, Sequence

import numpy as np

from experiments.league.effects import DECIDED, Effect


def sorted_arms(found: Mapping[str, Sequence[Effect]]) -> list[str]:
  """Returns the arms by their mean gain over the tasks that all have, largest first.

  Means over different tasks cannot be compared. If no task has all arms, that of most
  arms is taken, and the arms that it lacks come last.
  """
  gains = _gains_of(found)
  tasks = shared_tasks(found) or sorted(gains, key=lambda task: -len(gains[task]))[:1]
  mean = {arm: np.mean([gains[task].get(arm, -np.inf) for task in tasks])
          for own in gains.values() for arm in own}
  return sorted(mean, key=lambda arm: (-mean[arm], arm))


def shared_tasks(found: Mapping[str, Sequence[Effect]]) -> list[str]:
  """Returns the tasks on which every arm has a gain that has one on any task."""
  gains = _gains_of(found)
  every = {arm for own in gains.values() for arm in own}
  return [task for task, own in gains.items() if own.keys() == every]


def best_arms(found: Mapping[str, Sequence[Effect]]) -> dict[str, str]:
  """Returns {task: the arm other than LN that gains most}.

  It is among the arms with a verdict, or among all of a task where none has one. Tasks
  without gains are left out.
  """
  best = {}
  for task, gains in _gains_of(found).items():
    others = gains.keys() - {'layer_norm'}
    judged = others & {x.arm for x in found[task] if x.verdict in DECIDED}
    if others:
      best[task] = max(sorted(judged or others), key=gains.__getitem__)
  return best


def _gains_of(found: Mapping[str, Sequence[Effect]]) -> dict[str, dict[str, float]]:
  """Returns {task: {arm: its gain}}, of the arms that have one."""
  return {task: {x.arm: x.test.mean_difference for x in effects if x.test is not None}
          for task, effects in found.items()}
