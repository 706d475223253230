"""What does a checkpoint do beyond the lengths of its training? Trains nothing.

The command line is in `__main__`.
"""

from collections.abc import Callable
import contextlib
import functools
import math
import os
import platform
import re
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from experiments import report
from experiments.harness import machine
from experiments.harness.fields import naming_fields
from experiments.harness.fingerprint import fingerprint
from experiments.harness.processes import first_of_processes
from experiments.harness.progress import Progress
from experiments.measure import attention, pieces, predictions
from experiments.measure.pieces import Subject
from vvlen.models import llama
from vvlen.models.llama.model import Llama
from vvlen.reporting import results, run_folder
from vvlen.sharding import mesh as partition
from vvlen.tasks import documents, tokenizers
from vvlen.training.preemption import Preempted, watching_for_preemption

_PARTS = (
    predictions.perplexity, predictions.misalignment,
    attention.spread, attention.entropy, attention.recency,
)
_CONFIG = os.path.join('configs', 'measure.py')
_LONG = 16_384  # tokens in a window of which one may not have thought
# Paths are known by their content; the others change results by rounding alone.
_MAY_DIFFER = ('checkpoint', 'text', 'tokens_at_once', 'mesh.data', 'mesh.fsdp',
               'mesh.tensor')
_LEAST = {
    'seed': 0, 'length': 0, 'num_characters': 1, 'tokens_at_once': 1,
    'perplexity.num_windows': 1, 'misalignment.num_sequences': 2,
    'spread.shortest': 1, 'spread.num_sequences': 2, 'spread.num_queries': 1,
    'spread.num_components': 0, 'num_resamples': 1, 'entropy.shortest': 1,
    'entropy.num_sequences': 2, 'recency.num_tokens': 3, 'recency.num_queries': 1,
    'recency.num_sequences': 2,
}


def main(config: Any, workdir: str) -> None:
  """Measures what is not in the folder yet, and writes tables and figures."""
  with naming_fields():
    check(config)
  machine.use_devices()
  folder, first = epath.Path(workdir), jax.process_index() == 0
  model = llama.read_model(config.checkpoint)
  subject, facts = read_subject(config, model)
  with naming_fields():
    cells = [cell for part in _PARTS for cell in part(config, subject)]
  mesh = partition.make_mesh(**config.mesh.to_dict())
  run = ({**config.to_dict(), 'inputs': {**facts, 'measurements': len(cells)}},
         {**machine.session(), 'text': config.text or _library()})
  first_of_processes(lambda: _lock(workdir, run))
  rows = {row[:-1]: row for row in results.read_rows(folder / 'results.csv')}
  done = {row.arm for row in rows.values() if row.metric == 'done'}
  todo = [cell for cell in cells if cell.name not in done]
  print(long_windows(config, subject.length) if todo else '', end='', flush=True)
  variables = _load(config, mesh) if todo else {}
  if todo:
    with jax.set_mesh(mesh):
      pieces.check_finite(config.checkpoint, subject, variables)
  first_of_processes(
      lambda: run_folder.claim(
          workdir, *run, may_differ=_MAY_DIFFER, study='measure'))
  print(f'{len(subject.stream):,} tokens of text, of which perplexity reads the first '
        f'{pieces.scored(config, subject):,}, the others sequences spread over all. '
        f'{len(todo)} of {len(cells)} measurements to make.'
        f'{" Compiling first." if todo else ""}', flush=True)
  with (Progress(sum(cell.work for cell in todo), 'tokens x layers') as progress,
        jax.set_mesh(mesh), _watching() as told_to_stop):
    for made, cell in enumerate(todo):
      if told_to_stop(made):
        raise Preempted(f'Told to stop after {made} of {len(todo)} measurements')
      progress.show(cell.name)
      new = [*cell.rows(variables), pieces.row(cell.name, None, 'done', 1)]
      progress.show(cell.name, cell.work)
      rows |= {row[:-1]: row for row in new}
      if first:
        results.write_rows(folder / 'results.csv', sorted(
            rows.values(), key=lambda row: (row.arm, row.metric, row.length or 0)))
  if first:
    report.show(workdir)
    run_folder.finish(workdir, finished=machine.now())


def _watching() -> contextlib.AbstractContextManager[Callable[[int], bool]]:
  """Yields what says, between measurements, whether to stop, to all processes alike.

  A process that is not one of several stops at once, as `command_line.run` sees to.
  """
  if jax.distributed.is_initialized():
    return watching_for_preemption()
  return contextlib.nullcontext(lambda made: False)


def _lock(workdir: str, run: tuple[dict[str, Any], dict[str, Any]]) -> None:
  """Keeps others out of the folder, or raises if it is another run's."""
  machine.lock(workdir)
  run_folder.claimed(workdir, *run, may_differ=_MAY_DIFFER, study='measure')


def check(config: Any) -> None:
  """Raises ValueError on a configuration that cannot run, whatever the checkpoint."""
  fields = run_folder.flatten(config.to_dict())
  for name, least in _LEAST.items():
    if type(fields[name]) is not int or fields[name] < least:
      raise ValueError(
          f'config.{name} must be a whole number from {least} on: {fields[name]!r}'
      )
  for name in ('perplexity.stride', 'spread.longest', 'entropy.longest'):
    if not 0 < fields[name] < math.inf:
      raise ValueError(f'config.{name} must be positive: {fields[name]}')
  if fields['perplexity.stride'] > 1:
    raise ValueError(f'config.perplexity.stride must not exceed 1, a whole window: '
                     f'{fields["perplexity.stride"]}')
  for name in ('perplexity.lengths', 'misalignment.lengths', 'misalignment.offsets'):
    if not fields[name] or not all(0 < x < math.inf for x in fields[name]):
      raise ValueError(f'config.{name} must be positive: {tuple(fields[name])}')
  if any(type(e) is not int for e in fields['misalignment.offsets']):
    raise ValueError('config.misalignment.offsets must be whole numbers: '
                     f'{tuple(fields["misalignment.offsets"])}')
  if config.dtype not in ('', 'float32', 'bfloat16'):
    raise ValueError('config.dtype must be float32 or bfloat16, or none: '
                     f'{config.dtype!r}')
  if not config.checkpoint:
    raise ValueError('--checkpoint is missing')


def read_subject(config: Any, model: Llama) -> tuple[Subject, dict[str, Any]]:
  """Returns what is to be measured, and what of it belongs to the configuration.

  Raises:
    ValueError: if the text is empty or binary, or there is no tokenizer for the model.
    OSError: if something cannot be read.
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
      'checkpoint_sha256': fingerprint(folder), 'text_sha256':
      documents.fingerprint(read), 'text_tokens': len(stream), 'length': length,
      'vocab_size': tokenizer.vocab_size,
  }
  return Subject(model, stream, tokenizer.vocab_size, tokenizer.begin, length), facts


def long_windows(config: Any, length: int) -> str:
  """Returns a line on windows that are long because L is of config.json, or ''."""
  longest = pieces.longest_window(config, length)
  if config.length or longest <= _LONG:
    return ''
  return (f'The longest window has {longest:,} tokens, as L is {length:,} in '
          'config.json; --config.length=2048 measures shorter ones.\n')


def beginning(whole: list[str], num_characters: int) -> list[str]:
  """Returns the first documents, the last of which may be cut."""
  read = []
  for text in whole:
    read.append(text[:num_characters])
    num_characters -= len(text)
    if num_characters <= 0:
      break
  return read


def _load(config: Any, mesh: jax.sharding.Mesh) -> dict[str, Any]:
  shardings = functools.partial(partition.shardings, mesh=mesh)
  dtype = {'': None, 'float32': jnp.float32, 'bfloat16': jnp.bfloat16}[config.dtype]
  return llama.load_checkpoint(config.checkpoint, shardings, dtype=dtype)[1]


def _library() -> str:
  return f'the standard library of Python {platform.python_version()}'


def full_arguments(arguments: list[str]) -> list[str]:
  """Writes --checkpoint and --text as fields of the config, which may be left out."""
  names, full = '|'.join(('checkpoint', 'text')), []
  for argument in arguments:
    full.append(re.sub(rf'^--?({names})(?==|$)', r'--config.\1', argument))
  if not any(re.match(r'--?config(=|$)', argument) for argument in full):
    full.insert(0, f'--config={_CONFIG}')
  return full
