"""The tasks of the suite babilong.

Their questions are seeded without the length, so that all lengths have the same ones.
"""

from collections.abc import Callable
import functools
from typing import Any

from etils import epath

from experiments.long_context.samples import (
    encoded,
    facts_of,
    generator,
    Sample,
    sentences_of,
    Suite,
)
from vvlen.evaluation import babilong as judge
from vvlen.tasks import babi, babi_stories, babilong_prompts, documents
from vvlen.tasks.haystack import split_sentences
from vvlen.tasks.tokenizers import Tokenizer

# More than the tokens of any question of bAbI, which has at most 43 characters.
_QUESTION = 64


def babilong(config: Any, tokenizer: Tokenizer) -> Suite:
  """Returns the tasks of babilong, from files of bAbI or its simulator."""
  sentences = sentences_of(config, lambda: split_sentences(
      '\n'.join(documents.standard_library())[:config.num_characters]))
  bad: list[str] = []
  questions = {task: _questions(config, task, bad) for task in config.tasks}
  depths = [tuple(x) for x in config.depths] or [(0.0, 1.0)]

  def draw(task: str, length: int, index: int) -> Sample:
    question = questions[task](index)
    depth = depths[index % len(depths)]
    hidden = babilong_prompts.build(
        generator(config.seed, task, length, index), task, question, sentences, length,
        tokenizer, depth=depth, of_prompt=config.length_of == 'prompt',
        parts=config.parts)
    # The quarter of the first fact that is needed, as 0, 25, 50 or 75.
    first = min(hidden.depths[i] for i in question.support)
    settings = {'facts': question.facts, 'support': question.support,
                'depths': [round(x, 4) for x in hidden.depths], 'between': depth,
                'parts': list(config.parts)}
    return Sample(
        encoded(tokenizer, hidden.prompt, config.begin), length, 25 * int(4 * first),
        [question.answer], [], (), question.question,
        guess(task, question.question, question.answer), settings)

  parts = list(config.parts)
  blanks = {task: babilong_prompts.prompt(task, '', '', parts) for task in config.tasks}
  template = [[task, parts, blank] for task, blank in blanks.items()]
  around = {task: len(tokenizer.encode(blank)) + _QUESTION
            for task, blank in blanks.items() if config.length_of == 'context'}
  stories = [_file(config, task).read_text() for task in config.tasks if config.babi]
  advice = ('Choose longer --config.lengths, a smaller --config.most_facts or, to '
            'leave out instruction and examples, --config.parts="()"')
  return Suite(
      {task: functools.partial(draw, task) for task in config.tasks},
      facts_of(sentences, template, babi_sha256=documents.fingerprint(stories)), advice,
      around, bad)


def _questions(
    config: Any, task: str, bad: list[str]
) -> Callable[[int], babi.Question]:
  """Returns a function from the index of a sample to its question.

  Args:
    config: of the run.
    task: of BABILong.
    bad: messages on lines of its file that cannot be used are added to it.
  """
  if not config.babi:
    return functools.cache(lambda index: babi_stories.draw_question(
        generator(config.seed, task, index), task, config.most_facts or None))
  path = _file(config, task)
  questions, messages = babi.read_questions(path, judge.LABELS[task])
  bad += messages
  there = [question for question in questions
           if not config.most_facts or len(question.facts) <= config.most_facts]
  if config.num_samples > len(there):
    raise ValueError(f'{path} has {len(there)} questions'
                     f'{" with so few facts" if config.most_facts else ""}, fewer than '
                     f'config.num_samples {config.num_samples}')
  order = generator(config.seed, task).permutation(len(there))
  return lambda index: there[order[index]]


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
