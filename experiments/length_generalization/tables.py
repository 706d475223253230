"""Tables of length generalization, from tidy rows. Runs without JAX.

Tables 1 and 3 (retrieval) or 2 and 6 (lookup) of arXiv 2504.02827, or Table 4 or 5 if
lengths grow during training; the primary endpoint; and a table about training.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import functools
import itertools
import math
from typing import Any

from experiments.length_generalization.answer import NOT_LEARNED
from vvlen.reporting import results
from vvlen.reporting.endpoints import (
  compare,
  Comparison,
  LEARNED,
  median_accuracy,
  not_converged,
)
from vvlen.reporting.numbers import name_seeds, number, p_value
from vvlen.reporting.plots import ADAPTATIONS, ARMS
from vvlen.reporting.tables import (
  cell_if,
  CellText,
  difference,
  difference_cell,
  left_out,
  Table,
)
from vvlen.statistics import detectable, PairedTest

NAMES = {arm: name for arm, (name, _, _) in ARMS.items()}
# Task -> the paper's numbers of its tables of accuracy and of gain. With lengths that
# grow during training the paper has no table of gain; tasks that are not in the paper
# are not listed.
TABLES = {
    'retrieval': ('1', '3'), 'lookup': ('2', '6'),
    'retrieval_growing': ('4', None), 'lookup_growing': ('5', None),
}
# Pairs of arms, treated and control, of the paper's tables of gain.
GAINS = (
    ('standardize', 'none'), ('layer_norm', 'none'), ('layer_norm', 'standardize'),
)
# Other pairs of arms to test, where a run has both: in the table of the primary
# endpoint alone, uncorrected.
OTHERS: tuple[tuple[str, str], ...] = ()
FEW_PAIRS = 20
# A row of a table with a column per length: its label, its values, and their text.
ModelRow = tuple[str, Iterable[float], Callable[[float], str]]
_TEMPERATURES = {
    'adaptive': 'the published adaptive temperature at test time (arXiv 2410.01104)',
    'fitted': 'an adaptive temperature that is fitted, for each seed, to validation '
              'sequences of the lengths evaluate.fit_lengths',
}


def make_tables(
    index: results.Index, trained_up_to: int = 16, task: str = 'retrieval',
    chance: float | None = None,
) -> list[Table]:
  """Makes all tables for which the arms have results.

  Args:
    index: from `vvlen.reporting.results.index`.
    trained_up_to: the longest training length.
    task: as in the column experiment; `TABLES` lists those of the paper.
    chance: share of right answers by guessing; None if it is not known.

  Returns:
    The tables of accuracy and of gain, with the paper's numbers if the task is in the
    paper, else named `accuracy` and `gain`; `primary_endpoint`; and `training`.
  """
  arms = {arm for arm, _, _ in index}
  accuracy, gain = TABLES.get(task, ('', ''))

  def pairs(*names: tuple[str, str]) -> list[Comparison]:
    return [
        compare(index, treated, control, trained_up_to=trained_up_to)
        for treated, control in names if arms.issuperset((treated, control))
    ]

  against_baseline = pairs(*(('layer_norm' + s, 'none' + s) for s in ADAPTATIONS))
  gains = pairs(*GAINS)
  tables = []
  if against_baseline:
    tables.append(_by_model(
        f'{main_table(task)}_by_model',
        (f'Table {accuracy} in the form of the paper. ' if accuracy else '')
        + 'Accuracy in %', against_baseline, chance))
    tables.append(_by_length(
        main_table(task),
        (f'Table {accuracy}. ' if accuracy else '')
        + 'Accuracy by length, with and without LayerNorm after attention',
        against_baseline, trained_up_to,
    ))
  if len(gains) == len(GAINS) and gain is not None:
    tables.append(_gain_by_model(
        f'table_{gain}_by_model' if gain else 'gain_by_model',
        (f'Table {gain} in the form of the paper. ' if gain else '')
        + 'Gain of accuracy in points', gains))
    tables.append(_by_length(
        f'table_{gain}' if gain else 'gain',
        (f'Table {gain}. ' if gain else '')
        + 'Gain of standardization and of LayerNorm over the Baseline',
        gains, trained_up_to,
    ))
  others = [c for c in gains if (c.treated, c.control) != ('layer_norm', 'none')]
  primary = against_baseline + others + pairs(*OTHERS)
  if primary:
    learned = {
        arm: median_accuracy(index[arm, 'training_accuracy', None]) for arm in NAMES
        if (arm, 'training_accuracy', None) in index
    }
    tables.append(_primary_endpoint(
        primary, trained_up_to, learned, chance))
  tables.append(_training(index))
  return tables


def main_table(task: str) -> str:
  """Returns the name of the table of accuracy."""
  accuracy, _ = TABLES.get(task, ('', ''))
  return f'table_{accuracy}' if accuracy else 'accuracy'


def _by_model(
    name: str, title: str, comparisons: Sequence[Comparison], chance: float | None
) -> Table:
  """Makes the table in the form of the paper: a row per model, a column per length.

  Args:
    name: of the table.
    title: of the table.
    comparisons: of LN with the Baseline, at one or more temperatures.
    chance: as for `make_tables`.
  """
  percent = functools.partial(number, form='.1f')
  rows: list[ModelRow] = []
  for c in comparisons:
    adaptation = c.treated.partition('+')[2]
    words = f', {adaptation}' if adaptation else ''
    rows += [(f'Baseline{words}', c.control_mean, percent),
             (f'LN{words}', c.treated_mean, percent),
             (f'p{words}', _p_by_length(c), p_value)]
  records, columns = _wide(rows, comparisons[0].lengths, 'accuracy')
  note = (f'Mean over {_pairs(comparisons)}; p: paired two-sided t-test, uncorrected.'
          f'{_chance(chance)}')
  more = ('Differences with intervals and corrected p are in the table of accuracy by '
          'length.'
          f'{_temperatures(comparisons)}')
  return Table(name, title, columns, records, note, more=more)


def _gain_by_model(
    name: str, title: str, comparisons: Sequence[Comparison]
) -> Table:
  """Makes the table of gains in the form of the paper, as `_by_model`."""
  points = functools.partial(number, form='+.1f')
  rows: list[ModelRow] = []
  for c in comparisons:
    gain = [a - b for a, b in zip(c.treated_mean, c.control_mean, strict=True)]
    rows += [(_title(c), gain, points), ('p', _p_by_length(c), p_value)]
  records, columns = _wide(rows, comparisons[0].lengths, 'gain')
  note = f'Mean over {_pairs(comparisons)}; p: paired two-sided t-test, uncorrected.'
  more = 'Intervals and corrected p are in the table of gains by length.'
  return Table(name, title, columns, records, note, more=more)


def _wide(
    rows: Sequence[ModelRow], lengths: Sequence[int], name: str
) -> tuple[list[dict[str, Any]], dict[str, CellText]]:
  """Returns the records and columns of a table with a column per length.

  Args:
    rows: of models and of p-values.
    lengths: of the columns.
    name: what rows of models hold, such as 'accuracy'.
  """
  texts = {label: text for label, _, text in rows}
  records = [
      {'model': label} | {f'{name}_or_p_{n}': float(x)
                          for n, x in zip(lengths, values, strict=True)}
      for label, values, _ in rows
  ]

  def cell(field: str) -> CellText:
    return lambda r: texts[r['model']](r[field])

  return records, {'N': lambda r: r['model']} | {
      str(n): cell(f'{name}_or_p_{n}') for n in lengths}


def _p_by_length(comparison: Comparison) -> list[float]:
  return [math.nan if test is None else test.p for test in comparison.by_length]


def _by_length(
    name: str, title: str, comparisons: Sequence[Comparison], trained_up_to: int
) -> Table:
  """Makes a table with a block per comparison, and in it a row per length."""
  records = [
      {
          'comparison': _title(c), 'length': length,
          **_record(c.treated_mean[i], c.control_mean[i], c.by_length[i]),
          'p_holm': float(c.holm_p[i]),
      }
      for c in comparisons for i, length in enumerate(c.lengths)
  ]
  columns = {
      'comparison': lambda r: r['comparison'],
      'N': lambda r: str(r['length']),
      'control': lambda r: number(r['control'], '.1f'),
      'treated': lambda r: number(r['treated'], '.1f'),
      'difference [95 %]': difference_cell('.1f'),
      '% of control': lambda r: number(r['percent_of_control'], '+.1f'),
      'effect': lambda r: number(r['effect_size'], '+.2f'),
      'p': lambda r: p_value(r['p']),
      'p Holm': lambda r: p_value(r['p_holm']),
      'smallest detectable': lambda r: number(r['smallest_detectable'], '.1f'),
  }
  note = (
      f'Accuracy in %, mean over {_pairs(comparisons)}; trained on at most '
      f'{trained_up_to} items. Differences: treated minus control, in points. p: '
      'paired two-sided t-test; p Holm: corrected over the lengths of its comparison.'
      f'{left_out(comparisons)}'
  )
  more = (
      'Intervals and p are uncorrected. Effect: mean over standard deviation of the '
      'paired differences. Smallest detectable: the difference that this test would '
      'find with a power of 80 % at the 5 % level, uncorrected. undefined: all '
      f'differences are equal, or fewer than two pairs.{_temperatures(comparisons)}'
  )
  return Table(name, title, columns, records, note, more=more)


def _primary_endpoint(
    comparisons: Sequence[Comparison], trained_up_to: int,
    learned: Mapping[str, float], chance: float | None,
) -> Table:
  """Makes the table of the primary endpoint.

  Args:
    comparisons: of the rows.
    trained_up_to: the longest training length.
    learned: {arm: median accuracy at the training lengths}.
    chance: as for `make_tables`.
  """
  records = []
  for c in comparisons:
    treated, control = c.primary_means
    record = _record(treated, control, c.primary)
    arms = (name.partition('+')[0] for name in (c.treated, c.control))
    both = all(learned.get(arm, 1.0) >= LEARNED for arm in arms)
    verdict = _verdict(record['p'], record['difference']) if both else NOT_LEARNED
    records.append({
        'comparison': _title(c), **record,
        'treated_ahead': sum(d > 0 for d in c.primary_differences.values()),
        'seeds': len(c.primary_differences),
        'at_5_percent': verdict,
    })
  has_learned = lambda r: r['at_5_percent'] != NOT_LEARNED
  if_learned = functools.partial(cell_if, has_learned)
  columns = {
      'comparison': lambda r: r['comparison'],
      'control': lambda r: number(r['control'], '.2f'),
      'treated': lambda r: number(r['treated'], '.2f'),
      'difference [95 %]': difference_cell('.2f', interval_if=has_learned),
      'p': if_learned(lambda r: p_value(r['p'])),
      'at 5 %': lambda r: r['at_5_percent'],
      'smallest detectable': if_learned(
          lambda r: number(r['smallest_detectable'], '.2f')),
      'effect': if_learned(lambda r: number(r['effect_size'], '+.2f')),
      't': if_learned(lambda r: number(r['t'], '+.2f')),
      'treated ahead': lambda r: f'{r["treated_ahead"]} of {r["seeds"]}',
  }
  beyond = [n for n in comparisons[0].lengths if n > trained_up_to]
  fewest = min(r['pairs'] for r in records)
  few = (f' {fewest} pairs are few: differences much below the smallest detectable '
         'one would go unseen.' if fewest < FEW_PAIRS else '')
  lost = ''
  if any(r['at_5_percent'] == NOT_LEARNED for r in records):
    lost = (' Not learned: the median accuracy of an arm at the training lengths is '
            f'below {100 * LEARNED:.0f} %, so nothing there is about length, and no '
            'test is shown.')
  note = (
      f'Mean accuracy over N = {_span(beyond)}, in %, paired over '
      f'{_pairs(comparisons)}. LN − Baseline is primary, all else secondary and '
      f'uncorrected.{_chance(chance)}{few}{lost}{left_out(comparisons)}'
  )
  more = (
      'The primary endpoint is the same for every run. p: paired two-sided t-test. '
      'Smallest detectable: the difference, in points, that this number of pairs with '
      'this spread finds with a power of 80 % at the 5 % level. Effect: mean over '
      'standard deviation of the paired differences. Treated ahead: the pairs in which '
      f'the treated arm is ahead.{_temperatures(comparisons)}'
  )
  title = 'Primary endpoint. Mean accuracy beyond the training lengths'
  short = 'comparison', 'difference [95 %]', 'p', 'at 5 %'
  return Table('primary_endpoint', title, columns, records, note, short, more)


def _chance(chance: float | None) -> str:
  return f' Chance is {number(100 * chance, ".3g")} %.' if chance else ''


def _temperatures(comparisons: Sequence[Comparison]) -> str:
  """Returns a sentence on each adapted temperature that the comparisons use."""
  used = {c.treated.partition('+')[2] for c in comparisons}
  return ''.join(f' {name}: with {what}.' for name, what in _TEMPERATURES.items()
                 if name in used)


def _span(lengths: Sequence[int]) -> str:
  """Returns '32 to 128' where lengths double, and '16, 64, 256' where they do not."""
  if all(b == 2 * a for a, b in itertools.pairwise(lengths)):
    return f'{lengths[0]} to {lengths[-1]}'
  return ', '.join(map(str, lengths))


def _training(index: results.Index) -> Table:
  """Makes the table about training, a row per arm."""
  records = []
  arms = [index.get((arm, 'training_accuracy', None), {}) for arm in NAMES]
  for arm, name in NAMES.items():
    accuracy = index.get((arm, 'training_accuracy', None))
    loss = index.get((arm, 'training_loss', None))
    if not accuracy or not loss:
      continue
    broken = [s for s, x in loss.items() if not math.isfinite(x)]
    finite = [x for x in accuracy.values() if math.isfinite(x)]
    records.append({
        'arm': name, 'seeds': len(accuracy),
        'loss': _finite_mean(loss.values()),
        'accuracy': 100 * _finite_mean(accuracy.values()),
        'median_accuracy': 100 * median_accuracy(accuracy),
        'lowest_accuracy': 100 * min(finite, default=math.nan),
        'not_converged': name_seeds(
            s for s in not_converged(accuracy, arms) if s not in broken
        ),
        'not_finite': name_seeds(broken),
    })
  columns = {
      'arm': lambda r: r['arm'],
      'seeds': lambda r: str(r['seeds']),
      'loss': lambda r: number(r['loss'], '.4f'),
      'accuracy': lambda r: number(r['accuracy'], '.2f'),
      'lowest accuracy': lambda r: number(r['lowest_accuracy'], '.2f'),
      'not converged': lambda r: r['not_converged'],
      'not finite': lambda r: r['not_finite'],
  }
  note = (
      'Means at the end of training, on batches not yet trained on: loss in nats, '
      'accuracy in %. Not converged: seeds more than 5 points below the median of the '
      'best arm; these stay in the tests. Not finite: left out of the tests.'
  )
  more = ('The end of training: its last tenth, or the last line of the learning '
          'curves if that covers more steps.')
  return Table('training', 'Training', columns, records, note, more=more)


def _record(
    treated: float, control: float, test: PairedTest | None
) -> dict[str, Any]:
  """Returns one test as plain values, nan where it is undefined."""
  nan = math.nan
  test = test or PairedTest(nan, nan, nan, nan, nan, nan, 0)
  return {
      'control': float(control), 'treated': float(treated),
      **difference(test),
      'percent_of_control': 100 * float(treated - control) / float(control)
                            if control else math.nan,
      'effect_size': test.effect_size, 't': test.t, 'p': test.p,
      'pairs': test.num_pairs, 'smallest_detectable': detectable(test),
  }


def _title(c: Comparison) -> str:
  """Returns the title of a comparison, such as 'LN − Baseline, adaptive'."""
  treated, _, adaptation = c.treated.partition('+')
  control, _, _ = c.control.partition('+')
  suffix = f', {adaptation}' if adaptation else ''
  return f'{NAMES[treated]} − {NAMES[control]}{suffix}'


def _pairs(comparisons: Sequence[Comparison]) -> str:
  """Returns the numbers of seeds that are paired, such as '100 seeds'."""
  counts = sorted({t.num_pairs for c in comparisons for t in c.by_length if t})
  return f'{" or ".join(map(str, counts)) or "fewer than two"} seeds'


def _finite_mean(values: Iterable[float]) -> float:
  finite = [x for x in values if math.isfinite(x)]
  return sum(finite) / len(finite) if finite else math.nan


def _verdict(p: float, difference: float) -> str:
  """Returns what a test at the 5 % level has found."""
  if math.isnan(p):
    return 'undefined'
  if p >= 0.05:
    return 'no difference found'
  return 'ahead' if difference > 0 else 'behind'
