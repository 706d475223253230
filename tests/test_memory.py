"""Groups of seeds that do not fit into memory are halved, and it is said."""

import types

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
import numpy as np
import pytest

from experiments.compile import chips, measure
from tests import test_ensemble, test_padding
from vvlen import sharding
from vvlen.reporting import results
from vvlen.sharding import memory

_WIDTH = 256


@pytest.fixture(autouse=True)
def saying_again():
  memory._say.cache_clear()


def _mesh(num_devices, devices=None):
  return jax.make_mesh((num_devices,), ('seed',), axis_types=(AxisType.Auto,),
                       devices=(devices or jax.devices())[:num_devices])


def _large(x):
  """Needs some W² floats of memory for a seed."""
  # So that the square is not computed piece by piece as it is summed.
  return jax.lax.optimization_barrier(jnp.sin(jnp.outer(x, x))).mean()


def _needs(group, rows, num_devices):
  run = sharding.over_seeds(_large, _mesh(num_devices), group)
  return memory._needed(run, (jnp.ones((rows, _WIDTH)),))


@pytest.mark.parametrize(('rows', 'num_devices', 'fits'), [
    (8, 1, 4), (8, 1, 2), (8, 1, 1), (16, 2, 4), (13, 1, 5)])
def test_a_group_that_does_not_fit_is_halved(rows, num_devices, fits, capsys):
  x = jax.random.normal(jax.random.key(0), (rows, _WIDTH))
  x = sharding.put(x, _mesh(num_devices), rows)
  wanted = rows // num_devices
  limit = int(_needs(fits, rows, num_devices)) + 1 if fits > 1 else 0
  assert _needs(wanted, rows, num_devices) > limit
  run = sharding.over_seeds(_large, _mesh(num_devices), rows, limit=limit)
  found = run(x)
  np.testing.assert_allclose(found, jax.vmap(_large)(x), rtol=1e-5)
  line, = capsys.readouterr().out.splitlines()
  assert line.startswith(f'Groups of {wanted} seeds need ')
  assert f' MiB of the {limit} MiB that a device has' in line
  assert f': groups of {fits} are used, with which results may differ' in line
  program = run.lower(x).as_text()
  square = f'x{_WIDTH}x{_WIDTH}xf32>'
  tensors = f'tensor<{fits}{square}', f'tensor<{wanted}{square}'
  assert fits == 1 or tensors[0] in program
  assert tensors[1] not in program
  run(x + 1)
  assert not capsys.readouterr().out  # it is chosen once


def test_a_group_that_fits_stays_as_it_is(capsys):
  x = jnp.ones((8, _WIDTH))
  plain = sharding.over_seeds(_large, _mesh(1), 8)
  limited = sharding.over_seeds(_large, _mesh(1), 8, limit=100_000)
  np.testing.assert_array_equal(limited(x), plain(x))
  assert jax.eval_shape(limited, x) == jax.eval_shape(plain, x)
  assert not capsys.readouterr().out


def test_on_a_cpu_there_is_no_limit():
  assert memory.memory_limit(_mesh(2)) is None
  assert not isinstance(sharding.over_seeds(_large, _mesh(1), 8), memory.Fitting)


@pytest.mark.parametrize(('stats', 'limit'), [
    ([{'bytes_limit': 2**34}, {'bytes_limit': 2**30}], 921), ([None, None], None),
    ([{'bytes_limit': 2**34}, {}], None)])
def test_the_limit_is_a_share_of_the_device_that_has_least(stats, limit):
  devices = np.array([
      types.SimpleNamespace(platform='gpu', memory_stats=lambda x=x: x) for x in stats])
  mesh = types.SimpleNamespace(devices=devices, local_devices=list(devices))
  assert memory.memory_limit(mesh) == limit


@pytest.mark.slow
def test_a_run_goes_on_where_groups_must_be_smaller(tmp_path, monkeypatch, capsys):
  expected, _ = test_padding._train(1)
  test_padding._train(1, tmp_path, group_size=5, last=30)
  assert not capsys.readouterr().out
  monkeypatch.setattr(memory, 'memory_limit', lambda mesh: 0)
  state, _ = test_padding._train(2, tmp_path, group_size=5)
  test_ensemble._assert_close(test_padding._real(state), expected)
  assert 'Groups of 3 seeds need ' in capsys.readouterr().out


def test_an_experiment_runs_in_as_large_groups_as_fit(tmp_path, run_here, monkeypatch):
  monkeypatch.setattr(memory, 'memory_limit', lambda mesh: 0)
  # An odd number of seeds at once: one device.
  done = run_here(
      'linear_attention', f'--workdir={tmp_path}/run',
      '--config=configs/linear_attention.py:smoke', '--config.train_lengths=(5,)',
      "--config.tasks=('mean',)",
      '--config.train.group_size=2', '--config.num_seeds=3',
      '--config.train.seeds_at_once=3')
  assert done.returncode == 0, done.stderr
  assert 'Groups of 2 seeds need ' in done.stdout
  rows = results.read_rows(tmp_path / 'run/results.csv')
  assert {row.seed for row in rows if row.metric == 'training_loss'} == {0, 1, 2}


@pytest.mark.slow
def test_the_compiler_of_tpus_refuses_what_does_not_fit_and_the_group_is_halved(capsys):
  pytest.importorskip(
      'libtpu', reason="needs the compiler of TPUs: pip install '.[compile]'")
  devices = measure.devices_of(chips.slice_of('v5e:2x2'))
  mesh = _mesh(4, list(devices))
  # 1 GiB for each square; a chip has 16.
  x = jax.ShapeDtypeStruct(
      (64, 2**14), jnp.float32, sharding=jax.NamedSharding(
          mesh, jax.sharding.PartitionSpec('seed')))
  assert memory.memory_limit(mesh) is None  # it is only compiled for
  run = sharding.over_seeds(_large, mesh, 16, limit=14_000)
  program = run.lower(x).compile()
  assert program.memory_analysis().temp_size_in_bytes < 14_000 * 2**20
  assert 'Groups of 16 seeds need more than the 14,000 MiB' in capsys.readouterr().out
