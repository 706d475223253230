"""How much longer is a training step with the misalignment term?

A decoder is trained on two windows of one stream, with and without the term, in turns:

  baseline  (CE₁ + CE₂)/2 of both windows, by the same function with a divergence of 0
  aligned   the same plus α SCE, with a new random offset e in every step

Both are computed from hidden states in chunks (`vvlen.objectives.chunked`), and from
all logits at once (`plain_...`). A round has one step of each form, with the same e;
rounds in which other programs were busy do not count. The aligned step is also compared
with the fastest step without the term, of either form. arXiv 2506.11769 states 3-5 %
per step; its step counts imply 5.3-6.4 %.

  python -m experiments.benchmarks.regularizer_cost
"""

import argparse
import statistics

import jax
import jax.numpy as jnp
import optax

from experiments.benchmarks import _rounds
from experiments.harness import machine
from vvlen.models.decoder import Decoder
from vvlen.models.language_model import LanguageModel
from vvlen.objectives import misalignment
from vvlen.objectives.chunked import chunked_two_window_loss
from vvlen.objectives.cross_entropy import next_token_cross_entropy
from vvlen.statistics import mean_interval


def main() -> None:
  """Measures all forms and prints JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--vocabulary', type=int, default=32_000)
  parser.add_argument('--width', type=int, default=256)
  parser.add_argument('--layers', type=int, default=4)
  parser.add_argument('--length', type=int, default=128)
  parser.add_argument('--batch', type=int, default=4)
  parser.add_argument('--rounds', type=int, default=40)
  parser.add_argument('--weight', type=float, default=0.1)
  parser.add_argument('--output', help='also write the JSON to this file')
  args = parser.parse_args()
  model = LanguageModel(Decoder(
      args.vocabulary, num_layers=args.layers, width=args.width, positions='rope'
  ))
  shape = args.batch, args.length + args.length // 2 - 1
  tokens = jax.random.randint(jax.random.key(1), shape, 0, args.vocabulary)
  params = jax.jit(model.init)(jax.random.key(0), tokens)['params']
  optimizer = optax.adamw(1e-3)
  steps = {name: _step(model, optimizer, loss, args)
           for name, loss in _LOSSES.items()}
  states = {name: (params, optimizer.init(params)) for name in steps}

  def run(name):
    def advance(number):
      key = jax.random.fold_in(jax.random.key(2), number)
      states[name] = jax.block_until_ready(steps[name](*states[name], tokens, key))

    return advance

  seconds, about = _rounds.in_turns({name: run(name) for name in steps}, args.rounds)
  over = lambda one, other: [
      100 * (x / y - 1) for x, y in zip(seconds[one], seconds[other], strict=True)
  ]
  each = over('aligned', 'baseline')
  plain = over('plain_aligned', 'plain_baseline')
  mean, low, high = mean_interval(each)
  medians = {name: statistics.median(times) for name, times in seconds.items()}
  result = {
      'percent_more': round(statistics.median(each), 2),
      'percent_more_mean_and_interval': [round(x, 2) for x in (mean, low, high)],
      'plain_percent_more': round(statistics.median(plain), 2),
      'percent_more_than_fastest': round(more_than_fastest(medians), 2),
      'percent_more_by_round': [round(x, 1) for x in each],
      'seconds': {name: round(x, 4) for name, x in medians.items()},
      'compilations': {name: step._cache_size() for name, step in steps.items()},
      'vocabulary': args.vocabulary, 'width': args.width, 'layers': args.layers,
      'length': args.length, 'batch': args.batch,
      'device': machine.device(),
  } | about
  _rounds.report(result, args.output)


def more_than_fastest(seconds: dict[str, float]) -> float:
  """Returns by how many % an aligned step exceeds the fastest step without the term."""
  fastest = min(seconds['baseline'], seconds['plain_baseline'])
  return 100 * (seconds['aligned'] / fastest - 1)


def _step(model, optimizer, loss, args):
  """Returns the compiled step: (params, state, tokens, key) -> (params, state)."""

  @jax.jit
  def step(params, state, tokens, key):
    offset = misalignment.sample_offset(key, args.length)
    first, second = misalignment.two_windows(tokens, args.length, offset)

    def of(params):
      return loss(model, params, first, second, offset, args.weight)

    updates, state = optimizer.update(jax.grad(of)(params), state, params)
    return optax.apply_updates(params, updates), state

  return step


def _hidden(model, params, *windows):
  apply = lambda x: model.apply({'params': params}, x, method='hidden')
  return [apply(x) for x in windows]


def _baseline(model, params, first, second, offset, weight):
  nothing = lambda first, second: jnp.zeros(first.shape[:-1], first.dtype)
  return chunked_two_window_loss(
      *_hidden(model, params, first, second), params['output_embedding'], first, second,
      offset, weight, divergence=nothing,
  )[0]


def _aligned(model, params, first, second, offset, weight):
  return chunked_two_window_loss(
      *_hidden(model, params, first, second), params['output_embedding'], first, second,
      offset, weight,
  )[0]


def _plain_baseline(model, params, first, second, offset, weight):
  del offset, weight
  logits = (model.apply({'params': params}, x) for x in (first, second))
  losses = map(next_token_cross_entropy, logits, (first, second))
  return sum(losses) / 2


def _plain_aligned(model, params, first, second, offset, weight):
  logits = (model.apply({'params': params}, x) for x in (first, second))
  return misalignment.two_window_loss(*logits, first, second, offset, weight)[0]


_LOSSES = {
    'baseline': _baseline, 'aligned': _aligned, 'plain_baseline': _plain_baseline,
    'plain_aligned': _plain_aligned,
}


if __name__ == '__main__':
  main()
