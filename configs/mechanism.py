r"""Which change of the attention output restores accuracy at longer inputs?

  python -m experiments.mechanism --config=configs/mechanism.py \
      --config.trained=runs/retrieval --workdir=runs/mechanism

variant   arms      cost
(none)    Baseline  70 seconds for 8 seeds on two CPU cores
smoke     Baseline  checks that it runs: three short lengths, few sequences

Measures all seeds of the folder config.trained, which must have its checkpoints: one of
configs/retrieval.py:quick has them only with --config.train.keep_checkpoints=True. For
LN too, add --config.arms="('none','layer_norm')".
"""

import ml_collections
from ml_collections import config_dict


def get_config(variant: str = 'full') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  config = config_dict.create(
      trained='',  # folder of a run of length_generalization, or a cell of sensitivity
      arms=('none',),
      lengths=tuple(2**k for k in range(4, 15)),
      num_sequences=512,  # per length and seed
      moment_sequences=4096,  # separate ones, for moments and for fitting readers
      select_sequences=1024,  # separate ones, to choose the penalty of readers
  )
  if variant == 'smoke':
    config.update(
        lengths=(16, 32, 64), num_sequences=64, moment_sequences=32, select_sequences=32
    )
  elif variant != 'full':
    raise ValueError(
        'variant must be full or smoke; '
        f'without a variant it is full: {variant!r}')
  return config
