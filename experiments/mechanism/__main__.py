r"""Why does accuracy fall with length: vanishing variance, or dispersed attention?

Takes models trained by `experiments.length_generalization` or
`experiments.sensitivity`, changes their attention output at test time, and measures how
much accuracy each change restores (`vvlen.evaluation.retriever.intervention`).

  python -m experiments.mechanism --config=configs/mechanism.py \
      --config.trained=runs/retrieval --workdir=runs/mechanism
"""

from experiments.harness import command_line
from experiments.mechanism.run import main

if __name__ == '__main__':
  command_line.run(main, needs=(
      'trained', 'arms', 'lengths', 'num_sequences', 'moment_sequences',
      'select_sequences',
  ))
