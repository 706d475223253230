r"""Linear attention that tells mean, length or sum of bits: exact, by formula, trained.

The theory of arXiv 2506.11769, section 3 and appendix: its closed forms beside the
exact optimum, and models trained by gradient descent, which find the latter.

  python -m experiments.linear_attention --config=configs/linear_attention.py \
      --workdir=runs/linear_attention

variant   seeds  training lengths, steps  cost
(none)    8      5, 10 and 20, 2,000      a minute on two CPU cores
smoke     2      10, 600                  shows that it runs, 15 seconds
"""

import ml_collections
from ml_collections import config_dict


def get_config(variant: str = 'paper') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  config = config_dict.create(
      seed=0,
      num_seeds=8,  # may grow later
      tasks=('mean', 'length', 'sum'),
      train_lengths=(5, 10, 20),  # n: trained on 1 to n bits
      model=dict(width=2),  # of queries and keys
      train=dict(
          num_steps=2_000,  # each on the expected loss over all strings of 1 to n bits
          steps_per_call=500,  # learning curves have a point for each
          seeds_at_once=8,  # trained together, shared out over the devices
          group_size=1,  # of these, run as one by vmap; 1 on a CPU
          save_every_seconds=60.0,  # at most this much is lost to a crash
      ),
      optimizer=dict(learning_rate=0.05),  # of Adam; to 0 at the last step, by a cosine
      evaluate=dict(
          max_length=50,  # every length from 1 up to it
          sampled_lengths=(5, 10, 20, 50),  # where strings are drawn too
          num_sequences=20_000,  # so many
      ),
  )
  if variant == 'smoke':
    config.num_seeds = 2
    config.train_lengths = (10,)
    config.train.update(num_steps=600, steps_per_call=200, seeds_at_once=2)
    config.evaluate.num_sequences = 2_000
  elif variant != 'paper':
    raise ValueError(f'variant is paper or smoke, not {variant!r}')
  return config
