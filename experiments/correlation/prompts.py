"""The benchmark: prompts of the kinds in the training text, and scores.

A length counts the tokens of BOS, of the prompt and of the room for the answer, so that
at the training length every position was seen in training. All models and seeds get the
same prompts of a length, and each answer is kept. Lengths are in units of the length of
a model's own training: the question is how far a model carries what it has learned.
Runs without JAX.
"""

from collections.abc import Iterable, Sequence
import json
from typing import Any, NamedTuple

import numpy as np

from experiments.correlation.points import METRICS
from experiments.long_context import training_text
from experiments.long_context.samples import encoded, generator
from experiments.long_context.training_text import Answered
from vvlen.evaluation import babilong, ruler
from vvlen.reporting.results import Row
from vvlen.tasks.tokenizers import Tokenizer

TASKS = tuple(training_text.tasks(1))
_TRIES = 50  # draws of the facts of a prompt: not all facts fill a length exactly


class Prompt(NamedTuple):
  """A prompt of the benchmark."""

  task: str
  tokens: np.ndarray  # [n] int32, with BOS
  answered: Answered


def draw(
    benchmark: Any, lengths: Iterable[int], tokenizer: Tokenizer, seed: int
) -> dict[int, list[Prompt]]:
  """Draws the prompts of all tasks.

  A prompt does not depend on the number of prompts, nor on the other lengths and tasks.

  Args:
    benchmark: the field of configs/correlation.py.
    lengths: in tokens.
    tokenizer: of the models.
    seed: of all random numbers.

  Returns:
    {length: prompts}, equally many of each task, in the order of the tasks.

  Raises:
    ValueError: if a length is too short for a task, or an answer has too many tokens.
  """
  draws = training_text.tasks(benchmark.most_facts, benchmark.needle_values)
  most = benchmark.answer_tokens

  def prompt(task: str, length: int, index: int) -> Prompt:
    rng = generator(seed, 'benchmark', task, length, index)
    room = length - most - (tokenizer.begin is not None)
    for tried in range(_TRIES):
      try:
        answered = draws[task](rng, room, tokenizer)
        break
      except ValueError as error:
        if tried == _TRIES - 1:
          raise ValueError(f'config.benchmark.tasks: {task} at {length} tokens, {most} '
                           f'of them for the answer: {error}') from error
    count = len(tokenizer.encode(answered.answer))
    if count > most:
      raise ValueError('config.benchmark.answer_tokens must be at least the tokens of '
                       f'an answer of {task}, {count}: {most}')
    return Prompt(task, encoded(tokenizer, answered.prompt, begin=True), answered)

  return {
      length: [prompt(task, length, i) for task in benchmark.tasks
               for i in range(benchmark.num_prompts)]
      for length in lengths
  }


def score(prompt: Prompt, output: str, dialect: str = 'official') -> float:
  """Returns the score of an answer, in [0, 1], in a dialect, a key of `METRICS`."""
  answered = prompt.answered
  if prompt.task in babilong.LABELS:
    return float(babilong.is_correct(
        prompt.task, output, answered.answers[0], answered.question, dialect))
  return ruler.score(output, answered.answers, dialect, others=answered.others)


def lines_of(length: int, prompts: Sequence[Prompt], outputs: Sequence[str]) -> str:
  """Returns a JSON object for each answer, a line each.

  Fields are those of `experiments.long_context.predictions`, the scores in all dialects
  and shortcut, as in `Answered`. Here, index counts the prompts of all tasks of a
  length.
  """
  return ''.join(
      json.dumps({
          'task': prompt.task, 'length': length, 'index': index,
          'num_tokens': len(prompt.tokens), 'answers': prompt.answered.answers,
          'question': prompt.answered.question, 'chance': prompt.answered.chance,
          'shortcut': prompt.answered.shortcut, 'pred': output,
          **{metric: score(prompt, output, dialect)
             for dialect, metric in METRICS.items()}}, ensure_ascii=False) + '\n'
      for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)))


def rows_of(
    model: str, seed: int, length: int, prompts: Sequence[Prompt],
    outputs: Sequence[str],
) -> list[Row]:
  """Returns the mean scores of each task, and those of guesses, as in `Answered`.

  The column experiment is the task.
  """
  found: dict[str, dict[str, list[float]]] = {}
  for prompt, output in zip(prompts, outputs, strict=True):
    own = found.setdefault(prompt.task, {})
    for dialect, metric in METRICS.items():
      own.setdefault(metric, []).append(score(prompt, output, dialect))
    for guess in ('chance', 'shortcut'):
      own.setdefault(guess, []).append(getattr(prompt.answered, guess))
  return [Row(task, model, seed, length, metric, float(np.mean(values)))
          for task, own in found.items() for metric, values in own.items()]
