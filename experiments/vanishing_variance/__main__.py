r"""Does LayerNorm right after attention help at longer inputs, and by what mechanism?

Trains Baseline and LN in every cell of a family that was fixed beforehand, measures
them along training, with their weights as they are and averaged over the last tenth of
steps, and takes the attention output of some apart (`experiments.mechanism`).

  python -m experiments.vanishing_variance --config=configs/vanishing_variance.py \
      --workdir=experiments/results/vanishing_variance [--config.run="('base',)"]

A block of seeds is written when both arms are measured. It needs no checkpoint after
that: the folder without them can be moved to another machine, where the run goes on
with the next block.
"""

from experiments.harness import command_line
from experiments.vanishing_variance.run import main

if __name__ == '__main__':
  command_line.run(main, needs=('base', 'cells', 'claim', 'mechanism', 'run'))
