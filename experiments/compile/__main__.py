r"""What does an experiment need on a TPU slice? Compiled on a machine without TPUs.

  python -m experiments.compile --topology=v5e:16x16 --experiment=retrieval
  python -m experiments.compile --topology=v5p:4x4x4 --experiment=llama_2_7b_4096
  python -m experiments.compile --topology=h100:8 --experiment=llama_2_7b_4096

Prints memory, operations, collectives, and the least time of a step and of the whole
experiment by published peaks, and adds them to experiments/results/compiled. The
compiler is that of TPUs, libtpu (pip install '.[compile]'), which runs on any machine.
For GPUs, operations and arguments are only counted.
"""

import argparse
import os

from etils import epath

from experiments.compile import NAMES, report
from experiments.compile.chips import known, SHAPES, slice_of
from experiments.harness import errors, paths


def main() -> None:
  """Compiles one experiment for one slice."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  some = ', '.join(f'{kind}:{shapes[-1]}' for kind, shapes in SHAPES.items())
  parser.add_argument('--topology', required=True, help=f'such as {some}')
  parser.add_argument('--experiment', required=True, help=f'one of {", ".join(NAMES)}')
  parser.add_argument('--output', default='experiments/results/compiled',
                      help='folder of compiled.json and README.md')
  parser.error = lambda text: errors.refuse(ValueError(text))  # type: ignore
  args = parser.parse_args()
  try:
    folder = epath.Path(paths.usable(args.output, '--output'))
    before = report.read(folder)
    where = slice_of(args.topology)
    known('experiment', args.experiment, NAMES)
  except (ValueError, OSError) as error:
    errors.refuse(error)
  # This process has no accelerator, or must leave it alone.
  os.environ['JAX_PLATFORMS'] = 'cpu'
  with errors.reported():
    row = {'experiment': args.experiment, **_row(args.experiment, where)}
    print(report.lines(row), flush=True)
    report.add(folder, before, row)


def _row(name, where):
  import jax

  from experiments.compile import measure, programs

  if where.compiles:
    devices = measure.devices_of(where)
    return measure.measure(programs.EXPERIMENTS[name](devices), where)
  if not name.startswith('llama'):
    raise ValueError(f'--experiment={name} cannot be counted without a compiler, and '
                     f'there is none for {where.name}: only llama_2_7b_4096 and '
                     'llama_2_7b_8192 can')
  jax.config.update('jax_num_cpu_devices', where.size)
  return measure.count(programs.EXPERIMENTS[name](jax.devices()), where)


if __name__ == '__main__':
  main()
