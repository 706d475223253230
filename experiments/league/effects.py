"""What each arm gains over softmax on each task, from tidy rows. Runs without JAX.

  D[a, s] = A(a, s) − A(softmax, s)

in points, where A is the mean accuracy beyond the training lengths of seed s, each arm
at the learning rate that its tuning chose. A seed has the same initial weights and data
in all arms. On each task, K arms are tested against softmax, and p is corrected by Holm
over these K tests. An arm has no verdict, and counts as p = 1, if it is not run to its
end, has a seed whose accuracy is not finite, did not learn the training lengths, or has
no test. So p is valid before all arms are run, and can then only fall. The intervals of
a task hold for all of its arms together: each has the level 1 − level / K (Bonferroni).
Holm's test is sharper: an interval may contain 0 where p is below the level.
"""

from collections.abc import Mapping, Sequence
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from experiments.league.chance import Chance, chance_of
from experiments.league.names import CONTROL, in_order, name_of, TEMPERATURES
from experiments.league.rates import Choice, choose, read_losses
from vvlen.reporting import results
from vvlen.reporting.endpoints import (
  compare,
  Comparison,
  endpoint,
  LEARNED,
  median_accuracy,
)
from vvlen.statistics import (
  at_level,
  detectable,
  holm,
  mean_interval,
  paired_t_test,
  PairedTest,
)

AHEAD, BEHIND, OPEN = 'ahead', 'behind', 'no difference found'
NOT_LEARNED, NOT_FINISHED, UNDEFINED = 'not learned', 'not finished', 'undefined'
DIVERGED = 'diverged'
DECIDED = AHEAD, BEHIND, OPEN  # verdicts that a test has given
MOST_BELOW = 0.1  # share of seeds that may be below LEARNED for a verdict
# Pairs of arms, beside those with softmax, whose difference is reported.
_CONTRASTS = (
    ('linear', 'log_n'), ('linear', 'ssmax'), ('linear', 'power'), ('ssmax', 'log_n'),
    ('power', 'log_n'),
    *((f'{law}_layer_norm', law) for law in TEMPERATURES),
    *((f'{law}_layer_norm', 'layer_norm') for law in TEMPERATURES))


class Family(NamedTuple):
  """What the report needs to know about a family."""

  arms: tuple[str, ...]  # softmax first
  tasks: Mapping[str, int]  # task -> its longest training length
  num_seeds: int
  level: float
  rates: tuple[float, ...]
  words: str  # of training
  chance: Mapping[str, Chance] = {}  # task -> it, where it is known

  @property
  def num_tests(self) -> int:
    """Returns K."""
    return len(self.arms) - 1


class Effect(NamedTuple):
  """An arm compared with softmax on one task. Accuracies are in percent."""

  task: str
  arm: str
  comparison: Comparison
  test: PairedTest | None  # uncorrected
  corrected: PairedTest | None  # with Bonferroni's interval and Holm's p
  detectable: float  # the smallest difference found four times in five
  training_accuracy: tuple[float, float]  # medians over seeds: softmax, arm; shares
  least_training: tuple[float, float]  # of the worst seed, nan if one is not finite
  not_learned: tuple[int, int]  # seeds below LEARNED there: softmax, arm
  learned: tuple[bool, bool]  # by `has_learned`: softmax, arm
  verdict: str

  @property
  def shown(self) -> PairedTest | None:
    """Returns the test whose interval is reported: the corrected one, if there is."""
    return self.corrected or self.test


class Best(NamedTuple):
  """The two laws of temperature that go farthest on a task."""

  task: str
  arms: tuple[str, str]  # best, second best
  means: tuple[float, float]  # accuracy beyond the training lengths, percent
  test: PairedTest  # best − second best, uncorrected
  num_laws: int  # of which they are the best


class Contrast(NamedTuple):
  """Two arms compared, neither of them softmax; in points, uncorrected."""

  task: str
  arms: tuple[str, str]  # first minus second
  test: PairedTest  # of the mean accuracy beyond the training lengths
  longest: int  # the longest test length
  at_longest: PairedTest  # of the accuracy there


class Scalar(NamedTuple):
  """A learned scalar of an arm at the end of training: mean over seeds, interval."""

  task: str
  arm: str
  name: str
  mean: float
  low: float
  high: float
  num_seeds: int


def family_of(facts: Mapping[str, Any]) -> Family:
  """Returns the family of the fields that `family.facts` returns."""
  base, tasks = facts['base'], facts['tasks']
  longest = {task: int(own.get('train', {}).get('max_length',
                                                base['train']['max_length']))
             for task in in_order(tasks) for own in [tasks[task]]}
  train = base['train']
  words = (f'trained on {train["min_length"]} to {train["max_length"]} items for '
           f'{train["num_steps"]:,} steps')
  if any({'min_length', 'max_length', 'num_steps'} & own.get('train', {}).keys()
         for own in tasks.values()):
    words = 'each task trained in its own way'
  chance = {name: known for name, task in tasks.items() if (
      known := chance_of(task.get('task', {}), train | task.get('train', {})))}
  return Family(tuple(in_order(facts['arms'])), longest, int(facts['num_seeds']),
                float(facts['claim']['level']), tuple(facts['tune']['rates']), words,
                chance)


def num_below(accuracy: Mapping[int, float]) -> int:
  """Returns how many seeds are below LEARNED at the training lengths; nan is below."""
  return sum(not x >= LEARNED for x in accuracy.values())


def _least(accuracy: Mapping[int, float]) -> float:
  """Returns the least of all seeds, nan if one is not finite."""
  values = [*accuracy.values()]
  return float(np.min(values)) if np.isfinite(values).all() else math.nan


def has_learned(accuracy: Mapping[int, float]) -> bool:
  """Returns whether nine seeds in ten have learned the training lengths.

  At some learning rates a few seeds collapse, and would decide the difference. The
  median over seeds would not show them.
  """
  return num_below(accuracy) <= MOST_BELOW * len(accuracy)


def read_effects(
    indices: Mapping[str, results.Index], family: Family
) -> dict[str, list[Effect]]:
  """Returns {task: the effect of each arm with rows, in the family's order}.

  Args:
    indices: {task: rows}, from `results.index`.
    family: from `family_of`.
  """
  return {task: _of_task(task, indices[task], family)
          for task in family.tasks if task in indices}


def _of_task(task: str, index: results.Index, family: Family) -> list[Effect]:
  """Returns the effects of the arms on one task."""
  arms = [arm for arm in family.arms if (arm, 'training_accuracy', None) in index]
  if CONTROL not in arms:
    return []
  found, p = [], []
  training = {arm: index[arm, 'training_accuracy', None] for arm in arms}
  level = family.level / family.num_tests
  for arm in arms[1:]:
    comparison = compare(index, arm, CONTROL, trained_up_to=family.tasks[task])
    test = comparison.primary
    seeds = len(comparison.primary_differences) + len(comparison.left_out)
    pair = training[CONTROL], training[arm]
    learned = has_learned(pair[0]), has_learned(pair[1])
    verdict = OPEN
    if seeds < family.num_seeds:
      verdict = NOT_FINISHED
    elif comparison.left_out:
      verdict = DIVERGED
    elif not all(learned):
      verdict = NOT_LEARNED
    elif test is None or not np.isfinite(test.t):
      verdict = UNDEFINED
    p.append(test.p if test is not None and verdict == OPEN else 1.0)
    found.append(Effect(task, arm, comparison, test, None, detectable(test, level),
                        (median_accuracy(pair[0]), median_accuracy(pair[1])),
                        (_least(pair[0]), _least(pair[1])),
                        (num_below(pair[0]), num_below(pair[1])), learned, verdict))
  # Arms without rows count as p = 1 too.
  adjusted = holm(p + [1.0] * (family.num_tests - len(p)))
  return [_corrected(effect, float(own), level, family.level)
          for effect, own in zip(found, adjusted[:len(found)], strict=True)]


def has_interval(verdict: str) -> bool:
  """Returns whether the interval of an arm with this verdict is shown.

  Before all seeds are there it would be a look before the end; of models that have not
  learned it says nothing about longer inputs.
  """
  return verdict not in (NOT_FINISHED, NOT_LEARNED)


def _corrected(effect: Effect, p: float, level: float, of_all: float) -> Effect:
  """Returns an effect with its corrected test and its verdict.

  Args:
    effect: with its uncorrected test.
    p: corrected by Holm.
    level: of the interval, corrected by Bonferroni.
    of_all: of all tests of a task together.
  """
  test = effect.test
  if test is None or not np.isfinite(test.t):
    return effect
  own = p if effect.verdict == OPEN else np.nan
  corrected = at_level(test, level)._replace(p=own)
  if effect.verdict == OPEN and p < of_all:
    verdict = AHEAD if test.mean_difference > 0 else BEHIND
    effect = effect._replace(verdict=verdict)
  return effect._replace(corrected=corrected)


def best_laws(
    indices: Mapping[str, results.Index], family: Family
) -> list[Best]:
  """Returns the best two laws of temperature on each task.

  Softmax, whose β is 1, is a law too. A law counts if all its seeds are there and
  finite, and it has learned the training lengths. Tasks with fewer than two such laws
  are left out.
  """
  best = []
  for task, index in indices.items():
    means = {
        arm: float(np.mean(values)) for arm in family.arms
        if name_of(arm).kind in ('temperature', 'control')
        and len(values := _sound(index, arm, task, family))}
    if len(means) < 2:
      continue
    one, two = sorted(means, key=lambda arm: -means[arm])[:2]
    test = paired_t_test(*(_sound(index, arm, task, family) for arm in (one, two)))
    best.append(Best(task, (one, two), (means[one], means[two]), test, len(means)))
  return best


def _sound(
    index: results.Index, arm: str, task: str, family: Family
) -> list[float]:
  """Returns the endpoint of all seeds of an arm that has learned, in order, or []."""
  values = endpoint(index, arm, family.tasks[task])
  found = [values[seed] for seed in sorted(values)]
  whole = len(found) >= family.num_seeds and np.isfinite(found).all()
  training = index.get((arm, 'training_accuracy', None), {})
  return found if whole and has_learned(training) else []


def contrasts(
    indices: Mapping[str, results.Index], family: Family
) -> list[Contrast]:
  """Returns the differences between arms other than softmax.

  Both arms must have learned the training lengths, with all seeds there and finite.
  """
  found = []
  for (task, index), (one, two) in itertools.product(indices.items(), _CONTRASTS):
    pair = [_sound(index, arm, task, family) for arm in (one, two)]
    if not all(pair):
      continue
    longest = max(n for _, name, n in index if name == 'accuracy' and n is not None)
    far = [index[arm, 'accuracy', longest] for arm in (one, two)]
    at_longest = paired_t_test(
        *([100 * values[seed] for seed in sorted(values)] for values in far))
    found.append(Contrast(task, (one, two), paired_t_test(*pair), longest, at_longest))
  return found


def read_scalars(
    indices: Mapping[str, results.Index], family: Family
) -> list[Scalar]:
  """Returns all learned scalars, by task and arm."""
  found = []
  for task, arm in itertools.product(family.tasks, family.arms):
    for (own, metric, _), values in sorted(
        indices.get(task, {}).items(), key=lambda item: item[0][1]):
      if own != arm or not metric.startswith('learned_'):
        continue
      if finite := [x for x in values.values() if np.isfinite(x)]:
        mean, low, high = map(float, mean_interval(finite))
        found.append(Scalar(task, arm, metric.removeprefix('learned_'), mean, low,
                            high, len(finite)))
  return found


def read_choices(
    tuning: Sequence[results.Row], family: Family
) -> dict[tuple[str, str], Choice]:
  """Returns {(task, arm): the learning rate that was chosen}, of those tuned."""
  losses = {(task, arm): read_losses(tuning, task, arm)
            for task in family.tasks for arm in family.arms}
  return {key: choose(own) for key, own in losses.items() if own}
