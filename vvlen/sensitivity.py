"""What a grid of choices tells: its table and figures. Runs without JAX."""

from collections.abc import Mapping, Sequence
import re

from etils import epath
from matplotlib.figure import Figure
import numpy as np
from scipy import stats

from vvlen import plots, results
from vvlen.cells import (
  Cell,
  MECHANISM,
  PARENTS,
  read_cells,
  TUNED,
  with_tuned_rates,
)
from vvlen.comparison import CONTROL, LEARNED
from vvlen.plots import ARMS
from vvlen.statistics import PairedTest
from vvlen.tables import (
  difference,
  difference_cell,
  left_out,
  markdown,
  number,
  p_value,
  Table,
  write_table,
)

TITLES = dict(zip(MECHANISM, (
    'weight of the target', 'norm of the attention output',
    'distance of the normalized\noutput from training',
), strict=True))


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
  asked, trained_up_to, missing = _num_seeds(folder / 'config.json'), {}, []
  have: dict[tuple[str, str], set[int]] = {}
  for row in rows:
    have.setdefault((row.experiment, row.arm), set()).add(row.seed)
  for path in sorted((folder / 'cells').glob('*/config.json')):
    name = path.parent.name
    with results.reading(path) as stored:
      config = stored['config']
      trained_up_to[name] = config['train']['max_length']
      end = f'{name}@{config["train"]["num_steps"]}'
      missing += [
          f'{end} has {len(have.get((end, arm), ()))} of {asked} seeds of {arm}'
          for arm in config['arms'] if len(have.get((end, arm), ())) < asked
      ]
  rows, chosen = with_tuned_rates(rows)
  cells = read_cells(rows, trained_up_to, 'layer_norm')
  if not cells:
    raise ValueError(f'{folder} has no cell with results of Baseline and LN yet')
  family = [cell[:2] for cell in cells if cell.in_family]
  cells += read_cells(rows, trained_up_to, 'standardize', family)
  made = table(cells, chosen)
  with plots.style():
    drawn = {made.name: figure(cells)}
    if len({cell.name for cell in cells}) > 2:
      drawn['sensitivity_mechanism'] = mechanism_figure(cells)
    paths = plots.save(folder / 'figures', drawn)
  text = markdown(made)
  if missing:
    text = (f'The grid is not finished: {", ".join(missing)}. Only cells with as many '
            f'seeds as any are tested together.\n\n{text}')
  return text, [*write_table(folder, made), *paths]


def _num_seeds(path: epath.Path) -> int:
  """Returns how many seeds each cell of a grid is asked for."""
  with results.reading(path, of='a grid') as stored:
    return stored['config']['base']['num_seeds']


def table(
    cells: Sequence[Cell], chosen_rates: Mapping[str, str] | None = None
) -> Table:
  """Returns one row a cell, step and arm: the primary endpoint and what explains it."""
  records = []
  nan = float('nan')
  for cell in cells:
    c, test, against = cell.comparison, cell.comparison.primary, cell.against_parent
    treated, control = c.primary_means
    records.append({
        'cell': cell.name, 'step': cell.step, 'arm': ARMS[c.treated][0],
        'control': control, 'treated': treated,
        **difference(test),
        'p': test.p if test else nan, 'p_holm': cell.holm_p,
        **difference(against, 'against_parent_'),
        'against_parent_p': against.p if against else nan,
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
    })
  missing = lambda x: '' if np.isnan(x) else p_value(x)
  both = lambda metric: lambda r: (
      '' if np.isnan(r[f'{metric}_control']) else
      f'{r[f"{metric}_control"]:.3g}, {r[f"{metric}_treated"]:.3g}'
  )
  columns = {
      'cell': lambda r: r['cell'],
      'steps': lambda r: f'{r["step"]:,}',
      'arm': lambda r: r['arm'],
      'Baseline': lambda r: number(r['control'], '.1f'),
      'treated': lambda r: number(r['treated'], '.1f'),
      'difference [95 %]': difference_cell('.2f'),
      'p': lambda r: p_value(r['p']),
      'p Holm': lambda r: missing(r['p_holm']),
      'against parent [95 %]': lambda r: (
          '' if np.isnan(r['against_parent_difference'])
          else difference_cell('.2f', 'against_parent_')(r)
      ),
      'its p Holm': lambda r: missing(r['against_parent_p_holm']),
      'pairs': lambda r: str(r['pairs']),
      'smallest detectable': lambda r: number(r['smallest_detectable'], '.1f'),
      'against parent': lambda r: (
          '' if np.isnan(r['against_parent_difference'])
          else number(r['against_parent_smallest_detectable'], '.1f')
      ),
      'in training': both('training_accuracy'),
      'weight of target': both('target_weight'),
      'output norm': both('output_norm'),
      'distance': both('input_distance'),
  }
  parents = ', '.join(
      f'{parent or "none"} for {name}' for name, parent in PARENTS.items()
  )
  tested = sorted({cell.step for cell in cells if cell.in_family})
  note = (
      'Mean accuracy in % beyond the training lengths, paired over seeds; treated '
      'minus Baseline. Against parent: this difference minus that of base at the same '
      f'step ({parents}). p Holm: over the cells, for each arm, after '
      f'{", ".join(f"{step:,}" for step in tested)} steps; all else is uncorrected. '
      'Smallest detectable, and the same against the parent: with a power of 80 %, at '
      'the level of 5 % divided by the number of tests that are corrected together, '
      'which are those with p Holm; 5 % elsewhere. The last four columns, Baseline and '
      'treated: median accuracy at the training lengths in %; weight of the target; '
      'norm of the attention output; distance of the normalized output from that at '
      'the longest training length (0 if nothing moves, 1 if all variance vanishes); '
      'the last three are means over the lengths beyond training.'
      f'{left_out(cell.comparison for cell in cells)}'
  )
  odd = sorted({c.name for c in cells if c.in_family
                and max(c.training_accuracy) < LEARNED})
  if odd:
    note += (f' Not learned at the training lengths, so that nothing there is about '
             f'length: {", ".join(odd)}.')
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


def figure(cells: Sequence[Cell]) -> Figure:
  """Draws the gain in each cell, all after as many steps, and along training."""
  family = [cell for cell in cells if cell.in_family]
  names = list(dict.fromkeys(cell.name for cell in family))
  drawn = Figure(figsize=(7.0, 1.6 + 0.26 * len(names)))
  left, right = drawn.subplots(1, 2, width_ratios=[1.2, 1])
  shown = set()
  for cell in family:
    test, arm = cell.comparison.primary, cell.comparison.treated
    if test is None:
      continue
    mean, main = test.mean_difference, arm == 'layer_norm'
    label = '_' if arm in shown else ARMS[arm][0]  # with an underscore, none
    shown.add(arm)
    left.errorbar(
        label=label,
        x=[mean], y=[names.index(cell.name) + (0 if main else 0.3)], capsize=2,
        xerr=[[mean - test.ci_low], [test.ci_high - mean]], color=ARMS[arm][1],
        fmt=ARMS[arm][2],
        markerfacecolor=ARMS[arm][1] if cell.holm_p < 0.05 else 'white',
    )
  left.axvline(0, color='black', linewidth=0.8)
  left.legend(fontsize=7)
  steps = ' or '.join(f'{step:,}' for step in sorted({cell.step for cell in family}))
  left.set(yticks=range(len(names)), xlabel='arm − Baseline (points)',
           title=f'After {steps} steps')
  left.set_yticklabels(names)
  left.set_ylim(len(names) - 0.4, -0.6)
  steps_of = {c.name: {d.step for d in cells if d.name == c.name} for c in cells}
  # All cells have the same few steps; those that have more are followed.
  most = min(3, max((len(s) for s in steps_of.values()), default=0))
  followed: dict[tuple[str, str], list[tuple[int, PairedTest]]] = {}
  for cell in cells:
    test = cell.comparison.primary
    if test is not None and len(steps_of[cell.name]) >= most:
      points = followed.setdefault((cell.name, cell.comparison.treated), [])
      points.append((cell.step, test))
  styles = dict(zip(dict.fromkeys(name for name, _ in followed), '-|--|:|-.'.split('|'),
                    strict=False))
  for (name, arm), points in followed.items():
    at = [step for step, _ in points]
    gains = [test.mean_difference for _, test in points]
    low, high = ([getattr(t, k) for _, t in points] for k in ('ci_low', 'ci_high'))
    right.plot(at, gains, color=ARMS[arm][1], marker=ARMS[arm][2],
               linestyle=styles.get(name, '-'), label=f'{name}, {ARMS[arm][0]}')
    right.fill_between(at, low, high, color=ARMS[arm][1], alpha=0.12, linewidth=0)
  right.axhline(0, color='black', linewidth=0.8)
  right.set(xscale='log', xlabel='steps', ylabel='points', title='Along training')
  ticks = sorted({step for points in followed.values() for step, _ in points})
  right.set_xticks(ticks, [f'{tick:,}' for tick in ticks], rotation=30)
  right.minorticks_off()
  drawn.legend(
      *right.get_legend_handles_labels(), fontsize=7, ncols=4,
      loc='outside lower center', title_fontsize=7.5,
      title='mean accuracy beyond the training lengths; 95 % intervals; filled: '
            'p Holm < .05 over the cells',
  )
  return drawn


def mechanism_figure(cells: Sequence[Cell]) -> Figure:
  """Draws, over cells, the gain of LN against what LN changes in the attention."""
  drawn = Figure(figsize=(7.0, 2.9))
  family = [
      cell for cell in cells if cell.in_family and cell.name != TUNED
      and cell.comparison.treated == 'layer_norm'
  ]
  tests = [cell.comparison.primary for cell in family]
  gain = [np.nan if test is None else test.mean_difference for test in tests]
  for axes, (metric, title) in zip(
      drawn.subplots(1, len(TITLES), sharey=True), TITLES.items(), strict=True
  ):
    pairs = np.array([
        [cell.mechanism[metric, arm] for arm in ('layer_norm', CONTROL)]
        for cell in family
    ])
    relative = metric == 'output_norm'  # its scale is another in each cell
    change = np.log2(pairs[:, 0] / pairs[:, 1]) if relative else -np.diff(pairs)[:, 0]
    axes.plot(change, gain, linestyle='', color=ARMS['layer_norm'][1],
              marker=ARMS['layer_norm'][2])
    for number_of, (x, y) in enumerate(zip(change, gain, strict=True), 1):
      axes.annotate(str(number_of), (x, y), fontsize=7, xytext=(3, 2),
                    textcoords='offset points')
    both = np.array([change, gain])
    both = both[:, np.isfinite(both).all(axis=0)]
    if both.shape[1] > 2 and (np.ptp(both, axis=1) > 0).all():
      rank = number(stats.spearmanr(*both).statistic, '+.2f')
      title += f'\nrank correlation {rank}'
    axes.axhline(0, color='black', linewidth=0.8)
    axes.axvline(0, color='black', linewidth=0.8)
    axes.margins(0.2)
    axes.set(xlabel='log2(LN / Baseline)' if relative else 'LN − Baseline', title=title)
  drawn.axes[0].set_ylabel('gain of LN (points)')
  names = [f'{i} {cell.name}' for i, cell in enumerate(family, 1)]
  lines = [', '.join(names[i : i + 7]) for i in range(0, len(names), 7)]
  drawn.supxlabel(
      '\n'.join([*lines, 'Cells share their seeds: this describes and tests nothing.']),
      fontsize=7.5,
  )
  return drawn
