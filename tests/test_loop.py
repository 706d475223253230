"""A run split over time, devices or processes gives the same results."""

import contextlib
import functools
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import chex
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np
import pytest

from tests import conftest, loop_worker
from tests.cases import mostly_slow
from vvlen.training import checkpoint, loop, preemption

# Orbax leaves coroutines behind when a checkpoint is damaged.
pytestmark = pytest.mark.filterwarnings(
    'ignore::pytest.PytestUnraisableExceptionWarning'
)

STEPS, MESH = 10, (2, 2, 2)
WORKER = pathlib.Path(loop_worker.__file__)


@functools.cache
def _made(shape):
  """Returns the toy and its first state as numpy: what is to be compiled once."""
  toy = loop_worker.make(loop_worker.make_mesh(shape))
  return toy, jax.device_get(toy.state)


def _toy(shape=MESH):
  """Returns the toy before its first step."""
  toy, state = _made(shape)
  placed = jax.tree.map(lambda x: x.sharding, toy.state)
  return toy._replace(
      state=jax.device_put(state, placed), batches=loop_worker.make_batches()
  )


def _train(num_steps=STEPS, shape=MESH, toy=None, **options):
  """Trains the toy from its start, or its checkpoint, and returns its state."""
  toy = toy or _toy(shape)
  return loop.train(
      toy.step, toy.state, toy.batches, num_steps, **{'place': toy.place, **options}
  )


@functools.cache
def _uninterrupted(num_steps=STEPS, shape=MESH):
  """Returns state, as numpy, and metrics of a run without checkpoints."""
  told = []
  state = _train(
      num_steps, shape, metrics_every_steps=2, on_metrics=lambda *x: told.append(x)
  )
  return jax.device_get(state), told


def _assert_equal(state, expected):
  chex.assert_trees_all_equal(jax.device_get(state), expected)


def _assert_close(state, expected):
  """Asserts that states agree to 1e-5 of the largest of each array."""
  assert state.step == expected.step
  for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())


def _steps(folder):
  return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def test_a_run_is_a_loop_over_steps():
  toy = _toy()
  state, expected = toy.state, []
  for _ in range(STEPS):
    state, metrics = toy.step(state, toy.place(next(toy.batches)))
    expected.append(jax.device_get(metrics))
  trained, told = _uninterrupted()
  _assert_equal(state, trained)
  assert [step for step, _ in told] == [2, 4, 6, 8, 10]
  for k, (_, means) in enumerate(told):
    for name, mean in means.items():
      assert type(mean) is float
      pair = [np.float64(metrics[name]) for metrics in expected[2 * k:2 * k + 2]]
      assert mean == np.mean(pair)


@pytest.mark.slow
def test_the_toy_learns_and_is_split_over_all_devices():
  state, told = _uninterrupted(40)
  assert told[-1][1]['loss'] < 0.2 * told[0][1]['loss']
  assert state.step == 40
  state = _train(1)
  shapes = [s.data.shape for s in state.params['embedding'].addressable_shards]
  assert shapes == [(8, 4)] * 8
  assert state.opt_state[1][0].mu['embedding'].sharding == (
      state.params['embedding'].sharding
  )


@pytest.mark.slow
def test_one_and_eight_devices_agree_to_rounding():
  for shape in ((1, 1, 1), (8, 1, 1)):
    _assert_close(_uninterrupted(shape=shape)[0], _uninterrupted()[0])


# An epoch has six batches.
@pytest.mark.slow
@pytest.mark.parametrize('first', [1, 4, 6])
def test_a_run_that_goes_on_is_bit_for_bit_the_uninterrupted_one(first, tmp_path):
  folder, told, rows = tmp_path / 'run', [], []
  told_of = {'metrics_every_steps': 2, 'on_metrics': lambda *x: told.append(x)}
  _train(first, folder=folder, **told_of)
  assert _steps(folder) == [first]
  told.clear()

  def place(batch):
    rows.append(batch)
    return toy.place(batch)

  toy = _toy()
  state = _train(toy=toy, folder=folder, place=place, **told_of)
  expected, all_told = _uninterrupted()
  _assert_equal(state, expected)
  assert told == all_told[first // 2:]
  batches = loop_worker.make_batches()
  seen = [next(batches) for _ in range(STEPS)]
  np.testing.assert_array_equal(rows, seen[first:])
  # The run is complete, and no batch is read.
  _assert_equal(_train(folder=folder, place=None), expected)


@pytest.mark.slow
def test_the_position_of_the_iterator_is_a_count_of_batches(tmp_path):
  _train(8, folder=tmp_path, meta={'seed': 3, 'lengths': (1, 2)})
  saved = checkpoint.read_meta(tmp_path)
  assert saved['batches'] == {'next_index': 8}
  assert saved['meta'] == {'seed': 3, 'lengths': [1, 2]}


@pytest.mark.parametrize('shape', mostly_slow(
    [((1, 1, 1),), ((4, 2, 1),), ((1, 1, 8),)]))
def test_a_checkpoint_restores_on_another_mesh(shape, tmp_path):
  _train(folder=tmp_path)
  toy = _toy(shape)
  placed = jax.tree.map(lambda x: x.sharding, toy.state)
  state = _train(toy=toy, folder=tmp_path)
  _assert_equal(state, _uninterrupted()[0])
  assert jax.tree.map(lambda x: x.sharding, state) == placed
  toy = _toy(shape)
  _assert_close(
      jax.device_get(_train(14, toy=toy, folder=tmp_path)), _uninterrupted(14)[0]
  )


@pytest.mark.slow
def test_the_state_that_is_replaced_takes_no_memory(tmp_path):
  _train(4, folder=tmp_path)
  toy = _toy()
  alive = []
  restore = checkpoint.restore

  def look(*arguments):
    alive.extend(x for x in jax.tree.leaves(toy.state) if not x.is_deleted())
    return restore(*arguments)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(checkpoint, 'restore', look)
    _train(4, toy=toy, folder=tmp_path)
  assert alive == []


def _events(num_steps=7, first=0, stop_at=None, **options):
  """Returns what a run does, in order."""
  toy, events = _toy(), []

  def step(state, batch):
    events.append(f'step {first + sum(e.startswith("step") for e in events) + 1}')
    return toy.step(state, batch)

  def save(folder, step, state, meta):
    assert events.pop() == 'before save'
    events.append(f'save {step} {int(state.step)} {meta["batches"]["next_index"]}')
    return real(folder, step, state, meta)

  def evaluate(step, state):
    events.append(f'evaluate {step} {int(state.step)}')
    if step == stop_at:
      raise KeyboardInterrupt

  real = checkpoint.save
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(checkpoint, 'save', save)
    with contextlib.suppress(KeyboardInterrupt):
      _train(
          num_steps, toy=toy._replace(step=step), evaluate=evaluate,
          on_metrics=lambda step, _: events.append(f'metrics {step}'),
          before_save=lambda: events.append('before save'), **options
      )
  return events


def test_metrics_are_told_when_the_next_step_is_on_its_way():
  assert _events(metrics_every_steps=3) == [
      'step 1', 'step 2', 'step 3', 'step 4', 'metrics 3', 'step 5', 'step 6',
      'step 7', 'metrics 6', 'metrics 7', 'evaluate 7 7',
  ]


@pytest.mark.slow
def test_metrics_come_before_evaluation_and_that_before_the_checkpoint(tmp_path):
  options = dict(
      folder=tmp_path, save_every_steps=4, metrics_every_steps=3,
      evaluate_every_steps=2,
  )
  # An evaluation that was cut off is made again, also where the run ended.
  assert _events(stop_at=4, **options) == [
      'step 1', 'step 2', 'metrics 2', 'evaluate 2 2', 'step 3', 'step 4', 'metrics 3',
      'metrics 4', 'evaluate 4 4',
  ]
  assert _steps(tmp_path) == []
  assert _events(stop_at=6, **options)[-7:] == [
      'metrics 4', 'evaluate 4 4', 'save 4 4 4', 'step 5', 'step 6', 'metrics 6',
      'evaluate 6 6',
  ]
  assert _steps(tmp_path) == [4]
  assert _events(first=4, **options) == [
      'evaluate 4 4', 'step 5', 'step 6', 'metrics 6', 'evaluate 6 6', 'step 7',
      'metrics 7', 'evaluate 7 7', 'save 7 7 7',
  ]
  assert _steps(tmp_path) == [4, 7]
  assert _events(first=7, **options) == ['evaluate 7 7']


@pytest.mark.slow
def test_a_run_evaluates_after_given_steps_also_when_it_resumes(tmp_path):
  options = dict(
      folder=tmp_path, save_every_steps=3, metrics_every_steps=4,
      evaluate_after={1, 3, 5, 9},
  )
  # One that was cut off is made again.
  assert _events(stop_at=3, **options) == [
      'step 1', 'metrics 1', 'evaluate 1 1', 'step 2', 'step 3', 'metrics 3',
      'evaluate 3 3',
  ]
  assert _events(stop_at=5, **options)[-7:] == [
      'evaluate 3 3', 'save 3 3 3', 'step 4', 'step 5', 'metrics 4', 'metrics 5',
      'evaluate 5 5',
  ]
  assert _events(first=3, **options) == [
      'evaluate 3 3', 'step 4', 'step 5', 'metrics 4', 'metrics 5', 'evaluate 5 5',
      'step 6', 'save 6 6 6', 'step 7', 'metrics 7', 'evaluate 7 7', 'save 7 7 7',
  ]


@pytest.mark.slow
def test_the_means_of_a_resumed_run_are_over_the_same_steps(tmp_path):
  runs = []
  for stops in ((STEPS,), (4, 8, STEPS)):
    told, folder = [], tmp_path / str(len(stops))
    for stop in stops:
      _train(
          stop, folder=folder, save_every_steps=4, metrics_every_steps=3,
          on_metrics=lambda *x, told=told: told.append(x),
      )
    runs.append(told)
  assert [step for step, _ in runs[0]] == [3, 6, 9, 10]
  # Beside the ends that the others had.
  assert [step for step, _ in runs[1]] == [3, 4, 6, 8, 9, 10]
  assert dict(runs[0]).items() <= dict(runs[1]).items()


@pytest.mark.parametrize('change, message', [
    ({'save_every_steps': 0}, 'save_every_steps must be positive: 0'),
    ({'save_every_steps': float('nan')}, 'save_every_steps must be positive: nan'),
    ({'metrics_every_steps': 0}, 'metrics_every_steps must be positive: 0'),
    ({'evaluate_every_steps': -1}, 'evaluate_every_steps must be positive: -1'),
    ({'num_steps': -1}, 'at step 0 already, beyond -1'),
    ({'meta': {'seed': {3}}}, r'cannot hold .*: Object of type set '),
    ({'toy': 'no state'}, 'have get_state and set_state: <list_iterator'),
    ({'toy': 'too few'}, 'The batches end after 3 of 10 steps'),
])
def test_what_cannot_run_is_named(change, message, tmp_path):
  toy = _toy()
  if change.get('toy') == 'no state':
    change = {'toy': toy._replace(batches=iter([next(toy.batches)]))}
  elif change.get('toy') == 'too few':
    few = [next(toy.batches) for _ in range(3)]
    change = {'toy': toy._replace(batches=iter(few)), 'folder': None}
  with pytest.raises(ValueError, match=message):
    _train(**{'folder': tmp_path / 'run', **change})
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_named_and_kept(tmp_path):
  meta = {'seed': 3, 'text': 'a'}
  other = functools.partial(loop_worker.make, loop_worker.make_mesh(MESH))
  _train(4, folder=tmp_path, meta=meta)
  for change, message in (
      ({'meta': {**meta, 'seed': 4}}, r'/4 is of another run: its seed is 3, not 4\.'),
      ({'meta': {'seed': 3}}, r"its text is 'a', not None\."),
      ({'num_steps': 3, 'meta': meta}, 'at step 4 already, beyond 3'),
      ({'toy': other(width=4), 'meta': meta},
       r"/4 is not of this run: .*'opt_state/1/0/mu/embedding', \(16, 4\)"),
      ({'toy': other(dtype=jnp.float16), 'meta': meta},
       r"differs in \('opt_state/1/0/mu/embedding', \(16, 8\), 'float16'\)"),
  ):
    with pytest.raises(ValueError, match=message):
      _train(**{'folder': tmp_path, **change})
  _assert_equal(_train(folder=tmp_path, meta=meta), _uninterrupted()[0])


@pytest.mark.parametrize('change', ['dtype', 'shape', 'missing'])
def test_what_differs_in_a_checkpoint_is_named(change, tmp_path):
  toy = _toy()
  checkpoint.save(tmp_path, 3, toy.state, {'batches': {'next_index': 3}, 'meta': {}})
  params = dict(toy.state.params)
  if change == 'missing':
    del params['kernel']
  else:
    kernel = params['kernel']
    params['kernel'] = (
        kernel.astype(jnp.bfloat16) if change == 'dtype' else jnp.ones(12)
    )
  with pytest.raises(ValueError, match=r"/3 is not of this run: .*'params/kernel', \("):
    _train(toy=toy._replace(state=toy.state._replace(params=params)), folder=tmp_path)


def test_a_checkpoint_of_an_ensemble_is_refused(tmp_path):
  checkpoint.save(tmp_path, 3, _toy().state)
  assert checkpoint.read_meta(tmp_path) is None
  with pytest.raises(ValueError, match='/3 does not say which batches it has seen'):
    _train(folder=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('name, keep', [
    ('default/d/*', 0.5), ('default/d/*', None), ('default/manifest.ocdbt', None),
    ('default/_METADATA', 0.5), ('meta/metadata', 0.5), ('meta/metadata', None),
])
def test_a_damaged_checkpoint_is_named(name, keep, tmp_path):
  _train(4, folder=tmp_path)
  paths = list(tmp_path.glob(f'4/{name}'))
  assert paths
  for path in paths:
    content = path.read_bytes()
    path.unlink()
    if keep is not None:
      path.write_bytes(content[: int(keep * len(content))])
  with pytest.raises(ValueError, match=r'^Damaged checkpoint .*/4\. Delete .*$'):
    _train(folder=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('first', [0, 4])
def test_what_a_cut_off_save_left_is_cleared_away(first, tmp_path):
  _train(first, folder=tmp_path)
  (tmp_path / '6.orbax-checkpoint-tmp-17' / 'd').mkdir(parents=True)
  _assert_equal(_train(folder=tmp_path), _uninterrupted()[0])
  assert _steps(tmp_path) == ([first, STEPS] if first else [STEPS])
  assert not list(tmp_path.glob('*tmp*'))


def test_a_checkpoint_is_never_left_unsaved_without_a_word(tmp_path):
  checkpoint.save(tmp_path, 3, _toy().state)
  with pytest.raises(OSError, match=r'Could not save the checkpoint .*/3: '):
    checkpoint.save(tmp_path, 3, _toy().state)
  assert _steps(tmp_path) == [3]


def test_a_save_leaves_the_agreement_on_preemption_alone(tmp_path, monkeypatch):
  asked = []
  monkeypatch.setattr(
      multihost_utils, 'reached_preemption_sync_point', lambda i: asked.append(i)
  )
  checkpoint.save(tmp_path, 3, _toy().state)
  assert checkpoint.last_step(tmp_path) == 3
  assert asked == []


@pytest.mark.slow
@pytest.mark.parametrize('after, every', [(5, 2), (5, 5), (6, 100)])
def test_a_run_that_diverges_ends_and_keeps_its_last_good_checkpoint(
    tmp_path, after, every
):
  toy = _toy()

  def step(state, batch):
    state, metrics = toy.step(state, batch)
    if state.step == after:  # as by an update that is not finite
      kernel = state.params['kernel'].at[1].set(np.nan)
      state = state._replace(params={**state.params, 'kernel': kernel})
    return state, metrics

  _train(4, folder=tmp_path)
  options = {'folder': tmp_path, 'save_every_steps': every}
  found = 'Parameters are not finite after step 5' if every == 5 else (
      f'The loss of step {after + 1} is not finite')
  with pytest.raises(ValueError, match=rf'^{found}\. Not finite by now: .*kernel.*\. '
                     rf'The last good checkpoint is {tmp_path}/4\. A smaller'):
    _train(toy=toy._replace(step=step), **options)
  assert checkpoint.last_step(tmp_path) == 4
  _assert_equal(_train(folder=tmp_path), _uninterrupted()[0])


@pytest.mark.slow
def test_only_metrics_that_must_be_finite_end_a_run():
  toy, told = _toy(), []

  def step(state, batch):
    state, metrics = toy.step(state, batch)
    return state, {**metrics, 'error': np.float32(np.nan)}

  _train(toy=toy._replace(step=step), on_metrics=lambda _, means: told.append(means))
  assert np.isnan(told[-1]['error'])
  with pytest.raises(ValueError, match=r'^The error of step 1 is not finite\. Not '
                     r'finite by now: no parameters\. None was saved\.'):
    _train(toy=_toy()._replace(step=step), must_be_finite=['error'])


def test_rows_are_shared_out_over_the_axes():
  mesh = loop_worker.make_mesh(MESH)
  batch = {'x': np.arange(24).reshape(8, 3), 'y': np.arange(8)}
  placed = loop.place_rows(mesh, ('data', 'fsdp'))(batch)
  chex.assert_trees_all_equal(jax.device_get(placed), batch)
  for shard in placed['x'].addressable_shards:
    data, fsdp, _ = np.argwhere(mesh.devices == shard.device)[0]
    first = 2 * (2 * data + fsdp)
    np.testing.assert_array_equal(shard.data, batch['x'][first:first + 2])
  halves = loop.place_rows(mesh, 'data')(batch)['y'].addressable_shards
  assert [s.data.shape for s in halves] == [(4,)] * 8
  with pytest.raises(ValueError, match=r'6 rows .* cannot be divided among 4 groups'):
    loop.place_rows(mesh, ('data', 'fsdp'))({'x': np.ones((6, 3))})


@pytest.mark.slow
def test_sigterm_saves_and_the_former_handler_is_back(tmp_path):
  noted = []
  former = signal.signal(signal.SIGTERM, lambda *_: noted.append('former'))
  try:
    handler = signal.getsignal(signal.SIGTERM)

    def told(step, _):
      os.kill(os.getpid(), signal.SIGTERM)

    # The signal comes after step 3, while step 4 runs.
    says = f'step 4 of 10, saved in {tmp_path}'
    with pytest.raises(preemption.Preempted, match=says):
      _train(folder=tmp_path, metrics_every_steps=3, on_metrics=told)
    assert _steps(tmp_path) == [4]
    assert signal.getsignal(signal.SIGTERM) is handler
    _assert_equal(_train(folder=tmp_path), _uninterrupted()[0])
    with pytest.raises(preemption.Preempted, match='after step 4 of 10, not saved'):
      _train(metrics_every_steps=3, on_metrics=told)
    assert noted == []
    # A signal too late for any step is handed on, not lost.
    state = _train(evaluate=told)
    _assert_equal(state, _uninterrupted()[0])
    assert noted == ['former']
  finally:
    signal.signal(signal.SIGTERM, former)


@pytest.mark.slow
def test_a_run_that_is_to_stop_does_not_evaluate_first(tmp_path):
  evaluated = []
  evaluate = lambda step, _: evaluated.append(step)
  with pytest.raises(preemption.Preempted):
    _train(
        folder=tmp_path, metrics_every_steps=1, evaluate_every_steps=2,
        on_metrics=lambda *_: os.kill(os.getpid(), signal.SIGTERM), evaluate=evaluate,
    )
  assert evaluated == []
  assert _steps(tmp_path) == [2]
  _train(4, folder=tmp_path, evaluate_every_steps=2, evaluate=evaluate)
  assert evaluated == [2, 4]


@pytest.mark.slow
def test_a_run_may_be_in_any_thread():
  states = []
  thread = threading.Thread(target=lambda: states.append(_train()))
  thread.start()
  thread.join()
  _assert_equal(states[0], _uninterrupted()[0])


def _start(folder, num_steps, marks=None, processes=1, mesh=MESH, every=2):
  """Starts processes that train together; returns them."""
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  options = dict(
      folder=str(folder), num_steps=num_steps, marks=marks and str(marks), mesh=mesh,
      processes=processes, port=port, save_every_steps=every,
  )
  environment = {
      **os.environ, 'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(conftest.ROOT),
  }
  return [
      subprocess.Popen(
          [sys.executable, WORKER, json.dumps({**options, 'process': process})],
          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
          cwd=conftest.ROOT,
      )
      for process in range(processes)
  ]


@contextlib.contextmanager
def _running(*arguments, **options):
  """Starts processes, and leaves none of them behind."""
  workers = _start(*arguments, **options)
  try:
    yield workers
  finally:
    for worker in workers:
      worker.kill()
      worker.communicate()


def _wait_until(holds, workers, seconds=120):
  end = time.monotonic() + seconds
  while not holds():
    for worker in workers:
      assert worker.poll() is None, worker.communicate()[1][-3000:]
    assert time.monotonic() < end, 'the worker does not get on'
    time.sleep(0.01)


def _answers(workers):
  """Returns what workers print, once they have ended well."""
  answers = []
  for worker in workers:
    out, err = worker.communicate(timeout=120)
    assert worker.returncode == 0, err[-3000:]
    answers.append(json.loads(out.splitlines()[-1]))
  return answers


def _told(answer):
  return [(step, means) for step, means in answer['told']]


@pytest.mark.slow
def test_a_run_killed_at_any_time_ends_as_if_it_was_not(tmp_path, fast_compilation):
  folder, marks, reached = tmp_path / 'run', tmp_path / 'marks', 0
  marks.mkdir()
  for _ in range(2):
    with _running(folder, 200, marks, every=1) as [worker]:
      begun = len(list(marks.iterdir()))
      _wait_until(lambda n=begun: len(list(marks.iterdir())) > n + 4, [worker])
      time.sleep(random.uniform(0, 0.3))
      worker.kill()
      assert worker.wait() == -signal.SIGKILL
    assert reached < checkpoint.last_step(folder) < 200
    reached = checkpoint.last_step(folder)
  # It repeated at most the steps that were not saved.
  assert len(list(marks.iterdir())) <= reached + 2 * 2
  _assert_equal(_train(reached + 5, folder=folder), _uninterrupted(reached + 5)[0])


@pytest.mark.slow
def test_a_process_that_is_told_to_stop_saves_and_ends_well(
    tmp_path, fast_compilation):
  folder, marks = tmp_path / 'run', tmp_path / 'marks'
  marks.mkdir()
  with _running(folder, 1000, marks, every=1000) as [worker]:
    _wait_until(lambda: len(list(marks.iterdir())) > 4, [worker])
    worker.send_signal(signal.SIGTERM)
    [answer] = _answers([worker])
  [step] = _steps(folder)
  assert answer['preempted'] == (
      f'Told to stop after step {step} of 1000, saved in {folder}'
  )
  assert 4 < step == len(list(marks.iterdir()))
  _, told = _uninterrupted(step + 3)
  assert _told(answer)[:step // 2] == told[:step // 2]
  _assert_equal(_train(step + 3, folder=folder), _uninterrupted(step + 3)[0])


@pytest.mark.slow
# The axis that lies across the processes is data, and then fsdp.
@pytest.mark.parametrize('shape', [(2, 2, 2), (1, 4, 2)])
def test_two_processes_train_as_one(shape, tmp_path, fast_compilation):
  _train(4, (4, 2, 1), folder=tmp_path / 'begun', metrics_every_steps=2)
  answers = {}
  for name in ('run', 'begun'):
    # One run from its start; one resumes from a checkpoint of one process.
    with _running(tmp_path / name, STEPS, processes=2, mesh=shape) as workers:
      answers[name] = _answers(workers)
  expected, told = _uninterrupted()
  for name, first in (('run', 0), ('begun', 2)):
    one, other = map(_told, answers[name])
    assert one == other
    assert [step for step, _ in one] == [step for step, _ in told[first:]]
    for (_, means), (_, alone) in zip(one, told[first:], strict=True):
      for metric, mean in means.items():
        np.testing.assert_allclose(mean, alone[metric], rtol=1e-5)
  for process, answer in enumerate(answers['run']):
    overlap, position = answer['refused']
    assert '1 of them on each of 2 processes: their rows overlap' in overlap
    assert position.startswith('The iterators of the processes differ in their states')
    assert position.endswith(f"here it is {{'next_index': {process}}}")
  # One process resumes from a checkpoint of two processes, on any mesh.
  for name, other in (('run', (1, 1, 1)), ('begun', MESH)):
    assert _steps(tmp_path / name)[-1] == STEPS
    read = functools.partial(_train, shape=other, folder=tmp_path / name)
    _assert_close(jax.device_get(read()), expected)
    _assert_close(jax.device_get(read(14)), _uninterrupted(14)[0])


@pytest.mark.slow
def test_a_signal_to_one_of_two_processes_stops_both(tmp_path, fast_compilation):
  folder, marks = tmp_path / 'run', tmp_path / 'marks'
  marks.mkdir()
  with _running(folder, 1000, marks, processes=2, every=1000) as workers:
    _wait_until(lambda: len(list(marks.iterdir())) > 2 * 4, workers)
    workers[1].send_signal(signal.SIGTERM)
    answers = _answers(workers)
  [step] = _steps(folder)
  for answer in answers:
    assert answer['preempted'].startswith(f'Told to stop after step {step} of 1000')
  assert checkpoint.read_meta(folder)['batches'] == {'next_index': step}
  # Two runs that differ in rounding drift apart; this one ran for longer.
  assert len(list(marks.iterdir())) == 2 * step < 2 * 1000
  state = jax.device_get(_train(step + 3, folder=folder))
  expected, _ = _uninterrupted(step + 3)
  np.testing.assert_allclose(
      state.params['embedding'], expected.params['embedding'], atol=1e-4
  )
