r"""Does misalignment tell which models generalize to longer inputs?

Trains small language models that differ in positions, length, training and norm on a
text of answered prompts; correlates their training loss and their misalignment with
log perplexity and a benchmark's score on longer inputs, as Table 1 of arXiv 2506.11769.

  python -m experiments.correlation --config=configs/correlation.py:quick \
      --workdir=runs/correlation
"""

from experiments.correlation.run import main
from experiments.harness import command_line

if __name__ == '__main__':
  command_line.run(main, needs=(
      'models', 'run_models', 'benchmark', 'text', 'train', 'evaluate'))
