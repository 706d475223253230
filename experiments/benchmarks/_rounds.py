"""Rounds that alternate between processes, so that all meet the same machine.

What is compared differs in its threads, its devices and its memory, so each has a
process of its own. It gets ready once (imports, compiles, warms up) and then waits
on its standard input, which takes no processor time, for its turn.

Threads that wait for each other lose far more to a busy neighbour than threads that
do not: PyTorch has been seen at a tenth of its speed beside a job that took a third
of vvlen's. So a round in which other programs were busy is measured again.
"""

from collections.abc import Callable, Sequence
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

# Of all cores, taken by others: more than that and a round does not count.
BUSY = 0.05


def serve(measure: Callable[[], float], about: dict[str, Any]) -> None:
  """Runs in a worker: answers each line of standard input with one measurement.

  Args:
    measure: takes one measurement and returns a rate.
    about: what the worker says of itself when it is ready.
  """
  _answer(about)
  asleep = time.process_time()
  for _ in sys.stdin:
    waiting = time.process_time() - asleep
    awake = time.process_time()
    rate = measure()
    asleep = time.process_time()
    _answer({'rate': rate, 'own': asleep - awake, 'waiting': waiting})


def _answer(message: dict[str, Any]) -> None:
  print(json.dumps(message), flush=True)


class Watch:
  """Notes, from when it is made, what other processes take of the processor."""

  def __init__(self):
    """Starts."""
    self._start = time.perf_counter(), _busy_seconds()

  def others(self, own: float) -> float:
    """Returns the share of all cores that others took; 0 where not known.

    Args:
      own: processor seconds that were not taken by others.
    """
    start, busy = self._start
    seconds = time.perf_counter() - start
    others = _busy_seconds() - busy - own
    return max(0.0, others) / seconds / (os.cpu_count() or 1)


def _busy_seconds() -> float:
  """Returns the seconds that all cores together were not idle; 0 if unknown."""
  try:
    with open('/proc/stat') as f:
      ticks = [int(x) for x in f.readline().split()[1:9]]
  except OSError:
    return 0.0
  idle, waiting_for_disk = ticks[3:5]
  return (sum(ticks) - idle - waiting_for_disk) / os.sysconf('SC_CLK_TCK')


class Worker:
  """One of the things compared, in a process of its own, or in several at once."""

  def __init__(self, module: str, arguments: Sequence[str], processes: int = 1):
    """Starts `python -m module *arguments` and waits until it is ready.

    Args:
      module: that serves.
      arguments: of its command line.
      processes: how many to start. Where there are several, each is bound to a core
        of its own, they measure at the same time, and their rates are added.
    """
    cores = sorted(os.sched_getaffinity(0)) if processes > 1 else []
    self._processes = []
    for i in range(processes):
      bind = ['taskset', '--cpu-list', str(cores[i])] if cores else []
      self._processes.append(subprocess.Popen(
          [*bind, sys.executable, '-m', module, *arguments],
          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
          # Several processes may share one accelerator.
          env=dict(os.environ, XLA_PYTHON_CLIENT_PREALLOCATE='false'),
      ))
    self.rates: list[float] = []
    self.waiting = 0.0  # processor seconds spent between measurements
    self.about, *_ = [_read(process) for process in self._processes]

  def measure(self) -> tuple[float, float]:
    """Returns a rate, and the share of the cores that others took meanwhile."""
    watch = Watch()
    for process in self._processes:
      process.stdin.write('go\n')
      process.stdin.flush()
    answers = [_read(process) for process in self._processes]
    total = lambda name: sum(answer[name] for answer in answers)
    self.waiting += total('waiting')
    return total('rate'), watch.others(total('own'))

  def median(self) -> float:
    """Returns the median rate."""
    return statistics.median(self.rates)

  def close(self) -> None:
    """Ends the processes."""
    for process in self._processes:
      process.stdin.close()
      process.wait()


def _read(process: subprocess.Popen) -> dict[str, Any]:
  line = process.stdout.readline()
  if not line:
    raise RuntimeError(f'{process.args} ended with {process.wait()}')
  return json.loads(line)


def alternate(workers: dict[str, Worker], rounds: int) -> dict[str, Any]:
  """Lets workers measure in turn, fills in their `rates`, and ends them.

  Args:
    workers: by name.
    rounds: measurements of each that are to count. At most eight times as many are
      made; where none was quiet, the last ones count.

  Returns:
    For the result: rates by round, how many rounds were quiet and how many did not
    count, the most of the machine that others took in those that do, and the
    processor seconds that all workers spent waiting.
  """
  names = list(workers)
  quiet: list[tuple[dict[str, float], float]] = []
  busy: list[tuple[dict[str, float], float]] = []
  while len(quiet) < rounds and len(quiet) + len(busy) < 8 * rounds:
    # Whoever goes first changes, lest one always follow the same neighbour.
    first = len(quiet) % len(names)
    answers = {name: workers[name].measure() for name in names[first:] + names[:first]}
    rates = {name: answers[name][0] for name in names}
    others = max(share for _, share in answers.values())
    (quiet if others <= BUSY else busy).append((rates, others))
    told = ', '.join(f'{name} {rate:,.0f}' for name, rate in rates.items())
    if others > BUSY:
      told += f' (not counted: others took {others:.0%} of the machine)'
    print(f'Round {len(quiet) + len(busy)}: {told}', flush=True)
  counted = quiet or busy[-rounds:]
  for name, worker in workers.items():
    worker.rates = [rates[name] for rates, _ in counted]
    worker.close()
  return {
      'rounds': {
          name: [float(f'{x:.4g}') for x in w.rates] for name, w in workers.items()
      },
      'quiet_rounds': len(quiet),
      'rounds_not_counted': len(quiet) + len(busy) - len(counted),
      'most_taken_by_others': round(max(others for _, others in counted), 3),
      'processor_seconds_of_waiting': round(
          sum(worker.waiting for worker in workers.values()), 2),
  }


def in_turns(
    runs: dict[str, Callable[[int], Any]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
  """Times functions by turns in this process, which they may keep busy all alike.

  Args:
    runs: by name, functions of the number of the round.
    rounds: how many, beside a first one, which compiles. Those in which other programs
      were busy do not count, unless all are.

  Returns:
    Seconds of the rounds that count, by name; and, for the result, how many rounds were
    quiet and the most of the machine that others took in those that count.
  """
  seconds: dict[str, list[float]] = {name: [] for name in runs}
  others = []
  for number in range(rounds + 1):
    watch, own = Watch(), time.process_time()
    # Whoever goes first changes, lest one always follow the same neighbour.
    for name in list(runs)[:: 1 if number % 2 else -1]:
      start = time.perf_counter()
      runs[name](number)
      seconds[name].append(time.perf_counter() - start)
    others.append(watch.others(time.process_time() - own))
  quiet = [i for i in range(1, rounds + 1) if others[i] <= BUSY]
  counted = quiet or range(1, rounds + 1)
  return {name: [x[i] for i in counted] for name, x in seconds.items()}, {
      'rounds_made': rounds, 'quiet_rounds': len(quiet),
      'most_taken_by_others': round(max(others[i] for i in counted), 3),
  }


def report(result: dict[str, Any], output: str | None) -> None:
  """Prints the result as the last line, and writes it to a file if one is named."""
  if output is not None:
    os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
    with open(output, 'w') as f:
      f.write(json.dumps(result, indent=2) + '\n')
  print(json.dumps(result))
