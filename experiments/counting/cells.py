"""What is trained for the figures of counting. Runs without JAX."""

from collections.abc import Mapping
import itertools
import re
from typing import Any, NamedTuple

IDENTITY, NO_POSITIONS = 'identity', 'none'
MOST_LINES = 8  # of a figure


class Cell(NamedTuple):
  """One model, trained on one task."""

  task: str  # 'mean', 'length' or 'sum'
  counts: str  # 'fair' or 'uniform'
  train_length: int
  positions: str
  reparameterization: str

  @property
  def shifted(self) -> bool:
    """Whether f(y + 1) is trained on: a sum may be 0, where log and 1/√ are not."""
    return self.task == 'sum' and self.reparameterization != IDENTITY

  @property
  def experiment(self) -> str:
    """Of its rows in results.csv, such as length_10 or mean_uniform_10."""
    uniform = '_uniform' if self.counts == 'uniform' else ''
    return f'{self.task}{uniform}_{self.train_length}'

  @property
  def arm(self) -> str:
    """Of its rows, such as none or none+sqrt."""
    plain = self.reparameterization == IDENTITY
    return self.positions + ('' if plain else f'+{self.reparameterization}')


class FigureCells(NamedTuple):
  """The lines of a figure, which differ in one thing."""

  varied: str  # field of `Cell`
  cells: tuple[Cell, ...]

  @property
  def control(self) -> Cell | None:
    """The cell that the others are tested against, if there are both."""
    plain = {'positions': NO_POSITIONS, 'reparameterization': IDENTITY}
    if self.varied not in plain or len(self.cells) < 2:
      return None
    found = (c for c in self.cells if getattr(c, self.varied) == plain[self.varied])
    return next(found, None)


def read_figures(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, FigureCells]:
  """Returns what a configuration's field `figures` asks for.

  Raises:
    ValueError: if a figure varies more than one thing, has a value twice or more lines
      than can be told apart, or its name is no file's.
  """
  return {name: _read_figure(name, figure) for name, figure in figures.items()}


def _read_figure(name: str, figure: Mapping[str, Any]) -> FigureCells:
  axes = {'train_length': figure['train_lengths'], 'positions': figure['positions'],
          'reparameterization': figure['reparameterizations']}
  if not re.fullmatch(r'[A-Za-z0-9_-]+', name):
    raise ValueError(f'config.figures: a name has letters, digits, _ and -: {name!r}')
  several = [field for field, values in axes.items() if len(values) > 1]
  if len(several) > 1:
    raise ValueError(f'config.figures.{name} varies several things: {several}')
  for field, values in axes.items():
    if not values or len(set(values)) < len(values):
      raise ValueError(f'config.figures.{name}: {field} must be distinct: {values}')
    if len(values) > MOST_LINES:
      raise ValueError(f'config.figures.{name} has more than {MOST_LINES} lines: '
                       f'{len(values)}')
  cells = tuple(
      Cell(figure['task'], figure['counts'], *values)
      for values in itertools.product(*axes.values())
  )
  return FigureCells(several[0] if several else 'positions', cells)


def all_cells(figures: Mapping[str, FigureCells]) -> list[Cell]:
  """Returns all cells of all figures, each once."""
  return list(dict.fromkeys(cell for f in figures.values() for cell in f.cells))
