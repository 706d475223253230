"""Reads tensors of safetensors files directly to their devices, several at a time."""

import collections
from collections.abc import Collection, Iterable, Iterator
import concurrent.futures
import contextlib
import math
import os
import threading

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from vvlen.models.llama import safetensors as safetensors_file
from vvlen.models.llama.safetensors import Tensor

# Threads: one per core, to copy from the system's cache; several speed up networks too.
_READERS = min(8, os.cpu_count() or 1)


def read_to_devices(
    tensors: dict[str, Tensor],
    shardings: dict[str, jax.sharding.Sharding],
    dtype: np.dtype,
    transposed: Collection[str] = (),
) -> dict[str, jax.Array]:
  """Reads tensors to their devices, each row that this process holds once.

  Data that is read but not yet on a device never exceeds the largest range of rows that
  a device holds, plus copies of ranges that are split by columns or cast. A range that
  a CPU device holds as it is in the file is not copied. After an error, only tensors
  whose reading has begun are read to the end.

  Args:
    tensors: by name, each with at least one axis.
    shardings: of the arrays, by the same names.
    dtype: of the arrays.
    transposed: names of tensors of two axes whose arrays are their transposes.

  Returns:
    The arrays, by the same names.

  Raises:
    OSError: if a tensor could not be read.
    ValueError: as `safetensors_file.read_rows`.
  """
  parts = {name: _parts(x, shardings[name], name in transposed)
           for name, x in tensors.items()}
  sizes = {name: _largest(tensors[name], x) for name, x in parts.items()}
  room = _Room(max(sizes.values(), default=0))

  def read(name: str) -> jax.Array:
    with room.taken(sizes[name]):
      return _read(
          tensors[name], shardings[name], dtype, parts[name], name in transposed)

  with concurrent.futures.ThreadPoolExecutor(_READERS) as readers:
    return dict(zip(tensors, readers.map(read, tensors), strict=True))


# {(first, end) of a tensor's rows: {(first, end) along each other axis: devices}}
_Parts = dict[tuple[int, int], dict[tuple[tuple[int, int], ...], list[jax.Device]]]


def _parts(
    tensor: Tensor, sharding: jax.sharding.Sharding, transposed: bool
) -> _Parts:
  """Returns which devices of this process hold which part of the tensor."""
  parts: _Parts = {}
  order = -1 if transposed else 1
  devices = sharding.addressable_devices_indices_map(tensor.shape[::order])
  for device, index in devices.items():
    whole = (slice(None),) * len(tensor.shape)
    rows, *others = (cut.indices(size)[:2] for cut, size in zip(
        (index or whole)[::order], tensor.shape, strict=True))
    parts.setdefault(rows, {}).setdefault(tuple(others), []).append(device)
  return parts


def _largest(tensor: Tensor, parts: _Parts) -> int:
  """Returns the bytes of the largest range of rows."""
  row = math.prod(tensor.shape[1:]) * safetensors_file.dtype_of(tensor).itemsize
  return max((end - first for first, end in parts), default=0) * row


def _read(
    tensor: Tensor, sharding: jax.sharding.Sharding, dtype: np.dtype, parts: _Parts,
    transposed: bool,
) -> jax.Array:
  """Reads a tensor, or its transpose, one range of the tensor's rows at a time."""
  placed: dict[jax.Device, jax.Array] = {}
  for (first, end), by_columns in sorted(parts.items()):
    held = safetensors_file.read_rows(tensor, first, end - first)
    for others, holders in by_columns.items():
      part = held[(slice(None), *(slice(*cut) for cut in others))]
      if part.shape != held.shape or part.dtype != dtype:
        copy = safetensors_file.empty(part.shape, dtype)
        copy[...] = part
        part = copy
      for device in holders:
        on = jax.sharding.SingleDeviceSharding(device, memory_kind=sharding.memory_kind)
        # JAX transposes in blocks, several times as fast as numpy.
        placed[device] = jax.device_put(part.T if transposed else part, on)
      # Once all devices have the part, the host's memory can be used for the next.
      jax.block_until_ready([placed[device] for device in holders])
    del held, part
  # JAX requires the arrays in this order of devices.
  shape = tensor.shape[::-1] if transposed else tensor.shape
  devices = sharding.addressable_devices_indices_map(shape)
  return jax.make_array_from_single_device_arrays(
      shape, sharding, [placed[device] for device in devices], dtype=dtype)


def of_one_layer(sharding: jax.sharding.Sharding) -> jax.sharding.Sharding:
  """Returns the sharding of one layer of a parameter [layers, ...] that is stacked.

  Raises:
    ValueError: if layers are sharded over devices.
  """
  if not isinstance(sharding, NamedSharding):
    return sharding
  rest = sharding.spec[1:]
  if sharding.spec and sharding.spec[0] is not None:
    raise ValueError(f'stacked layers must not be sharded over devices: {sharding}')
  return NamedSharding(
      sharding.mesh, PartitionSpec(*rest), memory_kind=sharding.memory_kind)


def stack(
    layers: Iterable[jax.Array], sharding: jax.sharding.Sharding
) -> jax.Array:
  """Stacks arrays along a new first axis, also under a mesh (jax.set_mesh)."""
  return jax.jit(lambda *x: jnp.stack(x), out_shardings=sharding)(*layers)


class _Room:
  """A budget of bytes that threads share, first come, first served."""

  def __init__(self, size: int):
    self._free = size
    self._waiting: collections.deque[object] = collections.deque()
    self._changed = threading.Condition()

  @contextlib.contextmanager
  def taken(self, size: int) -> Iterator[None]:
    """Takes `size` bytes, at most the budget, when free; releases them after use."""
    own = object()
    with self._changed:
      self._waiting.append(own)
      self._changed.wait_for(
          lambda: self._waiting[0] is own and self._free >= size)
      self._waiting.popleft()
      self._free -= size
      self._changed.notify_all()
    try:
      yield
    finally:
      with self._changed:
        self._free += size
        self._changed.notify_all()
