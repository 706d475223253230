"""Files of BABILong's predictions, to be read by its own program, or made by it.

A file has the predictions of one task, length and form of the prompt, which its name
says, such as

  qa1_4k_instruction_yes_examples_yes_post_prompt_yes.csv

It is CSV with a header. The first column has no name and numbers the rows; then come
target, output and question. A file of the same name with .json holds the prompt and the
settings of generation, on which no score depends.

BABILong's program reads outputs such as NA, None and null as empty texts; none of them
is a label of qa1 to qa5. Paths are local or gs://. Runs without JAX.

Source: booydar/babilong 7a6efee, scripts/run_model_on_babilong.py, collect_results.py.
"""

from collections.abc import Collection, Iterable
import csv
import io
import re
from typing import NamedTuple

from etils import epath

from vvlen.evaluation import json_lines
from vvlen.evaluation.babilong import LABELS

_COLUMNS = ('target', 'output', 'question')
_UNITS = {'': 1, 'k': 1_000, 'M': 1_000_000}
_PARTS = ('instruction', 'examples', 'post_prompt')


class Prediction(NamedTuple):
  """What a model generated for a question."""

  target: str  # the answer
  text: str  # `output`
  question: str


class Name(NamedTuple):
  """What the name of a file says."""

  task: str  # 'qa1' to 'qa5'
  length: int  # in tokens; k stands for 1,000 and M for a million
  form: str  # of the prompt: all that comes after the length


def name_of(task: str, length: int, parts: Collection[str]) -> str:
  """Returns the name of the files of a task and length, without .csv or .json.

  BABILong's program reads lengths such as 512 only if they are named: --lengths 512.

  Args:
    task: such as 'qa1'.
    length: in tokens.
    parts: of the prompt, as in `vvlen.tasks.babilong_prompts.prompt`.
  """
  form = [f'{x}_{"yes" if x in parts else "no"}' for x in _PARTS]
  return '_'.join(
      [task, str(length), *form, 'chat_template_no', 'system_prompt_no'])


def parse_name(path: epath.PathLike) -> Name:
  """Returns what the name of a file says.

  Raises:
    ValueError: if it is another name, or the task is not one of qa1 to qa5.
  """
  path = epath.Path(path)
  found = re.fullmatch(r'([^_]+)_(\d+)([kM]?)(?:_(.*))?', path.stem)
  if not found or found[1] not in LABELS:
    raise ValueError(f'{path}: the name must be TASK_LENGTH_….csv, the task one of '
                     f'{", ".join(LABELS)}, the length such as 512, 4k or 1M')
  return Name(found[1], int(found[2]) * _UNITS[found[3]], found[4] or '')


def read_predictions(path: epath.PathLike) -> tuple[list[Prediction], list[str]]:
  """Reads the predictions of a file.

  Args:
    path: a file with a name as above.

  Returns:
    Predictions in the order of the file, and a message for each row that cannot be
    used.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if the name is another one, or the file is not such a table or has no
      rows.
  """
  path = epath.Path(path)
  task = parse_name(path).task
  if not path.is_file():
    raise FileNotFoundError(f'{path}: no such file')
  good: list[Prediction] = []
  bad: list[str] = []
  try:
    text = path.read_bytes().decode('utf-8-sig')
    rows = csv.DictReader(io.StringIO(text, newline=''), strict=True)
    if missing := [x for x in _COLUMNS if x not in (rows.fieldnames or ())]:
      raise ValueError(f'the column {missing[0]!r} is missing')
    for number, row in enumerate(rows, 1):
      one = Prediction(*(row[name] for name in _COLUMNS))
      if None in row or None in row.values():
        bad.append(f'{path} row {number}: it has more or fewer columns than the header')
      elif one.target.lower() not in LABELS[task]:
        bad.append(f'{path} row {number}: the target must be one of '
                   f'{", ".join(LABELS[task])}: {one.target!r:.80}')
      else:
        good.append(one)
  except UnicodeDecodeError as error:
    raise ValueError(f'{path} is not UTF-8') from error
  except (ValueError, csv.Error) as error:
    raise ValueError(f'{path} is not a table of predictions: {error}') from error
  if not good and not bad:
    raise ValueError(f'{path} is empty')
  return good, bad


def read_folder(
    folder: epath.PathLike
) -> tuple[dict[tuple[str, int], list[Prediction]], list[str]]:
  """Reads all files of a folder, predictions of one form of the prompt.

  Args:
    folder: with at least one file .csv.

  Returns:
    {(task, length in tokens): predictions}, in this order, and a message for each row,
    or file, that cannot be used.

  Raises:
    FileNotFoundError: if there is no such folder.
    ValueError: if it has no such file, or two of one task and length.
  """
  read, bad = json_lines.read_folder(folder, '.csv', read_predictions)
  paths: dict[tuple[str, int], epath.Path] = {}
  for path in read:
    task, length, _ = parse_name(path)
    before = paths.setdefault((task, length), path)
    if before != path:
      raise ValueError(f'{folder} has two files of {task} and {length} tokens, '
                       f'{before.name} and {path.name}: put those of one form of the '
                       'prompt into a folder of their own')
  return {key: read[paths[key]] for key in sorted(paths) if read[paths[key]]}, bad


def table_of(predictions: Iterable[Prediction]) -> str:
  """Returns the content of a file .csv.

  All texts are quoted: an output may have carriage returns, at which other programs
  would end a row.
  """
  content = io.StringIO(newline='')
  table = csv.writer(content, quoting=csv.QUOTE_NONNUMERIC, lineterminator='\n')
  table.writerow(['', *_COLUMNS])
  table.writerows([number, *one] for number, one in enumerate(predictions))
  return content.getvalue()
