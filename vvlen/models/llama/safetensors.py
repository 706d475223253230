"""Reads tensors, or some of their rows, from safetensors files, local or gs://.

A file consists of the length of its header in 8 bytes; the header, JSON with the dtype,
shape and place of each tensor; and the bytes of the tensors, row by row
(github.com/huggingface/safetensors). The format's own library maps local files into
memory; this module can also read a few rows at a time, and from buckets. No code in
files is executed.

A checkpoint is one such file, model.safetensors, or several of them and
model.safetensors.index.json, whose weight_map lists the file of each tensor.
"""

import json
import math
import os
import re
from typing import Any, NamedTuple

from etils import epath
import ml_dtypes
import numpy as np

DTYPES = {
    'F64': np.dtype(np.float64), 'F32': np.dtype(np.float32),
    'F16': np.dtype(np.float16), 'BF16': np.dtype(ml_dtypes.bfloat16),
}
ONE_FILE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
_FILE_NAME = re.compile(r'[^./\\\0][^/\\\0]*\.safetensors')
_ALIGNED = 64  # bytes; a CPU device uses memory aligned like this without a copy
_COMPARED = 2**24  # bytes of each of two tensors that are compared at a time
_PIECE = 2**24  # bytes that are read at a time: readers of buckets keep a copy of them
_LONGEST_HEADER = 100_000_000  # bytes, as in the format's own library


class Tensor(NamedTuple):
  """The dtype, shape and place of a tensor."""

  path: epath.Path
  name: str
  dtype: str  # as in the file, such as 'BF16'
  shape: tuple[int, ...]
  start: int  # its first byte in the file


def read_header(path: epath.PathLike) -> dict[str, Tensor]:
  """Returns the tensors in a file, by name.

  Raises:
    FileNotFoundError: if there is no file.
    ValueError: if it is not a safetensors file, is damaged, or as `check_link`.
  """
  path = epath.Path(path)
  check_link(path)
  size = path.stat().length
  with path.open('rb') as file:
    start = file.read(8)
    length = int.from_bytes(start, 'little')
    if len(start) < 8 or length > _LONGEST_HEADER:
      raise ValueError(f'{path} is not a safetensors file')
    if 8 + length > size:
      raise ValueError(f'{path} is cut short, or not a safetensors file')
    header = file.read(length)
  try:
    fields = json.loads(header)
    fields.pop('__metadata__', None)
    tensors = [_tensor(path, 8 + length, name, x) for name, x in fields.items()]
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
    raise ValueError(f'{path} is not a safetensors file: damaged header') from error
  end = 8 + length
  for tensor, bytes_ in sorted(tensors, key=lambda x: (x[0].start, x[1])):
    if tensor.start != end:
      raise ValueError(f'{path} is damaged: {tensor.name} does not start where the '
                       'tensor before it ends')
    end += bytes_
  if size != end:
    what = 'cut short' if size < end else 'longer than its header says'
    raise ValueError(f'{path} is {what}: {size} bytes, not {end}')
  return {tensor.name: tensor for tensor, _ in tensors}


def read_headers(folder: epath.PathLike) -> dict[str, Tensor]:
  """Returns the tensors in a checkpoint of one or several files, by name.

  Raises:
    FileNotFoundError: if there is no file, or one that the index names is missing.
    ValueError: if the index or a file is damaged, or a tensor is in two files.
  """
  folder = epath.Path(folder)
  index = folder / INDEX
  if not index.exists():
    if not (folder / ONE_FILE).exists():
      raise FileNotFoundError(
          f'{folder} is not a checkpoint: it has neither {ONE_FILE} nor {INDEX}'
      )
    return read_header(folder / ONE_FILE)
  where = read_json(index).get('weight_map')
  if not isinstance(where, dict) or not where:
    raise ValueError(f'{index} has no weight_map')
  for file in where.values():
    if not isinstance(file, str) or not _FILE_NAME.fullmatch(file):
      raise ValueError(f'{index} names a file that is not a .safetensors file in the '
                       f'same folder: {file!r}')
  found: dict[str, Tensor] = {}
  for file in sorted(set(where.values())):
    if not (folder / file).exists():
      raise FileNotFoundError(f'{folder} has no {file}, which {INDEX} names')
    for name, tensor in read_header(folder / file).items():
      if name in found:
        raise ValueError(f'{folder} has {name} in two files: '
                         f'{found[name].path.name} and {file}')
      found[name] = tensor
  for name, file in where.items():
    if name not in found or found[name].path.name != file:
      raise ValueError(f'{folder / file} has no {name}, but {INDEX} says that it has')
  return found


def check_link(path: epath.PathLike) -> None:
  """Raises ValueError if a checkpoint's file is a link to a place outside its folder.

  Such a link, in a checkpoint from elsewhere, could name any file of this machine.
  Those in the cache of the Hugging Face Hub, from snapshots to blobs, are allowed.
  """
  if '://' in str(path):
    return
  real, folder = os.path.realpath(path), os.path.dirname(os.path.abspath(path))
  roots = [os.path.realpath(folder)]
  if os.path.basename(os.path.dirname(roots[0])) == 'snapshots':
    roots.append(os.path.join(os.path.dirname(os.path.dirname(roots[0])), 'blobs'))
  if not any(real.startswith(os.path.join(root, '')) for root in roots):
    raise ValueError(f'{path} is a link to a place outside its folder, {real}: put a '
                     'copy of the file there')


def read_json(path: epath.Path) -> dict[str, Any]:
  """Reads a JSON object.

  Raises:
    ValueError: if the file is not a JSON object, or as `check_link`, naming it.
  """
  check_link(path)
  try:
    found = json.loads(path.read_text())
  except RecursionError as error:
    raise ValueError(f'{path} is nested too deeply') from error
  except ValueError as error:
    raise ValueError(f'{path} is not JSON') from error
  if not isinstance(found, dict):
    raise ValueError(f'{path} is not a JSON object')
  return found


def dtype_of(tensor: Tensor) -> np.dtype:
  """Returns the NumPy dtype of a tensor.

  Raises:
    ValueError: if it is not one of `DTYPES`.
  """
  if tensor.dtype not in DTYPES:
    raise ValueError(f'{tensor.path}: {tensor.name} is {tensor.dtype}, which is not '
                     f'supported: must be one of {", ".join(DTYPES)}')
  return DTYPES[tensor.dtype]


def read_rows(
    tensor: Tensor, first: int = 0, count: int | None = None
) -> np.ndarray:
  """Reads the rows first..first + count − 1, or all from `first` on if count is None.

  Returns:
    An array [count, ...] whose memory starts at a multiple of 64 bytes.

  Raises:
    OSError: if the file could not be read.
    ValueError: if the dtype is not one of `DTYPES`, or the file is too short.
  """
  dtype = dtype_of(tensor)
  shape, row = tensor.shape, math.prod(tensor.shape[1:]) * dtype.itemsize
  if shape:
    shape = (shape[0] - first if count is None else count, *shape[1:])
  array = empty(shape, dtype)
  memory, size = array.reshape(-1).view(np.uint8), array.nbytes
  with tensor.path.open('rb') as file:
    file.seek(tensor.start + first * row)
    done = 0
    while done < size:
      piece = memory[done:done + _PIECE]
      if hasattr(file, 'readinto'):
        read = file.readinto(piece)
      else:  # such as TensorFlow's readers of buckets
        content = file.read(len(piece))
        read = len(content)
        piece[:read] = np.frombuffer(content, np.uint8)
      if not read:
        raise ValueError(f'{tensor.path} is cut short in {tensor.name}')
      done += read
  return array


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
  """Returns an uninitialized array whose memory starts at a multiple of 64 bytes."""
  size = math.prod(shape) * dtype.itemsize
  memory = np.empty(size + _ALIGNED, np.uint8)
  begin = -memory.ctypes.data % _ALIGNED
  return memory[begin:begin + size].view(dtype).reshape(shape)


def same(one: Tensor, other: Tensor) -> bool:
  """Returns whether two tensors are equal bit by bit; reads a few rows at a time.

  Args:
    one: a tensor with at least one axis.
    other: any tensor.

  Raises:
    OSError: if one could not be read.
    ValueError: as `read_rows`.
  """
  if (one.dtype, one.shape) != (other.dtype, other.shape):
    return False
  row = math.prod(one.shape[1:]) * dtype_of(one).itemsize
  step = max(1, _COMPARED // max(1, row))
  for first in range(0, one.shape[0], step):
    count = min(step, one.shape[0] - first)
    left, right = (read_rows(x, first, count).view(np.uint8) for x in (one, other))
    if not np.array_equal(left, right):
      return False
  return True


def _tensor(
    path: epath.Path, data: int, name: str, fields: dict[str, Any]
) -> tuple[Tensor, int]:
  """Returns one tensor of a header, and its number of bytes."""
  shape, (start, end) = tuple(fields['shape']), fields['data_offsets']
  whole = lambda x: isinstance(x, int) and not isinstance(x, bool) and x >= 0
  if not all(map(whole, (*shape, start, end))) or end < start:
    raise ValueError(f'{name} has no valid shape or place')
  dtype = fields['dtype']
  if dtype in DTYPES and end - start != math.prod(shape) * DTYPES[dtype].itemsize:
    raise ValueError(f'the number of bytes of {name} does not match its shape')
  return Tensor(path, name, dtype, shape, data + start), end - start
