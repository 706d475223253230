r"""Under which settings does LayerNorm after attention help at longer inputs?

Trains Baseline and LN in every cell of a grid, measures them at several steps, and
tests the difference, paired by seed. Each cell changes some fields of one base
configuration of `experiments.length_generalization`.

  python -m experiments.sensitivity --config=configs/sensitivity.py \
      --workdir=runs/sensitivity [--config.run="('base','l2')"]

Cells that differ only in learning rate, weight decay or initial weights are trained as
one ensemble; other cells differ in shapes, data or program. All cells reach a step
before any is trained to the next, so a run that is stopped has complete grids for the
earlier steps.
"""

from experiments.harness import command_line
from experiments.sensitivity.run import main

if __name__ == '__main__':
  command_line.run(
      main, needs=('base', 'cells', 'at_steps', 'also_at', 'against', 'run')
  )
