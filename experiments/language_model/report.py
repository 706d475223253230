"""What aligning contexts does to language models: tables of a run. Runs without JAX.

The outcome is perplexity at multiples of the training length L. Seeds and arms are
compared by its logarithm, nats a token: the primary endpoint is that at 4 L (the
longest, where there is no 4 L), α = 0.1 minus 0, paired over seeds, two-sided t-test at
5 %. Other arms are secondary: corrected by Holm over those of a table. So are other
lengths, and misalignment at each, in tables of their own.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from experiments.language_model import figures, tables
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.curves import read_curves
from vvlen.reporting.tables import markdown, write_table

EXPERIMENT = 'language_model'
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
  made = [make(family, run, index) for family in present
            for make in (tables.by_arm, tables.by_length)]
  evaluations = read_curves(folder / 'evaluations.jsonl')
  with plots.style():
    drawn = {family.name: figures.by_length(family, run, index)
             for family in present}
    if evaluations:
      drawn['evaluations'] = figures.by_step(run, evaluations)
    paths = plots.save(folder / 'figures', drawn)
  text = '\n'.join(map(markdown, made))
  missing = [f'{name} has {seeds} of {run.num_seeds} seeds'
             for name, seeds in have.items() if seeds < run.num_seeds]
  if missing:
    text = f'The run is not finished: {", ".join(missing)}.\n\n{text}'
  return text, [path for each in made for path in write_table(folder, each)] + paths


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


def read_run(config: Mapping[str, Any]) -> Run:
  """Returns what a configuration says, as of configs/language_model.py."""
  arms = {
      name: Arm(name, float(arm['weight']),
                (float(arm['offsets'][0]), float(arm['offsets'][1])),
                float(arm['steps']))
      for name, arm in config['arms'].items()
  }
  return Run(arms, config['control'], int(config['train']['max_length']),
             tuple(map(int, config['evaluate']['lengths'])), int(config['num_seeds']))
