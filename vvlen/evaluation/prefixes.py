"""A decoder's answers for all prefixes of its input, in one pass.

Under causal attention, the states of tokens do not depend on later tokens. So if a
model answers at a last token EOS, it can answer after each of N tokens in one pass,
with one EOS for each prefix:

  tokens     BOS x_1 … x_N  EOS_1 … EOS_N       positions  0 1 … N  2 … N + 1

where EOS_l attends to BOS, x_1 … x_l and itself. The answers are exact, from 2N + 1
tokens in place of the N (N + 5) / 2 tokens of N separate inputs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Prefixes(NamedTuple):
  """Arguments of `vvlen.models.decoder`."""

  tokens: jax.Array  # [B, 2N + 1] int32
  positions: jax.Array  # [2N + 1] int32
  mask: jax.Array  # [2N + 1, 2N + 1] bool
  read_at: jax.Array  # [N] int32, the columns of EOS_1 … EOS_N


def all_prefixes(tokens: jax.Array, begin: int, end: int) -> Prefixes:
  """Returns the input that makes a decoder answer for all prefixes.

  Args:
    tokens: x [B, N] int32.
    begin: the token BOS.
    end: the token EOS.
  """
  batch, length = tokens.shape
  edge = lambda token, count: jnp.full((batch, count), token, tokens.dtype)
  tokens = jnp.concatenate([edge(begin, 1), tokens, edge(end, length)], axis=1)
  read = jnp.arange(length + 1)  # BOS and x
  asked = jnp.arange(1, length + 1)  # l of EOS_l
  read_rows = read[:, None] >= read[None]
  asked_rows = asked[:, None] >= read[None]
  none = jnp.zeros((length + 1, length), bool)
  mask = jnp.block([[read_rows, none], [asked_rows, jnp.eye(length, dtype=bool)]])
  positions = jnp.concatenate([read, asked + 1])
  return Prefixes(tokens, positions, mask, length + asked)
