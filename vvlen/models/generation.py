"""Generates text under jit, greedily or by sampling, with a cache of keys and values.

Axes: B sequences, n tokens of the longest prompt, m new tokens, V words.
"""

from collections.abc import Collection
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vvlen.models.embedding import check_places
from vvlen.models.llama.model import Llama


def generate(
    model: Llama,
    variables: dict,
    tokens: jax.Array,
    num_tokens: int,
    *,
    lengths: jax.Array | None = None,
    temperature: float = 0.0,
    key: jax.Array | None = None,
    end: int | Collection[int] | None = None,
    not_first: Collection[int] = (),
) -> jax.Array:
  """Returns the tokens with which a model continues prompts.

  Compiles once for each shape of prompts, number of tokens, and choice of `end` and
  `not_first`. Positions are 0, 1, ….
  Rates of dynamic rotary positions, LongRoPE and CLEX change with the length, so all
  keys in the cache are rotated again for each new token. The hidden states from which
  they were computed still reflect the rates of earlier lengths: beyond the training
  length, tokens may differ from those generated without a cache, and from those of the
  transformers library, which does not rotate keys again. With CLEX's factor of queries,
  ln(number of keys) / ln L₀, they may differ at any length.

  Args:
    model: a `vvlen.models.llama.Llama`, or another module with its methods `prefill`,
      `step` and `logits`.
    variables: of the model.
    tokens: [B, n] integers, the prompts, padded at the end with any tokens.
    num_tokens: m.
    lengths: [B] integers in 1..n, the number of tokens of each prompt; None: n. Under
      jit only their shape and dtype are checked.
    temperature: 0 takes the most probable token, the first among equals; otherwise
      tokens are drawn from softmax(logits / temperature).
    key: a typed PRNG key; required if the temperature is positive.
    end: the token that ends a sequence and then fills its row, or several, of which any
      one ends a sequence and the first fills its row; None: there is none. When all
      sequences have ended, no more tokens are computed.
    not_first: tokens that are never the first new one of a sequence.

  Returns:
    [B, m] int32.

  Raises:
    ValueError: if shapes do not fit, num_tokens is not positive, a token, `end` or one
      of `not_first` is not in the vocabulary, a length is not an integer in 1..n, the
      temperature is negative, or it is positive and there is no key.
  """
  tokens = jnp.asarray(tokens)
  if tokens.ndim != 2 or not tokens.size:
    raise ValueError(f'tokens must be [B, n], B and n positive: {tokens.shape}')
  batch, longest = tokens.shape
  traced = isinstance(lengths, jax.core.Tracer)
  given: Any = lengths if traced else (
      np.full(batch, longest) if lengths is None else np.asarray(lengths))
  if (given.shape != (batch,) or not jnp.issubdtype(given.dtype, jnp.integer)
      or (not traced and (given.min() < 1 or given.max() > longest))):
    raise ValueError(f'lengths must be [{batch}] integers in 1..{longest}: '
                     f'{given if traced else given.tolist()}')
  if num_tokens < 1:
    raise ValueError(f'num_tokens must be positive: {num_tokens}')
  if not temperature >= 0 or (temperature > 0 and key is None):
    raise ValueError('temperature must not be negative, and needs a key if it is '
                     f'positive: {temperature}')
  check_places('tokens', tokens, model.vocab_size)
  ends = () if end is None else (*end,) if isinstance(end, Collection) else (end,)
  if wrong := [x for x in ends if not 0 <= x < model.vocab_size]:
    raise ValueError(f'end must lie in 0..{model.vocab_size - 1}: {wrong[0]}')
  check_places('not_first', jnp.asarray([*not_first], jnp.int32), model.vocab_size)
  key = jax.random.key(0) if key is None else key
  return _generate(model, num_tokens, temperature > 0, ends, (*not_first,), variables,
                   tokens, jnp.asarray(given, jnp.int32), temperature, key)


def cache_bytes(model: Llama, variables: dict, batch: int, places: int) -> int:
  """Returns the bytes of the keys and values that `generate` keeps.

  Args:
    model: as in `generate`.
    variables: of the model; their shapes and dtypes suffice.
    batch: B.
    places: n + m.
  """
  tokens = jax.ShapeDtypeStruct((batch, 1), jnp.int32)
  lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)
  read = lambda *inputs: model.apply(*inputs, places, method='prefill')
  _, cache = jax.eval_shape(read, variables, tokens, lengths)
  return sum(x.size * x.dtype.itemsize for x in (*cache.keys, *cache.values))


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _generate(model, num_tokens, drawn, ends, not_first, variables, tokens, lengths,
              temperature, key):
  batch, longest = tokens.shape
  apply = functools.partial(model.apply, variables)

  def next_token(hidden, number, never=()):
    logits = apply(hidden, method='logits')
    if never:
      logits = logits.at[:, np.array(never)].set(-jnp.inf)
    if not drawn:
      return logits.argmax(-1).astype(jnp.int32)
    step_key = jax.random.fold_in(key, number)
    return jax.random.categorical(step_key, logits / temperature).astype(jnp.int32)

  def put(found, number, token, ended):
    if ends:
      token = jnp.where(ended, ends[0], token)
      ended = jnp.isin(token, np.array(ends))
    return found.at[:, number].set(token), token, ended

  def body(carry):
    number, token, ended, cache, found = carry
    hidden, cache = apply(token, cache, method='step')
    found, token, ended = put(found, number, next_token(hidden, number), ended)
    return number + 1, token, ended, cache, found

  def goes_on(carry):
    return (carry[0] < num_tokens) & ~carry[2].all()

  hidden, cache = apply(tokens, lengths, longest + num_tokens, method='prefill')
  found = jnp.full((batch, num_tokens), ends[0] if ends else 0, jnp.int32)
  ended = jnp.zeros(batch, bool)
  found, token, ended = put(found, 0, next_token(hidden, 0, not_first), ended)
  return jax.lax.while_loop(goes_on, body, (1, token, ended, cache, found))[-1]
