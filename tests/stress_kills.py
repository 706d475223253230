"""Kills small runs with SIGKILL at random moments, and compares what they end with.

python -m tests.stress_kills [--kills=50] [--only=counting,measure] [--seed=0]

A script, not a test: it takes about 15 seconds a kill. Of each kind of experiment, a
run that nothing disturbs is made first. Then the same command is started and killed
again and again; whenever it comes to its end, its results.csv must equal the
undisturbed one byte for byte, and a new folder is begun. After the last kill it is
resumed to its end. Prints a table; the exit code is 1 if any result differs.
"""

import argparse
import functools
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from tests.conftest import ROOT
from tests.llamas import llama, ROPES, variables_of
from vvlen.models.llama import save_checkpoint

_ARMS = "--config.arms=('none','layer_norm')"
_OFTEN = '--config.train.save_every_seconds=0.0'
_LENGTHS = (
    '--config=configs/lookup.py:smoke', '--config.model.width=8', _ARMS, _OFTEN,
    '--config.num_seeds=4', '--config.train.steps_per_call=4',
    '--config.train.num_steps=24', '--config.evaluate.lengths=(16,32)',
    '--config.evaluate.histogram_lengths=(16,)',
)
_CELLS = ('--config.base.model.width=8', '--config.base.train.batch_size=8',
          '--config.base.train.save_every_seconds=0.0')


class Kind(NamedTuple):
  """A kind of run: the study, its arguments, and what they need first."""

  study: str
  arguments: tuple[str, ...]


def kinds(inputs: pathlib.Path) -> dict[str, Kind]:
  """Returns the kinds of runs by name; `inputs` has a text, a model and a run."""
  text = f'--config.text.path={inputs}/text.txt'
  model = '--config=configs/language_model.py:smoke', text
  return {
      'length_generalization': Kind('length_generalization', _LENGTHS),
      'mechanism': Kind('mechanism', (
          '--config=configs/mechanism.py:smoke', _ARMS,
          '--config.lengths=(32,)', f'--config.trained={inputs}/trained')),
      'sensitivity': Kind('sensitivity', (
          '--config=configs/sensitivity.py:smoke', "--config.run=('base','l2')",
          *_CELLS, '--config.base.evaluate.lengths=(16,32)')),
      'vanishing_variance': Kind('vanishing_variance', (
          '--config=configs/vanishing_variance.py:smoke', "--config.run=('base',)",
          *_CELLS)),
      'counting': Kind('counting', ('--config=configs/counting.py:smoke', _OFTEN)),
      'linear_attention': Kind(
          'linear_attention', ('--config=configs/linear_attention.py:smoke', _OFTEN)),
      'recency_bias': Kind('recency_bias', ('--config=configs/recency_bias.py:smoke',)),
      'language_model': Kind('language_model', (*model, _OFTEN)),
      'language_model, one at a time': Kind('language_model', (
          *model, '--config.train.seeds_at_once=0', '--config.num_seeds=2',
          '--config.train.batch_size=16', '--config.evaluate.num_segments=8',
          '--config.train.save_every_steps=2')),
      'measure': Kind('measure', (
          '--config=configs/measure.py:smoke', f'--config.text={inputs}/text.txt',
          f'--config.checkpoint={inputs}/model')),
      'adapt': Kind('adapt', (
          '--config=configs/adapt.py:pi_smoke', text,
          f'--config.checkpoint={inputs}/model', '--config.train.save_every_steps=1')),
      'long_context': Kind('long_context', (
          '--suite=passkey_smoke', f'--checkpoint={inputs}/model')),
      'league': Kind('league', (
          '--config=configs/league.py:smoke', '--config.base.model.width=8',
          '--config.base.train.save_every_seconds=0.0')),
      'correlation': Kind('correlation', (
          '--config=configs/correlation.py:smoke', _OFTEN,
          f'--config.text.path={inputs}/tasks/text.jsonl',
          f'--config.text.tokenizer={inputs}/tasks')),
  }


def start(kind: Kind, folder: pathlib.Path) -> subprocess.Popen:
  """Starts a run in a folder."""
  return subprocess.Popen(
      [sys.executable, '-m', f'experiments.{kind.study}', f'--workdir={folder}',
       *kind.arguments],
      cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(kind: Kind, folder: pathlib.Path) -> float:
  """Runs to the end; returns the seconds that this takes."""
  begun = time.monotonic()
  process = start(kind, folder)
  _, complaint = process.communicate()
  if process.returncode:
    raise RuntimeError(f'{kind.study}: exit code {process.returncode}: {complaint}')
  return time.monotonic() - begun


def stress(
    kind: Kind, place: pathlib.Path, kills: int, generator: random.Random
) -> tuple[int, int, int]:
  """Returns the numbers of kills, of runs that ended, and of those that differ."""
  seconds = finish(kind, place / 'whole')
  expected = (place / 'whole/results.csv').read_bytes()
  killed = ended = differ = 0
  while killed < kills or (place / 'run').exists():
    process = start(kind, place / 'run')
    try:
      wait = generator.uniform(0, seconds) if killed < kills else None
      begun = time.monotonic()
      _, complaint = process.communicate(timeout=wait)
    except subprocess.TimeoutExpired:
      process.kill()
      process.communicate()
      killed += 1
      continue
    if killed < kills:
      seconds = min(seconds, time.monotonic() - begun)
    ended += 1
    path = place / 'run/results.csv'
    if process.returncode or not path.exists() or path.read_bytes() != expected:
      differ += 1
      kept = place / f'differs_{differ}'
      (place / 'run').rename(kept)
      print(f'{kind.study}: exit code {process.returncode}, {kept}: {complaint[-500:]}',
            file=sys.stderr, flush=True)
    else:
      shutil.rmtree(place / 'run')
  return killed, ended, differ


def prepare(inputs: pathlib.Path) -> None:
  """Makes the text, the model and the trained run that kinds need."""
  inputs.mkdir()
  lines = [f'{i} the quick brown fox jumps over the lazy dog\n' for i in range(300)]
  (inputs / 'text.txt').write_text(''.join(lines))
  model = llama(vocab_size=264, rope=ROPES['default'])
  save_checkpoint(inputs / 'model', model, variables_of(model))
  subprocess.run(
      [sys.executable, '-m', 'experiments.long_context.training_text',
       f'--folder={inputs}/tasks', '--documents=240', '--vocabulary=400'], cwd=ROOT,
      stdout=subprocess.DEVNULL, check=True)


def main() -> None:
  """Reads the command line and prints the table."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--kills', type=int, default=50, help='of each kind')
  parser.add_argument('--only', default='', help='names of kinds, with commas')
  parser.add_argument('--seed', type=int, default=0, help='of the moments of the kills')
  arguments = parser.parse_args()
  os.environ.setdefault('XLA_FLAGS', '--xla_backend_optimization_level=0')
  place = pathlib.Path(tempfile.mkdtemp(prefix='vvlen-kills-'))
  prepare(place / 'inputs')
  chosen = kinds(place / 'inputs')
  only = [name for name in arguments.only.split(',') if name] or list(chosen)
  if unknown := set(only) - {name.partition(',')[0] for name in chosen} - set(chosen):
    parser.error(f'--only must be of {", ".join(chosen)}: {", ".join(unknown)}')
  chosen = {name: kind for name, kind in chosen.items()
            if name in only or name.partition(',')[0] in only}
  if 'mechanism' in chosen:
    finish(Kind('length_generalization', _LENGTHS), place / 'inputs/trained')
  print('| kind | kills | runs that ended | identical |\n|---|---|---|---|', flush=True)
  failed = False
  run = functools.partial(
      stress, kills=arguments.kills, generator=random.Random(arguments.seed))
  for number, (name, kind) in enumerate(chosen.items()):
    (place / str(number)).mkdir()
    killed, ended, differ = run(kind, place / str(number))
    failed |= differ > 0
    print(f'| {name} | {killed} | {ended} | {ended - differ} |', flush=True)
  if failed:
    sys.exit(1)
  shutil.rmtree(place)


if __name__ == '__main__':
  main()
