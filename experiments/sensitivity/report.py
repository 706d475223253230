"""Writes the tables and figures of a grid of settings. Runs without JAX."""

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any

from etils import epath

from experiments.sensitivity import figures
from experiments.sensitivity.answer import answer
from experiments.sensitivity.cells import (
  Cell,
  MECHANISM,
  read_cells,
  Setting,
)
from experiments.sensitivity.tuned import tune, Tuned
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.curves import at_step, read_curves
from vvlen.reporting.endpoints import CONTROL, LEARNED, TREATED
from vvlen.reporting.page import Report
from vvlen.reporting.plots import ARMS
from vvlen.reporting.tables import (
  blank_without,
  difference,
  difference_cell,
  left_out,
  number,
  p_value,
  Table,
  write_tables,
)


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
  made = [table(cells, settings)]
  if tuned:
    made.append(tuned_table(tuned))
  with plots.style():
    drawn = {'sensitivity': figures.gains(cells, settings, tuned)}
    if len({cell.name for cell in cells}) > 2:
      drawn['sensitivity_mechanism'] = figures.mechanism(cells, settings)
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
      answer(cells), made, paths, 1, said)


def _read_settings(
    folder: epath.Path, against: Mapping[str, str]
) -> tuple[
    dict[str, Setting], dict[str, list[str]], dict[tuple[str, int], list[str]]
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
      settings[name] = Setting(
          str(config['task']['name']), int(config['train']['max_length'])
      )
      ends[name, int(config['train']['num_steps'])] = list(config['arms'])
  base = settings.get('base', Setting())
  for name, setting in settings.items():
    other = against.get(name, 'base' if setting.task == base.task else None)
    settings[name] = setting._replace(
        against=None if name == 'base' else other,
        words=in_words(configs[name], configs['base']) if 'base' in configs else '')
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
    'optimizer.decoupled': lambda x: 'decoupled' if x else 'coupled',
    'optimizer.learning_rate': lambda x: f'rate {x:g}',
    'optimizer.decay_steps': lambda x: 'decaying rate' if x else 'constant rate',
    'model.output_projection': lambda x: 'output projection' if x else 'no projection',
    'model.item_encoder': lambda x: f'{x} encoder',
    'model.value_bias': lambda x: 'bias of values' if x else 'no bias of values',
    'model.epsilon': lambda x: f'ε = {x:g}'.replace('e-0', 'e−'),
    'model.kernel_init': lambda x: f'{str(x).replace("_", " ")} initial weights',
    'model.width': lambda x: f'width {x}',
    'task.num_classes': lambda x: f'{x} classes',
    'task.informative_query': lambda x: 'informative query' if x else 'plain query',
    'train.max_length': lambda x: f'up to {x} items',
}
# Fields that say how long and for which task a cell is trained; the figure says so too.
_UNSAID = ('arms', 'num_seeds', 'task.name', 'task.num_keys', 'train.num_steps',
           'train.save_every_seconds')


def in_words(config: Mapping[str, Any], base: Mapping[str, Any]) -> str:
  """Returns words on what a cell's configuration changes in that of base."""
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
    settings: Mapping[str, Setting],
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


def table(cells: Sequence[Cell], settings: Mapping[str, Setting]) -> Table:
  """Returns the table of primary endpoints, a row per cell, step and arm."""
  records = []
  nan = float('nan')
  for cell in cells:
    c, test, changed = cell.comparison, cell.comparison.primary, cell.change
    treated, control = c.primary_means
    records.append({
        'cell': cell.name, 'step': cell.step, 'arm': ARMS[c.treated][0],
        'control': control, 'treated': treated,
        **difference(test), 'p': test.p if test else nan,
        **difference(cell.holm, 'holm_'), 'p_holm': cell.holm.p if cell.holm else nan,
        **difference(changed, 'change_'),
        'change_p': changed.p if changed else nan,
        **difference(cell.holm_change, 'change_holm_'),
        'change_p_holm': cell.holm_change.p if cell.holm_change else nan,
        'pairs': test.num_pairs if test else 0,
        'smallest_detectable': cell.detectable,
        'change_smallest_detectable': cell.detectable_change,
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
  # Tests of the family are shown with their corrected interval and p.
  shown = lambda prefix: lambda r: difference_cell(
      '.2f', f'{prefix}holm_' if r[f'{prefix}p_holm'] >= 0 else prefix)(r)
  p_shown = lambda prefix: lambda r: (
      f'{p_value(r[f"{prefix}p_holm"])} *' if r[f'{prefix}p_holm'] >= 0
      else p_value(r[f'{prefix}p']))
  change = functools.partial(blank_without, 'change_difference')
  both = lambda metric: blank_without(f'{metric}_control', lambda r: (
      f'{r[f"{metric}_control"]:.3g}, {r[f"{metric}_treated"]:.3g}'
  ))
  columns = {
      'cell': lambda r: r['cell'],
      'steps': lambda r: f'{r["step"]:,}',
      'arm': lambda r: r['arm'],
      'difference [95 %]': shown(''),
      'p': p_shown(''),
      'Baseline': lambda r: number(r['control'], '.1f'),
      'treated': lambda r: number(r['treated'], '.1f'),
      'its change [95 %]': change(shown('change_')),
      'its p': change(p_shown('change_')),
      'pairs': lambda r: str(r['pairs']),
      'smallest detectable': lambda r: number(r['smallest_detectable'], '.1f'),
      'of its change': change(
          lambda r: number(r['change_smallest_detectable'], '.1f')
      ),
      'in training': both('training_accuracy'),
      'weight of target': both('target_weight'),
      'output norm': both('output_norm'),
      'distance': both('input_distance'),
  }
  others = ', '.join(
      f'{setting.against or "none"} for {name}' for name, setting in settings.items()
      if setting.against != 'base' and name != 'base'
  )
  others = f' ({others})' if others else ''
  tested = sorted({cell.step for cell in cells if cell.in_family})
  note = (
      'Mean accuracy in % beyond the training lengths, paired over seeds; treated '
      'minus Baseline. Its change: this difference minus that of base at the same '
      f'step{others}. *: p, and the interval beside it, are corrected by Holm over the '
      f'cells, of LN after {", ".join(f"{step:,}" for step in tested)} steps; all else '
      'is uncorrected. '
      'Smallest detectable, and the same of the change: with a power of 80 %, at '
      'the level of 5 % divided by the number of tests that are corrected together, '
      'which are those with a *; 5 % elsewhere. The last four columns, Baseline and '
      'treated: median accuracy at the training lengths in %; weight of the target; '
      'norm of the attention output; distance of the normalized output, before any '
      'output projection, from that at the longest training length (0 if nothing '
      'moves, 1 if all variance vanishes); '
      'the last three are means over the lengths beyond training.'
      f'{left_out(cell.comparison for cell in cells)}'
  )
  odd = [c for c in cells if c.step in tested and max(c.training_accuracy) < LEARNED]
  if odd:
    out = '' if any(c.in_family for c in odd) else ', and not tested with the others'
    note += (f' Not learned at the training lengths, so that nothing there is about '
             f'length{out}: {", ".join(sorted({c.name for c in odd}))}.')
  return Table('sensitivity', 'Gain over the Baseline in every cell', columns, records,
               note)


def tuned_table(tuned: Mapping[str, Tuned]) -> Table:
  """Returns the table of gains with each arm at its best learning rate.

  Args:
    tuned: {name of a group of learning rates: result of `tune`}.
  """
  records = [
      {
          'group': name, 'step': t.step, 'rates': ' '.join(t.rates),
          'control_rate': t.chosen[CONTROL], 'control_sure': t.sure[CONTROL],
          'treated_rate': t.chosen[TREATED], 'treated_sure': t.sure[TREATED],
          'control': t.means[1], 'treated': t.means[0], 'difference': t.mean_difference,
          'ci_low': t.ci_low, 'ci_high': t.ci_high, 'seeds': t.num_seeds,
      }
      for name, t in tuned.items()
  ]
  rate = lambda arm: lambda r: (
      f'{r[f"{arm}_rate"]} ({number(100 * r[f"{arm}_sure"], ".0f")} %)'
  )
  columns = {
      'rates of': lambda r: r['group'],
      'steps': lambda r: f'{r["step"]:,}',
      'of the Baseline': rate('control'),
      'of LN': rate('treated'),
      'Baseline': lambda r: number(r['control'], '.1f'),
      'LN': lambda r: number(r['treated'], '.1f'),
      'difference [95 %]': difference_cell('.2f'),
      'seeds': lambda r: str(r['seeds']),
  }
  told = '; '.join(f'{name}: {", ".join(t.rates)}' for name, t in tuned.items())
  note = (
      'Mean accuracy in % beyond the training lengths, each arm in the cell with the '
      'lowest loss on the last batches of training, of those that differ in their '
      f'learning rate alone ({told}). Intervals: bootstrap over seeds, 10,000 samples; '
      'in each sample the best cell is chosen again; in brackets, how often it is this '
      'one.'
  )
  return Table('tuned_rates', 'Gain where each arm has its best learning rate', columns,
               records, note)
