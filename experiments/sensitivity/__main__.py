r"""Under which choices does LayerNorm after attention help at longer inputs?

Trains Baseline and LN in every cell of a grid, measures them along training, and
tests the difference, paired by seed. A cell is a change of one configuration; its
runs are those of `experiments.length_generalization` with that change.

  python -m experiments.sensitivity --config=configs/sensitivity.py \
      --workdir=runs/sensitivity [--config.run="('base','l2')"]

Cells that differ only in the numbers of the optimizer and in the initial weights are
trained as one ensemble; the others differ in shapes, data or the function itself. All
cells reach a step before any goes on to the next, so a run that is stopped has whole
grids of fewer steps.
"""

from experiments.harness import command_line
from experiments.sensitivity.run import main

if __name__ == '__main__':
  command_line.run(
      main, needs=('base', 'cells', 'at_steps', 'also_at', 'against', 'run')
  )
