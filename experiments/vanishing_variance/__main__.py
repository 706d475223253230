r"""Does LayerNorm right after attention help at longer inputs, and by what mechanism?

Trains Baseline and LN in every cell of a family of settings that was fixed beforehand.
Measures them at several steps, with their weights as they are and averaged over the
last tenth of the steps, and intervenes on the attention output in some cells
(`experiments.mechanism`).

  python -m experiments.vanishing_variance --config=configs/vanishing_variance.py \
      --workdir=experiments/results/vanishing_variance [--config.run="('base',)"]

Once a block of seeds is measured, its checkpoints are no longer needed: the folder can
be moved to another machine without them, and the run resumes there with the next block.
"""

from experiments.harness import command_line
from experiments.vanishing_variance.run import main

if __name__ == '__main__':
  command_line.run(main, needs=('base', 'cells', 'claim', 'mechanism', 'run'))
