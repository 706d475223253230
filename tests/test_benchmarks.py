"""Benchmarks compare equal computations, and count the operations that there are."""

import argparse
import json
import math
import os
import subprocess
import sys
import threading
import time

import jax
from jax.interpreters import partial_eval as pe
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks import (
  _rounds,
  chunked_loss,
  counting_training,
  llama_training,
  lora_step,
  regularizer_cost,
  retrieval_training,
  scaling,
  shifted_attention,
  time_of_run,
)
from experiments.counting import training
from experiments.length_generalization import training as length_generalization
from tests import test_recency_bias
from tests.conftest import ROOT
from vvlen.models.decoder import Decoder
from vvlen.models.language_model import LanguageModel
from vvlen.models.llama.lora import add_adapters, join, Lora, split, with_adapters
from vvlen.models.llama.model import Llama
from vvlen.objectives import misalignment


def _operations(jaxpr):
  """Counts floating-point operations in the matrix products of a program."""
  total = 0
  for equation in jaxpr.eqns:
    if equation.primitive.name == 'dot_general':
      (contracted, _), _ = equation.params['dimension_numbers']
      left, = (v.aval.shape for v in equation.invars[:1])
      summed = math.prod(left[axis] for axis in contracted)
      total += 2 * summed * math.prod(equation.outvars[0].aval.shape)
    for inner in jax.tree.leaves(
        equation.params, is_leaf=lambda x: hasattr(x, 'eqns') or hasattr(x, 'jaxpr')):
      inner = getattr(inner, 'jaxpr', inner)
      total += _operations(inner) if hasattr(inner, 'eqns') else 0
  return total


def _stack(*files, function='one'):
  """Returns the innermost frame of functions in these files, the first outermost."""
  found = lambda: sys._getframe(1)
  for file in reversed(files):
    names = {'call': found}
    exec(compile(f'def {function}():\n  return call()', file, 'exec'), names)
    found = names[function]
  return found()


@pytest.mark.parametrize('files, expected', [
    (['vvlen/training/loop.py'], 'training'),
    (['vvlen/training/loop.py', 'vvlen/evaluation/perplexity.py'], 'measuring'),
    (['vvlen/training/loop.py', 'vvlen/evaluation/perplexity.py',
      'jax/_src/compiler.py', 'jax/_src/util.py'], 'compiling'),
    (['vvlen/training/ensemble.py', 'jax/_src/interpreters/partial_eval.py',
      'vvlen/evaluation/probe.py', 'flax/linen.py'], 'tracing'),
    (['experiments/counting/report.py', 'vvlen/reporting/plots.py',
      'matplotlib/figure.py'], 'figures'),
    (['experiments/counting/report.py', 'vvlen/reporting/page.py'], 'reporting'),
    (['vvlen/training/loop.py', 'vvlen/training/checkpoint.py', 'asyncio/x.py'],
     'saving'),
    (['experiments/language_model/together.py', 'vvlen/sharding/seeds.py'], 'other'),
    (['vvlen/training/loop.py', '<frozen importlib._bootstrap>', 'orbax/checkpoint.py'],
     'importing'),
    (['experiments/counting/run.py'], 'other'),
])
def test_the_part_of_a_run_is_told_by_its_stack(files, expected):
  assert time_of_run.part(_stack(*files)) == expected


def test_functions_that_measure_are_told_by_their_names():
  files = 'experiments/language_model/together.py', 'vvlen/sharding/seeds.py'
  assert time_of_run.part(_stack(*files, function='train_and_measure')) == 'measuring'
  inner = _stack('vvlen/training/loop.py', function='measure')
  assert time_of_run.part(inner) == 'training'


def test_time_is_added_to_the_part_where_the_thread_is():
  sampler = time_of_run.Sampler(threading.get_ident())
  sampler.start()
  names = {'wait': lambda: time.sleep(0.6)}
  exec(compile('def one():\n  wait()', 'matplotlib/figure.py', 'exec'), names)
  start = time.perf_counter()
  names['one']()
  sampler.stop()
  passed = time.perf_counter() - start
  assert sampler.seconds['figures'] > 0.4
  assert sum(sampler.seconds.values()) <= passed + 0.1


@pytest.mark.slow
def test_a_run_is_divided_into_parts(tmp_path, fast_compilation):
  done = subprocess.run(
      [sys.executable, '-m', 'experiments.benchmarks.time_of_run',
       f'--output={tmp_path}/time.json', 'recency_bias',
       '--config=configs/recency_bias.py:smoke', f'--workdir={tmp_path}/run',
       *test_recency_bias._FEW],
      cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
  assert done.returncode == 0, done.stderr
  found = json.loads((tmp_path / 'time.json').read_text())
  assert set(found['share']) == {*time_of_run.PARTS}
  assert sum(found['share'].values()) == pytest.approx(1, abs=0.01)
  assert min(found['share'][x] for x in ('tracing', 'measuring', 'figures')) > 0
  assert found['share']['training'] == found['share']['saving'] == 0
  assert (tmp_path / 'run/index.html').exists()


def test_operations_of_counting_are_those_of_its_program(key):
  config = counting_training._config()
  problem = training.problem(config, counting_training.CELL)
  params, batch = jax.eval_shape(problem.init, key), problem.sample(key, 0)
  gradient = jax.grad(lambda params: problem.loss(params, batch)[0])
  found = _operations(jax.make_jaxpr(gradient)(params).jaxpr)
  expected = counting_training.matrix_operations(config)
  np.testing.assert_allclose(found, expected, rtol=0.02)


@pytest.mark.parametrize('task', retrieval_training.CONFIGS)
def test_operations_of_the_tasks_are_those_of_their_programs(task, key):
  config = retrieval_training.CONFIGS[task].get_config('cpu')
  problem = length_generalization.problem(config, 'layer_norm')
  params, batch = jax.eval_shape(problem.init, key), jax.eval_shape(
      lambda key: problem.sample(key, 0), key)
  gradient = jax.grad(lambda params, batch: problem.loss(params, batch)[0])
  found = _operations(jax.make_jaxpr(gradient)(params, batch).jaxpr)
  # Lookup reads the rows of values by a product with one-hot vectors, and adds their
  # gradients by another.
  rows = config.train.batch_size * config.train.max_length
  one_hot = 2 * 2 * rows * config.task.num_classes * config.model.width
  expected = retrieval_training.matrix_operations(config)
  assert found == expected + one_hot * (task == 'lookup')


@pytest.mark.slow
def test_operations_of_lora_are_those_of_its_program(key):
  pytest.importorskip('qwix', reason="needs qwix: pip install '.[lora]'")
  shape = dict(vocab_size=40, width=64, mlp_width=96, num_layers=3, num_heads=4,
               num_key_heads=2)
  tokens = jax.random.randint(key, (1, 256), 0, 40)
  model = Llama(**shape, tied=False, implementation='plain')
  params = model.init(key, tokens[:, :2])['params']
  lora = Lora(5, 10.0)
  parts = split(lora, add_adapters(model, lora, params, key))
  for own, trained, frozen, expected in (
      (model, params, {}, llama_training.operations(shape, 256)),
      (with_adapters(model, lora), *parts, lora_step.lora_operations(shape, 256, 5)),
  ):
    gradient = jax.grad(lambda *x, own=own: jnp.sin(own.apply(
        {'params': join(*x)}, tokens)).sum())
    program = jax.make_jaxpr(gradient)(trained, frozen)
    needed, _ = pe.dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))
    # Plain attention computes whole matrices, of which the formula counts a half.
    attention = 3 * 256 * 3 * 2 * 256 * 64
    np.testing.assert_allclose(
        _operations(needed), 256 * expected + attention, rtol=0.001)


@pytest.mark.slow
def test_the_regularizer_is_measured_against_no_weight(key):
  args = argparse.Namespace(length=8, weight=0.3)
  model = LanguageModel(Decoder(11, num_layers=1, width=8, num_heads=2))
  tokens = jax.random.randint(key, (2, 11), 0, 11)
  params = model.init(key, tokens)['params']
  first, second = misalignment.two_windows(tokens, args.length, 2)
  logits = [model.apply({'params': params}, x) for x in (first, second)]
  found = {name: loss(model, params, first, second, jnp.int32(2), args.weight)
           for name, loss in regularizer_cost._LOSSES.items()}
  for kind, weight in (('baseline', 0.0), ('aligned', args.weight)):
    expected, _ = misalignment.two_window_loss(*logits, first, second, 2, weight)
    np.testing.assert_allclose(found[kind], expected, rtol=1e-5)
    np.testing.assert_allclose(found[f'plain_{kind}'], expected, rtol=1e-5)


def test_the_regularizer_is_told_against_the_fastest_step_without_it():
  # docs/speed.md has these numbers for the published sizes.
  folder = ROOT / 'experiments/results/benchmarks'
  found = [
      regularizer_cost.more_than_fastest(
          json.loads((folder / f'{name}.json').read_text())['seconds'])
      for name in ('regularizer_cost', 'regularizer_cost_small')
  ]
  np.testing.assert_allclose(found, [4.7, 6.4], atol=0.06)


@pytest.mark.slow
def test_chunked_losses_are_measured_against_the_same_loss():
  arrays = chunked_loss.inputs(vocabulary=13, width=5, length=16, dtype='float32')
  expected, _ = chunked_loss.plain(*arrays)
  found, _ = chunked_loss.chunked_two_window_loss(*arrays, chunk_size=3)
  np.testing.assert_allclose(found, expected, rtol=1e-5)


class _Busy:
  """A worker on a machine of which others take half."""

  waiting, about = 0.0, {}

  def __init__(self):
    self.asked = 0

  def measure(self):
    self.asked += 1
    return float(self.asked), 0.5

  def close(self):
    self.asked = -self.asked


@pytest.mark.parametrize(('rounds', 'made'), [(1, 1), (2, 16)])
def test_a_single_round_counts_however_busy_the_machine_is(rounds, made):
  worker = _Busy()
  result = _rounds.alternate({'one': worker}, rounds)
  assert worker.asked == -made  # and the worker was ended
  assert worker.rates == result['rounds']['one'] == [made - 1.0, made][-rounds:]
  assert (result['quiet_rounds'], result['rounds_not_counted']) == (0, made - rounds)


def test_operations_of_groups_are_those_of_their_pairs():
  # Seven products with two operations for a feature of a pair; of the pair of a token
  # with itself, half counts.
  n, per_pair = 64, 7 * 2 * shifted_attention.WIDTH * shifted_attention.HEADS
  borders = {'first': [0, 16, 32, 48, 64], 'second': [0, 8, 24, 40, 56, 64]}
  token = np.arange(n)
  pairs = {'full': np.tri(n).sum() - n / 2}
  for name, edges in borders.items():
    group = np.searchsorted(edges, token, side='right')
    pairs[name] = (np.tri(n) * (group[:, None] == group)).sum() - n / 2
  assert shifted_attention.operations(n) == {
      'full': per_pair * pairs['full'],
      'shifted': per_pair * (pairs['first'] + pairs['second']) / 2}


@pytest.mark.slow
def test_shifted_attention_is_measured_at_small_lengths(tmp_path, fast_compilation):
  path = tmp_path / 'shifted.json'
  done = subprocess.run(
      [sys.executable, '-m', shifted_attention.MODULE, '--tokens=64', '--rounds=1',
       '--seconds=0.01', f'--output={path}'], cwd=ROOT, capture_output=True, text=True,
      check=False)
  assert done.returncode == 0, done.stderr
  result = json.loads(done.stdout.splitlines()[-1])
  assert result == json.loads(path.read_text())
  row = result['tokens']['64']
  assert row['ratio_of_operations'] == 4.27 and set(row['seconds']) == {
      'full', 'shifted'}
  assert min(row['times_floor'].values()) > 0


@pytest.mark.parametrize(('seconds', 'calls'), [(0.0, 1), (5.0, 3)])
def test_a_measurement_has_whole_calls_for_at_least_its_seconds(
    monkeypatch, seconds, calls):
  now, served = [0.0], []
  monkeypatch.setattr(_rounds.time, 'perf_counter', lambda: now[0])
  monkeypatch.setattr(_rounds, 'serve', lambda rate, about: served.append(rate))

  def advance():
    now[0] += 2

  _rounds.serve_calls(advance, 10, {}, seconds)
  assert now == [2]  # the call that compiles
  rate, = served
  assert rate() == 10 / 2 and now == [2 + 2 * calls]


def test_each_comes_first_and_last_in_turn():
  calls = []
  runs = {name: lambda i, name=name: calls.append(name) for name in 'abc'}
  _rounds.in_turns(runs, 5)
  assert ''.join(calls) == 'cba' 'abc' 'acb' 'bca' 'bac' 'cab'


def test_rounds_alternate_and_the_first_does_not_count():
  calls = []
  runs = {name: lambda i, name=name: calls.append((i, name)) for name in 'ab'}
  seconds, about = _rounds.in_turns(runs, 3)
  assert calls == [(0, 'b'), (0, 'a'), (1, 'a'), (1, 'b'), (2, 'a'), (2, 'b'),
                   (3, 'b'), (3, 'a')]
  counted = about['quiet_rounds'] or 3
  assert {name: len(x) for name, x in seconds.items()} == {'a': counted, 'b': counted}


def test_efficiency_is_of_the_cores_that_can_be_used():
  alone = {'rate': 10.0}
  share = lambda **measured: scaling.efficiency(measured, alone, cores=2)
  assert share(seeds=1, devices=2, rate=10.0) == 1.0  # one seed has no use for two
  assert share(seeds=24, devices=2, rate=15.0) == 0.75
  assert share(seeds=24, devices=8, rate=15.0) == 0.75  # eight devices on two cores


@pytest.mark.slow
def test_a_second_block_of_seeds_compiles_nothing(fast_compilation):
  done = subprocess.run(
      [sys.executable, '-m', scaling.MODULE, '--seconds=0.01', '--width=8',
       '--worker', '5', '3'], cwd=ROOT, capture_output=True, text=True, check=False,
      env={**os.environ, 'JAX_NUM_CPU_DEVICES': '3'})
  assert done.returncode == 0, done.stderr
  measured = json.loads(done.stdout.splitlines()[-1])
  assert measured['compiled'] > 0 and measured['recompiled'] == 0
  assert (measured['padded'], measured['devices']) == (1, 3) and measured['rate'] > 0


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_share_the_seeds_of_one_run(tmp_path, fast_compilation):
  path = tmp_path / 'scaling.json'
  done = subprocess.run(
      [sys.executable, '-m', scaling.MODULE, '--seconds=0.01', '--width=8',
       '--seeds', '2', '--devices', '1', '--processes', '2', '--seeds_of_devices=3',
       f'--output={path}'], cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  result = json.loads(path.read_text())
  *_, row = result['rows']
  assert (row['sweep'], row['processes'], row['devices']) == ('processes', 2, 2)
  assert (row['seeds'], row['padded'], row['recompiled']) == (3, 1, 0)
  assert row['efficiency'] == pytest.approx(row['rate'] / result['alone']['rate'] / 2)
  assert path.with_suffix('.md').read_text().count('| processes | 3 | 2 | 2 |') == 1
