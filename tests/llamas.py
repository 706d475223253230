"""Small Llamas for tests, one of each kind."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import numpy as safetensors

from vvlen.models import clex
from vvlen.models import rope as rotary
from vvlen.models.clex import Clex
from vvlen.models.llama import abstract_params, Llama, save_checkpoint
from vvlen.models.rope import Dynamic, Eabf, Linear, Llama3, LongRope, Ntk, Rope, Yarn

V = 23
DEEP = '[' * 100_000  # JSON that is nested too deeply
ROPES = {
    'default': Rope(1e4), 'base': Rope(500.0), 'linear': Rope(1e4, Linear(2.0)),
    'dynamic': Rope(1e4, Dynamic(4.0, 8)), 'yarn': Rope(1e4, Yarn(4.0, 16)),
    'llama3': Rope(100.0, Llama3(8.0, 8)),
    'longrope': Rope(1e4, LongRope((1.0, 1.1, 1.5), (1.2, 3.0, 7.0), 8, 4.0)),
}
# Those that transformers does not have, or not by this name.
OWN_ROPES = {
    'ntk': Rope(1e4, Ntk(4.0)), 'eabf': Rope(1e4, Eabf(4, 500.0, 1)),
    'clex': Rope(1e4, Clex(8, largest=3, steps=10)),
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


def numpy_logits(model, variables, tokens, positions=None):
  """A Llama, loop by loop, in float64; positions [n] are 0..n − 1 if None."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), variables['params'])
  softmax = lambda z: np.exp(z - z.max()) / np.exp(z - z.max()).sum()
  norm = lambda x, s: x / np.sqrt((x**2).mean(-1, keepdims=True) + model.epsilon) * s
  heads, shared, width = model.num_heads, model.num_key_heads, model.head_width
  stretched = model.rope and model.rope.stretched
  result = []
  for row in np.asarray(tokens):
    x, n = p['embedding'][row], len(row)
    at = np.arange(n) if positions is None else np.asarray(positions, np.float64)
    rates, scale = np.zeros(width // 2), 1.0
    if model.rope is not None:
      learned, length = None, int(at.max()) + 1
      if isinstance(stretched, Clex):
        matrices = variables['params']['clex_up'], variables['params']['clex_down']
        learned = clex.log_rates_up_to(stretched, model.rope.base, *matrices, length)
      rates, scale = rotary.rates(model.rope, width, length, learned)
      rates = np.asarray(rates, np.float64)

    def turn(v, position, rates=rates, scale=scale):
      left, right = v[:width // 2], v[width // 2:]
      cos, sin = scale * np.cos(position * rates), scale * np.sin(position * rates)
      return np.concatenate([left * cos - right * sin, right * cos + left * sin])

    for i in range(model.num_layers):
      layer = p[f'layer_{i}']

      def apply(name, y, layer=layer):
        return y @ layer[name]['kernel'] + layer[name].get('bias', 0.0)

      z = norm(x, layer['attention_norm']['scale'])
      q, k, v = (apply(name, z).reshape(n, -1, width) for name in (
          'query', 'key', 'value'))
      if isinstance(stretched, Clex) and stretched.log_scale:
        q = q * np.log(n) / np.log(stretched.original_length)
      if isinstance(stretched, Eabf) and i >= stretched.exempt_layers:
        factor = np.log(at + 1) / np.log(stretched.original_length)
        q = q * np.maximum(factor, 1)[:, None, None]
      output = np.zeros((n, heads, width))
      for h in range(heads):
        g = h // (heads // shared)
        for a in range(n):
          logits = np.array([turn(q[a, h], at[a]) @ turn(k[b, g], at[b])
                             for b in range(a + 1)]) / np.sqrt(width)
          if model.alibi:
            # The slopes of 6 heads: those of 4, and two of 8.
            of_4 = [2.0 ** (-2 * j) for j in range(1, 5)]
            slope = [*of_4, *(2.0 ** -j for j in (1, 3))][h]
            logits -= slope * (at[a] - at[:a + 1])
          output[a, h] = softmax(logits) @ v[:a + 1, g]
      x = x + apply('output', output.reshape(n, -1))
      z = norm(x, layer['mlp_norm']['scale'])
      gate = apply('gate', z)
      x = x + apply('down', gate / (1 + np.exp(-gate)) * apply('up', z))
    table = p['embedding'] if model.tied else p['output_embedding']
    result.append(norm(x, p['final_norm']['scale']) @ table.T)
  return np.stack(result)


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
