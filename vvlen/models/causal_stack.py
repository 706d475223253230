"""A causal stack without parameters, in which LayerNorm alone causes a recency bias.

One layer (arXiv 2509.21042, section 3) is

  Z = LN(X),   S = Z Zᵀ / √d,   A = softmax of S over keys j ≤ i,   X' = A Z + c X

with one head, no feed-forward part and no positions. LN subtracts each row's mean and
divides by its standard deviation; without LN, Z = X. Values are the normalized Z; the
residual, of weight c, adds the raw X. The paper's attention scores, shown in all its
figures, are S, the logits before the softmax.

Products are computed in full float32, or wider if the input is: the effect is about a
thousandth of the logits and is lost in TF32 or bfloat16. Float32 is also too coarse for
the effect at α = 0 and d ≥ 256, and for the small differences between tokens that
remain after ten or more layers without a residual: the scores then appear to be biased
to the oldest tokens.

Axes: n tokens, d width. Public functions take batch axes first; layers, which
`vvlen.simulation` runs on many inputs at once, take them last, so that the vector units
of a processor work on many inputs at once.
"""

import functools
from typing import NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vvlen.models.kernels import short as short_inputs
from vvlen.models.norm import standardize


class Layer(NamedTuple):
  """The results of one layer. Batch axes, if any, are last."""

  output: jax.Array  # X' [n, d, ...]
  scores: jax.Array  # S [n, n, ...], 0 above the diagonal
  weights: jax.Array  # A [n, n, ...]


class Stack(NamedTuple):
  """The scores and weights of all layers, and the output of the last."""

  scores: jax.Array  # S [..., num_layers, n, n], 0 above the diagonal
  weights: jax.Array  # A [..., num_layers, n, n]
  output: jax.Array  # X' of the last layer [..., n, d]


def causal_stack(
    x: jax.Array,
    num_layers: int,
    layer_norm: bool = True,
    residual: float | jax.Array = 0.0,
    *,
    epsilon: float = 0.0,
) -> jax.Array:
  """Returns the attention scores of every layer of the stack.

  Args:
    x: [..., n, d]; float64 is computed in float64, every other dtype in float32.
    num_layers: number of layers.
    layer_norm: whether there is LayerNorm; without it, Z = X.
    residual: c [], the weight of X in the output of a layer.
    epsilon: added to the variance, inside the root of LayerNorm. With the default 0,
      a row of equal entries gives nan, or amplified rounding errors of its mean.

  Returns:
    The logits S [..., num_layers, n, n], 0 above the diagonal. `run_stack` returns
    weights and output too.

  Raises:
    ValueError: if x has fewer than two axes or an empty one of them, is complex, or is
      of width 1 with LayerNorm and epsilon 0; if x or the residual is not finite
      (checked only outside jit); if the residual is not a single number; or if
      num_layers is not a positive whole number.
  """
  return run_stack(x, num_layers, layer_norm, residual, epsilon=epsilon).scores


class CausalStack(nn.Module):
  """`causal_stack` as a module for larger models. It has no parameters.

  Sows `attention_scores` and `attention_weights` [..., num_layers, n, n] into
  `intermediates`.

  Attributes:
    num_layers, layer_norm, residual, epsilon: as in `causal_stack`.
  """

  num_layers: int
  layer_norm: bool = True
  residual: float = 0.0
  epsilon: float = 0.0

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps x [..., n, d] to X' of the last layer, of the shape and dtype of x.

    Integers give float32.
    """
    stack = run_stack(x, self.num_layers, self.layer_norm, self.residual,
                      epsilon=self.epsilon)
    self.sow('intermediates', 'attention_scores', stack.scores)
    self.sow('intermediates', 'attention_weights', stack.weights)
    dtype = jnp.asarray(x).dtype
    floating = jnp.issubdtype(dtype, jnp.floating)
    return stack.output.astype(dtype) if floating else stack.output


def causal_layer(
    x: jax.Array,
    layer_norm: bool = True,
    residual: float | jax.Array = 0.0,
    epsilon: float = 0.0,
) -> Layer:
  """Runs one layer on x [n, d, ...]; other arguments are as in `causal_stack`."""
  z = standardize(x, axis=1, epsilon=epsilon) if layer_norm else x
  output, scores, weights = self_attend(z, z, z)
  return Layer(output + residual * x, scores, weights)


def self_attend(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    width: int | jax.Array | None = None,
    causal: bool = True,
) -> Layer:
  """Attends from every token to itself and all earlier ones, without projections.

  Args:
    queries: [n, d, ...], float32 or float64.
    keys: [n, d, ...], of the same dtype.
    values: [n, v, ...], of the same dtype.
    width: scores are divided by its root; d if None.
    causal: False attends to all tokens, but still returns scores that are 0 above the
      diagonal.

  Returns:
    A `Layer` whose output is A V, [n, v, ...].
  """
  length = queries.shape[1] if width is None else width
  scale = jax.lax.rsqrt(jnp.asarray(length, queries.dtype))
  if causal and short_inputs.suits(queries.shape):
    return _attend_short(queries, keys, values, scale)
  return _attend(queries, keys, values, scale, causal)


def _attend(queries, keys, values, scale, causal=True):
  product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
  scores = product('ik...,jk...->ij...', queries, keys) * scale
  seen = jnp.expand_dims(jnp.tri(len(queries), dtype=bool), range(2, scores.ndim))
  weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf) if causal else scores, 1)
  output = product('ij...,jv...->iv...', weights, values)
  return Layer(output, jnp.where(seen, scores, 0.0), weights)


@jax.custom_jvp
def _attend_short(queries, keys, values, scale):
  scores = short_inputs.products(queries, keys) * scale
  weights = short_inputs.softmax(scores)
  return Layer(short_inputs.averages(weights, values), scores, weights)


@_attend_short.defjvp
def _(primals, tangents):
  # Derivatives of sums written out term by term would take long to compile, so those of
  # the plain form are taken, and with them its values, which differ by rounding.
  return jax.jvp(_attend, primals, tangents)


def run_stack(
    x: jax.Array,
    num_layers: int,
    layer_norm: bool = True,
    residual: float | jax.Array = 0.0,
    *,
    epsilon: float = 0.0,
) -> Stack:
  """Returns scores, weights and output; arguments and errors as in `causal_stack`."""
  x = jnp.asarray(x)
  if x.ndim < 2 or 0 in x.shape[-2:]:
    raise ValueError(f'x must be [..., n, d], n and d positive: {x.shape}')
  if layer_norm and x.shape[-1] == 1 and not epsilon:
    raise ValueError(f'LayerNorm needs a width of at least 2: {x.shape}')
  if jnp.issubdtype(x.dtype, jnp.complexfloating):
    raise ValueError(f'x must be real: {x.dtype}')
  whole = isinstance(num_layers, (int, np.integer)) and num_layers is not True
  if not whole or num_layers < 1:
    raise ValueError(f'num_layers must be a positive whole number: {num_layers!r}')
  x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  residual = jnp.asarray(residual, x.dtype)
  if residual.ndim:
    raise ValueError(f'residual must be a single number: {residual.shape}')
  for name, value in (('x', x), ('residual', residual)):
    if not isinstance(value, jax.core.Tracer) and not jnp.isfinite(value).all():
      raise ValueError(f'{name} is not finite everywhere')

  return _run_layers(x, int(num_layers), bool(layer_norm), residual, epsilon)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _run_layers(x, num_layers, layer_norm, residual, epsilon):
  def step(x, _):
    layer = causal_layer(x, layer_norm, residual, epsilon)
    return layer.output, (layer.scores, layer.weights)

  x = jnp.moveaxis(x, (-2, -1), (0, 1))
  output, layers = jax.lax.scan(step, x, length=num_layers)
  scores, weights = (
      jnp.moveaxis(each, (0, 1, 2), (-3, -2, -1))
      for each in layers
  )
  return Stack(scores, weights, jnp.moveaxis(output, (0, 1), (-2, -1)))
