"""Numbers as text: for cells of tables, and for sentences. Runs without JAX.

A `form` is a format specification of Python with a fixed number of decimals, such as
'.3f', '+.1f' or ',.0f'.
"""

from collections.abc import Collection, Iterable, Sequence
import math

_DECIMALS = 6  # the most decimals of a measured or computed number
_LEAST = 10.0**-_DECIMALS
ROUNDING = '< 1e−6'  # shown for numbers of either sign that are smaller than this


def number(value: float, form: str) -> str:
  """Formats a number, with a real minus sign and without −0.0."""
  if math.isnan(value):
    return 'undefined'
  text = format(value, form)
  if float(text.replace(',', '')) == 0:
    text = text.lstrip('+-')
  return text.replace('-', '−')


def known(value: float, form: str) -> str:
  """Formats a number that has no sampling error; a small one as 0 or '< 1e−6'."""
  if value == 0:
    return '0'
  if abs(value) < _LEAST:
    return ROUNDING
  return number(value, _finer(form, abs(value)))


def give_or_take(value: float, error: float) -> str:
  """Formats a number ± its uncertainty, both with the same decimals.

  The uncertainty has one significant digit, or two if it begins with 1; it is left out
  where it is less than 1e−6, or nan. There are never more than six decimals.
  """
  if error == 0 and float(value).is_integer():
    return number(value, ',.0f')
  if not error >= _LEAST or math.isinf(error):
    return known(value, f',.{_DECIMALS}f')
  digits, power = format(error, '.1e').split('e')
  decimals = (float(digits) < 2) - int(power)
  form = f',.{min(max(decimals, 0), _DECIMALS)}f'
  return f'{number(value, form)} ± {number(error, form)}'


def with_interval(mean: float, low: float, high: float, form: str) -> str:
  """Formats a number and, where there is one, its interval.

  If both ends would be shown as 0, all three get more decimals, until one end is not 0.
  A number that is 0 has no decimals, and one below 1e−6 is shown as '< 1e−6'.
  """
  if math.isnan(low):
    return number(mean, form) if mean else '0'
  size = max(abs(low), abs(high))
  if size < _LEAST:
    return known(size, form)
  form = _finer(form, size)
  return f'{number(mean, form)} [{number(low, form)}, {number(high, form)}]'


def alike(values: Sequence[float], digits: int) -> list[str]:
  """Formats numbers with the same decimals.

  The largest has at least so many significant digits, and the smallest that is not 0
  at least two, if six decimals are enough.
  """
  powers = [int(format(abs(x), 'e').split('e')[1])
            for x in values if x and math.isfinite(x)]
  decimals = max([digits - 1 - max(powers), 1 - min(powers), 0]
                 if powers else [0])
  return [number(x, f',.{min(decimals, _DECIMALS)}f') for x in values]


def _finer(form: str, size: float) -> str:
  """Returns a form of fixed decimals that does not show a number of this size as 0."""
  if not math.isfinite(size) or float(format(size, form).replace(',', '')):
    return form
  power = int(format(size, '.0e').split('e')[1])
  return f'{form.partition(".")[0]}.{-power}f'


def memory(num_bytes: float) -> str:
  """Formats a size with three digits, in MB, or from 1 GB on in GB: '1.23 GB'."""
  mega = float(format(num_bytes / 1e6, '.3g'))
  size, unit = (mega / 1000, 'GB') if mega >= 1000 else (mega, 'MB')
  return f'{alike([size], 3)[0]} {unit}'


def counted(count: int, thing: str, things: str = '') -> str:
  """Returns such as '1 layer', '2,000 steps' or, with its plural, '2 batches'."""
  return f'{count:,} {thing if count == 1 else things or f"{thing}s"}'


def from_to(values: Collection[float], form: str) -> str:
  """Returns the least and the largest number, '−0.1 to +2.5'; one if they are alike."""
  return ' to '.join(dict.fromkeys(number(end(values), form) for end in (min, max)))


def p_value(value: float) -> str:
  """Formats a p-value as journals print it."""
  if math.isnan(value):
    return 'undefined'
  return '< .001' if value < 0.001 else f'{value:.3f}'.removeprefix('0')


def p_words(value: float) -> str:
  """Returns a p-value for a sentence, such as 'p = .034' or 'p < .001'."""
  text = p_value(value)
  return f'p {text}' if text.startswith('<') else f'p = {text}'


def interval_words(low: float, high: float, form: str) -> str:
  """Returns an interval for a sentence, such as '[95 %: +2.4, +4.8]'."""
  return f'[95 %: {number(low, form)}, {number(high, form)}]'


def name_seeds(seeds: Iterable[int]) -> str:
  """Returns text such as 'seeds 3, 7', or 'none'."""
  numbers = ', '.join(map(str, seeds))
  if not numbers:
    return 'none'
  return f'seeds {numbers}' if ',' in numbers else f'seed {numbers}'
