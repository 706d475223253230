"""The causal stack without parameters, in which LayerNorm alone makes a recency bias.

  Z = LN(X),   S = Z Zᵀ / √d,   A = softmax of S over keys j ≤ i,   X' = A Z + c X

is one layer (arXiv 2509.21042, section 3): one head, no feed-forward, no positions. LN
subtracts each row's mean and divides by its deviation; without it Z = X. Values are the
normalized Z; the residual c adds the raw X. What the paper calls attention score, and
shows in all its figures, is S, the logits before the softmax.

Products are computed in full float32, or wider with the input: in TF32 or bfloat16 the
effect, of a thousandth of the logits, is lost. At α = 0 and d ≥ 256 float32 does not
resolve it either, nor what is left of differences between tokens after ten and more
layers without a residual: it then looks like a bias to the oldest.

Axes: n tokens, d width. Public functions take batch axes first; layers, which
`vvlen.simulation` runs on many inputs at once, take them last, where the vector units
of a processor run along them.
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
  """What one layer computes. Batch axes, if any, are last."""

  output: jax.Array  # X' [n, d, ...]
  scores: jax.Array  # S [n, n, ...], 0 above the diagonal
  weights: jax.Array  # A [n, n, ...]


def causal_stack(
    x: jax.Array,
    num_layers: int,
    layer_norm: bool = True,
    residual: float | jax.Array = 0.0,
    *,
    epsilon: float = 0.0,
    return_weights: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
  """Returns the attention scores of every layer of the stack.

  Args:
    x: [..., n, d]; float64 is computed in float64, all else in float32.
    num_layers: how many layers.
    layer_norm: False for a stack without LayerNorm.
    residual: c [], the weight of the raw stream.
    epsilon: added to the variance, inside the root of LayerNorm. With the default 0
      a row of equal entries gives nan, or what rounding of its mean leaves.
    return_weights: whether to return the attention weights too.

  Returns:
    The logits S [..., num_layers, n, n], 0 above the diagonal; with
    `return_weights` (S, A), of the same shape.

  Raises:
    ValueError: if x has fewer than two axes, is complex or of width 1, if x or the
      residual is not finite (checked only outside jit), or num_layers is not a positive
      whole number.
  """
  layers = _run(x, num_layers, layer_norm, residual, epsilon)
  return (layers.scores, layers.weights) if return_weights else layers.scores


class CausalStack(nn.Module):
  """The stack as a module of a larger model. It has no parameters.

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
    """Maps x [..., n, d] to the X' of the last layer, of the same shape and dtype."""
    layers = _run(x, self.num_layers, self.layer_norm, self.residual, self.epsilon)
    self.sow('intermediates', 'attention_scores', layers.scores)
    self.sow('intermediates', 'attention_weights', layers.weights)
    dtype = jnp.asarray(x).dtype
    floating = jnp.issubdtype(dtype, jnp.floating)
    return layers.output.astype(dtype) if floating else layers.output


def causal_layer(
    x: jax.Array,
    layer_norm: bool = True,
    residual: float | jax.Array = 0.0,
    epsilon: float = 0.0,
) -> Layer:
  """Runs one layer on x [n, d, ...]."""
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
  """Attends from every token to those up to it, without projections.

  Args:
    queries: [n, d, ...], float32 or float64, as all are.
    keys: [n, d, ...].
    values: [n, v, ...].
    width: by whose root scores are divided; d if None.
    causal: False attends to all tokens. Scores above the diagonal are 0 all the same.

  Returns:
    As `Layer`, the output being A V, [n, v, ...].
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
  # Derivatives of sums that are written out would take long to compile. The values that
  # come with derivatives are those of the plain form too, which differ by rounding.
  return jax.jvp(_attend, primals, tangents)


def _run(x, num_layers, layer_norm, residual, epsilon) -> Layer:
  """Runs all layers on x [..., n, d]; scores and weights [..., num_layers, n, n]."""
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
  return Layer(jnp.moveaxis(output, (0, 1), (-2, -1)), scores, weights)
