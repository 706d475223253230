r"""Does LayerNorm after attention help, and which choice of setting decides?

  python -m experiments.sensitivity --config=configs/sensitivity.py:cpu \
      --workdir=runs/sensitivity

variant   seeds  steps up to  cost
(none)    100    100,000      for a GPU
cpu       32     40,000       about 45 minutes a cell of retrieval on two CPU cores
quick     8      2,000        five minutes for the cells base, l2 on two CPU cores
smoke     2      20           seconds a cell

--config.run="('base','l2')" chooses cells; more may be added to the folder later.
"""

import ml_collections
from ml_collections import config_dict

from configs import lookup, retrieval


def get_config(variant: str = 'paper') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  base = retrieval.get_config('cpu' if variant == 'quick' else variant)
  base.arms = ('none', 'layer_norm')
  base.optimizer.l2 = 0.0
  base.evaluate.fit_lengths = ()
  with base.unlocked():
    base.optimizer.decoupled = False
    base.model.update(value_bias=False, epsilon=1e-5, kernel_init='lecun_normal')
  if variant != 'smoke':
    base.evaluate.num_sequences = 512
  task = lookup.get_config(variant).task
  at_steps = {
      'paper': (2_000, 5_000, 10_000, 20_000, 40_000, 100_000),
      'cpu': (2_000, 5_000, 10_000, 20_000, 40_000),
      'quick': (500, 1_000, 2_000),
      'smoke': (10, 20),
  }
  if variant == 'quick':
    base.num_seeds = 8
    base.evaluate.num_sequences = 256
  cells = dict(
      base=dict(),
      l2=dict(optimizer=dict(l2=1e-3)),
      decoupled=dict(optimizer=dict(l2=1e-3, decoupled=True)),
      output_projection=dict(model=dict(output_projection=True)),
      linear_encoder=dict(model=dict(item_encoder='linear')),
      value_bias=dict(model=dict(value_bias=True)),
      width_64=dict(model=dict(width=64)),
      width_256=dict(model=dict(width=256)),
      classes_4=dict(task=dict(num_classes=4)),
      classes_32=dict(task=dict(num_classes=32)),
      rate_low=dict(optimizer=dict(learning_rate=3e-4)),
      rate_high=dict(optimizer=dict(learning_rate=3e-3)),
      uniform_init=dict(model=dict(kernel_init='uniform')),
      epsilon=dict(model=dict(epsilon=1e-8)),
      lookup=dict(task=task.to_dict()),
      lookup_l2=dict(task=task.to_dict(), optimizer=dict(l2=1e-3)),
  )
  return config_dict.create(
      base=base, at_steps=at_steps[variant], cells=cells,
      run=(),  # names of cells; all if none
  )
