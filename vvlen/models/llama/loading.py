"""Reads tensors of safetensors files straight to their devices, several at a time."""

import collections
from collections.abc import Iterator
import concurrent.futures
import contextlib
import math
import os
import threading

import jax
import numpy as np

from vvlen.models.llama import safetensors as safetensors_file
from vvlen.models.llama.safetensors import Tensor

# One a core, to copy out of the system's cache; of a network several are faster.
_READERS = min(8, os.cpu_count() or 1)


def read_to_devices(
    tensors: dict[str, Tensor],
    shardings: dict[str, jax.sharding.Sharding],
    dtype: np.dtype,
) -> dict[str, jax.Array]:
  """Reads tensors to their devices, each row that this process is to hold once.

  What is read and not placed yet is no more than the largest range of rows that a
  device holds, or, of each tensor that is cut by columns or cast, that and its copy. A
  range that a CPU device holds as it is in the file is not copied. Once one could not
  be read, only those are read on that were begun.

  Args:
    tensors: by name, each of at least one axis.
    shardings: of the arrays, by the same names.
    dtype: of the arrays.

  Raises:
    OSError: if one could not be read.
    ValueError: as `safetensors_file.read_rows`.
  """
  parts = {name: _parts(x, shardings[name]) for name, x in tensors.items()}
  sizes = {name: _largest(tensors[name], x) for name, x in parts.items()}
  room = _Room(max(sizes.values(), default=0))

  def read(name: str) -> jax.Array:
    with room.taken(sizes[name]):
      return _read(tensors[name], shardings[name], dtype, parts[name])

  with concurrent.futures.ThreadPoolExecutor(_READERS) as readers:
    return dict(zip(tensors, readers.map(read, tensors), strict=True))


# {(first, end) of rows: {(first, end) along each other axis: devices}}
_Parts = dict[tuple[int, int], dict[tuple[tuple[int, int], ...], list[jax.Device]]]


def _parts(tensor: Tensor, sharding: jax.sharding.Sharding) -> _Parts:
  """Returns which devices of this process hold what."""
  parts: _Parts = {}
  devices = sharding.addressable_devices_indices_map(tensor.shape)
  for device, index in devices.items():
    whole = (slice(None),) * len(tensor.shape)
    rows, *others = (cut.indices(size)[:2] for cut, size in zip(
        index or whole, tensor.shape, strict=True))
    parts.setdefault(rows, {}).setdefault(tuple(others), []).append(device)
  return parts


def _largest(tensor: Tensor, parts: _Parts) -> int:
  """Returns the bytes of the largest range of rows."""
  row = math.prod(tensor.shape[1:]) * safetensors_file.dtype_of(tensor).itemsize
  return max((end - first for first, end in parts), default=0) * row


def _read(
    tensor: Tensor, sharding: jax.sharding.Sharding, dtype: np.dtype, parts: _Parts
) -> jax.Array:
  """Reads a tensor, one range of rows after the other."""
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
        placed[device] = jax.device_put(part, on)
      # The host's memory is free for the next part when all have it.
      jax.block_until_ready([placed[device] for device in holders])
    del held, part
  # In the order that JAX asks for.
  devices = sharding.addressable_devices_indices_map(tensor.shape)
  return jax.make_array_from_single_device_arrays(
      tensor.shape, sharding, [placed[device] for device in devices], dtype=dtype)


class _Room:
  """Bytes that threads share, first come, first served."""

  def __init__(self, size: int):
    self._free = size
    self._waiting: collections.deque[object] = collections.deque()
    self._changed = threading.Condition()

  @contextlib.contextmanager
  def taken(self, size: int) -> Iterator[None]:
    """Waits for `size` bytes, no more than there are, and gives them back after."""
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
