r"""Does aligning short and long contexts help language models at longer ones?

Trains Llama models, from scratch or from a checkpoint, with and without the
misalignment term of arXiv 2506.11769, on the same pairs of windows of the same text.
Measures them at multiples of the training length.

  python -m experiments.language_model --config=configs/language_model.py:quick \
      --workdir=runs/language_model
"""

from experiments.harness import command_line
from experiments.language_model.run import main

if __name__ == '__main__':
  command_line.run(main, needs=('arms', 'text', 'train', 'optimizer', 'evaluate'))
