"""What is known of each model: numbers by seed, and their means. Runs without JAX.

Lengths are multiples of L, the length of a model's own training.

  predictors   measured at L: training loss over the last tenth of the steps; log
               perplexity and misalignment on held-out text
  outcomes     the mean score of the benchmark over lengths beyond L up to 2 L, and over
               those from 2 L on; mean log perplexity beyond L

Training loss is the cross-entropy alone, without the misalignment term that the loss of
some models has too. Correlations are over the models that were trained without the term
and have learned each task that counts: at L, its score lies at least halfway from that
of a shortcut to 1. Models that have learned nothing agree with themselves at all
lengths, and have low scores, so they would turn the sign of the correlation. The score
is the mean over the tasks that count; others are measured beside them.
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
    TRAINING_LOSS: 'training loss', 'nll': 'log perplexity at L',
    **{name: SCALES[name] for name in MEASURES},
}
OUTCOMES = {'score_near': 'score up to 2 L', 'score_far': 'score from 2 L on',
            'nll_beyond': 'log perplexity beyond L'}
# Outcome -> what it is a mean of.
OUTCOME_METRICS = {'score_near': 'score', 'score_far': 'score', 'nll_beyond': 'nll'}
# Dialect of the scorers -> name of its metric.
METRICS = {'official': 'score', 'lm_eval': 'score_lm_eval', 'strict': 'score_strict'}
CORRELATIONS = {'pearson': pearson, 'spearman': spearman}
_POSITIONS = {'rope': 'RoPE', 'alibi': 'ALiBi', 'none': 'no positions'}
LEAST = 5  # models; over fewer, no correlation is reported


class Model(NamedTuple):
  """What tables need to know about a model."""

  name: str
  label: str
  length: int  # L, of its training, in tokens
  positions: str  # in words
  weight: float = 0.0  # α of the misalignment term

  def tokens(self, multiple: float) -> int:
    """Returns a multiple of L in tokens."""
    return round(multiple * self.length)


class At(NamedTuple):
  """A field of `Points`: the score, or log perplexity, at a length."""

  metric: str  # 'score' or 'nll'
  n: float  # in units of L


class OfTask(NamedTuple):
  """A field of `Points`: a number of a task."""

  task: str
  at: float | str  # n, in units of L; or 'near', the mean over lengths as score_near
  metric: str = 'score'  # or that of another dialect, chance or shortcut


Field = str | At | OfTask


class ModelSeed(NamedTuple):
  """A seed of a model."""

  model: str
  seed: int

  @property
  def words(self) -> str:
    """Returns it in words."""
    return f'{self.model}, seed {self.seed}'


class Run(NamedTuple):
  """What the report needs to know about a run, from its config.json."""

  models: tuple[Model, ...]
  lengths: tuple[float, ...]  # of the benchmark, in units of L, 1 first
  nll_lengths: tuple[float, ...]  # of log perplexity, likewise
  tasks: tuple[str, ...]  # of the benchmark
  counting: tuple[str, ...]  # those of them that count
  measure: str  # the measure of misalignment that is tested, a key of PREDICTORS
  outcome: str  # the primary one, a key of OUTCOMES
  correlation: str  # the primary one, a key of CORRELATIONS
  num_seeds: int
  num_resamples: int
  seed: int
  words: str  # on size and training of the models, for titles
  # (with the misalignment term, without it): models that differ in nothing else
  pairs: tuple[tuple[str, str], ...]

  @property
  def near(self) -> tuple[float, ...]:
    """Returns the lengths of the benchmark beyond L, up to 2 L."""
    return tuple(n for n in self.lengths if 1 < n <= 2)

  @property
  def far(self) -> tuple[float, ...]:
    """Returns the lengths of the benchmark from 2 L on."""
    return tuple(n for n in self.lengths if n >= 2)

  def lengths_of(self, metric: str) -> tuple[float, ...]:
    """Returns the lengths at which 'score' or 'nll' is measured."""
    return self.lengths if metric == 'score' else self.nll_lengths


class Points(NamedTuple):
  """The models that have results: M of them."""

  models: tuple[Model, ...]
  # field -> [M], means over seeds. Fields are PREDICTORS; OUTCOMES; chance and
  # shortcut, at L; shortcut_near, a mean over lengths as score_near; and those of the
  # types `At` and `OfTask`.
  means: Mapping[Field, np.ndarray]
  # field -> values of each model by seed
  seeds: Mapping[Field, list[dict[int, float]]]
  left_out: Sequence[ModelSeed]  # those with a value that is not finite

  def only(self, kept: Sequence[bool] | np.ndarray) -> 'Points':
    """Returns some of the models, [M] True for those that are kept."""
    places = np.flatnonzero(kept)
    return self._replace(
        models=tuple(self.models[i] for i in places),
        means={field: x[places] for field, x in self.means.items()},
        seeds={field: [x[i] for i in places] for field, x in self.seeds.items()})


def without_term(points: Points) -> Points:
  """Returns the models that were trained without the misalignment term."""
  return points.only([not model.weight for model in points.models])


def learned(run: Run, points: Points, task: str = '') -> np.ndarray:
  """Returns which models have learned a task, or each that counts, [M] bool."""
  tasks = (task,) if task else run.counting
  if not points.models:
    return np.zeros(0, bool)
  of = points.means
  return np.all([
      of[OfTask(x, 1)] >= (1 + np.maximum(
          of[OfTask(x, 1, 'shortcut')], of[OfTask(x, 1, 'chance')])) / 2
      for x in tasks], axis=0)


def compared(run: Run, points: Points) -> Points:
  """Returns the models over which correlations are: without the term, and learned."""
  plain = without_term(points)
  return plain.only(learned(run, plain))


def outcomes(run: Run) -> list[str]:
  """Returns the outcomes, the primary one first."""
  return sorted(OUTCOMES, key=lambda name: name != run.outcome)


def read_run(config: Mapping[str, Any]) -> Run:
  """Returns the `Run` of a configuration, as in configs/correlation.py."""
  train, model, primary = (config[name] for name in ('train', 'model', 'primary'))
  shares = [float(fields['steps']) for fields in config['models'].values()]
  least, most = (round(x * train['num_steps']) for x in (min(shares), max(shares)))
  steps = counted(most, 'step') if least == most else f'{least:,} to {most:,} steps'
  layers = counted(int(model['num_layers']), 'layer')
  return Run(
      tuple(Model(name, _label(fields), round(fields['length'] * train['max_length']),
                  _positions(fields), float(fields['weight']))
            for name, fields in config['models'].items()),
      tuple(map(float, config['benchmark']['lengths'])),
      tuple(map(float, config['evaluate']['lengths'])),
      tuple(map(str, config['benchmark']['tasks'])), tuple(map(str, primary['tasks'])),
      str(primary['measure']), str(primary['outcome']), str(primary['correlation']),
      int(config['num_seeds']), int(config['num_resamples']), int(config['seed']),
      f'{layers} of width {int(model["width"])}, {steps}', _pairs(config['models']))


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


def _positions(fields: Mapping[str, Any]) -> str:
  """Returns the positions of a model in words."""
  words = _POSITIONS[fields['positions']]
  return f'{words} {fields["rope_base"]:,.0f}' if words == 'RoPE' else words


def _label(fields: Mapping[str, Any]) -> str:
  """Returns a model in words: its positions, and what else differs from the others."""
  parts = [_positions(fields)]
  if fields['norm'] != 'none':
    parts.append(f'{ARMS[fields["norm"]][0]} after attention')
  if fields['length'] != 1:
    parts.append(f'{float(fields["length"]):g} of the length')
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
  known = {name: index([row for row in rows if row.experiment == name])
           for name in (EXPERIMENT, *run.tasks)}
  present, values, left_out = [], [], []
  for model in run.models:
    fields = _fields(run, model, known)
    seeds = sorted(set.intersection(*map(set, fields.values())))
    bad = [s for s in seeds if not all(math.isfinite(x[s]) for x in fields.values())]
    left_out += [ModelSeed(model.name, s) for s in bad]
    seeds = [s for s in seeds if s not in bad]
    if seeds:
      present.append(model)
      values.append({field: {s: x[s] for s in seeds} for field, x in fields.items()})
  names = values[0] if values else {}
  by_field = {field: [own[field] for own in values] for field in names}
  means = {field: np.array([np.mean([*x.values()]) for x in every])
           for field, every in by_field.items()}
  return Points(tuple(present), means, by_field, left_out)


_BySeed = dict[int, float]
_Known = Mapping[str, Mapping[tuple[str, str, int | None], _BySeed]]


def _fields(run: Run, model: Model, known: _Known) -> dict[Field, _BySeed]:
  """Returns {field of `Points`: values by seed} of a model.

  Args:
    run: what the rows are of.
    model: of the run.
    known: {column experiment: values by (arm, metric, length)}.
  """
  def of(experiment: str, metric: str, n: float | None = 1.0) -> _BySeed:
    length = None if n is None else model.tokens(n)
    return known[experiment].get((model.name, metric, length), {})

  fields: dict[Field, _BySeed] = {
      name: of(EXPERIMENT, name, None if name == TRAINING_LOSS else 1.0)
      for name in PREDICTORS}
  fields |= {At('nll', n): of(EXPERIMENT, 'nll', n) for n in run.nll_lengths}
  for n in run.lengths:
    fields |= {OfTask(task, n, metric): of(task, metric, n)
               for task in run.tasks for metric in METRICS.values()}
    fields[At('score', n)] = _mean([of(task, 'score', n) for task in run.counting])
  for guess in ('chance', 'shortcut'):
    fields |= {OfTask(task, 1, guess): of(task, guess) for task in run.tasks}
    fields[guess] = _mean([of(task, guess) for task in run.counting])
  fields |= {OfTask(task, 'near'): _mean([of(task, 'score', n) for n in run.near])
             for task in run.tasks}
  fields['shortcut_near'] = _mean(
      [of(task, 'shortcut', n) for task in run.counting for n in run.near])
  for outcome, lengths in (('score_near', run.near), ('score_far', run.far),
                           ('nll_beyond', [n for n in run.nll_lengths if n > 1])):
    metric = OUTCOME_METRICS[outcome]
    fields[outcome] = _mean([fields[At(metric, n)] for n in lengths])
  return fields


def _mean(found: Sequence[_BySeed]) -> _BySeed:
  """Returns the mean of several values, of the seeds that have all of them."""
  seeds = set.intersection(*map(set, found))
  return {seed: float(np.mean([x[seed] for x in found])) for seed in sorted(seeds)}
