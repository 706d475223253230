"""Queries, keys and outputs of the attention of any Llama, such as a published one.

Logits are products of queries and keys over the root of their width, also with ALiBi,
whose bias −s_h (i − j) for the query i and key j of head h takes two more components:

  q'_i = √(w + 2) (q_i / √w, s_h, −s_h i),   k'_j = (k_j, j, 1)

Axes: B sequences, n tokens, h query heads, k key heads, w width of a head.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vvlen.models.llama.model import Llama
from vvlen.models.rope import changes_at
from vvlen.objectives.cross_entropy import check_tokens


class Probe(NamedTuple):
  """Attention of one layer."""

  queries: jax.Array  # [B, n, h, w], rotated by their positions; with ALiBi w + 2 wide
  keys: jax.Array  # [B, n, k, w], likewise
  output: jax.Array  # [B, n, h, w], before the output projection


def probe_layer(
    model: Llama, variables: dict[str, Any], layer: int
) -> Callable[[jax.Array], Probe]:
  """Returns a function of tokens [B, n] to the `Probe` of one layer."""
  probe = probe_layers(model, variables, [layer])
  return lambda tokens: probe(tokens)[0]


def probe_layers(
    model: Llama, variables: dict[str, Any], layers: Sequence[int]
) -> Callable[[jax.Array], list[Probe]]:
  """Returns a function that probes several layers in one pass.

  It is compiled once for each model and choice of layers, with the weights as
  arguments. Nothing after the attention of the highest of the layers is computed.

  Args:
    model: the Llama.
    variables: the variables of the model.
    layers: indices of layers, from 0 on, in any order.

  Returns:
    A function of tokens [B, n] to a `Probe` of each layer, in the order of `layers`. It
    raises ValueError if tokens are not integers [B, n] of the vocabulary.

  Raises:
    ValueError: if `layers` is empty or names a layer that the model lacks.
  """
  for layer in layers:
    if not 0 <= layer < model.num_layers:
      raise ValueError(f'layer must be in 0..{model.num_layers - 1}: {layer}')
  if not layers:
    raise ValueError('there are no layers to look at')
  asked = tuple(layers)

  def probe(tokens: jax.Array) -> list[Probe]:
    tokens = jnp.asarray(tokens)
    check_tokens(tokens, (*tokens.shape, model.vocab_size))
    return look(model, asked, variables, tokens)

  return probe


def reads_ahead(model: Llama, length: int) -> bool:
  """Whether states of tokens depend on how many tokens follow, up to `length` in all.

  They do with rotary positions whose rates depend on the length of the input: Dynamic,
  LongRope and CLEX. With other models, one pass over n tokens gives the states of all
  shorter inputs too.
  """
  limit = changes_at(model.rope)
  return limit is not None and length > limit


@functools.partial(jax.jit, static_argnums=(0, 1))
def look(
    model: Llama, layers: tuple[int, ...], variables: dict[str, Any], tokens: jax.Array
) -> list[Probe]:
  """Returns a `Probe` of each layer; see `probe_layers`."""
  upto = model.clone(num_layers=max(layers) + 1)
  _, state = upto.apply(
      variables, tokens, method='hidden', mutable=['intermediates']
  )
  # XLA does not compute what is not returned, such as the end of the highest layer.
  sown = [state['intermediates'][f'layer_{i}'] for i in layers]
  return [Probe(*_with_bias(x), x['attention_output'][0]) for x in sown]


def _with_bias(sown: Mapping[str, Any]) -> tuple[jax.Array, jax.Array]:
  """Returns queries and keys whose products have the bias of ALiBi, if there is one.

  They are float32 or wider then: a logit of tokens that are near each other is a
  difference of terms as large as s_h n.
  """
  queries, keys = sown['queries'][0], sown['keys'][0]
  if 'slopes' not in sown:
    return queries, keys
  wide = jnp.promote_types(queries.dtype, jnp.float32)
  queries, keys = queries.astype(wide), keys.astype(wide)
  _, length, _, width = queries.shape
  slope = sown['slopes'][0].astype(wide)[None, None, :, None]
  place = jnp.arange(length, dtype=wide)[None, :, None, None]
  like = lambda x, parts: [jnp.broadcast_to(y, (*x.shape[:-1], 1)) for y in parts]
  queries = jnp.concatenate(
      [queries / width**0.5, *like(queries, (slope, -slope * place))], axis=-1)
  one = jnp.ones((1, 1, 1, 1), wide)
  return (queries * (width + 2) ** 0.5,
          jnp.concatenate([keys, *like(keys, (place, one))], axis=-1))
