"""What aligning contexts does to language models: tables of a run. Runs without JAX.

The outcome is perplexity at multiples of the training length L. Seeds and arms are
compared by its logarithm, nats a token: the primary endpoint is that at 4 L (the
longest, where there is no 4 L), α = 0.1 minus 0, paired over seeds, two-sided t-test at
5 %. Other arms are secondary: corrected by Holm over those of a table. Other lengths
are described and not tested.
"""

from collections.abc import Mapping, Sequence
import math
from typing import Any, NamedTuple

from etils import epath

from vvlen import alignment_figures, plots, results, run_folder
from vvlen.curves import read_curves
from vvlen.results import Index
from vvlen.statistics import (
    corrected,
    detectable,
    mean_interval,
    paired_t_test,
    PairedTest,
)
from vvlen.tables import (
    difference,
    difference_cell,
    markdown,
    number,
    p_value,
    Record,
    Table,
    write_table,
)

EXPERIMENT = 'language_model'
_ENDPOINT = 4  # times L
_PRIMARY = 0.1  # α


class Arm(NamedTuple):
  """How an arm is trained."""

  name: str
  weight: float  # α
  offsets: tuple[float, float]  # range of e, as fractions of L
  steps: float  # as a share of the control's


class Family(NamedTuple):
  """Arms that differ in one thing from their control."""

  name: str  # of its table and figure
  title: str
  control: Arm
  others: tuple[Arm, ...]
  primary: str = ''  # the arm of the primary endpoint, if it is of this family


class Run(NamedTuple):
  """What a folder says of a run."""

  arms: dict[str, Arm]
  control: str
  length: int  # L
  multiples: tuple[int, ...]
  num_seeds: int


def write(workdir: epath.PathLike) -> tuple[str, list[epath.Path]]:
  """Writes tables and figures of a run into its folder.

  Args:
    workdir: a folder with the config.json and results.csv of language models.

  Returns:
    The tables as Markdown, and the paths written.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  with run_folder.reading(folder / 'config.json', of='language models') as stored:
    run = read_run(stored['config'])
  rows = results.read_run(folder, EXPERIMENT, run.arms)
  index = results.index(rows)
  have = {name: len(index.get((name, 'nll', run.length), ())) for name in run.arms}
  present = families(run, {name for name, seeds in have.items() if seeds})
  tables = [table(family, run, index) for family in present]
  evaluations = read_curves(folder / 'evaluations.jsonl')
  with plots.style():
    drawn = {family.name: alignment_figures.by_length(family, run, index)
             for family in present}
    if evaluations:
      drawn['evaluations'] = alignment_figures.by_step(run, evaluations)
    paths = plots.save(folder / 'figures', drawn)
  text = '\n'.join(map(markdown, tables))
  missing = [f'{name} has {seeds} of {run.num_seeds} seeds'
             for name, seeds in have.items() if seeds < run.num_seeds]
  if missing:
    text = f'The run is not finished: {", ".join(missing)}.\n\n{text}'
  return text, [path for each in tables for path in write_table(folder, each)] + paths


def families(run: Run, there: set[str]) -> list[Family]:
  """Returns the families of arms that a run has results of.

  Arms that differ from the control in α alone; in the range of offsets alone from one
  of these; and in steps.
  """
  arms = {name: arm for name, arm in run.arms.items() if name in there}
  if run.control not in arms:
    return []
  control = arms[run.control]
  alike = lambda arm: arm.offsets == control.offsets and arm.steps == control.steps
  by_weight = {a.weight: a for a in [*filter(alike, arms.values()), control]}
  weights = tuple(a for a in by_weight.values() if a is not control)
  primary = next((a.name for a in weights if a.weight == _PRIMARY), '')
  found = [
      Family('alpha', 'Weight of the misalignment term', control, weights, primary)]
  ranges = [a for a in arms.values()
            if a.offsets != control.offsets and a.steps == control.steps]
  for weight in sorted({a.weight for a in ranges} & by_weight.keys()):
    others = tuple(a for a in ranges if a.weight == weight)
    found.append(Family('offsets', f'Range of offsets, at α = {weight:g}',
                        by_weight[weight], others))
  timed = tuple(a for a in arms.values() if a.steps != control.steps)
  if timed:
    found.append(Family('equal_time', 'Another number of steps', control, timed))
  return found


def check(run: Run) -> None:
  """Raises ValueError unless each arm stands in a table, and in one row of it alone."""
  found = families(run, set(run.arms))
  shown = {arm.name for family in found for arm in (family.control, *family.others)}
  for name in run.arms:
    if name not in shown:
      raise ValueError(f'arm {name} is compared with none: it must differ from the '
                       'control, or from an arm that differs in α, in one thing')


def endpoint(run: Run) -> int:
  """Returns the length of the primary endpoint."""
  multiple = _ENDPOINT if _ENDPOINT in run.multiples else run.multiples[-1]
  return multiple * run.length


def compare(index: Index, arm: str, control: str, length: int) -> PairedTest | None:
  """Tests the logarithm of perplexity at a length, arm − control, over seeds.

  Returns:
    The test; None if fewer than two seeds have finite values in both.
  """
  one, other = (index.get((name, 'nll', length), {}) for name in (arm, control))
  seeds = [s for s in one if s in other and math.isfinite(one[s] + other[s])]
  if len(seeds) < 2:
    return None
  return paired_t_test([one[s] for s in seeds], [other[s] for s in seeds])


def table(family: Family, run: Run, index: Index) -> Table:
  """Makes the table of a family: a row an arm, its control first."""
  arms, at = (family.control, *family.others), endpoint(run)
  tests = [compare(index, arm.name, family.control.name, at) for arm in family.others]
  primary = [arm.name == family.primary for arm in family.others]
  p_holm, least = corrected(
      [None if first else test for test, first in zip(tests, primary, strict=True)])
  least = [detectable(test) if first else x
           for test, first, x in zip(tests, primary, least, strict=True)]
  none: tuple[Any, ...] = (None, math.nan, math.nan)
  records = [
      _record(arm, family, run, index, *compared) for arm, compared in zip(
          arms, [none, *zip(tests, p_holm, least, strict=True)], strict=True)
  ]
  columns: dict[str, Any] = {'arm': lambda r: r['label']}
  for multiple in run.multiples:
    name = f'perplexity at {multiple} L' if multiple > 1 else 'perplexity at L'
    columns[name] = _interval(f'ppl_{multiple}', '.2f')
  columns |= {
      'SCE': _interval('sce', '.3f'),
      'SCE − entropies': _interval('excess', '.3f'),
      'training loss, CE': _interval('training_cross_entropy', '.3f'),
      f'Δ log perplexity at {at // run.length} L [95 %]': _unless_control(
          difference_cell('.4f')),
      'p': _unless_control(lambda r: p_value(r['p'])),
      'p Holm': _unless_control(
          lambda r: 'primary' if r['primary'] else p_value(r['p_holm'])),
      'smallest detectable': _unless_control(
          lambda r: number(r['smallest_detectable'], '.4f')),
  }
  return Table(family.name, f'{family.title}. L = {run.length}', columns, records,
               _note(family, run, index))


def _record(
    arm: Arm, family: Family, run: Run, index: Index, test: PairedTest | None,
    p_holm: float, least: float,
) -> dict[str, Any]:
  record: dict[str, Any] = {
      'arm': arm.name, 'label': alignment_figures.label(arm),
      'seeds': len(index[arm.name, 'nll', run.length]),
      'primary': arm.name == family.primary,
  }

  def add(name, metric, length, power=False):
    values = [*index.get((arm.name, metric, length), {}).values()]
    for suffix, value in zip(('', '_low', '_high'), mean_interval(values), strict=True):
      record[name + suffix] = math.exp(value) if power else float(value)

  for multiple in run.multiples:
    add(f'ppl_{multiple}', 'nll', multiple * run.length, power=True)
  add('sce', 'sce', run.length)
  add('excess', 'excess', run.length)
  add('training_cross_entropy', 'training_cross_entropy', None)
  return record | difference(test) | {
      'p': test.p if test else math.nan, 'p_holm': float(p_holm),
      'smallest_detectable': float(least), 'tested': test is not None,
  }


def _interval(field: str, form: str):
  def cell(record: Record) -> str:
    middle, low, high = (number(record[field + x], form) for x in ('', '_low', '_high'))
    return middle if math.isnan(record[f'{field}_low']) else f'{middle} [{low}, {high}]'
  return cell


def _unless_control(cell):
  return lambda record: cell(record) if record['tested'] else ''


def _note(family: Family, run: Run, index: Index) -> str:
  arms = (family.control, *family.others)
  counts = sorted({len(index[arm.name, 'nll', run.length]) for arm in arms})
  parts = [
      f'{" or ".join(map(str, counts))} seeds [95 %]. Perplexity: of blocks, natural '
      'base, the first token of a block not scored; geometric mean over seeds. SCE of '
      'two windows of L, nats. Δ: of nats a token, minus '
      f'{family.control.name}; p: paired two-sided t-test; Holm over this table'
      f'{", but for the primary endpoint" if family.primary else ""}. Smallest '
      'detectable: what that test finds four times in five. Other lengths are not '
      'tested.'
  ]
  lengths = [m * run.length for m in run.multiples]
  broken = sorted({
      seed for arm in arms for n in lengths
      for seed, x in index.get((arm.name, 'nll', n), {}).items() if not math.isfinite(x)
  })
  if broken:
    parts.append(f'Not finite, and left out: seeds {", ".join(map(str, broken))}.')
  return ' '.join([*parts, *_PAPER.get(family.name, ())])


# Perplexities that the paper prints after 50 / 100 / 200 steps, single runs.
_PAPER: Mapping[str, Sequence[str]] = {
    'alpha': (
        'The paper (Table 2, CLEX on RedPajama-Book, Llama-2-7B, perplexity at 8,192 '
        'after 50 / 100 / 200 steps, single runs): α = 0 7.21 / 6.56 / 6.12; 0.1 6.89 '
        '/ 6.24 / 5.88; 0.3 6.95 / 6.35 / 5.98; 0.5 7.44 / 7.01 / 6.54; 1 16.21 / '
        '14.12 / 12.92.',
    ),
    'offsets': (
        'The paper (Table 7, LongQLoRA, α = 0.1): e up to L/2 6.72 / 6.39 / 5.77; L/4 '
        '6.77 / 6.29 / 5.81; L/4 to L/2 6.82 / 6.47 / 5.94; up to L 15.65 / 13.59 / '
        '12.52.',
    ),
    'equal_time': (
        'In as much time as its baseline the paper trains 0.95 of the steps. Here the '
        'term costs no time to speak of (experiments/benchmarks/regularizer_cost.py), '
        'so that α = 0.1 after all steps is at equal time. The paper (Tables 9 and 10, '
        'CLEX on RedPajama-Book): α = 0 after 50 / 100 / 200 steps 7.21 / 6.56 / 6.12; '
        '0.1 after 47 / 95 / 190 6.92 / 6.27 / 5.91.',
    ),
}


def read_run(config: Mapping[str, Any]) -> Run:
  """Returns what a configuration says, as of configs/lm.py."""
  arms = {
      name: Arm(name, float(arm['weight']),
                (float(arm['offsets'][0]), float(arm['offsets'][1])),
                float(arm['steps']))
      for name, arm in config['arms'].items()
  }
  return Run(arms, config['control'], int(config['train']['max_length']),
             tuple(map(int, config['evaluate']['lengths'])), int(config['num_seeds']))
