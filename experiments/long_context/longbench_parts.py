"""LongBench-E: the parts of a run from its files, and predictions made elsewhere."""

from collections.abc import Callable, Sequence
import functools
from typing import Any, TypeVar

from etils import epath
import numpy as np

from experiments.long_context.predictions import Record
from experiments.long_context.samples import (
    encoded,
    Part,
    Plan,
    Sample,
    template_hash,
)
from vvlen.evaluation import longbench_files
from vvlen.evaluation.longbench import METRICS
from vvlen.evaluation.widths import width_of
from vvlen.reporting.numbers import counted
from vvlen.tasks import documents
from vvlen.tasks.tokenizers import Tokenizer

T = TypeVar('T')

_PARAGRAPHS = 30  # among which passage_retrieval_en asks for one


def plan(config: Any, tokenizer: Tokenizer, window: int) -> Plan:
  """Returns the parts of a run of longbench, one a task.

  A prompt longer than the window minus `reserve` loses its middle. If BOS and answer
  take more than `reserve`, as answers of 512 tokens do, as many tokens as they take are
  left free instead. A task for whose prompts no room is left is named in the notes.

  Args:
    config: of the run.
    tokenizer: of the checkpoint.
    window: the number of tokens for prompt and answer together.

  Raises:
    ValueError: if the window is too small for all tasks, or no sample can be used.
    OSError: if there is no such folder or file.
  """
  read, notes = _read(config)
  num_bad = len(notes)
  begin = int(config.begin and tokenizer.begin is not None)
  parts, not_run, lengths = [], {}, []
  for task, every in read.items():
    samples = every[:config.num_samples or None]
    answer_tokens = longbench_files.answer_tokens(task)
    most = window - max(config.reserve, begin + answer_tokens)
    if most < 2:
      not_run[task] = (
          f'a window of {window} tokens has no room for prompts of {task}: '
          f'{window - most} are left free. Choose --config.window or config.reserve')
      continue
    wholes = [tokenizer.encode(longbench_files.prompt(x)) for x in samples]
    prompts = [longbench_files.keep_ends(whole, most) for whole in wholes]
    lengths += [(len(whole), len(kept))
                for whole, kept in zip(wholes, prompts, strict=True)]
    longest = most + begin
    parts.append(Part(
        task, task, [width_of(len(x) + begin, longest) for x in prompts], longest,
        answer_tokens,
        functools.partial(_sample, config, tokenizer, samples, wholes, prompts),
        longbench_files.is_one_line(task)))
  if not parts:
    raise ValueError(next(iter(not_run.values())))
  notes += [f'Not run: {message}' for message in not_run.values()]
  notes += _of_cut(lengths, window)
  blank = longbench_files.Sample('', '{input}', '{context}', (), 0, (), '', '')
  template = [[task, longbench_files.prompt(blank._replace(task=task)),
               longbench_files.answer_tokens(task)] for task in read]
  facts = {'data_sha256': documents.fingerprint(
      repr(sample) for samples in read.values() for sample in samples),
           'template_sha256': template_hash(template), 'bad_lines': num_bad,
           **({'not_run': [*not_run]} if not_run else {})}
  return Plan(parts, facts, notes)


def _of_cut(lengths: Sequence[tuple[int, int]], window: int) -> list[str]:
  """Returns a line if prompts are cut: how many, and how much of them is kept.

  Args:
    lengths: tokens of each prompt before and after.
    window: as in `plan`.
  """
  cut = [(whole, kept) for whole, kept in lengths if kept < whole]
  if not cut:
    return []
  whole, kept = map(sum, zip(*cut, strict=True))
  return [f'Cut in the middle, to fit into the window of {window:,} tokens less '
          f'config.reserve: {len(cut):,} of {counted(len(lengths), "prompt")}, of '
          f'whose tokens {100 * kept / whole:.3g} % are kept.']


def _read(config: Any) -> tuple[dict[str, list[longbench_files.Sample]], list[str]]:
  """Returns the samples of each task, and a message for each line that is not used."""
  found, notes = _of_files(
      config, config.data, '_e.jsonl', longbench_files.read_samples)
  if not found:
    raise ValueError(f'{config.data} has no sample that can be used. {notes[0]}')
  return found, notes


def _of_files(
    config: Any, folder: str, ending: str,
    read: Callable[[epath.Path, str], tuple[list[T], list[str]]],
) -> tuple[dict[str, list[T]], list[str]]:
  """Reads the files of a run's tasks; leaves out those without a usable line.

  Args:
    config: of the run.
    folder: with files named after the task.
    ending: of their names.
    read: (file, task) -> what its lines hold, and a message for each bad one.

  Returns:
    {task: what is read}, and a message for each line or file that is not used.

  Raises:
    ValueError: if there is no such file.
    OSError: if there is no such folder, or not the file of a task that is named.
  """
  there = epath.Path(folder)
  if not there.is_dir():
    raise FileNotFoundError(f'{there}: no such folder')
  names = {x.name.removesuffix(ending) for x in there.iterdir()
           if x.name.endswith(ending)}
  tasks = config.tasks or [x for x in METRICS if x in names]
  if not tasks:
    raise ValueError(f'{there} has no file TASK{ending} of LongBench-E')
  found, notes = {}, []
  if not config.tasks:
    notes += [f'Not used: {there / f"{name}{ending}"}: no task of LongBench-E'
              for name in sorted(names - METRICS.keys())]
  for task in tasks:
    try:
      good, bad = read(there / f'{task}{ending}', task)
    except ValueError as error:
      good, bad = [], [str(error)]
    notes += [f'Not used: {message}' for message in bad]
    if good:
      found[task] = good
  return found, notes


def _sample(
    config: Any, tokenizer: Tokenizer, samples: Sequence[longbench_files.Sample],
    wholes: Sequence[np.ndarray], prompts: Sequence[np.ndarray], index: int,
) -> Sample:
  sample, prompt = samples[index], prompts[index]
  settings = {'_id': sample.id, 'language': sample.language,
              'prompt_tokens': len(wholes[index]), 'kept_tokens': len(prompt)}
  tokens = np.concatenate([encoded(tokenizer, '', config.begin), prompt])
  return Sample(tokens.astype(np.int32), sample.length, None, sample.answers, (),
                sample.all_classes, '', chance(sample.task, sample.all_classes),
                settings)


def chance(task: str, all_classes: Sequence[str]) -> float:
  """Returns the score of a guess without the context, 0 where it is not known."""
  if task == 'trec':
    return 1 / len(all_classes)
  return 1 / _PARAGRAPHS if task == 'passage_retrieval_en' else 0.0


def predictions_of(config: Any) -> tuple[dict[str, list[Record]], list[str]]:
  """Returns records of predictions made elsewhere by task, and messages on bad lines.

  These are all predictions; config.num_samples is not looked at.

  Raises:
    ValueError: if no line can be used.
    OSError: if there is no such folder or file.
  """
  read, notes = _of_files(
      config, config.predictions, '.jsonl', longbench_files.read_predictions)
  if not read:
    raise ValueError(
        f'{config.predictions} has no prediction that can be used. {notes[0]}')
  return {task: [_record(i, x) for i, x in enumerate(own)]
          for task, own in read.items()}, notes


def _record(index: int, one: longbench_files.Prediction) -> Record:
  return {'index': index, 'length': one.length, 'depth': None, 'answers': one.answers,
          'all_classes': one.all_classes, 'pred': one.text,
          'chance': chance(one.task, one.all_classes)}
