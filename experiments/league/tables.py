"""The tables of a league. Runs without JAX."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.league.effects import (
  Best,
  Contrast,
  DECIDED,
  Effect,
  Family,
  has_interval,
  NOT_FINISHED,
  Scalar,
)
from experiments.league.names import in_words, name_of
from experiments.league.ranking import sorted_arms
from experiments.league.rates import Choice, CLOSE, EDGE, FAILED, TIE
from vvlen.reporting.numbers import number
from vvlen.reporting.results import Index
from vvlen.reporting.tables import (
  blank_without,
  cell_if,
  CellText,
  difference,
  difference_cell,
  interval_cell,
  number_cell,
  p_cell,
  Record,
  Table,
)

_NAN = float('nan')
# Notes on a choice of a learning rate, in words.
_NOTES = {
    EDGE: 'at the edge of the rates',
    TIE: 'a tie: the smaller one',
    CLOSE: 'not decided',
    FAILED: 'a rate whose loss was not finite was left out',
}


def league_table(
    found: Mapping[str, Sequence[Effect]], choices: Mapping[tuple[str, str], Choice],
    family: Family,
) -> Table:
  """Returns the table of primary endpoints: a row per task and arm, the best first."""
  records: list[Record] = []
  for effects in found.values():
    for effect in sorted(effects, key=lambda e: -_gain(e)):
      records.append(
          {**_record(effect, choices), 'num_tests': family.num_tests})
  shows = lambda r: has_interval(r['verdict'])
  columns = {
      'task': lambda r: in_words(r['task']),
      'arm': lambda r: r['label'],
      'softmax': lambda r: number(r['control'], '.1f'),
      'arm − softmax [95 %]': difference_cell('.1f', interval_if=shows),
      'verdict': lambda r: r['verdict'],
      'p': p_cell('p'),
      'detectable': cell_if(shows, number_cell('smallest_detectable', '.1f')),
      'rate': blank_without('learning_rate', lambda r: (
          f'{r["learning_rate"]:g}{", edge" if r["at_edge"] else ""}')),
      'seeds': lambda r: str(r['seeds']),
      'in training': lambda r: ', '.join(
          f'{number(r[f"training_accuracy{whose}"], ".1f")} '
          f'({number(r[f"least_training_accuracy{whose}"], ".1f")})'
          for whose in ('_control', '')),
      'seeds below 90': lambda r: f'{r["below_control"]}, {r["below"]}',
  }
  note = (
      'Mean accuracy in % beyond the training lengths; arm minus softmax in points, '
      f'paired over seeds. Of {family.num_tests} arms a task: intervals by Bonferroni, '
      'p by Holm. In training: median (worst) seed of softmax and arm; one that '
      'collapsed counts too.'
  )
  more = (
      'Tasks, arms, seeds, endpoint and correction were fixed before the first run. An '
      'arm without a verdict counts as p = 1: not finished or training lengths not '
      'learned (no interval is shown), or diverged, that is, the accuracy of a seed, '
      'or of softmax at that seed, is not finite; the interval is of the others. An '
      f'interval may contain 0 where p is below {family.level:g}. Detectable: the '
      'difference that would be found four times in five, at the level of the '
      'intervals. Rate: chosen on other seeds; p and intervals are of the arms at '
      'these rates, and do not hold what other seeds of the tuning would have chosen. '
      'Edge: the smallest or largest of those tried, so that one outside may train '
      'better. In training: accuracy in % over the last tenth of training. A seed far '
      'below the median has not learned as the others have, and stays in the test. '
      'Seeds below 90 there, of softmax and of the arm: with more than a tenth there '
      'is no verdict; up to a tenth stay in the test.'
  )
  return Table('league', 'What each arm gains over softmax beyond the training lengths',
               columns, records, note, more=more,
               short=('task', 'arm', 'arm − softmax [95 %]', 'p'))


def _gain(effect: Effect) -> float:
  """Returns the gain of an arm, −∞ without a test, to sort by."""
  return effect.test.mean_difference if effect.test else -np.inf


def _record(effect: Effect, choices: Mapping[tuple[str, str], Choice]) -> Record:
  treated, control = effect.comparison.primary_means
  test = effect.test
  choice = choices.get((effect.task, effect.arm))
  return {
      'task': effect.task, 'arm': effect.arm, 'label': name_of(effect.arm).label,
      'kind': name_of(effect.arm).kind, 'control': control, 'treated': treated,
      **difference(effect.shown), 'p': effect.corrected.p if effect.corrected else _NAN,
      'p_uncorrected':
          test.p if test and effect.verdict != NOT_FINISHED else _NAN,
      'verdict': effect.verdict, 'smallest_detectable': effect.detectable,
      'learning_rate': choice.rate if choice else _NAN,
      'at_edge': bool(choice and EDGE in choice.notes),
      'seeds': len(effect.comparison.primary_differences),
      'training_accuracy_control': 100 * effect.training_accuracy[0],
      'training_accuracy': 100 * effect.training_accuracy[1],
      'least_training_accuracy_control': 100 * effect.least_training[0],
      'least_training_accuracy': 100 * effect.least_training[1],
      'below_control': effect.not_learned[0], 'below': effect.not_learned[1],
      'learned_control': effect.learned[0], 'learned': effect.learned[1],
  }


def by_task_table(found: Mapping[str, Sequence[Effect]], family: Family) -> Table:
  """Returns the table of gains, a row per arm and a column per task.

  It has no rows if there are fewer than two tasks.
  """
  arms = sorted_arms(found) if len(found) > 1 else []
  effects = {(task, x.arm): x for task, own in found.items() for x in own}
  records: list[Record] = []
  for arm in arms:
    record = {'arm': arm, 'label': name_of(arm).label}
    for task in found:
      record |= _gain_fields(effects.get((task, arm)), f'{task}_')
    records.append(record)
  columns: dict[str, CellText] = {'arm': lambda r: r['label']}
  columns |= {f'{in_words(task)} [95 %]': _gain_cell(f'{task}_') for task in found}
  note = ('Arm minus softmax, in points of mean accuracy beyond the training lengths, '
          'paired over seeds. Intervals by Bonferroni over the '
          f'{family.num_tests} arms of a task.')
  more = ('Arms are sorted by their mean gain over the tasks that all have. Empty: not '
          'run, or too few seeds. Words beside a gain say why it has no verdict; '
          'verdicts are in the table `league`: by Holm, an arm may be ahead though its '
          'interval holds 0. An end that is shown as 0.0 may lie on either side of 0.')
  return Table('by_task', 'What each arm gains on each task', columns, records, note,
               more=more)


def _gain_fields(effect: Effect | None, prefix: str) -> Record:
  """Returns a gain, its interval and verdict; nan and '' without a result."""
  return {**difference(effect.shown if effect else None, prefix),
          f'{prefix}verdict': effect.verdict if effect else ''}


def _gain_cell(prefix: str) -> CellText:
  """Returns the cell of `_gain_fields` with a prefix."""
  verdict = f'{prefix}verdict'
  words = lambda r: '' if r[verdict] in DECIDED else f', {r[verdict]}'
  shown = difference_cell('.1f', prefix, lambda r: has_interval(r[verdict]))
  return blank_without(f'{prefix}difference', lambda r: f'{shown(r)}{words(r)}')


def laws_table(best: Sequence[Best]) -> Table:
  """Returns the table of the best law of temperature of each task."""
  records = [{
      'task': each.task, 'best': each.arms[0], 'second': each.arms[1],
      'accuracy_best': each.means[0], 'accuracy_second': each.means[1],
      **difference(each.test), 'laws': each.num_laws, 'seeds': each.test.num_pairs,
  } for each in best]
  columns = {
      'task': lambda r: in_words(r['task']),
      'best law': lambda r: name_of(r['best']).label,
      'accuracy': lambda r: number(r['accuracy_best'], '.1f'),
      'second best': lambda r: name_of(r['second']).label,
      'its accuracy': lambda r: number(r['accuracy_second'], '.1f'),
      'best − second [95 %]': blank_without('difference', difference_cell('.1f')),
      'of laws': lambda r: str(r['laws']),
      'seeds': lambda r: str(r['seeds']),
  }
  note = ('Mean accuracy in % beyond the training lengths. Softmax, whose β is 1, is a '
          'law too. Intervals are uncorrected, and the best is chosen by the same '
          'seeds, so they are descriptive.')
  more = ('SSMax and log n are the same law up to a factor that W_Q and W_K can hold. '
          'Trained adaptive follows the entropy of the weights, not n.')
  return Table('laws', 'The law of temperature that goes farthest', columns, records,
               note, more=more)


def contrasts_table(found: Sequence[Contrast]) -> Table:
  """Returns the table of differences between arms other than softmax."""
  records = [{
      'task': x.task, 'first': x.arms[0], 'second': x.arms[1], 'longest': x.longest,
      **difference(x.test), **difference(x.at_longest, 'longest_'),
      'seeds': x.test.num_pairs,
  } for x in found]
  columns = {
      'task': lambda r: in_words(r['task']),
      'difference': lambda r: (f'{name_of(r["first"]).label} − '
                               f'{name_of(r["second"]).label}'),
      'beyond training [95 %]': difference_cell('.1f'),
      'at the longest [95 %]': difference_cell('.1f', 'longest_'),
      'items there': lambda r: f'{r["longest"]:,}',
      'seeds': lambda r: str(r['seeds']),
  }
  note = ('Accuracy in points, paired over seeds: means over the lengths beyond '
          'training, and at the longest one. Uncorrected. SSMax and log n are one law '
          'up to a factor that W_Q W_K can hold: they differ by optimization and rate.')
  return Table('contrasts', 'Temperatures compared, alone and with LN', columns,
               records, note)


def scalars_table(found: Sequence[Scalar]) -> Table:
  """Returns the table of learned scalars."""
  records = [{
      'task': x.task, 'arm': x.arm, 'scalar': x.name, 'value': x.mean,
      'value_low': x.low, 'value_high': x.high, 'seeds': x.num_seeds,
  } for x in found]
  columns = {
      'task': lambda r: in_words(r['task']),
      'arm': lambda r: name_of(r['arm']).label,
      'scalar': lambda r: r['scalar'],
      'at the end [95 %]': interval_cell('value', '.3f'),
      'seeds': lambda r: str(r['seeds']),
  }
  note = 'Learned scalars after the last step: means over seeds.'
  more = ('s of SSMax starts at 1 / ln n₀, of √log n at 1 / √(2 ln n₀), of the sink at '
          '0; p and b start at 0, g at log₂(n₀² − n₀).')
  return Table('scalars', 'Learned scalars at the end of training', columns, records,
               note, more=more)


def tuning_table(
    choices: Mapping[tuple[str, str], Choice], family: Family
) -> Table:
  """Returns the table of the learning rates: a row per task and arm."""
  records = [{
      'task': task, 'arm': arm, 'learning_rate': choice.rate,
      **{f'loss_{rate:g}': choice.losses.get(rate, _NAN) for rate in family.rates},
      **difference(choice.second),
      'notes': '; '.join(_NOTES[note] for note in choice.notes),
  } for (task, arm), choice in choices.items()]
  columns: dict[str, Any] = {
      'task': lambda r: in_words(r['task']),
      'arm': lambda r: name_of(r['arm']).label,
      'chosen': lambda r: f'{r["learning_rate"]:g}',
  }
  for rate in family.rates:
    columns[f'loss at {rate:g}'] = (
        lambda r, field=f'loss_{rate:g}':
            'not finite' if np.isnan(r[field]) else number(r[field], '.4f'))
  columns['second best − chosen [95 %]'] = blank_without(
      'difference', difference_cell('.4f'))
  columns['note'] = lambda r: r['notes']
  note = ('Loss in nats over the last tenth of training, at the training lengths, mean '
          'over the seeds of tuning. Test lengths have no part in the choice.')
  more = ('Second best: the difference from the rate that was not chosen, paired by '
          'seed. Not decided: its interval holds 0, so other seeds of the tuning might '
          'have chosen that rate. At the edge: a rate outside those tried might be '
          'better.')
  return Table('tuning', 'The learning rate of each arm', columns, records, note,
               more=more)


def by_length_table(task: str, index: Index, family: Family) -> Table:
  """Returns the table of mean accuracy by length in one task: a row per arm."""
  lengths = sorted({n for _, name, n in index if name == 'accuracy' and n is not None})
  records = [
      {'arm': arm, **{f'accuracy_{n}': _mean(index.get((arm, 'accuracy', n), {}))
                      for n in lengths}}
      for arm in family.arms if (arm, 'training_accuracy', None) in index
  ]
  columns: dict[str, Any] = {'arm': lambda r: name_of(r['arm']).label}
  for n in lengths:
    columns[f'{n:,}'] = number_cell(f'accuracy_{n}', '.1f')
  words = in_words(task).capitalize()
  note = 'Accuracy in %, means over the seeds where it is finite, by number of items.'
  return Table(
      f'by_length_{task}', f'{words}: accuracy by length', columns, records, note)


def targets_table(indices: Mapping[str, Index], family: Family) -> Table:
  """Returns the table of how the items asked for are attended, at the longest inputs.

  It has no rows of tasks that ask for no single items.
  """
  records: list[Record] = []
  for task, index in indices.items():
    of = lambda arm, metric, n, index=index: index.get((arm, metric, n), {})
    longest = max((n for _, metric, n in index if n and metric == 'target_weight'),
                  default=0)
    # Of softmax, runs before there was `target_first` have the same share of other
    # sequences: half of the weight can be given to no item but the first.
    records += [{
        'task': task, 'arm': arm, 'length': longest,
        'accuracy': _mean(of(arm, 'accuracy', longest)),
        'target_first': _mean(
            of(arm, 'target_first', longest) or of(arm, 'found', longest)),
        'target_weight': _mean(of(arm, 'target_weight', longest)),
        'seeds': len(of(arm, 'target_weight', longest)),
    } for arm in family.arms if of(arm, 'target_weight', longest)]
  columns = {
      'task': lambda r: in_words(r['task']),
      'arm': lambda r: name_of(r['arm']).label,
      'items': lambda r: f'{r["length"]:,}',
      'accuracy': number_cell('accuracy', '.1f'),
      'largest weight': number_cell('target_first', '.1f'),
      'its weight': number_cell('target_weight', '.1f'),
      'seeds': lambda r: str(r['seeds']),
  }
  note = ('The item that is asked for, at the longest inputs, means over seeds in %: '
          'how often the answer is right, how often this item has more weight than '
          'every other, and its weight.')
  more = ('Empty: not measured; of softmax it may be of other sequences. An item that '
          'has the largest weight may still have little of it: then a temperature may '
          'help. One that has not is out of order: no temperature changes that. '
          'Weights of sigmoid, L2 softmax, the sink and an arm of your own need not '
          'sum to 1.')
  return Table('targets', 'The item asked for: in order, and in weight', columns,
               records, note, more=more)


def _mean(values: Mapping[int, float]) -> float:
  finite = [100 * x for x in values.values() if np.isfinite(x)]
  return float(np.mean(finite)) if finite else _NAN
