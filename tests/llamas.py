"""Small Llamas for tests, one of each kind."""

import json

import jax
import jax.numpy as jnp
from safetensors import numpy as safetensors

from vvlen.models.llama import abstract_params, Llama, save_checkpoint
from vvlen.models.rope import Dynamic, Linear, Llama3, Rope, Yarn

V = 23
DEEP = '[' * 100_000  # JSON that is nested too deeply
ROPES = {
    'default': Rope(1e4), 'base': Rope(500.0), 'linear': Rope(1e4, Linear(2.0)),
    'dynamic': Rope(1e4, Dynamic(4.0, 8)), 'yarn': Rope(1e4, Yarn(4.0, 16)),
    'llama3': Rope(100.0, Llama3(8.0, 8)),
}


def llama(**fields):
  """Returns a model with 12 features, 2 layers, 4 query heads and 2 key heads."""
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


def save_llama(folder, **fields):
  """Saves a model, and returns the folder, the model and its variables."""
  model = llama(**fields)
  variables = variables_of(model)
  save_checkpoint(folder, model, variables)
  return folder, model, variables


def edit(folder, **fields):
  """Changes fields of a config.json; ... takes one away."""
  path = folder / 'config.json'
  config = {**json.loads(path.read_text()), **fields}
  path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


def edit_tensors(folder, change):
  """Lets `change` change the tensors of a checkpoint of one file, {name: array}."""
  path = folder / 'model.safetensors'
  tensors = safetensors.load_file(path)
  change(tensors)
  safetensors.save_file(tensors, path)
