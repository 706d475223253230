"""The table of what the paper has on the term. Runs without JAX."""

import math
from typing import Any

from experiments.language_model import paper
from vvlen.reporting.tables import number_cell, Table


def published() -> Table:
  """Makes the table of the paper's own results on the term, a row for each setting."""
  records = []
  for setting, by_alpha in paper.ALPHA.items():
    control, same_time = by_alpha['0'][-1], paper.EQUAL_TIME[setting][-1]
    treated = by_alpha['0.1'][-1]
    records.append({
        'setting': setting, 'control': control, 'treated': treated,
        'difference': math.log(treated / control), 'same_time': same_time,
        'same_time_difference': math.log(same_time / control)})
  columns: dict[str, Any] = {
      'setting': lambda r: r['setting'],
      'α = 0': number_cell('control', '.2f'),
      'α = 0.1': number_cell('treated', '.2f'),
      'Δ log perplexity': number_cell('difference', '+.4f'),
      'α = 0.1, 190 steps': number_cell('same_time', '.2f'),
      'Δ log perplexity, 190 steps': number_cell('same_time_difference', '+.4f'),
  }
  note = (
      'arXiv 2506.11769, Tables 2, 3, 6, 9 and 10: Llama-2-7B, perplexity after 200 '
      'steps, and after 190, which with the term take as long. Single runs, so without '
      'intervals. All are measured at 8,192 tokens: 2 L of CLEX, L of the others.')
  return Table('paper', 'What the paper prints', columns, records, note)
