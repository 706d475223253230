"""Finds rows of a checkpoint's measurements by their columns. Runs without JAX.

The columns experiment (a section of the config) and arm say what was measured:

  experiment        arm                  other columns
  perplexity        block or sliding     length: tokens of a window; piece of the text
  misalignment      text                 length; offset of the windows
  spread            one of SPREAD_ARMS   layer; head or component (Figure 1)
  entropy, recency  order of the tokens  layer, head
  tempered          text                 length: tokens of a window

The column distance is that of a token from the first one of its window, or of a key
from its query. Such a row has the mean from this distance up to the next one.
"""

import itertools
from typing import NamedTuple

from etils import epath
import numpy as np

from vvlen.reporting import results
from vvlen.reporting.results import Row


class Part(NamedTuple):
  """A part of the results, by columns of its rows; None stands for all of them."""

  experiment: str
  arm: str
  layer: int | None = None
  head: int | None = None
  offset: int | None = None
  component: int | None = None
  piece: int | None = None
  distance: int | None = None


class Name(NamedTuple):
  """What identifies a measurement; None stands for all layers or all lengths."""

  experiment: str
  arm: str
  layer: int | None = None
  length: int | None = None

  def __str__(self) -> str:
    layer = '' if self.layer is None else f', layer {self.layer}'
    length = '' if self.length is None else f', {self.length} tokens'
    return f'{self.experiment}, {self.arm}{layer}{length}'


# (part, metric, length) -> value
Values = dict[tuple[Part, str, int | None], float]

EXPERIMENTS = ('perplexity', 'misalignment', 'spread', 'entropy', 'recency', 'tempered')
BLOCK, SLIDING = Part('perplexity', 'block'), Part('perplexity', 'sliding')
TEMPERED = Part('tempered', 'text')
# Factors by which logits are multiplied beyond L -> in words.
LAWS = {
    'power_in_training': "each head's power of N, fitted up to L",
    'power': "each head's power of N",
    'power_of_log': "each head's power of log N",
    'log_n': 'log N for all heads',
    'power_of_others': "another head's power of N, a control",
    'inverse_log_n': '1 / log N for all heads, a control',
}
CONDITIONS = {
    'random_nope': 'random tokens, no positions',
    'random': 'random tokens',
    'text': 'text',
}
READINGS = {'as_it_is': 'as it is', 'fixed': 'held fixed'}  # of the last token
SPREAD_ARMS = {
    ('random_nope', 'as_it_is'): 'random_nope',
    ('random', 'as_it_is'): 'random',
    ('text', 'as_it_is'): 'text',
    ('random_nope', 'fixed'): 'random_nope_fixed',
    ('random', 'fixed'): 'random_fixed',
    ('text', 'fixed'): 'text_fixed',
}
ORDERS = {'text': 'text', 'shuffled': 'shuffled'}


def read_rows(folder: epath.PathLike) -> list[Row]:
  """Returns the rows in a folder's results.csv, none if there is no such file.

  Raises:
    ValueError: if the file is damaged, of an earlier version or of another study.
  """
  path = epath.Path(folder) / 'results.csv'
  rows = results.read_rows(path)
  for row in rows:
    if row.experiment not in EXPERIMENTS:
      raise ValueError(f'{path} has a row of an earlier version, whose results cannot '
                       f'be resumed or shown, or of another kind of run: {row.key}')
  return rows


def measurement_of(row: Row) -> Name:
  """Returns the measurement to which a row belongs."""
  return Name(
      row.experiment, row.arm,
      layer=row.layer if row.experiment == 'spread' else None,
      length=row.length if row.experiment in ('perplexity', 'misalignment') else None)


def key_of(row: Row) -> tuple[Part, str, int | None]:
  """Returns the key of a row in `Values`."""
  part = Part(*(getattr(row, name) for name in Part._fields))
  return part, row.metric, row.length


def lengths_of(values: Values, of: Part, metric: str) -> list[int]:
  """Returns the lengths at which a part has a metric, in ascending order."""
  return sorted(n for a, m, n in values if (a, m) == (of, metric) and n is not None)


def curve(values: Values, of: Part, metric: str) -> tuple[list[int], np.ndarray]:
  """Returns the lengths of a metric, and its values."""
  lengths = lengths_of(values, of, metric)
  return lengths, np.array([values[of, metric, n] for n in lengths])


def by_distance(
    values: Values, of: Part, metric: str, length: int
) -> tuple[list[int], np.ndarray]:
  """Returns the distances of a metric at one length, and its values."""
  distances = sorted(
      part.distance for part, m, n in values if (m, n) == (metric, length)
      and part.distance is not None and part._replace(distance=None) == of)
  found = [values[of._replace(distance=x), metric, length] for x in distances]
  return distances, np.array(found)


def parts_of(values: Values, metric: str) -> set[Part]:
  """Returns the parts that have a metric."""
  return {part for part, name, _ in values if name == metric}


def spread_part(condition: str, reading: str, layer: int, **others: int) -> Part:
  """Returns the part for one curve of Figure 1."""
  return Part('spread', SPREAD_ARMS[condition, reading], layer, **others)


def spread_arms(values: Values) -> list[tuple[str, str, int]]:
  """Returns (condition, reading, layer) for all curves of Figure 1."""
  found = parts_of(values, 'slope')
  return [(condition, reading, layer)
          for layer, reading, condition in itertools.product(
              layers_of(values, 'slope'), READINGS, CONDITIONS)
          if spread_part(condition, reading, layer) in found]


def heads_of(values: Values, of: Part, metric: str) -> list[int]:
  """Returns the heads that have the metric, of a part that is one layer of an arm."""
  return sorted({part.head for part in parts_of(values, metric)
                 if part.head is not None and part[:3] == of[:3]})


def offsets_of(values: Values) -> list[int]:
  """Returns the offsets at which misalignment was measured."""
  return sorted({part.offset for part in parts_of(values, 'sce')
                 if part.offset is not None})


def components_of(values: Values) -> list[int]:
  """Returns the components that are reported singly."""
  return sorted({part.component for part in parts_of(values, 'std')
                 if part.component is not None})


def layers_of(values: Values, metric: str) -> list[int]:
  """Returns the layers that have a metric."""
  return sorted({part.layer for part in parts_of(values, metric)
                 if part.layer is not None})
