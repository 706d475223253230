"""After which steps arms are measured, and the table of it. Runs without JAX."""

from collections.abc import Mapping, Sequence
import itertools
import math
from typing import Any

import numpy as np

from experiments.adapt.tables import left_out
from experiments.language_model.arms import Family, Run
from experiments.language_model.figures import label, times
from experiments.language_model.tables import interval, seeds_of
from vvlen.reporting.results import Index
from vvlen.reporting.tables import interval_fields, Table
from vvlen.statistics import mean_interval


def measured_steps(config: Mapping[str, Any], share: float) -> dict[int, int]:
  """Returns after which of its steps an arm is measured.

  All arms are measured after the same shares of their steps, so that an arm of 190
  steps has been trained for 0.95 of the steps of one of 200 at each comparison.

  Args:
    config: as in configs/adapt.py.
    share: the steps of the arm, as a share of train.num_steps.

  Returns:
    {step of an arm with share 1: step of this arm, rounded down, but for the last,
    which is rounded to the nearest}.
  """
  every = int(config['evaluate']['every_steps'])
  last = int(config['train']['num_steps'])
  # In floating point 0.29 * 100 is below 29.
  found = {step: math.floor(round(step * share, 6))
           for step in range(every, last, every)}
  return found | {last: max(1, round(share * last))}


def steps(
    families: Sequence[Family], run: Run, index: Index, config: Mapping[str, Any],
    evaluations: Sequence[Mapping[str, Any]],
) -> Table | None:
  """Makes the table of perplexity after each measured step, by length and arm.

  Args:
    families: those with results.
    run: the run.
    index: of its rows; seeds without rows are left out, as in other tables.
    config: of the run.
    evaluations: lines of evaluations.jsonl.

  Returns:
    The table; None if no arm was measured after more than one step.
  """
  lengths = [multiple * run.length for multiple in run.multiples]
  measured = {
      (line['arm'], line['first_seed'], line['step'], at): line[f'nll_{at}'][0]
      for line in evaluations for at in lengths if f'nll_{at}' in line}
  losses: dict[Any, dict[int, float]] = {}  # an index, by (length, step)
  arms = [(family, arm) for family in families
          for arm in (family.control, *family.others)]
  records: list[dict[str, Any]] = []
  shown: set[int] = set()
  for at, (family, arm) in itertools.product(lengths, arms):
    record: dict[str, Any] = {
        'length': at, 'arm': arm.name, 'label': f'{family.title}, {label(arm)}'}
    for step, made in measured_steps(config, arm.steps).items():
      # In the file, None stands for a number that is not finite.
      found = {seed: float(np.float64(measured[arm.name, seed, made, at]))
               for seed in index.get((arm.name, 'nll', at), {})
               if (arm.name, seed, made, at) in measured}
      losses[arm.name, 'nll', (at, step)] = found
      shown |= {step} if found else set()
      record |= {f'steps_{step}': made} | interval_fields(
          f'ppl_{step}', np.exp(mean_interval([*found.values()] or [math.nan])))
    records.append(record)
  if len(shown) < 2:
    return None
  columns: dict[str, Any] = {
      'length': lambda r: times(r['length'] // run.length),
      'arm': lambda r: r['label']}
  for step in sorted(shown):
    columns[f'{step} steps [95 %]'] = interval(f'ppl_{step}', '.2f')
  others = sorted({arm.steps for _, arm in arms} - {1})
  shares = '; '.join('{:g} of the steps: {}'.format(share, ', '.join(
      str(made) for step, made in measured_steps(config, share).items()
      if step in shown)) for share in others)
  note = (f'{seeds_of([arm for _, arm in arms], run, index)}; L = {run.length} tokens. '
          'Perplexity in blocks of each length, after these steps of fine-tuning'
          + (f'; {shares}' if shares else '') + '.'
          + left_out(arms, losses, 'nll', [*itertools.product(lengths, shown)]))
  short = ('length', 'arm', *list(columns)[-2:])
  return Table('steps', 'Perplexity after each number of steps', columns, records, note,
               short)
