"""Greedy answers to prompts, in batches of few shapes.

Axes: B prompts, n tokens, m new tokens.
"""

from collections.abc import Collection, Iterable, Sequence
import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from vvlen.models.generation import generate
from vvlen.models.llama.model import Llama
from vvlen.models.llama.saving import gather
from vvlen.tasks.tokenizers import Tokenizer


class Subject(NamedTuple):
  """A model, and what its tokens mean."""

  model: Llama
  variables: dict[str, Any]
  tokenizer: Tokenizer
  ends: tuple[int, ...]  # the tokens that end an answer; generation stops at the first
  batch_size: int  # B


class Batch(NamedTuple):
  """Prompts that are answered together."""

  width: int  # n, to which they are padded
  indices: tuple[int, ...]  # of samples


def width_of(num_tokens: int, longest: int) -> int:
  """Returns the number of tokens to which a prompt is padded.

  That is one of few: the longest, two thirds of it, a half, a third, a quarter, …,
  rounded up. So no prompt is padded by more than half, and prompts of nearly the
  longest length have one shape.

  Raises:
    ValueError: if the prompt is longer than the longest, or empty.
  """
  if not 1 <= num_tokens <= longest:
    raise ValueError(f'a prompt has {num_tokens} tokens, not 1 to {longest}')
  width = longest
  for power in range(longest.bit_length()):
    for part in (1, 2 / 3):
      smaller = math.ceil(longest * part / 2**power)
      if num_tokens <= smaller:
        width = min(width, smaller)
  return width


def batches(widths: Sequence[int], batch_size: int) -> list[Batch]:
  """Returns all samples in batches of one width each, in a fixed order.

  Args:
    widths: of each sample, by its index.
    batch_size: of each batch but the last one of a width.
  """
  found = []
  for width in sorted(set(widths)):
    own = [i for i, x in enumerate(widths) if x == width]
    found += [Batch(width, tuple(own[i:i + batch_size]))
              for i in range(0, len(own), batch_size)]
  return found


def answer(
    subject: Subject, prompts: Sequence[np.ndarray], width: int, num_tokens: int
) -> list[str]:
  """Returns the answers to a batch of prompts.

  It compiles once for each width and number of tokens.

  Args:
    subject: the model.
    prompts: at most B arrays [n] of tokens; a smaller batch is filled up with its first
      prompt.
    width: as in `Batch`, at least n.
    num_tokens: m, the most tokens of an answer.

  Returns:
    Texts, without the token that ends an answer and what follows it.
  """
  rows = [*prompts, *[prompts[0]] * (subject.batch_size - len(prompts))]
  tokens = np.zeros((len(rows), width), np.int32)
  for row, prompt in zip(tokens, rows, strict=True):
    row[:len(prompt)] = prompt
  lengths = np.array([len(row) for row in rows], np.int32)
  found = generate(
      subject.model, subject.variables, jnp.asarray(tokens), num_tokens,
      lengths=jnp.asarray(lengths), end=subject.ends[0] if subject.ends else None)
  made = gather(found, False)[:len(prompts)]
  return [subject.tokenizer.decode(until(row.tolist(), subject.ends)) for row in made]


def until(tokens: Sequence[int], ends: Collection[int]) -> list[int]:
  """Returns the tokens before the first of those that end an answer."""
  first = next((i for i, x in enumerate(tokens) if x in ends), len(tokens))
  return list(tokens[:first])


def programs(shapes: Iterable[tuple[int, int]]) -> int:
  """Returns how many programs are compiled for (width, number of new tokens)."""
  return len(set(shapes))
