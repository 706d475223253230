"""How long does a quick experiment take, the first time and the second?

Runs `experiments.length_generalization --config=configs/retrieval.py:quick`, or the
quick variant of lookup, of sensitivity, of counting or of language models. Each is run
twice, in new folders: with an empty compilation cache, and with the cache of the first
run.

  python -m experiments.benchmarks.quick \
      [--config=lookup|sensitivity|counting|language_model]

`first_seconds` and `second_seconds` are the wall time of the whole command, including
tables and figures. The limit is five minutes on two CPU cores. --variant=smoke runs the
smallest variant instead, to see that it runs.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from experiments.benchmarks import _rounds

_COMMANDS = {
    'retrieval': ('length_generalization',),
    'lookup': ('length_generalization',),
    'counting': ('counting',),
    'language_model': ('language_model',),
    'sensitivity': ('sensitivity', "--config.run=('base','l2')"),
}


def main() -> None:
  """Runs the command twice and prints JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--config', choices=_COMMANDS, default='retrieval')
  parser.add_argument('--variant', default='quick', help='of the configuration')
  parser.add_argument('--output', help='also write the JSON to this file')
  args = parser.parse_args()
  module, *options = _COMMANDS[args.config]
  seconds, others = {}, {}
  with tempfile.TemporaryDirectory() as folder:
    for name in ('first', 'second'):
      watch, own = _rounds.Watch(), _children_seconds()
      start = time.perf_counter()
      subprocess.run(
          [sys.executable, '-m', f'experiments.{module}',
           f'--config=configs/{args.config}.py:{args.variant}', *options,
           f'--workdir={folder}/{name}'],
          check=True,
          env=dict(os.environ, JAX_COMPILATION_CACHE_DIR=f'{folder}/cache'),
      )
      seconds[name] = time.perf_counter() - start
      others[name] = watch.others(_children_seconds() - own)
    files = [p for p in pathlib.Path(folder, 'cache').rglob('*') if p.is_file()]
    cached = sum(path.stat().st_size for path in files)
  result = {
      'config': args.config,
      'first_seconds': round(seconds['first'], 1),
      'second_seconds': round(seconds['second'], 1),
      'within_five_minutes': seconds['first'] <= 300,
      'taken_by_others': {name: round(share, 3) for name, share in others.items()},
      'cache_megabytes': round(cached / 1e6, 1),
  }
  _rounds.report(result, args.output)


def _children_seconds() -> float:
  times = os.times()
  return times.children_user + times.children_system


if __name__ == '__main__':
  main()
