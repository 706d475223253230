"""Rows of what was measured of a checkpoint, by name. Runs without JAX.

A row's arm says of what it is: 'block' and 'sliding' windows of perplexity, with
'block/piece_i' and 'sliding/piece_i' of pieces of the text, 'block_T' by position in
windows of T tokens, 'offset_e' of misalignment, of Figure 1
'condition/reading/layer_i', of entropy and recency 'order/layer_i', and a head of
either with '/head_j' at its end. That of metric 'done' names a part that is complete.
"""

import re

import numpy as np

# (arm, metric, length) -> value
Values = dict[tuple[str, str, int | None], float]

CONDITIONS = {
    'random_nope': 'random tokens, no positions',
    'random': 'random tokens',
    'text': 'text',
}
READINGS = {'as_it_is': 'as it is', 'fixed': 'held fixed'}
ORDERS = {'text': 'text', 'shuffled': 'shuffled'}


def lengths_of(values: Values, arm: str, metric: str) -> list[int]:
  """Returns the lengths at which an arm has a metric, rising."""
  return sorted(n for a, m, n in values if (a, m) == (arm, metric) and n is not None)


def curve(values: Values, arm: str, metric: str) -> tuple[list[int], np.ndarray]:
  """Returns the lengths of a metric, and its values."""
  lengths = lengths_of(values, arm, metric)
  return lengths, np.array([values[arm, metric, n] for n in lengths])


def spread_arms(values: Values) -> list[tuple[str, str, int]]:
  """Returns condition, reading and layer of what Figure 1 has."""
  names = '|'.join(CONDITIONS), '|'.join(READINGS)
  found = [re.fullmatch(f'({names[0]})/({names[1]})/layer_(\\d+)', arm)
           for arm, metric, _ in values if metric == 'slope']
  arms = [(match[1], match[2], int(match[3])) for match in found if match]
  order = lambda arm: (arm[2], [*READINGS].index(arm[1]), [*CONDITIONS].index(arm[0]))
  return sorted(arms, key=order)


def heads_of(values: Values, arm: str) -> list[int]:
  """Returns the heads of an arm of Figure 1 that have curves of their own."""
  found = (re.fullmatch(rf'{re.escape(arm)}/head_(\d+)', name)
           for name, metric, _ in values if metric == 'slope')
  return sorted(int(match[1]) for match in found if match)


def offsets_of(values: Values) -> list[int]:
  """Returns the offsets at which misalignment was measured."""
  found = {arm for arm, metric, _ in values if metric == 'sce'}
  return sorted(int(arm.removeprefix('offset_')) for arm in found)


def components_of(values: Values) -> list[int]:
  """Returns the components that were kept one by one."""
  names = {metric for _, metric, _ in values if metric.startswith('std_component_')}
  return sorted(int(name.removeprefix('std_component_')) for name in names)


def layers_of(values: Values, metric: str) -> list[int]:
  """Returns the layers of which orders have a metric."""
  found = (re.fullmatch(r'(?:text|shuffled)/layer_(\d+)', arm)
           for arm, name, _ in values if name == metric)
  return sorted({int(match[1]) for match in found if match})
