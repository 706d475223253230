"""Writes the tables and figures of a grid of settings. Runs without JAX."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

from experiments.length_generalization.about import about
from experiments.sensitivity import figures, tables
from experiments.sensitivity.answer import answer
from experiments.sensitivity.cells import Cell, CellSetting, read_cells
from experiments.sensitivity.mechanism_figure import mechanism
from experiments.sensitivity.tuned import tune, Tuned
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.curves import at_step, read_curves
from vvlen.reporting.page import Report
from vvlen.reporting.plots import ARMS
from vvlen.reporting.tables import write_tables


def write(workdir: epath.PathLike) -> Report:
  """Writes tables and figures of a grid into its folder.

  Args:
    workdir: a folder with config.json and results.csv of a grid.

  Returns:
    What the run has found.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  rows = results.read_run(folder, r'\w+', ARMS)
  with run_folder.reading(folder / 'config.json', of='a grid') as stored:
    asked = int(stored['config']['base']['num_seeds'])
    against = dict(stored['config'].get('against', {}))
  settings, rates, ends = _read_settings(folder, against)
  if lost := {row.experiment for row in rows} - settings.keys():
    raise ValueError(f'{folder} has no cells/{min(lost)}/config.json')
  indices = results.index_cells(rows)
  cells = read_cells(indices, settings)
  if not cells:
    raise ValueError(f'{folder} has no cell with results of Baseline and LN yet')
  cells += read_cells(indices, settings, 'standardize', family=())
  tuned = _tune(folder, indices, rates, cells, settings)
  made = [tables.table(cells, settings), tables.change_table(cells, settings),
          tables.measured_table(cells, settings)]
  if tuned:
    made.append(tables.tuned_table(tuned, settings))
  made = [table for table in made if table.records]
  with plots.style():
    drawn = {}
    if any(cell.in_family for cell in cells):  # otherwise there is nothing to draw
      drawn['sensitivity'] = figures.gains(cells, settings, tuned)
    if drawn and len({cell.name for cell in cells}) > 2:
      drawn['sensitivity_mechanism'] = mechanism(cells, settings)
    paths = plots.save(folder / 'figures', drawn)
  have: dict[tuple[str, int | None, str], set[int]] = {}
  for row in rows:
    have.setdefault((row.experiment, row.step, row.arm), set()).add(row.seed)
  missing = [
      f'{name}@{step} has {count} of {asked} seeds of {arm}'
      for (name, step), arms in ends.items() for arm in arms
      for count in [len(have.get((name, step, arm), ()))] if count < asked
  ]
  said = (f'The grid is not finished: {", ".join(missing)}. Only cells with as many '
          'seeds as any are tested together.' if missing else '')
  write_tables(folder, made)
  return Report(
      'Under which settings does LayerNorm after attention help at longer inputs?',
      answer(cells, settings), made, paths, 1, said,
      about(sorted({setting.task for setting in settings.values()}),
            'A cell is the base setting with one or some of its choices changed.'))


def _read_settings(
    folder: epath.Path, against: Mapping[str, str]
) -> tuple[
    dict[str, CellSetting], dict[str, list[str]], dict[tuple[str, int], list[str]]
]:
  """Reads the settings of the cells.

  Args:
    folder: of a grid, with cells/NAME/config.json.
    against: {cell: the cell with whose gain its gain is compared}, if that is not
      base.

  Returns:
    {cell: setting}; the groups of two or more cells that differ only in learning rate,
    as {name of the group: cells}, where the name is base or the shortest of its cells;
    and {(cell, last step): arms} of the finished grid.
  """
  configs, settings, ends = {}, {}, {}
  for path in sorted((folder / 'cells').glob('*/config.json')):
    name = path.parent.name
    with run_folder.reading(path) as stored:
      configs[name] = config = stored['config']
      settings[name] = CellSetting(
          str(config['task']['name']), int(config['train']['max_length'])
      )
      ends[name, int(config['train']['num_steps'])] = list(config['arms'])
  base = settings.get('base', CellSetting())
  for name, setting in settings.items():
    other = against.get(name, 'base' if setting.task == base.task else None)
    settings[name] = setting._replace(
        against=None if name == 'base' else other,
        words=changed_in(configs[name], configs['base']) if 'base' in configs else '')
  # Cells of a group may differ in these fields alone.
  free = ('optimizer.learning_rate', 'optimizer.decay_steps', 'arms', 'num_seeds',
          'train.num_steps', 'train.save_every_seconds')
  groups: dict[str, list[str]] = {}
  for name, config in configs.items():
    rest = {f: x for f, x in run_folder.flatten(config).items() if f not in free}
    groups.setdefault(str(sorted(rest.items())), []).append(name)
  leader = lambda group: min(group, key=lambda name: (name != 'base', len(name), name))
  rates = {leader(group): group for group in groups.values() if len(group) > 1}
  return settings, rates, ends


# Field -> words on its value, if that differs from base.
_WORDS: Mapping[str, Callable[[Any], str]] = {
    'optimizer.l2': lambda x: f'L2 {x:g}' if x else 'no L2',
    'optimizer.decoupled': lambda x: 'decoupled (AdamW)' if x else 'coupled',
    'optimizer.learning_rate': lambda x: f'rate {x:g}',
    'optimizer.decay_steps': lambda x: 'decaying rate' if x else 'constant rate',
    'model.output_projection': lambda x: 'output projection' if x else 'no projection',
    'model.item_encoder': lambda x: f'{x} encoder',
    'model.value_bias': lambda x: f'values {"with" if x else "without"} bias',
    'model.epsilon': lambda x: f'norm with ε = {x:g}'.replace('e-0', 'e−'),
    'model.kernel_init': lambda x: f'{str(x).replace("_", " ")} initial weights',
    'model.width': lambda x: f'width {x}',
    'task.num_classes': lambda x: f'{x} classes',
    'task.informative_query': lambda x: (
        'query tells which item' if x else 'plain query'),
    'train.max_length': lambda x: f'trained up to {x} items',
}
# Fields that are left out: the figure says elsewhere how long and on which task a cell
# is trained.
_UNSAID = ('arms', 'num_seeds', 'task.name', 'task.num_keys', 'train.num_steps',
           'train.save_every_seconds')


def changed_in(config: Mapping[str, Any], base: Mapping[str, Any]) -> str:
  """Returns in words what a cell's configuration changes in that of base."""
  own, plain = run_folder.flatten(config), run_folder.flatten(base)
  changed = {field: x for field, x in own.items()
             if field not in _UNSAID and x != plain.get(field)
             and not (field == 'optimizer.decay_steps' and not x)}
  ordered = [*(f for f in _WORDS if f in changed),
             *(f for f in changed if f not in _WORDS)]
  words = [_WORDS[field](changed[field]) if field in _WORDS else
           f'{field.rpartition(".")[2].replace("_", " ")} {changed[field]}'
           for field in ordered]
  return ', '.join(words) or 'plain setting'


def _tune(
    folder: epath.Path, indices: Mapping[tuple[str, int], results.Index],
    rates: Mapping[str, Sequence[str]], cells: Sequence[Cell],
    settings: Mapping[str, CellSetting],
) -> dict[str, Tuned]:
  """Compares arms at their best learning rates, at the last step that is tested."""
  tested = [(cell.name, cell.step) for cell in cells if cell.in_family]
  tuned = {}
  for name, group in rates.items():
    step = max((step for cell, step in tested if cell in group), default=0)
    have = {cell: indices[cell, step] for cell in group if (cell, step) in indices}
    losses = {
        cell: at_step(read_curves(folder / f'cells/{cell}/metrics.jsonl'), step, 'loss')
        for cell in have
    }
    found = tune(have, losses, step, settings[name].trained_up_to)
    if found:
      tuned[name] = found
  return tuned
