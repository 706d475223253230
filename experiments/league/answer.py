"""What a league has found, in sentences. Runs without JAX."""

from collections.abc import Mapping, Sequence
import math

from experiments.league.effects import (
    AHEAD,
    BEHIND,
    DIVERGED,
    NOT_FINISHED,
    NOT_LEARNED,
    OPEN,
    UNDEFINED,
)
from experiments.league.names import name_of
from vvlen.reporting.endpoints import LEARNED
from vvlen.reporting.numbers import number, p_words
from vvlen.reporting.tables import Record


def answer(
    records: Sequence[Record], laws: Sequence[Record],
    chance: Mapping[str, float] | None = None,
) -> list[str]:
  """Says for each task which arms are ahead, and which law goes farthest.

  Args:
    records: of the table `league`, the best arm of a task first.
    laws: of the table `laws`.
    chance: {task: share of right answers by guessing}, of tasks of which it is known.

  Returns:
    Sentences. The second one says which arms have learned the training lengths.
  """
  tasks = list(dict.fromkeys(r['task'] for r in records))
  if not tasks:
    return ['No answer: the run has not both softmax and another arm yet.']
  by_task = {r['task']: r for r in laws}
  first, *others = [
      _of_task(task, [r for r in records if r['task'] == task], by_task.get(task))
      for task in tasks]
  return [first, _learned(records, chance or {}), *others]


def _learned(records: Sequence[Record], chance: Mapping[str, float]) -> str:
  """Says how many arms have learned the training lengths, softmax among them."""
  parts = []
  for task in dict.fromkeys(r['task'] for r in records):
    own = [r for r in records if r['task'] == task]
    control = own[0]['training_accuracy_control']
    medians = [control, *(r['training_accuracy'] for r in own)]
    known = [x for x in medians if not math.isnan(x)] or [math.nan]
    count = own[0]['learned_control'] + sum(r['learned'] for r in own)
    guessed = f', chance {100 * chance[task]:.3g} %' if task in chance else ''
    parts.append(
        f'{task.replace("_", " ")} {count} of {len(medians)} arms, from '
        f'{number(min(known), ".1f")} to {number(max(known), ".1f")} % '
        f'(softmax {number(control, ".1f")} %{guessed})')
  return ('At the training lengths, arms that have learned, and how often their median '
          f'seed is right: {"; ".join(parts)}. An arm counts as learned if at least '
          f'nine of ten seeds, not the median alone, are right in {100 * LEARNED:.0f} '
          '% or more; 100 % is the most.')


def _of_task(task: str, records: Sequence[Record], law: Record | None) -> str:
  title = task.replace('_', ' ').capitalize()
  count = lambda verdict: sum(r['verdict'] == verdict for r in records)
  without = ', '.join(
      f'{count(verdict)} {verdict}'
      for verdict in (NOT_FINISHED, NOT_LEARNED, DIVERGED, UNDEFINED) if count(verdict))
  decided = [r for r in records if r['verdict'] in (AHEAD, BEHIND, OPEN)]
  if not decided:
    learned = records[0]['learned_control']
    return (f'{title}: no verdict; of {len(records)} arms, {without}.'
            f'{"" if learned else " Softmax has not learned the training lengths."}')
  best = decided[0]
  said = (f'{title}: of {len(records)} arms, {count(AHEAD)} gain over softmax and '
          f'{count(BEHIND)} lose. The arm that goes farthest is {best["label"]}, '
          f'{number(best["difference"], "+.1f")} points [corrected 95 %: '
          f'{number(best["ci_low"], "+.1f")}, {number(best["ci_high"], "+.1f")}], '
          f'{p_words(best["p"])}.')
  if without:
    said += f' Without a verdict: {without}.'
  if law is not None:
    gain = number(law['difference'], '+.1f')
    interval = '' if math.isnan(law['ci_low']) else (
        f' [95 %: {number(law["ci_low"], "+.1f")}, {number(law["ci_high"], "+.1f")}]')
    said += (f' Of {law["laws"]} laws of temperature, '
             f'{name_of(law["best"]).label} goes farthest, '
             f'{gain} points over {name_of(law["second"]).label}{interval}.')
  return said
