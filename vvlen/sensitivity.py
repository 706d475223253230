"""Where LayerNorm helps: the primary endpoint in every cell of a grid.

A row's experiment is named 'cell@step': one setting, after so many steps. Runs
without JAX.
"""

from collections.abc import Iterable, Mapping, Sequence
import json
from typing import NamedTuple

from etils import epath
from matplotlib.figure import Figure
import numpy as np
from scipy import stats

from vvlen import plots, results
from vvlen.comparison import compare, Comparison
from vvlen.plots import ARMS
from vvlen.report import (
    difference_cell,
    markdown,
    number,
    p_value,
    Table,
    write_table,
)
from vvlen.results import Row
from vvlen.statistics import holm, paired_t_test, PairedTest

CONTROL, TREATED = 'none', ('layer_norm', 'standardize')
# What may explain a gain: metric -> its name in figures.
MECHANISM = {
    'target_weight': 'weight of the target',
    'output_norm': 'norm of the attention output',
    'input_distance': 'distance of φ\'s input from training',
}
# The cells that differ in learning rate alone, and the name of their best.
RATES, TUNED = ('base', 'rate_low', 'rate_high'), 'rate_tuned'


class Cell(NamedTuple):
  """One setting after so many steps, and one arm against the Baseline."""

  name: str
  step: int
  comparison: Comparison
  against_base: PairedTest | None  # its differences − those of base at this step
  mechanism: dict[tuple[str, str], float]  # (metric, arm) -> mean beyond training
  last: bool  # of this cell's steps
  # Corrected over the cells at their last step; nan before.
  holm_p: float = np.nan
  holm_p_against_base: float = np.nan


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
  rows = results.read_rows(folder / 'results.csv')
  if not rows:
    raise ValueError(f'{folder} has no results.csv with results')
  trained_up_to = {}
  for path in sorted((folder / 'cells').glob('*/config.json')):
    config = json.loads(path.read_text())['config']
    trained_up_to[path.parent.name] = config['train']['max_length']
  rows, chosen = with_tuned_rates(rows)
  cells = [c for arm in TREATED for c in read_cells(rows, trained_up_to, arm)]
  made = table(cells, chosen)
  drawn = {made.name: figure(cells)}
  if len({cell.name for cell in cells}) > 2:
    drawn['sensitivity_mechanism'] = mechanism_figure(cells)
  with plots.style():
    paths = plots.save(folder / 'figures', drawn)
  return markdown(made), [*write_table(folder, made), *paths]


def with_tuned_rates(rows: Sequence[Row]) -> tuple[list[Row], dict[str, str]]:
  """Adds a cell in which each arm has the learning rate that suits it best.

  That is, at each step, the one of `RATES` with the lowest mean training loss: the
  batches are new at every step, so it is in-distribution validation. Test lengths
  have no say.

  Returns:
    The rows, those of `TUNED` among them; and {'arm@step': cell chosen}.
  """
  losses: dict[tuple[str, str, str], list[float]] = {}
  for row in rows:
    name, _, step = row.experiment.rpartition('@')
    if row.metric == 'training_loss':
      losses.setdefault((row.arm, step, name), []).append(row.value)
  chosen = {}
  for arm, step, _ in losses:
    mean = {
        name: np.mean(losses[arm, step, name])
        for name in RATES if (arm, step, name) in losses
    }
    finite = [name for name in mean if np.isfinite(mean[name])]
    if len(mean) == len(RATES) and finite:
      chosen[f'{arm}@{step}'] = min(finite, key=lambda name: mean[name])
  tuned = []
  for row in rows:
    name, _, step = row.experiment.rpartition('@')
    if chosen.get(f'{row.arm}@{step}') == name:
      tuned.append(row._replace(experiment=f'{TUNED}@{step}'))
  return [*rows, *tuned], chosen


def read_cells(
    rows: Iterable[Row],
    trained_up_to: Mapping[str, int],
    treated: str = 'layer_norm',
) -> list[Cell]:
  """Compares an arm with the Baseline in each cell, at each step.

  Args:
    rows: of all cells.
    trained_up_to: the longest training length of each cell, that of base where one
      is not named.
    treated: the arm.

  Returns:
    Cells by name, 'base' first, each from its first to its last step; p-values are
    corrected by Holm over the cells, each at its last step.
  """
  grouped: dict[tuple[str, int], list[Row]] = {}
  for row in rows:
    name, _, at_step = row.experiment.rpartition('@')
    grouped.setdefault((name, int(at_step)), []).append(row)
  compared = {}
  for name, step in sorted(grouped, key=lambda k: (k[0] != 'base', k)):
    index = results.index(grouped[name, step])
    if (treated, 'training_loss', None) in index:
      up_to = trained_up_to.get(name, trained_up_to.get('base', 16))
      comparison = compare(index, treated, CONTROL, trained_up_to=up_to)
      compared[name, step] = comparison, _mechanism(index, comparison, up_to)
  last = {name: step for name, step in compared}
  cells = []
  for (name, step), (comparison, mechanism) in compared.items():
    base, _ = compared.get(('base', step), (None, None))
    against = None if name == 'base' or base is None else _against(comparison, base)
    cells.append(
        Cell(name, step, comparison, against, mechanism, step == last[name])
    )
  at_last = [i for i, cell in enumerate(cells) if cell.last]
  p_value_of = lambda test: np.nan if test is None else test.p
  adjusted = holm([p_value_of(cells[i].comparison.primary) for i in at_last])
  against_base = holm([p_value_of(cells[i].against_base) for i in at_last])
  for i, p, p_against in zip(at_last, adjusted, against_base, strict=True):
    cells[i] = cells[i]._replace(
        holm_p=float(p), holm_p_against_base=float(p_against)
    )
  return cells


def _against(cell: Comparison, base: Comparison) -> PairedTest | None:
  """Tests whether the difference is another than in base, paired over seeds."""
  ours, theirs = cell.primary_differences, base.primary_differences
  seeds = sorted(ours.keys() & theirs.keys())
  if len(seeds) < 2:
    return None
  return paired_t_test([ours[s] for s in seeds], [theirs[s] for s in seeds])


def _mechanism(
    index: results.Index, comparison: Comparison, trained_up_to: int
) -> dict[tuple[str, str], float]:
  """Returns the mean, over seeds and lengths beyond training, of each metric."""
  beyond = [n for n in comparison.lengths if n > trained_up_to]
  seeds = comparison.primary_differences
  means = {}
  for metric in MECHANISM:
    for arm in (comparison.control, comparison.treated):
      columns = [index.get((arm, metric, n), {}) for n in beyond]
      means[metric, arm] = float(np.mean(
          [column.get(seed, np.nan) for column in columns for seed in seeds] or [np.nan]
      ))
  return means


def table(
    cells: Sequence[Cell], chosen_rates: Mapping[str, str] | None = None
) -> Table:
  """Returns one row a cell, step and arm: the primary endpoint and what explains it."""
  records = []
  nan = float('nan')
  for cell in cells:
    c, test, against = cell.comparison, cell.comparison.primary, cell.against_base
    treated, control = c.primary_means
    records.append({
        'cell': cell.name, 'step': cell.step, 'arm': ARMS[c.treated][0],
        'control': control, 'treated': treated,
        'difference': test.mean_difference if test else nan,
        'ci_low': test.ci_low if test else nan,
        'ci_high': test.ci_high if test else nan,
        'p': test.p if test else nan, 'p_holm': cell.holm_p,
        'against_base_difference': against.mean_difference if against else nan,
        'against_base_ci_low': against.ci_low if against else nan,
        'against_base_ci_high': against.ci_high if against else nan,
        'against_base_p': against.p if against else nan,
        'against_base_p_holm': cell.holm_p_against_base,
        'pairs': test.num_pairs if test else 0,
        'smallest_detectable': c.detectable,
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
      'against base [95 %]': lambda r: (
          '' if np.isnan(r['against_base_difference'])
          else difference_cell('.2f', 'against_base_')(r)
      ),
      'its p Holm': lambda r: missing(r['against_base_p_holm']),
      'pairs': lambda r: str(r['pairs']),
      'smallest detectable': lambda r: number(r['smallest_detectable'], '.1f'),
      'weight of target': both('target_weight'),
      'output norm': both('output_norm'),
      'input distance': both('input_distance'),
  }
  note = (
      'Mean accuracy in % beyond the training lengths, paired over seeds; treated '
      'minus Baseline. Against base: this difference minus that of base at the same '
      'step. p Holm: over the cells, each after its last step. The last three columns: '
      'Baseline, treated; means over the same lengths. Input distance: of φ\'s input '
      'from that at the longest training length, 0 if nothing moves, 1 if all variance '
      'vanishes.'
  )
  if chosen_rates:
    told = ', '.join(
        f'{ARMS[arm][0]} {name} after {int(step):,} steps'
        for key, name in chosen_rates.items()
        for arm, _, step in [key.rpartition('@')]
    )
    note += (f' {TUNED}: each arm at the learning rate with the lowest loss on the '
             f'training lengths: {told}.')
  return Table('sensitivity', 'LayerNorm − Baseline in every cell', columns, records,
               note)


def figure(cells: Sequence[Cell]) -> Figure:
  """Draws the gain in each cell after its last step, and along training."""
  names = list(dict.fromkeys(cell.name for cell in cells))
  drawn = Figure(figsize=(7.0, 1.6 + 0.26 * len(names)))
  left, right = drawn.subplots(1, 2, width_ratios=[1.2, 1])
  steps: dict[str, int] = {}
  for cell in cells:
    test, arm = cell.comparison.primary, cell.comparison.treated
    if test is None or not cell.last:
      continue
    steps[cell.name] = cell.step
    mean, main = test.mean_difference, arm == 'layer_norm'
    left.errorbar(
        [mean], [names.index(cell.name) + (0 if main else 0.3)], capsize=2,
        xerr=[[mean - test.ci_low], [test.ci_high - mean]], color=ARMS[arm][1],
        fmt=ARMS[arm][2],
        markerfacecolor=ARMS[arm][1] if cell.holm_p < 0.05 else 'white',
    )
  left.axvline(0, color='black', linewidth=0.8)
  left.set(yticks=range(len(names)), xlabel='arm − Baseline (points)',
           title='After the last step')
  left.set_yticklabels([f'{name}, {steps.get(name, 0):,}' for name in names])
  left.set_ylim(len(names) - 0.4, -0.6)
  steps_of = {n: {cell.step for cell in cells if cell.name == n} for n in names}
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
  if followed:
    right.legend(fontsize=7)
  drawn.supxlabel(
      'mean accuracy beyond the training lengths; 95 % intervals; filled: p Holm < .05 '
      'over the cells', fontsize=7.5,
  )
  return drawn


def mechanism_figure(cells: Sequence[Cell]) -> Figure:
  """Draws, over cells, the gain of LN against what LN changes in the attention."""
  drawn = Figure(figsize=(7.0, 2.9))
  last = [
      cell for cell in cells if cell.last and cell.comparison.treated == 'layer_norm'
      and cell.name != TUNED
  ]
  for axes, (metric, title) in zip(
      drawn.subplots(1, len(MECHANISM), sharey=True), MECHANISM.items(), strict=True
  ):
    change = [
        cell.mechanism[metric, 'layer_norm'] - cell.mechanism[metric, CONTROL]
        for cell in last
    ]
    tests = [cell.comparison.primary for cell in last]
    gain = [np.nan if test is None else test.mean_difference for test in tests]
    axes.plot(change, gain, linestyle='', color=ARMS['layer_norm'][1],
              marker=ARMS['layer_norm'][2])
    for cell, x, y in zip(last, change, gain, strict=True):
      axes.annotate(cell.name, (x, y), fontsize=5, xytext=(2, 2),
                    textcoords='offset points')
    both = np.array([change, gain])
    both = both[:, np.isfinite(both).all(axis=0)]
    if both.shape[1] > 2 and (np.ptp(both, axis=1) > 0).all():
      rank = stats.spearmanr(*both).statistic
      title += f'\nrank correlation {rank:+.2f}'
    axes.axhline(0, color='black', linewidth=0.8)
    axes.axvline(0, color='black', linewidth=0.8)
    axes.set(xlabel='LN − Baseline', title=title)
  drawn.axes[0].set_ylabel('gain of LN (points)')
  return drawn
