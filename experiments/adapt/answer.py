"""What a run of adapt has found, in sentences. Runs without JAX."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from experiments.adapt.primary import controls, corrected_tests, kind_of, KINDS
from experiments.adapt.tables import before_training
from experiments.language_model import paper
from experiments.language_model.arms import Arm, endpoint, Family, Run
from experiments.language_model.figures import times
from experiments.language_model.tables import compare
from vvlen.reporting.numbers import interval_words, number, p_words
from vvlen.reporting.results import Index
from vvlen.statistics import mean_interval, PairedTest

_LITTLE = 0.02  # nats; a checkpoint that loses less needs no extension


def answer(
    families: Sequence[Family], run: Run, index: Index, pairs: float
) -> list[str]:
  """Says what the term changes at the primary endpoint, and what each method does.

  Args:
    families: those with results.
    run: the run.
    index: of its rows.
    pairs: loss of counts of pairs of tokens on the held-out text, nats, from
      `frequencies.pair_entropy`. A model has learned if its loss at L is lower.
  """
  if not families:
    return ['No verdict: no method has results yet.']
  at, place = endpoint(run), times(endpoint(run) // run.length)
  losses = {f.title: _mean(index, f.control.name, run.length) for f in families}
  said = 'Perplexity at the training length, {} tokens: {}'.format(
      run.length, ', '.join(f'{math.exp(x):.3g} ({t})' for t, x in losses.items()))
  weak = weak_methods(families, run, index, pairs)
  if len(weak) == len(losses):
    return ['No verdict: the models predict no better than counts of pairs of tokens.',
            f'{said}; that of the counts is {math.exp(pairs):.3g}.']
  found = _of_term(families, run, index, weak)
  after = ', '.join(f'{math.exp(_mean(index, f.control.name, at)):.3g} ({f.title})'
                    for f in families)
  if weak:
    found.append(f'No verdict on {", ".join(weak)}: '
                 f'{"it predicts" if len(weak) == 1 else "they predict"} no better '
                 'than counts of pairs of tokens.')
  counted = f'that of counts of pairs of tokens is {math.exp(pairs):.3g}'
  return [*found, f'{said}; {counted}, and less counts as learned. At {place}, {at} '
          f'tokens: {after}.']


def without_extension(
    base: Arm | None, run: Run, evaluations: Sequence[Mapping[str, Any]], original: int
) -> list[str]:
  """Says so if the checkpoint needs no extension at the primary endpoint's length.

  It needs none if it loses little there, before training and with its own positions.
  The loss is counted from its own length: at a longer L much may be lost already.

  Args:
    base: the arm of fine-tuning alone, None if it has no results.
    run: the run.
    evaluations: lines of evaluations.jsonl; those of step 0 are before training.
    original: tokens of the checkpoint's own length.
  """
  if base is None:
    return []
  at = endpoint(run)
  own, there = (before_training(evaluations, base.name, n) for n in (original, at))
  changes = [there[seed] - own[seed] for seed in own if seed in there]
  mean = float(mean_interval(changes or [math.nan])[0])
  if not mean < _LITTLE:
    return []
  return [f'At that length the checkpoint itself needs no extension: before training, '
          f'without any method, its log perplexity changes by {number(mean, "+.4f")} '
          f'nats from {original} to {at} tokens.']


def weak_methods(
    families: Sequence[Family], run: Run, index: Index, pairs: float
) -> list[str]:
  """Returns the titles of methods that predict no better than counts of pairs.

  Arguments are those of `answer`.
  """
  return [f.title for f in families
          if not _mean(index, f.control.name, run.length) < pairs]


def _of_term(
    families: Sequence[Family], run: Run, index: Index, weak: Sequence[str]
) -> list[str]:
  """Says what the misalignment term changes in each method but those in `weak`."""
  at = endpoint(run)
  known = corrected_tests(families, run, index)
  if not known:
    return ['No verdict on the misalignment term: fewer than two pairs of seeds, or no '
            'arm with α = 0.1.']
  told = [(family, test) for family, test in known if family.title not in weak]
  if not told:
    return []
  parts = [
      f'{number(test.mean_difference, "+.4f")} nats '
      f'{interval_words(test.ci_low, test.ci_high, "+.4f")}, {p_words(test.p)} '
      f'({family.title})'
      for family, test in told]
  pairs = sorted({test.num_pairs for _, test in told})
  several = ', p and intervals by Holm over methods' if len(known) > 1 else ''
  place = f'{times(at // run.length)}, {at} tokens'
  return [f'At {place}, the misalignment term with α = 0.1 {_verdict(told)}: log '
          f'perplexity changes by {"; ".join(parts)}. '
          f'{" or ".join(map(str, pairs))} pairs of seeds{several}.',
          *_of_parts([family for family, _ in told], run, index)]


def _verdict(told: Sequence[tuple[Family, PairedTest]]) -> str:
  """Returns with which methods a difference was found, and its direction, in words."""
  kinds: dict[str, list[str]] = {}
  for family, test in told:
    kind = ('was not found to change predictions with' if test.p >= 0.05
            else 'worsens predictions with' if test.mean_difference > 0
            else 'improves predictions with')
    kinds.setdefault(kind, []).append(family.title)
  return ', and '.join(f'{kind} {", ".join(names)}' for kind, names in kinds.items())


def _of_parts(families: Sequence[Family], run: Run, index: Index) -> list[str]:
  """Says what the parts of the term change, each alone, and what the paper has.

  The list is empty unless each method has both arms.
  """
  parts = ('entropy', 'symmetric_kl')
  found: dict[str, list[str]] = {kind: [] for kind in parts}
  for family in families:
    for arm in controls(family):
      test = compare(index, arm.name, family.control.name, endpoint(run))
      if kind_of(arm) in parts and test is not None:
        found[kind_of(arm)].append(
            f'{number(test.mean_difference, "+.4f")} [{number(test.ci_low, "+.4f")}, '
            f'{number(test.ci_high, "+.4f")}] ({family.title})')
  if any(len(changes) != len(families) for changes in found.values()):
    return []
  said = [f'{KINDS[kind]}: {", ".join(changes)}' for kind, changes in found.items()]
  least, most = paper.changes()
  return ['What its two parts change, each alone with the same α, in nats [95 %], not '
          f'corrected: {"; ".join(said)}.',
          f'The paper has {number(least, "+.3f")} to {number(most, "+.3f")} for the '
          'whole term, in single runs of Llama-2-7B: with CLEX at 2 L, with LongQLoRA '
          'and EABF at L.']


def _mean(index: Index, arm: str, length: int) -> float:
  return float(mean_interval([*index[arm, 'nll', length].values()])[0])
