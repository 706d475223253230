"""Safetensors files: read as the library reads them, to devices, and checked."""

import json
import threading
import time
import tracemalloc

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors

from tests.llamas import DEEP
from vvlen.models.llama import loading
from vvlen.models.llama import safetensors as safetensors_file
from vvlen.sharding import mesh as partition


@pytest.fixture
def tensor(tmp_path):
  """A float32 tensor [512, 1024] of a file, and what it holds."""
  values = np.arange(512 * 1024, dtype=np.float32).reshape(512, 1024)
  safetensors.save_file({'x': values}, tmp_path / 'x.safetensors')
  return safetensors_file.read_header(tmp_path / 'x.safetensors')['x'], values


@pytest.fixture
def reads(monkeypatch):
  """Arrays' addresses and bytes, of each range of rows that is read."""
  found = []
  real = safetensors_file.read_rows

  def track(*arguments):
    array = real(*arguments)
    found.append((array.ctypes.data, array.nbytes))
    return array

  monkeypatch.setattr(safetensors_file, 'read_rows', track)
  return found


def test_reading_is_that_of_the_library(tmp_path):
  path = tmp_path / 'x.safetensors'
  expected = {'a': np.arange(63, dtype=np.float32).reshape(9, 7),
              'b': np.ones((2, 3, 4), ml_dtypes.bfloat16),
              'c': np.zeros((0, 3), np.float16)}
  safetensors.save_file(expected, path)
  header = safetensors_file.read_header(path)
  assert header.keys() == expected.keys()
  for name, tensor in header.items():
    np.testing.assert_array_equal(safetensors_file.read_rows(tensor), expected[name])
  part = safetensors_file.read_rows(header['a'], 5, 3)
  np.testing.assert_array_equal(part, expected['a'][5:8])
  assert part.ctypes.data % 64 == 0


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize('axes', [(2, 2, 2), (4, 1, 2), (1, 4, 2), (1, 8, 1)])
def test_each_byte_is_read_once_and_held_briefly(tensor, reads, axes, dtype):
  tensor, values = tensor
  spec = PartitionSpec('tensor', 'fsdp')
  sharding = NamedSharding(partition.make_mesh(*axes), spec)
  tracemalloc.start()
  try:
    loaded = loading.read_to_devices(
        {'x': tensor}, {'x': sharding}, np.dtype(dtype))['x']
    peak = tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()
  assert loaded.sharding == sharding and loaded.dtype == dtype
  np.testing.assert_array_equal(loaded, values.astype(dtype))
  assert sum(size for _, size in reads) == values.nbytes
  # CPU devices take over the parts, all of which are the parameter: once, however many
  # devices hold them. Beside it is a range of rows.
  beside = values.nbytes // axes[2]
  assert peak < beside + loaded.nbytes + 500_000


def test_a_device_takes_over_what_is_read_for_it_alone(tensor, reads):
  tensor, values = tensor
  rows = NamedSharding(partition.make_mesh(8), PartitionSpec('data'))
  for sharding in (jax.sharding.SingleDeviceSharding(jax.devices()[3]), rows):
    reads.clear()
    loaded = loading.read_to_devices(
        {'x': tensor}, {'x': sharding}, values.dtype)['x']
    np.testing.assert_array_equal(loaded, values)
    assert {x.data.unsafe_buffer_pointer() for x in loaded.addressable_shards} == {
        address for address, _ in reads}


def test_together_tensors_take_the_room_of_the_largest(tmp_path, monkeypatch):
  values = {name: np.full(size, i, np.float32) for i, (name, size) in enumerate(
      {'a': 64, 'b': 128, 'c': 64, 'd': 64, 'e': 32, 'f': 32}.items())}
  safetensors.save_file(values, tmp_path / 'x.safetensors')
  tensors = safetensors_file.read_header(tmp_path / 'x.safetensors')
  one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  real, lock, held = loading._read, threading.Lock(), []
  most = []

  def slow(tensor, *rest):
    with lock:
      held.append(tensor.shape[0])
      most.append((sum(held), len(held)))
    time.sleep(0.1)
    with lock:
      held.remove(tensor.shape[0])
    return real(tensor, *rest)

  monkeypatch.setattr(loading, '_read', slow)
  monkeypatch.setattr(loading, '_READERS', 4)
  dtype = np.dtype(np.float32)
  loaded = loading.read_to_devices(tensors, dict.fromkeys(tensors, one), dtype)
  sizes, together = zip(*most, strict=True)
  assert max(sizes) == 128 and max(together) > 1 and len(most) == 6
  assert list(loaded) == list(tensors)
  for name, expected in values.items():
    np.testing.assert_array_equal(loaded[name], expected)


def test_a_large_tensor_is_read_in_its_turn(tmp_path, monkeypatch):
  sizes = {'a': 32, 'b': 128, **{f'c{i}': 32 for i in range(12)}}
  safetensors.save_file({name: np.zeros(size, np.float32) for name, size in
                         sizes.items()}, tmp_path / 'x.safetensors')
  tensors = safetensors_file.read_header(tmp_path / 'x.safetensors')
  one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  real, begun = loading._read, []

  def slow(tensor, *rest):
    begun.append(tensor.name)
    time.sleep(0.03)
    return real(tensor, *rest)

  monkeypatch.setattr(loading, '_read', slow)
  monkeypatch.setattr(loading, '_READERS', 4)
  loading.read_to_devices(
      {name: tensors[name] for name in sizes}, dict.fromkeys(sizes, one),
      np.dtype(np.float32))
  # The readers that are there with it may come before.
  assert begun.index('b') <= 3 and len(begun) == 14


def test_of_several_tensors_one_that_fails_ends_all(tmp_path, monkeypatch):
  values = {name: np.zeros(8, np.float32) for name in 'abcdefgh'}
  path = tmp_path / 'x.safetensors'
  safetensors.save_file(values, path)
  tensors = safetensors_file.read_header(path)
  one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  tried = []
  real = loading._read

  def fail(tensor, *rest):
    tried.append(tensor.name)
    if tensor.name == 'b':
      raise OSError('the disk is gone')
    time.sleep(tensor.name > 'b')  # in this second the error is seen
    return real(tensor, *rest)

  monkeypatch.setattr(loading, '_read', fail)
  monkeypatch.setattr(loading, '_READERS', 2)
  with pytest.raises(OSError, match='the disk is gone'):
    loading.read_to_devices(tensors, dict.fromkeys(tensors, one), np.dtype(np.float32))
  assert len(tried) < 8


def test_headers_that_lie_are_refused(tmp_path):
  path = tmp_path / 'x.safetensors'

  def write(header, data=b'12345678'):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, 'little') + text + data)

  right = {'dtype': 'F32', 'shape': [2], 'data_offsets': [0, 8]}
  write({'a': right})
  assert safetensors_file.read_header(path)['a'].shape == (2,)
  for wrong, says in [
      ({'a': {**right, 'shape': [3]}}, 'damaged header'),
      ({'a': {**right, 'shape': [-2]}}, 'damaged header'),
      ({'a': {**right, 'data_offsets': [0, 80]}}, 'damaged header'),
      ({'a': {**right, 'shape': [1], 'data_offsets': [4, 8]}}, 'does not start where'),
      ({'a': right, 'b': right}, 'does not start where'),
      ({'a': {**right, 'shape': [1], 'data_offsets': [0, 4]}}, 'longer than its h'),
      ({'a': {'dtype': 'F32'}}, 'damaged header'),
      (['a'], 'damaged header'),
      (b'\xff\xfe', 'damaged header'),
      (DEEP.encode(), 'x.safetensors is not a safetensors file: damaged header'),
  ]:
    write(wrong)
    with pytest.raises(ValueError, match=says):
      safetensors_file.read_header(path)
