"""What the correlations over models say, in sentences. Runs without JAX."""

from collections.abc import Sequence
import math

from experiments.correlation import term
from experiments.correlation.points import (
    At,
    compared,
    OUTCOME_METRICS,
    OUTCOMES,
    outcomes,
    Points,
    PREDICTORS,
    Run,
    TRAINING_LOSS,
    without_term,
)
from experiments.correlation.related import (
    ours,
    Related,
    signs_of,
    with_others,
    within,
)
from experiments.correlation.tables import published
from experiments.correlation.unfinished import how_many
from vvlen.reporting.numbers import counted, interval_words, number

FEWEST = 12  # models, for a verdict
ABOVE = 0.1  # of the mean score up to 2 L above that of shortcuts, at least
SPREAD = 0.05  # standard deviation of the score up to 2 L over models, at least
_BETTER = {1: 'misalignment predicts it better than training loss',
           -1: 'training loss predicts it better than misalignment', 0: ''}
ALIKE = 0.2  # two correlations are alike if their difference is surely smaller


def answer(run: Run, points: Points) -> list[str]:
  """Says whether misalignment predicts the outcomes better than training loss does.

  There is no verdict before all seeds of all models have results, for fewer models than
  `FEWEST`, or if their scores up to 2 L are near those of shortcuts or hardly differ.
  What is found over all models counts if it is found among models that are alike too.

  Args:
    run: what was run.
    points: the models that have results.

  Returns:
    Sentences. The second one says how many models have learned the tasks, unless none
    has results.
  """
  used = compared(run, points)
  count = how_many(run, points)
  reason = (f'{count} have results, and it is about all of them' if count
            else _no_verdict(used))
  said = [f'No verdict: {reason}.'] if reason else [
      _of_outcome(run, used, outcome) for outcome in outcomes(run)]
  trained = [_of_training(run, points)] if without_term(points).models else []
  of_term = [] if count else [term.sentence(run, points)]
  return [*said[:1], *trained, *said[1:], *filter(None, of_term), _of_paper(run)]


def _no_verdict(used: Points) -> str:
  """Returns why there can be no verdict over models, '' if there can."""
  count = len(used.models)
  if count < FEWEST:
    return (f'{counted(count, "model")} that learned each task that counts, without '
            f'the misalignment term, fewer than {FEWEST}')
  score = used.means['score_near']  # a condition of other outcomes too
  above = score.mean() - used.means['shortcut_near'].mean()
  if above < ABOVE:
    return (f'the mean score up to 2 L, {number(score.mean(), ".3f")}, is less than '
            f'{ABOVE:g} above that of shortcuts')
  if score.std(ddof=1) < SPREAD:
    return ('scores up to 2 L hardly differ: their standard deviation over models is '
            f'{number(score.std(ddof=1), ".3f")}, less than {SPREAD:g}')
  return ''


def _of_training(run: Run, points: Points) -> str:
  """Says how many models have learned the tasks, and how they do beyond L."""
  plain, used = without_term(points), compared(run, points)
  own = used if used.models else plain
  mean = lambda field: number(float(own.means[field].mean()), '.3f')
  lost = _lost(run, points)
  left_out = f' {counted(lost, "more model")} had a value that is not finite.' * (
      lost > 0)
  return (
      f'{len(used.models)} of {counted(len(plain.models), "model")} '
      'without the misalignment term have learned each task that counts, '
      f'{" and ".join(run.counting)}, that is, have at L, the length of their '
      f'training, scores at least halfway from those of shortcuts to 1.{left_out} '
      'Mean score of '
      f'{"these" if used.models else "all"}: {mean(At("score", 1))} at L, '
      f'{mean("score_near")} up to 2 L, '
      f'{mean("score_far")} from 2 L on; shortcuts have {mean("shortcut")} at L and '
      f'{mean("shortcut_near")} up to 2 L.')


def _lost(run: Run, points: Points) -> int:
  """Returns how many models without the term have no seed with finite values."""
  out = _not_finite(points) - {model.name for model in points.models}
  return sum(model.name in out and not model.weight for model in run.models)


def _not_finite(points: Points) -> set[str]:
  """Returns the names of models of which a seed has a value that is not finite."""
  return {own.model for own in points.left_out}


def _of_outcome(run: Run, points: Points, outcome: str) -> str:
  """Says how well misalignment and training loss predict an outcome."""
  alike = with_others(points)
  names = run.measure, TRAINING_LOSS
  signs = signs_of(run.measure, OUTCOME_METRICS[outcome])
  misalignment, loss = (ours(run, points, name, outcome) for name in names)
  found_within, loss_within = (within(run, alike, name, outcome) for name in names)
  predicts, alike_predicts = (
      [_predicts(run, related, sign) for related, sign in zip(both, signs, strict=True)]
      for both in ((misalignment, loss), (found_within, loss_within)))
  what = f'{OUTCOMES[outcome]} over {counted(len(points.models), "model")}'
  what = (f'{what[0].upper()}{what[1:]}' if outcome == run.outcome
          else f'Secondary: {what}')
  if math.isnan(misalignment.gain.ci_low):
    return f'{what}: no verdict, as a correlation is undefined.'
  odd = [', against the direction that is claimed,' * _predicts(run, related, -sign)
         for related, sign in zip((misalignment, loss), signs, strict=True)]
  said = (f'{what}: {_verdict(misalignment, found_within, predicts, alike_predicts)}. '
          f'{_r(run, misalignment)}{odd[0]} with misalignment '
          f'({PREDICTORS[run.measure]} at L), {_r(run, loss)}{odd[1]} with training '
          'loss; r of misalignment minus that of training loss, both in the direction '
          f'that is claimed, is {_gain(misalignment)}')
  if math.isnan(found_within.gain.ci_low):
    return f'{said}. Too few models have the same positions and L for a control.'
  return (f'{said}. Among models with the same positions and L, '
          f'{counted(len(alike.models), "model")}: {_r(run, found_within)} and '
          f'{_r(run, loss_within)}, and the difference is {_gain(found_within)}.')


def _predicts(run: Run, related: Related, sign: float) -> bool:
  """Whether the interval of r lies above 0 in the direction that is claimed."""
  _, low, high = getattr(related, run.correlation)
  return min(sign * low, sign * high) > 0


def _verdict(
    over_all: Related, among: Related, predicts: Sequence[bool],
    alike_predicts: Sequence[bool],
) -> str:
  """Returns what the intervals of the differences of r say.

  Args:
    over_all: of misalignment, over all models.
    among: among models that are alike.
    predicts: whether misalignment, and training loss, predict the outcome at all.
    alike_predicts: the same among models that are alike.
  """
  _, low, high = over_all.gain
  misalignment, training_loss = predicts
  but = _but(among, alike_predicts)
  if not misalignment and not training_loss:
    return f'neither misalignment nor training loss is found to predict it{but}'
  if misalignment and training_loss and -ALIKE < low and high < ALIKE:
    return f'misalignment and training loss predict it equally well{but}'
  said = _BETTER[over_all.better]
  # What predicts nothing may still differ from a relation of the other sign.
  if not said or not (misalignment if over_all.better > 0 else training_loss):
    return 'undecided whether misalignment or training loss predicts it better'
  if math.isnan(among.gain.ci_low):
    return f'undecided, as {said} over all models, without a control'
  if among.better == over_all.better:
    return f'{said}, over all models and among those with the same positions and L'
  return (f'undecided, as {said} over all models but not among those with the same '
          'positions and L')


def _but(among: Related, predicts: Sequence[bool]) -> str:
  """Returns a warning if one predicts better among models that are alike, else ''."""
  if not (among.better and predicts[among.better < 0]):
    return ''
  return (' over all models, though among those with the same positions and L '
          f'{_BETTER[among.better]}')


def _r(run: Run, related: Related) -> str:
  value, low, high = getattr(related, run.correlation)
  return f'r = {number(value, "+.2f")} {interval_words(low, high, "+.2f")}'


def _gain(related: Related) -> str:
  value, low, high = related.gain
  return f'{number(value, "+.2f")} {interval_words(low, high, "+.2f")}'


def _of_paper(run: Run) -> str:
  """Returns a sentence on the paper's seven rows, recomputed."""
  found = {outcome: published(run, 'misalignment', outcome)
           for outcome in ('score', 'nll')}
  words = {'score': 'LongBench-E', 'nll': 'log perplexity'}
  parts = ', '.join(f'{_gain(related)} for {words[outcome]}'
                    for outcome, related in found.items())
  decided = [words[outcome] for outcome, related in found.items()
             if related.better]
  verdict = (f'that decides {" and ".join(decided)}' if decided
             else 'seven models do not decide it')
  return (f"The paper's seven rows, recomputed: r of misalignment, in the direction "
          f'that is claimed, minus that of training loss is {parts}; {verdict}.')
