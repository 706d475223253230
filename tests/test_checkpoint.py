"""Checkpoints: two are kept, damage is found, and the one before is then used."""

import functools
import random
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import run_two_processes
from vvlen import sharding
from vvlen.training import checkpoint, checksums


def _state(step):
  numbers = np.random.default_rng(step).normal(size=(8, 997)).astype(np.float32)
  return {'w': numbers, 'half': numbers[:, :5].astype(jnp.bfloat16),
          'count': np.full(8, step, np.int32)}


_LIKE = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), _state(0))


def _saved(folder, *steps):
  for step in steps:
    checkpoint.save(folder, step, _state(step), {'position': step})


def _restored(folder):
  step, state = checkpoint.restore(folder, _LIKE, sharding.seed_mesh())
  chex.assert_trees_all_equal(jax.device_get(state), _state(step))
  return step


def _largest(folder):
  files = (path for path in folder.rglob('*') if path.is_file())
  return max(files, key=lambda path: path.stat().st_size)


def _flip(path, generator):
  content = bytearray(path.read_bytes())
  bit = generator.randrange(len(content) * 8)
  content[bit // 8] ^= 1 << bit % 8
  path.write_bytes(content)


def test_the_last_two_are_kept(tmp_path):
  _saved(tmp_path, 3, 5, 9)
  assert sorted(path.name for path in tmp_path.iterdir()) == ['5', '9']
  assert checkpoint.last_step(tmp_path) == _restored(tmp_path) == 9
  assert checkpoint.read_meta(tmp_path) == {'position': 9}


@pytest.mark.parametrize('seed', range(6))
def test_a_flipped_bit_is_found_and_the_checkpoint_before_is_used(
    seed, tmp_path, capsys
):
  _saved(tmp_path, 5, 9)
  _flip(_largest(tmp_path / '9'), random.Random(seed))
  assert _restored(tmp_path) == 5
  assert capsys.readouterr().err == (
      f'Damaged checkpoint {tmp_path}/9: renamed to 9.damaged. The one of step 5 is '
      'used.\n')
  assert checkpoint.last_step(tmp_path) == 5
  assert checkpoint.read_meta(tmp_path) == {'position': 5}
  _saved(tmp_path, 9)  # as training does that goes on
  assert _restored(tmp_path) == 9
  assert capsys.readouterr().err == ''
  _flip(_largest(tmp_path / '9'), random.Random(seed))
  assert _restored(tmp_path) == 5  # the name is taken, by an older one


_OF_TWO = """
import os, pathlib, sys
import jax
jax.distributed.initialize(
    os.environ['JAX_COORDINATOR_ADDRESS'], 2, int(os.environ['JAX_PROCESS_ID']))
import numpy as np
from jax.experimental import multihost_utils
from vvlen import sharding
from vvlen.training import checkpoint

folder, mesh = sys.argv[1], sharding.seed_mesh()
numbers = lambda step: np.random.default_rng(step).normal(size=(2, 9999))
for step in (5, 9):
  checkpoint.save(folder, step, sharding.put({'w': numbers(step)}, mesh, 1))
if jax.process_index() == 0:
  for path in pathlib.Path(folder).glob('9/default/ocdbt.process_1/d/*'):
    path.unlink()
multihost_utils.sync_global_devices('damaged')
like = {'w': jax.ShapeDtypeStruct((2, 9999), np.float32)}
step, state = checkpoint.restore(folder, like, mesh)
same = np.array_equal(sharding.fetch(state)['w'], numbers(5).astype(np.float32))
print('restored', step, same)
"""


def test_processes_leave_a_checkpoint_together_that_one_cannot_read(tmp_path):
  said = run_two_processes([sys.executable, '-c', _OF_TWO, str(tmp_path)], 1,
                           seconds=120)
  assert all('restored 5 True' in text for text in said), said
  line = f'Damaged checkpoint {tmp_path}/9: renamed to 9.damaged. The one of step 5'
  assert said[0].count(line) == 1 and line not in said[1]


@pytest.mark.parametrize(('error', 'of_network'), [
    (ConnectionResetError('connection reset by peer'), True),
    # As TensorStore says it.
    (ValueError('ABORTED: Error writing gs://bucket/x: All 32 retry attempts failed: '
                'HTTP response code: 503'), True),
    (ValueError('ABORTED: Gloo all-reduce failed: connection closed by peer'), False),
    (jax.errors.JaxRuntimeError('UNAVAILABLE: another process has ended'), False),
    (ValueError('Permission denied'), False),
])
def test_a_network_that_fails_while_saving_is_told_from_other_errors(
    tmp_path, monkeypatch, error, of_network):

  def fail(folder):
    raise error

  monkeypatch.setattr(checkpoint, '_manager', fail)
  with pytest.raises(OSError, match=r'Could not save the checkpoint .*/3: ') as raised:
    checkpoint.save(tmp_path, 3, {'x': np.ones(2)})
  assert isinstance(raised.value, ConnectionError) == of_network


@pytest.mark.parametrize('error', [
    ConnectionResetError('reset by peer'), TimeoutError('no answer'),
    ValueError('UNAVAILABLE: the bucket does not answer'),
    RuntimeError('Timed out while reading')])
def test_a_network_that_fails_damages_no_checkpoint(tmp_path, monkeypatch, error):
  _saved(tmp_path, 5, 9)

  def fail(*_, **__):
    raise error

  with monkeypatch.context() as patch:
    patch.setattr(checkpoint.ocp.CheckpointManager, 'restore', fail)
    with pytest.raises(OSError):
      checkpoint.restore(tmp_path, _LIKE, sharding.seed_mesh())
  assert not list(tmp_path.glob('*.damaged'))
  assert _restored(tmp_path) == 9


def test_if_all_are_damaged_the_last_is_named_and_nothing_renamed(tmp_path):
  _saved(tmp_path, 5, 9)
  for step in ('5', '9'):
    _flip(_largest(tmp_path / step), random.Random(0))
  with pytest.raises(ValueError, match=r'^Damaged checkpoint .*/9(: its arrays differ '
                     r'from those that were saved)?\. Delete the folder to train agai'):
    _restored(tmp_path)
  assert sorted(path.name for path in tmp_path.iterdir()) == ['5', '9']


def test_what_is_beside_the_arrays_has_a_checksum_too(tmp_path, capsys):
  _saved(tmp_path, 5, 9)
  path = tmp_path / '9/meta/metadata'
  path.write_text(path.read_text().replace('9', '8'))
  assert checkpoint.read_meta(tmp_path) == {'position': 5}
  assert _restored(tmp_path) == 5
  assert capsys.readouterr().err.count('\n') == 1


def test_a_renamed_checkpoint_is_not_of_its_new_step(tmp_path, capsys):
  _saved(tmp_path, 10)
  (tmp_path / '10').rename(tmp_path / '5')
  with pytest.raises(ValueError, match=r'checkpoint .*/5: it is of step 10\. Delete'):
    _restored(tmp_path)
  with pytest.raises(ValueError, match=r'checkpoint .*/5: it is of step 10\. Delete'):
    checkpoint.read_meta(tmp_path)
  (tmp_path / '5').rename(tmp_path / '12')
  _saved(tmp_path, 14)
  (tmp_path / '12').rename(tmp_path / '20')
  assert _restored(tmp_path) == 14
  assert 'renamed to 20.damaged' in capsys.readouterr().err


def test_a_checkpoint_of_another_state_is_no_reason_to_use_the_one_before(tmp_path):
  checkpoint.save(tmp_path, 5, _state(5))
  checkpoint.save(tmp_path, 9, {'w': _state(9)['w']})
  with pytest.raises(ValueError, match='/9 is not of this run'):
    _restored(tmp_path)
  assert checkpoint.last_step(tmp_path) == 9


def test_checkpoints_of_earlier_versions_have_no_checksums(tmp_path):
  args = checkpoint.ocp.args
  with checkpoint._manager(tmp_path) as manager:
    manager.save(5, args=args.Composite(
        default=args.StandardSave(_state(5)), meta=args.JsonSave({'position': 5})))
  assert not (tmp_path / '5/checksums').exists()
  assert _restored(tmp_path) == 5
  assert checkpoint.read_meta(tmp_path) == {'position': 5}


@pytest.mark.parametrize('dtype', [
    'float32', 'float16', 'bfloat16', 'int32', 'uint8', 'bool', 'complex64'])
def test_a_checksum_depends_on_each_bit_and_place(dtype):
  array = np.random.default_rng(0).integers(0, 2, (3, 5, 7)).astype(jnp.dtype(dtype))
  sums = functools.partial(checksums.of_arrays)
  found = {tuple(sums([array]))}
  swapped = array.copy()
  swapped[0], swapped[1] = array[1], array[0]
  found.add(tuple(sums([swapped])))
  raw = array.tobytes()
  bits = range(8 * array.itemsize) if dtype != 'bool' else [0]
  for bit in bits:  # of one element in the middle
    content = bytearray(raw)
    content[52 * array.itemsize + bit // 8] ^= 1 << bit % 8
    changed = np.frombuffer(bytes(content), array.dtype).reshape(array.shape)
    found.add(tuple(sums([changed])))
  assert len(found) == 2 + len(bits)


def test_checksums_do_not_depend_on_the_devices():
  array = np.random.default_rng(0).normal(size=(8, 24)).astype(np.float32)
  found = {tuple(checksums.of_arrays([sharding.put(array, mesh)])) for mesh in (
      jax.make_mesh((n,), ('seed',), devices=jax.devices()[:n],
                    axis_types=(jax.sharding.AxisType.Auto,)) for n in (1, 2, 8))}
  assert found == {tuple(checksums.of_arrays([array]))}
