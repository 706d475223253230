r"""Argmax retrieval: does LayerNorm after attention help at longer inputs?

Tables 1 and 3, Figures 2-4 and Proposition 1 of arXiv 2504.02827, with tests.

  python -m experiments.length_generalization --config=configs/retrieval.py:quick \
      --workdir=runs/quick

variant        seeds  steps    cost
(none)         100    100,000  the paper's scale, for a GPU; not measured yet
cpu            32     40,000   65 to 100 minutes on two CPU cores
quick          8      2,000    under 5 minutes on two CPU cores
smoke          2      20       checks that it runs; a minute, mostly compiling
growing        100    100,000  for a GPU; not measured yet
cpu_growing    32     40,000   not measured yet; with 4,000 steps and two arms 76
                               minutes on two busy CPU cores
quick_growing  8      2,000    not measured yet
smoke_growing  2      20       checks that it runs

Variants whose names end in growing train on lengths that grow to 256 (smoke: to 32)
during the first 80 % of training: Table 4, at 14 times the work.

Checkpoints are kept, 2.4 MB for each seed and arm. Only quick deletes those of a block
of seeds when its rows are written, which leaves 2 MB. experiments.mechanism needs them:
--config.train.keep_checkpoints=True, with quick 60 MB.
"""

import ml_collections
from ml_collections import config_dict


def get_config(variant: str = 'paper') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  growing = variant.endswith('growing')
  variant = variant.removesuffix('growing').removesuffix('_') or 'paper'
  config = config_dict.create(
      seed=0,
      num_seeds=100,  # pairs in the tests; may grow later
      arms=('none', 'standardize', 'layer_norm'),
      task=dict(name='retrieval', num_classes=10),
      model=dict(width=128, output_projection=False, item_encoder='mlp'),
      train=dict(
          batch_size=128,
          min_length=5,  # items per sequence, uniform from min_length to max_length
          max_length=16,
          num_steps=100_000,
          steps_per_call=1_000,  # learning curves have one point per call
          seeds_at_once=100,  # trained together, divided among the devices
          group_size=100,  # the most seeds in one vmap; 1 on a CPU
          save_every_seconds=60.0,  # at most this much is lost to a crash
      ),
      optimizer=dict(
          learning_rate=1e-3,
          l2=1e-3,  # on kernels, not embeddings; l2 x kernel is added to the gradient
      ),
      evaluate=dict(
          lengths=tuple(2**k for k in range(4, 15)),
          num_sequences=1024,  # per length and seed, the same for all arms
          fit_lengths=(16, 32, 64, 128, 256),  # to fit the temperature at
          fit_sequences=256,
          histogram_lengths=(16, 512, 16384),  # Figure 2
          histogram_sequences=2048,
          weight_sequences=32,  # Figure 4
      ),
  )
  on_cpu = dict(seeds_at_once=8, group_size=1)
  if variant == 'cpu':
    config.num_seeds = 32
    config.train.update(num_steps=40_000, steps_per_call=500, **on_cpu)
  elif variant == 'quick':
    config.num_seeds = 8
    config.train.update(num_steps=2_000, steps_per_call=250, **on_cpu)
    with config.unlocked():
      config.train.keep_checkpoints = False  # of blocks of seeds that are finished
    config.evaluate.update(
        lengths=tuple(4**k for k in range(2, 8)), num_sequences=256,
        fit_lengths=(16, 64, 256), histogram_sequences=512,
    )
  elif variant == 'smoke':
    config.num_seeds = 2
    config.train.update(num_steps=20, steps_per_call=5, seeds_at_once=2, group_size=1)
    config.evaluate.update(
        lengths=(16, 32, 64), num_sequences=64, fit_lengths=(16, 32),
        fit_sequences=32, histogram_lengths=(16, 64), histogram_sequences=64,
    )
  elif variant != 'paper':
    raise ValueError(
        'variant must be paper, cpu, quick or smoke, or end in growing, as in '
        f'quick_growing; without a variant it is paper: {variant!r}')
  if growing:
    config.train.first_max_length = config.train.max_length
    config.train.max_length = 32 if variant == 'smoke' else 256
  return config
