r"""Linear attention for mean, length or sum of bits: exact, by formula, and trained.

The theory of arXiv 2506.11769, section 3 and appendix: compares its closed forms with
the exact optimum and with models trained by gradient descent, which find the optimum.

  python -m experiments.linear_attention --config=configs/linear_attention.py \
      --workdir=runs/linear_attention

variant   seeds  training lengths, steps  cost
(none)    8      5, 10 and 20, 2,000      a minute on two CPU cores
smoke     2      10, 600                  checks that it runs, 15 seconds
"""

import ml_collections
from ml_collections import config_dict


def get_config(variant: str = 'paper') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  config = config_dict.create(
      seed=0,
      num_seeds=8,  # may grow later
      tasks=('mean', 'length', 'sum'),
      train_lengths=(5, 10, 20),  # n; models are trained on 1 to n bits
      model=dict(width=2),  # of queries and keys
      train=dict(
          num_steps=2_000,  # on the expected loss over all strings of 1 to n bits
          steps_per_call=500,  # learning curves have one point per call
          seeds_at_once=8,  # trained together, divided among the devices
          group_size=1,  # the most seeds in one vmap; 1 on a CPU
          save_every_seconds=60.0,  # at most this much is lost to a crash
      ),
      optimizer=dict(learning_rate=0.05),  # of Adam; cosine decay to 0 at the last step
      evaluate=dict(
          max_length=50,  # all lengths from 1 to this one are tested
          sampled_lengths=(5, 10, 20, 50),  # at which random strings are tested too
          num_sequences=20_000,  # random strings at each of these lengths
      ),
  )
  if variant == 'smoke':
    config.num_seeds = 2
    config.train_lengths = (10,)
    config.train.update(num_steps=600, steps_per_call=200, seeds_at_once=2)
    config.evaluate.num_sequences = 2_000
  elif variant != 'paper':
    raise ValueError(
        'variant must be paper or smoke; '
        f'without a variant it is paper: {variant!r}')
  return config
