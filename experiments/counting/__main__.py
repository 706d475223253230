r"""Which positions and targets let transformers count beyond the training lengths?

Trains on mean, length or sum of 1 to 10 bits (up to 40 in Figure 4) and tests on up to
50 bits: Figures 1a-c, 4, 5 and 6 of arXiv 2506.11769, with intervals and paired tests.

  python -m experiments.counting --config=configs/counting.py:quick \
      --workdir=runs/counting
"""

from experiments.counting.run import main
from experiments.harness import command_line

if __name__ == '__main__':
  command_line.run(main, needs=('figures', 'model', 'train', 'optimizer', 'evaluate'))
