"""Tokens of many documents; no process holds more of them than it reads.

Long texts are encoded once, into a file that all processes of a machine map into their
memory. Axes: D documents.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import os
import pathlib
from typing import NamedTuple, overload

import numpy as np

from vvlen.tasks.tokenizers import Tokenizer

_TRAILER = 4  # int64: a word that marks the file, tokens, documents, bytes of a token
_MARK = 0x316E656C7676  # 'vvlen1'


class Encoded(NamedTuple):
  """The tokens of documents, one after another."""

  tokens: np.ndarray  # [n] uint16 or int32; may be a file
  ends: np.ndarray  # [D] int64, the place after the last token of each document


def encode(documents: Iterable[str], tokenizer: Tokenizer) -> Encoded:
  """Encodes documents, and holds all their tokens."""
  ends, parts = array('q'), [np.empty(0, narrowest(tokenizer))]
  for text in documents:
    parts.append(tokenizer.encode(text).astype(parts[0].dtype))
    ends.append((ends[-1] if ends else 0) + len(parts[-1]))
  return Encoded(np.concatenate(parts), np.frombuffer(ends, np.int64))


def encode_once(
    documents: Callable[[], Iterable[str]], tokenizer: Tokenizer,
    path: str | os.PathLike[str],
) -> Encoded:
  """Encodes documents into a file, unless it is there, and maps the file.

  The file gets its name when it is complete. A file whose size is not the one that it
  states is written again. Of several processes on a machine one writes, the others
  wait.

  Args:
    documents: returns the documents; called if they must be encoded.
    tokenizer: by which to encode them.
    path: of the file, local. It must name the documents and the tokenizer.

  Raises:
    OSError: if the file cannot be written. Also raises the errors of `documents` and of
      the tokenizer; no file is left then.
  """
  path = pathlib.Path(path)
  if found := _map(path):
    return found
  path.parent.mkdir(parents=True, exist_ok=True)
  with _locked(path.with_suffix('.lock')) as alone:
    if found := _map(path):
      return found
    temporary = path.with_suffix('.tmp' if alone else f'.{os.getpid()}.tmp')
    try:
      _write(temporary, documents(), tokenizer)
      os.replace(temporary, path)
    finally:
      temporary.unlink(missing_ok=True)
  found = _map(path)
  assert found is not None
  return found


def narrowest(tokenizer: Tokenizer) -> type[np.integer]:
  """Returns the narrowest dtype that holds all tokens."""
  return np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32


def _write(
    path: pathlib.Path, documents: Iterable[str], tokenizer: Tokenizer
) -> None:
  """Writes tokens, padded to 8 bytes, ends and trailer."""
  dtype, ends, count = np.dtype(narrowest(tokenizer)), array('q'), 0
  with path.open('wb') as file:
    for text in documents:
      tokens = tokenizer.encode(text)
      count += len(tokens)
      ends.append(count)
      file.write(tokens.astype(dtype).tobytes())
    file.write(bytes(-count * dtype.itemsize % 8))
    file.write(ends.tobytes())
    file.write(array('q', [_MARK, count, len(ends), dtype.itemsize]).tobytes())
    file.flush()
    os.fsync(file.fileno())


def _map(path: pathlib.Path) -> Encoded | None:
  """Maps a file of `_write`; returns None if there is none, or it is not complete."""
  size = path.stat().st_size if path.exists() else 0
  if size < 8 * _TRAILER or size % 8:
    return None
  words = np.memmap(path, np.int64, 'r')
  mark, count, documents, itemsize = words[-_TRAILER:].tolist()
  if mark != _MARK or itemsize not in (2, 4):
    return None
  first = -(-count * itemsize // 8)  # word of the ends
  ends = words[first:first + documents]
  if size != 8 * (first + documents + _TRAILER) or (documents and ends[-1] != count):
    return None
  dtype = {2: np.uint16, 4: np.int32}[itemsize]
  return Encoded(words.view(dtype)[:count], ends)


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[bool]:
  """Waits for a lock between processes; yields whether the system has given it."""
  with path.open('w') as file:
    try:
      import fcntl  # not available on Windows

      fcntl.flock(file, fcntl.LOCK_EX)
    except (ImportError, OSError):  # some file systems have no locks
      yield False
    else:
      yield True


class Documents(Sequence[np.ndarray]):
  """Some of the documents of a text, in an order; each is read when it is asked for."""

  def __init__(self, encoded: Encoded, numbers: np.ndarray):
    """Chooses documents by number, [k] int64."""
    self._encoded, self._numbers = encoded, np.asarray(numbers, np.int64)

  def __len__(self):
    return len(self._numbers)

  @overload
  def __getitem__(self, index: int) -> np.ndarray: ...

  @overload
  def __getitem__(self, index: slice) -> 'Documents': ...

  def __getitem__(self, index):
    if isinstance(index, slice):
      return Documents(self._encoded, self._numbers[index])
    return self.read(index, 0, int(self.lengths_of(self._numbers[index])))

  def read(self, index: int, start: int, stop: int) -> np.ndarray:
    """Returns tokens start..stop-1 of a document, int32, without reading the others."""
    number = self._numbers[index]
    begin = int(self._encoded.ends[number - 1]) if number else 0
    return self._encoded.tokens[begin + start:begin + stop].astype(np.int32)

  @property
  def lengths(self) -> np.ndarray:
    """The number of tokens of each, [k] int64."""
    return self.lengths_of(self._numbers)

  def lengths_of(self, numbers: np.ndarray) -> np.ndarray:
    """Returns the number of tokens of documents of the text, int64."""
    ends = self._encoded.ends
    return ends[numbers] - np.where(numbers > 0, ends[numbers - 1], 0)


class Stream:
  """Documents joined, each after the token `begin` unless None; holds 8 bytes for each.

  Slices of it are [n] int32, read when asked for.
  """

  def __init__(self, documents: Documents, begin: int | None):
    self._documents = documents
    self._first = np.array([] if begin is None else [begin], np.int32)
    self._ends = np.cumsum(documents.lengths + len(self._first))

  def __len__(self):
    return int(self._ends[-1]) if len(self._ends) else 0

  def __getitem__(self, index: slice) -> np.ndarray:
    begin, stop, step = index.indices(len(self))
    if step != 1:
      raise ValueError(f'a stream is read forwards, without gaps: {index}')
    parts, place = [self._first[:0]], begin
    number = int(np.searchsorted(self._ends, begin, side='right'))
    while place < stop:
      end, extra = int(self._ends[number]), len(self._first)
      start = int(self._ends[number - 1]) if number else 0
      if place < start + extra:
        parts.append(self._first)
      parts.append(self._documents.read(
          number, max(place - start - extra, 0), min(end, stop) - start - extra))
      place, number = min(end, stop), number + 1
    return np.concatenate(parts)

  def __array__(self, dtype=None, copy=None):
    return np.asarray(self[:], dtype)

  @property
  def ends(self) -> np.ndarray:
    """The place after the last token of each document, [k] int64."""
    return self._ends


class Blocks:
  """The blocks of `vvlen.tasks.text.pack`, each read when it is asked for.

  A source for Grain; holds 8 bytes for each document.
  """

  def __init__(
      self, documents: Documents, length: int, *, begin: int | None,
      within_documents: bool = False,
  ):
    """Prepares blocks; for arguments and errors see `vvlen.tasks.text.pack`."""
    if length < 1:
      raise ValueError(f'the length of a window must be positive: {length}')
    self._stream, self._length = Stream(documents, begin), length
    # Blocks up to and including each document, if they are cut one by one.
    self._until = None
    lengths = np.diff(self._stream.ends, prepend=0)
    self._count, most = len(self._stream) // length, len(self._stream)
    if within_documents:
      self._until = np.cumsum(lengths // length)
      self._count = int(self._until[-1]) if len(lengths) else 0
      most = int(lengths.max(initial=0))
    if not self._count:
      what = 'the longest document' if within_documents else 'the text'
      raise ValueError(f'{what} has {most} tokens, fewer than one window of {length}')

  def __len__(self):
    return self._count

  def __getitem__(self, index: int) -> np.ndarray:
    """Returns block `index`, [length] int32."""
    if not 0 <= index < self._count:
      raise IndexError(f'block {index} of {self._count}')
    first, length = int(index) * self._length, self._length
    if self._until is not None:
      number = int(np.searchsorted(self._until, index, side='right'))
      before = int(self._until[number - 1]) if number else 0
      ends = self._stream.ends
      begin = int(ends[number - 1]) if number else 0
      first = begin + (int(index) - before) * length
    return self._stream[first:first + length]
