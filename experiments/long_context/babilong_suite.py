"""The tasks of the suite babilong.

Their questions are seeded without the length, so that all lengths have the same ones.
"""

from collections.abc import Callable, Sequence
import contextlib
import functools
from typing import Any

from etils import epath
import numpy as np

from experiments.harness.parts import naming
from experiments.long_context.samples import (
    encoded,
    facts_of,
    generator,
    Sample,
    sentences_of,
    Suite,
)
from experiments.long_context.scores import place_of
from vvlen.evaluation import babilong as judge
from vvlen.reporting.numbers import counted
from vvlen.tasks import babi, babi_stories, babilong_prompts, documents
from vvlen.tasks.haystack import Haystack
from vvlen.tasks.tokenizers import Tokenizer

# More than the tokens of any question of bAbI, which has at most 43 characters.
_QUESTION = 64
_SPARE = 16  # tokens by which a text may have more than its parts
_FEW = 8  # places where facts can stand; with fewer, they are hardly apart
_DRAWN = 5  # samples whose places are counted


def babilong(config: Any, tokenizer: Tokenizer) -> Suite:
  """Returns the tasks of babilong, from files of bAbI or its simulator."""
  sentences = sentences_of(config, lambda: _lines_of_python(config.num_characters))
  bad: list[str] = []
  files = {task: _file(config, task) for task in config.tasks if config.babi}
  read = {task: _questions(config, task, path, bad) for task, path in files.items()}
  questions = {task: _drawn(config, task, read.get(task)) for task in config.tasks}
  depths = [tuple(x) for x in config.depths] or [(0.0, 1.0)]

  def hidden(task: str, length: int, index: int) -> Haystack:
    question = questions[task](index)
    source = f'{files[task]} line {question.line}' if question.line else ''
    with naming(source) if source else contextlib.nullcontext():
      return babilong_prompts.build(
          generator(config.seed, task, length, index), task, question, sentences,
          length, tokenizer, depth=depths[index % len(depths)],
          of_prompt=config.length_of == 'prompt', parts=config.parts)

  def draw(task: str, length: int, index: int) -> Sample:
    question = questions[task](index)
    made = hidden(task, length, index)
    # The quarter of the first fact that is needed, as 0, 25, 50 or 75.
    first = min(made.depths[i] for i in question.support)
    settings = {'facts': question.facts, 'support': question.support,
                'depths': [round(x, 4) for x in made.depths],
                'between': depths[index % len(depths)], 'parts': list(config.parts)}
    return Sample(
        encoded(tokenizer, made.prompt, config.begin), length, 25 * int(4 * first),
        [question.answer], [], (), question.question,
        guess(task, question.question, question.answer), settings)

  def places(task: str, length: int) -> float:
    return float(np.mean([hidden(task, length, index).places
                          for index in range(min(_DRAWN, config.num_samples))]))

  parts = list(config.parts)
  blanks = {task: babilong_prompts.prompt(task, '', '', parts) for task in config.tasks}
  template = [[task, parts, blank] for task, blank in blanks.items()]
  around = {task: len(tokenizer.encode(blank)) + _longest(tokenizer, read.get(task, ()))
            for task, blank in blanks.items() if config.length_of == 'context'}
  stories = [path.read_text() for path in files.values()]
  advice = ('Choose longer --config.lengths, a smaller --config.most_facts or, to '
            'leave out instruction and examples, --config.parts="()"')
  return Suite(
      {task: functools.partial(draw, task) for task in config.tasks},
      facts_of(sentences, template, babi_sha256=documents.fingerprint(stories)), advice,
      around, bad, functools.partial(_few_places, places))


def _lines_of_python(num_characters: int) -> list[str]:
  """Returns the lines of Python's standard library, which has few sentences."""
  text = '\n'.join(documents.standard_library())[:num_characters]
  return [line for line in text.split('\n') if line.strip()]


def _questions(
    config: Any, task: str, path: epath.Path, bad: list[str]
) -> list[babi.Question]:
  """Returns the questions of a file that may be asked.

  Args:
    config: of the run.
    task: of BABILong.
    path: of the file.
    bad: messages on lines of the file that cannot be used are added to it.
  """
  questions, messages = babi.read_questions(path, judge.LABELS[task])
  bad += messages
  there = [question for question in questions
           if not config.most_facts or len(question.facts) <= config.most_facts]
  if config.num_samples > len(there):
    few = ' with so few facts' if config.most_facts else ''
    raise ValueError(
        f'{path} has {counted(len(there), "question")}{few}, fewer than '
        f'config.num_samples {config.num_samples}'
        + ''.join(f'. Not used: {message}' for message in messages[:3]))
  return there


def _drawn(
    config: Any, task: str, there: Sequence[babi.Question] | None
) -> Callable[[int], babi.Question]:
  """Returns a function from the index of a sample to its question.

  Args:
    config: of the run.
    task: of BABILong.
    there: the questions of a file, in whose random order they are asked; None: they are
      simulated.
  """
  if there is None:
    return functools.cache(lambda index: babi_stories.draw_question(
        generator(config.seed, task, index), task, config.most_facts or None))
  order = generator(config.seed, task).permutation(len(there))
  return lambda index: there[order[index]]


def _longest(tokenizer: Tokenizer, there: Sequence[babi.Question]) -> int:
  """Returns the most tokens of a question, of bAbI's own or of those of a file."""
  of_file = (len(tokenizer.encode(x)) for x in {x.question for x in there})
  return max([_QUESTION, *(_SPARE + x for x in of_file)])


def _few_places(
    places: Callable[[str, int], float], run: Sequence[tuple[str, int]]
) -> list[str]:
  """Returns a line if facts can stand in few places only.

  Args:
    places: (task, length) -> in how many, on average.
    run: tasks and lengths that are run, those of a task in ascending order.
  """
  few: list[str] = []
  enough: set[str] = set()  # tasks; longer texts have more places
  for task, length in run:
    if task in enough:
      continue
    if (mean := places(task, length)) < _FEW:
      few.append(f'{mean:.1f} in {place_of(task, length)}')
    else:
      enough.add(task)
  return [f'Facts have few places, which are before, between and after sentences of '
          f'the text, so their depths say little: on average {", ".join(few)}. Choose '
          'longer --config.lengths, or a --text of shorter sentences.'] if few else []


def _file(config: Any, task: str) -> epath.Path:
  """Returns the file of bAbI with the questions of a task."""
  folder = epath.Path(config.babi)
  if not folder.is_dir():
    raise FileNotFoundError(f'{folder}: no such folder')
  paths = sorted(folder.glob(f'{task}_*_test.txt'))
  if len(paths) != 1:
    raise ValueError(f'{folder} must have one file {task}_…_test.txt: {len(paths)}')
  return paths[0]


def guess(task: str, question: str, answer: str) -> float:
  """Returns the score of a guess without the context: one over the possible answers.

  These are the labels of the task of the same kind as the answer, things or not, that
  the question does not name.
  """
  labels = set(judge.LABELS[task])
  things = labels & {x.lower() for x in babi_stories.THINGS}
  kind = things if answer.strip().lower() in things else labels - things
  return 1 / max(1, len([x for x in kind if x not in question.lower()]))
