"""Documents: text files, local or gs://, or the sources of Python's standard library.

Text is kept as it is in its file, line endings included; only a byte order mark is
removed.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
import hashlib
import json
import sysconfig
from typing import NamedTuple

from etils import epath
import numpy as np

# Folders that are skipped in the standard library: tests, IDLE, installed packages.
_LEFT_OUT = {
    'site-packages', 'dist-packages', 'test', 'tests', 'idlelib', 'lib2to3',
    '__pycache__',
}


def read_documents(paths: Sequence[epath.PathLike]) -> list[str]:
  """Reads documents from files and folders.

  Args:
    paths: local or gs://. A file is one document; but a .jsonl file has one document
      per line, each an object whose field `text` is a string. For a folder, all files
      below it are read, sorted by path; hidden files and folders are skipped.

  Returns:
    The documents, in order. Blank ones are left out.

  Raises:
    FileNotFoundError: if there is no such file or folder.
    ValueError: if a path has only blank text, a file has a NUL byte or is not UTF-8, or
      a line of a .jsonl file is not such an object.
  """
  return list(stream_documents(paths))


def stream_documents(paths: Sequence[epath.PathLike]) -> Iterator[str]:
  """Yields the documents of `read_documents`, and holds one at a time.

  It holds one line of a .jsonl file, and the whole of any other file. Errors are raised
  when their document is reached.
  """
  for path in map(epath.Path, paths):
    if not path.exists():
      raise FileNotFoundError(f'{path}: no such file or folder')
    found = False
    for file in _files(path) if path.is_dir() else [path]:
      for text in _read(file):
        if text.strip():
          found = True
          yield text
    if not found:
      raise ValueError(f'{path} has no text')


def standard_library() -> list[str]:
  """Returns the sources of Python's standard library, one document per file.

  They are sorted by path. Tests, IDLE, lib2to3, installed packages, and files that are
  blank or not UTF-8 are left out.

  Raises:
    ValueError: if this Python comes without its sources.
  """
  return list(stream_standard_library())


def stream_standard_library() -> Iterator[str]:
  """Yields the documents of `standard_library`, and holds one at a time."""
  folder = epath.Path(sysconfig.get_paths()['stdlib'])
  found = False
  for path in _files(folder, _is_left_out) if folder.is_dir() else []:
    if path.suffix == '.py':
      try:
        text = path.read_bytes().decode()
      except UnicodeDecodeError:
        continue
      text = text.removeprefix('\ufeff')
      if text.strip():
        found = True
        yield text
  if not found:
    raise ValueError(f'{folder} has no sources of Python: name text files instead')


class Fingerprint:
  """The SHA-256 of documents and their lengths, one document after another."""

  def __init__(self):
    self._digest = hashlib.sha256()

  def add(self, text: str) -> None:
    content = text.encode()
    self._digest.update(len(content).to_bytes(8, 'little'))
    self._digest.update(content)

  def hexdigest(self) -> str:
    """Returns 64 hexadecimal digits."""
    return self._digest.hexdigest()


def fingerprint(documents: Iterable[str]) -> str:
  """Returns the SHA-256 of documents and their lengths, 64 hexadecimal digits."""
  return survey(documents).fingerprint


class Survey(NamedTuple):
  """What one reading of documents finds."""

  lengths: np.ndarray  # [D] int64, in characters
  fingerprint: str


def survey(documents: Iterable[str]) -> Survey:
  """Reads documents once; holds 8 bytes for each that it has read."""
  lengths, digest = array('q'), Fingerprint()
  for text in documents:
    lengths.append(len(text))
    digest.add(text)
  return Survey(np.frombuffer(lengths, np.int64), digest.hexdigest())


def split(
    documents: Sequence[str], fraction: float, seed: int
) -> tuple[list[str], list[str]]:
  """Splits documents into those for training and those held out.

  Documents stay whole. In random order, each document that still fits into the fraction
  is held out; if none fits, the shortest is. A single document is cut, and its end is
  held out.

  Args:
    documents: at least one.
    fraction: the largest share of all characters to hold out, between 0 and 1.
    seed: of the random order.

  Returns:
    The documents for training and those held out, both in the random order.

  Raises:
    ValueError: if the fraction is not between 0 and 1, or a part would have no text.
  """
  if len(documents) == 1:
    _check(fraction)
    cut = _cut(documents[0], fraction)
    training, held_out = [documents[0][:cut]], [documents[0][cut:]]
  else:
    numbers = split_numbers(np.array([*map(len, documents)], np.int64), fraction, seed)
    training, held_out = ([documents[i] for i in part] for part in numbers)
  for part, name in ((training, 'training'), (held_out, 'held-out')):
    if not any(text.strip() for text in part):
      raise ValueError(
          f'no {name} text is left when a share of {fraction} is held out: '
          f'{len(documents)} documents, {sum(map(len, documents))} characters'
      )
  return training, held_out


def split_numbers(
    lengths: np.ndarray, fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the numbers of the documents that `split` trains on and holds out.

  Args:
    lengths: [D] int64 of several documents, in characters.
    fraction: as in `split`.
    seed: as in `split`.

  Raises:
    ValueError: if the fraction is not between 0 and 1.
  """
  _check(fraction)
  order = np.random.default_rng(seed).permutation(len(lengths))
  left = int(fraction * int(lengths.sum()))
  chosen = np.zeros(len(order), bool)  # by place in the order
  for place, number in enumerate(order):
    if (length := int(lengths[number])) <= left:
      chosen[place] = True
      left -= length
  if len(order) and not chosen.any():
    chosen[lengths[order].argmin()] = True
  return order[~chosen], order[chosen]


def _check(fraction: float) -> None:
  if not 0 < fraction < 1:
    raise ValueError(f'the fraction to hold out must be between 0 and 1: {fraction}')


def _is_left_out(name: str) -> bool:
  return name in _LEFT_OUT or name.startswith('config-')


def _files(
    folder: epath.Path, left_out: Callable[[str], bool] = lambda name: False
) -> list[epath.Path]:
  """Returns the files below a folder, sorted by path.

  Args:
    folder: where to look.
    left_out: from the name of a file or folder, whether to skip it. Hidden ones are
      always skipped.
  """

  def below(place: epath.Path) -> Iterator[epath.Path]:
    for path in place.iterdir():
      if not path.name.startswith('.') and not left_out(path.name):
        yield from below(path) if path.is_dir() else [path]

  return sorted(below(folder), key=lambda path: path.as_posix())


def _read(path: epath.Path) -> Iterator[str]:
  """Yields the documents of a file, including blank ones."""
  if path.suffix != '.jsonl':
    yield _decoded(path, path.read_bytes(), 0)
    return
  begin = 0
  with path.open('rb') as file:
    # Lines end at b'\n' alone, not at separators that a JSON string may contain.
    for number, content in enumerate(file, 1):
      line = _decoded(path, content, begin)
      begin += len(content)
      if line.strip():
        yield _of_line(path, number, line)


def _decoded(path: epath.Path, content: bytes, begin: int) -> str:
  """Returns the text of the part of a file that begins at a byte."""
  if (place := content.find(b'\0')) >= 0:
    raise ValueError(f'{path} is not a text file: byte {begin + place} is NUL')
  try:
    text = content.decode()
  except UnicodeDecodeError as error:
    raise ValueError(f'{path} is not UTF-8 at byte {begin + error.start}') from error
  return text if begin else text.removeprefix('\ufeff')


def _of_line(path: epath.Path, number: int, line: str) -> str:
  """Returns the text of a line of a .jsonl file."""
  where = f'{path} line {number}'
  try:
    fields = json.loads(line)
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{where} is not JSON') from error
  text = fields.get('text') if isinstance(fields, dict) else None
  if not isinstance(text, str):
    raise ValueError(f'{where} has no string "text"')
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise ValueError(f'{where} has half a character: {error.reason}') from error
  return text


def _cut(text: str, fraction: float) -> int:
  """Returns where to cut a text so that about a fraction of it comes after the cut.

  The cut is at the nearest line break, unless that would change the length of the
  shorter part by more than half.
  """
  place = round((1 - fraction) * len(text))
  after = text.find('\n', place) + 1 or len(text)
  nearest = min(text.rfind('\n', 0, place) + 1, after, key=lambda x: abs(x - place))
  most = min(place, len(text) - place) / 2
  return nearest if abs(nearest - place) <= most else place
