"""What a run of length generalization has found, in sentences. Runs without JAX."""

from collections.abc import Mapping, Sequence
import math

from vvlen.reporting.endpoints import LEARNED
from vvlen.reporting.numbers import interval_words, number, p_words
from vvlen.reporting.tables import Record

PRIMARY = 'LN − Baseline'
NOT_LEARNED = 'not learned'  # instead of a verdict


def answer(
    primary: Sequence[Record], training: Sequence[Record],
    chance: float | None = None, lengths: str = '',
) -> list[str]:
  """Says whether LayerNorm after attention helps, and whether the task was learned.

  Args:
    primary: the records of the table `primary_endpoint`.
    training: those of the table `training`.
    chance: the share of right answers by guessing, if it is known.
    lengths: of training, in words such as '5 to 16 items', if they are known.
  """
  record = next((r for r in primary if r['comparison'] == PRIMARY), None)
  if record is None:
    return ['No answer: it needs both the Baseline and LN, and the run lacks one.']
  compared = [r for r in training if r['arm'] in ('Baseline', 'LN')]
  diverged = [
      r['arm'] for r in compared if math.isnan(r.get('loss', 0.0)) and r['seeds']]
  if diverged:
    return [f'No verdict: the loss of every seed of {" and of ".join(diverged)} became '
            'infinite or undefined. A lower learning rate may help.']
  accuracy = {r['arm']: r['median_accuracy'] for r in compared}
  items = f', {lengths} taken together' if lengths else ''
  where = f'At the training lengths{items}, right (median over seeds)'
  return [verdict(record)] + [learned(accuracy, chance, where)] * bool(accuracy)


def verdict(record: Record) -> str:
  """Says what the test of a record of the table `primary_endpoint` has found."""
  if record['at_5_percent'] == NOT_LEARNED:
    return ('No verdict: an arm has not learned the training lengths, so nothing here '
            'is about longer ones.')
  if math.isnan(record['p']):
    return ('No verdict: there are fewer than two pairs of seeds, or all of them have '
            'the same difference.')
  interval = interval_words(record['ci_low'], record['ci_high'], '+.1f')
  difference, least = (number(record[name], form) for name, form in (
      ('difference', '+.1f'), ('smallest_detectable', '.1f')))
  text = (f'LayerNorm after attention: {difference} points of accuracy beyond the '
          f'training lengths {interval}, {p_words(record["p"])}; Baseline '
          f'{number(record["control"], ".1f")} %, {record["pairs"]} pairs of seeds.')
  if record['p'] < 0.05:
    text += f' It is {"ahead" if record["difference"] > 0 else "behind"}.'
  else:
    text += (f' No difference was found; one of {least} points would be found four '
             'times in five.')
  return text


def learned(
    accuracy: Mapping[str, float], chance: float | None, where: str
) -> str:
  """Says how well arms do on short inputs.

  Args:
    accuracy: {arm: accuracy in %}.
    chance: the share of right answers by guessing, if it is known.
    where: the begin of the sentence: lengths, and what the accuracies are.
  """
  needed = f'{100 * LEARNED:.0f} % is needed'
  guessed = f'; chance is {100 * chance:.3g} %' if chance else ''
  shares = ', '.join(f'{arm} {number(x, ".1f")} %' for arm, x in accuracy.items())
  right = f'{where}: {shares}'
  failed = [arm for arm, x in accuracy.items() if not x >= 100 * LEARNED]
  if not failed:
    what = {1: 'it', 2: 'both'}.get(len(accuracy), 'all')
    return f'{right}; {what} learned the task ({needed}{guessed}).'
  return f'{right}; {needed} to call the task learned{guessed}.'
