r"""What helps a trained model to read longer inputs, and does the term help there?

Fine-tunes a checkpoint in hub layout with methods that extend its context: position
interpolation, NTK, YaRN, EABF, CLEX, random positions or ALiBi; all parameters, or
low-rank adapters, over quantized weights if wanted; with full or shifted sparse
attention; each with and without the misalignment term of arXiv 2506.11769, on the same
pairs of windows of the same text. Measures at multiples of the training length.

  python -m experiments.adapt --config=configs/adapt.py:yarn_quick \
      --workdir=runs/adapt --config.checkpoint=FOLDER
"""

from experiments.adapt.run import main
from experiments.harness import command_line

if __name__ == '__main__':
  command_line.run(main, needs=(
      'arms', 'run_arms', 'positions', 'adapters', 'text', 'train', 'optimizer',
      'evaluate'))
