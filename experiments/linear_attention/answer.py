"""What a run of linear attention has found, in sentences. Runs without JAX."""

from collections.abc import Sequence

from vvlen.reporting.numbers import number
from vvlen.reporting.tables import Record

_NEAR = 0.01  # of an entry of a table to that of least squares


def answer(optimum: Sequence[Record], errata: Sequence[Record]) -> list[str]:
  """Says whether training finds the optimum, and whether it is the paper's.

  Args:
    optimum: the records of the table `optimum`.
    errata: those of the table `errata`.
  """
  trained = [r for r in optimum if r['table'] == 'trained']
  near = [r for r in trained if r['largest_difference'] <= _NEAR]
  said = []
  if trained:
    worst = max(r['largest_difference'] for r in trained)
    said.append(
        'Gradient descent finds the optimum of least squares, to within '
        f'{_NEAR:g} of each entry, in {len(near)} of {len(trained)} settings; the '
        f'farthest is off by {number(worst, ".1e")}.')
  losses = [r for r in errata if r['quantity'] == 'least training loss']
  if losses:
    worse = sum(r['paper'] > 1.001 * r['all_strings'] for r in losses)
    said.append(
        "The paper's single number Γ has a larger training loss than the optimum in "
        f'{worse} of {len(losses)} settings of length and sum.')
  return said
