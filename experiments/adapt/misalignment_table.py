"""The table of misalignment on all scales. Runs without JAX."""

from collections.abc import Sequence
import math
from typing import Any

from experiments.harness.scales import SCALES
from experiments.language_model.arms import endpoint, Family, Run
from experiments.language_model.figures import label, times
from experiments.language_model.tables import interval, seeds_of
from vvlen.reporting.results import Index
from vvlen.reporting.tables import interval_fields, Table
from vvlen.statistics import mean_interval

_SHOWN = ('sce', 'symmetric_kl', 'kl_first_second', 'kl_second_first', 'js',
          'entropy_first', 'entropy_second', 'top1_agreement')


def misalignment(families: Sequence[Family], run: Run, index: Index) -> Table:
  """Makes the table of how predictions from two windows differ, a row for each arm.

  Args:
    families: those with results.
    run: the run.
    index: of its rows.
  """
  at = endpoint(run)
  arms = [(family, arm) for family in families
          for arm in (family.control, *family.others)]
  records: list[dict[str, Any]] = []
  for family, arm in arms:
    record: dict[str, Any] = {
        'arm': arm.name, 'label': f'{family.title}, {label(arm)}', 'length': at}
    for scale in _SHOWN:
      values = [*index.get((arm.name, scale, at), {}).values()] or [math.nan]
      record |= interval_fields(scale, mean_interval(values))
    records.append(record)
  columns: dict[str, Any] = {'arm': lambda r: r['label']}
  for scale in _SHOWN:
    columns[f'{SCALES[scale]} [95 %]'] = interval(scale, '.4f')
  place = times(at // run.length)
  short = ('arm', *(f'{SCALES[x]} [95 %]' for x in ('sce', 'symmetric_kl')))
  note = (f'{seeds_of([arm for _, arm in arms], run, index)}. Two windows of {place}, '
          f'{at} tokens, as means over offsets and seeds, in nats but for top-1 '
          'agreement, the share of rows with the same likeliest token.')
  more = (
      'Long is the window in which the compared token has the longer context. SCE, the '
      'symmetric cross-entropy, is the sum of both entropies and the symmetric KL. '
      'Other lengths are in results.csv, two of the scales in the table by length of '
      'each method.')
  return Table('misalignment', f'Misalignment at {place}', columns, records, note,
               short, more=more)
