"""Writes the tables and figures of language models. Runs without JAX.

The outcome is perplexity at multiples of the training length L, compared by its
logarithm, in nats per token. The primary endpoint is that at 4 L (or at the longest
length, if 4 L is not measured), α = 0.1 minus α = 0, paired over seeds, with a
two-sided t-test at 5 %. Everything else is secondary and corrected by Holm: other arms
over their table; other lengths, and misalignment at each length, in separate tables.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from experiments.language_model import figures, tables
from experiments.language_model.answer import answer
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.curves import read_curves
from vvlen.reporting.numbers import counted
from vvlen.reporting.page import missing_seeds, Report, unfinished
from vvlen.reporting.tables import write_tables

EXPERIMENT = 'language_model'
BYTES = 256  # words of a text that is read as bytes
_PRIMARY = 0.1  # α
_ABOUT = ('The loss of a language model is its cross-entropy plus α times the '
          'misalignment term, the symmetric cross-entropy (SCE) of its predictions of '
          'the same token from a context and from one that is shorter by the offset '
          'e. L is the training length. Paper: long-short alignment, arXiv '
          '2506.11769, section 5.')


class Arm(NamedTuple):
  """The settings of an arm."""

  name: str
  weight: float  # α
  offsets: tuple[float, float]  # range of e, as fractions of L
  steps: float  # as a share of the control's
  term: str = 'sce'  # the term of the loss whose weight is α


class Family(NamedTuple):
  """Arms that differ in one setting from their control."""

  name: str  # of its table and figure
  title: str
  control: Arm
  others: tuple[Arm, ...]
  primary: str = ''  # the arm of the primary endpoint, if this family has it


class Run(NamedTuple):
  """What the report needs to know about a run, from its config.json."""

  arms: dict[str, Arm]
  control: str
  length: int  # L
  multiples: tuple[int, ...]
  num_seeds: int
  words: str = ''  # on size and training of the models, for titles
  endpoint: int = 4  # length of the primary endpoint, in units of L


def write(workdir: epath.PathLike) -> Report:
  """Writes tables and figures of a run into its folder.

  Args:
    workdir: a folder with config.json and results.csv of language models.

  Returns:
    What the run has found.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  with run_folder.reading(folder / 'config.json', of='language models') as stored:
    run = read_run(stored['config'])
    alone = not stored['config'].get('checkpoint')
    words = BYTES if alone and not stored['config']['text'].get('tokenizer') else None
  rows = results.read_run(folder, EXPERIMENT, run.arms)
  index = results.index(rows)
  have = {name: len(index.get((name, 'nll', run.length), ())) for name in run.arms}
  present = families(run, {name for name, seeds in have.items() if seeds})
  made = [table for family in present for table in (
      tables.by_arm(family, run, index, words), tables.by_length(family, run, index))]
  evaluations = read_curves(folder / 'evaluations.jsonl')
  with plots.style():
    drawn = {family.name: figures.by_length(family, run, index)
             for family in present}
    if evaluations:
      drawn['evaluations'] = figures.by_step(present, run, evaluations)
    paths = plots.save(folder / 'figures', drawn)
  found = answer(present[0], run, index, words) if present else []
  write_tables(folder, made)
  return Report(
      'Does aligning short and long contexts help language models at longer ones?',
      found, made, paths, 1,
      unfinished(missing_seeds(have, run.num_seeds)), _ABOUT)


def families(run: Run, there: set[str]) -> list[Family]:
  """Returns the families of the arms in `there`.

  They are: arms that differ from the control only in α; arms that differ from the
  control, or from one of those, only in the range of offsets; and arms that differ
  from the control in the number of steps.
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
    found.append(Family('equal_time', 'Equal training time', control, timed))
  return found


def check(run: Run) -> None:
  """Raises ValueError unless each arm belongs to a family."""
  found = families(run, set(run.arms))
  shown = {arm.name for family in found for arm in (family.control, *family.others)}
  for name in run.arms:
    if name not in shown:
      raise ValueError(f'arm {name} has nothing to be compared with: it must differ in '
                       'one field from the control or from an arm with another α')


def read_run(config: Mapping[str, Any]) -> Run:
  """Returns the `Run` of a configuration, as in configs/language_model.py."""
  arms = {
      name: Arm(name, float(arm['weight']),
                (float(arm['offsets'][0]), float(arm['offsets'][1])),
                float(arm['steps']))
      for name, arm in config['arms'].items()
  }
  model, steps = config.get('model', {}), config['train'].get('num_steps')
  words = ([f'{counted(model["num_layers"], "layer")} of width {model["width"]}']
           if 'width' in model and not config.get('checkpoint') else [])
  words += [counted(steps, 'step')] if steps else []
  return Run(arms, config['control'], int(config['train']['max_length']),
             tuple(map(int, config['evaluate']['lengths'])), int(config['num_seeds']),
             ', '.join(words))
