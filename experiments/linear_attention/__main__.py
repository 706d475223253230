r"""Does gradient descent find the best linear attention, and is it the paper's?

One layer of linear attention answers mean, length or sum of 1 to n bits. Compares the
exact optimum, the single number Γ of arXiv 2506.11769 and trained models at lengths up
to 50; losses over random strings with those over all strings; and the paper's formulas
with corrected ones.

  python -m experiments.linear_attention --config=configs/linear_attention.py \
      --workdir=runs/linear_attention
"""

from experiments.harness import command_line
from experiments.linear_attention.run import main

if __name__ == '__main__':
  command_line.run(main, needs=('tasks', 'train_lengths', 'model', 'train', 'optimizer',
                        'evaluate'))
