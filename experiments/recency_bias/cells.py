"""The simulations for each figure of recency bias, and their files of arrays.

Runs without JAX. A cell is one simulation; the cells of a group make one figure.
"""

from collections.abc import Iterator, Mapping
import io
from typing import Any, NamedTuple

from etils import epath
import numpy as np

from vvlen.reporting import results

# The rows of Figure 1: (anisotropy, LayerNorm, residual).
ROWS = ((0.0, False, 0.0), (0.0, True, 0.0), (0.5, True, 0.0), (0.5, True, 1.0))
# (width, row of Figure 1) -> recency probability by layer, as printed in the later
# version of the paper.
PUBLISHED = {
    (16, 'noLN_a0_c0'): (0.5000, 0.5005, 0.0822, 0.0140),
    (16, 'LN_a0_c0'): (0.5000, 0.5015, 0.5051, 0.5114),
    (16, 'LN_a0.5_c0'): (0.5000, 0.6382, 0.8002, 0.9079),
    (16, 'LN_a0.5_c1'): (0.5000, 0.5931, 0.6610, 0.7078),
    (64, 'noLN_a0_c0'): (0.5000, 0.5000, 0.0069, 0.0001),
    (64, 'LN_a0_c0'): (0.5000, 0.5000, 0.5000, 0.5000),
    (64, 'LN_a0.5_c0'): (0.5000, 0.5544, 0.6274, 0.7073),
    (64, 'LN_a0.5_c1'): (0.5000, 0.5457, 0.5791, 0.6053),
}
# Groups of the paper. Their numbers of simulations may be increased later.
PAPER = ('figure_1', 'figure_3', 'figure_4', 'panels')
GROUPS = (*PAPER, 'depth', 'norms', 'heads', 'positions', 'map')
# Settings.layer -> its label in figures
POSITIONS = {
    'causal': 'causal mask',
    'unmasked': 'neither',
    'rotary': 'causal mask and rotary positions',
    'rotary_unmasked': 'rotary positions',
}


class Settings(NamedTuple):
  """The settings of one simulation."""

  group: str
  name: str
  num_simulations: int
  width: int
  num_tokens: int
  num_layers: int
  anisotropy: float
  residual: float = 0.0
  layer_norm: bool = True
  layer: str = 'causal'  # or 'heads', 'rms_norm', or a key of POSITIONS
  num_heads: int = 1
  tied: bool = True  # whether queries and keys of a head share one projection
  sampler: str = 'direct'
  # In deep stacks, or if there are many or very anisotropic tokens, tokens become so
  # similar that float32 cannot tell them apart.
  dtype: str = 'float64'


class Simulated(NamedTuple):
  """A cell and its results."""

  cell: Settings
  # (metric, layer or None) -> value, from results.csv
  numbers: Mapping[tuple[str, int | None], float]
  arrays: Mapping[str, np.ndarray]

  def by_layer(self, metric: str) -> np.ndarray:
    """Returns the values of a metric, [layers]."""
    layers = range(1, self.cell.num_layers + 1)
    return np.array([self.numbers[metric, layer] for layer in layers])


def make_cells(config: Mapping[str, Any]) -> list[Settings]:
  """Returns the cells of a configuration (configs/recency_bias.py), in order."""
  return [
      Settings(group, name, **{**_common(config), **settings})
      for group, name, settings in _settings(config)
  ]


def _common(config: Mapping[str, Any]) -> dict[str, Any]:
  names = ('num_simulations', 'num_tokens', 'width', 'num_layers', 'anisotropy')
  return {name: config[name] for name in names}


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
  """Yields group, name, and the fields of `Settings` that differ from `_common`."""
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
  """Returns the name of a row of Figure 1, such as 'LN_a0.5_c1'."""
  return f'{"LN" if layer_norm else "noLN"}_a{anisotropy:g}_c{residual:g}'


def path_of(folder: epath.PathLike, cell: Settings) -> epath.Path:
  """Returns the path of the arrays of a cell."""
  return epath.Path(folder) / 'simulations' / f'{cell.group}_{cell.name}.npz'


def write_arrays(path: epath.PathLike, arrays: Mapping[str, Any]) -> None:
  """Writes arrays; if writing fails, an existing file is left unchanged."""
  buffer = io.BytesIO()
  np.savez_compressed(buffer, **arrays)
  results.write_bytes(path, buffer.getvalue())


def read_arrays(folder: epath.PathLike, cell: Settings) -> dict[str, np.ndarray]:
  """Reads the arrays of a cell; returns {} if there is no file.

  Raises:
    ValueError: if the file is damaged, or does not hold arrays of this cell's shapes.
  """
  path = path_of(folder, cell)
  if not path.exists():
    return {}
  arrays = results.read_arrays(path)
  layers, n = cell.num_layers, cell.num_tokens
  expected = ({'mean': (layers, n, n), 'standard_error': (layers, n, n)}
              if cell.group in PAPER else {'last_row': (layers, n)})
  for name, shape in expected.items():
    if name not in arrays or arrays[name].shape != shape:
      raise ValueError(f'{path} does not have the array {name} {list(shape)}: delete '
                       'it and run again')
  return arrays


def setting(cell: Settings) -> str:
  """Describes norm, anisotropy and residual of a cell in words."""
  norm = 'LayerNorm' if cell.layer_norm else 'no LayerNorm'
  residual = ', residual' if cell.residual else ''
  return f'{norm}, α = {cell.anisotropy:g}{residual}'
