"""Measurements in rounds that alternate between processes on the same machine.

The programs compared differ in threads, devices and memory, so each runs in its own
process. It prepares once (imports, compiles, warms up) and then waits for its turn on
standard input, which takes no processor time.

Threads that wait for each other suffer far more from other programs than threads that
do not: a job that cost vvlen a third of its speed slowed PyTorch down to a tenth. So
rounds in which other programs were busy are measured again.
"""

from collections.abc import Callable, Sequence
import functools
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

from experiments.harness import machine

# If other programs take more than this share of all cores, a round does not count.
BUSY = 0.05


def serve(measure: Callable[[], float], about: dict[str, Any]) -> None:
  """Runs in a worker: answers each line of standard input with one measurement.

  Args:
    measure: takes one measurement and returns a rate.
    about: facts that the worker reports when it is ready.
  """
  _answer(about)
  asleep = time.process_time()
  for _ in sys.stdin:
    waiting = time.process_time() - asleep
    awake = time.process_time()
    rate = measure()
    asleep = time.process_time()
    _answer({'rate': rate, 'own': asleep - awake, 'waiting': waiting})


def serve_calls(
    advance: Callable[[], Any], unit: float, about: dict[str, Any], seconds: float = 0.0
) -> None:
  """Runs in a worker: serves the rate of a function, after a first call that compiles.

  Args:
    advance: the function, whose result is there when it returns.
    unit: how much a call does; the rate is in units per second.
    about: as in `serve`.
    seconds: how long a measurement lasts at least; 0 for a single call.
  """

  def rate():
    start = time.perf_counter()
    for calls in itertools.count(1):
      advance()
      passed = time.perf_counter() - start
      if passed >= seconds:
        return calls * unit / passed

  advance()
  serve(rate, about)


def _answer(message: dict[str, Any]) -> None:
  print(json.dumps(message), flush=True)


class Watch:
  """Measures, from its creation on, the processor time of other processes."""

  def __init__(self):
    """Starts measuring."""
    self._start = time.perf_counter(), _busy_seconds()

  def others(self, own: float) -> float:
    """Returns the share of all cores that other processes took; 0 if unknown.

    Args:
      own: processor seconds of the processes that are measured.
    """
    start, busy = self._start
    seconds = time.perf_counter() - start
    others = _busy_seconds() - busy - own
    return max(0.0, others) / seconds / (os.cpu_count() or 1)


def _busy_seconds() -> float:
  """Returns the busy seconds of all cores together since boot; 0 if unknown."""
  try:
    with open('/proc/stat') as f:
      ticks = [int(x) for x in f.readline().split()[1:9]]
  except OSError:
    return 0.0
  idle, waiting_for_disk = ticks[3:5]
  return (sum(ticks) - idle - waiting_for_disk) / os.sysconf('SC_CLK_TCK')


def memory(field: str) -> int:
  """Returns a field of this process's memory in bytes, such as 'VmRSS', on Linux."""
  for line in pathlib.Path('/proc/self/status').read_text().splitlines():
    if line.startswith(f'{field}:'):
      return int(line.split()[1]) * 1024
  raise OSError(f'no {field} in /proc/self/status')


def forget_peak() -> None:
  """Has 'VmHWM' of `memory` be the peak from now on, on Linux."""
  pathlib.Path('/proc/self/clear_refs').write_text('5')


def compilations() -> list[str]:
  """Returns a list to which each program that JAX compiles from now on is added."""
  import jax  # workers that measure another library do not need it

  compiled: list[str] = []
  jax.monitoring.register_event_duration_secs_listener(
      lambda event, *_, **__: compiled.append(event)
      if event.endswith('backend_compile_duration') else None)
  return compiled


def on_core(number: int) -> list[str]:
  """Returns the words before a command that bind it to a core, which may be shared."""
  cores = sorted(os.sched_getaffinity(0))
  return ['taskset', '--cpu-list', str(cores[number % len(cores)])]


class Worker:
  """One of the programs compared, in its own process or in several."""

  def __init__(self, module: str, arguments: Sequence[str], processes: int = 1,
               wait: bool = True):
    """Starts `python -m module *arguments` and waits until it is ready.

    Args:
      module: the module to run, which calls `serve`.
      arguments: for its command line.
      processes: how many to start. If several, each is bound to its own core, all
        measure at the same time, and their rates are added.
      wait: if False, `about` waits instead, so that workers compile together.
    """
    self._processes = []
    for i in range(processes):
      bind = on_core(i) if processes > 1 else []
      self._processes.append(subprocess.Popen(
          [*bind, sys.executable, '-m', module, *arguments],
          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
          # Several processes may share one accelerator.
          env=dict(os.environ, XLA_PYTHON_CLIENT_PREALLOCATE='false'),
      ))
    self.rates: list[float] = []
    self.waiting = 0.0  # processor seconds spent between measurements
    if wait:
      _ = self.about

  @functools.cached_property
  def about(self) -> dict[str, Any]:
    """What the first process reported when all were ready."""
    first, *_ = [_read(process) for process in self._processes]
    return first

  def measure(self) -> tuple[float, float]:
    """Returns a rate, and the share of all cores that others took meanwhile."""
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
  """Lets workers measure in turn, sets their `rates`, and ends them.

  Args:
    workers: {name: worker}.
    rounds: how many rounds should count. At most eight times as many are made. If no
      round was quiet, the last ones count. A single round always counts: it is to see
      that everything runs.

  Returns:
    Fields of the result: rates by round, how many rounds were quiet and how many did
    not count, the largest share of the machine that others took in a round that counts,
    and the processor seconds that all workers spent waiting.
  """
  names = list(workers)
  for worker in workers.values():
    _ = worker.about  # waits until it is ready
  quiet: list[tuple[dict[str, float], float]] = []
  busy: list[tuple[dict[str, float], float]] = []
  most = 8 * rounds if rounds > 1 else rounds
  while len(quiet) < rounds and len(quiet) + len(busy) < most:
    # The order changes, so that none always runs after the same one.
    first = len(quiet) % len(names)
    answers = {name: workers[name].measure() for name in names[first:] + names[:first]}
    rates = {name: answers[name][0] for name in names}
    others = max(share for _, share in answers.values())
    (quiet if others <= BUSY else busy).append((rates, others))
    line = ', '.join(f'{name} {rate:,.0f}' for name, rate in rates.items())
    if others > BUSY:
      line += f' (not counted: others took {others:.0%} of the machine)'
    print(f'Round {len(quiet) + len(busy)}: {line}', flush=True)
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
  """Times functions in turn, all in this process.

  Args:
    runs: {name: function of the number of the round}.
    rounds: how many, after a first one that compiles. Rounds in which other programs
      were busy do not count, unless there was no quiet one.

  Returns:
    {name: seconds of the rounds that count}; and fields of the result: how many rounds
    were made, how many were quiet, and the largest share of the machine that others
    took in a round that counts.
  """
  seconds: dict[str, list[float]] = {name: [] for name in runs}
  others = []
  for number in range(rounds + 1):
    watch, own = Watch(), time.process_time()
    # The order changes, so that none always comes first or after the same one.
    first = number // 2 % len(runs)
    order = [*runs][first:] + [*runs][:first]
    for name in order[:: 1 if number % 2 else -1]:
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
  """Prints a result as JSON, and writes it to the file `output` unless None.

  Adds the processor and the versions of packages; `result` may have more versions.
  """
  versions = machine.versions() | result.get('versions', {})
  result = result | {'processor': machine.processor(), 'versions': versions}
  if output is not None:
    output = os.path.abspath(os.path.expanduser(output))
    os.makedirs(os.path.dirname(output), exist_ok=True)
    with open(output, 'w') as f:
      f.write(json.dumps(result, indent=2) + '\n')
  print(json.dumps(result))
