r"""How does training an ensemble scale with its seeds, and with the devices?

Trains the Baseline of configs/retrieval.py:cpu for a few updates, each number of seeds,
devices and processes anew:

  seeds      1 to 1,000, on one device per core
  devices    1 to 8 virtual ones of this CPU, at the same number of seeds
  processes  1 and 2 of one run, as with --distributed, with one device and one core
             each, as if each were a machine, at the same number of seeds

  python -m experiments.benchmarks.scaling

and reports, for each,

  seed-steps/s  updates per second, summed over the seeds
  efficiency    this rate / (r n), with the rate r of one seed on one device, and
                n = min(devices, cores, seeds)
  padded        rows that only fill up the devices (`vvlen.sharding.padding`)
  compiled      programs compiled for the first block of seeds
  recompiled    programs compiled for a second block of other seeds: should be none
  others        the share of all cores that other programs took; 5 % or more is too much
                for the rates to mean anything

If there are more devices than cores, they share the cores. Their efficiency then says
what sharding costs, not how fast 8 chips are.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

from etils import epath
import jax
from jax.experimental import multihost_utils
import numpy as np

from configs import retrieval
from experiments.benchmarks import _rounds
from experiments.harness import machine, processes
from experiments.length_generalization import training
from vvlen import sharding
from vvlen.training import ensemble

MODULE = 'experiments.benchmarks.scaling'
_STEPS = 10  # updates per call


def main() -> None:
  """Measures every number of seeds and devices, each in its own process."""
  args = _arguments()
  if args.worker:
    print(json.dumps(_measure(args)), flush=True)
    return
  cores = len(os.sched_getaffinity(0))
  alone = _run(args, 1, 1)
  rows = [
      {'sweep': sweep, **measured, 'efficiency': efficiency(measured, alone, cores)}
      for sweep, points in (
          ('seeds', [(seeds, cores) for seeds in args.seeds]),
          ('devices', [(args.seeds_of_devices, n) for n in args.devices]),
          ('processes', [(args.seeds_of_devices, n, n, True) for n in args.processes]))
      for measured in [_run(args, *numbers) for numbers in points]
  ]
  result = {
      'benchmark': 'scaling', 'steps_per_call': _STEPS, 'alone': alone, 'rows': rows,
      'recompiled': sum(row['recompiled'] for row in rows),
      'cores': cores,
  }
  if args.output:
    path = epath.Path(args.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix('.md').write_text(table(result))
  _rounds.report(result, args.output)


def efficiency(
    measured: dict[str, Any], alone: dict[str, Any], cores: int
) -> float:
  """Returns the rate, as a share of what as many cores as can be used would do."""
  used = min(measured['devices'], measured['seeds'], cores)
  return measured['rate'] / (alone['rate'] * used)


def table(result: dict[str, Any]) -> str:
  """Returns the rows of a result as Markdown."""
  names = ('sweep', 'seeds', 'devices', 'processes', 'padded', 'seed-steps/s',
           'efficiency', 'compiled', 'recompiled', 'others')
  lines = [f'| {" | ".join(names)} |', '|' + '---|' * len(names)]
  for row in result['rows']:
    cells = (row['sweep'], row['seeds'], row['devices'], row['processes'],
             row['padded'], f'{row["rate"]:,.1f}', f'{row["efficiency"]:.2f}',
             row['compiled'], row['recompiled'], f'{row["others"]:.0%}')
    lines.append(f'| {" | ".join(map(str, cells))} |')
  return '\n'.join([
      '# Ensembles by seeds and devices', '',
      f'{machine.processor()}; the columns are explained in '
      '`experiments/benchmarks/scaling.py`.', '', *lines, ''])


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--seeds', type=int, nargs='+', default=[1, 10, 100, 1000])
  parser.add_argument('--devices', type=int, nargs='+', default=[1, 2, 3, 4, 8])
  parser.add_argument('--seeds_of_devices', type=int, default=24,
                      help='the number of seeds where devices or processes vary')
  parser.add_argument('--processes', type=int, nargs='+', default=[1, 2])
  parser.add_argument('--seconds', type=float, default=5.0, help='of each measurement')
  parser.add_argument('--width', type=int, default=128, help='of the model')
  parser.add_argument('--output', help='also write the JSON, and a .md beside it')
  parser.add_argument('--worker', type=int, nargs=2, help=argparse.SUPPRESS)
  return parser.parse_args()


def _run(
    args: argparse.Namespace, seeds: int, devices: int, count: int = 1,
    bound: bool = False,
) -> dict[str, Any]:
  """Measures in new processes, `count` of them, that share so many devices.

  If `bound`, each is bound to a core of its own, and to the first again where there are
  fewer cores.
  """
  command = [sys.executable, '-m', MODULE, f'--seconds={args.seconds}',
             f'--width={args.width}', '--worker', str(seeds), str(devices)]
  own = {'JAX_NUM_CPU_DEVICES': str(devices // count)}
  if count > 1:
    own |= {'JAX_COORDINATOR_ADDRESS': f'127.0.0.1:{_free_port()}',
            'JAX_NUM_PROCESSES': str(count)}
  bind = _rounds.on_core if bound else lambda _: []
  started = [
      subprocess.Popen([*bind(number), *command], stdout=subprocess.PIPE, text=True,
                       env={**os.environ, **own, 'JAX_PROCESS_ID': str(number)})
      for number in range(count)
  ]
  said = [process.communicate()[0] for process in started]
  if any(process.returncode for process in started):
    raise RuntimeError(f'{command} failed')
  measured = json.loads(said[0].splitlines()[-1])
  print(f'{seeds:6} seeds on {devices} devices of {count} processes: '
        f'{measured["rate"]:12,.1f} seed-steps/s', flush=True)
  return measured


def _free_port() -> int:
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    return free.getsockname()[1]


def _measure(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the rate of a block of seeds, after a first block that compiles."""
  seeds, devices = args.worker
  if 'JAX_NUM_PROCESSES' in os.environ:
    processes.join_processes()
  machine.use_devices()
  compiled = _rounds.compilations()
  config = retrieval.get_config('cpu')
  config.model.width = args.width
  trainer = ensemble.make_trainer(
      training.problem(config, 'none'), steps_per_call=_STEPS)

  def block(first, num_calls):
    """Trains a block of seeds; returns the seconds of all calls but the first."""
    times = []
    ensemble.train(
        trainer, ensemble.seed_keys(0, first, seeds), num_calls * _STEPS,
        on_progress=lambda step, metrics: times.append(time.perf_counter()))
    return times[-1] - times[0]

  # The same number of calls in all processes.
  per_call = multihost_utils.broadcast_one_to_all(np.float32(block(0, 2)))
  num_calls, counts = 1 + max(1, round(args.seconds / float(per_call))), [len(compiled)]
  watch, own = _rounds.Watch(), time.process_time()
  seconds = block(seeds, num_calls)
  counts.append(len(compiled))
  own = float(np.sum(multihost_utils.process_allgather(time.process_time() - own)))
  return {
      'seeds': seeds, 'devices': devices, 'processes': jax.process_count(),
      'padded': sharding.padded(seeds, devices) - seeds,
      'rate': seeds * _STEPS * (num_calls - 1) / seconds,
      'compiled': counts[0], 'recompiled': counts[1] - counts[0],
      'others': watch.others(own),
  }


if __name__ == '__main__':
  main()
