"""Scores of answers that do not depend on what is asked. Runs without JAX."""

from collections.abc import Sequence
import re

from vvlen.evaluation import babilong


def of_story(task: str, facts: Sequence[str], question: str, answer: str) -> float:
  """Returns 1 if the label that is named last answers a question of BABILong, else 0.

  The arguments but `answer` are those of `last_named`.
  """
  return float(last_named(task, facts, question) == answer.strip().lower())


def of_needles(num_answers: int, num_others: int, chance: float) -> float:
  """Returns the score of any of the values in a prompt of RULER.

  Args:
    num_answers: how many are right.
    num_others: how many are wrong.
    chance: the score of a guess, which is returned if no value is wrong.
  """
  return num_answers / (num_answers + num_others) if num_others else chance


def last_named(task: str, facts: Sequence[str], question: str) -> str:
  """Returns the label that the facts of a question name last, but the question not.

  Who answers so, whoever is asked for, is right in 59 % of stories of qa1 of up to four
  facts, and in half of those of up to ten.

  Args:
    task: 'qa1' to 'qa5'.
    facts: of the question.
    question: its text.

  Returns:
    The label in lower case; '' if there is none.
  """
  words = re.findall(r'\w+', ' '.join(facts).lower())
  asked = re.findall(r'\w+', question.lower())
  named = [x for x in words if x in babilong.LABELS[task] and x not in asked]
  return named[-1] if named else ''
