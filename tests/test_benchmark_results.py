"""What benchmarks report is computed from their measurements, here given ones."""

import argparse
import io
import json
import signal
import subprocess
import sys
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks import (
    _rounds,
    accelerator,
    chunked_loss,
    llama_generation,
    llama_training,
    long_attention,
    recency_simulation,
    regularizer_cost,
    retrieval_training,
)
from vvlen.statistics import mean_interval


class _Measured:
  """A worker that has measured."""

  def __init__(self, rate, **about):
    self._rate, self.about = rate, about

  def median(self):
    return self._rate


@pytest.fixture
def reported(monkeypatch):
  """Runs the main of a benchmark; returns its result and what it has printed."""
  def run(main, *arguments):
    kept = []
    monkeypatch.setattr(_rounds, 'report', lambda result, output: kept.append(result))
    monkeypatch.setattr(sys, 'argv', ['command', *arguments])
    main()
    return kept[0]

  return run


# Rounds.


def test_rates_of_processes_are_added_and_the_median_counts():
  answers = [dict(rate=3.0, own=1.0, waiting=0.5), dict(rate=4.0, own=2.0, waiting=0.2)]
  worker = object.__new__(_rounds.Worker)
  worker._processes = [types.SimpleNamespace(
      stdin=io.StringIO(), stdout=io.StringIO(json.dumps(x) + '\n')) for x in answers]
  worker.waiting = 0.0
  rate, _ = worker.measure()
  assert (rate, worker.waiting) == (7.0, 0.7)
  worker.rates = [1.0, 9.0, 2.0]
  assert worker.median() == 2.0


def test_others_take_a_share_of_all_cores(monkeypatch):
  monkeypatch.setattr(_rounds.os, 'cpu_count', lambda: 4)
  for name, values in (('_busy_seconds', [100.0, 103.0]), ('now', [0.0, 2.0])):
    times = iter(values)
    if name == 'now':
      monkeypatch.setattr(_rounds.time, 'perf_counter', lambda x=times: next(x))
    else:
      monkeypatch.setattr(_rounds, name, lambda x=times: next(x))
  # Of 8 seconds of four cores 3 were busy, and 2 of them our own.
  assert _rounds.Watch().others(2.0) == 1 / 8


class _Sharing:
  """A worker that measures 1, 2, ... beside others that take given shares."""

  waiting, about = 0.25, {}

  def __init__(self, *shares):
    self._shares, self._made = shares, 0

  def measure(self):
    self._made += 1
    return float(self._made), self._shares[self._made - 1]

  def close(self):
    pass


def test_rounds_in_which_any_worker_was_disturbed_do_not_count():
  workers = {'a': _Sharing(0.0, 0.0, 0.04), 'b': _Sharing(0.01, 0.2, 0.03)}
  found = _rounds.alternate(workers, 2)
  assert found == {
      'rounds': {'a': [1.0, 3.0], 'b': [1.0, 3.0]}, 'quiet_rounds': 2,
      'rounds_not_counted': 1, 'most_taken_by_others': 0.04,
      'processor_seconds_of_waiting': 0.5}


@pytest.mark.parametrize('shares, counted, most', [
    ([0.9, 0.0, 0.3, 0.02], [1, 3], 0.02), ([0.9, 0.2, 0.3, 0.1], [1, 2, 3], 0.3)])
def test_disturbed_rounds_in_turns_do_not_count(monkeypatch, shares, counted, most):
  given, now = iter(shares), [0.0]
  monkeypatch.setattr(_rounds, 'Watch', lambda: types.SimpleNamespace(
      others=lambda own: next(given)))
  monkeypatch.setattr(_rounds.time, 'perf_counter', lambda: now[0])

  def run(number):  # takes as many seconds as its number
    now[0] += number

  seconds, about = _rounds.in_turns({'a': run, 'b': lambda i: run(10 * i)}, 3)
  assert seconds == {'a': counted, 'b': [10 * i for i in counted]}
  assert about == {
      'rounds_made': 3, 'quiet_rounds': sum(x <= 0.05 for x in shares[1:]),
      'most_taken_by_others': most}


# The rows of the accelerator's file.


@pytest.mark.parametrize('printed, code, state, result', [
    ('one\ntwo\n{"ratio": 2}\n', 0, 'done', {'ratio': 2}),
    ('one\ntwo\n{"ratio": 2}\n', 1, 'failed', {'ratio': 2}),
    ('{"not": "last"}\none\ntwo\n', 0, 'done', None),
])
def test_a_row_has_the_last_line_and_how_it_ended(
    monkeypatch, printed, code, state, result):
  started = []

  def start(command, **_):
    started.append(command)
    return types.SimpleNamespace(
        communicate=lambda timeout: (printed, None), returncode=code, poll=lambda: code)

  times = iter([5.0, 12.25])
  monkeypatch.setattr(subprocess, 'Popen', start)
  monkeypatch.setattr(accelerator.time, 'monotonic', lambda: next(times))
  row = accelerator.Row('m', ['--to={workdir}/x'], ['--tiny'], 100)
  found = accelerator.run(row, False, 'w', 100)
  assert started == [[sys.executable, '-m', 'experiments.m', '--to=w/x']]
  assert found['command'] == 'python -m experiments.m --to=w/x'
  assert (found['state'], found['result'], found['seconds']) == (state, result, 7.2)
  assert found['said'][-2:] == ['one', 'two']


def test_sigterm_ends_the_rows(monkeypatch, tmp_path):
  def run(*_):
    signal.raise_signal(signal.SIGTERM)
    return {'state': 'stopped', 'seconds': 1.0}

  before = signal.getsignal(signal.SIGTERM)
  monkeypatch.setattr(accelerator, '_STOPPED', threading.Event())
  monkeypatch.setattr(accelerator.subprocess, 'check_output', lambda *_, **__: (
      '[2, "G", "gpu", "0"]'))
  monkeypatch.setattr(accelerator, 'run', run)
  monkeypatch.setattr(sys, 'argv', ['command', f'--output={tmp_path}'])
  try:
    with pytest.raises(SystemExit, match='143'):
      accelerator.main()
  finally:
    signal.signal(signal.SIGTERM, before)
  kept = json.loads((tmp_path / 'accelerator_g.json').read_text())
  assert kept['device'] == '2 x G' and [*kept['rows']] == ['agreement']


def test_rows_are_measured_at_their_full_sizes():
  arguments = {name: ' '.join([row.module, *row.arguments])
               for name, row in accelerator.ROWS.items()}
  table = 'length_generalization --config=configs/{0}.py --workdir={{workdir}}/{0}'
  assert arguments == {
      'agreement': 'benchmarks.device_agreement',
      'retrieval': 'benchmarks.retrieval_training',
      'table_1': table.format('retrieval'),
      'lookup': 'benchmarks.retrieval_training --task=lookup',
      'recency': 'benchmarks.recency_simulation --long',
      'misalignment_term': 'benchmarks.regularizer_cost --vocabulary=128000 '
                           '--width=2048 --length=1024 --rounds=20',
      'chunked_loss': 'benchmarks.chunked_loss --vocabulary=128256 --width=2048 '
                      '--length=4096',
      'llama_1b': 'benchmarks.llama_training --large',
      'generation': 'benchmarks.llama_generation',
      'attention': 'benchmarks.long_attention',
      'table_2': table.format('lookup')}


# Training.


def _of_training(**workers):
  args = argparse.Namespace(task='lookup', growing=False, norm='layer_norm')
  about = dict(state_bytes=3_000_000, device='1 x G', num_seeds=8)
  return retrieval_training._result(args, about, {
      'experiment': _Measured(200.0), 'sampler': _Measured(1000.0),
      'peak': _Measured(8e10), **workers})


def test_training_is_told_relative_to_torch():
  torch = _Measured(20.0, device='cuda', version='2.9')
  found = _of_training(
      processes=_Measured(240.0), vmap=_Measured(120.0), torch=torch,
      redraw=_Measured(50.0))
  operations = retrieval_training.matrix_operations(
      retrieval_training.CONFIGS['lookup'].get_config('cpu'))
  assert found == {
      'seed_steps_per_second': 200.0, 'torch_steps_per_second': 20.0, 'ratio': 10.0,
      'processes_ratio': 12.0, 'vmap_ratio': 6.0, 'redraw_ratio': 4.0,
      'sampler_share_of_step': 0.2,
      'share_of_matrix_peak': round(200 * operations / 8e10, 3),
      'matrix_operations_per_seed_step': operations,
      'matrix_gflops_per_second': round(200 * operations / 1e9, 1),
      'peak_gflops_per_second': 80.0, 'state_bytes_per_seed_step': 3_000_000,
      'state_gb_per_second': 0.6, 'device': '1 x G', 'torch_device': 'cuda',
      'versions': {'torch': '2.9'}, 'task': 'lookup', 'norm': 'layer_norm',
      'growing': False, 'num_seeds': 8}
  # On a GPU, the experiment itself is the one by vmap.
  of_gpu = _of_training(torch=torch)
  assert (of_gpu['ratio'], of_gpu['vmap_ratio']) == (10.0, 10.0)
  assert of_gpu['processes_ratio'] is of_gpu['redraw_ratio'] is None
  alone = _of_training(vmap=_Measured(120.0))
  assert [alone[x] for x in ('torch_steps_per_second', 'ratio', 'vmap_ratio',
                             'torch_device')] == [None] * 4


def test_an_accelerator_trains_the_seeds_of_the_paper_by_vmap(monkeypatch):
  variants, groups = [], []

  def config(args, variant='cpu'):
    variants.append(variant)
    small = retrieval_training.CONFIGS['retrieval'].get_config('smoke')
    small.model.width = 4
    small.train.update(seeds_at_once=6, group_size=3, batch_size=2)
    return small

  make = retrieval_training.ensemble.make_trainer
  monkeypatch.setattr(retrieval_training, '_config', config)
  monkeypatch.setattr(retrieval_training.machine, 'use_devices', lambda _: None)
  monkeypatch.setattr(retrieval_training.jax, 'default_backend', lambda: 'gpu')
  monkeypatch.setattr(
      retrieval_training.ensemble, 'make_trainer',
      lambda *x, **named: groups.append(named['group_size']) or make(*x, **named))
  args = argparse.Namespace(worker='experiment', processes=1, steps=5, norm='none',
                            growing=False)
  mesh = retrieval_training.sharding.seed_mesh(jax.devices()[:1])
  monkeypatch.setattr(retrieval_training.sharding, 'seed_mesh', lambda: mesh)
  _, unit, about = retrieval_training._trainer(args)
  assert variants[-1] == 'paper' and groups == [3]
  assert unit == 6 * 5 and about['num_seeds'] == 6
  # Parameters and two moments, in float32, read and written.
  model = retrieval_training.training.problem(config(args), 'none')
  numbers = sum(x.size for x in jax.tree.leaves(
      jax.eval_shape(model.init, jax.random.key(0))))
  assert about['state_bytes'] == pytest.approx(2 * 3 * 4 * numbers, rel=0.05)


def test_the_peak_counts_products_and_sums(monkeypatch):
  monkeypatch.setattr(retrieval_training, 'PEAK_SIZE', 3)
  advance, unit, _ = retrieval_training.matrix_peak()
  advance()
  assert unit == 4 * 2 * 3**3


# Recency, attention.


def test_simulations_are_told_relative_to_numpy():
  rates = dict(reduced=500.0, numpy_reduced=100.0, numpy_reduced_processes=200.0,
               drawing_reduced=2000.0, direct=60.0, numpy_direct=20.0,
               numpy_direct_processes=40.0, drawing_direct=120.0)
  workers = {name: _Measured(x, first_call_seconds=x / 100, device=f'of {name}')
             for name, x in rates.items()}
  long = {10: dict(simulations=10, seconds=4.0)}
  found = recency_simulation._result(workers, long, 2e-6)
  assert found['ratio'] == {'reduced': 5.0, 'direct': 3.0}
  assert found['ratio_to_processes'] == {'reduced': 2.5, 'direct': 1.5}
  assert found['share_of_time_in_drawing'] == {'reduced': 0.25, 'direct': 0.5}
  assert found['simulations_per_second'] == rates
  assert found['seconds_per_100_000']['direct'] == 1670.0
  assert found['first_call_seconds'] == {'reduced': 5.0, 'direct': 0.6}
  assert found['numpy_settings']['direct']['device'] == 'of numpy_direct'
  assert found['device'] == 'of reduced'
  floors = recency_simulation.floors('direct')
  assert found['multiply_adds_per_second']['direct'] == pytest.approx(
      60 * floors['multiply_adds'], rel=0.01)
  moved = 10 * recency_simulation.floors('reduced')['bytes'] / 4 / 1e9
  assert recency_simulation._of_long(long[10], 2 * moved) == {
      **long[10], 'gb_per_second': round(moved, 2), 'share_of_bandwidth': 0.5}
  assert recency_simulation._of_long(long[10], None)['share_of_bandwidth'] is None


def test_attention_is_told_relative_to_the_form_in_blocks():
  workers = {'chunked': _Measured(800.0, temporary_mib=1.5),
             'plain': _Measured(400.0, temporary_mib=30.0),
             'torch': _Measured(3200.0, temporary_mib=None)}
  found = long_attention._result(workers, 1600)
  assert found['ratio'] == {'plain': 2.0, 'torch': 0.25}
  assert found['seconds'] == {'chunked': 2.0, 'plain': 4.0, 'torch': 0.5}
  assert found['temporary_mib'] == {'chunked': 1.5, 'plain': 30.0, 'torch': None}
  # Seven products of half a matrix.
  heads = long_attention.HEADS * long_attention.WIDTH
  assert found['operations_per_second']['plain'] == pytest.approx(
      7 * 1600**2 * heads / 4, rel=0.01)


# Losses.


@pytest.fixture
def in_turns(monkeypatch):
  """Sets the seconds that functions measured in turns take."""
  def give(seconds):
    def measured(runs, rounds):
      assert runs.keys() == seconds.keys()
      return seconds, {'quiet_rounds': rounds}

    monkeypatch.setattr(_rounds, 'in_turns', measured)

  return give


def test_the_cost_of_the_term_is_that_of_its_rounds(reported, in_turns):
  seconds = {'baseline': [1.0, 2.0, 4.0], 'aligned': [1.1, 2.1, 4.8],
             'plain_baseline': [2.0, 0.8, 0.5], 'plain_aligned': [3.0, 1.0, 0.51]}
  in_turns(seconds)
  found = reported(
      regularizer_cost.main, '--vocabulary=8', '--width=8', '--layers=1', '--length=4',
      '--batch=1')
  percent = [10.0, 5.0, 20.0]
  assert found['percent_more_by_round'] == percent
  assert found['percent_more'] == 10.0
  np.testing.assert_allclose(
      found['percent_more_mean_and_interval'], mean_interval(percent), atol=0.006)
  assert found['plain_percent_more'] == 25.0
  assert found['percent_more_than_fastest'] == 162.5  # 2.1 s of 0.8 s
  assert found['seconds'] == {
      'baseline': 2.0, 'aligned': 2.1, 'plain_baseline': 0.8, 'plain_aligned': 1.0}


def test_chunks_are_told_relative_to_all_logits(reported, in_turns, monkeypatch):
  in_turns({'plain': [4e-9, 2e-9, 3e-9], 'chunked': [6e-9, 7e-9, 1.5e-9]})
  analysed = iter([1000, 250])  # plain, chunked
  ones = lambda *arrays: ((jnp.float32(2), {}), [jnp.ones(2)])

  def jit(_):
    memory = types.SimpleNamespace(temp_size_in_bytes=next(analysed))
    compiled = types.SimpleNamespace(memory_analysis=lambda: memory)
    step = lambda *arrays: ones()
    step.lower = lambda *shapes: types.SimpleNamespace(compile=lambda: compiled)
    return step

  monkeypatch.setattr(chunked_loss.jax, 'jit', jit)
  found = reported(
      chunked_loss.main, '--vocabulary=11', '--width=5', '--length=8')
  assert found['memory_ratio'] == 0.25
  assert found['temporary_bytes'] == {'plain': 1000, 'chunked': 250}
  assert found['seconds'] == {'plain': 3e-9, 'chunked': 6e-9}
  assert found['time_ratio'] == 2.0
  # Three products of 2 x 8 rows, 11 words and width 5, with two operations for each.
  assert found['gflop_per_second'] == {'plain': 1760.0, 'chunked': 880.0}
  assert chunked_loss.FULL == dict(vocabulary=128_256, width=2048, length=4096)
  assert found['time_at'] == dict(vocabulary=11, width=5, length=8)
  assert found['largest_relative_difference'] == 0


# Llamas.


def test_a_large_llama_is_told_relative_to_the_peak(reported, in_turns):
  in_turns({'step': [8.0, 4.0, 2.0], 'product': [1.0, 0.5, 0.25]})
  found = reported(llama_training.main, '--large', '--tiny', '--rounds=3')
  operations = 2 * 256 * llama_training.operations(llama_training.TINY, 256)
  peak = 10 * 2 * 256**3 / 0.5
  assert found['tokens_per_second'] == 2 * 256 / 4
  assert found['share_of_peak'] == round(operations / 4 / peak, 4)
  assert found['seconds'] == {'step': 4.0, 'product': 0.5}


def test_operations_of_a_llama():
  shape = dict(vocab_size=7, width=6, mlp_width=10, num_layers=3, num_heads=3,
               num_key_heads=1)
  # Queries and output, keys and values of one head of width 2, three of the MLP.
  layer = 2 * 36 + 2 * 12 + 3 * 60
  forward = 2 * (3 * layer + 7 * 6) + 3 * 2 * 5 * 6
  assert llama_training.operations(shape, 5) == 3 * forward


@pytest.fixture
def given_workers(monkeypatch):
  """Sets what the workers that a benchmark starts have measured."""
  def give(module, measured):
    serving = lambda arguments: arguments[0].removeprefix('--serve=')
    monkeypatch.setattr(module._rounds, 'Worker', lambda name, arguments: (
        measured[serving(arguments)]))
    monkeypatch.setattr(module._rounds, 'alternate', lambda workers, rounds: {})

  return give


def test_a_llama_is_told_relative_to_transformers(reported, given_workers):
  operations = llama_training.operations(llama_training.SMALL, llama_training.LENGTH)
  given_workers(llama_training, {
      'vvlen': _Measured(60.0, version='1'), 'transformers': _Measured(20.0),
      'vvlen_one_device': _Measured(30.0), 'peak': _Measured(240.0 * operations)})
  found = reported(llama_training.main)
  assert (found['ratio'], found['ratio_one_device']) == (3.0, 1.5)
  assert found['share_of_matrix_peak'] == 0.25
  assert found['tokens_per_second'] == {
      'vvlen': 60.0, 'vvlen_one_device': 30.0, 'transformers': 20.0}
  assert found['about'] == {'vvlen': {'version': '1'}}


def test_generation_is_told_relative_to_transformers(given_workers):
  given_workers(llama_generation, {
      'vvlen': _Measured(60.0, tokens=[[1, 2, 3, 4]]),
      'transformers': _Measured(40.0, tokens=[[1, 2, 0, 4]])})
  found = llama_generation.compare('', llama_generation.Case(1, 8, 4), 3)
  assert (found['ratio'], found['share_of_equal_tokens']) == (1.5, 0.75)
  assert found['tokens_per_second'] == {'vvlen': 60.0, 'transformers': 40.0}
