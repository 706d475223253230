r"""What takes the time of a run?

Runs a command of experiments, and notes every 20 ms where its main thread is:

  importing    modules of Python
  tracing      functions to programs, with lowering
  compiling    programs, or loading them from the compilation cache
  training     steps, and waiting for them
  saving       checkpoints
  measuring    models, or simulating
  reporting    tables and pages
  figures      by matplotlib
  other        all else

  python -m experiments.benchmarks.time_of_run length_generalization \
      --config=configs/retrieval.py:quick --workdir=runs/time

The last line is JSON with the seconds, and the share of each part. Options of this
command, such as --output=FILE, come before the name of the experiment.
"""

import argparse
import collections
import runpy
import sys
import threading
import time
from types import FrameType

from experiments.benchmarks import _rounds

# A frame belongs to a part if its file and function contain one of these words. The
# innermost such frame of a stack decides. An import anywhere in the stack comes first,
# then frames of `_FIRST`, then those of `_THEN`: training, too, traces and compiles.
_IMPORTING = 'importlib._bootstrap'
_FIRST = {
    'compiling': ('jax/_src/compiler.py', 'jax/_src/compilation_cache.py'),
    'tracing': ('jax/_src/interpreters/partial_eval.py',
                'jax/_src/interpreters/mlir.py'),
    'saving': ('vvlen/training/checkpoint.py', 'orbax/'),
    'figures': ('matplotlib/',),
}
_THEN = {
    'reporting': ('vvlen/reporting/', '/report.py', '/tables.py', '/answer.py'),
    'training': ('vvlen/training/',),
    'measuring': ('vvlen/evaluation/', 'vvlen/simulation/', 'evaluate', 'measure',
                  'experiments/mechanism/run.py'),
}
_SECONDS = 0.02  # between two looks
PARTS = ('importing', 'tracing', 'compiling', 'training', 'saving', 'measuring',
         'reporting', 'figures', 'other')


def part(frame: FrameType | None) -> str:
  """Returns the part that a stack, given by its innermost frame, belongs to."""
  names = []
  while frame is not None:
    names.append(f'{frame.f_code.co_filename}:{frame.f_code.co_name}')
    frame = frame.f_back
  if any(_IMPORTING in name for name in names):
    return 'importing'
  for group in (_FIRST, _THEN):
    for name in names:
      for found, words in group.items():
        if any(word in name for word in words):
          return found
  return 'other'


class Sampler(threading.Thread):
  """Looks at the stack of a thread until it is told to stop."""

  def __init__(self, thread: int):
    """Prepares to look at the thread of this identifier."""
    super().__init__(daemon=True)
    self._thread, self._ended = thread, threading.Event()
    self.seconds: dict[str, float] = collections.defaultdict(float)

  def run(self) -> None:
    """Adds the time since the last look to the part that is found."""
    before = time.perf_counter()
    while not self._ended.wait(_SECONDS):
      found = part(sys._current_frames().get(self._thread))
      now = time.perf_counter()
      self.seconds[found] += now - before
      before = now

  def stop(self) -> None:
    """Ends, after the last look."""
    self._ended.set()
    self.join()


def main() -> None:
  """Runs the experiment in this process, and prints the parts."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--output', help='also write the JSON to this file')
  parser.add_argument('experiment')
  parser.add_argument('arguments', nargs=argparse.REMAINDER, help='of the experiment')
  args = parser.parse_args()
  watch, own, start = _rounds.Watch(), time.process_time(), time.perf_counter()
  sampler = Sampler(threading.get_ident())
  sampler.start()
  sys.argv = [args.experiment, *args.arguments]
  code = 0
  try:
    runpy.run_module(f'experiments.{args.experiment}', run_name='__main__')
  except SystemExit as ended:
    code = ended.code
  sampler.stop()
  if code:
    sys.exit(code)
  seconds, others = time.perf_counter() - start, watch.others(time.process_time() - own)
  total = sum(sampler.seconds.values())
  share = {name: sampler.seconds[name] / total for name in PARTS}
  for name, value in share.items():
    print(f'{name:10} {value:6.1%} {value * seconds:8.1f} s')
  _rounds.report({
      'command': ' '.join(sys.argv), 'seconds': round(seconds, 1),
      'share': {name: round(x, 3) for name, x in share.items()},
      'taken_by_others': round(others, 3),
  }, args.output)


if __name__ == '__main__':
  main()
