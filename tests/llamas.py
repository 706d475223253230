"""Small Llamas for tests, one of each kind."""

import jax
import jax.numpy as jnp

from vvlen.models.llama import abstract_params, Llama
from vvlen.models.rope import Dynamic, Linear, Llama3, Rope, Yarn

V = 23
ROPES = {
    'default': Rope(1e4), 'base': Rope(500.0), 'linear': Rope(1e4, Linear(2.0)),
    'dynamic': Rope(1e4, Dynamic(4.0, 8)), 'yarn': Rope(1e4, Yarn(4.0, 16)),
    'llama3': Rope(100.0, Llama3(8.0, 8)),
}


def llama(**fields):
  """Returns a model of 11 features, 2 layers, 4 heads that share 2 of keys."""
  return Llama(**{
      'vocab_size': V, 'width': 12, 'mlp_width': 10, 'num_layers': 2, 'num_heads': 4,
      'num_key_heads': 2, 'head_width': 6, 'max_length': 8, **fields,
  })


def variables_of(model, seed=0, dtype=jnp.float32, scale=0.5):
  """Returns variables far from those of initialization: biases and scales differ."""
  shapes = abstract_params(model)
  leaves, treedef = jax.tree.flatten(shapes)
  keys = jax.random.split(jax.random.key(seed), len(leaves))
  drawn = [(scale * jax.random.normal(k, x.shape)).astype(dtype)
           for k, x in zip(keys, leaves, strict=True)]
  return {'params': jax.tree.unflatten(treedef, drawn)}
