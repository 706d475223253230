"""What a league has found, in sentences. Runs without JAX."""

from collections.abc import Mapping, Sequence
import math

from experiments.league.chance import Chance
from experiments.league.effects import (
  AHEAD,
  BEHIND,
  DECIDED,
  DIVERGED,
  NOT_FINISHED,
  NOT_LEARNED,
  UNDEFINED,
)
from experiments.league.names import in_words, name_of, SAME_LAW
from vvlen.reporting.endpoints import LEARNED
from vvlen.reporting.numbers import counted, interval_words, number, p_words
from vvlen.reporting.tables import Record


def answer(
    records: Sequence[Record], laws: Sequence[Record],
    chance: Mapping[str, Chance] | None = None,
) -> list[str]:
  """Says which arms are ahead, on all tasks and on each, and which law goes farthest.

  Args:
    records: of the table `league`, the best arm of a task first.
    laws: of the table `laws`.
    chance: {task: the accuracy of guessing}, of tasks of which it is known.

  Returns:
    Sentences. If there are records, the second one says which arms have learned the
    training lengths.
  """
  if not records:
    return ['No answer: the run has not both softmax and another arm yet.']
  by_task = {task: [r for r in records if r['task'] == task]
             for task in dict.fromkeys(r['task'] for r in records)}
  law_of = {r['task']: r for r in laws}
  first, *others = [*_on_all_tasks(by_task), *(
      _of_task(task, own, law_of.get(task)) for task, own in by_task.items())]
  return [first, _learned(by_task, chance or {}), *others]


def _on_all_tasks(by_task: Mapping[str, Sequence[Record]]) -> list[str]:
  """Says which arms are ahead on every task; [] if fewer than two tasks have verdicts.

  The arm that goes farthest is named of tasks of which all arms have been run.
  """
  judged = {task: own for task, records in by_task.items() if (
      own := {r['arm']: r for r in records if r['verdict'] in DECIDED})}
  if len(judged) < 2:
    return []
  first, *others = judged.values()
  shared = [arm for arm in first if all(arm in own for own in others)]
  weakest = [min((own[arm] for own in judged.values()), key=lambda r: r['difference'])
             for arm in shared
             if all(own[arm]['verdict'] == AHEAD for own in judged.values())]
  ahead = '; '.join(
      f'{r["label"]} (least on {in_words(r["task"])}, '
      f'{number(r["difference"], "+.1f")} points, {p_words(r["p"])})' for r in weakest)
  best = [next(iter(own.values())) for task, own in judged.items()
          if len(by_task[task]) == by_task[task][0]['num_tests']]
  farthest = '; '.join(
      f'{r["label"]} on {in_words(r["task"])}, {number(r["difference"], "+.1f")} points'
      for r in best if r['verdict'] == AHEAD)
  return [f'Of {counted(len(shared), "arm")} with a verdict on each of '
          f'{", ".join(map(in_words, judged))}, ahead of softmax on all of them: '
          f'{ahead or "none"}.{f" Farthest go {farthest}." if farthest else ""}']


def _learned(
    by_task: Mapping[str, Sequence[Record]], chance: Mapping[str, Chance]
) -> str:
  """Says how many arms have learned the training lengths, softmax among them."""
  parts = []
  for task, own in by_task.items():
    control = own[0]['training_accuracy_control']
    medians = [control, *(r['training_accuracy'] for r in own)]
    known = [x for x in medians if not math.isnan(x)] or [math.nan]
    count = own[0]['learned_control'] + sum(r['learned'] for r in own)
    guessed = f', {chance[task]}' if task in chance else ''
    least, most = (number(end(known), '.1f') for end in (min, max))
    accuracy = f'all {most}' if least == most else f'from {least} to {most}'
    parts.append(
        f'{in_words(task)} {count} of {len(medians)} arms, {accuracy} % '
        f'(softmax {number(control, ".1f")} %{guessed})')
  return ('At the training lengths, arms that have learned, and the accuracy of their '
          f'median seed: {"; ".join(parts)}. An arm counts as learned if at least nine '
          f'of ten seeds, not the median alone, have {100 * LEARNED:.0f} % or more.')


def _of_task(task: str, records: Sequence[Record], law: Record | None) -> str:
  title = in_words(task).capitalize()
  count = lambda verdict: sum(r['verdict'] == verdict for r in records)
  without = ', '.join(
      f'{count(verdict)} {verdict}'
      for verdict in (NOT_FINISHED, NOT_LEARNED, DIVERGED, UNDEFINED) if count(verdict))
  decided = [r for r in records if r['verdict'] in DECIDED]
  if not decided:
    learned = records[0]['learned_control']
    return (f'{title}: no verdict; of {_arms(records)}, {without}.'
            f'{"" if learned else " Softmax has not learned the training lengths."}')
  best = decided[0]
  farthest = ('The arm that goes farthest is' if best['difference'] > 0 else
              'No arm goes farther than softmax; the closest is')
  said = (f'{title}: of {_arms(records)}, {count(AHEAD)} gain over softmax and '
          f'{count(BEHIND)} lose. {farthest} {best["label"]}, '
          f'{number(best["difference"], "+.1f")} points [corrected 95 %: '
          f'{number(best["ci_low"], "+.1f")}, {number(best["ci_high"], "+.1f")}], '
          f'{p_words(best["p"])}.')
  if without:
    said += f' Without a verdict: {without}.'
  return said + (_law_words(law) if law is not None else '')


def _arms(records: Sequence[Record]) -> str:
  """Returns the number of arms beside softmax, and over how many p is corrected."""
  every = records[0]['num_tests']
  if len(records) == every:
    return f'{every} arms'
  return f'the {len(records)} arms run so far (corrected over all {every})'


def _law_words(law: Record) -> str:
  """Says which law of temperature goes farthest, from its row of the table `laws`."""
  pair = law['best'], law['second']
  best, second = (name_of(arm).label for arm in pair)
  interval = '' if math.isnan(law['ci_low']) else (
      f' [uncorrected {interval_words(law["ci_low"], law["ci_high"], "+.1f")[1:]}')
  same = '' if {*pair} != {*SAME_LAW} else (
      '; these two are the same function of n up to a factor that the weights of the '
      'model can hold, so they differ in optimization and learning rate alone')
  return (f' Of {law["laws"]} laws of temperature, {best} goes farthest, '
          f'{number(law["difference"], "+.1f")} points over {second}{interval}, both '
          f'chosen by the same seeds{same}.')
