"""Cases of a test, of which some run with the fast tests, the others with the slow."""

import pytest


def mostly_slow(cases, *fast):
  """Returns cases for pytest.mark.parametrize, slow ones but for those at some places.

  Args:
    cases: tuples of arguments; the value alone for one argument that is no tuple.
    *fast: places in `cases`.
  """
  return [
      pytest.param(*(case if isinstance(case, tuple) else (case,)),
                   marks=() if place in fast else pytest.mark.slow)
      for place, case in enumerate(cases)
  ]
