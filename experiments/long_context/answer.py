"""What a suite has found, in sentences. Runs without JAX."""

from collections.abc import Sequence

from experiments.long_context.longbench_tables import MEANS
from experiments.long_context.tables import Effect, KEPT, name_of
from vvlen.reporting.tables import interval_words, number, Record


def answer(effects: Sequence[Effect]) -> list[str]:
  """Says up to which length the tasks are done, or that they are not.

  Args:
    effects: of each task.
  """
  said = []
  able = [effect for effect in effects if effect.able]
  for effect in able:
    base, last = effect.lengths[0], effect.lengths[-1]
    low, high = 100 * effect.low, 100 * effect.high
    words = (f'{name_of(effect.task)}: {_percent(effect.means[0])} '
             f'{interval_words(low, high, ".0f")} at {base:,} tokens')
    if effect.effective == last > base:
      words += f', and at least {KEPT:.0%} of that up to {last:,}, the longest'
    elif last > base:
      words += (f', at least {KEPT:.0%} of that up to {effect.effective:,}, and '
                f'{_percent(effect.means[-1])} at {last:,}')
    said.append(f'{words}.')
  said = [words[0].upper() + words[1:] for words in said]
  unable = [effect for effect in effects if not effect.able]
  if unable:
    names = ', '.join(f'{name_of(x.task)} ({_percent(x.means[0])})' for x in unable)
    said.append(f'No verdict on {names}: at {unable[0].lengths[0]:,} tokens, the base '
                'length, not above a guess without the context.')
  return said


def _percent(share: float) -> str:
  return f'{number(100 * share, ".3g")} %'


def longbench_answer(means: Sequence[Record], dialect: str, window: int) -> list[str]:
  """Says the three means of LongBench-E.

  Args:
    means: the records of the table `means`.
    dialect: whose scores are told.
    window: the number of tokens of the model's window; 0 if it is not known.
  """
  words = [f'{number(r[dialect], ".3g")} % {MEANS[r["mean"]]} ({r["count"]})'
           for r in means]
  where = f' with a window of {window:,} tokens' if window else ''
  return [f'Mean score of LongBench-E{where}: {", ".join(words)}.']
