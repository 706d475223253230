"""Batches of prompts in few shapes, so that few programs are compiled, and answers.

Prompts are padded at the end to one of a few widths; a batch has prompts of one width.

Axes: B prompts, n tokens, m new tokens.
"""

from collections.abc import Collection, Sequence
import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from vvlen.models.generation import generate
from vvlen.models.llama.model import Llama
from vvlen.models.llama.saving import gather


class Batch(NamedTuple):
  """Prompts that are read together."""

  width: int  # n, to which they are padded
  indices: tuple[int, ...]  # of prompts


def width_of(num_tokens: int, longest: int) -> int:
  """Returns the number of tokens to which a prompt is padded.

  This is the longest length, two thirds of it, a half, a third, a quarter, …, rounded
  up. So no prompt is padded by more than half, and prompts of nearly the longest length
  have one shape.

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
  """Returns all prompts in batches of one width each, in a fixed order.

  Args:
    widths: of each prompt, by its index.
    batch_size: of each batch but the last one of a width.
  """
  found = []
  for width in sorted(set(widths)):
    own = [i for i, x in enumerate(widths) if x == width]
    found += [Batch(width, tuple(own[i:i + batch_size]))
              for i in range(0, len(own), batch_size)]
  return found


def padded(
    prompts: Sequence[Sequence[int] | np.ndarray], width: int, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns a batch of prompts as arrays.

  Args:
    prompts: 1 to B arrays [n] of tokens; a smaller batch is filled up with its first
      prompt.
    width: the most tokens of a prompt.
    batch_size: B.

  Returns:
    Tokens [B, width] int32, padded at the end with 0, and lengths [B] int32.
  """
  rows = [*prompts, *[prompts[0]] * (batch_size - len(prompts))]
  tokens = np.zeros((len(rows), width), np.int32)
  for row, prompt in zip(tokens, rows, strict=True):
    row[:len(prompt)] = prompt
  return tokens, np.array([len(row) for row in rows], np.int32)


def continuations(
    model: Llama, variables: dict[str, Any],
    prompts: Sequence[Sequence[int] | np.ndarray], width: int, batch_size: int,
    num_tokens: int, ends: Collection[int], not_first: Collection[int] = (),
) -> list[list[int]]:
  """Returns the tokens with which a model continues a batch of prompts, greedily.

  It compiles once for each width, batch size, number of new tokens, and choice of the
  tokens that end a text and of those with which none begins.

  Args:
    model: as in `vvlen.models.generation.generate`.
    variables: of the model.
    prompts: as in `padded`.
    width: as in `padded`.
    batch_size: B.
    num_tokens: m.
    ends: the tokens that end a text. When each prompt of the batch has generated one of
      them, no more tokens are computed.
    not_first: tokens with which no text begins.

  Returns:
    For each prompt at most m tokens: those before the first token that ends a text.
  """
  tokens, lengths = padded(prompts, width, batch_size)
  found = generate(
      model, variables, jnp.asarray(tokens), num_tokens, lengths=jnp.asarray(lengths),
      end=ends, not_first=not_first)
  return [until(row.tolist(), ends) for row in gather(found, False)[:len(prompts)]]


def until(tokens: Sequence[int], ends: Collection[int]) -> list[int]:
  """Returns the tokens before the first of those that end a text."""
  first = next((i for i, x in enumerate(tokens) if x in ends), len(tokens))
  return list(tokens[:first])
