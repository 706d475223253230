"""Tests of the primary endpoint of adapt, over all methods. Runs without JAX."""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.language_model.arms import endpoint, Family, Run
from experiments.language_model.tables import compare
from vvlen.reporting.results import Index
from vvlen.statistics import by_holm, detectable_together, PairedTest


class Primary(NamedTuple):
  """What the misalignment term changes in one method."""

  family: Family
  test: PairedTest | None  # None: fewer than two pairs of seeds
  by_all: PairedTest | None  # the same, with p and interval by Holm over methods
  least: float  # the smallest detectable difference, at 5 % / the number of methods


def primary_tests(
    families: Sequence[Family], run: Run, index: Index
) -> list[Primary]:
  """Tests α = 0.1 against α = 0 in each method that has both.

  Args:
    families: those with results.
    run: the run.
    index: of its rows.
  """
  tested = [family for family in families if family.primary]
  tests = [compare(index, family.primary, family.control.name, endpoint(run))
           for family in tested]
  found = zip(tested, tests, by_holm(tests), detectable_together(tests), strict=True)
  return [Primary(*fields) for fields in found]
