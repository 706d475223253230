"""How much memory does a process need to read a long text?

Texts of random words in .jsonl files of two sizes are read by
`experiments.language_model`, each in a process of its own: once before its tokens are
in a file, and once after; then batches of windows are read. `peak` is the memory that
no file backs, beyond that after the imports. `peak_rss` is all resident memory, also
the pages of the mapped file that were touched, which the system may take back. The
ratio is the growth of `peak` in bytes per document.

  python -m experiments.benchmarks.text_memory --gigabytes=0.25 1    # Linux
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

from experiments.benchmarks import _rounds

_CHARACTERS = 2_000  # of a document, on average


def write(path: pathlib.Path, num_bytes: int) -> int:
  """Writes documents of some 2,000 characters; returns their number."""
  rng, written, count = np.random.default_rng(0), 0, 0
  words = ' '.join(f'word{i}' for i in rng.integers(5_000, size=500_000))
  with path.open('w') as file:
    while written < num_bytes:
      begin, size = rng.integers(2_000_000), rng.integers(1, 2 * _CHARACTERS)
      text = words[begin:begin + size] + '.'
      written += file.write(json.dumps({'text': text}) + '\n')
      count += 1
  return count


def _anonymous() -> int:
  """Returns the memory of this process that is not pages of files, in bytes."""
  for line in pathlib.Path('/proc/self/status').read_text().splitlines():
    if line.startswith('RssAnon:'):
      return int(line.split()[1]) * 1024
  raise OSError('no RssAnon in /proc/self/status')


def read(path: str) -> None:
  """Reads a text and 50 batches in this process, and prints its peak as JSON."""
  from configs import language_model
  from experiments.language_model import training
  from vvlen.tasks import text as packing
  from vvlen.tasks.tokens import Blocks

  config = language_model.get_config()
  config.text.path = path
  peak, ended = [_anonymous()], threading.Event()

  def watch():
    while not ended.wait(0.01):
      peak[0] = max(peak[0], _anonymous())

  before = peak[0]
  watching = threading.Thread(target=watch)
  watching.start()
  start = time.perf_counter()
  text = training.read_text(config)
  seconds = time.perf_counter() - start
  blocks = Blocks(text.documents, 256, begin=text.tokenizer.begin)
  batches = packing.batches(blocks, 32, 0)
  for _ in range(50):
    next(batches)
  ended.set()
  watching.join()
  rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  print(json.dumps({'peak': peak[0] - before, 'peak_rss': rss,
                    'seconds': round(seconds, 1),
                    'documents': text.facts['documents'],
                    'tokens': text.facts['tokens']}))


def main() -> None:
  """Measures, and prints JSON as the last line."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--gigabytes', type=float, nargs=2, default=(0.25, 1.0))
  parser.add_argument('--output', help='also write the JSON to this file')
  parser.add_argument('--read', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.read:
    read(args.read)
    return
  rows = []
  with tempfile.TemporaryDirectory() as name:
    environment = {**os.environ, 'XDG_CACHE_HOME': f'{name}/cache'}
    for size in args.gigabytes:
      path = pathlib.Path(name, 'text.jsonl')
      write(path, int(size * 1e9))
      for cached in (False, True):
        out = subprocess.run(
            [sys.executable, '-m', 'experiments.benchmarks.text_memory',
             f'--read={path}'], capture_output=True, text=True, check=True,
            env=environment).stdout
        row = {'gigabytes': size, 'tokens_in_a_file_before': cached, **json.loads(out)}
        rows.append(row)
        print(f'{size:g} GB, {row["documents"]:,} documents: '
              f'{row["peak"] / 1e6:.0f} MB, {row["seconds"]} s', flush=True)
      path.unlink()
  few, many = rows[0], rows[2]
  ratio = (many['peak'] - few['peak']) / (many['documents'] - few['documents'])
  _rounds.report({
      'bytes_for_each_document': round(ratio, 1), 'rows': rows,
  }, args.output)


if __name__ == '__main__':
  sys.exit(main())
