"""The cells of a grid: in each, one arm against the Baseline, tested together.

A row's experiment is named 'cell@step': one setting, after so many steps. Runs
without JAX.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vvlen import results
from vvlen.comparison import change, compare, Comparison, CONTROL, median_accuracy
from vvlen.results import Row
from vvlen.statistics import corrected, detectable, PairedTest

# What may explain a gain.
MECHANISM = ('target_weight', 'output_norm', 'input_distance')
# What a grid keeps of each model, besides its accuracy with adapted temperature.
KEPT = ('accuracy', 'training_accuracy', 'training_loss', *MECHANISM)
# A cell is compared with base, but those that change two things with one of them, and
# another task with none.
PARENTS = {
    'lookup': None, 'lookup_l2': 'lookup', 'linear_projection': 'linear_encoder',
}
# The cells that differ in learning rate alone, and the name of their best.
RATES, TUNED = ('base', 'rate_low', 'rate_high'), 'rate_tuned'


class Cell(NamedTuple):
  """One setting after so many steps, and one arm against the Baseline."""

  name: str
  step: int
  comparison: Comparison
  # Its differences − those of its parent at this step, at lengths beyond both's.
  against_parent: PairedTest | None
  mechanism: dict[tuple[str, str], float]  # (metric, arm) -> mean beyond training
  training_accuracy: tuple[float, float]  # medians over seeds: control, treated
  in_family: bool  # of the tests that are corrected together
  detectable: float  # by the test at the level that it has in the family
  detectable_against_parent: float
  holm_p: float = np.nan  # over the family
  holm_p_against_parent: float = np.nan


def kept(row: Row) -> bool:
  """Whether a grid keeps a row; all of a large one would be a hundred megabytes."""
  return row.metric == 'accuracy' or ('+' not in row.arm and row.metric in KEPT)


def with_tuned_rates(rows: Sequence[Row]) -> tuple[list[Row], dict[str, str]]:
  """Adds a cell in which each arm has the learning rate that suits it best.

  That is, at each step, the one of `RATES` with the lowest mean training loss: the
  batches are new at every step, so it is in-distribution validation. Test lengths
  have no say.

  Returns:
    The rows, those of `TUNED` among them; and {'arm@step': cell chosen}.
  """
  losses: dict[tuple[str, str, str], dict[int, float]] = {}
  for row in rows:
    name, _, step = row.experiment.rpartition('@')
    if row.metric == 'training_loss' and name in RATES:
      losses.setdefault((row.arm, step, name), {})[row.seed] = row.value
  chosen = {}
  for arm, step in dict.fromkeys((arm, step) for arm, step, _ in losses):
    by_rate = {name: losses.get((arm, step, name), {}) for name in RATES}
    finite = {
        name: {s for s, x in values.items() if np.isfinite(x)}
        for name, values in by_rate.items()
    }
    # A rate at which most seeds fail is no choice; others share their seeds.
    usable = [n for n in RATES if 2 * len(finite[n]) > len(by_rate[n])]
    seeds = set.intersection(*(finite[n] for n in usable)) if usable else set()
    if all(by_rate.values()) and seeds:
      chosen[f'{arm}@{step}'] = min(
          usable, key=lambda n: np.mean([by_rate[n][s] for s in seeds])
      )
  # With the same rate for all arms there is nothing new.
  at = lambda step: {c for key, c in chosen.items() if key.endswith(f'@{step}')}
  differ = {
      step for _, step, _ in losses
      if f'{CONTROL}@{step}' in chosen and len(at(step)) > 1
  }
  tuned = []
  for row in rows:
    name, _, step = row.experiment.rpartition('@')
    if step in differ and chosen.get(f'{row.arm}@{step}') == name:
      tuned.append(row._replace(experiment=f'{TUNED}@{step}'))
  return [*rows, *tuned], chosen


def read_cells(
    rows: Iterable[Row],
    trained_up_to: Mapping[str, int],
    treated: str = 'layer_norm',
    family: Collection[tuple[str, int]] | None = None,
) -> list[Cell]:
  """Compares an arm with the Baseline in each cell, at each step.

  Args:
    rows: of all cells.
    trained_up_to: the longest training length of each cell, that of base where one
      is not named.
    treated: the arm.
    family: the (name, step) that are tested together, their p-values corrected by
      Holm; None for all cells at the last step that all have.

  Returns:
    Cells by name, 'base' first, each from its first to its last step.
  """
  grouped: dict[tuple[str, int], list[Row]] = {}
  for row in rows:
    name, _, at_step = row.experiment.rpartition('@')
    grouped.setdefault((name, int(at_step)), []).append(row)
  up_to = lambda name: trained_up_to.get(name, trained_up_to.get('base', 16))
  indices = {}
  for name, step in sorted(grouped, key=lambda k: (k[0] != 'base', k)):
    index = results.index(grouped[name, step])
    if all((arm, 'training_loss', None) in index for arm in (treated, CONTROL)):
      indices[name, step] = index
  cells = []
  for (name, step), index in indices.items():
    comparison = compare(index, treated, CONTROL, trained_up_to=up_to(name))
    parent = PARENTS.get(name, 'base')
    against = None
    if parent and name != parent and (parent, step) in indices:
      beyond = max(up_to(name), up_to(parent))
      against = change(*(
          compare(i, treated, CONTROL, trained_up_to=beyond)
          for i in (index, indices[parent, step])
      ))
    learned = [
        median_accuracy(index.get((arm, 'training_accuracy', None), {}))
        for arm in (CONTROL, treated)
    ]
    cells.append(Cell(
        name, step, comparison, against, _mechanism(index, comparison, up_to(name)),
        (learned[0], learned[1]), in_family=False,
        detectable=detectable(comparison.primary),
        detectable_against_parent=detectable(against),
    ))
  if family is None:
    members = _family(cells)
  else:
    members = [i for i, cell in enumerate(cells) if cell[:2] in family]
  own = corrected([cells[i].comparison.primary for i in members])
  against_parent = corrected([cells[i].against_parent for i in members])
  for i, p, found, p_against, found_against in zip(
      members, *own, *against_parent, strict=True
  ):
    cells[i] = cells[i]._replace(
        in_family=True, holm_p=float(p), detectable=found,
        holm_p_against_parent=float(p_against), detectable_against_parent=found_against,
    )
  return cells


def _family(cells: Sequence[Cell]) -> list[int]:
  """Returns which cells are tested together: all at the last step that all have.

  A cell whose seeds are not all there at any step is left out; where cells share no
  step, each is taken at its own last. `TUNED`, which is there only at steps where
  the arms differ in their best rate, has no say.
  """
  if not cells:
    return []
  seeds = [len(c.comparison.primary_differences) + len(c.comparison.left_out)
           for c in cells]
  whole: dict[str, dict[int, int]] = {}
  for i, cell in enumerate(cells):
    if seeds[i] == max(seeds):
      whole.setdefault(cell.name, {})[cell.step] = i
  own = [set(places) for name, places in whole.items() if name != TUNED]
  common = set.intersection(*own) if own else set()
  if not common:
    return [places[max(places)] for places in whole.values()]
  return [places[max(common)] for places in whole.values() if max(common) in places]


def _mechanism(
    index: results.Index, comparison: Comparison, trained_up_to: int
) -> dict[tuple[str, str], float]:
  """Returns the mean, over seeds and lengths beyond training, of each metric."""
  beyond = [n for n in comparison.lengths if n > trained_up_to]
  seeds = comparison.primary_differences
  means = {}
  for metric in MECHANISM:
    for arm in (comparison.control, comparison.treated):
      columns = [index.get((arm, metric, n), {}) for n in beyond]
      means[metric, arm] = float(np.mean(
          [column.get(seed, np.nan) for column in columns for seed in seeds] or [np.nan]
      ))
  return means
