"""Tables of models and of correlations over them. Runs without JAX.

`table_1` has the primary comparison, with the paper's seven rows recomputed beside it;
all else is secondary. Axes: M models.
"""

import math
from typing import Any

import numpy as np

from experiments.correlation import comparison, dialects, groups, paper, term
from experiments.correlation.comparison import CORRELATION_WORDS, GAIN
from experiments.correlation.points import (
  LEARNED,
  OUTCOMES,
  outcomes,
  Points,
  PREDICTORS,
  Run,
  TRAINING_LOSS,
)
from experiments.correlation.related import ours, relate, Related, signs_of
from experiments.language_model.figures import times
from vvlen.reporting.numbers import number
from vvlen.reporting.tables import (
  blank_without,
  CellText,
  interval_cell,
  interval_fields,
  number_cell,
  Table,
)
from vvlen.statistics import mean_interval

# What is said of the two guesses.
_GUESSES = ('Chance: of a guess without the context, where the answer is one of a few '
            'words. Shortcut: of an answer that takes any fitting word of a context '
            'which has several: of the needles any one, of a story the place that is '
            'named last; else chance.')


def make(run: Run, points: Points) -> list[Table]:
  """Returns all tables of a run, the main one first."""
  if run.of_term:
    return [term.table(run, points), models(run, points), tasks(run, points)]
  made = [table_1(run, points), models(run, points), measures(run, points),
          by_length(run, points), groups.table(run, points), tasks(run, points),
          dialects.table(run, points)]
  return made + [term.table(run, points)] * bool(run.pairs)


def learned(points: Points, score: str, shortcut: str) -> int:
  """Returns how many models have learned, by the fields of a score and a shortcut."""
  if not points.models:
    return 0
  return int(np.sum(points.means[score] >= points.means[shortcut] + LEARNED))


def published(run: Run, predictor: str, outcome: str) -> Related:
  """Returns the correlations of the paper's seven rows, as `relate`.

  Args:
    run: for the primary correlation and the resamples.
    predictor: 'training loss' or 'misalignment'.
    outcome: 'score' or 'nll'.
  """
  columns = paper.columns()
  return relate(run, columns[predictor], columns[outcome], columns['training loss'],
                signs_of(predictor, outcome))


def table_1(run: Run, points: Points) -> Table:
  """Makes the main table: a row for each outcome, predictor and set of models."""
  records: list[dict[str, Any]] = []
  for outcome in outcomes(run):
    for word, predictor in (('training loss', TRAINING_LOSS),
                            ('misalignment', run.measure)):
      found = {
          'ours': (len(points.models), ours(run, points, predictor,
                                            f'{outcome}_beyond'), math.nan),
          'the paper': (len(paper.ROWS), published(run, word, outcome),
                        paper.PRINTED[word, outcome])}
      records += [
          {'outcome': outcome, 'predictor': word, 'source': source, 'models': count,
           **_fields(related), 'printed': printed}
          for source, (count, related, printed) in found.items()]
  columns: dict[str, CellText] = {
      'outcome': lambda r: OUTCOMES[r['outcome']],
      'predictor': lambda r: r['predictor'],
      'models': lambda r: f'{r["source"]}, {r["models"]}',
      **_columns(),
      'printed': number_cell('printed', '+.2f'),
  }
  note = (
      f'Means of seeds; intervals: 95 %, of {run.num_resamples:,} '
      f'resamples of the models. Misalignment of ours: {PREDICTORS[run.measure]} at '
      f'the length of training; outcomes at {run.beyond_words}, L = {run.length} '
      f'tokens. The paper: its rows recomputed, outcomes at 16k.'
      f'{_left_out(points)}'
  )
  more = (
      f'Primary: the row of misalignment and {OUTCOMES[run.outcome]}, {GAIN}, with '
      f"r {CORRELATION_WORDS[run.correlation]}'s; above 0, misalignment predicts "
      'better. All other intervals are secondary and not corrected for being many. '
      "Partial: Pearson's of what regressions on training loss leave. With so few "
      'models the intervals are too narrow: of normals they cover r = 0.7 in 91 % of '
      'samples of 14 and in 89 % of 7. Models of one kind are alike: where predictors '
      'and outcome are unrelated but differ between kinds, the interval of the primary '
      'row excludes 0 in 39 % of draws, so that a verdict needs the row within kinds '
      'of the table groups too. Training loss: cross-entropy of the last tenth of the '
      'steps, without the misalignment term. Printed: as the paper has it.'
  )
  return Table('table_1', 'What predicts results on longer inputs', columns, records,
               note, short=('outcome', 'predictor', 'models', 'Pearson [95 %]'),
               more=more)


def _fields(related: Related) -> dict[str, float]:
  """Returns all correlations with their intervals, as the fields of a record."""
  fields: dict[str, float] = {}
  for name, estimate in related._asdict().items():
    fields |= interval_fields(name, estimate)
  return fields


def _columns() -> dict[str, CellText]:
  """Returns the columns of the fields of `_fields`."""
  return {
      f'{words} [95 %]': blank_without(name, interval_cell(name, '+.2f'))
      for name, words in (*CORRELATION_WORDS.items(), ('gain', GAIN))}


def _left_out(points: Points) -> str:
  """Returns a sentence that names the seeds that are left out, '' if none are."""
  out = '; '.join(points.left_out)
  return f' Not finite, and left out: {out}.' if out else ''


def measures(run: Run, points: Points) -> Table:
  """Makes the table of all predictors, a row for each and each outcome."""
  records = [
      {'outcome': outcome, 'predictor': predictor,
       **_fields(ours(run, points, predictor, f'{outcome}_beyond'))}
      for outcome in outcomes(run) for predictor in PREDICTORS]
  columns: dict[str, CellText] = {
      'outcome': lambda r: OUTCOMES[r['outcome']],
      'predictor': lambda r: PREDICTORS[r['predictor']], **_columns()}
  return Table(
      'measures', f'All predictors. Outcomes at {run.beyond_words}', columns, records,
      f'{len(points.models)} models, means of seeds. Predictors are measured at the '
      "length of each model's training. Secondary, not corrected for being many.",
      more='Symmetric KL is SCE without the entropies of both predictions, and the sum '
           'of both KL; half of SCE, a scale of the paper, has the correlations of '
           'SCE. Long and short: of the two predictions of a token, the one with more '
           'context before it, and the other.')


def by_length(run: Run, points: Points) -> Table:
  """Makes the table of outcomes at each length, a row for each."""
  records = [
      {'outcome': outcome, 'length': n, 'multiple': n // run.length,
       **_mean(points.means[f'{outcome}_{n}']),
       **comparison.both(run, points, f'{outcome}_{n}')}
      for outcome in outcomes(run) for n in run.lengths]
  columns: dict[str, CellText] = {
      'outcome': lambda r: OUTCOMES[r['outcome']],
      'length': lambda r: times(r['multiple']),
      'mean over models': lambda r: number(r['mean'], '.3f'),
      'from': lambda r: number(r['least'], '.3f'),
      'to': lambda r: number(r['most'], '.3f'),
      **comparison.COLUMNS,
  }
  return Table(
      'by_length', 'Correlations with the outcome at each length', columns, records,
      f'{len(points.models)} models. r: {CORRELATION_WORDS[run.correlation]}; '
      f'misalignment: {PREDICTORS[run.measure]}. L = {run.length} tokens; some models '
      'were trained on less. Secondary, not corrected for being many.')


def tasks(run: Run, points: Points) -> Table:
  """Makes the table of scores at each length, a row for each task."""
  at_length = points.trained_at(run.length)
  records: list[dict[str, Any]] = []
  for task in run.tasks:
    record = {'task': task,
              **{guess: float(points.means[f'{task}_{guess}'].mean())
                 for guess in ('chance', 'shortcut')},
              'learned': learned(at_length, f'{task}_{run.length}', f'{task}_shortcut')}
    for n in run.lengths:
      record |= {f'{name}_{n}': value
                 for name, value in _mean(points.means[f'{task}_{n}']).items()}
    records.append(record)
  score = lambda n: lambda r: (f'{number(r[f"mean_{n}"], ".3f")} '
                               f'({number(r[f"least_{n}"], ".3f")} to '
                               f'{number(r[f"most_{n}"], ".3f")})')
  columns: dict[str, CellText] = {
      'task': lambda r: r['task'], 'chance': lambda r: number(r['chance'], '.3f'),
      'shortcut': lambda r: number(r['shortcut'], '.3f'),
      'learned': lambda r: str(r['learned']),
      **{times(n // run.length): score(n) for n in run.lengths}}
  return Table(
      'tasks', 'Score of each task by length', columns, records,
      f'Mean over {len(points.models)} models, from the lowest to the highest of them; '
      f'dialect official. Learned: of the {len(at_length.models)} trained at L, those '
      f'whose score at L is at least {LEARNED:g} above the shortcut. L = {run.length} '
      'tokens.',
      more=_GUESSES)


def _mean(values: np.ndarray) -> dict[str, float]:
  return {'mean': float(values.mean()), 'least': float(values.min()),
          'most': float(values.max())}


def models(run: Run, points: Points) -> Table:
  """Makes the table of models, a row for each, with intervals over seeds."""
  fields = (TRAINING_LOSS, run.measure, f'nll_{run.length}', 'nll_beyond',
            f'score_{run.length}', 'score_beyond')
  records: list[dict[str, Any]] = []
  for place, model in enumerate(points.models):
    record: dict[str, Any] = {
        'number': place + 1, 'model': model.name, 'label': model.label,
        'training_length': model.length, 'seeds': len(points.seeds['chance'][place])}
    for field in fields:
      record |= interval_fields(
          field, mean_interval([*points.seeds[field][place].values()]))
    records.append(record | {guess: float(points.means[guess][place])
                             for guess in ('chance', 'shortcut')})
  names = ('training loss', PREDICTORS[run.measure], 'log perplexity at L',
           f'at {run.beyond_words}', 'score at L', f'score at {run.beyond_words}')
  columns: dict[str, CellText] = {
      'no.': lambda r: str(r['number']), 'model': lambda r: r['label']}
  for name, field in zip(names, fields, strict=True):
    columns[f'{name} [95 %]'] = interval_cell(field, _form(field))
  columns['chance'] = lambda r: number(r['chance'], '.3f')
  columns['shortcut'] = lambda r: number(r['shortcut'], '.3f')
  return Table(
      'models', f'The models: {run.words}', columns, records,
      "Means over seeds; intervals over seeds, by Student's t. Numbers are those of "
      'the figures. Losses and divergences in nats; training loss and '
      f"{PREDICTORS[run.measure]} at the length of each model's training; scores from "
      '0 to 1.'
      f'{_left_out(points)}',
      more=f'Score: mean over {", ".join(run.tasks)}, dialect official, greedy '
           f'answers, the same prompts for all. {_GUESSES}')


def _form(field: str) -> str:
  return '.4f' if field in ('symmetric_kl', 'js') else '.3f'
