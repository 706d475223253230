"""Numbers of seeds that devices do not divide: no seed notices, and none is added."""

import functools
import os
import pathlib
import subprocess
import sys

import chex
import jax
import numpy as np
import pytest

from tests import test_ensemble as seeds
from tests.conftest import ROOT
from vvlen import sharding
from vvlen.reporting import results
from vvlen.sharding import padding
from vvlen.training import checkpoint, ensemble, seed_checkpoints

SEEDS = 5


def _train(num_devices, folder=None, group_size=1, last=None, name='regression'):
  """Returns the state of five seeds as numpy, and all metrics; stops at step `last`."""
  told = []

  def on_progress(step, metrics):
    told.append(metrics)
    if step == last:
      raise KeyboardInterrupt

  try:
    state = ensemble.train(
        seeds._trainer(name, num_devices, group_size), seeds._keys(count=SEEDS),
        seeds.STEPS, folder=folder, save_every_seconds=0, on_progress=on_progress)
  except KeyboardInterrupt:
    return None, told
  return jax.device_get(state), told


@functools.cache
def _on_one_device(name='regression'):
  return _train(1, name=name)


def _real(state):
  return jax.tree.map(lambda x: x[:SEEDS], state)


@pytest.mark.parametrize(('num_seeds', 'num_devices', 'group_size', 'rows', 'group'), [
    (100, 8, 100, 104, 13),  # 13 on each device, in one group
    (100, 32, 100, 128, 4),
    (100, 256, 100, 256, 1),  # more devices than seeds
    (100, 1, 100, 100, 100),
    (100, 8, 5, 120, 5),  # three groups of 5 on each device
    (8, 2, 3, 8, 2),  # groups of 2 need no padding, and are as few as groups of 3
    (8, 8, 1, 8, 1),
    (8, 3, 1, 9, 1),
    (1, 1, 7, 1, 1),
])
def test_every_device_has_the_same_number_of_equal_groups(
    num_seeds, num_devices, group_size, rows, group):
  assert padding.padded(num_seeds, num_devices, group_size) == rows
  assert padding.group_of(rows // num_devices, group_size) == group
  assert rows % (num_devices * group) == 0 and group <= group_size


@pytest.mark.parametrize(('num_seeds', 'group_size', 'message'), [
    (0, 1, 'num_seeds must be positive: 0'), (4, 0, 'group_size must be positive: 0')])
def test_no_seeds_and_empty_groups_are_refused(num_seeds, group_size, message):
  with pytest.raises(ValueError, match=message):
    padding.padded(num_seeds, 2, group_size)


def test_the_last_seed_fills_what_is_left():
  mesh = seeds._trainer('regression', 8).mesh
  keys = seeds._keys(count=SEEDS)
  tree = {'x': np.arange(10.0).reshape(SEEDS, 2), 'key': keys}
  placed = sharding.put(tree, mesh)
  assert placed['x'].sharding.device_set == set(mesh.devices.flat)
  np.testing.assert_array_equal(placed['x'], tree['x'][[0, 1, 2, 3, 4, 4, 4, 4]])
  assert (placed['key'][SEEDS:] == keys[-1]).all()
  chex.assert_trees_all_equal(sharding.put(placed, mesh), placed)  # nothing to add
  back = sharding.cut(placed, SEEDS, mesh)
  np.testing.assert_array_equal(back['x'], tree['x'])
  assert (back['key'] == keys).all()


@pytest.mark.slow  # of programs as users compile them
@pytest.mark.parametrize('num_devices', [2, 3, 8])
@seeds.both
def test_seeds_are_the_same_bits_on_any_number_of_devices(name, num_devices):
  expected, expected_told = _on_one_device(name)
  state, told = _train(num_devices, name=name)
  chex.assert_trees_all_equal(_real(state), expected)
  chex.assert_trees_all_equal(told, expected_told)
  assert told[0]['loss'].shape == (SEEDS,)


@pytest.mark.parametrize(('num_devices', 'group_size'), [(2, 2), (3, 8), (8, 8)])
def test_larger_groups_change_nothing_but_rounding(num_devices, group_size):
  state, _ = _train(num_devices, group_size=group_size)
  seeds._assert_close(_real(state), _on_one_device()[0])


@pytest.mark.slow
@pytest.mark.parametrize(('before', 'after'), [(3, 8), (8, 1), (1, 2)])
def test_a_run_goes_on_with_another_number_of_devices(tmp_path, before, after):
  _train(before, tmp_path, last=30)
  assert sorted(path.name for path in tmp_path.iterdir()) == ['10', '20']
  state, told = _train(after, tmp_path)
  expected, expected_told = _on_one_device()
  chex.assert_trees_all_equal(_real(state), expected)
  chex.assert_trees_all_equal(told, expected_told[2:])
  # Checkpoints have no rows but those of the seeds.
  like = jax.eval_shape(
      lambda keys: seed_checkpoints.Saved(
          jax.random.key_data(keys), seeds._trainer('regression', 1).start(keys)),
      seeds._keys(count=SEEDS))
  step, saved = checkpoint.restore(
      tmp_path, like, seeds._trainer('regression', 1).mesh)
  assert step == seeds.STEPS
  chex.assert_trees_all_equal(jax.device_get(saved.state), expected)


def _run(num_devices, workdir, *flags, study='linear_attention'):
  """Runs an experiment on so many devices; returns its results.csv and what it says."""
  done = subprocess.run(
      [sys.executable, '-m', f'experiments.{study}', f'--workdir={workdir}', *flags],
      cwd=ROOT, capture_output=True, text=True, check=False, timeout=900,
      env={**os.environ, 'JAX_NUM_CPU_DEVICES': str(num_devices)})
  assert done.returncode == 0, done.stderr
  return (pathlib.Path(workdir) / 'results.csv').read_bytes(), done.stdout


LINEAR = ('--config=configs/linear_attention.py:smoke',
          '--config.train.seeds_at_once=5', '--config.num_seeds=5')
RETRIEVAL = ('--config=configs/retrieval.py:smoke', '--config.train.seeds_at_once=5',
             '--config.num_seeds=5', "--config.arms=('layer_norm',)",
             '--config.model.width=8', '--config.evaluate.lengths=(16,32)',
             '--config.evaluate.histogram_lengths=(16,)')
COUNTING = ('--config=configs/counting.py:smoke_sum', '--config.train.seeds_at_once=5',
            '--config.num_seeds=5', '--config.model.num_layers=1')


@pytest.mark.slow
def test_an_experiment_runs_on_any_number_of_devices(tmp_path, fast_compilation):
  expected, said = _run(1, tmp_path / '1', *LINEAR)
  assert 'places' not in said
  found, said = _run(3, tmp_path / '3', *LINEAR)
  assert found == expected
  assert ('5 seeds at once on 3 devices, 2 on each: 1 of 6 places, 17% of the work, '
          'repeat a seed and are not reported.') in said
  # Without its rows, it measures the checkpoints again, here on other devices.
  (tmp_path / '3' / 'results.csv').unlink()
  assert _run(8, tmp_path / '3', *LINEAR)[0] == expected


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(('study', 'flags'), [
    ('length_generalization', RETRIEVAL), ('counting', COUNTING)])
def test_results_are_the_same_on_any_number_of_devices(
    tmp_path, fast_compilation, study, flags):
  expected, _ = _run(1, tmp_path / '1', *flags, study=study)
  assert _run(3, tmp_path / '3', *flags, study=study)[0] == expected
  curves = [tmp_path / number / 'metrics.jsonl' for number in '13']
  assert len({path.read_text() for path in curves}) == 1
  # With one seed on each device the program has no loop, and may round differently.
  _run(8, tmp_path / '8', *flags, study=study)
  losses, others = ({
      row.key: row.value for row in results.read_rows(tmp_path / number / 'results.csv')
      if row.metric == 'training_loss'} for number in '18')
  assert losses and others == pytest.approx(losses, rel=1e-5)
