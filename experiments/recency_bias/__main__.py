r"""Does LayerNorm under a causal mask favour recent tokens? Simulates random tokens.

Reproduces Figures 1-5 of arXiv 2509.21042 and of its later version, and extends them
to depth, RMSNorm, heads, rotary positions, and a map over anisotropy and width.

  python -m experiments.recency_bias --config=configs/recency_bias.py:quick \
      --workdir=runs/recency
"""

from experiments.harness import command_line
from experiments.recency_bias.run import main

if __name__ == '__main__':
  command_line.run(main, needs=(
      'num_simulations', 'anisotropies', 'panels', 'depth', 'norms', 'heads',
      'positions', 'map',
  ))
