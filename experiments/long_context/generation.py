"""Greedy answers to prompts, in batches of few shapes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vvlen.evaluation import widths
from vvlen.models.llama.model import Llama
from vvlen.tasks.tokenizers import Tokenizer


class Subject(NamedTuple):
  """A model, and what its tokens mean."""

  model: Llama
  variables: dict[str, Any]
  tokenizer: Tokenizer
  ends: tuple[int, ...]  # the tokens that end an answer
  batch_size: int  # prompts at once


def answer(
    subject: Subject, prompts: Sequence[np.ndarray], width: int, num_tokens: int,
    one_line: bool = False,
) -> list[str]:
  """Returns the answers to a batch of prompts.

  A program is compiled for each width, number of new tokens and value of `one_line`.

  Args:
    subject: the model.
    prompts: arrays [n] of tokens, at most `subject.batch_size`.
    width: as in `vvlen.evaluation.widths.Batch`, at least n.
    num_tokens: the most tokens of an answer.
    one_line: whether an answer has one line, as in LongBench's samsum: its first token
      is neither a newline nor one that ends an answer, and it ends at a newline. A
      batch whose answers have all ended is not continued.

  Returns:
    Texts, without the token that ends an answer and what follows it.
  """
  ends = (*subject.ends, *(_newlines(subject.tokenizer) if one_line else ()))
  found = widths.continuations(
      subject.model, subject.variables, prompts, width, subject.batch_size, num_tokens,
      ends, not_first=ends if one_line else ())
  texts = [subject.tokenizer.decode(tokens) for tokens in found]
  return [_first_line(text) for text in texts] if one_line else texts


def _newlines(tokenizer: Tokenizer) -> list[int]:
  """Returns the tokens of a newline, without one of a space before it."""
  return [int(x) for x in tokenizer.encode('\n') if '\n' in tokenizer.decode([x])]


def _first_line(text: str) -> str:
  """Returns a text up to its first newline after other text."""
  line = text.lstrip('\n').partition('\n')[0]
  return text[:len(text) - len(text.lstrip('\n'))] + line
