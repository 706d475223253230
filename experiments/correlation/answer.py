"""What the correlations over models say, in sentences. Runs without JAX."""

import math

import numpy as np

from experiments.correlation import groups, term
from experiments.correlation.paper import PRINTED
from experiments.correlation.points import (
    LEARNED,
    LEAST,
    OUTCOMES,
    outcomes,
    Points,
    PREDICTORS,
    Run,
    TRAINING_LOSS,
)
from experiments.correlation.related import ours, Related
from experiments.correlation.tables import published
from vvlen.reporting.numbers import counted, interval_words, number

_SHARE = 0.5  # of the models, at least, must have learned for a verdict


def answer(run: Run, points: Points) -> list[str]:
  """Says whether misalignment predicts the outcomes better than training loss does.

  There is no verdict for fewer models than `LEAST`, nor on scores if less than half of
  the models have learned the tasks at L. Then scores are mostly chance, and log
  perplexity is mostly that of prompts that are not answered. A run of the misalignment
  term alone is answered by what the term changes.

  Args:
    run: what was run.
    points: the models that have results.

  Returns:
    Sentences. The second one says how many models have learned the tasks, unless none
    has results.
  """
  count, of_paper = len(points.models), _of_paper(run)
  score = points.means[f'score_{run.length}'] if count else np.array([])
  chance = points.means['chance'] if count else score
  learned = int(np.sum(score >= chance + LEARNED))
  enough = 0 < count <= learned / _SHARE
  of_term = [term.sentence(run, points)] if enough else []
  control: list[str] = []
  if run.of_term and count and enough:
    said, of_term = of_term, []
  elif count < LEAST and not (run.of_term and count):
    said = [f'No verdict: {count} model{"s" * (count != 1)} with results, fewer than '
            f'{LEAST}.']
  elif not enough:
    said = ['No verdict: fewer than half of the models have learned the tasks.']
  else:
    said = [_of_outcome(run, points, outcome) for outcome in outcomes(run)]
    control = [_within_kinds(run, points)]
  trained = [
      f'At L, {run.length} tokens, {learned} of {counted(count, "model")} have learned '
      f'the tasks, a score of at least {LEARNED:g} above chance: mean score '
      f'{number(score.mean(), ".3f")}, from {number(score.min(), ".3f")} to '
      f'{number(score.max(), ".3f")}; chance is {number(chance.mean(), ".3f")}, and 1 '
      'is the most.'] if count else []
  if run.of_term:
    return [*said, *trained, *(term.by_length(run, points) if count else [])]
  return [*said[:1], *trained, *control, *said[1:], *filter(None, of_term), of_paper]


def _of_outcome(run: Run, points: Points, outcome: str) -> str:
  """Says how well misalignment and training loss predict an outcome."""
  field = f'{outcome}_beyond'
  loss, misalignment = (ours(run, points, name, field)
                        for name in (TRAINING_LOSS, run.measure))
  what = (f'{OUTCOMES[outcome].capitalize()} at {run.beyond_words} over '
          f'{len(points.models)} models')
  if outcome != run.outcome:
    what = f'Secondary: {what[0].lower()}{what[1:]}'
  if math.isnan(misalignment.gain.ci_low):
    return f'{what}: no verdict, as a correlation is undefined.'
  odd = '' if _as_in_paper(run, misalignment, outcome) else (
      ', against the sign that the paper has')
  return (f'{what}: {_verdict(misalignment)}. {_r(run, misalignment)}{odd} with '
          f'misalignment ({PREDICTORS[run.measure]} at the length of training), '
          f'{_r(run, loss)} with training loss; |r| differs by {_gain(misalignment)}.')


def _within_kinds(run: Run, points: Points) -> str:
  """Says what is left of the primary correlations among models of one kind."""
  part, field = groups.within_kinds(points), f'{run.outcome}_beyond'
  what = ('Control, as positions and training length may move both: less the means of '
          'models alike in these')
  loss, misalignment = (
      ours(run, part, name, field) for name in (TRAINING_LOSS, run.measure))
  if math.isnan(misalignment.gain.ci_low):
    return f'{what}, too few models are left.'
  return (f'{what}, over {len(part.models)} models: {_r(run, misalignment)} with '
          f'misalignment, {_r(run, loss)} with training loss; |r| differs by '
          f'{_gain(misalignment)}.')


def _as_in_paper(run: Run, misalignment: Related, outcome: str) -> bool:
  """Whether r has the sign of the paper: negative of scores, else positive."""
  r = getattr(misalignment, run.correlation).value
  if run.measure == 'top1_agreement':  # falls with misalignment
    r = -r
  return r * PRINTED['misalignment', outcome] >= 0


def _verdict(related: Related) -> str:
  """Returns what the interval of the difference of |r| says."""
  return {
      1: 'misalignment predicts it better than training loss',
      -1: 'training loss predicts it better than misalignment',
      0: 'undecided whether misalignment or training loss predicts it better',
  }[related.better]


def _r(run: Run, related: Related) -> str:
  value, low, high = getattr(related, run.correlation)
  return f'r = {number(value, "+.2f")} {interval_words(low, high, "+.2f")}'


def _gain(related: Related) -> str:
  value, low, high = related.gain
  return f'{number(value, "+.2f")} {interval_words(low, high, "+.2f")}'


def _of_paper(run: Run) -> str:
  """Returns a sentence on the paper's seven rows, recomputed."""
  found = {outcome: published(run, 'misalignment', outcome)
           for outcome in outcomes(run)}
  words = {'score': 'LongBench-E', 'nll': 'log perplexity'}
  parts = ', '.join(f'{_gain(related)} for {words[outcome]}'
                    for outcome, related in found.items())
  decided = [words[outcome] for outcome, related in found.items()
             if related.better]
  verdict = (f'that decides {" and ".join(decided)}' if decided
             else 'seven models do not decide it')
  return (f"The paper's seven rows, recomputed: |r| of misalignment minus that of "
          f'training loss is {parts}; {verdict}.')
