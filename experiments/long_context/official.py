"""Predictions in the files of the published programs of BABILong and RULER.

A run writes them into its folder `official`, where the programs of BABILong and RULER
can score them; that of RULER one length at a time:

  python -m babilong.collect_results --evals_path=RUN --model_name=official \
      --lengths 128 256 …
  python evaluate.py --data_dir=RUN/official/LENGTH/pred

--predictions reads such files that were made elsewhere.
"""

from collections.abc import Iterable, Mapping, Sequence
import json
from typing import Any

from etils import epath

from experiments.long_context import predictions
from experiments.long_context.babilong_suite import guess
from experiments.long_context.predictions import Record
from vvlen.evaluation import babilong_files, ruler_files
from vvlen.reporting import results, run_folder
from vvlen.tasks import babilong_prompts


def write(
    config: Any, workdir: epath.PathLike, parts: Iterable[tuple[str, str]]
) -> None:
  """Writes the predictions of a run, if it is one of BABILong or RULER.

  Args:
    config: of the run.
    workdir: its folder, with config.json and files of predictions.
    parts: (task, name of the file) of each of its parts.
  """
  make = {'babilong': _babilong, 'ruler': _ruler}.get(config.suite)
  if make is None:
    return
  inputs = run_folder.stored(workdir)['config']['inputs']
  hashes = {name: value for name, value in inputs.items() if name.endswith('_sha256')}
  for task, name in parts:
    path = predictions.path_of(workdir, name)
    own = predictions.in_order(predictions.read(path))
    for file, content in make(config, task, own, hashes).items():
      results.write_bytes(epath.Path(workdir) / 'official' / file, content.encode())


def _babilong(
    config: Any, task: str, records: Sequence[Record], hashes: Mapping[str, str]
) -> dict[str, str]:
  """Returns {name: content} of the files of a task and length."""
  name = babilong_files.name_of(task, records[0]['length'], config.parts)
  table = babilong_files.table_of(
      babilong_files.Prediction(x['answers'][0], x['pred'], x['question'])
      for x in records)
  template = babilong_prompts.prompt(task, '{context}', '{question}', config.parts)
  settings = {
      'caveat': _caveat(config), **hashes,
      'prompt': {'template': template, 'chat_template': False, 'system_prompt': ''},
      'generate_kwargs': {'max_new_tokens': config.answer_tokens, 'num_beams': 1,
                          'do_sample': False}}
  return {f'{name}.csv': table, f'{name}.json': json.dumps(settings, indent=4) + '\n'}


def _caveat(config: Any) -> str:
  stories = 'of bAbI' if config.babi else 'simulated'
  return (f'The stories are {stories}, the text around them may be another one, and '
          f'lengths are in tokens of the {config.length_of} by the tokenizer of this '
          'model: do not compare scores with published ones.')


def _ruler(
    config: Any, task: str, records: Sequence[Record], hashes: Mapping[str, str]
) -> dict[str, str]:
  """Returns {name: content} of the files of a task and length."""
  del config
  name = ruler_files.NAMES.get(task, task)
  lines = (ruler_files.line_of(x['index'], x['pred'], x['answers'], x['num_tokens'])
           for x in records)
  return {f'{records[0]["length"]}/pred/{name}.jsonl': ''.join(lines),
          'hashes.json': json.dumps(hashes, indent=4) + '\n'}


def predictions_of(config: Any) -> tuple[dict[str, list[Record]], list[str]]:
  """Returns records of predictions made elsewhere by task, and messages on bad lines.

  Raises:
    ValueError: if no line can be used, or it is not clear which files are meant.
    OSError: if there is no such folder.
  """
  read = {'babilong': _read_babilong, 'ruler': _read_ruler}[config.suite]
  found, bad = read(epath.Path(config.predictions))
  notes = [f'Not used: {message}' for message in bad]
  if not found:
    raise ValueError(f'{config.predictions} has no prediction that can be used. '
                     f'{notes[0]}')
  return found, notes


def _read_babilong(folder: epath.Path) -> tuple[dict[str, list[Record]], list[str]]:
  read, bad = babilong_files.read_folder(folder)
  found: dict[str, list[Record]] = {}
  for (task, length), own in read.items():
    found.setdefault(task, []).extend(
        _record(i, length, x.text, [x.target], guess(task, x.question, x.target),
                question=x.question)
        for i, x in enumerate(own))
  return found, bad


def _read_ruler(folder: epath.Path) -> tuple[dict[str, list[Record]], list[str]]:
  if not folder.is_dir():
    raise FileNotFoundError(f'{folder}: no such folder')
  lengths = sorted(int(x.name) for x in folder.iterdir()
                   if x.name.isdecimal() and (x / 'pred').is_dir())
  if not lengths:
    raise ValueError(f'{folder} has no folder LENGTH/pred, such as 4096/pred')
  found: dict[str, list[Record]] = {}
  bad: list[str] = []
  for length in lengths:
    try:
      read, bad_lines = ruler_files.read_folder(folder / str(length) / 'pred')
    except ValueError as error:
      read, bad_lines = {}, [str(error)]
    bad += bad_lines
    for task, own in read.items():
      # What a guess would score is not known.
      found.setdefault(task, []).extend(
          _record(i, length, x.text, list(x.answers), 0.0) for i, x in enumerate(own))
  return found, bad


def _record(
    index: int, length: int, text: str, answers: list[str], chance: float,
    question: str = '',
) -> Record:
  return {'index': index, 'length': length, 'depth': None, 'answers': answers,
          'others': [], 'question': question, 'chance': chance, 'pred': text}
