"""A sample of a suite, and what a run is to answer.

Each sample that is drawn has a random generator of its own, seeded by the seed of the
run and the sample's task, length and index; questions of BABILong by all but the
length. So it does not depend on the number of samples, nor on the other lengths, tasks
and batches.
"""

from collections.abc import Callable, Mapping, Sequence
import hashlib
import json
import types
from typing import Any, NamedTuple
import zlib

import numpy as np

from vvlen.tasks import documents
from vvlen.tasks.haystack import split_sentences
from vvlen.tasks.tokenizers import Tokenizer


class Sample(NamedTuple):
  """A prompt, and what its answer is compared with.

  Names are those of the fields in `experiments.long_context.predictions`.
  """

  tokens: np.ndarray  # [n] int32, with BOS
  length: int
  depth: int | None
  answers: Sequence[str]
  others: Sequence[str]
  all_classes: Sequence[str]
  question: str
  chance: float
  settings: dict[str, Any]


class Part(NamedTuple):
  """The samples of one task and one length; with LongBench, of all lengths."""

  task: str
  name: str  # of its file of predictions
  widths: Sequence[int]  # the most tokens of each sample's prompt, by index
  longest: int  # the most tokens of any prompt
  answer_tokens: int
  draw: Callable[[int], Sample]  # index -> sample
  one_line: bool = False  # as in `experiments.long_context.generation.answer`


class Plan(NamedTuple):
  """What a run is to answer."""

  parts: list[Part]
  facts: dict[str, Any]  # what identifies its inputs, in config.json
  notes: list[str]  # to be printed


class Suite(NamedTuple):
  """The tasks of a suite."""

  draws: dict[str, Callable[[int, int], Sample]]  # {task: draw(length, index)}
  facts: dict[str, Any]
  advice: str = 'Choose longer --config.lengths'  # where prompts do not fit
  # {task: the most tokens of a prompt beyond its length}
  around: Mapping[str, int] = types.MappingProxyType({})
  bad: Sequence[str] = ()  # messages on lines of files that cannot be used
  # (task, length) of all prompts that are asked -> lines to be printed
  notes: Callable[[Sequence[tuple[str, int]]], list[str]] = lambda _: []


def generator(seed: int, *key: str | int) -> np.random.Generator:
  """Returns a random generator for a seed and words or numbers."""
  return np.random.default_rng(
      [seed, *(zlib.crc32(x.encode()) if isinstance(x, str) else x for x in key)])


def template_hash(template: Any) -> str:
  """Returns the SHA-256 of the words around prompts, given as plain values."""
  return hashlib.sha256(json.dumps(template).encode()).hexdigest()


def encoded(tokenizer: Tokenizer, text: str, begin: bool) -> np.ndarray:
  """Returns the tokens of a prompt, with BOS if wanted and if there is one."""
  start = [tokenizer.begin] if begin and tokenizer.begin is not None else []
  return np.concatenate([np.array(start, np.int32), tokenizer.encode(text)])


def sentences_of(config: Any, default: Callable[[], Sequence[str]]) -> list[str]:
  """Returns the sentences of the text around what is asked for."""
  if not config.text:
    return list(default())
  parts, left = [], config.num_characters
  for part in documents.stream_documents([config.text]):
    parts.append(part)
    left -= len(part) + 1
    if left <= 0:
      break
  return split_sentences('\n'.join(parts)[:config.num_characters])


def facts_of(sentences: Sequence[str], template: Any, **more: Any) -> dict[str, Any]:
  """Returns what identifies the text and the words around it, and more."""
  return {'text_sha256': documents.fingerprint(sentences),
          'template_sha256': template_hash(template), **more}
