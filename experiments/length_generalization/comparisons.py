"""What tables show of a comparison of two arms: its values, and how notes speak of it.

Runs without JAX.
"""

from collections.abc import Sequence
import math
from typing import Any

from vvlen.reporting.endpoints import Comparison
from vvlen.reporting.numbers import number
from vvlen.reporting.plots import ARMS
from vvlen.reporting.tables import difference
from vvlen.statistics import detectable, PairedTest

# Arm -> its name in tables.
NAMES = {arm: name for arm, (name, _, _) in ARMS.items()}
# Suffix of an arm's name -> its temperature, in words.
_TEMPERATURES = {
    'adaptive': 'the published adaptive temperature at test time (arXiv 2410.01104)',
    'fitted': 'an adaptive temperature that is fitted, for each seed, to validation '
              'sequences, whose lengths are a setting of the run',
}


def values_of_test(
    treated: float, control: float, test: PairedTest | None
) -> dict[str, Any]:
  """Returns the means of two arms and their test, nan where it is undefined.

  Args:
    treated: mean of the treated arm, in percent.
    control: mean of the control.
    test: of their difference; None if there are fewer than two pairs.
  """
  nan = math.nan
  test = test or PairedTest(nan, nan, nan, nan, nan, nan, 0)
  return {
      'control': float(control), 'treated': float(treated),
      **difference(test),
      'percent_of_control': 100 * float(treated - control) / float(control)
                            if control else nan,
      'effect_size': test.effect_size, 't': test.t, 'p': test.p,
      'pairs': test.num_pairs, 'smallest_detectable': detectable(test),
  }


def name_of(c: Comparison) -> str:
  """Returns the name of a comparison, such as 'LN − Baseline, adaptive'."""
  treated, _, adaptation = c.treated.partition('+')
  control, _, _ = c.control.partition('+')
  suffix = f', {adaptation}' if adaptation else ''
  return f'{NAMES[treated]} − {NAMES[control]}{suffix}'


def paired_seeds(comparisons: Sequence[Comparison]) -> str:
  """Returns the numbers of seeds that are paired, such as '100 seeds'."""
  counts = sorted({t.num_pairs for c in comparisons for t in c.by_length if t})
  return f'{" or ".join(map(str, counts)) or "fewer than two"} seeds'


def chance_note(chance: float | None) -> str:
  """Returns a sentence on the share of right answers by guessing, if it is known."""
  return f' Chance is {number(100 * chance, ".3g")} %.' if chance else ''


def temperature_note(comparisons: Sequence[Comparison]) -> str:
  """Returns a short sentence on the adapted temperatures that the comparisons use."""
  used = _temperatures(comparisons)
  return (f' {" and ".join(used)}: softmax with another temperature at test time.'
          if used else '')


def temperature_notes(comparisons: Sequence[Comparison]) -> str:
  """Returns a sentence on each adapted temperature that the comparisons use."""
  return ''.join(f' {name}: with {_TEMPERATURES[name]}.'
                 for name in _temperatures(comparisons))


def _temperatures(comparisons: Sequence[Comparison]) -> list[str]:
  used = {c.treated.partition('+')[2] for c in comparisons}
  return [name for name in _TEMPERATURES if name in used]
