"""The models behind the figures of counting. Runs without JAX."""

from collections.abc import Mapping
import itertools
import re
from typing import Any, NamedTuple

IDENTITY, NO_POSITIONS = 'identity', 'none'
MOST_LINES = 8  # in one figure


class Setup(NamedTuple):
  """One model, trained on one task."""

  task: str  # 'mean', 'length' or 'sum'
  counts: str  # 'fair' or 'uniform'
  train_length: int
  positions: str
  reparameterization: str

  @property
  def shifted(self) -> bool:
    """Whether the target is f(y + 1): a sum y may be 0, where log and 1/√ fail."""
    return self.task == 'sum' and self.reparameterization != IDENTITY

  @property
  def experiment(self) -> str:
    """The column experiment of its rows, such as length_10 or mean_uniform_10."""
    uniform = '_uniform' if self.counts == 'uniform' else ''
    return f'{self.task}{uniform}_{self.train_length}'

  @property
  def arm(self) -> str:
    """The column arm of its rows, such as none or none+sqrt."""
    plain = self.reparameterization == IDENTITY
    return self.positions + ('' if plain else f'+{self.reparameterization}')


class FigureSetups(NamedTuple):
  """The lines of a figure, which differ in one field."""

  varied: str  # the field of `Setup` in which they differ
  cells: tuple[Setup, ...]

  @property
  def control(self) -> Setup | None:
    """The cell that the others are tested against; None if there is no pair to test."""
    plain = {'positions': NO_POSITIONS, 'reparameterization': IDENTITY}
    if self.varied not in plain or len(self.cells) < 2:
      return None
    found = (c for c in self.cells if getattr(c, self.varied) == plain[self.varied])
    return next(found, None)


def read_figures(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, FigureSetups]:
  """Returns the figures of a configuration, from its field `figures`.

  Raises:
    ValueError: if a figure varies more than one field, has more lines than can be
      distinguished, or its name cannot be that of a file.
  """
  return {name: _read_figure(name, figure) for name, figure in figures.items()}


def _read_figure(name: str, figure: Mapping[str, Any]) -> FigureSetups:
  axes = {'train_length': figure['train_lengths'], 'positions': figure['positions'],
          'reparameterization': figure['reparameterizations']}
  if not re.fullmatch(r'[A-Za-z0-9_-]+', name):
    raise ValueError('config.figures: a name must consist of letters, digits, _ and '
                     f'-: {name!r}')
  several = [field for field, values in axes.items() if len(values) > 1]
  if len(several) > 1:
    raise ValueError(f'config.figures.{name} must vary only one field: {several}')
  for values in axes.values():
    if len(values) > MOST_LINES:
      raise ValueError(f'config.figures.{name} has more than {MOST_LINES} lines: '
                       f'{len(values)}')
  cells = tuple(
      Setup(figure['task'], figure['counts'], *values)
      for values in itertools.product(*axes.values())
  )
  return FigureSetups(several[0] if several else 'positions', cells)


def all_cells(figures: Mapping[str, FigureSetups]) -> list[Setup]:
  """Returns all cells of all figures, each once."""
  return list(dict.fromkeys(cell for f in figures.values() for cell in f.cells))
