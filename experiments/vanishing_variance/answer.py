"""What a family of runs has found, in sentences. Runs without JAX."""

import collections
from collections.abc import Sequence
import math

from vvlen.reporting.endpoints import LEARNED
from vvlen.reporting.numbers import counted, from_to, number
from vvlen.reporting.tables import Record

NOT_RUN = 'not run'


def answer(records: Sequence[Record]) -> list[str]:
  """Says what was found without and with weight decay, then in each setting.

  Args:
    records: of the table `verdicts`.
  """
  done = [r for r in records if not math.isnan(r['p'])]
  left = [r for r in records if math.isnan(r['p'])]
  are = 'is' if len(left) == 1 else 'are'
  waiting = f' {len(left)} of {len(records)} settings {are} without a verdict.'
  said = []
  if done:
    groups = [_group([r for r in done if bool(r['l2']) == decays], decays)
              for decays in (False, True)]
    said = [
        'LN − Baseline, accuracy beyond the training lengths: '
        f'{"; ".join(filter(None, groups))}.{waiting if left else ""}',
        _of_training(done),
    ]
  said += [
      f'{r["setting"]}, {r["steps"]:,} steps: {r["verdict"]}, '
      f'{number(r["difference"], "+.1f")} points '
      f'[corrected: {number(r["ci_low"], "+.1f")}, {number(r["ci_high"], "+.1f")}], '
      f'{r["seeds"]} pairs of seeds.' for r in done
  ]
  begun = [f'{r["setting"]}, {r["steps"]:,} steps ({r["verdict"]})' for r in left
           if r['verdict'] != NOT_RUN]
  others = len(left) - len(begun)
  are = 'are' if others > 1 else 'is'
  begun += [f'{others} of {len(records)} settings, which {are} not run'] * bool(others)
  if begun:
    said.append(f'No verdict: {"; ".join(begun)}.')
  return said


def _group(records: Sequence[Record], decays: bool) -> str:
  """Says what was found in settings that have a verdict, '' if there are none."""
  if not records:
    return ''
  counts = collections.Counter(r['verdict'] for r in records)
  parts = [f'{verdict} in {count}' for verdict, count in counts.items()]
  return (f'{from_to([r["difference"] for r in records], "+.1f")} points in '
          f'{counted(len(records), "setting")} {"with" if decays else "without"} '
          f'weight decay ({", ".join(parts)})')


def _of_training(records: Sequence[Record]) -> str:
  worst = min(r[f'training_accuracy_{arm}'] for r in records
              for arm in ('control', 'treated'))
  return (f'In each of these both arms learned the training lengths: right in '
          f'{worst:.0f} % or more (medians of seeds; {100 * LEARNED:.0f} % is needed).')
