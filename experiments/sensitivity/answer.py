"""What a grid has found, in sentences. Runs without JAX."""

from collections.abc import Mapping, Sequence
import math

from experiments.sensitivity.cells import Cell, CellSetting, in_words
from vvlen.reporting.endpoints import LEARNED, TREATED
from vvlen.reporting.numbers import counted, number


def answer(
    cells: Sequence[Cell], settings: Mapping[str, CellSetting]
) -> list[str]:
  """Says how the gain of LN varies over the cells that are tested together.

  Args:
    cells: of the grid.
    settings: {name of a cell: setting}.
  """
  cells = [cell for cell in cells if cell.comparison.treated == TREATED]
  family = [cell for cell in cells if cell.in_family and cell.comparison.primary]
  if not family:
    words = ('No verdict: in no cell have two seeds of both arms learned the training '
             'lengths yet.')
    # Where every seed of an arm diverged, its median is nan.
    known = [min(cell.training_accuracy) for cell in cells
             if not any(map(math.isnan, cell.training_accuracy))]
    if known:
      words += (f' Right there is at most {100 * max(known):.0f} % of both arms '
                f'(medians of seeds; {100 * LEARNED:.0f} % is needed).')
    return [words]
  gain = lambda cell: cell.comparison.primary.mean_difference
  low, high = min(family, key=gain), max(family, key=gain)
  at = ', '.join(f'{step:,}' for step in sorted({cell.step for cell in family}))
  found = [cell for cell in family if cell.found]
  ahead = sum(gain(cell) > 0 for cell in found)
  least, most = (number(gain(cell), '+.1f') for cell in (low, high))
  where = [in_words(settings, cell.name) for cell in (low, high)]
  count = counted(len(family), 'setting')
  worst = min(min(cell.training_accuracy) for cell in family)
  out = {cell.name for cell in cells if not cell.learned and cell.step in {
      member.step for member in family}}
  others = (f'; {", ".join(in_words(settings, name) for name in sorted(out))} '
            f'{"was" if len(out) == 1 else "were"} not learned' if out else '')
  return [
      f'LayerNorm after attention, after {at} steps: from {least} points beyond the '
      f'training lengths ({where[0]}) to {most} ({where[1]}), in {count}.',
      f'With p corrected over the settings by Holm, LN is ahead in {ahead} and behind '
      f'in {len(found) - ahead}. In the other {len(family) - len(found)} no difference '
      'was found, which depends on their spread as well: the table has the smallest '
      'difference that each would detect.',
      f'At the training lengths both arms are right in {100 * worst:.0f} % or more in '
      f'each of these (medians of seeds; {100 * LEARNED:.0f} % is needed){others}.']
