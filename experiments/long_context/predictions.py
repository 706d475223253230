"""Files of predictions: a JSON object for each sample, a line each. Runs without JAX.

Of LongBench they are predictions/TASK.jsonl, of other suites TASK_LENGTH.jsonl. Lines
are in the order in which answers were generated. Fields:

  index        of the sample in its task and length
  length       of its prompt in tokens, or of BABILong's context with
               config.length_of='context'; of LongBench of its text in words
  depth        in percent of the context, or null
  num_tokens   that the model read, with BOS
  answers      what the prediction is compared with
  others       of the same kind in the prompt, but wrong
  all_classes  the classes of LongBench's trec, else []
  question     of BABILong, else ''
  chance       the score of a model that guesses without the context
  settings     of the prompt
  pred         the text that was generated

The names pred, answers, all_classes and length are those of LongBench's files, which
its own scorer reads.
"""

from collections.abc import Iterable, Sequence
import json
import os
from typing import Any

from etils import epath

from vvlen.reporting import results

Record = dict[str, Any]

_FIELDS = ('index', 'length', 'depth', 'num_tokens', 'answers', 'others', 'all_classes',
           'question', 'chance', 'settings', 'pred')


def path_of(folder: epath.PathLike, name: str) -> epath.Path:
  """Returns the file of a part of a run, such as 'qa1_512'."""
  return epath.Path(folder) / 'predictions' / f'{name}.jsonl'


def read(path: epath.Path) -> dict[int, Record]:
  """Returns {index: record} of a file, {} if there is none.

  A last line that was not written to its end is left out.

  Raises:
    ValueError: if a line is damaged, or an index is there twice.
  """
  if not path.exists():
    return {}
  records: dict[int, Record] = {}
  for number, line in enumerate(path.read_bytes().split(b'\n')[:-1], 1):
    try:
      record = json.loads(line)
      missing = [name for name in _FIELDS if name not in record]
      index = int(record['index'])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
      raise ValueError(f'{path} line {number} is damaged: delete the file, and its '
                       'answers are generated again') from error
    if missing or index in records:
      what = f'has no {missing[0]}' if missing else f'has index {index} again'
      raise ValueError(f'{path} line {number} {what}: delete the file, and its answers '
                       'are generated again')
    records[index] = record
  return records


def drop_torn_line(path: epath.Path) -> bool:
  """Removes a last line that was not written to its end; returns whether it did."""
  content = path.read_bytes() if path.exists() else b''
  if not content or content.endswith(b'\n'):
    return False
  results.write_bytes(path, content[:content.rfind(b'\n') + 1])
  return True


def append(path: epath.Path, records: Iterable[Record]) -> None:
  """Adds lines to a file; in a bucket, it is written again."""
  new = ''.join(json.dumps({name: record[name] for name in _FIELDS},
                           ensure_ascii=False) + '\n' for record in records).encode()
  if '://' in os.fspath(path):
    results.write_bytes(path, (path.read_bytes() if path.exists() else b'') + new)
    return
  path.parent.mkdir(parents=True, exist_ok=True)
  with path.open('ab') as file:
    file.write(new)


def in_order(records: dict[int, Record]) -> Sequence[Record]:
  """Returns records by their index."""
  return [records[index] for index in sorted(records)]
