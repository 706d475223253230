"""Documents: text files, local or gs://, or the sources of Python's standard library.

Text is kept as it is in its file, line endings included; only a byte order mark is
removed.
"""

from collections.abc import Callable, Iterator, Sequence
import hashlib
import json
import sysconfig

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
      per line, each an object whose field `text` is a string. Of a folder, all files
      below it are read, sorted by path; hidden files and folders are skipped.

  Returns:
    The documents, in order. Blank ones are left out.

  Raises:
    FileNotFoundError: if there is no such file or folder.
    ValueError: if a path has only blank text, a file has a NUL byte or is not UTF-8, or
      a line of a .jsonl file is not such an object.
  """
  documents = []
  for path in map(epath.Path, paths):
    if not path.exists():
      raise FileNotFoundError(f'{path}: no such file or folder')
    files = _files(path) if path.is_dir() else [path]
    found = [text for file in files for text in _read(file) if text.strip()]
    if not found:
      raise ValueError(f'{path} has no text')
    documents += found
  return documents


def standard_library() -> list[str]:
  """Returns the sources of Python's standard library, one document per file.

  They are sorted by path. Tests, IDLE, lib2to3, installed packages, and files that are
  blank or not UTF-8 are left out.

  Raises:
    ValueError: if this Python comes without its sources.
  """
  folder = epath.Path(sysconfig.get_paths()['stdlib'])
  documents = []
  for path in _files(folder, _is_left_out) if folder.is_dir() else []:
    if path.suffix == '.py':
      try:
        text = path.read_bytes().decode()
      except UnicodeDecodeError:
        continue
      documents.append(text.removeprefix('\ufeff'))
  documents = [text for text in documents if text.strip()]
  if not documents:
    raise ValueError(f'{folder} has no sources of Python: name text files instead')
  return documents


def fingerprint(documents: Sequence[str]) -> str:
  """Returns the SHA-256 of documents and their lengths, 64 hexadecimal digits."""
  digest = hashlib.sha256()
  for text in documents:
    content = text.encode()
    digest.update(len(content).to_bytes(8, 'little') + content)
  return digest.hexdigest()


def split(
    documents: Sequence[str], fraction: float, seed: int
) -> tuple[list[str], list[str]]:
  """Splits documents into those for training and those held out.

  Documents stay whole. In random order, each document that still fits into the fraction
  is held out; if none fits, the shortest is. A single document is cut, and its end is
  held out.

  Args:
    documents: at least one.
    fraction: share of all characters to hold out at most, between 0 and 1.
    seed: of the random order.

  Returns:
    The documents for training and those held out, both in the random order.

  Raises:
    ValueError: if the fraction is not between 0 and 1, or a part would have no text.
  """
  if not 0 < fraction < 1:
    raise ValueError(f'the fraction to hold out must be between 0 and 1: {fraction}')
  if len(documents) == 1:
    cut = _cut(documents[0], fraction)
    training, held_out = [documents[0][:cut]], [documents[0][cut:]]
  else:
    order = np.random.default_rng(seed).permutation(len(documents)).tolist()
    left = int(fraction * sum(map(len, documents)))
    chosen: set[int] = set()
    for i in order:
      if len(documents[i]) <= left:
        chosen.add(i)
        left -= len(documents[i])
    chosen = chosen or set(sorted(order, key=lambda i: len(documents[i]))[:1])
    training = [documents[i] for i in order if i not in chosen]
    held_out = [documents[i] for i in order if i in chosen]
  for part, name in ((training, 'training'), (held_out, 'held-out')):
    if not any(text.strip() for text in part):
      raise ValueError(
          f'no {name} text is left when a share of {fraction} is held out: '
          f'{len(documents)} documents, {sum(map(len, documents))} characters'
      )
  return training, held_out


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


def _read(path: epath.Path) -> list[str]:
  """Returns the documents of a file, including blank ones."""
  content = path.read_bytes()
  if (place := content.find(b'\0')) >= 0:
    raise ValueError(f'{path} is not a text file: byte {place} is NUL')
  try:
    text = content.decode()
  except UnicodeDecodeError as error:
    raise ValueError(f'{path} is not UTF-8 at byte {error.start}') from error
  text = text.removeprefix('\ufeff')
  if path.suffix != '.jsonl':
    return [text]
  # Not splitlines, which splits also at separators that a JSON string may contain.
  lines = enumerate(text.split('\n'), 1)
  return [_of_line(path, n, line) for n, line in lines if line.strip()]


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
