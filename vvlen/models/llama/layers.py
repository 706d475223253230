"""Layers whose parameters are stacked, so that they are compiled once, in a loop.

Layers in a Python list are compiled one by one. Stacked, each parameter of all layers
is one array [layers, ...] below the key `layers`, and the layers are a jax.lax.scan.

Axes: B sequences, n tokens, d width.
"""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vvlen.sharding.mesh import over_batch, over_tokens

STACK = 'layers'  # the key of stacked parameters

# What a layer keeps for the backward pass besides its input; all other results are
# computed again.
_POLICIES = {
    'nothing': jax.checkpoint_policies.nothing_saveable,
    # Results of products with kernels: then only elementwise operations and attention
    # are computed again.
    'products': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
KEPT = tuple(_POLICIES)


def scan(
    block: nn.Module, x: jax.Array, rotation: Any, scaled: Any, *, remat: bool,
    kept: str, dtype: Any,
) -> jax.Array:
  """Applies layers one after the other to the residual stream.

  Args:
    block: a layer (`vvlen.models.llama.block.Block`), whose parameters are stacked.
    x: [B, n, d].
    rotation: a `vvlen.models.llama.rotation.Rotation`.
    scaled: [layers] bool, in which layers the rotation's `query_scale` applies.
    remat: whether layers compute their results again in the backward pass.
    kept: with remat, one of `KEPT`.
    dtype: of the stream between layers, of which remat keeps one array per layer; None
      for that of x.

  Returns:
    [B, n, d], of the dtype of x.
  """
  wide = x.dtype

  def body(layer, x, scaled):
    x = layer(x.astype(wide), rotation.of_layer(scaled))
    return over_tokens(x.astype(dtype or wide)), None

  if remat:
    # In a loop, XLA cannot merge what is computed again with the first computation.
    body = nn.remat(body, policy=_POLICIES[kept], prevent_cse=False)
  run = nn.scan(
      body, variable_axes={'params': 0, 'intermediates': 0},
      split_rngs={'params': True, 'dropout': True}, length=len(scaled),
  )
  x, _ = run(block, over_tokens(x.astype(dtype or wide)), jnp.asarray(scaled))
  # Tokens are gathered again, because losses read whole rows.
  return over_batch(x.astype(wide))


def one_by_one(block: nn.Module, num_layers: int) -> list[Any]:
  """Returns layers, each with its part of the stacked parameters of `block`."""
  params, alone = block.variables['params'], block.clone(parent=None)
  return [alone.bind({'params': jax.tree.map(lambda x, i=i: x[i], params)})
          for i in range(num_layers)]


def stacked(params: dict[str, Any]) -> dict[str, Any]:
  """Returns the parameters of a Llama with `scan_layers`, from those of one without.

  Both have the same outputs. `unstacked` undoes it.
  """
  rest = {name: x for name, x in params.items() if not name.startswith('layer_')}
  layers = [params[f'layer_{i}'] for i in range(len(params) - len(rest))]
  return {**rest, STACK: jax.tree.map(lambda *x: jnp.stack(x), *layers)}


def unstacked(params: dict[str, Any]) -> dict[str, Any]:
  """Returns the parameters of a Llama without `scan_layers`, from those of one with."""
  rest = {name: x for name, x in params.items() if name != STACK}
  count = len(jax.tree.leaves(params[STACK])[0])
  part = lambda i: jax.tree.map(lambda x: x[i], params[STACK])
  return {**rest, **{f'layer_{i}': part(i) for i in range(count)}}
