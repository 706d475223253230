"""Rounds that alternate between processes, so that all meet the same machine.

What is compared differs in its threads, its devices and its memory, so each has a
process of its own. It gets ready once (imports, compiles, warms up) and then waits
on its standard input, which takes no processor time, for its turn.
"""

from collections.abc import Callable, Sequence
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any


def serve(measure: Callable[[], float], about: dict[str, Any]) -> None:
  """Runs in a worker: answers each line of standard input with one measurement.

  Args:
    measure: takes one measurement and returns a rate.
    about: what the worker says of itself when it is ready.
  """
  _answer(about)
  asleep = time.process_time()
  for _ in sys.stdin:
    waited = time.process_time() - asleep
    # Both say whether workers disturb each other.
    _answer({'rate': measure(), 'processor_seconds_of_waiting': waited})
    asleep = time.process_time()


def _answer(message: dict[str, Any]) -> None:
  print(json.dumps(message), flush=True)


class Worker:
  """A process that measures one of the things compared."""

  def __init__(self, module: str, arguments: Sequence[str]):
    """Starts `python -m module *arguments` and waits until it is ready."""
    self._process = subprocess.Popen(
        [sys.executable, '-m', module, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        # Several processes may share one accelerator.
        env=dict(os.environ, XLA_PYTHON_CLIENT_PREALLOCATE='false'),
    )
    self.rates: list[float] = []
    self.processor_seconds_of_waiting = 0.0
    self.about = self._read()

  def measure(self) -> None:
    """Adds one rate to `rates`."""
    self._process.stdin.write('go\n')
    self._process.stdin.flush()
    answer = self._read()
    self.rates.append(answer['rate'])
    self.processor_seconds_of_waiting += answer['processor_seconds_of_waiting']

  def median(self) -> float:
    """Returns the median rate."""
    return statistics.median(self.rates)

  def close(self) -> None:
    """Ends the process."""
    self._process.stdin.close()
    self._process.wait()

  def _read(self) -> dict[str, Any]:
    line = self._process.stdout.readline()
    if not line:
      raise RuntimeError(f'{self._process.args} ended with {self._process.wait()}')
    return json.loads(line)


def alternate(workers: dict[str, Worker], rounds: int) -> None:
  """Lets the workers measure one after the other, each once a round, then ends them.

  Args:
    workers: by name.
    rounds: measurements of each.
  """
  names = list(workers)
  for i in range(rounds):
    # Whoever goes first changes, lest one always follow the same neighbour.
    for j in range(len(names)):
      workers[names[(i + j) % len(names)]].measure()
    rates = ', '.join(f'{name} {w.rates[-1]:,.0f}' for name, w in workers.items())
    print(f'Round {i + 1} of {rounds}: {rates}', flush=True)
  for worker in workers.values():
    worker.close()


def report(result: dict[str, Any], output: str | None) -> None:
  """Prints the result as the last line, and writes it to a file if one is named."""
  if output is not None:
    folder = os.path.dirname(os.path.abspath(output))
    os.makedirs(folder, exist_ok=True)
    with open(output, 'w') as f:
      f.write(json.dumps(result, indent=2) + '\n')
  print(json.dumps(result))
