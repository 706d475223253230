"""What a run of adapt has found, in sentences. Runs without JAX."""

from collections.abc import Sequence
import math

from experiments.adapt.primary import primary_tests
from experiments.language_model.arms import endpoint, Family, Run
from experiments.language_model.figures import times
from vvlen.reporting.numbers import interval_words, number, p_words
from vvlen.reporting.results import Index
from vvlen.statistics import mean_interval


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
  known = [(found.family.title, found.by_all)
           for found in primary_tests(families, run, index)
           if found.by_all is not None and not math.isnan(found.by_all.p)]
  if not known:
    return ['No verdict on the misalignment term: fewer than two pairs of seeds, or no '
            'arm with α = 0.1.']
  told = [(title, test) for title, test in known if title not in weak]
  if not told:
    return []
  parts = [
      f'{number(test.mean_difference, "+.4f")} nats '
      f'{interval_words(test.ci_low, test.ci_high, "+.4f")}, {p_words(test.p)} '
      f'({title})'
      for title, test in told]
  pairs = sorted({test.num_pairs for _, test in told})
  none = '' if min(test.p for _, test in told) < 0.05 else '; no difference was found'
  several = ', p and intervals by Holm over methods' if len(known) > 1 else ''
  place = f'{times(at // run.length)}, {at} tokens'
  return [f'The misalignment term with α = 0.1 changes log perplexity at {place}, by '
          f'{"; ".join(parts)}: {" or ".join(map(str, pairs))} pairs of seeds{several}'
          f'{none}.']


def _mean(index: Index, arm: str, length: int) -> float:
  return float(mean_interval([*index[arm, 'nll', length].values()])[0])
