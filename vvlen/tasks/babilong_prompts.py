"""Prompts of BABILong: a question of bAbI, its facts hidden in a long text.

A prompt is an instruction, examples, what an answer looks like, the context and the
question. In the published benchmark, a length L stands for a context of L − 300 tokens
of GPT-2, in which facts stand anywhere, with 100 questions for each task and length.
Here any tokenizer counts, either the context or the whole prompt.

Source: Kuratov et al. (2024), arXiv 2406.10149; booydar/babilong 7a6efee, prompts.py.
Runs without JAX.
"""

from collections.abc import Collection, Sequence
import functools
import importlib.resources
import json

import numpy as np

from vvlen.tasks.babi import Question
from vvlen.tasks.haystack import Haystack, hide
from vvlen.tasks.tokenizers import Tokenizer

PARTS = ('instruction', 'examples', 'post_prompt')


def prompt(
    task: str, context: str, question: str, parts: Collection[str] = PARTS
) -> str:
  """Returns a prompt in the published words.

  Args:
    task: 'qa1' to 'qa5'.
    context: the text with the facts.
    question: such as 'Where is Mary?'.
    parts: which of `PARTS` the prompt has before the context.

  Raises:
    ValueError: if the task or a part is unknown.
  """
  published = _published()
  if task not in published:
    raise ValueError(f'the task must be one of {", ".join(published)}: {task!r}')
  if unknown := set(parts) - set(PARTS):
    raise ValueError(f'parts must be of {", ".join(PARTS)}: {sorted(unknown)}')
  before = [published[task][x] if x in parts else '' for x in PARTS]
  after = [f'<context>\n{context.strip()}\n</context>', f'Question: {question}']
  return '\n\n'.join([*before, *after]).strip()


def build(
    rng: np.random.Generator,
    task: str,
    question: Question,
    sentences: Sequence[str],
    num_tokens: int,
    tokenizer: Tokenizer,
    *,
    depth: tuple[float, float] = (0.0, 1.0),
    of_prompt: bool = True,
    parts: Collection[str] = PARTS,
) -> Haystack:
  """Hides the facts of a question in a text, and asks it.

  Args:
    rng: as in `vvlen.tasks.haystack.hide`.
    task: 'qa1' to 'qa5'.
    question: its answer is the target, `vvlen.evaluation.babilong.is_correct`.
    sentences: of the text, as in `hide`.
    num_tokens: the exact number of tokens of the prompt, or of the context.
    tokenizer: counts them.
    depth: as in `hide`; the published depths 0, 25, 50 and 75 are
      `vvlen.tasks.haystack.QUARTERS`.
    of_prompt: whether `num_tokens` counts the whole prompt; False: its context alone.
    parts: as in `prompt`.

  Returns:
    The prompt, its context, and the depth of each fact.

  Raises:
    ValueError: as in `hide` and `prompt`.
  """
  wrap = lambda context: prompt(task, context, question.question, parts)
  wrap('')  # raises if the task or a part is unknown
  # A space at the end of the context is not in the prompt, and not counted.
  hidden = hide(rng, question.facts, sentences, num_tokens, tokenizer, depth=depth,
                wrap=wrap if of_prompt else str.strip)
  context = hidden.context.strip()
  return hidden._replace(prompt=wrap(context), context=context)


@functools.cache
def _published() -> dict[str, dict[str, str]]:
  """Returns the parts of prompts by task."""
  file = importlib.resources.files('vvlen.tasks') / 'babilong_prompts.json'
  return json.loads(file.read_text(encoding='utf-8'))['prompts']
