"""Finds rows of a checkpoint's measurements by their arms. Runs without JAX.

The arm of a row names what was measured:

  block, sliding             perplexity in blocks and sliding windows
  block/piece_i, sliding/…   the same in single pieces of the text
  block_T                    loss by position in windows of T tokens
  misalignment               at the row's offset
  condition/reading          Figure 1, of the row's layer, and its head or component
  order of the tokens        entropy and recency, of the row's layer and head

Rows of the metric 'done' have the name of a finished measurement as their arm.
"""

import itertools
from typing import NamedTuple

import numpy as np

from vvlen.reporting.results import Row


class Part(NamedTuple):
  """A part of an arm, by columns of its rows; None stands for all of them."""

  arm: str
  layer: int | None = None
  head: int | None = None
  offset: int | None = None
  component: int | None = None


# (arm or part of an arm, metric, length) -> value
Values = dict[tuple[str | Part, str, int | None], float]

CONDITIONS = {
    'random_nope': 'random tokens, no positions',
    'random': 'random tokens',
    'text': 'text',
}
READINGS = {'as_it_is': 'as it is', 'fixed': 'held fixed'}
ORDERS = {'text': 'text', 'shuffled': 'shuffled'}


def measurement_of(row: Row) -> str:
  """Returns the name of the measurement that computed a row."""
  if row.metric == 'done':
    return row.arm
  arm, _, reading = row.arm.partition('/')
  if arm in CONDITIONS and reading in READINGS:
    return f'spread, {arm}, {reading}, layer {row.layer}'
  if arm in ORDERS:
    entropy = row.metric.startswith(('entropy', 'num_sequences'))
    return f'{"entropy" if entropy else "recency"}, {arm}'
  windows, _, length = arm.partition('_')
  name = {'block': 'blocks of', 'sliding': 'sliding windows of',
          'misalignment': 'misalignment at'}.get(windows, windows)
  return f'{name} {length or row.length}'


def key_of(row: Row) -> tuple[str | Part, str, int | None]:
  """Returns the key of a row in `Values`."""
  part = Part(row.arm, row.layer, row.head, row.offset, row.component)
  return row.arm if part == Part(row.arm) else part, row.metric, row.length


def lengths_of(values: Values, of: str | Part, metric: str) -> list[int]:
  """Returns the lengths at which an arm or part has a metric, in ascending order."""
  return sorted(n for a, m, n in values if (a, m) == (of, metric) and n is not None)


def curve(values: Values, of: str | Part, metric: str) -> tuple[list[int], np.ndarray]:
  """Returns the lengths of a metric, and its values."""
  lengths = lengths_of(values, of, metric)
  return lengths, np.array([values[of, metric, n] for n in lengths])


def parts_of(values: Values, metric: str) -> set[Part]:
  """Returns the parts of arms that have a metric."""
  return {part for part, name, _ in values if name == metric and isinstance(part, Part)}


def spread_part(condition: str, reading: str, layer: int, **others: int) -> Part:
  """Returns the part for one curve of Figure 1."""
  return Part(f'{condition}/{reading}', layer, **others)


def spread_arms(values: Values) -> list[tuple[str, str, int]]:
  """Returns (condition, reading, layer) for all curves of Figure 1."""
  found = parts_of(values, 'slope')
  layers = sorted({part.layer for part in found if part.layer is not None})
  return [(condition, reading, layer)
          for layer, reading, condition in itertools.product(
              layers, READINGS, CONDITIONS)
          if spread_part(condition, reading, layer) in found]


def heads_of(values: Values, of: Part, metric: str) -> list[int]:
  """Returns the heads that have the metric, of a part that is one layer of an arm."""
  return sorted(part.head for part in parts_of(values, metric)
                if part.head is not None and part._replace(head=None) == of)


def offsets_of(values: Values) -> list[int]:
  """Returns the offsets at which misalignment was measured."""
  return sorted({part.offset for part in parts_of(values, 'sce')
                 if part.offset is not None})


def components_of(values: Values) -> list[int]:
  """Returns the components that are reported singly."""
  return sorted({part.component for part in parts_of(values, 'std')
                 if part.component is not None})


def layers_of(values: Values, metric: str) -> list[int]:
  """Returns the layers that have a metric for text or for shuffled text."""
  return sorted({part.layer for part in parts_of(values, metric)
                 if part.layer is not None and part.arm in ORDERS})
