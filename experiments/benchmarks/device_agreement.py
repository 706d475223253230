r"""Does this device compute what a CPU computes?

  python -m experiments.benchmarks.device_agreement [--tiny]

Compares: losses and gradients in float32 with the same program on the CPU; on the
device itself, its fused attention kernel in bfloat16, and attention in blocks, with
attention that computes all logits at once; and a model in bfloat16 with itself in
float32. An error is the norm of the difference divided by the norm of the reference;
the largest over outputs and gradients counts. Exit code 1 if one is above its limit.
"""

import argparse
from collections.abc import Callable
import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import _rounds
from experiments.harness import machine
from vvlen.models.kernels.causal import causal_attention
from vvlen.models.llama.model import Llama
from vvlen.models.retriever import Retriever
from vvlen.objectives.chunked import chunked_two_window_loss
from vvlen.objectives.cross_entropy import (
    next_token_cross_entropy,
    token_cross_entropy,
)
from vvlen.tasks import retrieval


def error(found: Any, expected: Any) -> float:
  """Returns the largest relative error over the arrays of two pytrees."""
  def one(x, y):
    x, y = (np.asarray(a, np.float64) for a in (x, y))
    return float(np.linalg.norm(x - y) / np.linalg.norm(y))

  return max(jax.tree.leaves(jax.tree.map(one, found, expected)))


def against_cpu(function: Callable[..., Any], *arguments: Any) -> float:
  """Returns the error of a function on this device, relative to the CPU."""
  cpu = jax.devices('cpu')[0]
  with jax.default_device(cpu):
    expected = jax.jit(function)(*jax.device_put(arguments, cpu))
  found = jax.jit(function)(*jax.device_put(arguments, jax.devices()[0]))
  return error(found, expected)


def retriever(key: jax.Array, tiny: bool) -> float:
  """Compares the loss and gradients of the model of retrieval."""
  batch = retrieval.sample(key, batch_size=16 if tiny else 256, min_length=5,
                           max_length=16)
  model = Retriever(norm='layer_norm', width=16 if tiny else 128)
  params = model.init(key, batch.query, batch.items, batch.mask)

  def loss(params, batch):
    logits = model.apply(params, batch.query, batch.items, batch.mask)
    return token_cross_entropy(logits, batch.target).mean()

  return against_cpu(jax.value_and_grad(loss), params, batch)


def _llama(tiny: bool, dtype: Any = None) -> Llama:
  size = dict(width=32, mlp_width=64, num_layers=1) if tiny else dict(
      width=512, mlp_width=1376, num_layers=4)
  return Llama(vocab_size=256, num_heads=4, num_key_heads=2, dtype=dtype, **size)


def _llama_loss(model: Llama, params: Any, tokens: jax.Array) -> jax.Array:
  return next_token_cross_entropy(model.apply(params, tokens), tokens)


def llama(key: jax.Array, tiny: bool) -> float:
  """Compares the loss and gradients of a Llama, in float32."""
  model, tokens = _llama(tiny), jax.random.randint(key, (2, 64), 0, 256)
  loss = jax.value_and_grad(functools.partial(_llama_loss, model))
  return against_cpu(loss, jax.jit(model.init)(key, tokens), tokens)


def llama_bfloat16(key: jax.Array, tiny: bool) -> float:
  """Compares the logits of a Llama in bfloat16 with float32, on this device."""
  tokens = jax.random.randint(key, (2, 64), 0, 256)
  params = jax.jit(_llama(tiny).init)(key, tokens)
  wide, narrow = (
      jax.jit(_llama(tiny, dtype).apply)(params, tokens)
      for dtype in (None, jnp.bfloat16)
  )
  return error(narrow, wide)


def two_windows(key: jax.Array, tiny: bool) -> float:
  """Compares the loss of two windows with the misalignment term, in chunks."""
  length, words = (32, 64) if tiny else (256, 8192)
  keys = jax.random.split(key, 5)
  hidden = [jax.random.normal(k, (2, length, 64)) for k in keys[:2]]
  table = jax.random.normal(keys[2], (words, 64)) / 8
  tokens = [jax.random.randint(k, (2, length), 0, words) for k in keys[3:]]

  def loss(hidden, table):
    return chunked_two_window_loss(
        *hidden, table, *tokens, jnp.int32(length // 4), weight=0.1)[0]

  return against_cpu(jax.value_and_grad(loss, (0, 1)), hidden, table)


def attention(key: jax.Array, tiny: bool, implementation: str, dtype: Any) -> float:
  """Compares a form of causal attention with all logits at once in float32."""
  shape = (2, 256 if tiny else 2048, 4, 64)
  inputs = [jax.random.normal(k, shape, dtype) for k in jax.random.split(key, 3)]

  def run(inputs, name):
    mean = lambda *x: jnp.square(causal_attention(
        *x, implementation=name).astype(jnp.float32)).mean()
    return jax.jit(jax.value_and_grad(mean, (0, 1, 2)))(*inputs)

  wide = [x.astype(jnp.float32) for x in inputs]
  return error(run(inputs, implementation), run(wide, 'plain'))


Check = Callable[[jax.Array, bool], float]  # of a key and tiny; returns an error


def checks(platform: str) -> dict[str, tuple[Check, float]]:
  """Returns {name: (check, the largest error that is allowed)}."""
  fused = 'cudnn' if platform == 'gpu' else 'splash'
  return {
      'retriever': (retriever, 1e-4),
      'llama': (llama, 1e-4),
      'two_windows': (two_windows, 1e-4),
      'attention_in_blocks': (functools.partial(
          attention, implementation='chunked', dtype=jnp.float32), 1e-4),
      f'{fused}_bfloat16': (functools.partial(
          attention, implementation=fused, dtype=jnp.bfloat16), 2e-2),
      'llama_bfloat16': (llama_bfloat16, 5e-2),
  }


def main() -> int:
  """Compares, and prints a table and, as the last line, JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--tiny', action='store_true', help='the smallest sizes')
  parser.add_argument('--output', help='also write the JSON to this file')
  args = parser.parse_args()
  machine.use_devices()
  device, key = jax.devices()[0], jax.random.key(0)
  found = {}
  for name, (check, limit) in checks(device.platform).items():
    value = check(key, args.tiny)
    # nan is not within a limit.
    found[name] = {'error': float(f'{value:.3g}'), 'limit': limit,
                   'agrees': bool(value <= limit)}
    print(f'{name:20} {value:9.2e}  limit {limit:.0e}', flush=True)
  agrees = all(x['agrees'] for x in found.values())
  _rounds.report({'device': device.device_kind, 'agrees': agrees, 'checks': found},
                 args.output)
  return 0 if agrees else 1


if __name__ == '__main__':
  sys.exit(main())
