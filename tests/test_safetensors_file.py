"""Safetensors files: read as the library reads them, to devices, and checked."""

import json
import tracemalloc

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors

from tests.llamas import DEEP
from vvlen import partition
from vvlen.models import safetensors_file


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
    loaded = safetensors_file.read_to_devices(tensor, sharding, np.dtype(dtype))
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
    loaded = safetensors_file.read_to_devices(tensor, sharding, values.dtype)
    np.testing.assert_array_equal(loaded, values)
    assert {x.data.unsafe_buffer_pointer() for x in loaded.addressable_shards} == {
        address for address, _ in reads}


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
      ({'a': {**right, 'shape': [1], 'data_offsets': [4, 8]}}, 'not where the last'),
      ({'a': right, 'b': right}, 'not where the last ends'),
      ({'a': {**right, 'shape': [1], 'data_offsets': [0, 4]}}, 'longer than its h'),
      ({'a': {'dtype': 'F32'}}, 'damaged header'),
      (['a'], 'damaged header'),
      (b'\xff\xfe', 'damaged header'),
      (DEEP.encode(), 'x.safetensors is not a safetensors file: damaged header'),
  ]:
    write(wrong)
    with pytest.raises(ValueError, match=says):
      safetensors_file.read_header(path)
