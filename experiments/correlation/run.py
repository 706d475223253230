"""Does misalignment tell which models generalize to longer inputs?

The command line is in `__main__`.
"""

import functools
from typing import Any, NamedTuple

from etils import epath
import jax

from experiments.correlation import check, models, prompts
from experiments.correlation.points import EXPERIMENT, MAY_DIFFER, MEASURES
from experiments.correlation.programs import Answer, make_answer
from experiments.correlation.prompts import Prompt
from experiments.harness import finished, parts, seed_blocks
from experiments.harness.progress import Progress
from experiments.harness.run_loop import claim_for_seeds, Job, run_jobs, seed_devices
from experiments.language_model import measuring, together, training
from experiments.language_model.together import Programs
from experiments.language_model.training import Text
from vvlen.models.llama.model import Llama
from vvlen.reporting import results
from vvlen.reporting.results import Row
from vvlen.tasks import documents


class Subject(NamedTuple):
  """What the blocks of seeds of a model share."""

  config: Any  # as in configs/language_model.py
  model: Llama
  programs: Programs
  answer: Answer
  asked: dict[int, list[Prompt]]  # by their length in tokens


def main(config: Any, workdir: str) -> None:
  """Runs or resumes the study, and writes tables and figures."""
  check.check(config)
  mesh = seed_devices(config.train)
  text = _read_text(config)
  print(f'{config.text.path}: {text.facts["documents"]:,} documents, '
        f'{text.facts["tokens"]:,} tokens.')
  together.check_text(text, mesh)
  names = list(config.models)
  now = parts.chosen('run_models', config.run_models, names)
  lengths = sorted({n for name in names for n in models.prompt_lengths(config, name)})
  asked = prompts.draw(config.benchmark, lengths, text.tokenizer, config.seed)
  facts = {**text.facts, 'prompts_sha256': documents.fingerprint(
      prompt.answered.text for own in asked.values() for prompt in own)}
  folder = claim_for_seeds(
      config, workdir, EXPERIMENT, lambda: {'inputs': facts}, MAY_DIFFER)
  done = finished.finished(folder, seed_blocks.part_of)
  blocks = seed_blocks.first_seeds(config)
  todo = [(name, first) for name in now for first in blocks
          if not seed_blocks.is_finished(config, done, first, name)]
  print(f'{len(todo)} of {len(now) * len(blocks)} training runs to do. '
        f'{"Compiling first." if todo else ""}', flush=True)
  # The blocks of a model follow one another.
  subject = functools.lru_cache(maxsize=1)(
      lambda name: _subject(config, name, text, mesh, asked))
  rows = lambda name, first: lambda progress: _rows(
      config, name, subject(name), first, folder, progress)
  steps = {name: training.num_steps(config, config.models[name]) for name in names}
  jobs = [Job(seed_blocks.at_once(config) * steps[name], rows(name, first))
          for name, first in todo]
  run_jobs(folder, jobs, 'seed-steps', seed_blocks.part_of, lambda row: (
      names.index(row.arm), row.seed, row.experiment != EXPERIMENT, row.experiment,
      row.length or 0, row.metric), jobs_are='training runs')


def _read_text(config: Any) -> Text:
  """Returns the text, of which all models have the same held-out part."""
  for path in (config.text.path, config.text.tokenizer):
    if not epath.Path(path).exists():
      raise FileNotFoundError(
          f'{path}: no such file. The text and its tokenizer are written by '
          'python -m experiments.long_context.training_text --folder=runs/tasks '
          '--documents=150000')
  longest = max(config.models, key=lambda name: config.models[name].length)
  own = models.own_config(config, longest)
  with own.unlocked():
    own.seed = config.seed
  return training.read_text(own)


def _subject(
    config: Any, name: str, text: Text, mesh: Any, asked: dict[int, list[Prompt]]
) -> Subject:
  """Prepares a model; its programs compile when they are first called."""
  own = models.own_config(config, name)
  model = models.make(config, name, text.tokenizer)
  return Subject(
      own, model, together.make_programs(own, name, model, text, mesh, MEASURES),
      make_answer(model, text.tokenizer, config.benchmark.answer_tokens, mesh,
                  config.train.group_size),
      {length: asked[length] for length in models.prompt_lengths(config, name)})


def _rows(
    config: Any, name: str, subject: Subject, first: int, folder: epath.Path,
    progress: Progress,
) -> list[Row]:
  """Trains, measures, asks and saves a block of seeds; returns their rows."""
  trained = together.train_and_measure(
      subject.config, name, subject.programs, first, folder, progress)
  rows = [row for seed, measured in trained.measured.items()
          for row in measuring.rows_of(name, seed, measured, EXPERIMENT)]
  lines = {seed: '' for seed in trained.measured}
  for length, own in subject.asked.items():
    with progress.measuring(f'{name}, prompts of {length:,} tokens'):
      texts = subject.answer(trained.params, own)
    for seed in trained.measured:
      rows += prompts.rows_of(name, seed, length, own, texts[seed - first])
      lines[seed] += prompts.lines_of(length, own, texts[seed - first])
  if jax.process_index() == 0:
    for seed, text in lines.items():
      results.write_text(folder / f'predictions/{name}_seed_{seed}.jsonl', text)
  together.save_models(subject.config, name, subject.model, trained,
                       [*trained.measured], folder)
  return rows
