r"""The recency bias of LayerNorm under a causal mask, without any training.

Figures 1-5 of arXiv 2509.21042, the panels of its later version, and what the paper
leaves out: depth and length, RMSNorm, heads, rotary positions, and a map over
anisotropy and width.

  python -m experiments.recency_bias --config=configs/recency_bias.py:quick \
      --workdir=runs/recency

variant   simulations a panel   cost
(none)    100,000; 10,000,000   the paper's scale; 16 minutes on two CPU cores
quick     100,000               3 minutes on two CPU cores
smoke     200                   checks that it runs; a minute, mostly compiling
"""

import ml_collections
from ml_collections import config_dict


def get_config(variant: str = 'paper') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  config = config_dict.create(
      seed=0,
      num_simulations=100_000,  # of each row of Figures 1, 3 and 4; may grow later
      num_tokens=10,
      width=64,
      num_layers=4,
      anisotropies=(0.0, 0.2, 0.4, 0.6, 0.8),  # of Figures 2 to 5
      # The later version: Figure 1's rows at several widths, with recency probability.
      panels=dict(widths=(16, 64, 256, 1024), num_simulations=10_000_000),
      # Beyond the paper: with LayerNorm, and with this anisotropy unless given below.
      anisotropy=0.5,
      depth=dict(num_tokens=(8, 32, 128, 512), num_simulations=(20_000, 2_000, 200, 40),
                 num_layers=32),
      norms=dict(widths=(16, 64), num_simulations=100_000),
      heads=dict(num_heads=(1, 2, 4, 8, 16), num_simulations=20_000),
      positions=dict(anisotropies=(0.0, 0.5), num_tokens=32, base=10_000.0,
                     num_simulations=20_000),
      map=dict(
          anisotropies=tuple(round(0.05 * i, 2) for i in range(20)),
          widths=(16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024),
          num_simulations=20_000,
      ),
  )
  if variant == 'quick':
    config.panels.num_simulations = 100_000
    config.depth.update(num_tokens=(8, 32, 128), num_simulations=(5_000, 1_000, 100))
    config.norms.num_simulations = config.map.num_simulations = 10_000
    config.heads.num_simulations = config.positions.num_simulations = 5_000
    config.map.anisotropies = tuple(round(0.1 * i, 1) for i in range(10))
    config.map.widths = (16, 32, 64, 128, 256, 512, 1024)
  elif variant == 'smoke':
    config.num_simulations = 200
    config.panels.update(widths=(16, 64), num_simulations=200)
    config.depth.update(num_tokens=(5, 17), num_simulations=(20, 10), num_layers=6)
    config.norms.update(widths=(16,), num_simulations=200)
    config.heads.update(num_heads=(1, 2), num_simulations=20)
    config.positions.update(num_tokens=12, num_simulations=20)
    config.map.update(anisotropies=(0.0, 0.5), widths=(16, 64), num_simulations=20)
  elif variant != 'paper':
    raise ValueError(
        'variant must be paper, quick or smoke; '
        f'without a variant it is paper: {variant!r}')
  return config
