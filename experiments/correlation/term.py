"""What the misalignment term changes, by pairs of models. Runs without JAX.

  outcome with the term − outcome without it

The models of a pair differ in the weight α of the term alone, and one has α = 0: they
have the same initial weights, text and prompts. Pairs count if both models have learned
each task that counts. The mean score beyond L up to 2 L is tested without correction
for α = 0.1, and told beside the score at L, from which it starts; L is the length of
training. All else is secondary, such as what is carried over to longer inputs,

  mean score beyond L up to 2 L − score at L

which damage at L raises too; single tasks, of the pairs that learned them; and the
pairs of which a model has not learned, as the term may be why. The unit is a pair, so
the mean is over positions, norms and steps.
"""

from typing import NamedTuple

import numpy as np

from experiments.correlation.points import (
  At,
  Field,
  learned,
  OfTask,
  OUTCOMES,
  Points,
  PREDICTORS,
  Run,
)
from experiments.language_model.figures import times
from vvlen.reporting.numbers import counted, interval_words, number, p_value, p_words
from vvlen.reporting.tables import difference, difference_cell, p_of, Table
from vvlen.statistics import detectable, paired_t_test, PairedTest

PRIMARY = 0.1  # α
FIELD = 'score_near'  # the primary field, of `Points`
CARRIED = 'carried'  # a field that `Points` does not have


class Changed(NamedTuple):
  """A field of P pairs of models."""

  test: PairedTest | None  # None: fewer than two pairs
  treated: np.ndarray  # [P], with the term
  control: np.ndarray  # [P]


def pairs(
    run: Run, points: Points, weight: float, task: str | None = ''
) -> list[tuple[int, int]]:
  """Returns the places in `points` of pairs (with the term, without) that learned.

  Args:
    run: what was run.
    points: the models that have results.
    weight: α of the term.
    task: that both must have learned; '': each that counts; None: none.
  """
  known = (np.ones(len(points.models), bool) if task is None
           else learned(run, points, task))
  places = {model.name: place for place, model in enumerate(points.models)
            if known[place]}
  weights = {model.name: model.weight for model in run.models}
  return [(places[a], places[b]) for a, b in run.pairs
          if weights[a] == weight and a in places and b in places]


def changed(
    run: Run, points: Points, weight: float, field: Field, task: str | None = ''
) -> Changed:
  """Returns what the term changes in a field of `Points`, or in `CARRIED`."""
  found = [_of_pair(points, pair, field) for pair in pairs(run, points, weight, task)]
  treated, control = np.array([x for x in found if x], float).reshape(-1, 2).T
  test = paired_t_test(treated, control) if len(treated) > 1 else None
  return Changed(test, treated, control)


def _of_pair(
    points: Points, pair: tuple[int, int], field: Field
) -> tuple[float, float] | None:
  """Returns the means of a field over the seeds that both models have; None if none."""
  if field == CARRIED:
    near, at = (_of_pair(points, pair, x) for x in ('score_near', At('score', 1)))
    return near and at and (near[0] - at[0], near[1] - at[1])
  own, other = (points.seeds[field][place] for place in pair)
  seeds = own.keys() & other.keys()
  mean = lambda values: float(np.mean([values[seed] for seed in sorted(seeds)]))
  return (mean(own), mean(other)) if seeds else None


def has_results(run: Run, points: Points) -> bool:
  """Whether there is a pair of models that both have results."""
  return any(pairs(run, points, weight, task=None) for weight in _weights(run))


def table(run: Run, points: Points) -> Table:
  """Makes the table: a row for each weight and field, the primary one first."""
  records = []
  for weight in _weights(run):
    for name, words, field, task in _lines(run):
      found = changed(run, points, weight, field, task)
      mean = lambda x: float(x.mean()) if x.size else np.nan
      records.append({
          'weight': weight, 'field': name, 'words': words,
          'control': mean(found.control), 'treated': mean(found.treated),
          **difference(found.test), 'p': p_of(found.test),
          'pairs': len(found.treated), 'smallest_detectable': detectable(found.test)})
  columns = {
      'α': lambda r: f'{r["weight"]:g}', 'of': lambda r: r['words'],
      'without the term': lambda r: number(r['control'], '.3f'),
      'with it': lambda r: number(r['treated'], '.3f'),
      'difference [95 %]': difference_cell('.3f'), 'p': lambda r: p_value(r['p']),
      'pairs': lambda r: str(r['pairs']),
      'smallest detectable': lambda r: number(r['smallest_detectable'], '.3f'),
  }
  return Table(
      'term', 'What the misalignment term changes', columns, records,
      'Pairs of models that both learned each task that counts; p: paired two-sided '
      't-test. '
      f'Primary: {OUTCOMES[FIELD]}, α = {PRIMARY:g}; all else is secondary and not '
      'corrected. All pairs: learned or not; of a task: that learned it.',
      more='Smallest detectable: the difference that so many pairs with this spread '
           'find four times in five at the 5 % level. The models of a pair have the '
           'same settings, initial weights, text and prompts. L: the length of '
           'training.')


class _Line(NamedTuple):
  """A row of the table, for each weight."""

  name: str  # in the CSV
  words: str
  field: Field  # of `Points`, or `CARRIED`
  task: str | None = ''  # as in `pairs`


def _lines(run: Run) -> list[_Line]:
  """Returns the rows of the table, the primary one first."""
  near = OUTCOMES[FIELD]
  return [
      _Line(FIELD, near, FIELD),
      _Line('all_pairs', f'{near}, all pairs', FIELD, None),
      _Line('all_pairs_1', 'score at L, all pairs', At('score', 1), None),
      _Line(CARRIED, f'{near} less that at L', CARRIED),
      *(_Line(name, words, name) for name, words in OUTCOMES.items() if name != FIELD),
      *(_Line(f'{task}_near', f'{task} up to 2 L', OfTask(task, 'near'), task)
        for task in run.tasks),
      *(_Line(name, f'{PREDICTORS[name]} at L', name)
        for name in dict.fromkeys((run.measure, 'sce'))),
      *(_Line(f'{metric}_{n:g}', f'{words} at {times(n)}', At(metric, n))
        for metric, words in (('score', 'score'), ('nll', 'log perplexity'))
        for n in run.lengths_of(metric))]


def _weights(run: Run) -> list[float]:
  """Returns the weights of pairs, the primary one first."""
  weights = {model.name: model.weight for model in run.models}
  return sorted({weights[a] for a, _ in run.pairs}, key=lambda x: (x != PRIMARY, x))


def sentence(run: Run, points: Points) -> str:
  """Says what the term at α = 0.1 changes; '' if no pair is planned."""
  if PRIMARY not in _weights(run):
    return ''
  test = changed(run, points, PRIMARY, FIELD).test
  what = f'The misalignment term with α = {PRIMARY:g}'
  weights = {model.name: model.weight for model in run.models}
  planned = sum(weights[a] == PRIMARY for a, _ in run.pairs)
  lost = planned - len(pairs(run, points, PRIMARY, task=None))
  of_lost = f' Of {counted(lost, "pair")}, a value is not finite.' * (lost > 0)
  of_all = changed(run, points, PRIMARY, FIELD, task=None).test
  if test is None or np.isnan(test.p):
    over_all = (f' Over all pairs, it changes the {OUTCOMES[FIELD]} by {_by(of_all)}.'
                if of_all else '')
    return (f'{what}: no verdict, as fewer than two pairs learned each task that '
            f'counts, or all changed alike.{over_all}{of_lost}')
  said = (f'{what} changes the {OUTCOMES[FIELD]} by {_by(test)}, {p_words(test.p)}, '
          f'{test.num_pairs} of {counted(planned, "pair")} of models, those that '
          'learned each task that counts')
  if not test.p < 0.05:
    said += ('; no difference was found, and one of '
             f'{number(detectable(test), ".3f")} would be found four times in five')
  at_length = changed(run, points, PRIMARY, At('score', 1)).test
  return (f'{said}. The score at L it changes by {_by(at_length)}; over all pairs, '
          f'that up to 2 L by {_by(of_all)}.{of_lost}')


def _by(test: PairedTest | None) -> str:
  """Returns a difference with its interval."""
  if test is None:
    return 'an unknown amount'
  ends = '' if np.isnan(test.ci_low) else (
      f' {interval_words(test.ci_low, test.ci_high, "+.3f")}')
  return f'{number(test.mean_difference, "+.3f")}{ends}'
