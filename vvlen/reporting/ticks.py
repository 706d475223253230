"""Ticks of the axes of figures, and numbers at them. Runs without JAX."""

from collections.abc import Iterable
import math

from matplotlib.ticker import Formatter, Locator, MaxNLocator


class Doublings(Locator):
  """Ticks at a few powers of two, evenly from the first."""

  def __init__(self, most: int):
    self._most = most

  def __call__(self) -> list[float]:
    assert self.axis is not None
    low, high = sorted(self.axis.get_view_interval())
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = max(1, -(-(last - first + 1) // self._most))
    return [float(2**power) for power in range(first, last + 1, step)]


def short_number(x: float, power_of_ten: bool = False) -> str:
  """Returns a number with all its digits in full size: 0.01, 1,000 or 1e−6.

  Args:
    x: the number.
    power_of_ten: whether to write 0.01 as 1e−2.
  """
  if x and (power_of_ten or not 1e-4 < abs(x) < 1e6):
    digits, power = f'{x:e}'.split('e')
    return f'{float(digits):g}e{int(power)}'.replace('-', '−')
  return f'{x:,g}'.replace('-', '−')


class Alike(Formatter):
  """Writes all ticks of an axis as powers of ten if one is below 0.0001, or none."""

  def __call__(self, x: float, pos: int | None = None) -> str:
    return short_number(x)

  def format_ticks(self, values: Iterable[float]) -> list[str]:
    values = list(values)
    if all(1e-4 <= abs(x) < 1e6 for x in values if x):
      return [f'{x:,g}'.replace('-', '−') for x in values]
    return [short_number(x, power_of_ten=True) for x in values]


class Logarithmic(Locator):
  """Ticks at 1, 2 and 5 times powers of ten, fewer or more where that suits better."""

  def __call__(self) -> list[float]:
    assert self.axis is not None
    return log_ticks(*sorted(self.axis.get_view_interval()))


def log_ticks(low: float, high: float) -> list[float]:
  """Returns four to ten round numbers from `low` to `high`, both positive."""
  first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
  for digits in ((1, 2, 5), (1, 3), (1,), (1, 1.5, 2, 3, 5, 7)):
    ticks = [float(f'{digit}e{power}') for power in range(first, last + 1)
             for digit in digits]
    ticks = [x for x in ticks if low <= x <= high]
    if 4 <= len(ticks) <= 10:
      return ticks
  if high / low < 10:  # nearly linear
    locator = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], min_n_ticks=4)
    return [float(f'{x:.6g}') for x in locator.tick_values(low, high)
            if low <= x <= high]
  step = -(-(last - first) // 8)
  return [float(f'1e{power}') for power in range(first, last + 1, step)
          if low <= float(f'1e{power}') <= high]
