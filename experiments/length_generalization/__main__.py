r"""Does LayerNorm right after attention help beyond the training lengths?

Trains every arm on the same seeds, measures each model at every length, and tests
the differences, paired by seed. Reproduces Figures 2-4, Proposition 1 and Tables 1 and
3 of arXiv 2504.02827; with configs/lookup.py Tables 2 and 6. Variants whose names end
in growing train on lengths that grow to 256: Tables 4 and 5.

  python -m experiments.length_generalization --config=configs/retrieval.py:quick \
      --workdir=runs/quick
"""

from experiments.harness import command_line
from experiments.length_generalization.run import main

if __name__ == '__main__':
  command_line.run(
      main, needs=('task', 'model', 'train', 'optimizer', 'evaluate', 'arms')
  )
