"""What a suite has found, in sentences. Runs without JAX."""

from collections.abc import Sequence
import math

from experiments.long_context.longbench_tables import MEANS
from experiments.long_context.tables import Effect, KEPT, MARGIN, name_of
from vvlen.reporting.numbers import interval_words, number
from vvlen.reporting.tables import Record

_KEPT = f'{100 * KEPT:.0f} %'
_NOT_ABLE = (f'its interval does not lie {100 * MARGIN:.0f} points above a guess or a '
             'shortcut')


def answer(effects: Sequence[Effect]) -> list[str]:
  """Says up to which length the tasks are done, or that they are not.

  Args:
    effects: of each task.
  """
  # Predictions made elsewhere may have other lengths in each task.
  able: dict[tuple[int, int], list[Effect]] = {}
  unable: dict[tuple[int, bool], list[Effect]] = {}
  for effect in effects:
    base, last = effect.lengths[0], effect.lengths[-1]
    if effect.able:
      able.setdefault((base, last), []).append(effect)
    else:
      unable.setdefault((base, math.isnan(effect.low)), []).append(effect)
  said = [_of_one(own[0]) if len(own) == 1 else _of_several(own)
          for own in able.values()]
  for (base, single), own in unable.items():
    names = ', '.join(f'{name_of(x.task)} ({_percent(x.means[0])})' for x in own)
    why = 'a single sample' if single else _NOT_ABLE
    said.append(f'No verdict on {names}: at {base:,} tokens, the base length, {why}.')
  return said


def _of_one(effect: Effect) -> str:
  base, last = effect.lengths[0], effect.lengths[-1]
  interval = interval_words(100 * effect.low, 100 * effect.high, '.0f')
  words = (f'{name_of(effect.task)}: {_percent(effect.means[0])} {interval} at '
           f'{base:,} tokens')
  if base == last:
    return f'{words}.'
  up_to = f'at least {_KEPT} of that up to {_effective(effect)}'
  if effect.effective == last:
    return f'{words}, and {up_to}, the longest.'
  return f'{words}, {up_to}, and {_percent(effect.means[-1])} at {last:,}.'


def _of_several(effects: Sequence[Effect]) -> str:
  base, last = effects[0].lengths[0], effects[0].lengths[-1]
  means = [sum(x.means[i] for x in effects) / len(effects) for i in (0, -1)]
  said = (f'Mean of the {len(effects)} tasks that can be done at {base:,} tokens: '
          f'{_percent(means[0])} there')
  if base == last:
    return f'{said} ({", ".join(name_of(x.task) for x in effects)}).'
  own = ', '.join(f'{name_of(x.task)} up to {_effective(x)}' for x in effects)
  return (f'{said}, and {_percent(means[1])} at {last:,}. Each stays at or above '
          f'{_KEPT} of its own score there: {own}.')


def _effective(effect: Effect) -> str:
  """Returns an effective length and, if it has one, its interval."""
  words = f'{effect.effective:,}'
  if math.isnan(effect.effective_low):
    return words
  ends = interval_words(effect.effective_low, effect.effective_high, ',.0f')
  return f'{words} {ends}'


def _percent(share: float) -> str:
  return f'{number(100 * share, ".3g")} %'


def longbench_answer(means: Sequence[Record], dialect: str, window: int) -> list[str]:
  """Says the three means of LongBench-E.

  Args:
    means: the records of the table `means`.
    dialect: of the scores that are reported.
    window: the number of tokens of the model's window; 0 if it is not known.
  """
  words = [f'{number(r[dialect], ".3g")} % {MEANS[r["mean"]]} ({r["count"]})'
           for r in means]
  where = f' with a window of {window:,} tokens' if window else ''
  return [f'Mean score of LongBench-E{where}: {", ".join(words)}.']
