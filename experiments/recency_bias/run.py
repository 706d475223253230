"""Does LayerNorm under a causal mask favour recent tokens? Simulates random tokens.

The command line is in `__main__`.
"""

import contextlib
import functools
import math
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from experiments.harness import machine
from experiments.harness.fields import naming_fields
from experiments.harness.progress import Progress
from experiments.harness.run_loop import Job, read_rows, run_jobs
from experiments.recency_bias import cells as recency_cells
from experiments.recency_bias.cells import Cell
from vvlen.models import stack_variants
from vvlen.reporting import results, run_folder
from vvlen.simulation import Recency, simulate, simulate_recency
from vvlen.simulation.chunks import Simulation, Totals
from vvlen.simulation.tokens import factor_law, tokens_of
from vvlen.theory import recency

_STEP = 1_000_000  # simulations at most that a crash loses
_COUNTS = ('num_simulations', 'panels.num_simulations')
_LAYERS = {
    'rms_norm': stack_variants.rms_norm_layer,
    'unmasked': stack_variants.unmasked_layer,
    'heads': stack_variants.heads_layer,
    'rotary': stack_variants.rotary_layer,
    'rotary_unmasked': functools.partial(stack_variants.rotary_layer, causal=False),
}


def main(config: Any, workdir: str) -> None:
  """Simulates all cells, or what is left of them, and writes tables and figures."""
  cells = _cells(config)
  folder = epath.Path(workdir)
  machine.use_devices(64)
  machine.lock(workdir)
  run_folder.claim(
      folder, config.to_dict(), machine.session(), may_grow=_COUNTS,
      study='recency_bias',
  )
  done = {
      (row.experiment, row.arm): row.value for row in read_rows(folder).values()
      if row.metric == 'num_simulations'
  }
  jobs = [
      Job(cell.num_simulations, functools.partial(_run_cell, config, folder, cell))
      for cell in cells if done.get((cell.group, cell.name)) != cell.num_simulations
  ]
  run_jobs(folder, jobs, 'simulations')


def _cells(config: Any) -> list[Cell]:
  """Returns what is to be simulated, or raises ValueError if that cannot run."""
  with naming_fields():
    if len(config.depth.num_tokens) != len(config.depth.num_simulations):
      raise ValueError(
          'config.depth.num_simulations must have a number for each of num_tokens: '
          f'{config.depth.num_simulations}, {config.depth.num_tokens}'
      )
    for values in (config.anisotropies, config.positions.anisotropies,
                   config.map.anisotropies):
      if not all(isinstance(value, (int, float)) for value in values):
        raise ValueError(f'anisotropies must be numbers: {values}')
    if sum(value != 0 for value in config.positions.anisotropies) > 1:
      raise ValueError(
          'config.positions.anisotropies may have one that is not 0: '
          f'{config.positions.anisotropies}'
      )
    if not config.anisotropies:
      raise ValueError('config.anisotropies is empty')
    if not 0 < config.positions.base < math.inf:
      raise ValueError(
          f'config.positions.base must be positive: {config.positions.base}'
      )
    cells = recency_cells.make_cells(config.to_dict())
  if not 0 <= config.seed < 2**32:
    raise ValueError(f'config.seed must lie in 0..2**32-1: {config.seed}')
  if len({(cell.group, cell.name) for cell in cells}) < len(cells):
    raise ValueError('config has the same width, length or anisotropy twice')
  for cell in cells:
    with _naming(cell):
      recency.check(cell.num_tokens, cell.width, cell.anisotropy, cell.residual)
      for name in ('num_layers', 'num_simulations', 'num_heads'):
        recency.check_size(name, getattr(cell, name))
      if cell.width % cell.num_heads:
        raise ValueError(f'{cell.num_heads} heads do not divide {cell.width}')
      if cell.num_tokens < 3:
        raise ValueError(f'there are no triples of {cell.num_tokens} tokens')
      if cell.layer.startswith('rotary') and cell.width % 2:
        raise ValueError(f'rotary positions need an even width: {cell.width}')
      if cell.sampler == 'reduced':
        factor_law(cell.num_tokens, cell.width, cell.anisotropy, cell.layer_norm)
  return cells

@contextlib.contextmanager
def _naming(cell: Cell):
  """Says of which cell a ValueError is."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f'config, {cell.group}, {cell.name}: {error}') from error


def _run_cell(
    config: Any, folder: epath.Path, cell: Cell, progress: Progress
) -> list[results.Row]:
  """Simulates a cell, keeps its arrays and returns its rows."""
  path = recency_cells.path_of(folder, cell)
  paper = cell.group in recency_cells.PAPER
  stored = recency_cells.read_arrays(path) if paper else {}
  previous, done = None, int(stored.get('num_simulations', 0))
  if done:
    progress.skip(done)
    sums = {n.removeprefix('sums.'): x for n, x in stored.items() if 'sums.' in n}
    previous = Totals(int(stored['num_chunks']), str(stored['run']), sums)

  def show(now):
    nonlocal done
    progress.show(f'{cell.group} {cell.name}', now - done)
    done = now

  # Of the long ones what is done is kept now and then.
  first = _STEP * (done // _STEP + 1)
  steps = range(first, cell.num_simulations, _STEP) if paper else ()
  for count in [*steps, cell.num_simulations]:
    found = _simulate(config, cell, count, previous, show)
    previous = found.totals
    if paper:
      recency_cells.write_arrays(path, {
          'mean': found.mean, 'standard_error': found.standard_error,
          'mean_weights': found.mean_weights, 'num_simulations': count,
          'num_chunks': previous.num_chunks, 'run': previous.run,
          **{f'sums.{name}': x for name, x in previous.sums.items()},
      })
    elif cell.group != 'map':
      last = lambda x: _over_heads(x[:, -1])
      recency_cells.write_arrays(path, {
          'last_row': last(found.mean), 'last_row_error': last(found.standard_error)})
  measured = {'num_simulations': float(cell.num_simulations)}
  for name in ('recency_probability', 'violation_rate'):
    for suffix in ('', '_error'):
      for layer, value in enumerate(_over_heads(getattr(found, name + suffix), 1), 1):
        measured[f'{name}{suffix}_layer_{layer}'] = float(value)
  return [
      results.Row(cell.group, cell.name, config.seed, cell.num_tokens, metric, value)
      for metric, value in measured.items()
  ]


def _over_heads(values: np.ndarray, axes: int = 2) -> np.ndarray:
  """Returns the mean over axes behind the first; of errors that is an upper bound."""
  return values.reshape(*values.shape[:axes], -1).mean(-1)


def _simulate(
    config: Any, cell: Cell, count: int, previous: Totals | None, show: Any
) -> Recency:
  """Simulates a cell up to `count` simulations in all."""
  key = jax.random.key(config.seed)  # the same for all, so that cells are paired
  dtype = {'float32': jnp.float32, 'float64': jnp.float64}[cell.dtype]
  with jax.enable_x64(cell.dtype == 'float64'):
    if cell.layer == 'causal':
      return simulate_recency(
          key, num_tokens=cell.num_tokens, width=cell.width, num_layers=cell.num_layers,
          num_simulations=count, anisotropy=cell.anisotropy, layer_norm=cell.layer_norm,
          residual=cell.residual, sampler=cell.sampler, dtype=dtype, previous=previous,
          progress=show,
      )
    arguments: list[Any] = [dtype(cell.residual)]
    if cell.layer == 'heads':
      arguments.append(stack_variants.random_heads(
          jax.random.fold_in(key, 2**32 - 1), cell.width, cell.num_heads, cell.tied,
          dtype,
      ))
    elif cell.layer.startswith('rotary'):
      arguments.append(dtype(config.positions.base))
    simulation = Simulation(
        tokens_of(cell.num_tokens, cell.width), _LAYERS[cell.layer],
        (dtype(cell.anisotropy),), tuple(arguments),
    )
    return simulate(
        key, simulation, num_layers=cell.num_layers, num_simulations=count,
        settings=cell._asdict(), progress=show,
    )
