"""The effect of LN in the cells of a family, from tidy rows. Runs without JAX.

  D[c, t, s] = A(LN) − A(Baseline)

in points, where A is the mean accuracy beyond the training lengths of seed s in cell c
after t steps. A seed has the same initial weights and data in all arms and cells, so
every estimate is a mean over seeds of a linear combination of the D of one seed, with
the interval of Student's t. No assumption is made about how seeds or cells vary.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vvlen.reporting import results
from vvlen.reporting.endpoints import compare, Comparison, LEARNED, median_accuracy
from vvlen.statistics import (
  at_level,
  detectable,
  deviation_ratio,
  paired_by_seed,
  paired_t_test,
  PairedTest,
  power_to_find,
  Ratio,
  spread,
)

AHEAD, BEHIND = 'ahead', 'behind'
AHEAD_LITTLE, BEHIND_LITTLE = 'ahead by less', 'behind by less'
EQUAL, OPEN = 'equal', 'not found'


class Claim(NamedTuple):
  """The claim that is tested, as it was fixed beforehand."""

  control: str
  treated: str
  metric: str
  level: float
  equivalence: float  # points
  num_tests: int  # cells in the family


class FamilyCell(NamedTuple):
  """What the report needs to know about a cell."""

  name: str
  task: str
  trained_up_to: int
  num_seeds: int
  steps: tuple[int, ...]
  l2: float
  l2_on: str
  learning_rate: float
  decays: bool
  grows: bool
  output_projection: bool


class Effect(NamedTuple):
  """LN compared with Baseline in one cell after `step` steps."""

  cell: FamilyCell
  step: int
  comparison: Comparison
  test: PairedTest | None  # uncorrected
  corrected: PairedTest | None  # with interval and p by Bonferroni over the family
  power: float  # to detect the smallest effect of interest, at the corrected level
  detectable: float  # smallest effect with a power of 80 %, at the corrected level
  training_accuracy: tuple[float, float]  # medians over seeds: control, treated
  complete: bool  # whether all seeds have results
  verdict: str

  @property
  def learned(self) -> bool:
    """Whether both arms have learned the training lengths."""
    return _have_learned(self.training_accuracy)


class Contrast(NamedTuple):
  """A linear combination of effects, by seed."""

  name: str
  weights: Mapping[tuple[str, int], float]  # (cell, step) -> weight
  unit: str = 'points'


def read_cells(family: Mapping[str, Any]) -> dict[str, FamilyCell]:
  """Returns {name: cell} of a family, in the order of the report."""
  cells = {}
  for name in sorted(family['cells'], key=_place):
    field = lambda path, default=None, change=family['cells'][name]: _field(
        (change, family['base']), path, default
    )
    cells[name] = FamilyCell(
        name=name, task=field('task.name'),
        trained_up_to=int(field('train.max_length')),
        num_seeds=int(field('num_seeds')), steps=tuple(field('train.averaged_at')),
        l2=float(field('optimizer.l2')), l2_on=field('optimizer.l2_on', 'kernels'),
        learning_rate=float(field('optimizer.learning_rate')),
        decays=bool(field('optimizer.decay_steps', 0)),
        grows=bool(field('train.first_max_length', 0)),
        output_projection=bool(field('model.output_projection')),
    )
  return cells


def _place(name: str) -> tuple[int, str]:
  """Returns the sort key of a cell: those named here in this order, then others."""
  order = ('base', 'l2', 'l2_all', 'decay', 'l2_decay', 'output_projection', 'lookup',
           'lookup_l2', 'growing')
  return (order.index(name) if name in order else len(order), name)


def _field(parts: Iterable[Mapping[str, Any]], path: str, default: Any) -> Any:
  """Returns the first value found at a path such as 'train.max_length'."""
  for part in parts:
    value: Any = part
    for name in path.split('.'):
      value = value.get(name) if isinstance(value, Mapping) else None
    if value is not None:
      return value
  return default


def read_claim(family: Mapping[str, Any]) -> Claim:
  """Returns the claim of a family."""
  claim = family['claim']
  return Claim(
      claim['control'], claim['treated'], claim['metric'], float(claim['level']),
      float(claim['equivalence']), len(family['cells']),
  )


def effect(
    indices: Mapping[tuple[str, int], results.Index], cell: FamilyCell, step: int,
    claim: Claim, suffix: str = '',
) -> Effect | None:
  """Compares the arms of a cell after one of its steps.

  Args:
    indices: from `results.index_cells`.
    cell: the cell.
    step: one of its steps.
    claim: the claim that is tested.
    suffix: added to the names of both arms, such as '+averaged'.

  Returns:
    The `Effect`; None if an arm has no rows.
  """
  index = indices.get((cell.name, step), {})
  arms = (claim.control + suffix, claim.treated + suffix)
  if any((arm, 'training_accuracy', None) not in index
         for arm in (claim.control, claim.treated)):
    return None
  if any(all(key[:2] != (arm, claim.metric) for key in index) for arm in arms):
    return None
  comparison = compare(
      index, arms[1], arms[0], trained_up_to=cell.trained_up_to, metric=claim.metric
  )
  test = comparison.primary
  level = claim.level / claim.num_tests
  corrected, power = None, np.nan
  if test is not None and np.isfinite(test.t):
    corrected = at_level(test, level)._replace(p=min(1.0, test.p * claim.num_tests))
    power = power_to_find(spread(test), test.num_pairs, claim.equivalence, level)
  learned = [median_accuracy(index[arm, 'training_accuracy', None])
             for arm in (claim.control, claim.treated)]
  complete = len(comparison.primary_differences) + len(
      comparison.left_out) >= cell.num_seeds
  return Effect(
      cell, step, comparison, test, corrected, power, detectable(test, level),
      (learned[0], learned[1]), complete,
      verdict(corrected, claim.equivalence, learned, complete),
  )


def verdict(
    corrected: PairedTest | None, equivalence: float, learned: Sequence[float],
    complete: bool = True,
) -> str:
  """Returns what a confidence interval shows.

  Args:
    corrected: a test with its interval at the corrected level.
    equivalence: the smallest effect of interest.
    learned: accuracy at the training lengths, of each arm.
    complete: whether all seeds have results.

  Returns:
    AHEAD or BEHIND if the interval excludes 0, AHEAD_LITTLE or BEHIND_LITTLE if it also
    lies within ± equivalence; EQUAL if it lies within ± equivalence and contains 0;
    OPEN otherwise. Before that: 'not finished' if seeds are missing; 'undefined' if
    there is no test, as when all differences are equal; 'not learned' if an arm did not
    learn the training lengths.
  """
  if not complete:
    return 'not finished'
  if corrected is None:
    return 'undefined'
  if not _have_learned(learned):
    return 'not learned'
  low, high = corrected.ci_low, corrected.ci_high
  within = -equivalence < low and high < equivalence
  if low > 0:
    return AHEAD_LITTLE if within else AHEAD
  if high < 0:
    return BEHIND_LITTLE if within else BEHIND
  return EQUAL if within else OPEN


def _have_learned(accuracies: Sequence[float]) -> bool:
  return min(accuracies) >= LEARNED


def contrasts(cells: Mapping[str, FamilyCell]) -> list[Contrast]:
  """Returns contrasts of the effect of LN: over steps, decay, schedule, task."""
  made = []
  for cell in cells.values():
    if len(cell.steps) > 1:
      # The slope of a least-squares line in log2 of the steps.
      x = np.log2(cell.steps)
      slope = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
      made.append(Contrast(
          f'twice the steps ({cell.name}, {cell.steps[0]:,} to {cell.steps[-1]:,})',
          {(cell.name, step): float(w)
           for step, w in zip(cell.steps, slope, strict=True)},
          'points a doubling',
      ))
  for name, one, other in (
      ('L2 on kernels (constant rate)', 'l2', 'base'),
      ('L2 on all parameters (constant rate)', 'l2_all', 'base'),
      ('L2 on all parameters, not kernels alone', 'l2_all', 'l2'),
      ('L2 on kernels (decaying rate)', 'l2_decay', 'decay'),
      ('L2 on kernels (lookup)', 'lookup_l2', 'lookup'),
      ('rate decaying, not constant (no L2)', 'decay', 'base'),
      ('rate decaying, not constant (L2)', 'l2_decay', 'l2'),
      ('output projection', 'output_projection', 'base'),
      ('lengths growing, not fixed (decaying rate, at lengths beyond both)', 'growing',
       'decay'),
      ('lookup, not retrieval (no L2, decaying rate)', 'lookup', 'decay'),
      ('lookup, not retrieval (L2, decaying rate)', 'lookup_l2', 'l2_decay'),
  ):
    if one in cells and other in cells:
      last = cells[one].steps[-1]
      same = last if last in cells[other].steps else cells[other].steps[-1]
      made.append(Contrast(name, {(one, last): 1.0, (other, same): -1.0}))
  corners = ('l2_decay', 'decay', 'l2', 'base')
  if all(name in cells for name in corners):
    made.append(Contrast('L2 × decaying rate', {
        (name, cells[name].steps[-1]): weight
        for name, weight in zip(corners, (1.0, -1.0, -1.0, 1.0), strict=True)
    }))
  return made


def contrast_test(
    contrast: Contrast, indices: Mapping[tuple[str, int], results.Index],
    cells: Mapping[str, FamilyCell], claim: Claim, suffix: str = '',
) -> PairedTest | None:
  """Tests whether a contrast is 0, over the seeds that all its cells have.

  Uses the lengths beyond the training lengths of all its cells.

  Returns:
    The test, uncorrected; None if a cell is not finished or not learned by both arms,
    or fewer than two seeds are shared.
  """
  beyond = max(cells[name].trained_up_to for name, _ in contrast.weights)
  by_seed = []
  for (name, step), weight in contrast.weights.items():
    cell = cells[name]._replace(trained_up_to=beyond)
    found = effect(indices, cell, step, claim, suffix)
    if found is None or not (found.complete and found.learned):
      return None
    by_seed.append({
        seed: weight * d for seed, d in found.comparison.primary_differences.items()
    })
  seeds = sorted(set.intersection(*map(set, by_seed)))
  if len(seeds) < 2:
    return None
  sums = [sum(part[seed] for part in by_seed) for seed in seeds]
  return paired_t_test(sums, np.zeros(len(sums)))


def spread_ratio(averaged: Effect, plain: Effect) -> Ratio:
  """Returns the ratio by which averaging weights changes the spread of D over seeds."""
  one, other = (e.comparison.primary_differences for e in (averaged, plain))
  seeds = sorted(one.keys() & other.keys())
  return deviation_ratio([one[s] for s in seeds], [other[s] for s in seeds])


def change(one: Effect, other: Effect) -> PairedTest | None:
  """Tests whether two effects differ, one − other, over the seeds that both have."""
  return paired_by_seed(
      one.comparison.primary_differences, other.comparison.primary_differences)
