r"""Does LayerNorm after attention help, and on which settings does that depend?

  python -m experiments.sensitivity --config=configs/sensitivity.py:cpu \
      --workdir=runs/sensitivity

variant   seeds  steps up to  cost
(none)    100    100,000      for a GPU
cpu       32     10,000       12 minutes per cell of retrieval on two CPU cores
quick     8      2,000        the cells base and l2; under 5 minutes on two CPU cores
smoke     2      20           a minute per cell, mostly compiling

The cells base and l2 of both tasks have all arms (two in quick) and are trained longer,
in the variant cpu to 40,000 steps, which takes 1 to 2 hours per cell, or 3 to 6 for
lookup. Choose fewer steps as by --config.also_at.base="(2000,)".

--config.run="('base','l2')" chooses cells; without it, all are run, but quick runs
these two and keeps 77 MB of checkpoints. More cells can be added to the folder later. A
copy of this file may define other cells: each changes fields of task, model and
optimizer, or arms, train.batch_size, train.min_length and train.max_length.
"""

import ml_collections
from ml_collections import config_dict

from configs import lookup, retrieval


def get_config(variant: str = 'paper') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  if variant not in ('paper', 'cpu', 'quick', 'smoke'):
    raise ValueError(
        'variant must be paper, cpu, quick or smoke; '
        f'without a variant it is paper: {variant!r}')
  base = retrieval.get_config('cpu' if variant == 'quick' else variant)
  base.arms = ('none', 'layer_norm')
  base.optimizer.l2 = 0.0
  base.evaluate.fit_lengths = ()
  with base.unlocked():
    base.optimizer.decoupled = False
    base.task.informative_query = False
    base.model.update(value_bias=False, epsilon=1e-5, kernel_init='lecun_normal')
  all_arms = ('none', 'standardize', 'layer_norm')
  if variant == 'quick':
    base.num_seeds, all_arms = 8, base.arms
    base.evaluate.num_sequences = 64
    base.evaluate.lengths = retrieval.get_config(variant).evaluate.lengths
  elif variant != 'smoke':
    base.evaluate.num_sequences = 256
  task = lookup.get_config(variant).task.to_dict()
  at_steps, along_training = {
      'paper': ((10_000, 100_000), (2_000, 5_000, 20_000, 40_000)),
      'cpu': ((5_000, 10_000), (2_000, 20_000, 40_000)),
      'quick': ((1_000, 2_000), (500,)),
      'smoke': ((20,), (10,)),
  }[variant]
  cells = dict(
      base=dict(arms=all_arms),
      l2=dict(optimizer=dict(l2=1e-3), arms=all_arms),
      # Decoupled decay is multiplied by the learning rate: 0.1 shrinks a kernel by
      # 1 - 1/e in 10,000 steps at rate 1e-3, while 1e-3 would shrink it by 1 %.
      decoupled=dict(optimizer=dict(l2=0.1, decoupled=True)),
      output_projection=dict(model=dict(output_projection=True)),
      linear_encoder=dict(model=dict(item_encoder='linear')),
      linear_projection=dict(
          model=dict(item_encoder='linear', output_projection=True)
      ),
      value_bias=dict(model=dict(value_bias=True)),
      epsilon=dict(model=dict(epsilon=1e-8)),
      uniform_init=dict(model=dict(kernel_init='uniform')),
      rate_low=dict(optimizer=dict(learning_rate=3e-4)),
      rate_high=dict(optimizer=dict(learning_rate=3e-3)),
      # The rate reaches 0 at the last step: earlier measurements are in mid-decay.
      **{
          name: dict(optimizer=dict(learning_rate=rate, decay_steps=at_steps[-1]))
          for name, rate in (
              ('rate_low_decay', 3e-4), ('rate_decay', 1e-3),
              ('rate_high_decay', 3e-3), ('rate_higher_decay', 1e-2),
          )
      },
      **{
          name: dict(optimizer=dict(
              l2=1e-3, learning_rate=rate, decay_steps=at_steps[-1]
          ))
          for name, rate in (('l2_rate_decay', 1e-3), ('l2_rate_high_decay', 3e-3))
      },
      classes_4=dict(task=dict(num_classes=4)),
      classes_32=dict(task=dict(num_classes=32)),
      informative_query=dict(task=dict(informative_query=True)),
      range_32=dict(train=dict(max_length=32)),
      width_64=dict(model=dict(width=64)),
      width_256=dict(model=dict(width=256)),
      lookup=dict(task=task, arms=all_arms),
      lookup_l2=dict(task=task, optimizer=dict(l2=1e-3), arms=all_arms),
  )
  return config_dict.create(
      base=base,
      cells=cells,  # what each one changes in base
      at_steps=at_steps,  # when each cell is measured; the last one ends training
      also_at={
          name: along_training for name in ('base', 'l2', 'lookup', 'lookup_l2')
      },
      # {cell: the cell whose gain it is compared with}; cells that are not listed are
      # compared with base, if they have the same task.
      against=dict(
          linear_projection='linear_encoder', lookup_l2='lookup',
          l2_rate_decay='rate_decay', l2_rate_high_decay='rate_high_decay',
      ),
      # Names of cells; (): all.
      run=('base', 'l2') if variant == 'quick' else (),
  )
