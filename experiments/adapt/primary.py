"""The primary endpoint over all methods, and its controls. Runs without JAX."""

from collections.abc import Sequence
import math
from typing import NamedTuple

from experiments.language_model import arms
from experiments.language_model.arms import Arm, endpoint, Family, Run
from experiments.language_model.tables import compare
from vvlen.reporting.results import Index
from vvlen.statistics import by_holm, detectable_together, PairedTest

# Fields of a configuration that may change between starts of a run. Sums of logarithms
# differ between processors in their last digit; the text has a field of its own.
MAY_DIFFER = *arms.MAY_DIFFER, 'inputs.pair_nats'
# What the term is compared with, besides its control -> words.
KINDS = {'entropy': 'entropy alone', 'symmetric_kl': 'symmetric KL alone',
          'steps': 'more steps'}


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


def corrected_tests(
    families: Sequence[Family], run: Run, index: Index
) -> list[tuple[Family, PairedTest]]:
  """Returns each method whose test is defined, with the test by Holm over methods.

  Arguments are those of `primary_tests`.
  """
  return [(found.family, found.by_all)
          for found in primary_tests(families, run, index)
          if found.by_all is not None and not math.isnan(found.by_all.p)]


def controls(family: Family) -> list[Arm]:
  """Returns the arms with another term at α = 0.1, or with more steps and no term."""
  plain = family.control._replace(name='')
  return [arm for arm in family.others
          if (arm.term != 'sce' and arm._replace(name='') == plain._replace(
              weight=0.1, term=arm.term))
          or (arm.steps > 1 and arm._replace(name='') == plain._replace(
              steps=arm.steps))]


def other_weights(family: Family) -> list[Arm]:
  """Returns the arms that differ from that of the primary endpoint in α alone."""
  alike = family.control._replace(name='', weight=0.0)
  return [arm for arm in family.others if arm.weight and arm.name != family.primary
          and arm._replace(name='', weight=0.0) == alike]


def kind_of(arm: Arm) -> str:
  """Returns the key in `KINDS` of an arm from `controls`."""
  return 'steps' if not arm.weight else arm.term
