"""What the misalignment term changes: two models, by pairs of seeds. Runs without JAX.

  outcome with the term − outcome without it, of the same seed

Two models are compared if they differ in the weight α of the term alone, and one has
α = 0. Seeds have the same initial weights, text and prompts in both. The outcome of
config.primary beyond L is tested without correction for α = 0.1; all else is secondary.
"""

from typing import NamedTuple

import numpy as np

from experiments.correlation.points import OUTCOMES, outcomes, Points, Run
from experiments.language_model.figures import times
from vvlen.reporting.numbers import interval_words, number, p_value, p_words
from vvlen.reporting.tables import difference, difference_cell, p_of, Table
from vvlen.statistics import detectable, paired_t_test, PairedTest

PRIMARY = 0.1  # α


class Changed(NamedTuple):
  """An outcome of two models, over S seeds that both have."""

  test: PairedTest | None  # None: fewer than two seeds
  treated: float  # mean, with the term
  control: float


def changed(points: Points, pair: tuple[str, str], field: str) -> Changed:
  """Returns what the term changes in a field of `Points`, such as 'score_beyond'."""
  names = [model.name for model in points.models]
  treated, control = (
      points.seeds[field][names.index(name)] if name in names else {} for name in pair)
  seeds = sorted(treated.keys() & control.keys())
  a, b = (np.array([own[s] for s in seeds]) for own in (treated, control))
  mean = lambda x: float(x.mean()) if x.size else np.nan
  return Changed(paired_t_test(a, b) if len(seeds) > 1 else None, mean(a), mean(b))


def table(run: Run, points: Points) -> Table:
  """Makes the table: a row per pair, outcome and length, and one for all beyond L."""
  labels = {model.name: model.label for model in run.models}
  records = []
  for pair in run.pairs:
    for outcome in outcomes(run):
      for length in (0, *run.lengths):  # 0: all beyond L
        found = changed(points, pair, f'{outcome}_{length or "beyond"}')
        test = found.test
        records.append({
            'model': labels[pair[0]], 'outcome': OUTCOMES[outcome],
            'length': length or '', 'multiple': length // run.length,
            'control': found.control, 'treated': found.treated, **difference(test),
            'p': p_of(test), 'pairs': test.num_pairs if test else 0,
            'smallest_detectable': detectable(test)})
  columns = {
      'model': lambda r: r['model'], 'outcome': lambda r: r['outcome'],
      'length': lambda r: _words(run, r['multiple']),
      'without the term': lambda r: number(r['control'], '.3f'),
      'with it': lambda r: number(r['treated'], '.3f'),
      'difference [95 %]': difference_cell('.3f'), 'p': lambda r: p_value(r['p']),
      'pairs': lambda r: str(r['pairs']),
      'smallest detectable': lambda r: number(r['smallest_detectable'], '.3f'),
  }
  return Table(
      'term', 'What the misalignment term changes', columns, records,
      'Pairs of seeds; p: paired two-sided t-test. Primary: '
      f'{OUTCOMES[run.outcome]} beyond L at α = {PRIMARY:g}; all else is secondary and '
      f'not corrected. L = {run.length} tokens.',
      more='Smallest detectable: the difference that so many pairs with this spread '
           'find four times in five at the 5 % level. The model without the term has '
           'the same initial weights, text and prompts, seed by seed.')


def _words(run: Run, multiple: int) -> str:
  """Returns a length in words, given in units of L; 0 stands for all beyond L."""
  return times(multiple) if multiple else f'mean beyond L, {len(run.beyond)} lengths'


def sentence(run: Run, points: Points) -> str:
  """Says what the term at α = 0.1 changes beyond L; '' if there are no such pairs."""
  weighted = [pair for pair in run.pairs if run.weights[pair[0]] == PRIMARY]
  if not weighted:
    return ''
  test = changed(points, weighted[0], f'{run.outcome}_beyond').test
  what = f'The misalignment term with α = {PRIMARY:g}'
  if test is None or np.isnan(test.p):
    return f'{what}: no verdict, fewer than two pairs of seeds that differ.'
  said = (f'{what} changes the {OUTCOMES[run.outcome]} beyond L by '
          f'{number(test.mean_difference, "+.3f")} '
          f'{interval_words(test.ci_low, test.ci_high, "+.3f")}, {p_words(test.p)}, '
          f'{test.num_pairs} pairs of seeds')
  if test.p < 0.05:
    return f'{said}.'
  return (f'{said}; no difference was found, and one of '
          f'{number(detectable(test), ".3f")} would be found four times in five.')


def by_length(run: Run, points: Points) -> list[str]:
  """Says the score of each model at each length."""
  lengths = ', '.join(times(n // run.length) for n in run.lengths)
  return [f'Score of {model.label} at {lengths}: ' + ', '.join(
      number(points.means[f'score_{n}'][i], '.3f') for n in run.lengths) + '.'
          for i, model in enumerate(points.models)]
