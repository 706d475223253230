"""Names of the parameters of `Llama`, and their names in checkpoints of model hubs."""

from typing import Any

import jax

from vvlen.models.llama.layers import STACK

# Parameters of a layer; REST has all others.
_LAYER = {
    'attention_norm/scale': 'input_layernorm.weight',
    'query/kernel': 'self_attn.q_proj.weight',
    'query/bias': 'self_attn.q_proj.bias',
    'key/kernel': 'self_attn.k_proj.weight',
    'key/bias': 'self_attn.k_proj.bias',
    'value/kernel': 'self_attn.v_proj.weight',
    'value/bias': 'self_attn.v_proj.bias',
    # With `norm` 'layer_norm'; no published model has it.
    'post_attention_norm/scale': 'self_attn.post_norm.weight',
    'post_attention_norm/bias': 'self_attn.post_norm.bias',
    'output/kernel': 'self_attn.o_proj.weight',
    'output/bias': 'self_attn.o_proj.bias',
    'mlp_norm/scale': 'post_attention_layernorm.weight',
    'gate/kernel': 'mlp.gate_proj.weight',
    'gate/bias': 'mlp.gate_proj.bias',
    'up/kernel': 'mlp.up_proj.weight',
    'up/bias': 'mlp.up_proj.bias',
    'down/kernel': 'mlp.down_proj.weight',
    'down/bias': 'mlp.down_proj.bias',
}
REST = {
    'embedding': 'model.embed_tokens.weight',
    'final_norm/scale': 'model.norm.weight',
    'output_embedding': 'lm_head.weight',
    'clex_up': 'model.clex_layer.proj_func.ode_up_proj',
    'clex_down': 'model.clex_layer.proj_func.ode_down_proj',
}


def hub_name(path: str) -> str:
  """Returns a parameter's name in hub layout.

  For example, 'layer_0/query/kernel' gives 'model.layers.0.self_attn.q_proj.weight'.
  """
  if path in REST:
    return REST[path]
  layer, _, rest = path.partition('/')
  return f'model.layers.{layer.removeprefix("layer_")}.{_LAYER[rest]}'


def is_stacked(path: str) -> bool:
  """Whether a parameter holds those of all layers, [layers, ...]."""
  return path.startswith(f'{STACK}/')


def layer_paths(path: str, num_layers: int) -> list[str]:
  """Returns the paths of a parameter in each layer if it is stacked, else its own.

  For example, 'layers/query/kernel' gives 'layer_0/query/kernel' and so on.
  """
  if not is_stacked(path):
    return [path]
  rest = path.removeprefix(f'{STACK}/')
  return [f'layer_{i}/{rest}' for i in range(num_layers)]


def is_transposed(path: str) -> bool:
  """Whether files hold a parameter transposed: kernels, as [outputs, inputs]."""
  return path.endswith('/kernel')


def named(tree: Any) -> dict[str, Any]:
  """Flattens a nested dictionary, with paths such as 'layer_0/query/kernel' as keys."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {'/'.join(key.key for key in path): leaf for path, leaf in leaves}


def nested(leaves: dict[str, Any]) -> dict[str, Any]:
  """Undoes `named`."""
  tree: dict[str, Any] = {}
  for path, leaf in leaves.items():
    *parents, last = path.split('/')
    branch = tree
    for name in parents:
      branch = branch.setdefault(name, {})
    branch[last] = leaf
  return tree
