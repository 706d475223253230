"""What a grid has found, in sentences. Runs without JAX."""

from collections.abc import Mapping, Sequence

from experiments.sensitivity.cells import Cell, in_words, Setting
from vvlen.reporting.endpoints import TREATED
from vvlen.reporting.tables import counted, number


def answer(
    cells: Sequence[Cell], settings: Mapping[str, Setting]
) -> list[str]:
  """Says how the gain of LN varies over the cells that are tested together.

  Args:
    cells: of the grid.
    settings: {name of a cell: setting}.
  """
  family = [c for c in cells if c.in_family and c.comparison.treated == TREATED
            and c.comparison.primary is not None]
  if not family:
    return ['No verdict: no cell with two seeds has learned the training lengths yet.']
  gain = lambda cell: cell.comparison.primary.mean_difference
  low, high = min(family, key=gain), max(family, key=gain)
  at = ', '.join(f'{step:,}' for step in sorted({cell.step for cell in family}))
  found = [cell for cell in family if cell.found]
  ahead = sum(gain(cell) > 0 for cell in found)
  least, most = (number(gain(cell), '+.1f') for cell in (low, high))
  where = [in_words(settings, cell.name) for cell in (low, high)]
  count = counted(len(family), 'setting')
  return [
      f'LayerNorm after attention, after {at} steps: from {least} points beyond the '
      f'training lengths ({where[0]}) to {most} ({where[1]}), in {count}.',
      f'With p corrected over the settings by Holm, LN is ahead in {ahead} and behind '
      f'in {len(found) - ahead}. In the other {len(family) - len(found)} no difference '
      'was found, which depends on their spread as well: the table has the smallest '
      'difference that each would detect.']
