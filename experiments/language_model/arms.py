"""The arms of a run of language models, and which of them are compared.

Runs without JAX.
"""

from collections.abc import Mapping
import math
from typing import Any, NamedTuple

from vvlen.reporting.numbers import counted
from vvlen.reporting.results import Index
from vvlen.statistics import mean_interval

# Fields of a configuration that may change between starts of a run: text, tokenizer and
# checkpoint are identified by their content, not their path; a mesh changes results
# only by rounding.
MAY_DIFFER = (
    'train.save_every_steps', 'mesh.data', 'mesh.fsdp', 'mesh.tensor', 'checkpoint',
    'text.path', 'text.tokenizer', 'inputs.text',
)
_PRIMARY = 0.1  # α


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
  words: str = ''  # on the models, for titles
  endpoint: int = 4  # length of the primary endpoint, in units of L
  steps: int | None = None  # of the control, for titles, unless `words` tells them


def endpoint(run: Run) -> int:
  """Returns the length of the primary endpoint."""
  multiple = run.endpoint if run.endpoint in run.multiples else run.multiples[-1]
  return multiple * run.length


def without_learning(run: Run, index: Index, most: float) -> set[str]:
  """Returns the names of arms that have results and have not learned.

  Args:
    run: the run.
    index: of its rows.
    most: the log perplexity at L above which a model has not learned.
  """
  there = [name for name in run.arms if index.get((name, 'nll', run.length))]
  return {name for name in there if not _loss(name, run, index) <= most}


def have_learned(
    family: Family, arm: str, run: Run, index: Index, most: float
) -> bool:
  """Returns whether both models of a comparison have learned, by their loss at L.

  Args:
    family: the arms, whose control is the other model.
    arm: name of an arm.
    run: the run.
    index: of the rows of the run.
    most: the log perplexity at L above which a model has not learned.
  """
  return all(_loss(name, run, index) <= most for name in (family.control.name, arm))


def _loss(arm: str, run: Run, index: Index) -> float:
  """Returns the mean log perplexity of an arm at L, nan without results."""
  own = index.get((arm, 'nll', run.length), {})
  return float(mean_interval([*own.values()] or [math.nan])[0])


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
  words = (f'{counted(model["num_layers"], "layer")} of width {model["width"]}'
           if 'width' in model and not config.get('checkpoint') else '')
  return Run(arms, config['control'], int(config['train']['max_length']),
             tuple(map(int, config['evaluate']['lengths'])), int(config['num_seeds']),
             words, steps=steps)
