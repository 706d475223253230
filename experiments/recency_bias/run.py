"""Does LayerNorm under a causal mask favour recent tokens? Simulates random tokens.

The command line is in `__main__`.
"""

import functools
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from experiments.harness import fields, finished, locks, machine
from experiments.harness.fields import real, several, whole
from experiments.harness.parts import naming
from experiments.harness.processes import first_of_processes, stop_if_told
from experiments.harness.progress import Progress
from experiments.harness.run_loop import Job, run_jobs
from experiments.recency_bias import cells as recency_cells
from experiments.recency_bias.cells import Settings
from vvlen.models import stack_variants
from vvlen.reporting import results, run_folder
from vvlen.simulation import Recency, simulate, simulate_recency
from vvlen.simulation.chunks import Simulation, Totals
from vvlen.simulation.tokens import factor_law, tokens_of

_SIMULATIONS = whole(least=1, most=2**53)  # counted in float64
_TOKENS = whole(least=3, why='because triples are compared')
_WIDTH = whole(least=2, why='because of LayerNorm')
_ANISOTROPY = real(least=0, below=1, why='because at 1 all tokens are equal')
_FIELDS = {
    'seed': fields.seed(),
    'num_simulations': _SIMULATIONS,
    'num_tokens': _TOKENS,
    'width': _WIDTH,
    'num_layers': whole(least=1),
    'anisotropies': several(_ANISOTROPY, once=True),
    'anisotropy': _ANISOTROPY,
    'panels.widths': several(_WIDTH, once=True, least=0),
    'panels.num_simulations': _SIMULATIONS,
    'depth.num_tokens': several(_TOKENS, once=True, least=0),
    'depth.num_simulations': several(_SIMULATIONS, least=0),
    'depth.num_layers': whole(least=1),
    'norms.widths': several(_WIDTH, once=True, least=0),
    'norms.num_simulations': _SIMULATIONS,
    'heads.num_heads': several(whole(least=1), once=True, least=0),
    'heads.num_simulations': _SIMULATIONS,
    'positions.anisotropies': several(_ANISOTROPY, once=True, least=0),
    'positions.num_tokens': _TOKENS,
    'positions.base': real(above=0),
    'positions.num_simulations': _SIMULATIONS,
    'map.anisotropies': several(_ANISOTROPY, once=True, least=0),
    'map.widths': several(_WIDTH, once=True, least=0),
    'map.num_simulations': _SIMULATIONS,
}
_STEP = 1_000_000  # simulations between two saves; a crash loses no more than these
_COUNTS = ('num_simulations', 'panels.num_simulations')
_LAYERS = {
    'rms_norm': stack_variants.rms_norm_layer,
    'unmasked': stack_variants.unmasked_layer,
    'heads': stack_variants.heads_layer,
    'rotary': stack_variants.rotary_layer,
    'rotary_unmasked': functools.partial(stack_variants.rotary_layer, causal=False),
}


def main(config: Any, workdir: str) -> None:
  """Runs or resumes all simulations, and writes tables and figures."""
  cells = _cells(config)
  folder = epath.Path(workdir)
  machine.use_devices(64)
  first_of_processes(lambda: _claim(config, workdir))
  whole = finished.finished(folder, _part_of)
  done = {
      _part_of(row): row.value for row in results.read_rows(folder / 'results.csv')
      if row.metric == 'num_simulations' and _part_of(row) in whole
  }
  jobs = [
      Job(cell.num_simulations, functools.partial(_run_cell, config, folder, cell))
      for cell in cells if done.get((cell.group, cell.name)) != cell.num_simulations
  ]
  place = {(cell.group, cell.name): i for i, cell in enumerate(cells)}
  run_jobs(folder, jobs, 'simulations', _part_of, lambda row: (
      place[_part_of(row)], row.metric, row.layer or 0), measures=False)


def _part_of(row: results.Row) -> tuple[str, str]:
  return row.experiment, row.arm


def _claim(config: Any, workdir: str) -> None:
  locks.lock(workdir)
  run_folder.claim(
      workdir, config.to_dict(), machine.session(), may_grow=_COUNTS,
      study='recency_bias',
  )


def _cells(config: Any) -> list[Settings]:
  """Returns the cells; raises ValueError if the configuration cannot be run."""
  fields.check(config, _FIELDS)
  if len(config.depth.num_tokens) != len(config.depth.num_simulations):
    raise ValueError(
        'config.depth.num_simulations must have a number for each of num_tokens: '
        f'{config.depth.num_simulations}, {config.depth.num_tokens}'
    )
  if sum(value != 0 for value in config.positions.anisotropies) > 1:
    raise ValueError(
        'config.positions.anisotropies may have only one value that is not 0: '
        f'{config.positions.anisotropies}'
    )
  cells = recency_cells.make_cells(config.to_dict())
  for cell in cells:
    with naming(f'config, {cell.group}, {cell.name}'):
      _check_cell(cell)
  if len({(cell.group, cell.name) for cell in cells}) < len(cells):
    raise ValueError('config has anisotropies that are equal to six digits')
  return cells


def _check_cell(cell: Settings) -> None:
  if np.dtype(cell.dtype).type(cell.anisotropy) == 1:
    raise ValueError(f'anisotropy is 1 in {cell.dtype}: {cell.anisotropy}')
  if cell.width % cell.num_heads:
    raise ValueError(f'{cell.num_heads} heads do not divide a width of {cell.width}')
  if cell.layer.startswith('rotary') and cell.width % 2:
    raise ValueError(f'rotary positions need an even width: {cell.width}')
  if cell.sampler == 'reduced':
    factor_law(cell.num_tokens, cell.width, cell.anisotropy, cell.layer_norm)


def _run_cell(
    config: Any, folder: epath.Path, cell: Settings, progress: Progress
) -> list[results.Row]:
  """Simulates a cell, writes its arrays and returns its rows.

  Of several processes, the first one writes.
  """
  path = recency_cells.path_of(folder, cell)
  paper = cell.group in recency_cells.PAPER
  stored = recency_cells.read_arrays(folder, cell) if paper else {}
  previous, done = None, int(stored.get('num_simulations', 0))
  if done:
    progress.skip(done)
    sums = {n.removeprefix('sums.'): x for n, x in stored.items() if 'sums.' in n}
    previous = Totals(int(stored['num_chunks']), str(stored['run']), sums)

  def show(now):
    nonlocal done
    progress.show(f'{cell.group} {cell.name}', now - done)
    done = now

  # Groups of the paper save their sums after every _STEP simulations.
  first = _STEP * (done // _STEP + 1)
  steps = range(first, cell.num_simulations, _STEP) if paper else ()
  first_process = jax.process_index() == 0
  for count in [*steps, cell.num_simulations]:
    stop_if_told(f'{done} of {cell.num_simulations} simulations of {cell.name}')
    found = _simulate(config, cell, count, previous, show)
    previous = found.totals
    if paper and first_process:
      recency_cells.write_arrays(path, {
          'mean': found.mean, 'standard_error': found.standard_error,
          'mean_weights': found.mean_weights, 'num_simulations': count,
          'num_chunks': previous.num_chunks, 'run': previous.run,
          **{f'sums.{name}': x for name, x in previous.sums.items()},
      })
    elif cell.group != 'map' and first_process:
      last = lambda x: _over_heads(x[:, -1])
      recency_cells.write_arrays(path, {
          'last_row': last(found.mean), 'last_row_error': last(found.standard_error)})
  measured: dict[tuple[str, int | None], float] = {
      ('num_simulations', None): cell.num_simulations}
  for name in ('recency_probability', 'violation_rate'):
    for suffix in ('', '_error'):
      for layer, value in enumerate(_over_heads(getattr(found, name + suffix), 1), 1):
        measured[name + suffix, layer] = float(value)
  return [
      results.Row(cell.group, cell.name, config.seed, cell.num_tokens, metric, value,
                  layer=layer)
      for (metric, layer), value in measured.items()
  ]


def _over_heads(values: np.ndarray, axes: int = 2) -> np.ndarray:
  """Averages over all but the first `axes` axes; bounds standard errors from above."""
  return values.reshape(*values.shape[:axes], -1).mean(-1)


def _simulate(
    config: Any, cell: Settings, count: int, previous: Totals | None, show: Any
) -> Recency:
  """Simulates a cell until it has `count` simulations in total."""
  key = jax.random.key(config.seed)  # the same for all cells, so they are paired
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
