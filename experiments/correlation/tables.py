"""Tables of models and of correlations over them. Runs without JAX.

`table_1` has the primary comparison, with the paper's seven rows recomputed beside it;
all else is secondary. Axes: M models.
"""

import math
from typing import Any

import numpy as np

from experiments.correlation import (
  comparison,
  dialects,
  groups,
  paper,
  term,
  unfinished,
)
from experiments.correlation.comparison import CORRELATION_WORDS, GAIN
from experiments.correlation.points import (
  At,
  compared,
  Field,
  learned,
  OfTask,
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
  primary_within,
  relate,
  Related,
  signs_of,
  with_others,
)
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
  """Returns all tables of a run, the main one first.

  The title of each says which part of the models has results, unless all have.
  """
  used = compared(run, points)
  made = [table_1(run, points), models(run, points)]
  if without_term(points).models:
    made.append(tasks(run, points))
  if used.models:
    made += [measures(run, used), by_length(run, used), groups.table(run, points),
             dialects.table(run, used)]
  if term.has_results(run, points):
    made.append(term.table(run, points))
  part = unfinished.part(run, points)
  return [
      table._replace(title=f'{table.title}. Not finished: {part}') if part else table
      for table in made]


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
  used = compared(run, points)
  for outcome in outcomes(run):
    for word, predictor in (('training loss', TRAINING_LOSS),
                            ('misalignment', run.measure)):
      records.append({
          'outcome': outcome, 'predictor': word, 'source': 'ours',
          'models': len(used.models), **_fields(ours(run, used, predictor, outcome)),
          'printed': math.nan})
  for printed in ('score', 'nll'):
    records += [
        {'outcome': printed, 'predictor': word, 'source': 'the paper',
         'models': len(paper.ROWS), **_fields(published(run, word, printed)),
         'printed': paper.PRINTED[word, printed]}
        for word in ('training loss', 'misalignment')]
  words = OUTCOMES | {'score': 'LongBench-E', 'nll': 'log perplexity at 16k'}
  columns: dict[str, CellText] = {
      'outcome': lambda r: words[r['outcome']],
      'predictor': lambda r: r['predictor'],
      'models': lambda r: f'{r["source"]}, {r["models"]}',
      **_columns(),
      'printed': number_cell('printed', '+.2f'),
  }
  note = (
      f'95 % intervals: {run.num_resamples:,} resamples of the models. Ours: trained '
      f'without the term, that learned each task that counts; misalignment: '
      f'{PREDICTORS[run.measure]} at L, the length of training. The paper: its rows '
      'recomputed.'
      f'{_left_out(points)}'
  )
  more = (
      f'Primary: our row of misalignment and {OUTCOMES[run.outcome]}, {GAIN}, with '
      f"r {CORRELATION_WORDS[run.correlation]}'s; above 0, misalignment predicts "
      'better. All other intervals are secondary and not corrected for being many. '
      'Partial: of what regressions on training loss leave, of values or of their '
      "ranks. With few models the intervals are too narrow: of normals, Pearson's "
      'cover r = 0.7 in 89 % of samples of 7. Training loss: cross-entropy of the last '
      'tenth of the steps, without the misalignment term. Printed: as the paper has '
      'it.'
  )
  return Table('table_1', 'What predicts results on longer inputs', columns, records,
               note, short=('outcome', 'predictor', 'models',
                            f'{CORRELATION_WORDS[run.correlation]} [95 %]'),
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
  out = '; '.join(own.words for own in points.left_out)
  return f' Not finite, and left out: {out}.' if out else ''


def measures(run: Run, points: Points) -> Table:
  """Makes the table of all predictors, a row for each and each outcome."""
  alike = with_others(points)
  records = [
      {'outcome': outcome, 'predictor': predictor,
       **_fields(ours(run, points, predictor, outcome)),
       **interval_fields('within', primary_within(run, alike, predictor, outcome))}
      for outcome in outcomes(run) for predictor in PREDICTORS]
  alike_title = f'{CORRELATION_WORDS[run.correlation]}, same positions and L [95 %]'
  columns: dict[str, CellText] = {
      'outcome': lambda r: OUTCOMES[r['outcome']],
      'predictor': lambda r: PREDICTORS[r['predictor']], **_columns(),
      alike_title: blank_without('within', interval_cell('within', '+.2f'))}
  return Table(
      'measures', 'All predictors', columns, records,
      f'{len(points.models)} models. Predictors are measured at L. Secondary, not '
      'corrected for being many.',
      more='Symmetric KL is SCE without the entropies of both predictions, and the sum '
           'of both KL; half of SCE, a scale of the paper, has the correlations of '
           'SCE. Long and short: of the two predictions of a token, the one with more '
           'context before it, and the other. Same positions and L: less the mean of '
           'models that have these; a correlation that is not found there may be one '
           f'between positions, or lengths. {len(alike.models)} models have others '
           'that are alike.')


def by_length(run: Run, points: Points) -> Table:
  """Makes the table of scores and log perplexity at each length, a row for each."""
  words = {'score': 'score', 'nll': 'log perplexity'}
  first = OUTCOME_METRICS[run.outcome]
  records = [
      {'outcome': name, 'length': n, **_mean(points.means[At(name, n)]),
       **comparison.both(run, points, At(name, n))}
      for name in sorted(words, key=lambda name: name != first)
      for n in run.lengths_of(name)]
  columns: dict[str, CellText] = {
      'outcome': lambda r: words[r['outcome']],
      'length': lambda r: times(r['length']),
      'mean over models': lambda r: number(r['mean'], '.3f'),
      'from': lambda r: number(r['least'], '.3f'),
      'to': lambda r: number(r['most'], '.3f'),
      **comparison.COLUMNS,
  }
  return Table(
      'by_length', 'Correlations with the outcome at each length', columns, records,
      f'{len(points.models)} models. r: {CORRELATION_WORDS[run.correlation]}; '
      f'misalignment: {PREDICTORS[run.measure]}. L: the length of training of each '
      'model. Secondary, not corrected for being many.')


def tasks(run: Run, points: Points) -> Table:
  """Makes the table of scores at each length, a row for each task."""
  plain = without_term(points)
  records: list[dict[str, Any]] = []
  for task in run.tasks:
    record = {'task': task,
              **{guess: float(plain.means[OfTask(task, 1, guess)].mean())
                 for guess in ('chance', 'shortcut')},
              'learned': int(learned(run, plain, task).sum())}
    for n in run.lengths:
      record |= {f'{name}_{n:g}': value
                 for name, value in _mean(plain.means[OfTask(task, n)]).items()}
    records.append(record)
  score = lambda n: lambda r: (f'{number(r[f"mean_{n:g}"], ".3f")} '
                               f'({number(r[f"least_{n:g}"], ".3f")} to '
                               f'{number(r[f"most_{n:g}"], ".3f")})')
  columns: dict[str, CellText] = {
      'task': lambda r: r['task'], 'chance': lambda r: number(r['chance'], '.3f'),
      'shortcut': lambda r: number(r['shortcut'], '.3f'),
      'learned': lambda r: str(r['learned']),
      **{times(n): score(n) for n in run.lengths}}
  return Table(
      'tasks', 'Score of each task by length', columns, records,
      f'Mean over the {len(plain.models)} models without the term, from the lowest to '
      'the highest; dialect official. Learned: models whose score at L, the length of '
      'their training, is at least halfway from the shortcut to 1.',
      more=f'Those that count: {", ".join(run.counting)}. {_GUESSES}')


def _mean(values: np.ndarray) -> dict[str, float]:
  return {'mean': float(values.mean()), 'least': float(values.min()),
          'most': float(values.max())}


def models(run: Run, points: Points) -> Table:
  """Makes the table of models, a row for each, with intervals over seeds."""
  # Name in the CSV -> field, header.
  fields: dict[str, tuple[Field, str]] = {
      TRAINING_LOSS: (TRAINING_LOSS, 'training loss'),
      run.measure: (run.measure, PREDICTORS[run.measure]),
      'nll_1': (At('nll', 1), 'log perplexity at L'),
      'nll_beyond': ('nll_beyond', 'beyond L'),
      'score_1': (At('score', 1), 'score at L'),
      'score_near': ('score_near', 'up to 2 L'),
      'score_far': ('score_far', 'from 2 L on')}
  numbers = {model.name: place for place, model in enumerate(run.models, 1)}
  failed = {task: ~learned(run, points, task) for task in run.counting}
  records: list[dict[str, Any]] = []
  for place, model in enumerate(points.models):
    record: dict[str, Any] = {
        'number': numbers[model.name], 'model': model.name, 'label': model.label,
        'training_length': model.length, 'weight': model.weight,
        'seeds': len(points.seeds['chance'][place]),
        'not_learned': ', '.join(task for task in failed if failed[task][place])}
    for name, (field, _) in fields.items():
      record |= interval_fields(
          name, mean_interval([*points.seeds[field][place].values()]))
    records.append(record | {guess: float(points.means[guess][place])
                             for guess in ('chance', 'shortcut', 'shortcut_near')})
  columns: dict[str, CellText] = {
      'no.': lambda r: str(r['number']), 'model': lambda r: r['label'],
      'L': lambda r: str(r['training_length']),
      'not learned': lambda r: r['not_learned']}
  for name, (_, header) in fields.items():
    columns[header] = interval_cell(name, _form(name))
  return Table(
      'models', f'The models: {run.words}', columns, records,
      'Means over seeds, with 95 % intervals by Student\'s t if there are several. '
      'Numbers are those of the figures. Losses and divergences in nats, scores from '
      f'0 to 1. L: length of training, tokens.{_left_out(points)}',
      more=f'Score: mean over {", ".join(run.counting)}, dialect official, greedy '
           'answers, the same prompts for all models of one L. Training loss and '
           f'{PREDICTORS[run.measure]} at L. Not learned: of these tasks, whose score '
           f'at L is less than halfway from that of a shortcut to 1. {_GUESSES}')


def _form(field: str) -> str:
  return '.4f' if field in ('symmetric_kl', 'js') else '.3f'
