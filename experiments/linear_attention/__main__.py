r"""Does gradient descent find the best linear attention, and is it the paper's?

Mean, length and sum of bits by one layer of linear attention, trained on 1 to n bits:
the exact optimum, the single number Γ of arXiv 2506.11769 and trained models, at
lengths up to 50; drawn strings against all; and the paper's formulas, corrected.

  python -m experiments.linear_attention --config=configs/linear_attention.py \
      --workdir=runs/linear_attention
"""

from experiments.harness import command_line
from experiments.linear_attention.run import main

if __name__ == '__main__':
  command_line.run(main, needs=('tasks', 'train_lengths', 'model', 'train', 'optimizer',
                        'evaluate'))
