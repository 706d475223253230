"""Compiled programs that answer the prompts of the benchmark, for many seeds at once.

Axes: S seeds, K prompts, n tokens of the longest, m new tokens.
"""

from collections.abc import Callable, Sequence
import math
from typing import Any

import jax

from experiments.correlation.prompts import Prompt
from vvlen import sharding
from vvlen.evaluation.widths import padded, until
from vvlen.models.generation import generate
from vvlen.models.llama.model import Llama
from vvlen.tasks.tokenizers import Tokenizer

_AT_ONCE = 16  # prompts in one batch

# (parameters [S, ...], prompts of one length) -> texts [S][K]
Answer = Callable[[Any, Sequence[Prompt]], list[list[str]]]


def make_answer(
    model: Llama, tokenizer: Tokenizer, num_tokens: int, mesh: jax.sharding.Mesh,
    group_size: int,
) -> Answer:
  """Returns a function that answers prompts greedily; it compiles for each length.

  An answer ends before the token that begins the next document of the text, if the
  tokenizer has one.

  Args:
    model: as it is measured.
    tokenizer: of the model.
    num_tokens: m, the most tokens of an answer.
    mesh: with the axis 'seed'.
    group_size: the most seeds in one vmap.
  """
  end = tokenizer.begin

  def one(tokens, lengths, params):
    def batch(part):
      return generate(model, {'params': params}, part[0], num_tokens, lengths=part[1],
                      end=end)

    at_once = math.gcd(len(tokens), _AT_ONCE)
    parts = jax.tree.map(
        lambda x: x.reshape(-1, at_once, *x.shape[1:]), (tokens, lengths))
    return jax.lax.map(batch, parts).reshape(-1, num_tokens)

  program = sharding.over_seeds(one, mesh, group_size, shared=2)
  ends = () if end is None else (end,)

  def answer(params: Any, prompts: Sequence[Prompt]) -> list[list[str]]:
    own = [prompt.tokens for prompt in prompts]
    shared = jax.device_put(
        padded(own, max(map(len, own)), len(own)), sharding.whole(mesh))
    made = sharding.fetch(program(*shared, params))
    return [[tokenizer.decode(until(row.tolist(), ends)) for row in own]
            for own in made]

  return answer
