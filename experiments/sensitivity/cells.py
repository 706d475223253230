"""Compares an arm with the Baseline in each cell of a grid; tests cells together.

The column experiment holds the name of the cell. Runs without JAX.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vvlen.reporting import results
from vvlen.reporting.endpoints import (
    change,
    compare,
    Comparison,
    CONTROL,
    LEARNED,
    median_accuracy,
    TREATED,
)
from vvlen.statistics import (
  by_holm,
  Correlation,
  detectable,
  detectable_together,
  PairedTest,
  rank_correlation,
)

# Metrics that may explain a gain.
MECHANISM = ('target_weight', 'output_norm', 'input_distance')
# Metrics whose rows are written: all of a large grid would be a hundred megabytes.
KEPT = ('accuracy', 'training_accuracy', 'training_loss', *MECHANISM)


class CellSetting(NamedTuple):
  """What tests and figures need to know about a cell."""

  task: str = ''
  trained_up_to: int = 16  # the longest training length
  against: str | None = 'base'  # the cell with whose gain its gain is compared
  words: str = ''  # what it changes in base, for figures


def in_words(settings: Mapping[str, CellSetting], name: str) -> str:
  """Returns the setting of a cell in words, with its task if that is not base's."""
  setting = settings.get(name, CellSetting())
  same = setting.task == settings.get('base', setting).task
  return f'{setting.task}, ' * (not same) + (setting.words or name)


class Cell(NamedTuple):
  """One arm compared with the Baseline, in one setting after `step` steps."""

  name: str
  step: int
  comparison: Comparison
  # Its gain − that of `CellSetting.against` at this step, beyond both training lengths.
  change: PairedTest | None
  mechanism: dict[tuple[str, str], float]  # (metric, arm) -> mean beyond training
  # metric -> correlation over seeds of its change by the arm with the gain
  explained: dict[str, Correlation]
  training_accuracy: tuple[float, float]  # medians over seeds: control, treated
  in_family: bool  # whether it is one of the tests that are corrected together
  detectable: float  # smallest detectable difference, at the level in the family
  detectable_change: float
  # The same tests with p corrected by Holm over the family, intervals at Holm's level.
  holm: PairedTest | None = None
  holm_change: PairedTest | None = None

  @property
  def learned(self) -> bool:
    """Whether both arms have learned the training lengths."""
    return all(accuracy >= LEARNED for accuracy in self.training_accuracy)

  @property
  def found(self) -> bool:
    """Whether the difference is significant: p < .05 by Holm over the family."""
    return self.holm is not None and self.holm.p < 0.05


def read_cells(
    indices: Mapping[tuple[str, int], results.Index],
    settings: Mapping[str, CellSetting],
    treated: str = TREATED,
    family: Collection[tuple[str, int]] | None = None,
) -> list[Cell]:
  """Compares an arm with the Baseline in each cell, at each step.

  Args:
    indices: of all cells, from `results.index_cells`.
    settings: {name: setting} of the cells; `CellSetting()` for names that it lacks.
    treated: the arm.
    family: the (name, step) that are tested together, with p-values corrected by
      Holm; None for all cells at the last step that they share.

  Returns:
    Cells sorted by name, 'base' first, and by step.
  """
  indices = {
      key: indices[key] for key in sorted(indices, key=lambda k: (k[0] != 'base', k))
      if all((arm, 'training_loss', None) in indices[key] for arm in (treated, CONTROL))
  }
  cells = [_read_cell(indices, settings, name, step, treated) for name, step in indices]
  if family is None:
    members = _family(cells)
  else:
    members = [i for i, cell in enumerate(cells) if cell[:2] in family]
  return _correct(cells, members)


def _read_cell(
    indices: Mapping[tuple[str, int], results.Index],
    settings: Mapping[str, CellSetting], name: str, step: int, treated: str,
) -> Cell:
  """Compares an arm with the Baseline in one cell at a step, not yet as one of many."""
  index, setting = indices[name, step], settings.get(name, CellSetting())
  comparison = compare(index, treated, CONTROL, trained_up_to=setting.trained_up_to)
  other, changed = setting.against, None
  if other and other != name and (other, step) in indices:
    beyond = max(
        setting.trained_up_to, settings.get(other, CellSetting()).trained_up_to)
    changed = change(*(
        compare(i, treated, CONTROL, trained_up_to=beyond)
        for i in (index, indices[other, step])
    ))
  control_learned, treated_learned = (
      median_accuracy(index.get((arm, 'training_accuracy', None), {}))
      for arm in (CONTROL, treated)
  )
  means, explained = _mechanism(index, comparison, setting.trained_up_to)
  return Cell(
      name, step, comparison, changed, means, explained,
      (control_learned, treated_learned), in_family=False,
      detectable=detectable(comparison.primary),
      detectable_change=detectable(changed),
  )


def _correct(cells: Sequence[Cell], members: Sequence[int]) -> list[Cell]:
  """Returns the cells, of which the members are tested as one family."""
  tests = [cells[i].comparison.primary for i in members]
  changes = [cells[i].change for i in members]
  corrected_cells = [*cells]
  for i, test, found, change_, found_change in zip(
      members, by_holm(tests), detectable_together(tests), by_holm(changes),
      detectable_together(changes), strict=True
  ):
    corrected_cells[i] = cells[i]._replace(
        in_family=True, holm=test, detectable=found, holm_change=change_,
        detectable_change=found_change,
    )
  return corrected_cells


def _family(cells: Sequence[Cell]) -> list[int]:
  """Returns which cells are tested together: all cells at the last step they share.

  Cells that have fewer seeds than others at every step are left out, and so are those
  that one of the arms has not learned. If cells share no step, each is tested at its
  own last one.
  """
  if not cells:
    return []
  seeds = [len(c.comparison.primary_differences) + len(c.comparison.left_out)
           for c in cells]
  whole: dict[str, dict[int, int]] = {}
  for i, cell in enumerate(cells):
    if seeds[i] == max(seeds):
      whole.setdefault(cell.name, {})[cell.step] = i
  common = set.intersection(*map(set, whole.values()))
  if common:
    step = max(common)
    members = [places[step] for places in whole.values() if step in places]
  else:
    members = [places[max(places)] for places in whole.values()]
  return [i for i in members if cells[i].learned]


def _mechanism(
    index: results.Index, comparison: Comparison, trained_up_to: int
) -> tuple[dict[tuple[str, str], float], dict[str, Correlation]]:
  """Returns each metric's mean beyond training, and its correlation with the gain."""
  beyond = [n for n in comparison.lengths if n > trained_up_to]
  gains = comparison.primary_differences
  arms = (comparison.treated, comparison.control)
  means: dict[tuple[str, str], float] = {}
  explained = {}
  for metric in MECHANISM:
    by_seed = [
        [np.mean([index.get((arm, metric, n), {}).get(s, np.nan) for n in beyond])
         for s in gains]
        for arm in arms
    ]
    means |= {
        (metric, arm): float(np.mean(values)) if values else np.nan
        for arm, values in zip(arms, by_seed, strict=True)
    }
    treated, control = np.array(by_seed)
    # The scale of the norm differs between seeds, so its ratio is compared.
    changed = treated / control if metric == 'output_norm' else treated - control
    explained[metric] = rank_correlation(changed, list(gains.values()))
  return means, explained
