"""What simulations of recency bias have found, in sentences. Runs without JAX."""

from collections.abc import Sequence
import math

import numpy as np

from vvlen.reporting.tables import Record


def answer(records: Sequence[Record]) -> list[str]:
  """Says how recency probabilities compare with one half and with the paper.

  Args:
    records: of the table `recency_probability`.
  """
  said = []
  last = max((r['layer'] for r in records), default=0)
  widths = sorted({r['width'] for r in records})
  deep = {r['setting']: r for r in records
          if r['layer'] == last and r['width'] == widths[0]}
  if deep:
    shown = '; '.join(f'{r["recency_probability"]:.3f} for {name}'
                      for name, r in deep.items())
    said.append(
        'Recency probability (0.5: no order, more: recent tokens are favoured) in '
        f'layer {last}, d = {widths[0]}: {shown}.')
  known = np.array([r['difference_in_errors'] for r in records
                    if not math.isnan(r['difference_in_errors'])])
  if known.size:
    said.append(
        f'Of {known.size} recency probabilities that the paper prints, '
        f'{(known <= 2).sum()} are met within two standard errors; the farthest is '
        f'{known.max():.1f} away.')
  return said
