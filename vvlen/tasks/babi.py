"""Questions of bAbI, from its files: short stories about persons, rooms and things.

A file has one line for each fact, 'ID TEXT', and for each question,
'ID QUESTION?<tab>ANSWER<tab>SUPPORT', where SUPPORT are the IDs of the facts that give
the answer. IDs of a story are 1, 2, …; a line with ID 1 begins another story.

Source: Weston et al. (2015), arXiv 1502.05698; version 1.2. Runs without JAX.
"""

from collections.abc import Collection
from typing import NamedTuple

from etils import epath


class Question(NamedTuple):
  """A question with all that was told before it."""

  facts: tuple[str, ...]  # since the beginning of the story, without other questions
  question: str
  answer: str
  support: tuple[int, ...]  # which facts give the answer, from 0 on
  line: int = 0  # of its file, from 1 on; 0: it is of no file


def read_questions(
    path: epath.PathLike, answers: Collection[str] = ()
) -> tuple[list[Question], list[str]]:
  """Reads all questions of a file of bAbI, and lists the lines that are not as above.

  What follows such a line in its story is left out, as a fact may be missing.

  Args:
    path: such as qa1_single-supporting-fact_test.txt, local or gs://.
    answers: those that there may be, in lower case; (): any.

  Returns:
    Questions in the order of the file, each with the facts before it; and a message for
    each story that is not read to its end.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if it is not UTF-8, or there is no question.
  """
  path = epath.Path(path)
  if not path.is_file():
    raise FileNotFoundError(f'{path}: no such file')
  try:
    lines = path.read_bytes().decode('utf-8-sig').splitlines()
  except UnicodeDecodeError as error:
    raise ValueError(f'{path} is not UTF-8 at byte {error.start}') from error
  questions: list[Question] = []
  bad: list[str] = []
  facts: dict[int, str] = {}  # of the story, by ID
  last: int | None = 0  # None: what follows in this story is left out
  for number, line in enumerate(lines, 1):
    if last is None and line.partition(' ')[0] != '1':
      continue
    try:
      identity, text = _identity(line, last or 0)
      if identity == 1:
        facts = {}
      if '\t' in text:
        question = _question(text, facts, answers)
        questions.append(question._replace(line=number))
      else:
        facts[identity] = text
      last = identity
    except ValueError as error:
      bad.append(f'{path} line {number}: {error}')
      last = None
  if not questions:
    raise ValueError(f'{path} has no questions{f". {bad[0]}" if bad else ""}')
  return questions, bad


def _identity(line: str, last: int) -> tuple[int, str]:
  """Returns the ID of a line, which is 1 or comes after the last one, and its text."""
  identity, _, text = line.partition(' ')
  if not (identity.isascii() and identity.isdigit() and text.strip()):
    raise ValueError(f'a line must be a number, a space and a text: {line!r:.80}')
  if int(identity) not in (1, last + 1):
    raise ValueError(f'the number must be {last + 1}, or 1 for a new story: {identity}')
  return int(identity), text.strip()


def _question(
    text: str, facts: dict[int, str], answers: Collection[str]
) -> Question:
  """Returns what is in a line with tabs."""
  fields = [x.strip() for x in text.split('\t')]
  if len(fields) != 3 or not all(fields):
    raise ValueError('a question must be followed by a tab, its answer, a tab and '
                     f'numbers of facts: {text!r:.80}')
  if answers and fields[1].lower() not in answers:
    raise ValueError(f'the answer must be one of {", ".join(answers)}: '
                     f'{fields[1]!r:.80}')
  places = {str(identity): place for place, identity in enumerate(facts)}
  wrong = [x for x in fields[2].split() if x not in places]
  if wrong:
    raise ValueError(f'no fact of the story has the number {wrong[0]!r:.20}')
  support = tuple(places[x] for x in fields[2].split())
  return Question(tuple(facts.values()), fields[0], fields[1], support)
