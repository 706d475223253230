"""Files of one JSON object a line, in UTF-8, as benchmarks have them.

A line that cannot be used is reported by file and number, and the others are kept.
Paths are local or gs://. Runs without JAX.
"""

from collections.abc import Callable, Iterable, Sequence
import json
from typing import Any

from etils import epath


def read(
    path: epath.PathLike, of_line: Callable[[dict[str, Any]], Any]
) -> tuple[list[Any], list[str]]:
  """Reads a file.

  Args:
    path: the file.
    of_line: the fields of a line -> what it holds; raises ValueError if it holds
      something else.

  Returns:
    What the lines hold, and a message for each line that holds something else.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if the file has no lines.
  """
  path = epath.Path(path)
  if not path.is_file():
    raise FileNotFoundError(f'{path}: no such file')
  good: list[Any] = []
  bad: list[str] = []
  with path.open('rb') as file:
    # Lines end at b'\n' alone, not at separators that a JSON string may contain.
    for number, line in enumerate(file, 1):
      if line.strip():
        try:
          good.append(of_line(_fields(line)))
        except ValueError as error:
          bad.append(f'{path} line {number}: {error}')
  if not good and not bad:
    raise ValueError(f'{path} is empty')
  return good, bad


def read_folder(
    folder: epath.PathLike, ending: str,
    read_file: Callable[[epath.Path], tuple[list[Any], list[str]]],
) -> tuple[dict[epath.Path, list[Any]], list[str]]:
  """Reads the files of a folder whose names have an ending, in alphabetical order.

  Args:
    folder: with at least one such file.
    ending: such as '.jsonl'.
    read_file: returns what a file holds, and messages; raises ValueError if the file
      cannot be used.

  Returns:
    What each file that can be used holds, and a message for each that cannot, among
    those of `read_file`.

  Raises:
    FileNotFoundError: if there is no such folder.
    ValueError: if it has no such file.
  """
  folder = epath.Path(folder)
  if not folder.is_dir():
    raise FileNotFoundError(f'{folder}: no such folder')
  paths = sorted(x for x in folder.iterdir() if x.suffix == ending)
  if not paths:
    raise ValueError(f'{folder} has no file TASK{ending}')
  found: dict[epath.Path, list[Any]] = {}
  bad: list[str] = []
  for path in paths:
    try:
      found[path], bad_parts = read_file(path)
      bad += bad_parts
    except ValueError as error:
      bad.append(str(error))
  return found, bad


def check_fields(fields: dict[str, Any], names: Iterable[str]) -> None:
  """Raises ValueError, which names all of them, if fields are missing."""
  missing = [repr(name) for name in names if name not in fields]
  if len(missing) > 1:
    raise ValueError(f'the fields {", ".join(missing)} are missing')
  if missing:
    raise ValueError(f'the field {missing[0]} is missing')


def value(fields: dict[str, Any], name: str) -> Any:
  """Returns a field, or raises ValueError if it is missing."""
  check_fields(fields, [name])
  return fields[name]


def text(fields: dict[str, Any], name: str) -> str:
  """Returns a field, or raises ValueError if it is no text."""
  found = value(fields, name)
  if not isinstance(found, str):
    raise ValueError(f'{name} must be a text: {found!r:.80}')
  check_whole(name, [found])
  return found


def texts(fields: dict[str, Any], name: str) -> Sequence[str]:
  """Returns a field, or raises ValueError if it is no list of texts or is empty."""
  found = value(fields, name)
  if not isinstance(found, list) or not found or not all(
      isinstance(x, str) and x for x in found):
    raise ValueError(f'{name} must be a list of texts: {found!r:.80}')
  check_whole(name, found)
  return found


def check_whole(name: str, texts: Iterable[str]) -> None:
  """Raises ValueError if a text has half a character, which JSON can spell."""
  for one in texts:
    try:
      one.encode()
    except UnicodeEncodeError as error:
      raise ValueError(f'{name} has half a character: {error.reason}') from error


def _fields(line: bytes) -> dict[str, Any]:
  try:
    fields = json.loads(line.decode('utf-8-sig'))
  except UnicodeDecodeError as error:
    raise ValueError('not UTF-8') from error
  except (ValueError, RecursionError) as error:
    raise ValueError('not JSON') from error
  if not isinstance(fields, dict):
    raise ValueError('not an object of JSON')
  return fields
