"""Writes the tables and figures of models with extended context. Runs without JAX.

Every method is compared with fine-tuning alone, the method `none`, and every arm of a
method with its control, the arm without the misalignment term. The primary endpoint is
log perplexity at 2 L in blocks: α = 0.1 minus α = 0 in each method, paired over seeds,
two-sided t-tests at 5 %, corrected over the methods by Holm. All else is secondary.
"""

from collections.abc import Mapping
import math
from typing import Any

from etils import epath

from experiments.adapt import figures, tables, term_figure
from experiments.adapt.answer import answer, weak_methods, without_extension
from experiments.adapt.misalignment_table import misalignment
from experiments.adapt.paper_table import published
from experiments.adapt.primary import controls, primary_tests
from experiments.adapt.steps_table import steps
from experiments.harness.parts import naming
from experiments.language_model import figures as of_arms
from experiments.language_model import tables as by_term
from experiments.language_model.arms import Arm, Family, Run
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.curves import read_curves
from vvlen.reporting.page import missing_seeds, Report, unfinished
from vvlen.reporting.tables import write_tables

EXPERIMENT = 'adapt'
# Method -> its name in words.
NAMES = {'none': 'fine-tuning alone', 'pi': 'position interpolation', 'ntk': 'NTK',
         'yarn': 'YaRN', 'eabf': 'EABF', 'clex': 'CLEX', 'random': 'random positions',
         'alibi': 'ALiBi'}
_PRIMARY = 0.1  # α
_ABOUT = ('A checkpoint is fine-tuned on inputs longer than those it was trained on, '
          'with methods that change its positions, each with and without α times the '
          'misalignment term, the symmetric cross-entropy of its predictions of the '
          'same token from a longer and a shorter context. L is the length of inputs '
          'in fine-tuning. Paper: long-short alignment, arXiv 2506.11769, section 5.')
_ENDPOINT = 2  # in units of L
_QUESTION = ('What helps a trained model to read longer inputs, and does the '
             'misalignment term help there?')
_PILOT = ('A pilot, whose spread over seeds set the number of seeds of the study; its '
          'tests decide nothing.')


def write(workdir: epath.PathLike) -> Report:
  """Writes tables and figures of a run into its folder.

  Args:
    workdir: a folder with config.json and results.csv of a run of adapt.

  Returns:
    What the run has found.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  with run_folder.reading(folder / 'config.json', of='extended models') as stored:
    config = stored['config']
    run, inputs = read_run(config), config['inputs']
    original, pairs = int(inputs['original_length']), float(inputs['pair_nats'])
    segment = int(config['evaluate'].get('segment', 0)) or run.multiples[-1]
    found, pilot = families(run, config), _is_pilot(stored)
  index = results.index(results.read_run(folder, EXPERIMENT, run.arms))
  have = {name: len(index.get((name, 'nll', run.length), ())) for name in run.arms}
  present = [part for family in found if (part := _present(family, have))]
  alone = {name for name, arm in config['arms'].items() if arm['method'] == 'none'}
  base = next((f.control for f in present if f.control.name in alone), None)
  evaluations = list(read_curves(folder / 'evaluations.jsonl'))
  weak = weak_methods(present, run, index, pairs)
  made = []
  if present:
    made.append(tables.methods(present, base, run, index, evaluations, original, weak))
  if any(family.primary for family in present):
    made += [tables.term(present, run, index, weak), published()]
  # No test is shown of a weak method, and no interval of its differences.
  most = {family: -math.inf if family.title in weak else math.inf
          for family in present if family.others}
  tested = {found.family: (found.by_all, found.least)
            for found in primary_tests(present, run, index)}
  for family, least in most.items():
    made += [
        by_term.by_arm(family, run, index, most=least, primary=tested.get(family)),
        by_term.by_length(family, run, index, most=least)]
  if present:
    made.append(tables.sliding(present, run, index, original, segment))
    made.append(misalignment(present, run, index))
    by_step = steps(present, run, index, config, evaluations)
    made += [by_step] if by_step else []
  with plots.style():
    drawn = {}
    if present:
      drawn['methods'] = figures.methods(present, base, run, index, original, weak)
      if (figure := term_figure.term(present, run, index, weak)) is not None:
        drawn = {'term': figure, **drawn}
    drawn |= {name: of_arms.by_length(part, run, index, least)
              for family, least in most.items()
              for name, part in _in_figures(family).items()}
    paths = plots.save(folder / 'figures', drawn)
  write_tables(folder, made)
  said = [*answer(present, run, index, pairs),
          *without_extension(base, run, evaluations, original)]
  if pilot:
    said[0] = f'{_PILOT} {said[0]}'
  return Report(
      f'{_QUESTION} A pilot' if pilot else _QUESTION, said, made, paths, 1,
      unfinished(missing_seeds(have, run.num_seeds)), _ABOUT)


def _is_pilot(stored: Mapping[str, Any]) -> bool:
  """Returns whether a run's config.json is of the variant study_pilot.

  Its fields do not say so, but the commands that started it do.
  """
  return any(':study_pilot' in session.get('command', '')
             for session in stored.get('sessions', ()))


def _present(family: Family, have: Mapping[str, int]) -> Family | None:
  """Returns a family with the arms that have results, None if its control has none."""
  if not have[family.control.name]:
    return None
  others = tuple(arm for arm in family.others if have[arm.name])
  primary = family.primary if have.get(family.primary) else ''
  return family._replace(others=others, primary=primary)


def _in_figures(family: Family) -> dict[str, Family]:
  """Returns what of a family one figure shows: weights, and the controls of α = 0.1."""
  apart = controls(family)
  weights = tuple(arm for arm in family.others if arm not in apart)
  treated = tuple(arm for arm in weights if arm.name == family.primary)
  parts = {family.name: weights,
           f'{family.name}_controls': (*treated, *apart) if apart else ()}
  return {name: family._replace(others=arms) for name, arms in parts.items() if arms}


def methods_of(config: Any) -> list[str]:
  """Returns the methods of the arms of a configuration, in the order of `NAMES`."""
  used = {arm['method'] for arm in config['arms'].values()}
  return [name for name in NAMES if name in used]


def families(run: Run, config: Mapping[str, Any]) -> list[Family]:
  """Returns the family of each method: its control, without the term, and other arms.

  Raises:
    ValueError: if a method has no arm with α = 0 and all steps, or two such arms.
  """
  found = []
  for method in methods_of(config):
    arms = [run.arms[name] for name, arm in config['arms'].items()
            if arm['method'] == method]
    controls = [arm for arm in arms if not arm.weight and arm.steps == 1]
    if len(controls) != 1:
      raise ValueError(f'method {method} needs one arm with weight 0 and steps 1, its '
                       f'control: {[arm.name for arm in controls]}')
    others = tuple(arm for arm in arms if arm is not controls[0])
    primary = next((arm.name for arm in others if arm._replace(name='') == (
        controls[0]._replace(name='', weight=_PRIMARY))), '')
    found.append(Family(
        controls[0].name, _title(method, config), controls[0], others, primary))
  return found


def check(run: Run, config: Mapping[str, Any]) -> None:
  """Raises ValueError unless each method has one control."""
  with naming('config.arms'):
    families(run, config)


def read_run(config: Mapping[str, Any]) -> Run:
  """Returns the `Run` of a configuration, as in configs/adapt.py."""
  arms = {
      name: Arm(name, float(arm['weight']),
                (float(arm['offsets'][0]), float(arm['offsets'][1])),
                float(arm['steps']), str(arm['term']))
      for name, arm in config['arms'].items()
  }
  train = config['train']
  words = f'{int(train["num_steps"]):,} steps of {int(train["batch_size"])} streams'
  return Run(arms, '', int(train['max_length']),
             tuple(map(int, config['evaluate']['lengths'])), int(config['num_seeds']),
             words, _ENDPOINT)


def _title(method: str, config: Mapping[str, Any]) -> str:
  """Returns a method in words, with how it is trained."""
  rank, groups = config['adapters']['rank'], config['positions']['groups']
  over = config['adapters']['quantized']
  parts = [NAMES[method]]
  parts += [f'adapters of rank {rank}' + f' over {over} weights' * bool(over)
            ] * bool(rank)
  parts += ['shifted sparse attention'] * bool(groups)
  return ', '.join(parts)
