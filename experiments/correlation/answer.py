"""What the correlations over models say, in sentences. Runs without JAX."""

import math

from experiments.correlation import tables, term
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
from experiments.correlation.related import (
    in_kinds,
    ours,
    Related,
    signs_of,
    within_kinds,
)
from experiments.correlation.tables import published
from vvlen.reporting.numbers import counted, interval_words, number

_SHARE = 0.5  # of the models trained at L, at least, must have learned


def answer(run: Run, points: Points) -> list[str]:
  """Says whether misalignment predicts the outcomes better than training loss does.

  There is no verdict for fewer models than `LEAST`, nor if less than half of the models
  that were trained at L have learned the tasks. Then scores are mostly those of
  shortcuts, and log perplexity is mostly that of prompts that are not answered. What is
  found over all models counts if it is found within kinds of models too. A run of the
  misalignment term alone is answered by what the term changes.

  Args:
    run: what was run.
    points: the models that have results.

  Returns:
    Sentences. The second one says how many models have learned the tasks, unless none
    has results.
  """
  count, of_paper = len(points.models), _of_paper(run)
  at_length = points.trained_at(run.length)
  learned = tables.learned(at_length, f'score_{run.length}', 'shortcut')
  enough = 0 < len(at_length.models) <= learned / _SHARE
  of_term = [term.sentence(run, points)] if enough else []
  if run.of_term and count and enough:
    said, of_term = of_term, []
  elif count < LEAST and not (run.of_term and count):
    said = [f'No verdict: {count} model{"s" * (count != 1)} with results, fewer than '
            f'{LEAST}.']
  elif not enough:
    said = ['No verdict: fewer than half of the models have learned the tasks.']
  else:
    said = [_of_outcome(run, points, outcome) for outcome in outcomes(run)]
  trained = [_of_training(run, at_length, learned)] if at_length.models else []
  if run.of_term:
    return [*said, *trained, *(term.by_length(run, points) if count else [])]
  return [*said[:1], *trained, *said[1:], *filter(None, of_term), of_paper]


def _of_training(run: Run, points: Points, learned: int) -> str:
  """Says how many models have learned the tasks."""
  score = points.means[f'score_{run.length}']
  shortcut, chance = (points.means[name].mean() for name in ('shortcut', 'chance'))
  return (
      f'At L, {run.length} tokens, {learned} of {counted(len(score), "model")} trained '
      f'there have learned the tasks, a score of at least {LEARNED:g} above that of '
      f'shortcuts: mean score {number(score.mean(), ".3f")}, from '
      f'{number(score.min(), ".3f")} to {number(score.max(), ".3f")}; shortcuts have '
      f'{number(shortcut, ".3f")}, chance is {number(chance, ".3f")}, and 1 is the '
      'most.')


def _of_outcome(run: Run, points: Points, outcome: str) -> str:
  """Says how well misalignment and training loss predict an outcome."""
  field, kinds = f'{outcome}_beyond', in_kinds(points)
  loss, misalignment = (ours(run, points, name, field)
                        for name in (TRAINING_LOSS, run.measure))
  loss_within, within = (within_kinds(run, kinds, name, field)
                         for name in (TRAINING_LOSS, run.measure))
  what = (f'{OUTCOMES[outcome].capitalize()} at {run.beyond_words} over '
          f'{len(points.models)} models')
  if outcome != run.outcome:
    what = f'Secondary: {what[0].lower()}{what[1:]}'
  if math.isnan(misalignment.gain.ci_low):
    return f'{what}: no verdict, as a correlation is undefined.'
  odd = '' if _as_in_paper(run, misalignment, outcome) else (
      ', against the sign that the paper has')
  said = (f'{what}: {_verdict(misalignment, within)}. {_r(run, misalignment)}{odd} '
          f'with misalignment ({PREDICTORS[run.measure]} at the length of training), '
          f'{_r(run, loss)} with training loss; r, in the direction that is claimed, '
          f'differs by {_gain(misalignment)}')
  if math.isnan(within.gain.ci_low):
    return f'{said}. Too few models are alike for a control within kinds.'
  return (f'{said}. Within kinds, models with the same positions and length of '
          f'training, {len(kinds.models)} models: {_r(run, within)} and '
          f'{_r(run, loss_within)}, which differ by {_gain(within)}.')


def _as_in_paper(run: Run, misalignment: Related, outcome: str) -> bool:
  """Whether r has the sign that is claimed, and that the paper has."""
  r = getattr(misalignment, run.correlation).value
  return r * signs_of(run.measure, outcome)[0] >= 0


def _verdict(over_all: Related, within: Related) -> str:
  """Returns what the intervals of the differences of r say."""
  better = {1: 'misalignment predicts it better than training loss',
            -1: 'training loss predicts it better than misalignment'}
  if not over_all.better:
    return 'undecided whether misalignment or training loss predicts it better'
  said = better[over_all.better]
  if within.better == over_all.better:
    return f'{said}, over all models and within kinds of them'
  return f'undecided, as {said} over all models but not within kinds of them'


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
  return (f"The paper's seven rows, recomputed: r of misalignment, in the direction "
          f'that is claimed, minus that of training loss is {parts}; {verdict}.')
