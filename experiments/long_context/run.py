"""What can a checkpoint still do at the end of a long input? Trains nothing.

The command line is in `__main__`.
"""

import collections
import functools
import os
import re
from typing import Any

from etils import epath
import jax

from experiments.harness import finished, locks, machine, positions
from experiments.harness.checkpoints import load_variables
from experiments.harness.filling import say_filled
from experiments.harness.processes import first_of_processes
from experiments.harness.progress import Progress
from experiments.harness.run_loop import Job, run_jobs
from experiments.long_context import (
    generation,
    longbench_parts,
    official,
    predictions,
    scores,
    suites,
)
from experiments.long_context.check import check
from experiments.long_context.generation import Subject
from experiments.long_context.samples import Part, Plan, Sample
from vvlen.evaluation.widths import Batch, batches
from vvlen.models import llama
from vvlen.models.generation import cache_bytes
from vvlen.models.llama.hub import local_folder
from vvlen.reporting import results, run_folder
from vvlen.reporting.numbers import counted, memory
from vvlen.sharding import mesh as partition
from vvlen.tasks import documents, tokenizers
from vvlen.training import finite

_CONFIG = os.path.join('configs', 'long_context.py')
# Files are identified by their content; the dialect and bootstrap samples are those of
# the tables alone; and one of more samples may be too long for a task and length.
_MAY_DIFFER = ('checkpoint', 'text', 'babi', 'data', 'predictions', 'dialect',
               'num_resamples', 'inputs.not_run')
_MAY_GROW = ('num_samples', 'inputs.samples')


def main(config: Any, workdir: str) -> None:
  """Runs or resumes a suite, and writes tables and figures."""
  check(config)
  if config.get('predictions'):
    score_predictions(config, workdir)
    return
  config.checkpoint = str(local_folder(config.checkpoint))
  machine.use_devices(config.batch_size)
  folder = epath.Path(config.checkpoint)
  model = positions.measured_with(config.rope, llama.read_model(folder))
  tokenizer = tokenizers.tokenizer_of(folder, model.vocab_size)
  mesh = partition.make_mesh(**config.mesh.to_dict())
  window = config.window or model.max_length
  make = longbench_parts.plan if config.suite == 'longbench' else suites.plan
  plan = make(config, tokenizer, window)
  plan.notes.extend(_on_window(window, model.max_length))
  ends = llama.ends_of(folder)
  facts = {'checkpoint_sha256': llama.fingerprint(folder), 'ends': [*ends],
           'window': window,
           'samples': sum(len(part.widths) for part in plan.parts), **plan.facts}
  run = {**config.to_dict(), 'inputs': facts}, machine.session()
  first_of_processes(lambda: _lock(workdir, run))
  done = {part.name: predictions.read(predictions.path_of(workdir, part.name))
          for part in plan.parts}
  todo = {part.name: _left(part, config.batch_size, done[part.name])
          for part in plan.parts}
  variables = _load(config, mesh) if any(todo.values()) else {}
  first_of_processes(lambda: run_folder.claim(
      workdir, *run, study='long_context', **_changes(config)))
  first_of_processes(lambda: [
      predictions.drop_torn_line(predictions.path_of(workdir, part.name))
      for part in plan.parts])
  _say(plan, todo, done, config.batch_size, mesh)
  subject = Subject(model, variables, tokenizer, ends,
                    partition.filled(config.batch_size, mesh))
  scored = finished.finished(workdir, scores.sample_of)
  with jax.set_mesh(mesh):
    if variables:
      cache = _say_memory(subject, plan, todo)
      first_of_processes(functools.partial(run_folder.finish, workdir, **cache))
    jobs = [
        Job(_amount(todo[part.name]), functools.partial(
            _rows, config.suite, workdir, subject, part, todo[part.name],
            done[part.name]))
        for part in plan.parts
        if todo[part.name] or _unscored(part, done[part.name], scored)]
    run_jobs(epath.Path(workdir), jobs, 'tokens', scores.sample_of, _order,
             jobs_are='tasks and lengths', measures=False)
  first_of_processes(lambda: official.write(
      config, workdir, [(part.task, part.name) for part in plan.parts]))


def _lock(workdir: str, run: tuple[dict[str, Any], dict[str, Any]]) -> None:
  """Locks the folder; raises ValueError if it belongs to another run."""
  locks.lock(workdir)
  run_folder.claimed(workdir, *run, study='long_context', **_changes(run[0]))
  results.read_rows(epath.Path(workdir) / 'results.csv')


def _changes(config: Any) -> dict[str, tuple[str, ...]]:
  """Returns the fields in which a run may differ from the one that it resumes.

  LongBench's num_samples may be 0 for all of a file, which is more than any number; the
  samples are counted.
  """
  more = ('num_samples',) * (config['suite'] == 'longbench')
  return {'may_grow': _MAY_GROW, 'may_differ': (*_MAY_DIFFER, *more)}


def _on_window(window: int, own: int) -> list[str]:
  """Returns a line if the window is larger than the checkpoint's own, in tokens."""
  return [f'config.window is {window:,} tokens, beyond the window of the checkpoint, '
          f'{own:,}.'] if window > own else []


def _left(part: Part, batch_size: int, done: dict[int, Any]) -> list[Batch]:
  """Returns the batches of which samples have no prediction.

  Batches are always of the same samples, so that a resumed run computes what an
  unbroken one does.
  """
  return [batch for batch in batches(part.widths, batch_size)
          if not done.keys() >= set(batch.indices)]


def _amount(left: list[Batch]) -> int:
  return sum(batch.width * len(batch.indices) for batch in left)


def _unscored(part: Part, done: dict[int, Any], scored: set[Any]) -> bool:
  return any((part.task, record['length'], index) not in scored
             for index, record in done.items())


def _say(
    plan: Plan, todo: dict[str, list[Batch]], done: dict[str, dict[int, Any]],
    batch_size: int, mesh: jax.sharding.Mesh,
) -> None:
  """Prints what a run is about to do, and how much of the work only fills devices."""
  shapes = [(batch.width, part.answer_tokens, part.one_line)
            for part in plan.parts for batch in todo[part.name]]
  asked = [(name, i) for name, own in todo.items() for x in own for i in x.indices]
  again = sum(i in done[name] for name, i in asked)
  repeated = (f' {counted(again, "answer")} in their batches are generated again, and '
              'kept as they are.' if again else '')
  batches = counted(len(shapes), 'batch', 'batches')
  programs = counted(len(set(shapes)), 'program')
  print(*plan.notes,
        f'{len(asked) - again:,} of {sum(len(part.widths) for part in plan.parts):,} '
        f'answers to generate, in {batches}: {programs} to compile.{repeated}',
        sep='\n', flush=True)
  if shapes:
    say_filled(f'A batch of {batch_size} prompts', batch_size,
               partition.filled(batch_size, mesh), mesh, 'a prompt')


def _say_memory(
    subject: Subject, plan: Plan, todo: dict[str, list[Batch]]
) -> dict[str, int]:
  """Prints how much memory the largest cache of keys and values takes.

  Returns:
    The same for config.json.
  """
  width, answer_tokens = max(
      ((batch.width, part.answer_tokens)
       for part in plan.parts for batch in todo[part.name]), key=sum)
  size = cache_bytes(
      subject.model, subject.variables, subject.batch_size, width + answer_tokens)
  print(f'The largest cache of keys and values, {subject.batch_size} × '
        f'{width + answer_tokens:,} tokens, takes {memory(size)}.', flush=True)
  return {'bytes of the largest cache': size}


def _rows(
    suite: str, workdir: str, subject: Subject, part: Part, left: list[Batch],
    done: dict[int, Any], progress: Progress,
) -> list[results.Row]:
  """Answers the samples of a part, batch by batch; returns the rows of all of them."""
  path = predictions.path_of(workdir, part.name)
  for batch in left:
    progress.show(part.name)
    samples = {i: part.draw(i) for i in batch.indices}
    texts = generation.answer(
        subject, [x.tokens for x in samples.values()], batch.width, part.answer_tokens,
        part.one_line)
    new = [_record(i, sample, text)
           for (i, sample), text in zip(samples.items(), texts, strict=True)
           if i not in done]
    if jax.process_index() == 0:
      predictions.append(path, new)
    done |= {record['index']: record for record in new}
    progress.show(part.name, batch.width * len(batch.indices))
  return scores.rows_of(suite, part.task, predictions.in_order(done))


def _record(index: int, sample: Sample, text: str) -> dict[str, Any]:
  kept = sample._asdict()
  tokens = kept.pop('tokens')
  return {'index': index, 'num_tokens': len(tokens), **kept, 'pred': text}


def _order(row: results.Row) -> tuple[Any, ...]:
  """Returns the sort key of a row."""
  return scores.TASKS.index(row.arm), row.length, row.seed, row.metric


def _load(config: Any, mesh: jax.sharding.Mesh) -> dict[str, Any]:
  """Returns the variables of the checkpoint; raises ValueError if one is not finite."""
  variables = load_variables(config, mesh)
  if bad := finite.bad_weights(variables['params']):
    raise ValueError(f'{config.checkpoint}: weights are not finite: {bad}')
  return variables


def score_predictions(config: Any, workdir: str) -> None:
  """Scores predictions that were made elsewhere, in files of the published programs."""
  of_longbench = config.suite == 'longbench'
  of_suite = longbench_parts if of_longbench else official
  every, notes = of_suite.predictions_of(config)
  # More of them may be scored later, so hashes are of all.
  most = config.num_samples or None if of_longbench else None
  found = {task: own[:most] for task, own in every.items()}
  facts = {
      'predictions_sha256': documents.fingerprint(
          repr(record) for own in every.values() for record in own),
      'asked_sha256': _asked(config.suite, every),
      'samples': sum(map(len, found.values())), 'bad_lines': len(notes)}
  run = {**config.to_dict(), 'inputs': facts}, machine.session()
  first_of_processes(lambda: _lock(workdir, run))
  first_of_processes(lambda: run_folder.claim(
      workdir, *run, study='long_context', **_changes(config)))
  print(*notes, f'{counted(facts["samples"], "prediction")} to score.', sep='\n',
        flush=True)
  done = collections.Counter(
      task for task, *_ in finished.finished(workdir, scores.sample_of))
  jobs = [Job(len(own), functools.partial(_scored, config.suite, task, own))
          for task, own in found.items() if done[task] < len(own)]
  run_jobs(epath.Path(workdir), jobs, 'predictions', scores.sample_of, _order,
           jobs_are='tasks', measures=False)


def _asked(
    suite: str, found: dict[str, list[predictions.Record]]
) -> dict[str, str]:
  """Returns hashes of all but the answers, by which runs are known to be comparable.

  Args:
    suite: of the run.
    found: records by task.

  Returns:
    {name: the first 12 digits of a SHA-256} by task and length, such as 'qa1_4000', or
    LongBench's bucket, such as 'qasper_4-8k'.
  """
  asked: dict[str, list[str]] = {}
  for task, own in found.items():
    for record in own:
      place = scores.bucket(suite, record['length'])
      asked.setdefault(f'{task}_{place}', []).append(
          repr({name: x for name, x in record.items() if name != 'pred'}))
  return {name: documents.fingerprint(own)[:12] for name, own in asked.items()}


def _scored(
    suite: str, task: str, records: list[predictions.Record], progress: Progress
) -> list[results.Row]:
  progress.show(task, len(records))
  return scores.rows_of(suite, task, records)


def full_arguments(arguments: list[str]) -> list[str]:
  """Writes --suite as --config, and other short names as fields of the config.

  Raises:
    ValueError: if there are other short names, but neither --suite nor --config.
  """
  short = r'^--?(checkpoint|text|babi|data|predictions|dialect)(?==|$)'
  full = [re.sub(short, r'--config.\1', argument) for argument in arguments]
  if any(re.match(r'--?config(=|$)', argument) for argument in full):
    return full
  for place, argument in enumerate(full):
    if found := re.fullmatch(r'--?suite(=(.*))?', argument):
      name = found[2] if found[1] else ''.join(full[place + 1:place + 2])
      rest = full[:place] + full[place + (1 if found[1] else 2):]
      return [f'--config={_CONFIG}:{name}', *rest]
  if full != arguments:
    raise ValueError(f'--suite is missing, one of {", ".join(scores.SUITES)}')
  return full
