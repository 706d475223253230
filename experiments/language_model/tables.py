"""Tables of language models with and without the misalignment term. Runs without JAX.

`by_arm` has the primary endpoint of a run; `by_length` has secondary endpoints:
perplexity at other lengths, and misalignment.
"""

from collections.abc import Sequence
import functools
import math
import operator
from typing import Any

from experiments.language_model import paper
from experiments.language_model.arms import Arm, endpoint, Family, have_learned, Run
from experiments.language_model.figures import label_in, times
from vvlen.reporting.numbers import number, p_value
from vvlen.reporting.results import Index
from vvlen.reporting.tables import (
  blank_without,
  cell_if,
  CellText,
  difference,
  difference_cell,
  interval_cell,
  interval_fields,
  p_of,
  Table,
)
from vvlen.statistics import (
  by_holm,
  detectable,
  detectable_together,
  mean_interval,
  paired_by_seed,
  PairedTest,
)

# Metrics in `by_length` -> their names in words; of nll only the difference is shown.
_MEASURES = {'nll': 'log perplexity', 'symmetric_kl': 'symmetric KL', 'sce': 'SCE'}


# A test is shown if there is one and both of its models have learned.
if_learned = functools.partial(cell_if, lambda r: r['tested'] and r['learned'])


def compare(
    index: Index, arm: str, control: str, length: int, metric: str = 'nll'
) -> PairedTest | None:
  """Tests a metric at a length, arm − control, over seeds.

  Args:
    index: of the rows of a run.
    arm: name of an arm.
    control: name of the arm that it is compared with.
    length: of context, in tokens.
    metric: such as 'nll', log perplexity.

  Returns:
    The test; None if fewer than two seeds have finite values in both arms.
  """
  return paired_by_seed(*(
      index.get((name, metric, length), {}) for name in (arm, control)))


def interval(field: str, form: str) -> CellText:
  """Returns a column of means with their intervals, blank where there is none."""
  return blank_without(field, interval_cell(field, form))


def where(field: str, cell: CellText) -> CellText:
  """Returns a column that is blank where a field of the record is false."""
  return cell_if(operator.itemgetter(field), cell)


def difference_if_learned(prefix: str = '') -> CellText:
  """Returns a column of differences, without intervals for models not learned."""
  return difference_cell('.4f', prefix, interval_if=operator.itemgetter('learned'))


def seeds_of(arms: Sequence[Arm], run: Run, index: Index) -> str:
  """Returns the numbers of seeds of arms, in words."""
  counts = sorted({len(index[arm.name, 'nll', run.length]) for arm in arms})
  what = 'seed' if counts == [1] else 'seeds'
  return f'{" or ".join(map(str, counts))} {what} [95 %]'


def most_to_learn(vocabulary: int | None) -> float:
  """Returns the log perplexity above which a model has not learned, in nats.

  A model that knows only how often words occur has more than half of log V.

  Args:
    vocabulary: V, number of words of a model that was trained from scratch, if known.
  """
  return math.log(vocabulary) / 2 if vocabulary else math.inf


def by_arm(
    family: Family, run: Run, index: Index, vocabulary: int | None = None,
    most: float | None = None, primary: tuple[PairedTest | None, float] | None = None,
) -> Table:
  """Makes the table of a family, a row per arm, the control first.

  Args:
    family: the arms.
    run: the run.
    index: of its rows.
    vocabulary: as in `most_to_learn`. No test is shown of models that have not learned.
    most: the log perplexity at L above which a model has not learned; None: that of
      `most_to_learn`.
    primary: the test of the primary arm and its smallest detectable difference, if
      these are corrected over several families; None: they are not corrected.
  """
  arms, at = (family.control, *family.others), endpoint(run)
  tests = [compare(index, arm.name, family.control.name, at) for arm in family.others]
  first = [arm.name == family.primary for arm in family.others]
  secondary = [None if x else test for test, x in zip(tests, first, strict=True)]
  by_all, least = by_holm(secondary), detectable_together(secondary)
  if any(first):
    place = first.index(True)
    by_all[place], least[place] = primary or (None, detectable(tests[place]))
  none: tuple[Any, ...] = (None, None, math.nan)
  records = [
      _record(arm, family, run, index, *compared) for arm, compared in zip(
          arms, [none, *zip(tests, by_all, least, strict=True)], strict=True)
  ]
  most = most_to_learn(vocabulary) if most is None else most
  for record in records:
    record['learned'] = have_learned(family, record['arm'], run, index, most)
  columns: dict[str, CellText] = {'arm': lambda r: r['label']}
  for multiple in run.multiples:
    columns[f'perplexity at {times(multiple)}'] = interval(f'ppl_{multiple}', '.2f')
  columns |= {
      f'Δ log perplexity at {times(at // run.length)} [95 %]': where(
          'tested', difference_if_learned()),
      'p': where('tested', lambda r: (
          'not learned' if not r['learned'] else
          f'{p_value(r["p_holm" if primary else "p"])}, primary' if r['primary'] else
          p_value(r['p_holm']))),
      'smallest detectable': if_learned(
          lambda r: number(r['smallest_detectable'], '.4f')),
      'log perplexity in training': interval('training_cross_entropy', '.3f'),
  }
  return Table(family.name, f'{family.title}. L = {run.length}', columns, records,
               _note(family, run, index, primary is not None), more=_more(family))


def _record(
    arm: Arm, family: Family, run: Run, index: Index, test: PairedTest | None,
    by_all: PairedTest | None, least: float,
) -> dict[str, Any]:
  """Returns the row of an arm.

  Args:
    arm: the arm.
    family: its family.
    run: the run.
    index: of its rows.
    test: against the control; None of the control itself.
    by_all: the same corrected, of an arm that is not the primary one.
    least: the smallest detectable difference.
  """
  record: dict[str, Any] = {
      'arm': arm.name, 'label': label_in(family, arm),
      'seeds': len(index[arm.name, 'nll', run.length]),
      'primary': arm.name == family.primary,
  }
  for multiple in run.multiples:
    values = _mean(index, arm.name, 'nll', multiple * run.length, f'ppl_{multiple}')
    record |= {name: math.exp(x) for name, x in values.items()}
  record |= _mean(index, arm.name, 'sce', run.length)
  record |= _mean(index, arm.name, 'symmetric_kl', run.length)
  record |= _mean(index, arm.name, 'training_cross_entropy', None)
  return record | difference(by_all or test) | {
      'p': p_of(test), 'p_holm': p_of(by_all),
      'smallest_detectable': float(least), 'tested': test is not None,
  }


def by_length(
    family: Family, run: Run, index: Index, vocabulary: int | None = None,
    most: float | None = None,
) -> Table:
  """Makes the table of secondary endpoints, a row per length and arm, controls first.

  Tests are corrected by Holm over all rows, separately for each metric. Perplexity at
  the length of the primary endpoint is tested in `by_arm` instead.

  Args:
    family: the arms.
    run: the run.
    index: of its rows.
    vocabulary: as in `by_arm`.
    most: as in `by_arm`.
  """
  control = family.control.name
  most = most_to_learn(vocabulary) if most is None else most
  records: list[dict[str, Any]] = [
      {'length': multiple * run.length, 'multiple': multiple, 'arm': arm.name,
       'label': label_in(family, arm),
       'learned': have_learned(family, arm.name, run, index, most)}
      for multiple in run.multiples for arm in (family.control, *family.others)
  ]
  for metric in _MEASURES:
    tests = [
        None if r['arm'] == control or (metric, r['length']) == ('nll', endpoint(run))
        else compare(index, r['arm'], control, r['length'], metric) for r in records
    ]
    for record, test, by_all in zip(records, tests, by_holm(tests), strict=True):
      record |= _mean(index, record['arm'], metric, record['length'])
      record |= difference(by_all, f'{metric}_') | {
          f'{metric}_p': p_of(test),
          f'{metric}_p_holm': p_of(by_all),
          f'{metric}_tested': test is not None,
      }
  columns: dict[str, CellText] = {
      'length': lambda r: times(r['multiple']), 'arm': lambda r: r['label']}
  for metric, name in _MEASURES.items():
    if metric != 'nll':
      columns[f'{name} [95 %]'] = interval(metric, '.4f')
    tested = f'{metric}_tested'
    columns[f'Δ {name} [95 %]'] = where(tested, difference_if_learned(f'{metric}_'))
    columns[f'p: {name}'] = where(tested, _p_by_holm(metric))
  primary = times(endpoint(run) // run.length)
  note = (
      f'{seeds_of((family.control, *family.others), run, index)}, in nats. Δ: minus '
      f'{label_in(family, family.control)}; p: paired two-sided t-test, all secondary; '
      'it and the intervals of Δ by Holm over this table, each quantity by itself. '
      'SCE: symmetric cross-entropy of two windows.'
  )
  more = (
      f'Means are arithmetic. Log perplexity at {primary} is in table {family.name}. '
      'SCE and symmetric KL are of two windows of this length, where the segments of '
      'text have room for both; SCE = their entropies + symmetric KL.'
  )
  return Table(f'{family.name}_by_length', f'{family.title}, by length of context. '
               f'L = {run.length}', columns, records, note, more=more)


def _p_by_holm(metric: str) -> CellText:
  """Returns a column of corrected p-values."""
  return lambda r: (
      p_value(r[f'{metric}_p_holm']) if r['learned'] else 'not learned')


def _mean(
    index: Index, arm: str, metric: str, length: int | None, field: str = ''
) -> dict[str, float]:
  """Returns a metric's mean over seeds and the ends of its interval; nan if unknown."""
  values = [*index.get((arm, metric, length), {}).values()] or [math.nan]
  return interval_fields(field or metric, mean_interval(values))


def _note(family: Family, run: Run, index: Index, together: bool) -> str:
  arms = (family.control, *family.others)
  but = ', but for the primary endpoint' if family.primary else ''
  note = (
      f'{seeds_of(arms, run, index)}. Perplexity of held-out text; all else in nats. '
      f'Δ: minus {label_in(family, family.control)}; p: paired two-sided t-test; it '
      'and the intervals of Δ by Holm over this table'
      f'{but}{", over methods (table term)" if but and together else ""}.'
  )
  lengths = [m * run.length for m in run.multiples]
  broken = sorted({
      seed for arm in arms for n in lengths
      for seed, x in index.get((arm.name, 'nll', n), {}).items() if not math.isfinite(x)
  })
  if broken:
    note += f' Not finite, and left out: seeds {", ".join(map(str, broken))}.'
  return note


def _more(family: Family) -> str:
  more = (
      'Perplexity: of blocks that do not overlap, natural base, the first token of a '
      'block not scored; geometric mean over seeds. Blocks begin without BOS; the '
      'token that begins a document of the text (256, of bytes), where the tokenizer '
      'has one, is read and scored like any other. Log perplexity in training: mean '
      'cross-entropy of the last tenth of the steps, without the misalignment term, '
      'which the CSV calls training_cross_entropy. Δ is of nats a token. Smallest '
      'detectable: what that test finds four times in five. Other lengths, SCE '
      f'and symmetric KL: table {family.name}_by_length.'
  )
  return f'{more} {paper.note(family.name)}'.strip()
