"""What interventions have found, in sentences. Runs without JAX."""

from collections.abc import Mapping, Sequence
import math

from experiments.length_generalization.answer import learned
from experiments.mechanism.figures import IMPOSED, INTERVENTIONS
from vvlen.reporting.endpoints import LEARNED
from vvlen.reporting.numbers import from_to, interval_words, number, p_words
from vvlen.reporting.tables import Record

# Changes that use the position of the target, which no model knows.
_TOLD = [INTERVENTIONS[name][0] for name in ('reweighted', 'one_hot')]
SOME_LOST = 5  # points; of less, no share is restored
# Changes that take z-scores from short inputs, where the target is known.
_IMPOSED = [label for label, _, _ in IMPOSED.values()]


def headline(
    records: Sequence[Record], shortest: Mapping[str, float],
    by_length: Sequence[Record] = (),
) -> str:
  """Says which change that does not know the target restores most, and how much.

  That is of each arm. Nothing is said of changes that were not tried.

  Args:
    records: of the table `mechanism`.
    shortest: {arm: accuracy in % at the shortest length}; only arms that learned count.
    by_length: the records of the table `mechanism_by_length`; lengths at which less
      than `SOME_LOST` points are lost do not count.

  Returns:
    The title of the figure.
  """
  counts = lambda r: (shortest[r['arm']] >= 100 * LEARNED
                      and r['intervention'] not in (*_TOLD, *_IMPOSED))
  best: dict[str, Record] = {}
  for r in filter(counts, records):
    known = best.get(r['arm'], {'restored_percent': -math.inf})
    if r['restored_percent'] > known['restored_percent']:
      best[r['arm']] = r
  if not best:
    return 'Accuracy if the attention output is changed'
  lost = lambda r: shortest[r['arm']] - r['control']
  at_one = [
      100 * (r['treated'] - r['control']) / lost(r) for r in by_length
      if r['arm'] in best and r['intervention'] == best[r['arm']]['intervention']
      and lost(r) >= SOME_LOST]
  most = f' (up to {number(max(at_one), ".0f")} % at one length)' if at_one else ''
  arms_of: dict[str, list[str]] = {}
  for arm, r in best.items():
    arms_of.setdefault(r['intervention'], []).append(arm)
  names = [name + f' ({", ".join(arms)})' * (len(arms_of) > 1)
           for name, arms in arms_of.items()]
  restored = from_to([r['restored_percent'] for r in best.values()], '.0f')
  return (f'With {" or ".join(names)}, {restored} % of the accuracy lost over all '
          f'lengths comes back{most}')


def answer(
    records: Sequence[Record], shortest: dict[str, float],
    chance: float | None = None, length: int | None = None,
) -> list[str]:
  """Says, for each arm, which change of the attention output restores most accuracy.

  Changes that know the target are reported separately: they restore all accuracy
  whether variance vanishes or attention disperses.

  Args:
    records: of the table `mechanism`.
    shortest: {arm: accuracy in % at the shortest length}.
    chance: the share of right answers by guessing, if it is known.
    length: the shortest length, in items.

  Returns:
    Sentences. The second one says whether the models have learned the task.
  """
  said = []
  for arm, accuracy in shortest.items():
    if accuracy < 100 * LEARNED:
      said.append(f'{arm}: no verdict, {number(accuracy, ".1f")} % right at the '
                  'shortest length is too little to lose.')
      continue
    tested = [r for r in records if r['arm'] == arm and math.isfinite(r['p_holm'])]
    own = [r for r in tested if r['intervention'] not in (*_TOLD, *_IMPOSED)]
    if not own:
      said.append(f'{arm}: no verdict, fewer than two seeds that differ.')
      continue
    best = max(own, key=lambda r: r['difference'])
    interval = interval_words(best['ci_low'], best['ci_high'], '+.1f')
    found = '' if best['p_holm'] < 0.05 else ', no difference found'
    lost = ('' if math.isnan(best['restored_percent']) else
            f', {number(best["restored_percent"], ".0f")} % of what is lost')
    said.append(
        f'{arm}: of the changes of the attention output that do not know the target, '
        f'"{best["intervention"]}" restores most accuracy beyond the training lengths, '
        f'{number(best["difference"], "+.1f")} points {interval}{lost}, '
        f'{p_words(best["p_holm"])} by Holm{found}.')
    told = [r['restored_percent'] for r in tested if r['intervention'] in _TOLD
            and math.isfinite(r['restored_percent'])]
    if told:
      said[-1] += (f' Told the target, up to {number(max(told), ".0f")} % come back, '
                   'which does not tell variance from dispersion.')
  where = 'the shortest length' if length is None else (
      f'the shortest length, {length} items')
  return [*said[:1], learned(shortest, chance, f'At {where}, right (mean of seeds)'),
          *said[1:]]
