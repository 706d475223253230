"""Files of LongBench-E: samples, prompts, and predictions made anywhere.

Samples are in `TASK_e.jsonl`, predictions in `pred_e/MODEL/TASK.jsonl`, one JSON object
a line, in UTF-8. A line that cannot be used is reported by file and number, and the
others are kept. Paths are local or gs://. Runs without JAX.

Source: THUDM/LongBench 2e00731, pred.py and eval.py.
"""

from collections.abc import Callable
import functools
import importlib.resources
import json
from typing import Any, NamedTuple, TypeVar

from etils import epath
import numpy as np

from vvlen.evaluation import json_lines
from vvlen.evaluation.longbench import check_answers, METRICS, score, Scored

T = TypeVar('T')

_OF_BOTH = 'answers', 'all_classes', 'length'  # fields of samples and of predictions


class Sample(NamedTuple):
  """A sample of a task, with the names of the fields of its file."""

  task: str  # without '_e'
  input: str  # the question
  context: str
  answers: tuple[str, ...]
  length: int  # in words
  all_classes: tuple[str, ...]  # empty unless the task is trec
  language: str
  id: str  # `_id`


class Prediction(NamedTuple):
  """What a model generated for a sample, and what its score depends on."""

  task: str  # without '_e'
  text: str  # `pred`
  answers: tuple[str, ...]
  all_classes: tuple[str, ...]
  length: int  # in words


def read_samples(
    path: epath.PathLike, task: str | None = None
) -> tuple[list[Sample], list[str]]:
  """Reads the samples of a task.

  Each line has the fields input, context, answers, length, dataset, language,
  all_classes and _id; all_classes is null or a list, dataset is the task, with or
  without '_e', and no two lines have one _id.

  Args:
    path: a file.
    task: such as 'qasper'; None: as the file is named, up to '_e.jsonl' or '.jsonl'.

  Returns:
    Samples in the order of the file, and a message for each line that cannot be used.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if the task is unknown, or the file has no lines.
  """
  path = epath.Path(path)
  task = _task(path) if task is None else task
  seen: set[str] = set()

  def of_line(fields: dict[str, Any]) -> Sample:
    own = 'input', 'context', 'dataset', 'language', '_id'
    json_lines.check_fields(fields, (*own, *_OF_BOTH))
    texts = {name: json_lines.text(fields, name) for name in own}
    if texts['dataset'].removesuffix('_e') != task:
      raise ValueError(f'the dataset is {texts["dataset"]!r}, not {task!r}')
    answers, all_classes, length = _of_both(task, fields)
    if texts['_id'] in seen:
      raise ValueError(f'an earlier line has the same _id, {texts["_id"]!r}')
    seen.add(texts['_id'])
    return Sample(task, texts['input'], texts['context'], answers, length, all_classes,
                  texts['language'], texts['_id'])

  return _read(path, task, of_line)


def read_predictions(
    path: epath.PathLike, task: str | None = None
) -> tuple[list[Prediction], list[str]]:
  """Reads predictions of a task; arguments, results and errors as in `read_samples`.

  Each line has the fields pred, answers, all_classes and length.
  """
  path = epath.Path(path)
  task = _task(path) if task is None else task

  def of_line(fields: dict[str, Any]) -> Prediction:
    json_lines.check_fields(fields, ('pred', *_OF_BOTH))
    return Prediction(task, json_lines.text(fields, 'pred'), *_of_both(task, fields))

  return _read(path, task, of_line)


def score_folder(
    folder: epath.PathLike, dialect: str = 'official'
) -> tuple[list[Scored], list[str]]:
  """Scores the predictions in all files TASK.jsonl of a folder, pred_e/MODEL.

  Args:
    folder: with at least one such file.
    dialect: as in `vvlen.evaluation.longbench.score`.

  Returns:
    Scores for `vvlen.evaluation.longbench.summarize`, by file in alphabetical order,
    and a message for each line, or file, that cannot be used.

  Raises:
    FileNotFoundError: if there is no such folder.
    ValueError: if it has no such file, or the dialect is unknown.
  """
  read, bad = json_lines.read_folder(folder, '.jsonl', read_predictions)
  return [
      Scored(x.task, x.length,
             score(x.task, x.text, x.answers, x.all_classes, dialect))
      for own in read.values() for x in own], bad


def prompt(sample: Sample) -> str:
  """Returns the prompt of a sample in the published words.

  The published program puts prompts of all tasks but trec, triviaqa, samsum, lcc and
  repobench-p into the chat template of each model that it names. Here none is applied.
  """
  template: str = _published()['prompts'][sample.task]
  return template.format(context=sample.context, input=sample.input)


def answer_tokens(task: str) -> int:
  """Returns how many tokens a model may generate for a task.

  For samsum, generation also ends at a newline (`is_one_line`).

  Raises:
    ValueError: if the task is unknown.
  """
  if task not in METRICS:
    raise ValueError(f'the task must be one of {", ".join(METRICS)}: {task!r}')
  return _published()['answer_tokens'][task]


def is_one_line(task: str) -> bool:
  """Returns whether an answer ends at a newline, with which it does not begin.

  The published program stops at the last token of an encoded newline. The first token
  of an answer may be neither that nor the one that ends a text.
  """
  return task == 'samsum'


def keep_ends(tokens: np.ndarray, most: int) -> np.ndarray:
  """Returns the tokens of a prompt, without its middle where it is too long.

  The published program keeps 500 tokens fewer than the window, decodes both halves and
  encodes them again, which may change their number. Here the tokens stay as they are.

  Args:
    tokens: [n].
    most: the largest number of tokens to keep, at least 2.

  Returns:
    All n tokens if n is at most `most`; else the first and the last ⌊most / 2⌋.

  Raises:
    ValueError: if `most` is less than 2.
  """
  if most < 2:
    raise ValueError(f'at least 2 tokens must be kept: {most}')
  if len(tokens) <= most:
    return tokens
  half = most // 2
  return np.concatenate([tokens[:half], tokens[-half:]])


@functools.cache
def _published() -> dict[str, Any]:
  """Returns prompts and numbers of tokens of answers by task, with their source."""
  file = importlib.resources.files('vvlen.evaluation') / 'longbench_prompts.json'
  return json.loads(file.read_text(encoding='utf-8'))


def _task(path: epath.Path) -> str:
  return path.name.removesuffix('.jsonl').removesuffix('_e')


def _read(
    path: epath.Path, task: str, of_line: Callable[[dict[str, Any]], T]
) -> tuple[list[T], list[str]]:
  """Returns what lines hold, and a message for each line that holds something else."""
  if task not in METRICS:
    raise ValueError(f'{path}: the task must be one of {", ".join(METRICS)}: {task!r}')
  return json_lines.read(path, of_line)


def _of_both(
    task: str, fields: dict[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...], int]:
  """Returns what samples and predictions have: answers, all classes and length."""
  answers = json_lines.value(fields, 'answers')
  all_classes = json_lines.value(fields, 'all_classes')
  all_classes = [] if all_classes is None else all_classes
  check_answers(task, answers, all_classes)
  length = json_lines.value(fields, 'length')
  if not isinstance(length, int) or isinstance(length, bool) or length < 0:
    raise ValueError(f'length must be a whole number of words: {length!r}')
  return tuple(answers), tuple(all_classes), length
