"""What a run of counting has found, in sentences. Runs without JAX."""

from collections.abc import Sequence
import math

from vvlen.reporting.tables import number, p_words, Record

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
    The variance of the target. Of the sum it is l / 4, or l (l + 2) / 12 if each number
    of ones is equally likely; of the mean, that of the sum over l²; of the length,
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
  learned = [r for r in records if r['training_error'] <= _SHARE * r['constant_error']]
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
  tested = [r for r in learned if math.isfinite(r['p_holm'])]
  if not tested or control in failed:
    return f'{text}.{out}'
  # The model that differs most from the control, in either direction.
  r = max(tested, key=lambda r: abs(math.log(r['factor'])))
  ends = ', '.join(short(r[name]) for name in ('factor_low', 'factor_high'))
  found = '' if r['p_holm'] < 0.05 else '; no difference was found'
  return (f'{text}. Beyond training, {r["model"]} has {short(r["factor"])} times the '
          f'error of {control} [95 %: {ends}], {p_words(r["p_holm"])} by '
          f'Holm{found}.{out}')


def learned(records: Sequence[Record]) -> list[str]:
  """Says whether all models of a run have learned their training lengths, if so.

  Args:
    records: of the tables of all figures.
  """
  ratios = [r['training_error'] / r['constant_error'] for r in records]
  if not ratios or not max(ratios) <= _SHARE:
    return []
  return ['All models learned the training lengths: at the longest, their squared '
          f'error is {short(max(ratios))} of that of the best constant answer or less, '
          f'where {_SHARE:g} is needed.']


def short(value: float) -> str:
  """Formats a positive number to two digits."""
  if 99.5 <= value < 1e5:
    return f'{value:,.0f}'
  if 1e-3 <= value < 99.5:
    return number(value, '#.2g').removesuffix('.')
  return number(value, '.1e')
