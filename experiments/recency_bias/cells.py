"""What is simulated for each figure of recency bias, and what is kept of it.

Runs without JAX. A cell is one simulation; cells of a group make one figure.
"""

from collections.abc import Iterator, Mapping
import io
from typing import Any, NamedTuple
import zipfile

from etils import epath
import numpy as np

from vvlen.reporting import results

# The rows of Figure 1: anisotropy, LayerNorm, residual.
ROWS = ((0.0, False, 0.0), (0.0, True, 0.0), (0.5, True, 0.0), (0.5, True, 1.0))
# Groups that are the paper's. More simulations may be added to them later.
PAPER = ('figure_1', 'figure_3', 'figure_4', 'panels')
GROUPS = (*PAPER, 'depth', 'norms', 'heads', 'positions', 'map')
# layer of `vvlen.models` -> what it is called
POSITIONS = {
    'causal': 'mask',
    'unmasked': 'neither',
    'rotary': 'mask and rotary positions',
    'rotary_unmasked': 'rotary positions',
}


class Cell(NamedTuple):
  """One simulation."""

  group: str
  name: str
  num_simulations: int
  width: int
  num_tokens: int
  num_layers: int
  anisotropy: float
  residual: float = 0.0
  layer_norm: bool = True
  layer: str = 'causal'  # or 'heads', 'rms_norm', or of POSITIONS
  num_heads: int = 1
  tied: bool = True  # of heads: queries and keys have one projection
  sampler: str = 'direct'
  # Deep, long or very anisotropic, tokens end up closer than float32 tells apart.
  dtype: str = 'float64'


class Simulated(NamedTuple):
  """A cell and what was found."""

  cell: Cell
  numbers: Mapping[str, float]  # metric -> value, of results.csv
  arrays: Mapping[str, np.ndarray]

  def by_layer(self, metric: str) -> np.ndarray:
    """Returns a metric [layers]."""
    layers = range(1, self.cell.num_layers + 1)
    return np.array([self.numbers[f'{metric}_layer_{layer}'] for layer in layers])


def make_cells(config: Mapping[str, Any]) -> list[Cell]:
  """Returns the cells of a configuration (`configs/recency_bias.py`), in order."""
  return [
      Cell(group, name, **{**_common(config), **settings})
      for group, name, settings in _settings(config)
  ]


def _common(config: Mapping[str, Any]) -> dict[str, Any]:
  names = ('num_simulations', 'num_tokens', 'width', 'num_layers', 'anisotropy')
  return {name: config[name] for name in names}


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
  """Yields group, name, and the fields that are not the configuration's own."""
  rows = [
      (row_name(*row), dict(zip(('anisotropy', 'layer_norm', 'residual'), row,
                                strict=True)))
      for row in ROWS
  ]
  paper = {'sampler': 'reduced', 'dtype': 'float32'}
  for name, row in rows:
    yield 'figure_1', name, {**row, **paper}
  for group, residual in (('figure_3', 0.0), ('figure_4', 1.0)):
    for alpha in config['anisotropies']:
      if alpha or residual:
        yield group, row_name(alpha, True, residual), {
            **paper, 'anisotropy': alpha, 'residual': residual}
  panels = config['panels']
  for width in panels['widths']:
    for name, row in rows:
      yield 'panels', f'd{width}_{name}', {
          **row, **paper, 'width': width,
          'num_simulations': panels['num_simulations']}
  depth = config['depth']
  for n, count in zip(depth['num_tokens'], depth['num_simulations'], strict=True):
    for residual in (0.0, 1.0):
      yield 'depth', f'n{n}_c{residual:g}', {
          'num_tokens': n, 'num_simulations': count, 'residual': residual,
          'num_layers': depth['num_layers']}
  norms = config['norms']
  for width in norms['widths']:
    for residual in (0.0, 1.0):
      for layer in ('causal', 'rms_norm'):
        yield 'norms', f'd{width}_{layer}_c{residual:g}', {
            'width': width, 'residual': residual, 'layer': layer,
            'num_simulations': norms['num_simulations']}
  heads = config['heads']
  for tied in (True, False):
    for num_heads in heads['num_heads']:
      yield 'heads', f'h{num_heads}_{"tied" if tied else "apart"}', {
          'layer': 'heads', 'num_heads': num_heads, 'tied': tied,
          'num_simulations': heads['num_simulations']}
  positions = config['positions']
  for alpha in positions['anisotropies']:
    for layer in POSITIONS:
      yield 'positions', f'{layer}_a{alpha:g}', {
          'layer': layer, 'anisotropy': alpha, 'num_tokens': positions['num_tokens'],
          'num_simulations': positions['num_simulations']}
  grid = config['map']
  for width in grid['widths']:
    for alpha in grid['anisotropies']:
      yield 'map', f'd{width}_a{alpha:g}', {
          'width': width, 'anisotropy': alpha, 'sampler': 'reduced',
          'num_simulations': grid['num_simulations']}


def row_name(anisotropy: float, layer_norm: bool, residual: float) -> str:
  """Returns such as 'LN_a0.5_c1'."""
  return f'{"LN" if layer_norm else "noLN"}_a{anisotropy:g}_c{residual:g}'


def path_of(folder: epath.PathLike, cell: Cell) -> epath.Path:
  """Returns where the arrays of a cell are."""
  return epath.Path(folder) / 'simulations' / f'{cell.group}_{cell.name}.npz'


def write_arrays(path: epath.PathLike, arrays: Mapping[str, Any]) -> None:
  """Writes arrays, or leaves the file as it was."""
  buffer = io.BytesIO()
  np.savez_compressed(buffer, **arrays)
  results.write_bytes(path, buffer.getvalue())


def read_arrays(path: epath.PathLike) -> dict[str, np.ndarray]:
  """Reads arrays; no file, nothing.

  Raises:
    ValueError: if the file is damaged.
  """
  path = epath.Path(path)
  if not path.exists():
    return {}
  try:
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
      return dict(arrays)
  except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
    raise ValueError(f'{path} is not a file of arrays') from error


def setting(cell: Cell) -> str:
  """Returns what the tokens and the layer of a row of Figure 1 are, in words."""
  norm = 'LayerNorm' if cell.layer_norm else 'no LayerNorm'
  residual = ', residual' if cell.residual else ''
  return f'{norm}, α = {cell.anisotropy:g}{residual}'
