"""How many tokens per second does a Llama train on, compared with transformers?

Loss and gradients of 8 sequences of 512 tokens for a float32 model with 4 layers of
width 256 and a vocabulary of 32,000. Both libraries use the same model, tokens and
loss, in turns, each in its own process. vvlen runs on one device per core, with the
rows divided among them as in its experiments, and on a single device; transformers runs
with its defaults, which include PyTorch's fused attention. The result also reports the
speed of the matrix products, as a share of the speed of large products.

  python -m experiments.benchmarks.llama_training    # needs PyTorch and transformers

  python -m experiments.benchmarks.llama_training --large

is for an accelerator: a model of the shape of Llama 3.2 1B with random weights, on
8,192 tokens, in bfloat16, with the misalignment term. Reports its operations per second
as a share of the measured peak of matrix products, and its memory. With --tiny as well,
each of the two takes a small model on a CPU, to see that it runs.
"""

import argparse
import statistics
import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
import numpy as np

from experiments.benchmarks import _rounds
from experiments.benchmarks.retrieval_training import matrix_peak
from experiments.harness import machine
from vvlen import sharding
from vvlen.models.llama.model import Llama, output_table
from vvlen.models.rope import Llama3, Rope
from vvlen.objectives.chunked import chunked_cross_entropy, chunked_two_window_loss
from vvlen.objectives.windows import two_windows
from vvlen.sharding import mesh as partition

SMALL = dict(vocab_size=32_000, width=256, mlp_width=688, num_layers=4, num_heads=4,
             num_key_heads=4)
# The shape of Llama 3.2 1B.
LARGE = dict(vocab_size=128_256, width=2048, mlp_width=8192, num_layers=16,
             num_heads=32, num_key_heads=8, rope=Rope(500_000.0, Llama3(32.0, 8192)))
TINY = SMALL | dict(vocab_size=512, width=64, mlp_width=128, num_layers=2)
ROWS, LENGTH = 8, 512


def tokens(shape: dict[str, Any]) -> np.ndarray:
  """Returns the training data, [ROWS, LENGTH] int32."""
  rng = np.random.default_rng(0)
  return rng.integers(0, shape['vocab_size'], (ROWS, LENGTH)).astype(np.int32)


def serve_vvlen(shape: dict[str, Any], all_cores: bool) -> None:
  """Measures tokens per second of vvlen, one step at a time."""
  if all_cores:
    machine.use_devices()
  mesh = partition.make_mesh(data=-1)
  model, rows = Llama(**shape), tokens(shape)

  def loss(params, x):
    hidden = model.apply({'params': params}, x, method='hidden')
    has_next = jnp.broadcast_to(jnp.arange(LENGTH) < LENGTH - 1, x.shape)
    return chunked_cross_entropy(
        hidden, output_table(model, params), jnp.roll(x, -1, axis=1), has_next)

  with jax.set_mesh(mesh):
    params = jax.jit(model.init, out_shardings=sharding.whole(mesh))(
        jax.random.key(0), rows[:, :2])['params']
    placed = jax.device_put(rows, NamedSharding(mesh, partition.ROWS))
    step = jax.jit(jax.value_and_grad(loss))
    first = float(jax.block_until_ready(step(params, placed))[0])

    _rounds.serve_calls(
        lambda: jax.block_until_ready(step(params, placed)), ROWS * LENGTH,
        {'loss': first, 'version': jax.__version__})


def serve_transformers(shape: dict[str, Any]) -> None:
  """Measures tokens per second of transformers, one step at a time."""
  import torch
  import transformers

  config = transformers.LlamaConfig(
      vocab_size=shape['vocab_size'], hidden_size=shape['width'],
      intermediate_size=shape['mlp_width'], num_hidden_layers=shape['num_layers'],
      num_attention_heads=shape['num_heads'], tie_word_embeddings=True,
      num_key_value_heads=shape['num_key_heads'], use_cache=False,
  )
  torch.manual_seed(0)
  model = transformers.LlamaForCausalLM(config).train()
  rows = torch.tensor(tokens(shape), dtype=torch.long)

  def step():
    model.zero_grad(set_to_none=True)
    loss = model(rows, labels=rows).loss
    loss.backward()
    return loss.item()

  _rounds.serve_calls(
      step, ROWS * LENGTH,
      {'loss': step(), 'version': transformers.__version__, 'torch': torch.__version__})


def serve_peak() -> None:
  """Measures operations per second of large matrix products."""
  _rounds.serve_calls(*matrix_peak())


def compare(shape: dict[str, Any], args: argparse.Namespace) -> None:
  """Lets all workers measure in turn, and prints the result."""
  workers = {
      name: _rounds.Worker('experiments.benchmarks.llama_training',
                           [f'--serve={name}', *['--tiny'] * args.tiny])
      for name in ('vvlen', 'vvlen_one_device', 'transformers', 'peak')
  }
  about = {name: worker.about for name, worker in workers.items() if worker.about}
  measured = _rounds.alternate(workers, args.rounds)
  rates = {name: worker.median() for name, worker in workers.items()}
  peak = rates.pop('peak')
  for name, rate in rates.items():
    print(f'{name:18} {rate:9,.0f} tokens/s')
  _rounds.report({
      'ratio': round(rates['vvlen'] / rates['transformers'], 3),
      'ratio_one_device': round(rates['vvlen_one_device'] / rates['transformers'], 3),
      'tokens_per_second': {name: round(x, 1) for name, x in rates.items()},
      'share_of_matrix_peak': round(
          rates['vvlen'] * operations(shape, LENGTH) / peak, 3),
      'model': shape, 'rows': ROWS, 'length': LENGTH, 'about': about,
  } | measured, args.output)


def operations(shape: dict[str, Any], length: int) -> float:
  """Returns the floating-point operations of loss and gradients per token.

  The forward pass has two for each weight of a matrix product, and those of attention,
  whose logits and weighted sums need only half a matrix each. The backward pass has
  twice as many.
  """
  width, heads, keys = (shape[x] for x in ('width', 'num_heads', 'num_key_heads'))
  head = width // heads
  layer = 2 * width * width + 2 * width * keys * head + 3 * width * shape['mlp_width']
  weights = shape['num_layers'] * layer + shape['vocab_size'] * width
  attention = shape['num_layers'] * 2 * length * width  # half of 4 n d
  return 3 * (2 * weights + attention)


def large(args: argparse.Namespace) -> None:
  """Measures the large model on an accelerator, and prints the result."""
  # The model's shape, the tokens of a window, and the size of the square matrices whose
  # product is measured as the peak.
  shape, length, size = (TINY, 256, 256) if args.tiny else (LARGE, 8192, 8192)
  if jax.default_backend() == 'cpu' and not args.tiny:
    print('The large model needs an accelerator: not run.')
    _rounds.report({'not_run': 'needs an accelerator'}, args.output)
    return
  model = Llama(**shape, max_length=length, dtype=jnp.bfloat16)
  key = jax.random.key(0)
  stream = jax.random.randint(key, (1, length + length // 2 - 1), 0, model.vocab_size)
  params = jax.jit(model.init)(key, stream[:, :2])['params']

  def loss(params, offset):
    cast = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    windows = two_windows(stream, length, offset)
    hidden = [model.apply({'params': cast}, x, method='hidden') for x in windows]
    return chunked_two_window_loss(
        *hidden, output_table(model, cast), *windows, offset, 0.1, chunk_size=1024)[0]

  step = jax.jit(jax.value_and_grad(loss))
  a = jax.random.normal(key, (size, size), jnp.bfloat16)
  product = jax.jit(lambda a: a @ a)
  seconds, about = _rounds.in_turns({
      'step': lambda i: jax.block_until_ready(step(params, jnp.int32(100 + i))),
      'product': lambda _: jax.block_until_ready([product(a) for _ in range(10)]),
  }, args.rounds)
  median = {name: statistics.median(x) for name, x in seconds.items()}
  peak = 10 * 2 * size**3 / median['product']
  rate = 2 * length * operations(shape, length) / median['step']
  memory: Any = jax.devices()[0].memory_stats() or {}
  print(f'{2 * length / median["step"]:,.0f} tokens/s, {rate / peak:.1%} of the peak')
  _rounds.report({
      'share_of_peak': round(rate / peak, 4), 'tflop_per_second': round(rate / 1e12, 1),
      'peak_tflop_per_second': round(peak / 1e12, 1),
      'tokens_per_second': round(2 * length / median['step']),
      'peak_bytes': memory.get('peak_bytes_in_use'),
      'seconds': {name: float(f'{x:.4g}') for name, x in median.items()},
      'device': machine.device(),
  } | about, args.output)


def main() -> None:
  """Measures, and prints a table and, as the last line, JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--large', action='store_true', help='on an accelerator')
  parser.add_argument('--tiny', action='store_true', help='a small model on a CPU')
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument('--output', help='also write the JSON to this file')
  parser.add_argument('--serve', help=argparse.SUPPRESS)
  args = parser.parse_args()
  shape = TINY if args.tiny else SMALL
  if args.serve == 'transformers':
    serve_transformers(shape)
  elif args.serve == 'peak':
    serve_peak()
  elif args.serve:
    serve_vvlen(shape, all_cores=args.serve == 'vvlen')
  elif args.large:
    large(args)
  else:
    compare(shape, args)


if __name__ == '__main__':
  sys.exit(main())
