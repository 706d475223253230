"""What a run of counting has found, in sentences. Runs without JAX."""

from collections.abc import Sequence
import math

from vvlen.reporting.numbers import counted, number, p_words
from vvlen.reporting.tables import Record

# A model has learned its training lengths if its squared error at the longest of them
# is at most this share of the error of the best constant answer.
_SHARE = 0.1


def best_constant(task: str, counts: str, length: int) -> float:
  """Returns the squared error of the best constant answer to strings of bits.

  Args:
    task: 'mean' or 'sum' of l bits, or 'length', of strings of 1 to `length` bits.
    counts: 'fair', the bits are drawn singly; 'uniform': each number of ones is
      equally likely.
    length: l.

  Returns:
    The variance of the target: for the sum l / 4, or l (l + 2) / 12 if each number of
    ones is equally likely; for the mean, that of the sum divided by l²; for the length
    (l² − 1) / 12.
  """
  if task == 'length':
    return (length**2 - 1) / 12
  of_sum = length / 4 if counts == 'fair' else length * (length + 2) / 12
  return of_sum if task == 'sum' else of_sum / length**2


def answer(
    title: str, records: Sequence[Record], length: int, control: str | None
) -> str:
  """Says which model of a figure has the least error beyond training.

  Args:
    title: what is counted, such as 'Mean of bits'.
    records: of the figure's table.
    length: the longest test length.
    control: the model that others are tested against, if any.
  """
  learned = [r for r in records if has_learned(r)]
  failed = [r['model'] for r in records if r not in learned]
  out = f' Did not learn the training lengths: {", ".join(failed)}.' if failed else ''
  if not learned:
    return f'{title}: no verdict, as no model has learned the training lengths.'
  if len(records) == 1:
    return (f'{title}: at {length} bits, the squared error of {learned[0]["model"]}, '
            f'alone in this figure, is {short(learned[0][f"error_{length}"])}.')
  best = min(learned, key=lambda r: r[f'error_{length}'])
  text = (f'{title}: at {length} bits, the least squared error is that of '
          f'{best["model"]}, {short(best[f"error_{length}"])}')
  tested = [r for r in records if is_tested(r, records, control)]
  if not tested:
    return f'{text}.{out}'
  # The model that differs most from the control, in either direction.
  r = max(tested, key=lambda r: abs(math.log(r['factor'])))
  ends = ', '.join(short(r[name]) for name in ('factor_low', 'factor_high'))
  found = '' if r['p_holm'] < 0.05 else '; no difference was found'
  return (f'{text}. Beyond training, {r["model"]} has {short(r["factor"])} times the '
          f'error of {control} [95 %: {ends}], {p_words(r["p_holm"])} by '
          f'Holm{found}.{out}')


def has_learned(record: Record) -> bool:
  """Returns whether the model of a row of a table has learned its training lengths."""
  return record['training_error'] <= _SHARE * record['constant_error']


def learned(records: Sequence[Record]) -> str:
  """Says how many models of a run have learned their training lengths.

  Args:
    records: of the tables of all figures, at least one. A model counts in each figure
      that has it.
  """
  ratios = [r['training_error'] / r['constant_error'] for r in records]
  of = f'of that of the best constant answer, where {_SHARE:g} is needed and 0 is exact'
  count = sum(map(has_learned, records))
  if count == len(records):
    return ('All models learned the training lengths: at the longest, their squared '
            f'error is at most {short(max(ratios))} {of}.')
  worst = (f' The largest of all lines is {short(max(ratios))} times as large.'
           if math.isfinite(max(ratios)) else '')
  return (f'At the longest training length, {count} of {counted(len(records), "line")} '
          f'of the figures have learned: their squared error is at most {_SHARE:g} '
          f'times that of the best constant answer, where 0 is exact.{worst}')


def summary(
    figures: Sequence[tuple[str, Sequence[Record], str | None]]
) -> list[str]:
  """Says in one sentence what the tests of all figures have found.

  Args:
    figures: for each figure its name, such as 'Figure 1a', the records of its table,
      and the model that others are tested against, if any.

  Returns:
    The sentence; an empty list for a run of one figure, where `answer` is enough.
  """
  if len(figures) < 2:
    return []
  tested = [(name, r, control) for name, records, control in figures
            for r in records if is_tested(r, records, control)]
  if not tested:
    return [f'No verdict: in none of {len(figures)} figures is there a test of models '
            'that have learned the training lengths.']
  found = [each for each in tested if each[1]['p_holm'] < 0.05]
  less = sum(r['factor'] < 1 for _, r, _ in found)
  text = (f'Of {counted(len(tested), "test")} beyond the training lengths, each of a '
          f'model against the control of its figure, {less} found less error, '
          f'{len(found) - less} more, and {len(tested) - len(found)} no difference (p '
          f'by Holm in each of {counted(len({x for x, *_ in tested}), "figure")})')
  factor = lambda each: each[1]['factor']
  ends = [min(tested, key=factor), max(tested, key=factor)][:len(tested)]
  told = [f'{short(r["factor"])} times ({r["model"]} against {control}, {name})'
          for name, r, control in ends]
  what = f'is from {told[0]} to {told[1]}' if len(told) > 1 else f'is {told[0]}'
  return [f'{text}; the error {what} that of the control.']


def both_learned(
    record: Record, records: Sequence[Record], control: str | None
) -> bool:
  """Returns whether the model of a row and its control have learned.

  Args:
    record: of the table of a figure.
    records: all of that table.
    control: the model that others are tested against, if any.
  """
  both = [r for r in records if r['model'] == control] + [record]
  return all(map(has_learned, both))


def is_tested(
    record: Record, records: Sequence[Record], control: str | None
) -> bool:
  """Returns whether a row has a test that counts; arguments as in `both_learned`."""
  return math.isfinite(record['p_holm']) and both_learned(record, records, control)


def short(value: float) -> str:
  """Formats a positive number to two digits."""
  if 99.5 <= value < 1e5:
    return f'{value:,.0f}'
  if 1e-3 <= value < 99.5:
    return number(value, '#.2g').removesuffix('.')
  return number(value, '.1e')
