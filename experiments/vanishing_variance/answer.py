"""What a family of runs has found, in sentences. Runs without JAX."""

from collections.abc import Sequence
import math

from vvlen.reporting.tables import number, Record

NOT_RUN = 'not run'


def answer(records: Sequence[Record]) -> list[str]:
  """Says the verdict on each cell, those that are finished first.

  Args:
    records: of the table `verdicts`.
  """
  done = [r for r in records if not math.isnan(r['p'])]
  said = [
      f'{r["setting"]}, {r["steps"]:,} steps: {r["verdict"]}, '
      f'{number(r["difference"], "+.1f")} points '
      f'[corrected: {number(r["ci_low"], "+.1f")}, {number(r["ci_high"], "+.1f")}], '
      f'{r["seeds"]} pairs of seeds.' for r in done
  ]
  left = [r for r in records if math.isnan(r['p'])]
  begun = [f'{r["setting"]}, {r["steps"]:,} steps ({r["verdict"]})' for r in left
           if r['verdict'] != NOT_RUN]
  others = len(left) - len(begun)
  are = 'are' if others > 1 else 'is'
  begun += [f'{others} of {len(records)} settings, which {are} not run'] * bool(others)
  if begun:
    said.append(f'No verdict yet: {"; ".join(begun)}.')
  return said
