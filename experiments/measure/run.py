"""How does a checkpoint behave beyond its training length? Trains nothing.

The command line is in `__main__`.
"""

import functools
import os
import platform
import re
from typing import Any

from etils import epath
import jax
import numpy as np

from experiments.harness import finished, locks, machine, positions
from experiments.harness.checkpoints import load_variables
from experiments.harness.processes import first_of_processes
from experiments.harness.run_loop import Job, run_jobs
from experiments.measure import attention, measurements, predictions, tempered
from experiments.measure.check import check
from experiments.measure.measurements import Subject
from experiments.measure.rows import measurement_of, read_rows
from vvlen.models import llama
from vvlen.models.llama.hub import local_folder
from vvlen.models.llama.model import Llama
from vvlen.reporting import results, run_folder
from vvlen.sharding import mesh as partition
from vvlen.tasks import documents, tokenizers

_SECTIONS = (
    predictions.perplexity, predictions.misalignment,
    attention.spread, attention.entropy, attention.recency, tempered.tempered,
)
_CONFIG = os.path.join('configs', 'measure.py')
_MAY_GROW = ('inputs.measurements',)  # a later version has more
_LONG = 16_384  # tokens; longer windows are pointed out to the user
# Files are identified by their content, not their path; the other fields change
# results only by rounding.
_MAY_DIFFER = ('checkpoint', 'text', 'tokens_at_once', 'mesh.data', 'mesh.fsdp',
               'mesh.tensor')


def main(config: Any, workdir: str) -> None:
  """Runs or resumes the measurements, and writes tables and figures."""
  check(config)
  config.checkpoint = str(local_folder(config.checkpoint))
  machine.use_devices()
  folder = epath.Path(workdir)
  model = positions.measured_with(config.rope, llama.read_model(config.checkpoint))
  subject, facts = read_subject(config, model)
  planned = [one for section in _SECTIONS for one in section(config, subject)]
  mesh = partition.make_mesh(**config.mesh.to_dict())
  run = ({**config.to_dict(), 'inputs': {**facts, 'measurements': len(planned)}},
         {**machine.session(), 'text': config.text or _library()})
  first_of_processes(lambda: _lock(workdir, run))
  done = finished.finished(folder, measurement_of)
  todo = [one for one in planned if one.name not in done]
  print(long_windows(config, subject.length) if todo else '', end='', flush=True)
  variables = load_variables(config, mesh) if todo else {}
  if todo:
    with jax.set_mesh(mesh):
      measurements.check_finite(config.checkpoint, subject, variables)
  first_of_processes(
      lambda: run_folder.claim(
          workdir, *run, _MAY_GROW, _MAY_DIFFER, study='measure'))
  print(f'{len(subject.stream):,} tokens of text: perplexity reads the first '
        f'{measurements.scored(config, subject):,}, other measurements all of it. '
        f'{len(todo)} of {len(planned)} measurements to do.'
        f'{" Compiling first." if todo else ""}', flush=True)
  with jax.set_mesh(mesh):

    def rows_of(measurement, progress):
      progress.show(str(measurement.name))
      rows = measurement.rows(variables)
      progress.show(str(measurement.name), measurement.work)
      return rows

    jobs = [Job(one.work, functools.partial(rows_of, one)) for one in todo]
    run_jobs(folder, jobs, 'tokens x layers', measurement_of, _order,
             jobs_are='measurements', measures=False)


def _order(row: results.Row) -> tuple[Any, ...]:
  """Returns the sort key of a row."""
  columns = (row.layer, row.head, row.offset, row.component, row.piece, row.length,
             row.distance)
  return (row.experiment, row.arm, row.metric,
          *(-1 if x is None else x for x in columns))


def _lock(workdir: str, run: tuple[dict[str, Any], dict[str, Any]]) -> None:
  """Locks the folder; raises ValueError if it belongs to another run or version."""
  locks.lock(workdir)
  run_folder.claimed(workdir, *run, _MAY_GROW, _MAY_DIFFER, study='measure')
  read_rows(workdir)


def read_subject(config: Any, model: Llama) -> tuple[Subject, dict[str, Any]]:
  """Returns the model and text to measure, and facts that identify them in config.json.

  Raises:
    ValueError: if the text is empty or binary, or there is no tokenizer for the model.
    OSError: if a file cannot be read.
  """
  folder = epath.Path(config.checkpoint)
  tokenizer = tokenizers.tokenizer_of(folder, model.vocab_size)
  if not (folder / 'tokenizer.json').exists():
    print(f'{folder} has no tokenizer.json: the text is read as bytes.', flush=True)
  if config.text:
    whole = documents.read_documents([config.text])
  else:
    whole = documents.standard_library()
  read = beginning(whole, config.num_characters)
  begin = [] if tokenizer.begin is None else [tokenizer.begin]
  parts = [part for text in read for part in (begin, tokenizer.encode(text))]
  stream = np.concatenate(parts, dtype=np.int32)
  length = config.length or model.max_length
  facts = {
      'checkpoint_sha256': llama.fingerprint(folder), 'text_sha256':
      documents.fingerprint(read), 'text_tokens': len(stream), 'length': length,
      'vocab_size': tokenizer.vocab_size,
  }
  return Subject(model, stream, tokenizer.vocab_size, tokenizer.begin, length), facts


def long_windows(config: Any, length: int) -> str:
  """Returns a hint if windows are long because of L in config.json, else ''."""
  longest = measurements.longest_window(config, length)
  if config.length or longest <= _LONG:
    return ''
  return (f'The longest window has {longest:,} tokens, because L is {length:,} '
          'in config.json; --config.length=2048 measures shorter ones.\n')


def beginning(whole: list[str], num_characters: int) -> list[str]:
  """Returns the first `num_characters` of all documents; the last one may be cut."""
  read = []
  for text in whole:
    read.append(text[:num_characters])
    num_characters -= len(text)
    if num_characters <= 0:
      break
  return read


def _library() -> str:
  return f'the standard library of Python {platform.python_version()}'


def full_arguments(arguments: list[str]) -> list[str]:
  """Writes --checkpoint and --text as fields of the config; adds a missing --config."""
  full = [re.sub(r'^--?(checkpoint|text)(?==|$)', r'--config.\1', argument)
          for argument in arguments]
  if not any(re.match(r'--?config(=|$)', argument) for argument in full):
    full.insert(0, f'--config={_CONFIG}')
  return full
