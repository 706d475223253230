r"""Gives each head of a trained model a temperature that grows with its keys.

The i-th token of a causal model attends to n = i keys. Here head h of layer l
multiplies its logits by β(n), which leaves all inputs of up to n₀ tokens as they are:

  β(n) = max(n / n₀, 1)^p              `power_of_n`
  β(n) = (log max(n, n₀) / log n₀)^q   `power_of_log_n`

`vvlen.evaluation.temperature_law` fits p and q to the least factor β* at which the top
key of a head has half of the weight. With such a law β / β* stays what it is at n₀, so
a key that has half of the weight there keeps it, as long as the layers before give the
same queries and keys. With another share it may change: among n equal gaps of c log n₀
below the top key, one with c < 1 falls with n and one with c > 1 grows. Log n for all
heads, q = 1: arXiv 2501.19399.

Logits are products with the queries, so these are multiplied, where they leave their
projection; no model has to be changed, and no weight.

Axes: B sequences, n tokens, l layers, h query heads.
"""

from collections.abc import Callable
import re
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from vvlen.models.fixes.laws import log_growth

_LAYER = re.compile(r'layer_(\d+)')


def power_of_n(powers: ArrayLike, length: int, longest: int) -> jax.Array:
  """Returns β of the tokens of an input by the first law, [l, n, h].

  Args:
    powers: p [l, h]; nan: β is 1.
    length: n, the number of tokens.
    longest: n₀, at least 2.
  """
  return _raised(log_growth(np.arange(1, length + 1), longest)[0], powers)


def power_of_log_n(powers: ArrayLike, length: int, longest: int) -> jax.Array:
  """Returns β by the second law, [l, n, h]; `powers` are q, others as `power_of_n`."""
  return _raised(log_growth(np.arange(1, length + 1), longest)[1], powers)


def apply_tempered(
    model: nn.Module, factors: jax.Array, variables: Any, tokens: jax.Array,
    *rest: Any, **options: Any,
) -> Any:
  """Returns model.apply(variables, tokens, …) with the logits of heads multiplied.

  Args:
    model: a `vvlen.models.llama.Llama`, `vvlen.models.decoder.Decoder` or model around
      one, or another causal linen model whose layers are named layer_0, layer_1, … and
      each have a submodule `query` that gives the queries of all tokens, head by head.
      Attention must use no other logits than products with them: no ALiBi, and no norm
      of the queries. It must have no other mask than the causal one.
    factors: β [l, n, h], positive; `power_of_n` and `power_of_log_n` give those of a
      law.
    variables: of the model.
    tokens: [B, n] integers.
    *rest: further arguments of the model; with `read_at`, it must have all n tokens.
    **options: keywords of `model.apply`, such as `method`.

  Returns:
    What `model.apply` returns.

  Raises:
    ValueError: if the model has ALiBi or shifted sparse attention, or factors do not
      fit its layers, heads or tokens. Heads are counted by its attribute `num_heads`,
      or where queries are [B, n, h, width].
  """
  inner = getattr(model, 'decoder', model)
  if getattr(inner, 'alibi', False) or getattr(inner, 'positions', '') == 'alibi':
    raise ValueError('ALiBi adds to the logits what no factor of the queries changes')
  if getattr(inner, 'shifted', None) is not None:
    raise ValueError('shifted sparse attention has fewer keys than β is computed from')
  num_heads = getattr(inner, 'num_heads', None)
  factors = jnp.asarray(factors)
  batch, length = tokens.shape
  if factors.ndim != 3 or factors.shape[1] != length:
    raise ValueError(f'factors must be [layers, {length} tokens, heads]: '
                     f'{factors.shape}')
  found = set()

  def multiplied(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    output = call(*args, **kwargs)
    layer, name = ['', '', *list(context.module.path)][-2:]
    of_layer = _LAYER.fullmatch(layer)
    if name != 'query' or not of_layer or context.method_name != '__call__':
      return output
    number = int(of_layer[1])
    if number >= len(factors):
      raise ValueError(f'factors are of {len(factors)} layers: the model has more')
    of_all = output.shape[0] == batch * length or output.shape[:2] == (batch, length)
    own_heads = output.shape[-2] if output.ndim == 4 else num_heads
    if (not of_all or own_heads not in (None, factors.shape[2])
        or output.size % (batch * length * factors.shape[2])):
      raise ValueError(f'factors are of {factors.shape[2]} heads and {length} tokens, '
                       f'the queries of layer {number} are {output.shape}')
    found.add(number)
    heads = output.reshape(batch, length, factors.shape[2], -1)
    heads = heads * factors[None, number, :, :, None].astype(output.dtype)
    return heads.reshape(output.shape)

  with nn.intercept_methods(multiplied):
    result = model.apply(variables, tokens, *rest, **options)
  if len(found) < len(factors):
    raise ValueError(f'factors are of {len(factors)} layers, and {len(found)} layers '
                     'of the model have queries')
  return result


def _raised(growth, powers):
  """Returns e^(growth [n] × powers [l, h]), [l, n, h] float32."""
  powers = jnp.nan_to_num(jnp.asarray(powers, jnp.float32))
  return jnp.exp(growth.astype(np.float32)[None, :, None] * powers[:, None, :])
