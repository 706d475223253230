"""What is known of each model: numbers by seed, and their means. Runs without JAX.

  predictors   measured where training has been: training loss over the last tenth of
               the steps; log perplexity and misalignment on held-out text at the length
               of the model's own training
  outcomes     the score of the benchmark, and log perplexity, both means over the
               lengths beyond L, the longest length on which any model was trained: the
               same numbers of tokens for all models

Training loss is the cross-entropy alone, without the misalignment term that the loss of
some models has too.
"""

from collections.abc import Mapping, Sequence
import math
from typing import Any, NamedTuple

import numpy as np

from experiments.harness.scales import SCALES
from vvlen.reporting.numbers import counted
from vvlen.reporting.plots import ARMS
from vvlen.reporting.results import index, Row
from vvlen.statistics import pearson, spearman

EXPERIMENT = 'correlation'
# Fields of a configuration that may change between starts of a run: text and tokenizer
# are identified by their content; intervals are made in the report.
MAY_DIFFER = ('text.path', 'text.tokenizer', 'inputs.text', 'num_resamples')
TRAINING_LOSS = 'training_cross_entropy'
# Of misalignment, fields of `vvlen.objectives.measures.Measures`.
MEASURES = tuple(name for name in SCALES if name != 'half_sce')
# Predictors, and outcomes -> their names in words.
PREDICTORS = {
    TRAINING_LOSS: 'training loss', 'nll': 'log perplexity at training length',
    **{name: SCALES[name] for name in MEASURES},
}
# Dialect of the scorers -> name of its metric.
METRICS = {'official': 'score', 'lm_eval': 'score_lm_eval', 'strict': 'score_strict'}
OUTCOMES = {'score': 'score', 'nll': 'log perplexity'}
CORRELATIONS = {'pearson': pearson, 'spearman': spearman}
_POSITIONS = {'rope': 'RoPE', 'alibi': 'ALiBi', 'none': 'no positions'}
# A model has learned the tasks if its score at L is that much above the shortcut.
LEARNED = 0.1
LEAST = 5  # models; over fewer, no correlation is reported


class Model(NamedTuple):
  """What tables need to know about a model."""

  name: str
  label: str
  length: int  # of its training, in tokens
  positions: str  # in words
  kind: str = ''  # equal for models with the same positions and length of training


class Run(NamedTuple):
  """What the report needs to know about a run, from its config.json."""

  models: tuple[Model, ...]
  length: int  # L, in tokens
  lengths: tuple[int, ...]  # at which all models are measured, in tokens, L first
  tasks: tuple[str, ...]
  measure: str  # the measure of misalignment that is tested, a key of PREDICTORS
  outcome: str  # the primary one, a key of OUTCOMES
  correlation: str  # the primary one, a key of CORRELATIONS
  num_seeds: int
  num_resamples: int
  seed: int
  words: str  # on size and training of the models, for titles
  weights: Mapping[str, float]  # α of each model
  # (with the misalignment term, without it): models that differ in nothing else
  pairs: tuple[tuple[str, str], ...]

  @property
  def beyond(self) -> tuple[int, ...]:
    """Returns the lengths beyond L."""
    return tuple(n for n in self.lengths if n > self.length)

  @property
  def beyond_words(self) -> str:
    """Returns the lengths beyond L in words, in units of L."""
    multiples = [n // self.length for n in self.beyond]
    return (f'{multiples[0]} L' if len(multiples) == 1
            else f'{multiples[0]} to {multiples[-1]} L')

  @property
  def of_term(self) -> bool:
    """Returns whether the run is of the misalignment term alone."""
    return len(self.models) < LEAST and bool(self.pairs)


class Points(NamedTuple):
  """The models that have results: M of them."""

  models: tuple[Model, ...]
  # field -> [M], means over seeds. Fields are PREDICTORS; OUTCOMES with the suffix
  # _beyond, or _LENGTH for each length; TASK_LENGTH, the score of a task, and with a
  # suffix _lm_eval or _strict that of another dialect; chance, shortcut, TASK_chance
  # and TASK_shortcut, at L.
  means: Mapping[str, np.ndarray]
  # field -> values of each model by seed
  seeds: Mapping[str, list[dict[int, float]]]
  left_out: Sequence[str]  # seeds with a value that is not finite, as 'model, seed 3'

  def only(self, kept: Sequence[bool]) -> 'Points':
    """Returns some of the models, [M] True for those that are kept."""
    places = np.flatnonzero(kept)
    return self._replace(
        models=tuple(self.models[i] for i in places),
        means={field: x[places] for field, x in self.means.items()},
        seeds={field: [x[i] for i in places] for field, x in self.seeds.items()})

  def trained_at(self, length: int) -> 'Points':
    """Returns the models that were trained at a length, in tokens."""
    return self.only([model.length == length for model in self.models])


def outcomes(run: Run) -> list[str]:
  """Returns the outcomes, the primary one first."""
  return sorted(OUTCOMES, key=lambda name: name != run.outcome)


def read_run(config: Mapping[str, Any]) -> Run:
  """Returns the `Run` of a configuration, as in configs/correlation.py."""
  length, model = int(config['train']['max_length']), config['model']
  primary = config['primary']
  steps = counted(int(config['train']['num_steps']), 'step')
  if min(float(fields['steps']) for fields in config['models'].values()) < 1:
    steps = f'up to {steps}'
  layers = counted(int(model['num_layers']), 'layer')
  words = f'{layers} of width {int(model["width"])}, {steps}'
  return Run(
      tuple(Model(name, _label(fields), length // int(fields['shorter']),
                  _POSITIONS[fields['positions']], _kind(fields))
            for name, fields in config['models'].items()),
      length, tuple(int(n) * length for n in config['evaluate']['lengths']),
      tuple(map(str, config['benchmark']['tasks'])), str(primary['measure']),
      str(primary['outcome']), str(primary['correlation']), int(config['num_seeds']),
      int(config['num_resamples']), int(config['seed']), words,
      {name: float(fields['weight']) for name, fields in config['models'].items()},
      _pairs(config['models']))


def _pairs(models: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
  """Returns the names (with the term, without it) of models that are compared."""
  plain = {_but_weight(fields): name for name, fields in models.items()
           if not fields['weight']}
  return tuple((name, plain[_but_weight(fields)]) for name, fields in models.items()
               if fields['weight'] and _but_weight(fields) in plain)


def _but_weight(fields: Mapping[str, Any]) -> str:
  """Returns a key that is equal for models that differ in their weight α alone."""
  return repr(sorted((name, tuple(x) if isinstance(x, list) else x)
                     for name, x in fields.items() if name != 'weight'))


def _kind(fields: Mapping[str, Any]) -> str:
  """Returns a model's positions and length of training in words."""
  alike = dict(fields, norm='none', steps=1, weight=0, offsets=(0, 0.5))
  return _label(alike)


def _label(fields: Mapping[str, Any]) -> str:
  """Returns a model in words: its positions, and what else differs from the others."""
  parts = [_POSITIONS[fields['positions']]]
  if fields['positions'] == 'rope':
    parts[0] += f' {float(fields["rope_base"]):,.0f}'
  if fields['stretched'] != 'none':
    parts.append(f'measured with {fields["stretched"]}')
  if fields['norm'] != 'none':
    parts.append(f'{ARMS[fields["norm"]][0]} after attention')
  if fields['shorter'] != 1:
    parts.append(f'trained at L/{int(fields["shorter"])}')
  if fields['steps'] != 1:
    parts.append(f'{float(fields["steps"]):g} of the steps')
  if fields['weight']:
    parts.append(f'α = {float(fields["weight"]):g}')
  if tuple(fields['offsets']) != (0, 0.5):
    parts.append('e / L in {:g}..{:g}'.format(*map(float, fields['offsets'])))
  return ', '.join(parts)


def points(run: Run, rows: Sequence[Row]) -> Points:
  """Returns the values of all models that have results.

  Args:
    run: what the rows are of.
    rows: of results.csv.
  """
  own = index([row for row in rows if row.experiment == EXPERIMENT])
  by_task = {task: index([row for row in rows if row.experiment == task])
             for task in run.tasks}

  def mean_of_tasks(name: str, metric: str, length: int) -> dict[int, float]:
    found = [by_task[task].get((name, metric, length), {}) for task in run.tasks]
    seeds = set.intersection(*map(set, found))
    return {seed: float(np.mean([x[seed] for x in found])) for seed in sorted(seeds)}

  present, values, left_out = [], [], []
  for model in run.models:
    name, at = model.name, model.length
    fields = {field: own.get((name, field, None if field == TRAINING_LOSS else at), {})
              for field in PREDICTORS}
    for n in run.lengths:
      fields[f'nll_{n}'] = own.get((name, 'nll', n), {})
      fields[f'score_{n}'] = mean_of_tasks(name, 'score', n)
    for guess in ('chance', 'shortcut'):
      fields[guess] = mean_of_tasks(name, guess, run.length)
      fields |= {f'{task}_{guess}': found.get((name, guess, run.length), {})
                 for task, found in by_task.items()}
    fields |= {f'{task}_{n}{metric.removeprefix("score")}': found.get(
        (name, metric, n), {}) for task, found in by_task.items()
               for metric in METRICS.values() for n in run.lengths}
    seeds = sorted(set.intersection(*map(set, fields.values())))
    bad = [s for s in seeds if not all(math.isfinite(x[s]) for x in fields.values())]
    left_out += [f'{name}, seed {s}' for s in bad]
    seeds = [s for s in seeds if s not in bad]
    for outcome in OUTCOMES:
      fields[f'{outcome}_beyond'] = {
          s: float(np.mean([fields[f'{outcome}_{n}'][s] for n in run.beyond]))
          for s in seeds}
    if seeds:
      present.append(model)
      values.append({field: {s: x[s] for s in seeds} for field, x in fields.items()})
  names = values[0] if values else {}
  by_field = {field: [own[field] for own in values] for field in names}
  means = {field: np.array([np.mean([*x.values()]) for x in every])
           for field, every in by_field.items()}
  return Points(tuple(present), means, by_field, left_out)
