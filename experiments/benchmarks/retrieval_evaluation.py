"""How much memory and time does evaluation at long inputs take?

Evaluates models as the experiment does (arXiv 2504.02827, all three arms, but newly
initialized weights), each of two sizes in its own process:

  2**14 items  8 seeds, 1,024 sequences: the longest of the paper's lengths
  2**20 items  one seed per device, 4 sequences

The peak resident memory of each should stay below 2 GiB on two CPU cores; each device
adds about 128 * 4 bytes per item. Also compares, in rounds that alternate between
processes, the items per second at 2**14 of

  forward      vvlen's forward pass, one seed at a time on each device
  numpy        the same function in plain numpy (float32, matrix products with all
               cores): encoded items, keys, values, softmax, output

  python -m experiments.benchmarks.retrieval_evaluation [--sequences=1024]

`ratio` is the speed of forward divided by that of numpy. `evaluate_ratio` is the speed
of the whole evaluation (drawing the sequences, four forward passes for three
temperatures and a fixed query, and the metrics) divided by that of a single forward
pass in numpy.
"""

import argparse
from collections.abc import Callable
import math
import resource
import sys
import time
from typing import Any

import jax
from jax.sharding import Mesh
import numpy as np

from configs import retrieval as config_file
from experiments.benchmarks import _rounds
from experiments.harness import machine
from experiments.length_generalization import tasks, training
from vvlen import sharding
from vvlen.evaluation.retriever import lengths
from vvlen.models.norm import KINDS
from vvlen.models.temperature import PUBLISHED
from vvlen.tasks import retrieval
from vvlen.training import ensemble

MODULE = 'experiments.benchmarks.retrieval_evaluation'
LENGTH, LONG = 2**14, 2**20
BOUND_GIB = 2.0
# Sequences per call of the forward pass and seed.
FORWARD_SEQUENCES = 4


def main() -> None:
  """Runs all workers, and prints a table and, as the last line, JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--sequences', type=int, default=1024, help='at 2**14 items')
  parser.add_argument('--long_sequences', type=int, default=4, help='at 2**20 items')
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--seconds', type=float, default=1.0, help='per measurement')
  parser.add_argument('--output', help='also write the JSON to this file')
  parser.add_argument('--worker', help=argparse.SUPPRESS)
  parser.add_argument('--length', type=int, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.worker is not None:
    _serve(args)
    return

  print('Evaluating.', flush=True)
  evaluation = {
      length: _evaluate_apart(length, sequences)
      for length, sequences in ((LENGTH, args.sequences), (LONG, args.long_sequences))
  }
  workers = {
      name: _rounds.Worker(MODULE, [f'--worker={name}', f'--seconds={args.seconds}'])
      for name in ('forward', 'numpy')
  }
  print('Measuring forward passes, in items per second.', flush=True)
  rounds = _rounds.alternate(workers, args.rounds)
  result = _result(evaluation, workers) | rounds
  _print_table(result)
  _rounds.report(result, args.output)


def _evaluate_apart(length: int, sequences: int) -> dict[str, Any]:
  """Evaluates in a separate process, and returns the facts that it reports."""
  worker = _rounds.Worker(
      MODULE, ['--worker=evaluate', f'--length={length}', f'--sequences={sequences}']
  )
  worker.close()
  return worker.about


def _result(
    evaluation: dict[int, dict[str, Any]], workers: dict[str, _rounds.Worker]
) -> dict[str, Any]:
  forward, numpy = workers['forward'].median(), workers['numpy'].median()
  of_each = lambda name: {
      str(length): about[name] for length, about in evaluation.items()
  }
  return {
      'ratio': round(forward / numpy, 2),
      'evaluate_ratio': round(evaluation[LENGTH]['items_per_second'] / numpy, 2),
      'peak_rss_gib': of_each('peak_rss_gib'),
      'bound_gib': BOUND_GIB,
      'within_bound': all(
          about['peak_rss_gib'] < BOUND_GIB for about in evaluation.values()),
      'seconds': of_each('seconds'),
      'taken_by_others': of_each('taken_by_others'),
      'buffers_gib_per_device': of_each('buffers_gib_per_device'),
      'peak_device_gib': of_each('peak_device_gib'),
      'seeds': of_each('seeds'),
      'sequences': of_each('sequences'),
      'arms': len(KINDS),
      'evaluate_items_per_second': of_each('items_per_second'),
      'forward_items_per_second': round(forward),
      'numpy_items_per_second': round(numpy),
      'largest_difference': workers['numpy'].about['largest_difference'],
      'device': evaluation[LENGTH]['device'],
  }


def _print_table(result: dict[str, Any]) -> None:
  print(f'{"items":>9}{"seeds":>7}{"sequences":>11}{"seconds":>9}{"peak GiB":>10}')
  for length, seconds in result['seconds'].items():
    print(
        f'{length:>9}{result["seeds"][length]:7}{result["sequences"][length]:11}'
        f'{seconds:9.1f}{result["peak_rss_gib"][length]:10.2f}'
    )
  print(
      f'Forward pass at {LENGTH} items: '
      f'{result["forward_items_per_second"] / 1e6:.1f} million items per second, '
      f'numpy {result["numpy_items_per_second"] / 1e6:.1f}.'
  )


def _serve(args: argparse.Namespace) -> None:
  """Runs one worker until its standard input ends."""
  if args.worker == 'evaluate':
    _rounds.serve(lambda: math.nan, _evaluate(args.length, args.sequences))
    return
  make = _forward if args.worker == 'forward' else _numpy_forward
  advance, items, about = make()

  _rounds.serve_calls(advance, items, about, args.seconds)


def _evaluate(length: int, num_sequences: int) -> dict[str, Any]:
  """Evaluates all arms at one length; returns memory, time and other facts."""
  config = config_file.get_config('cpu')
  seeds = config.train.seeds_at_once
  machine.use_devices(seeds)
  # The peak should include compiling, so the cache is not used.
  jax.config.update('jax_enable_compilation_cache', False)
  mesh = sharding.seed_mesh()
  if length == LONG:
    seeds = mesh.size
  keys = sharding.put(ensemble.seed_keys(config.seed, 0, seeds), mesh)
  coefficients = np.tile(np.array(PUBLISHED, np.float32), (seeds, 1))
  coefficients = sharding.put(coefficients, mesh)
  seconds, others, buffers = 0.0, 0.0, 0
  for arm in KINDS:
    apply, variables = _model(config, arm, keys, mesh)

    def evaluate(variables, key, coefficients, apply=apply):
      return lengths.evaluate(
          apply, _sample, variables, ensemble.purpose_key(key, ensemble.TEST),
          coefficients, length=length, num_sequences=num_sequences,
          fixed_query=np.array([0.5], np.float32),
      )

    compiled = (
        sharding.over_seeds(evaluate, mesh)
        .lower(variables, keys, coefficients).compile()
    )
    analysis = compiled.memory_analysis()
    buffers = max(buffers, analysis.temp_size_in_bytes if analysis else 0)
    start, watch = time.perf_counter(), _rounds.Watch()
    own = time.process_time()
    sharding.fetch(compiled(variables, keys, coefficients))
    seconds += time.perf_counter() - start
    others = max(others, watch.others(time.process_time() - own))
  return {
      'peak_rss_gib': round(_peak_rss() / 2**30, 3),
      'peak_device_gib': _peak_device_gib(),
      'buffers_gib_per_device': round(buffers / 2**30, 3),
      'seconds': round(seconds, 2),
      'taken_by_others': round(others, 3),
      'items_per_second': round(
          seeds * len(KINDS) * num_sequences * length / seconds),
      'seeds': seeds,
      'sequences': num_sequences,
      'device': machine.device(),
  }


def _peak_rss() -> int:
  """Returns the peak resident memory of this process, in bytes."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak if sys.platform == 'darwin' else peak * 1024


def _peak_device_gib() -> float | None:
  """Returns the peak memory of an accelerator; None on a CPU."""
  stats = jax.devices()[0].memory_stats() or {}
  peak = stats.get('peak_bytes_in_use')
  return None if peak is None else round(peak / 2**30, 3)


def _model(config: Any, arm: str, keys: jax.Array, mesh: Mesh):
  """Returns the `Apply` of an arm and the initial variables of all seeds."""
  model = tasks.make_task(config).model(arm)
  problem = training.problem(config, arm)
  init = lambda key: {
      'params': problem.init(ensemble.purpose_key(key, ensemble.INIT))}
  return lengths.make_apply(model), sharding.over_seeds(init, mesh)(keys)


def _sample(key: jax.Array, num_sequences: int, length: int) -> retrieval.Batch:
  return retrieval.sample(
      key, batch_size=num_sequences, min_length=length, max_length=length
  )


def _forward() -> tuple[Callable[[], None], int, dict[str, Any]]:
  """Returns a function that calls vvlen's forward pass, its items, and no facts."""
  config = config_file.get_config('cpu')
  machine.use_devices(config.train.seeds_at_once)
  mesh = sharding.seed_mesh()
  keys = sharding.put(ensemble.seed_keys(config.seed, 0, mesh.size), mesh)
  apply, variables = _model(config, 'layer_norm', keys, mesh)

  def forward(variables, batch):
    one = lambda x: apply(variables, x.query[None], x.items[None])[0][0]
    return jax.lax.map(one, batch)

  batch = sharding.over_seeds(
      lambda key: _sample(key, FORWARD_SEQUENCES, LENGTH), mesh)(keys)
  forward = sharding.over_seeds(forward, mesh)
  items = mesh.size * FORWARD_SEQUENCES * LENGTH
  return lambda: forward(variables, batch).block_until_ready(), items, {}


def _numpy_forward() -> tuple[Callable[[], None], int, dict[str, Any]]:
  """Returns a function that calls the numpy forward pass, its items, and facts."""
  config = config_file.get_config('cpu')
  mesh = sharding.seed_mesh()
  keys = sharding.put(ensemble.seed_keys(config.seed, 0, mesh.size), mesh)[:1]
  mesh = Mesh(mesh.devices[:1], mesh.axis_names)
  apply, variables = _model(config, 'layer_norm', keys, mesh)
  variables = jax.tree.map(lambda x: x[0], sharding.fetch(variables))
  params = variables['params']
  batch = _sample(keys[0], FORWARD_SEQUENCES, LENGTH)
  query, items = np.asarray(batch.query), np.asarray(batch.items)
  expected = np.asarray(apply(variables, query, items)[0])

  def advance():
    return np.stack([
        numpy_forward(params, q, x) for q, x in zip(query, items, strict=True)
    ])

  about = {'largest_difference': float(np.abs(advance() - expected).max())}
  return advance, FORWARD_SEQUENCES * LENGTH, about


def numpy_forward(
    params: dict[str, Any], query: np.ndarray, items: np.ndarray
) -> np.ndarray:
  """Computes the retriever with LayerNorm in plain numpy, for one sequence.

  Args:
    params: of `Retriever`, as numpy arrays.
    query: [1].
    items: [N, 1 + C].

  Returns:
    Class logits [C].
  """
  dense = lambda name, x: x @ params[name]['kernel'] + params[name]['bias']
  attention = params['attention']
  items = _gelu(dense('item_hidden', items))
  items = items @ params['item_output_kernel'] + params['item_output_bias']
  query = dense('query_output', _gelu(dense('query_hidden', query)))
  query = query @ attention['query_kernel']
  keys, values = items @ attention['key_kernel'], items @ attention['value_kernel']
  scores = keys @ query / np.float32(math.sqrt(len(query)))
  weights = np.exp(scores - scores.max())
  output = weights @ values / weights.sum()
  centred = output - output.mean()
  output = centred / np.sqrt(np.square(centred).mean() + np.float32(1e-5))
  output = output * attention['norm']['scale'] + attention['norm']['bias']
  return dense('head_output', _gelu(dense('head_hidden', output)))


def _gelu(x: np.ndarray) -> np.ndarray:
  # x * x * x, because numpy computes x**3 by logarithms.
  inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
  return np.float32(0.5) * x * (1 + np.tanh(inner))


if __name__ == '__main__':
  main()
