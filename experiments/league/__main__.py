r"""Which change of attention carries to longer inputs, and which temperature?

Tunes the learning rate of each arm on each task, at the training lengths, then trains
fresh seeds at the chosen rate and tests each arm against softmax, paired by seed. What
the arms are is in experiments/league/arms.py.

  python -m experiments.league --config=configs/league.py:quick --workdir=runs/league

An arm of your own is a function of logits and mask, in a file:

  python -m experiments.league --config=configs/league.py:quick --workdir=runs/mine \
      --config.arms.mine=docs/examples/my_attention.py:attend
"""

from experiments.harness import command_line
from experiments.league.run import main

if __name__ == '__main__':
  command_line.run(main, needs=('base', 'tasks', 'arms', 'tune', 'claim', 'run_arms'))
