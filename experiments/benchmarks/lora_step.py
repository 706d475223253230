"""How much faster is a step of LoRA than a step of full fine-tuning?

A Llama is trained on the same tokens, in turns:

  full     loss, gradients and AdamW of all parameters
  lora     loss, gradients and AdamW of adapters of all linear layers but the head
  nf4      the same over weights quantized to nf4

A third of the operations of full fine-tuning are for gradients of the weights that LoRA
freezes. It needs the other two thirds, and those of the adapters. A CPU has no products
of quantized weights: `nf4` converts them back in each step, and saves memory, not time.

  python -m experiments.benchmarks.lora_step    # needs qwix
"""

import argparse
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.benchmarks import _rounds
from experiments.benchmarks.llama_training import operations
from experiments.harness import machine
from vvlen.models.llama.lora import add_adapters, join, Lora, split, with_adapters
from vvlen.models.llama.model import Llama, output_table
from vvlen.objectives.chunked import chunked_cross_entropy
from vvlen.training import optimizer

SHAPE = dict(vocab_size=4096, width=1024, mlp_width=2816, num_layers=4, num_heads=16,
             num_key_heads=16)
# The shape and the adapters of LongQLoRA.
PAPER = dict(vocab_size=32_000, width=4096, mlp_width=11_008, num_layers=32,
             num_heads=32, num_key_heads=32)
PAPER_LENGTH, PAPER_RANK = 8192, 64


def lora_operations(shape: dict[str, Any], length: int, rank: int) -> float:
  """Returns the floating-point operations of loss and gradients per token, of LoRA.

  They are those of `operations`, minus the gradients of frozen weights, also of the
  head, and of the inputs of the first layer, plus those of adapters of rank `rank`.
  """
  width, mlp, heads = shape['width'], shape['mlp_width'], shape['num_heads']
  keys = shape['num_key_heads'] * (width // heads)
  reads = 2 * keys + width  # of attention, outputs
  frozen = (shape['num_layers'] * (width * (reads + width) + 3 * width * mlp)
            + shape['vocab_size'] * width)
  adapter = rank * (3 * width + reads + 2 * width + 3 * (width + mlp))
  first = width * reads + rank * 3 * width
  unneeded = 2 * frozen + 2 * first
  return operations(shape, length) - unneeded + (
      3 * 2 * shape['num_layers'] * adapter)


def make_loss(model: Llama, tokens: jax.Array) -> Any:
  """Returns the loss of the next token: (trained, frozen parameters) -> []."""
  length = tokens.shape[1]

  def loss(trained, frozen):
    params = join(trained, frozen)
    hidden = model.apply({'params': params}, tokens, method='hidden')
    has_next = jnp.broadcast_to(jnp.arange(length) < length - 1, tokens.shape)
    return chunked_cross_entropy(
        hidden, output_table(model, params), jnp.roll(tokens, -1, axis=1), has_next)

  return loss


def make_step(model: Llama, tokens: jax.Array) -> Any:
  """Returns the compiled step: (trained, frozen, state) -> (trained, state)."""
  loss, update = make_loss(model, tokens), optimizer.adamw(1e-4, 1000)

  def step(trained, frozen, state):
    gradients = jax.grad(loss)(trained, frozen)
    updates, state = update.update(gradients, state, trained)
    return optax.apply_updates(trained, updates), state

  return jax.jit(step, donate_argnums=(0, 2)), update.init


def main() -> None:
  """Measures, and prints a table and, as the last line, JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rows', type=int, default=1)
  parser.add_argument('--length', type=int, default=512)
  parser.add_argument('--rank', type=int, default=16)
  parser.add_argument('--rounds', type=int, default=9)
  parser.add_argument('--output', help='also write the JSON to this file')
  args = parser.parse_args()
  model, key = Llama(**SHAPE, tied=False), jax.random.key(0)
  tokens = jax.random.randint(key, (args.rows, args.length), 0, SHAPE['vocab_size'])
  params = jax.jit(model.init)(key, tokens[:, :2])['params']
  states, steps, sizes = {}, {}, {}
  for name, quantized in (('full', None), ('lora', None), ('nf4', 'nf4')):
    own, trained, frozen = model, jax.tree.map(jnp.copy, params), {}
    if name != 'full':
      lora = Lora(args.rank, 2.0 * args.rank, quantized=quantized)
      own = with_adapters(model, lora)
      trained, frozen = split(lora, add_adapters(model, lora, params, key))
    steps[name], init = make_step(own, tokens)
    states[name] = trained, frozen, jax.jit(init)(trained)
    sizes[name] = sum(x.size for x in jax.tree.leaves(trained))

  processor: dict[str, list[float]] = {name: [] for name in steps}

  def run(name):
    def advance(number):
      start = time.process_time()
      trained, frozen, state = states[name]
      trained, state = jax.block_until_ready(steps[name](trained, frozen, state))
      states[name] = trained, frozen, state
      if number:  # the first one compiles
        processor[name].append(time.process_time() - start)

    return advance

  seconds, about = _rounds.in_turns({name: run(name) for name in steps}, args.rounds)
  median = {name: statistics.median(x) for name, x in seconds.items()}
  ratio = lambda name, of: round(statistics.median(
      x / y for x, y in zip(of[name], of['full'], strict=True)), 3)
  share = lambda shape, length, rank: round(
      lora_operations(shape, length, rank) / operations(shape, length), 3)
  for name, x in median.items():
    print(f'{name:5} {x:7.3f} s, {sizes[name]:,} parameters are trained')
  _rounds.report({
      'time_ratio': ratio('lora', seconds), 'time_ratio_nf4': ratio('nf4', seconds),
      # In processor seconds, which other programs hardly change, over all rounds.
      'processor_ratio': ratio('lora', processor),
      'processor_ratio_nf4': ratio('nf4', processor),
      'operations_ratio': share(SHAPE, args.length, args.rank),
      'operations_ratio_of_long_qlora': share(PAPER, PAPER_LENGTH, PAPER_RANK),
      'seconds': {name: float(f'{x:.4g}') for name, x in median.items()},
      'trained_parameters': sizes,
      'gflop_per_second': round(
          args.rows * args.length * operations(SHAPE, args.length)
          / median['full'] / 1e9, 1),
      'model': SHAPE, 'rows': args.rows, 'length': args.length, 'rank': args.rank,
      'rounds': {k: [float(f'{x:.4g}') for x in v] for k, v in seconds.items()},
      'device': machine.device(),
  } | about, args.output)


if __name__ == '__main__':
  main()
