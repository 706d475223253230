r"""Makes all measurements of an accelerator, by one command.

Runs what `ROWS` lists, the most important first, each in its own process with a time
limit, and writes accelerator_NAME.json, with the name of the device, after each. The
same command runs what is not done.

  python -m experiments.benchmarks.accelerator [--minutes=25]

  --minutes  what does not fit into this time is left for the next call
  --only     names of rows, as in --only=agreement,retrieval
  --output   folder of the file; experiments/results/benchmarks if not given
  --tiny     the smallest sizes, to see that every row runs; written into --workdir
  --workdir  folder for the runs of experiments; they resume

A TPU takes one process at a time: rows that compare several processes are left out.
"""

import argparse
from collections.abc import Sequence
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any, NamedTuple

from experiments.harness import machine

_RESULTS = pathlib.Path(__file__).parents[1] / 'results/benchmarks'
_LEAST_SECONDS = 20.0  # a row is not started in less
_DEVICE_SECONDS = 180.0  # until JAX must have found the device
_STOPPED = threading.Event()  # by SIGTERM
_DEVICE = ('import jax, json; d = jax.devices(); print(json.dumps([len(d), '
           'd[0].device_kind, d[0].platform, jax.__version__]))')


class Row(NamedTuple):
  """One measurement."""

  module: str  # of experiments
  arguments: Sequence[str]  # {workdir} stands for the folder of runs
  tiny: Sequence[str]  # replaces the arguments with --tiny
  seconds: float  # its time limit
  several: bool = False  # whether several processes use the device in turns


def _table(config: str) -> Row:
  run = f'--workdir={{workdir}}/{config}'
  tiny = [f'--config=configs/{config}.py:smoke', "--config.arms=('layer_norm',)",
          '--config.evaluate.lengths=(16,32)']
  return Row('length_generalization', [f'--config=configs/{config}.py', run],
             [*tiny, run], 900)


ROWS = {
    'agreement': Row('benchmarks.device_agreement', [], ['--tiny'], 300),
    'retrieval': Row('benchmarks.retrieval_training', [],
                     ['--rounds=1', '--seconds=0.1', '--steps=2'], 240, several=True),
    'table_1': _table('retrieval'),
    'lookup': Row('benchmarks.retrieval_training', ['--task=lookup'],
                  ['--task=lookup', '--rounds=1', '--seconds=0.1', '--steps=2'], 240,
                  several=True),
    'recency': Row('benchmarks.recency_simulation', ['--long'],
                   ['--long', '--tiny', '--rounds=1'], 240, several=True),
    'misalignment_term': Row(
        'benchmarks.regularizer_cost',
        ['--vocabulary=128000', '--width=2048', '--length=1024', '--rounds=20'],
        ['--vocabulary=256', '--width=64', '--layers=1', '--length=16', '--rounds=2'],
        240),
    'chunked_loss': Row(
        'benchmarks.chunked_loss',
        ['--vocabulary=128256', '--width=2048', '--length=4096'],
        ['--vocabulary=512', '--width=32', '--length=64', '--rounds=1'], 240),
    'llama_1b': Row('benchmarks.llama_training', ['--large'],
                    ['--large', '--tiny', '--rounds=1'], 400),
    'generation': Row('benchmarks.llama_generation', [], ['--tiny', '--rounds=1'], 240,
                      several=True),
    'attention': Row('benchmarks.long_attention', [],
                     ['--tokens=512', '--rounds=1'], 240, several=True),
    'table_2': _table('lookup'),
}


def run(row: Row, tiny: bool, workdir: str, limit: float) -> dict[str, Any]:
  """Runs one row.

  Args:
    row: the measurement.
    tiny: whether at the smallest sizes.
    workdir: folder for runs of experiments.
    limit: seconds after which it is ended.

  Returns:
    Its command, seconds, state ('done', 'failed', 'out of time', or 'stopped' where
    SIGTERM told this process to end), the JSON that a benchmark prints last (None if it
    printed none), and the last lines that it printed.
  """
  arguments = [x.format(workdir=workdir) for x in (row.tiny if tiny else row.arguments)]
  command = ['-m', f'experiments.{row.module}', *arguments]
  start = time.monotonic()
  process = subprocess.Popen(
      [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
      text=True, start_new_session=True)
  state = ''
  try:
    while not state:
      try:
        said, _ = process.communicate(timeout=0.5)
        state = 'failed' if process.returncode else 'done'
      except subprocess.TimeoutExpired:
        if _STOPPED.is_set():
          state = 'stopped'
        elif time.monotonic() - start > limit:
          state = 'out of time'
  finally:
    if process.poll() is None:  # or it would keep the device
      said = _end(process)
  lines = [line for line in said.splitlines() if line.strip()]
  result = None
  if lines and lines[-1].startswith('{'):
    result = json.loads(lines.pop())
  return {'command': ' '.join(['python', *command]), 'state': state,
          'seconds': round(time.monotonic() - start, 1), 'result': result,
          'said': [line[:200] for line in lines[-12:]]}


def _end(process: subprocess.Popen) -> str:
  """Ends a row and all its processes; returns what it has printed."""
  # SIGTERM lets an experiment save, so that the next call resumes it.
  for number, wait in ((signal.SIGTERM, 30), (signal.SIGKILL, None)):
    try:
      os.killpg(process.pid, number)
      return process.communicate(timeout=wait)[0]
    except subprocess.TimeoutExpired:
      continue
    except ProcessLookupError:
      break
  return process.communicate()[0]


def main() -> None:
  """Runs what is not done, and prints, as the last line, JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--minutes', type=float, default=25)
  parser.add_argument('--only', default=','.join(ROWS))
  parser.add_argument('--output', type=pathlib.Path, default=_RESULTS)
  parser.add_argument('--tiny', action='store_true')
  parser.add_argument('--workdir', default='runs/accelerator')
  args = parser.parse_args()
  args.workdir = os.path.expanduser(args.workdir)
  end = time.monotonic() + 60 * args.minutes
  names = args.only.split(',')
  if unknown := set(names) - set(ROWS):
    parser.error(f'--only: no row {min(unknown)!r}; there are {", ".join(ROWS)}')
  signal.signal(signal.SIGTERM, lambda *_: _STOPPED.set())
  # Another process asks: this one must leave the device's memory to the rows.
  try:
    said = subprocess.check_output(
        [sys.executable, '-c', _DEVICE], text=True, timeout=_DEVICE_SECONDS)
  except subprocess.TimeoutExpired:
    parser.error(f'JAX has found no device in {_DEVICE_SECONDS:.0f} seconds: does '
                 'another process hold it?')
  count, kind, platform, version = json.loads(said.splitlines()[-1])
  if platform == 'cpu' and not args.tiny:
    parser.error('JAX sees no accelerator, only a CPU; --tiny shows that all rows run')
  folder = pathlib.Path(args.workdir) if args.tiny else args.output.expanduser()
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f'accelerator_{re.sub("[^a-z0-9]+", "_", kind.lower())}.json'
  about = {'device': f'{count} x {kind}', 'jax': version, 'tiny': args.tiny}
  found = json.loads(path.read_text()) if path.exists() else {'rows': {}}
  if {k: found.get(k) for k in about} != about and found['rows']:
    parser.error(f'{path} is of {found.get("device")}, jax {found.get("jax")}, not of '
                 f'{about["device"]}, jax {version}: move it away')
  rows = found['rows']
  for name in names:
    left = end - time.monotonic()
    if rows.get(name, {}).get('state') == 'done' or left < _LEAST_SECONDS:
      continue
    if ROWS[name].several and platform == 'tpu':
      print(f'{name}: left out, as a TPU takes one process at a time', flush=True)
      continue
    print(f'{name}: {left / 60:.1f} minutes left', flush=True)
    rows[name] = run(ROWS[name], args.tiny, args.workdir, min(left, ROWS[name].seconds))
    rows[name]['started_by'] = machine.commit()
    print(f'{name}: {rows[name]["state"]}, {rows[name]["seconds"]} s', flush=True)
    ordered = {x: rows[x] for x in ROWS if x in rows}
    partial = path.with_suffix('.partial')
    partial.write_text(json.dumps(about | {'rows': ordered}, indent=2) + '\n')
    partial.replace(path)
    if _STOPPED.is_set():
      sys.exit(143)
  print(json.dumps({'file': str(path), 'rows': {
      name: rows.get(name, {}).get('state', 'not run') for name in ROWS}}))


if __name__ == '__main__':
  main()
