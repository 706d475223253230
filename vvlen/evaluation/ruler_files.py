"""Files of RULER's predictions, to be read by its own program, or made by it.

A file `LENGTH/pred/TASK.jsonl`, or its parts `TASK-0.jsonl`, `TASK-1.jsonl`, …, has
one JSON object a line:

  index       of the sample; in needle tasks the place of the answer in the prompt, so
              that two samples may share an index
  input       the prompt
  outputs     a list of answers, with which the prediction is compared
  others      {}, or other fields of the sample
  truncation  −1, or the sample's field of this name
  length      number of tokens, −1 if it is not known
  pred        the text that was generated

RULER's program evaluates the tasks in `TASKS`, in files of these names. The functions
here read only `outputs` and `pred`. Paths are local or gs://. Runs without JAX.

Source: NVIDIA/RULER c3f5e3b, scripts/pred/call_api.py and scripts/eval/evaluate.py.
"""

from collections.abc import Sequence
import json
import re
from typing import Any, NamedTuple

from etils import epath

from vvlen.evaluation import json_lines
from vvlen.evaluation.ruler import score

ONE_OF = ('qa_1', 'qa_2')  # tasks in which one of the answers is enough
TASKS = (
    *(f'niah_{kind}_{i}' for kind in ('single', 'multikey') for i in (1, 2, 3)),
    'niah_multivalue', 'niah_multiquery', 'vt', 'cwe', 'fwe', *ONE_OF)
# Tasks of `vvlen.tasks.short_ruler` that have another name in RULER. They ask the same
# question, but differ in wording and sizes; with several keys, also in the filler.
NAMES = {'niah_single': 'niah_single_1', 'niah_multikey': 'niah_multikey_1',
         'variable_tracking': 'vt', 'common_words': 'cwe'}


class Prediction(NamedTuple):
  """What a model generated for a sample, and what it is compared with."""

  task: str
  text: str  # `pred`
  answers: tuple[str, ...]  # `outputs`


def read_predictions(path: epath.PathLike) -> tuple[list[Prediction], list[str]]:
  """Reads the predictions of a file.

  Args:
    path: a file TASK.jsonl or TASK-NUMBER.jsonl, of a task in `TASKS`.

  Returns:
    Predictions in the order of the file, and a message for each line that cannot be
    used.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if the task is unknown, or the file has no lines.
  """
  path = epath.Path(path)
  task = _task(path)
  if task not in TASKS:
    raise ValueError(f'{path}: the task must be one of {", ".join(TASKS)}: {task!r}')

  def of_line(fields: dict[str, Any]) -> Prediction:
    return Prediction(task, json_lines.text(fields, 'pred'),
                      tuple(json_lines.texts(fields, 'outputs')))

  return json_lines.read(path, of_line)


def read_folder(
    folder: epath.PathLike
) -> tuple[dict[str, list[Prediction]], list[str]]:
  """Reads all files TASK.jsonl and TASK-NUMBER.jsonl of a folder.

  As in RULER's program, parts take the place of a whole file of the same task.

  Args:
    folder: LENGTH/pred, with at least one such file.

  Returns:
    {task: predictions} by task in alphabetical order, and a message for each line, or
    file, that cannot be used.

  Raises:
    FileNotFoundError: if there is no such folder.
    ValueError: if it has no such file.
  """
  read, bad = json_lines.read_folder(folder, '.jsonl', read_predictions)
  parts = {_task(path) for path in read if path.stem != _task(path)}
  found: dict[str, list[Prediction]] = {}
  for path, own in read.items():
    task = _task(path)
    if task in parts and path.stem == task:
      bad.append(f'{path}: its parts, such as {task}-0.jsonl, are read instead')
    elif own:
      found.setdefault(task, []).extend(own)
  return {task: found[task] for task in sorted(found)}, bad


def _task(path: epath.Path) -> str:
  return re.sub(r'-\d+$', '', path.stem)


def score_of(prediction: Prediction, dialect: str = 'official') -> float:
  """Returns the score of a prediction, in [0, 1].

  Args:
    prediction: of any task.
    dialect: as in `vvlen.evaluation.ruler.score`. Files do not list wrong answers, so
      `strict` cannot check that they are absent.

  Raises:
    ValueError: if the dialect is unknown.
  """
  return score(prediction.text, prediction.answers, dialect,
               one_of=prediction.task in ONE_OF)


def line_of(index: int, text: str, answers: Sequence[str], length: int = -1) -> str:
  """Returns a line of a file, without its prompt.

  RULER's program needs the field `input` but never scores it, so it is '' here.

  Args:
    index: of the sample.
    text: what the model generated.
    answers: what it is compared with.
    length: number of tokens; −1 if it is not known.
  """
  return json.dumps({
      'index': index, 'pred': text, 'input': '', 'outputs': list(answers), 'others': {},
      'truncation': -1, 'length': length}) + '\n'
