"""What a grid of choices tells: its table. Runs without JAX."""

from collections.abc import Mapping, Sequence
import functools
import re

from etils import epath

from vvlen import plots, results, sensitivity_figures
from vvlen.cells import (
  Cell,
  MECHANISM,
  read_cells,
  Setting,
  TUNED,
  with_tuned_rates,
)
from vvlen.comparison import LEARNED
from vvlen.plots import ARMS
from vvlen.tables import (
  blank_without,
  difference,
  difference_cell,
  left_out,
  markdown,
  number,
  p_value,
  Table,
  write_table,
)


def write(workdir: epath.PathLike) -> tuple[str, list[epath.Path]]:
  """Writes tables and figures of a grid into its folder.

  Args:
    workdir: a folder with the config.json and results.csv of a grid.

  Returns:
    The table as Markdown, and the paths written.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  rows = results.read_run(folder)
  if odd := [r for r in rows if not re.fullmatch(r'\w+@\d+', r.experiment)]:
    raise ValueError(f'{folder / "results.csv"} has a row of no cell: {odd[0][:-1]}')
  with results.reading(folder / 'config.json', of='a grid') as stored:
    asked = stored['config']['base']['num_seeds']
    against = stored['config'].get('against', {})
  settings, rates, ends = _read_settings(folder, against)
  rows, chosen = with_tuned_rates(rows, rates)
  cells = read_cells(rows, settings)
  if not cells:
    raise ValueError(f'{folder} has no cell with results of Baseline and LN yet')
  cells += read_cells(rows, settings, 'standardize', family=())
  made = table(cells, settings, chosen)
  with plots.style():
    drawn = {made.name: sensitivity_figures.gains(cells, settings)}
    if len({cell.name for cell in cells}) > 2:
      drawn['sensitivity_mechanism'] = sensitivity_figures.mechanism(cells, settings)
    paths = plots.save(folder / 'figures', drawn)
  text = markdown(made)
  have: dict[tuple[str, str], set[int]] = {}
  for row in rows:
    have.setdefault((row.experiment, row.arm), set()).add(row.seed)
  missing = [
      f'{end} has {count} of {asked} seeds of {arm}'
      for end, arms in ends.items() for arm in arms
      for count in [len(have.get((end, arm), ()))] if count < asked
  ]
  if missing:
    text = (f'The grid is not finished: {", ".join(missing)}. Only cells with as many '
            f'seeds as any are tested together.\n\n{text}')
  return text, [*write_table(folder, made), *paths]


def _read_settings(
    folder: epath.Path, against: Mapping[str, str]
) -> tuple[dict[str, Setting], list[str], dict[str, list[str]]]:
  """Reads what the cells are.

  Returns:
    The setting of each cell; base and the cells that differ from it in their learning
    rate alone; and {'cell@last step': arms}, what the grid is to have.
  """
  configs, settings, ends = {}, {}, {}
  for path in sorted((folder / 'cells').glob('*/config.json')):
    name = path.parent.name
    with results.reading(path) as stored:
      configs[name] = config = stored['config']
      settings[name] = Setting(config['task']['name'], config['train']['max_length'])
      ends[f'{name}@{config["train"]["num_steps"]}'] = config['arms']
  base = settings.get('base', Setting())
  for name, setting in settings.items():
    parent = against.get(name, 'base' if setting.task == base.task else None)
    settings[name] = setting._replace(parent=None if name == 'base' else parent)
  settings[TUNED] = base._replace(parent='base')
  free = ('optimizer.learning_rate', 'optimizer.decay_steps', 'arms', 'num_seeds',
          'train.num_steps', 'train.save_every_seconds')
  rest = lambda name: {
      field: value for field, value in results.flatten(configs[name]).items()
      if field not in free
  }
  rates = [n for n in configs if 'base' in configs and rest(n) == rest('base')]
  return settings, rates, ends


def table(
    cells: Sequence[Cell], settings: Mapping[str, Setting],
    chosen_rates: Mapping[str, str] | None = None,
) -> Table:
  """Returns one row a cell, step and arm: the primary endpoint and what explains it."""
  records = []
  nan = float('nan')
  for cell in cells:
    c, test, parent = cell.comparison, cell.comparison.primary, cell.against_parent
    treated, control = c.primary_means
    records.append({
        'cell': cell.name, 'step': cell.step, 'arm': ARMS[c.treated][0],
        'control': control, 'treated': treated,
        **difference(test),
        'p': test.p if test else nan, 'p_holm': cell.holm_p,
        **difference(parent, 'against_parent_'),
        'against_parent_p': parent.p if parent else nan,
        'against_parent_p_holm': cell.holm_p_against_parent,
        'pairs': test.num_pairs if test else 0,
        'smallest_detectable': cell.detectable,
        'against_parent_smallest_detectable': cell.detectable_against_parent,
        'training_accuracy_control': 100 * cell.training_accuracy[0],
        'training_accuracy_treated': 100 * cell.training_accuracy[1],
    } | {
        f'{metric}_{which}': cell.mechanism[metric, arm]
        for metric in MECHANISM
        for which, arm in (('control', c.control), ('treated', c.treated))
    } | {
        f'{metric}_{field}': value
        for metric in MECHANISM
        for field, value in cell.explained[metric]._asdict().items()
    })
  p_holm = lambda field: blank_without(field, lambda r: p_value(r[field]))
  against = functools.partial(blank_without, 'against_parent_difference')
  both = lambda metric: blank_without(f'{metric}_control', lambda r: (
      f'{r[f"{metric}_control"]:.3g}, {r[f"{metric}_treated"]:.3g}'
  ))
  columns = {
      'cell': lambda r: r['cell'],
      'steps': lambda r: f'{r["step"]:,}',
      'arm': lambda r: r['arm'],
      'Baseline': lambda r: number(r['control'], '.1f'),
      'treated': lambda r: number(r['treated'], '.1f'),
      'difference [95 %]': difference_cell('.2f'),
      'p': lambda r: p_value(r['p']),
      'p Holm': p_holm('p_holm'),
      'against parent [95 %]': against(difference_cell('.2f', 'against_parent_')),
      'its p Holm': p_holm('against_parent_p_holm'),
      'pairs': lambda r: str(r['pairs']),
      'smallest detectable': lambda r: number(r['smallest_detectable'], '.1f'),
      'against parent': against(
          lambda r: number(r['against_parent_smallest_detectable'], '.1f')
      ),
      'in training': both('training_accuracy'),
      'weight of target': both('target_weight'),
      'output norm': both('output_norm'),
      'distance': both('input_distance'),
  }
  parents = ', '.join(
      f'{setting.parent or "none"} for {name}' for name, setting in settings.items()
      if setting.parent != 'base' and name != 'base'
  )
  parents = f' ({parents})' if parents else ''
  tested = sorted({cell.step for cell in cells if cell.in_family})
  note = (
      'Mean accuracy in % beyond the training lengths, paired over seeds; treated '
      'minus Baseline. Against parent: this difference minus that of base at the same '
      f'step{parents}. p Holm: of LN, over the cells, after '
      f'{", ".join(f"{step:,}" for step in tested)} steps; all else is uncorrected. '
      'Smallest detectable, and the same against the parent: with a power of 80 %, at '
      'the level of 5 % divided by the number of tests that are corrected together, '
      'which are those with p Holm; 5 % elsewhere. The last four columns, Baseline and '
      'treated: median accuracy at the training lengths in %; weight of the target; '
      'norm of the attention output; distance of the normalized output, before any '
      'output projection, from that at the longest training length (0 if nothing '
      'moves, 1 if all variance vanishes); '
      'the last three are means over the lengths beyond training.'
      f'{left_out(cell.comparison for cell in cells)}'
  )
  odd = sorted({c.name for c in cells if c.step in tested
                and max(c.training_accuracy) < LEARNED})
  if odd:
    note += (f' Not learned at the training lengths, so that nothing there is about '
             f'length, and not tested with the others: {", ".join(odd)}.')
  if chosen_rates:
    told = ', '.join(
        f'{ARMS[arm][0]} {name} after {int(step):,} steps'
        for key, name in chosen_rates.items()
        for arm, _, step in [key.rpartition('@')]
    )
    note += (f' {TUNED}: each arm at the learning rate with the lowest loss on the '
             f'training lengths: {told}.')
  return Table('sensitivity', 'Gain over the Baseline in every cell', columns, records,
               note)
