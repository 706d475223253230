r"""Dictionary lookup: does LayerNorm after attention help at longer inputs?

Tables 2 and 6 of arXiv 2504.02827, and the same figures as for retrieval.

  python -m experiments.length_generalization --config=configs/lookup.py:quick \
      --workdir=runs/lookup_quick

variant        seeds  steps    cost
(none)         100    20,000   the paper's scale, for a GPU; not measured yet
cpu            32     20,000   127 minutes on two busy CPU cores; with two of its three
                               arms and fewer measurements 99
quick          8      500      under 5 minutes on two CPU cores
smoke          2      20       checks that it runs; two minutes, mostly compiling
growing        100    20,000   for a GPU; not measured yet
cpu_growing    32     20,000   not measured yet; with 2,000 steps and two arms some 58
                               minutes on two CPU cores
quick_growing  8      500      not measured yet
smoke_growing  2      20       checks that it runs

Variants whose names end in growing train on lengths that grow to 256 (smoke: to 32)
during the first 80 % of training: Table 5, at nine times the work.

Checkpoints are kept, 28 MB for each seed and arm. Only quick deletes those of a block
of seeds when its rows are written, which leaves 2 MB. experiments.mechanism needs them:
--config.train.keep_checkpoints=True, with quick up to 700 MB.
"""

import ml_collections

from configs import retrieval


def get_config(variant: str = 'paper') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant: that of retrieval with some changes."""
  config = retrieval.get_config(variant)
  size = variant.removesuffix('growing').removesuffix('_')
  with config.unlocked():
    config.task.update(name='lookup', num_keys=64 if size == 'smoke' else 16384)
  if size == 'quick':
    config.train.update(num_steps=500, steps_per_call=50)
    config.evaluate.update(num_sequences=128, histogram_sequences=256)
  elif size != 'smoke':
    config.train.num_steps = 20_000
  return config
