"""Tables of models whose context was extended. Runs without JAX."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

import numpy as np

from experiments.adapt.primary import (
  controls,
  kind_of,
  KINDS,
  other_weights,
  primary_tests,
)
from experiments.language_model.arms import Arm, endpoint, Family, Run
from experiments.language_model.figures import label, times
from experiments.language_model.tables import (
  compare,
  difference_if_learned,
  if_learned,
  interval,
  seeds_of,
  where,
)
from vvlen.reporting.numbers import number, p_value
from vvlen.reporting.results import Index
from vvlen.reporting.tables import (
  difference,
  interval_fields,
  number_cell,
  p_of,
  Table,
)
from vvlen.statistics import (
  by_holm,
  mean_interval,
  PairedTest,
)


def methods(
    families: Sequence[Family], base: Arm | None, run: Run, index: Index,
    evaluations: Sequence[Mapping[str, Any]], original: int, weak: Sequence[str] = (),
) -> Table:
  """Makes the table of methods without the term: perplexity before and after.

  Args:
    families: those with results.
    base: the arm of fine-tuning alone, None if it has no results.
    run: the run.
    index: of its rows.
    evaluations: lines of evaluations.jsonl; those of step 0 are before training.
    original: tokens of the checkpoint's own length.
    weak: titles of the methods that predict no better than counts of pairs of tokens.
      Their differences have no interval and no p, as in the figure, nor have those of
      others if fine-tuning alone is among them.
  """
  lengths = sorted({original, *(m * run.length for m in run.multiples)})
  at = endpoint(run)
  no_base = any(f.control is base and f.title in weak for f in families)
  tests = [compare(index, f.control.name, base.name, at)
           if base and f.control.name != base.name else None for f in families]
  records = []
  for family, test, by_all in zip(families, tests, by_holm(tests), strict=True):
    name = family.control.name
    record: dict[str, Any] = {'method': name, 'label': family.title}
    for length in lengths:
      after = index.get((name, 'nll', length), {})
      record |= _perplexity([*after.values()], f'ppl_{length}')
      before = before_training(evaluations, name, length)
      record |= _perplexity([before[seed] for seed in after if seed in before],
                            f'before_{length}')
    records.append(record | difference(by_all) | {
        'p': p_of(test),
        'p_holm': p_of(by_all), 'tested': test is not None,
        'learned': not no_base and family.title not in weak})
  columns: dict[str, Any] = {'method': lambda r: r['label']}
  for length in lengths:
    place = _at(length, run, original)
    columns[f'{place}: before'] = number_cell(f'before_{length}', '.2f')
    columns[f'{place}: after [95 %]'] = interval(f'ppl_{length}', '.2f')
  place = times(at // run.length)
  columns[f'Δ log perplexity at {place} [95 %]'] = where(
      'tested', difference_if_learned())
  columns['p Holm'] = where('tested', if_learned(lambda r: p_value(r['p_holm'])))
  short = ('method', f'{place}: before', f'{place}: after [95 %]', list(columns)[-2])
  note = (f'{seeds_of(_arms(families), run, index)}; L = {run.length}, the checkpoint '
          f'has {original} tokens. Perplexity in blocks, with the method applied, '
          'before and after fine-tuning. Δ: minus fine-tuning alone; p: paired t-test; '
          'it and the intervals of Δ by Holm over methods.')
  note += left_out([(f, f.control) for f in families], index, 'nll', lengths)
  note += _not_learned([f.title for f in families if f.title in weak])
  return Table('methods', 'Perplexity of methods that extend the context', columns,
               records, note, short)


def term(
    families: Sequence[Family], run: Run, index: Index, weak: Sequence[str] = ()
) -> Table:
  """Makes the table of the primary endpoint, a row for each method.

  A row has what the misalignment term changes, and what its controls change: entropy
  alone, symmetric KL alone, and more steps; and what another α changes against 0.1.

  Args:
    families: those with results.
    run: the run.
    index: of its rows.
    weak: titles of the methods that predict no better than counts of pairs of tokens;
      their tests are not shown.
  """
  at = endpoint(run)
  kinds = list(dict.fromkeys(
      kind_of(arm) for family in families for arm in controls(family)))
  weights = sorted({arm.weight for family in families if family.primary
                    for arm in other_weights(family)})
  primary = primary_tests(families, run, index)
  records = []
  for family, test, by_all, least in primary:
    record: dict[str, Any] = {
        'method': family.control.name, 'label': family.title,
        'seeds': test.num_pairs if test else 0, **difference(by_all),
        'p_holm': p_of(by_all),
        'p': p_of(test),
        'smallest_detectable': float(least),
        'tested': test is not None, 'learned': family.title not in weak}
    # So that all records have the same fields.
    for kind in (*kinds, *_BEYOND.values(), *map(_of_weight, weights)):
      record |= _tested(kind, None)
    for arm in controls(family):
      kind = kind_of(arm)
      record |= _tested(kind, compare(index, arm.name, family.control.name, at))
      if kind in _BEYOND:
        record |= _tested(_BEYOND[kind], compare(index, family.primary, arm.name, at))
    for arm in other_weights(family):
      record |= _tested(
          _of_weight(arm.weight), compare(index, arm.name, family.primary, at))
    records.append(record)
  columns: dict[str, Any] = {
      'method': lambda r: r['label'],
      'misalignment term [95 %]': where('tested', difference_if_learned()),
      'p Holm': if_learned(lambda r: p_value(r['p_holm'])),
      'smallest detectable': if_learned(
          lambda r: number(r['smallest_detectable'], '.4f')),
  }
  for kind in kinds:
    columns[f'{KINDS[kind]} [95 %]'] = where(
        f'{kind}_tested', difference_if_learned(f'{kind}_'))
  for kind, beyond in _BEYOND.items():
    if kind in kinds:
      columns[f'term minus {KINDS[kind]} [95 %]'] = where(
          f'{beyond}_tested', difference_if_learned(f'{beyond}_'))
  for weight in weights:
    columns[f'α = {weight:g} minus α = 0.1 [95 %]'] = where(
        f'{_of_weight(weight)}_tested',
        difference_if_learned(f'{_of_weight(weight)}_'))
  note = (
      f'Δ log perplexity at {times(at // run.length)}, {at} tokens, minus the same '
      'method with α = 0, nats; α = 0.1. p: paired two-sided t-test over '
      f'{seeds_of(_arms(families), run, index)}; it and its interval by Holm over '
      'methods.')
  note += left_out([(found.family, arm) for found in primary
                     for arm in _arms([found.family])], index, 'nll', [at])
  note += _not_learned([r['label'] for r in records if not r['learned']])
  return Table('term', 'What the misalignment term changes', columns, records, note,
               more=_more_of_term(kinds, weights))


def _more_of_term(kinds: Sequence[str], weights: Sequence[float]) -> str:
  """Returns what the columns of the table of the term are, those that it has."""
  said = ['The primary endpoint. Smallest detectable: what its test finds four times '
          'in five at the level of 5 % divided by the number of methods, whatever the '
          'other tests are.']
  if {'entropy', 'symmetric_kl'} & {*kinds}:
    said.append('The entropy of both windows and their symmetric KL add up to the '
                'misalignment term: each alone, with the same α, tells what the term '
                'does by lowering entropy and what by aligning.')
  if 'entropy' in kinds:
    said.append('What it does by aligning, besides lowering entropy, is also the term '
                'minus entropy alone.')
  if 'steps' in kinds:
    said.append('More steps: without the term, as many more as the name of the arm '
                'says, for the time that the term is taken to cost; the term minus '
                'these is the comparison in equal time. The cost that '
                'experiments/benchmarks/regularizer_cost.py measured is 0 to 6 %.')
  if weights:
    said.append('Another α minus α = 0.1: whether less of the term does less, and more '
                'of it more.')
  if kinds or weights:
    said.append('All but the misalignment term are secondary and not corrected.')
  return ' '.join(said)


def _of_weight(weight: float) -> str:
  """Returns the prefix of the fields of another α minus α = 0.1."""
  return f'weight_{weight:g}'.replace('.', '_')


def _tested(kind: str, test: PairedTest | None) -> dict[str, Any]:
  """Returns the fields of one difference, and whether it has a test."""
  return difference(test, f'{kind}_') | {f'{kind}_tested': test is not None}


# Keys in `primary.KINDS` -> prefix of the fields of the term minus such an arm.
_BEYOND = {'entropy': 'beyond_entropy', 'steps': 'equal_time'}


def sliding(
    families: Sequence[Family], run: Run, index: Index, original: int, segment: int
) -> Table:
  """Makes the table of perplexity in sliding windows, a row for each arm.

  Args:
    families: those with results.
    run: the run.
    index: of its rows.
    original: tokens of the checkpoint's own length.
    segment: length of the text that windows slide over, in units of L.
  """
  arms = [(family, arm) for family in families for arm in _arms([family])]
  lengths = sorted({length for name, metric, length in index
                    if metric == 'sliding' and length is not None})
  records: list[dict[str, Any]] = []
  for family, arm in arms:
    record: dict[str, Any] = {
        'arm': arm.name, 'label': f'{family.title}, {label(arm)}'}
    for length in lengths:
      record |= _perplexity(
          [*index.get((arm.name, 'sliding', length), {}).values()], f'ppl_{length}')
    records.append(record)
  columns: dict[str, Any] = {'arm': lambda r: r['label']}
  for length in lengths:
    columns[f'{_at(length, run, original)} [95 %]'] = interval(f'ppl_{length}', '.2f')
  note = (f'{seeds_of(_arms(families), run, index)}. Perplexity in sliding windows, '
          f'half a window apart, over segments of {times(segment)}; no BOS.'
          f'{left_out(arms, index, "sliding", lengths)}')
  return Table('sliding', 'Perplexity in sliding windows', columns, records, note)


def before_training(
    evaluations: Sequence[Mapping[str, Any]], arm: str, length: int
) -> dict[int, float]:
  """Returns log perplexity before training, {seed: nats}.

  Args:
    evaluations: lines of evaluations.jsonl; those of step 0 are before training.
    arm: a control.
    length: in tokens.
  """
  # In the file, None stands for a number that is not finite.
  return {
      line['first_seed']: float(np.float64(line[f'nll_{length}'][0]))
      for line in evaluations
      if line['arm'] == arm and line['step'] == 0 and f'nll_{length}' in line}


def _perplexity(losses: Sequence[float], field: str) -> dict[str, float]:
  """Returns the geometric mean of perplexity over seeds, and its interval."""
  return interval_fields(field, np.exp(mean_interval(losses or [math.nan])))


def left_out(
    arms: Sequence[tuple[Family, Arm]], index: Index, metric: str,
    lengths: Sequence[Any],
) -> str:
  """Returns a sentence that names seeds that are not finite, '' if all are.

  Args:
    arms: each with its family before it.
    index: of the rows of a run.
    metric: a loss.
    lengths: of context, in tokens, or what the index has in their place.
  """
  out = [f'{family.title}, {label(arm)}, seed {seed}' for family, arm in arms
         for seed in sorted({
             seed for n in lengths
             for seed, x in index.get((arm.name, metric, n), {}).items()
             if not math.isfinite(x)})]
  return f' Not finite, and left out: {"; ".join(out)}.' if out else ''


def _not_learned(titles: Sequence[str]) -> str:
  """Returns a sentence that names methods that have not learned, '' without any."""
  named = '; '.join(titles)
  return f' Not learned, so that no test is shown: {named}.' if titles else ''


def _at(length: int, run: Run, original: int) -> str:
  """Returns a length in words: as a multiple of L, else in tokens."""
  if length % run.length == 0:
    return times(length // run.length)
  return f'{length} tokens' if length == original else str(length)


def _arms(families: Sequence[Family]) -> list[Arm]:
  """Returns all arms of families."""
  return [arm for family in families for arm in (family.control, *family.others)]
